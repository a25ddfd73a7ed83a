//go:build failpoints

// Package crash kills pinfold at each failpoint, and makes each of its steps fail, on
// the real kernel. What is killed is this test binary in a process of its own, which
// does one verb as the command line does it, or is an agent.
package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	_ "pinfold/runtime/host/boot"

	"pinfold/reconcile"
)

// A child process has its world's directory and its role in its environment. Nobody
// else has them, so that whatever it leaves running is found by them.
const (
	dirVar  = "PINFOLD_TEST_CRASH_DIR"
	roleVar = "PINFOLD_TEST_CRASH_ROLE" // "agent", or a verb's name
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(os.Getenv(dirVar), role))
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make real sandboxes: run them as root")
		os.Exit(1)
	}
	if err := adoptOrphans(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot become the parent of orphans:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// told is what a child that was not killed says at its end.
type told struct {
	Error    string              `json:"error,omitempty"`
	Failures []reconcile.Failure `json:"failures,omitempty"`
}

func play(dir, role string) int {
	ctx := context.Background()
	var t told
	if role == "agent" {
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
		defer stop()
		err := reconcile.RunAgent(ctx, reconcile.AgentOptions{OpenOptions: options(dir, "agent"), Ready: func() { fmt.Println("ready") }})
		t = tellOf(nil, err)
	} else {
		t = tellOf(perform(ctx, dir, verbs[role]))
	}
	if err := json.NewEncoder(os.Stdout).Encode(t); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func tellOf(res *reconcile.ApplyResult, err error) (t told) {
	if err != nil {
		t.Error = err.Error()
		if e := (*reconcile.Error)(nil); errors.As(err, &e) {
			for _, d := range e.Diagnostics {
				t.Error += "; " + d.Summary + ": " + d.Detail
			}
		}
	}
	if res != nil {
		t.Failures = res.Failures
	}
	return t
}

// perform is the verb from opening the state to closing it.
func perform(ctx context.Context, dir string, v *verb) (*reconcile.ApplyResult, error) {
	if v.bare {
		return v.work(ctx, nil, dir)
	}
	s, err := reconcile.Open(ctx, options(dir, v.name))
	if err != nil {
		return nil, err
	}
	work := v.work
	if work == nil {
		work = applyFiles
	}
	res, err := work(ctx, s, dir)
	if closing := s.Close(); err == nil {
		err = closing
	}
	return res, err
}
