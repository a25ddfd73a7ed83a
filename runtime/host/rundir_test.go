package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// A process.json that says nothing counts as none: what the caller recalls stands
// in for it, and without that the cgroup still tells what there is to kill.
func TestDamagedProcessFile(t *testing.T) {
	w := newWorld(t)
	for i, damage := range []string{"", "{", "\x00\x00\x00\x00", `{"process":{"pid":0}}`, `[1]`, `{"process":{"pid":12`} {
		in := w.instance(i, `trap "exit 7" TERM; echo ready; while :; do sleep 1000 & wait; done`)
		p := w.start(in)
		w.waitLog(in.ID, "ready")
		w.must(os.WriteFile(w.h.processPath(in.ID), []byte(damage), 0o600))
		w.h.starters.Close() // as with the end of the process
		next, err := Open(w.h.opts)
		w.must(err)
		defer next.Close()
		w.h = next

		if s := w.state(in.ID); s.Alive || !s.Dying {
			t.Errorf("%q: %+v", damage, s)
		}
		if i%2 == 1 {
			w.must(w.h.Remove(w.ctx, in.ID))
		} else {
			w.h.Recall(in.ID, p, in.Mark)
			if s := w.state(in.ID); !s.Alive || s.Process != p {
				t.Errorf("%q recalled: %+v", damage, s)
			}
			out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{Grace: time.Minute})
			w.must(err)
			if out == nil || out.ExitCode != 7 {
				t.Errorf("%q: it was not asked to end: %+v", damage, out)
			}
		}
		if alive, err := w.h.alive(p); alive || err != nil {
			t.Errorf("%q: the process is alive: %v %v", damage, alive, err)
		}
	}
}

// Whoever clears the run directory leaves the names of network namespaces, which
// are mounted on: nothing of them may stay.
func TestRunDirClearedWhileSandboxesLive(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "sleep 1000")
	p := w.start(in)
	run := w.h.opts.RunDir
	w.must(os.RemoveAll(filepath.Join(run, "instances")))
	w.must(os.RemoveAll(filepath.Join(run, "containers")))
	w.must(unix.Unmount(w.h.netns(in.ID), unix.MNT_DETACH))
	w.must(os.RemoveAll(run))

	// The same process goes on: it still knows what it made.
	if s := w.state(in.ID); !s.Alive || s.Process != p || strings.Join(s.Missing, " ") != "netns rundir" {
		t.Fatalf("cleared: %+v", s)
	}
	if o, err := w.h.Observe(w.ctx); err != nil || !o.Instances[in.ID].Alive {
		t.Errorf("observed: %+v, %v", o.Instances, err)
	}
	w.must(w.h.Repair(w.ctx, in))
	if s := w.state(in.ID); !s.Alive || s.Process != p || len(s.Missing) > 0 {
		t.Errorf("repaired: %+v", s)
	}
	if code, out := w.sh(in.ID, "echo in"); code != 0 || out != "in\n" {
		t.Errorf("exec: %d %q", code, out)
	}
	other := w.instance(2, "sleep 1000")
	w.start(other)
	if owner, err := Owner(run); owner != w.h.opts.Lineage || err != nil {
		t.Errorf("the run directory is %q's: %v", owner, err)
	}
}

// Where instances of another cgroup parent are is found again without the run
// directory, in which it was written down.
func TestRunDirClearedWithAnotherCgroupParent(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, `trap "exit 7" TERM; echo ready; while :; do sleep 1000 & wait; done`)
	p := w.start(in)
	w.waitLog(in.ID, "ready")
	w.must(os.RemoveAll(filepath.Join(w.h.opts.RunDir, "instances")))
	w.must(os.Remove(filepath.Join(w.h.opts.RunDir, "cgroup-parents")))
	w.h.starters.Close()
	o := w.h.opts
	o.CgroupParent = "pfhosttest2"
	next, err := Open(o)
	w.must(err)
	defer next.Close()
	w.h = next
	w.h.Recall(in.ID, p, in.Mark)
	if s := w.state(in.ID); !s.Alive || slices.Contains(s.Missing, "cgroup") {
		t.Errorf("it is %+v", s)
	}
	out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{Grace: time.Minute})
	w.must(err)
	if out == nil || out.ExitCode != 7 {
		t.Errorf("outcome %+v", out)
	}
	if left, _ := filepath.Glob("/sys/fs/cgroup/*/*-" + o.ShortID + "/" + in.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRunDirOfAnotherLineage(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "sleep 1000")
	w.start(in)
	o := w.h.opts
	o.StateDir, o.Lineage, o.ShortID = filepath.Join(w.dir, "other"), "another", "abcdef"
	if _, err := Open(o); !errors.Is(err, runtime.ErrForeign) || !strings.Contains(err.Error(), "(-run-dir)") || !strings.Contains(err.Error(), o.RunDir) {
		t.Errorf("a run directory in use: %v", err)
	}
	w.must(w.h.Remove(w.ctx, in.ID))
	h, err := Open(o)
	w.must(err) // nothing of the first lineage is in it
	w.must(h.Close())
	if owner, err := Owner(o.RunDir); owner != "another" || err != nil {
		t.Errorf("the run directory is %q's: %v", owner, err)
	}
}
