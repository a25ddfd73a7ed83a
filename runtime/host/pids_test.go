package host

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// count reads how many processes and threads the kernel counts in an instance.
func (w *world) count(id string) int {
	tree, err := w.h.cgroups()
	w.must(err)
	b, err := os.ReadFile(filepath.Join(tree.dir(id, "pids"), "pids.current"))
	w.must(err)
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	w.must(err)
	return n
}

// TestExecAtTheProcessLimit: a sandbox fills up. An exec is refused with words when
// nothing is free and works, without a word of its helpers', when one place is.
func TestExecAtTheProcessLimit(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, `trap 'kill $!; wait $!' USR1
i=0; while [ $i -lt 30 ]; do sleep 1000 & i=$((i+1)); done
echo filled; while :; do wait; done`)
	in.Limits.PIDs = 32
	w.start(in)
	w.waitLog(in.ID, "filled")
	if n := w.count(in.ID); n != 32 {
		t.Fatalf("%d processes, want 32", n)
	}
	rd, wr, err := os.Pipe()
	w.must(err)
	defer rd.Close()
	for _, e := range []runtime.Exec{{Args: []string{"true"}, Stdout: wr, Stderr: wr}, {Args: []string{"true"}, TTY: true}} {
		_, err := w.h.Exec(w.ctx, in.ID, e)
		if err == nil || !strings.Contains(err.Error(), "limit of 32 processes (resources.pids)") || strings.Contains(err.Error(), "procReady") {
			t.Errorf("exec into a full sandbox: %v", err)
		}
	}
	wr.Close()
	if b, err := io.ReadAll(rd); err != nil || len(b) > 0 {
		t.Errorf("the user got to see %q, %v", b, err)
	}

	w.must(w.h.Signal(w.ctx, in.ID, int(unix.SIGUSR1)))
	w.wait("a place to be free", func() bool { return w.count(in.ID) == 31 })
	// The command is counted, and has no room for children.
	code, out := w.sh(in.ID, "echo in; true & echo not reached")
	if n := w.count(in.ID); n != 31 {
		t.Errorf("%d processes after the exec, want 31", n)
	}
	if code == 0 || !strings.HasPrefix(out, "in\n") || strings.Contains(out, "not reached") || strings.Contains(out, "runtime") {
		t.Errorf("exec into the last place: %d, %q", code, out)
	}
	tree, err := w.h.cgroups()
	w.must(err)
	p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"sleep", "1000"}})
	w.must(err)
	pids, err := tree.pids(in.ID)
	w.must(err)
	if n := w.count(in.ID); n != 32 || len(pids) != 32 {
		t.Errorf("%d counted, %d in the cgroup, want 32", n, len(pids))
	}
	w.must(p.Signal(int(unix.SIGKILL)))
	p.Wait()
}

// TestTinyProcessLimits: two is enough for PID 1 and a command, one is not.
func TestTinyProcessLimits(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "")
	in.Command = []string{"sleep", "1000"}
	in.Limits.PIDs = 1
	w.create(in)
	if s := w.state(in.ID); !s.Alive || len(s.Missing) > 0 {
		t.Errorf("created: %+v", s)
	}
	if err := w.h.Start(w.ctx, in.ID); err == nil || !strings.Contains(err.Error(), "resources.pids") {
		t.Errorf("start under a limit of one: %v", err)
	}
	if s := w.state(in.ID); s.Alive || s.Dying {
		t.Errorf("after it: %+v", s)
	}
	in.Limits.PIDs = 2
	w.start(in)
	if s := w.state(in.ID); !s.Started || len(s.Missing) > 0 {
		t.Errorf("started: %+v", s)
	}
	if n := w.count(in.ID); n != 2 {
		t.Errorf("%d processes, want 2", n)
	}
}

// TestProcessLimitChangedBeforeStart: what holds is what was asked for last, from the
// command's first instruction on.
func TestProcessLimitChangedBeforeStart(t *testing.T) {
	w := newWorld(t)
	for _, change := range []func(runtime.Instance) error{
		func(in runtime.Instance) error { return w.h.Update(w.ctx, in) },
		func(in runtime.Instance) error { return w.h.Repair(w.ctx, in) },
	} {
		for _, limits := range [][2]int64{{100, 7}, {7, 100}, {0, 7}, {7, 0}} {
			in := w.instance(1, "exec sleep 1000")
			in.Limits.PIDs = limits[0]
			w.create(in)
			in.Limits.PIDs = limits[1]
			w.must(change(in))
			if s := w.state(in.ID); len(s.Missing) > 0 {
				t.Errorf("%v, created: missing %v", limits, s.Missing)
			}
			w.must(w.h.Start(w.ctx, in.ID))
			tree, err := w.h.cgroups()
			w.must(err)
			b, err := os.ReadFile(filepath.Join(tree.dir(in.ID, "pids"), "pids.max"))
			w.must(err)
			if got := strings.TrimSpace(string(b)); got != pidsMax(in.Limits) {
				t.Errorf("%v: pids.max is %s", limits, got)
			}
			if s := w.state(in.ID); len(s.Missing) > 0 {
				t.Errorf("%v, started: missing %v", limits, s.Missing)
			}
			w.must(w.h.Remove(w.ctx, in.ID))
		}
	}
}
