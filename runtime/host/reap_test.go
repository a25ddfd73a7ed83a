package host

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// helpersLeft lists processes of libcontainer's, dead or alive, that are children
// of this one. Other tests of this package start some too: only those that stay count.
func helpersLeft(t *testing.T) []string {
	t.Helper()
	var left []string
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		i := strings.LastIndexByte(string(b), ')')
		rest := strings.Fields(string(b[i+1:]))
		if strings.Contains(string(b[:i]), "(runc:[") && rest[1] == fmt.Sprint(os.Getpid()) {
			left = append(left, string(b[:i+3]))
		}
	}
	return left
}

// stays returns those of the helpers that are still there when every one that was
// on its way has had its time.
func stays(t *testing.T) (left []string) {
	t.Helper()
	first := helpersLeft(t)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		now := map[string]bool{}
		for _, p := range helpersLeft(t) {
			now[p] = true
		}
		left = nil
		for _, p := range first {
			if now[p] {
				left = append(left, p)
			}
		}
		if first = left; len(left) == 0 {
			break
		}
	}
	return left
}

// TestFailedExecLeavesNoHelpers: an exec fails at its first step and at its last.
func TestFailedExecLeavesNoHelpers(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	w.start(in)
	// The namespaces of a dead process cannot be joined: libcontainer's first step fails.
	gone := exec.Command("true")
	w.must(gone.Start())
	defer gone.Wait()
	w.wait("a process to end", func() bool {
		state, _, err := procStat(gone.Process.Pid)
		return err == nil && state == 'Z'
	})
	tree, err := w.h.cgroups()
	w.must(err)
	entrance, err := w.h.entrance(in.ID, tree)
	w.must(err)
	file := filepath.Join(entrance, in.ID, "state.json")
	whole, err := os.ReadFile(file)
	w.must(err)
	var state libcontainer.State
	w.must(json.Unmarshal(whole, &state))
	state.InitProcessPid = gone.Process.Pid
	broken, err := json.Marshal(state)
	w.must(err)
	w.must(os.WriteFile(file, broken, 0o600))
	if _, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"true"}}); err == nil {
		t.Fatal("exec beside a dead process succeeded")
	}
	w.must(os.WriteFile(file, whole, 0o600))
	if _, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"true"}, WorkingDir: "/none"}); err == nil {
		t.Errorf("exec in a directory that is not there succeeded")
	}
	if left := stays(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if code, _ := w.sh(in.ID, "exit 5"); code != 5 {
		t.Errorf("exec afterwards: %d", code)
	}
}

// TestExecRacingTheEnd: PID 1 is killed while execs come in. Every exec succeeds or
// fails, and PID 1 is gone at once, whatever became of them.
func TestExecRacingTheEnd(t *testing.T) {
	w := newWorld(t)
	for round := range 12 {
		in := w.instance(1, "exec sleep 1000")
		p := w.start(in)
		var running sync.WaitGroup
		begun := make(chan struct{}, 64)
		for range 3 {
			running.Go(func() {
				for {
					e, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"sleep", "1000"}})
					if err != nil {
						begun <- struct{}{}
						return
					}
					begun <- struct{}{}
					running.Go(func() { e.Wait() })
				}
			})
		}
		for range round/4 + 1 {
			<-begun
		}
		w.must(unix.Kill(p.PID, unix.SIGKILL))
		go func() {
			for range begun {
			}
		}()
		_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		running.Wait()
		close(begun)
		w.wait("PID 1 to be reaped", func() bool {
			_, start, err := procStat(p.PID)
			return err != nil || start != p.StartTime
		})
	}
	if left := stays(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
