package host

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/runtime"
)

// TestAnotherCgroupParent: the settings change under a sandbox that runs. It lacks
// nothing, can be used and limited where it is, and what is started next is below the
// new parent. Of the old one nothing stays.
func TestAnotherCgroupParent(t *testing.T) {
	t.Parallel()
	o := testOptions(t, t.TempDir())
	other := o
	other.CgroupParent = "pfhosttest.other"
	dirs := func(o Options, id string) []string {
		var all []string
		for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			found, err := filepath.Glob(filepath.Join(pattern, o.CgroupParent+"-"+o.ShortID, id))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, found...)
		}
		return all
	}
	w := &world{t: t, ctx: context.Background()}
	open := func(o Options) {
		t.Helper()
		var err error
		w.h, err = Open(o)
		w.must(err)
		w.img, err = w.h.PrepareImage(w.ctx, runtime.ImageSource{Kind: "host"})
		w.must(err)
	}
	t.Cleanup(func() {
		open(other)
		removeAll(t, w.h)
		if err := w.h.Close(); err != nil {
			t.Error(err)
		}
		checkClean(t, o)
		checkClean(t, other)
		if left, err := os.ReadFile(w.h.parentsPath()); err == nil {
			t.Errorf("parents still noted: %q", left)
		}
	})

	open(o)
	one, two, three := w.instance(1, "exec sleep 1000"), w.instance(2, "exec sleep 1000"), w.instance(3, "exec sleep 1000")
	one.Limits.Memory = 64 << 20
	p := w.start(one)
	w.start(two)
	before := len(dirs(o, one.ID))
	if before == 0 {
		t.Fatal("no cgroup found where it should be")
	}
	w.must(w.h.Close())

	open(other)
	for range 2 { // Close keeps the parent that is in use
		seen, err := w.h.Observe(w.ctx)
		w.must(err)
		if s := seen.Instances[one.ID]; !s.Alive || s.Process != p || len(s.Missing) > 0 || s.Unknown != "" {
			t.Errorf("after the change: %+v", s)
		}
		if s := w.state(one.ID); len(s.Missing) > 0 {
			t.Errorf("after the change: missing %v", s.Missing)
		}
		w.must(w.h.Close())
		open(other)
	}
	if code, out := w.sh(one.ID, "exit 5"); code != 5 {
		t.Errorf("exec: %d %q", code, out)
	}
	w.must(w.h.Pause(w.ctx, one.ID))
	if s := w.state(one.ID); !s.Frozen {
		t.Errorf("paused: %+v", s)
	}
	w.must(w.h.Resume(w.ctx, one.ID))
	one.Limits.Memory = 32 << 20
	w.must(w.h.Update(w.ctx, one))
	w.must(w.h.Repair(w.ctx, one))
	old, err := w.h.cgroupsOf(one.ID)
	w.must(err)
	if ok, err := old.limitsHold(one.ID, one.Limits, true); err != nil || !ok || !strings.HasSuffix(old.parent, o.CgroupParent+"-"+o.ShortID) {
		t.Errorf("below %s, the changed limit holds: %v, %v", old.parent, ok, err)
	}
	w.start(three)
	if there, not := dirs(other, three.ID), dirs(o, three.ID); len(there) != before || len(not) > 0 {
		t.Errorf("a new one is in %v and %v", there, not)
	}

	// A process that dies half-way through making one leaves it to be found as well.
	if err := roleCommand(t, "create", o, w.instance(4, "exec sleep 1000"), "init").Run(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the creator was to be killed: %v", err)
	}

	_, err = w.h.Stop(w.ctx, one.ID, runtime.StopOptions{})
	w.must(err)
	if left := dirs(o, one.ID); len(left) > 0 {
		t.Errorf("stopped, it still has %v", left)
	}
	w.start(one)
	if there, not := dirs(other, one.ID), dirs(o, one.ID); len(there) != before || len(not) > 0 {
		t.Errorf("started again, it is in %v and %v", there, not)
	}
	w.must(w.h.Remove(w.ctx, two.ID))
	w.must(w.h.Remove(w.ctx, "000000000004"))
	w.must(w.h.Close())
	if left := dirs(o, ""); len(left) > 0 {
		t.Errorf("the old parent is still there: %v", left)
	}
}
