package host

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// stopped is an instance that ran, with a file in its layer, and has been stopped.
func (w *world) stopped() runtime.Instance {
	w.t.Helper()
	in := w.instance(1, "echo kept >> /kept; exec sleep 1000")
	w.start(in)
	w.wait("the file is written", func() bool { code, _ := w.sh(in.ID, "grep -q kept /kept"); return code == 0 })
	_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	return in
}

// refused asserts that the instance cannot be created, at once, for what is named, and
// that stopping it is no way round it.
func (w *world) refused(in runtime.Instance, words ...string) {
	w.t.Helper()
	for range 2 {
		began := time.Now()
		_, err := w.h.Create(w.ctx, in)
		if !errors.Is(err, runtime.ErrForeign) {
			w.t.Fatalf("create: %v", err)
		}
		if took := time.Since(began); took > killBound/2 {
			w.t.Errorf("it took %s", took)
		}
		for _, word := range append(words, in.ID, "left alone") {
			if !strings.Contains(err.Error(), word) {
				w.t.Errorf("no %q in: %v", word, err)
			}
		}
		if s := w.state(in.ID); s.Alive || s.Dying || !s.Layer {
			w.t.Errorf("refused: %+v", s)
		}
		_, err = w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
	}
}

// startsAgain asserts that nothing is in the way any more and the files are there.
func (w *world) startsAgain(in runtime.Instance) {
	w.t.Helper()
	w.start(in)
	if s := w.state(in.ID); !s.Alive || len(s.Missing) > 0 {
		w.t.Errorf("started again: %+v", s)
	}
	w.wait("the second line is written", func() bool { _, out := w.sh(in.ID, "cat /kept"); return out == "kept\nkept\n" })
}

// gone asserts that nothing of ours is left, as far as Observe and Inspect can tell.
func (w *world) gone(id string) {
	w.t.Helper()
	if s, found, err := w.h.Inspect(w.ctx, id); found || err != nil {
		w.t.Errorf("removed: %+v, %v", s, err)
	}
	if o, err := w.h.Observe(w.ctx); err != nil || len(o.Instances) > 0 {
		w.t.Errorf("removed: %+v, %v", o.Instances, err)
	}
}

// bindForeign binds a new network namespace to a name and returns how to look at it
// and how to release it.
func (w *world) bindForeign(path string) (there func() bool, release func()) {
	w.t.Helper()
	var want namespaceID
	w.must(os.WriteFile(path, nil, netnsMode))
	w.must(onThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
			return err
		}
		want = namespaceID{st.Dev, st.Ino}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}))
	w.t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	there = func() bool {
		var st unix.Stat_t
		return unix.Stat(path, &st) == nil && want == namespaceID{st.Dev, st.Ino}
	}
	return there, func() {
		w.t.Helper()
		w.must(unix.Unmount(path, 0))
		w.must(os.Remove(path))
	}
}

// TestForeignNetnsIsRefused: a network namespace of somebody else that has the name
// of a stopped, a running or a removed instance's.
func TestForeignNetnsIsRefused(t *testing.T) {
	w := newWorld(t)
	in := w.stopped()
	path := w.h.netns(in.ID)
	there, release := w.bindForeign(path)
	w.refused(in, path, "umount")
	if !there() {
		t.Error("the foreign namespace is gone")
	}
	w.must(w.h.Remove(w.ctx, in.ID))
	w.gone(in.ID)
	if !there() {
		t.Error("the foreign namespace is gone with the instance")
	}
	release()

	in = w.stopped()
	w.startsAgain(in)
	there, release = func() (func() bool, func()) {
		w.must(unix.Unmount(path, unix.MNT_DETACH))
		w.must(os.Remove(path))
		return w.bindForeign(path)
	}()
	if s := w.state(in.ID); !s.Alive || strings.Join(s.Missing, " ") != "netns" {
		t.Errorf("a running one: %+v", s)
	}
	if err := w.h.Repair(w.ctx, in); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("repair: %v", err)
	}
	_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	if !there() {
		t.Error("the foreign namespace is gone with the process")
	}
	w.refused(in, path)
	release()
	w.start(in)

	// One bound on top of ours hides it until it is taken away.
	w.must(onThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}))
	if err := w.h.Repair(w.ctx, in); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("repair of one that is covered: %v", err)
	}
	w.must(unix.Unmount(path, 0))
	if s := w.state(in.ID); !s.Alive || len(s.Missing) > 0 {
		t.Errorf("uncovered: %+v", s)
	}
}

// TestForeignFileAtTheNameOfANetns: what is not the empty file that a bind begins with
// is somebody's.
func TestForeignFileAtTheNameOfANetns(t *testing.T) {
	w := newWorld(t)
	in := w.stopped()
	path := w.h.netns(in.ID)
	for name, put := range map[string]func() error{
		"a file":          func() error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"an empty file":   func() error { return os.WriteFile(path, nil, 0o644) },
		"a directory":     func() error { return os.Mkdir(path, 0o400) },
		"a dangling link": func() error { return os.Symlink("/nowhere", path) },
	} {
		w.must(put())
		before, err := os.Lstat(path)
		w.must(err)
		w.refused(in, path)
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) || !after.ModTime().Equal(before.ModTime()) {
			t.Errorf("%s: %v, %v", name, after, err)
		}
		w.must(os.Remove(path))
	}
	// Where a Create was cut off before the bind, the file is ours.
	w.must(os.WriteFile(path, nil, netnsMode))
	w.startsAgain(in)
}

// TestForeignProcessInTheCgroup: in whichever hierarchy, it is neither killed nor
// waited for.
func TestForeignProcessInTheCgroup(t *testing.T) {
	w := newWorld(t)
	in := w.stopped()
	tree, err := w.h.cgroups()
	w.must(err)
	for controller, dir := range tree.instancePaths(in.ID) {
		w.must(os.MkdirAll(dir, 0o755))
		other := exec.Command("sleep", "1000")
		w.must(other.Start())
		t.Cleanup(func() { other.Process.Kill() })
		if controller == "cpuset" { // it has to be told what it may use
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				for _, d := range []string{filepath.Dir(dir), dir} {
					b, err := os.ReadFile(filepath.Join(filepath.Dir(d), f))
					w.must(err)
					w.must(os.WriteFile(filepath.Join(d, f), b, 0))
				}
			}
		}
		procs := filepath.Join(dir, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(other.Process.Pid)), 0); err != nil {
			t.Fatalf("%s: %v", controller, err)
		}
		w.refused(in, dir, strconv.Itoa(other.Process.Pid))
		if o, err := w.h.Observe(w.ctx); err != nil || o.Instances[in.ID].Dying {
			t.Errorf("%s: observed: %+v, %v", controller, o.Instances, err)
		}
		if state, _, err := procStat(other.Process.Pid); err != nil || state == 'Z' {
			t.Errorf("%s: the process of somebody else: %c, %v", controller, state, err)
		}
		if b, err := os.ReadFile(procs); err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(other.Process.Pid) {
			t.Errorf("%s: its cgroup holds %q, %v", controller, b, err)
		}
		w.must(other.Process.Kill())
		other.Wait()
	}
	w.startsAgain(in)

	// A removed one's stays too, and is not taken for an instance.
	w.must(w.h.Remove(w.ctx, in.ID))
	dir := tree.dir(in.ID, "pids")
	w.must(os.MkdirAll(dir, 0o755))
	other := exec.Command("sleep", "1000")
	w.must(other.Start())
	defer other.Process.Kill()
	w.must(os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(other.Process.Pid)), 0))
	w.gone(in.ID)
	w.must(w.h.Remove(w.ctx, in.ID))
	if state, _, err := procStat(other.Process.Pid); err != nil || state == 'Z' {
		t.Errorf("the process of somebody else: %c, %v", state, err)
	}
	w.must(other.Process.Kill())
	other.Wait()
	w.wait("the cgroup can go", func() bool { return removeCgroup(dir) == nil })
}

// TestOwnRemainsWithoutRecords: what a life of ours has left is ours even where the
// run directory was cleared and nobody recalls it, as long as PID 1 lives.
func TestOwnRemainsWithoutRecords(t *testing.T) {
	w := newWorld(t)
	for _, started := range []bool{true, false} {
		in := w.instance(1, "exec sleep 1000")
		in.IDs = runtime.IDRange{}
		p := w.create(in)
		if started {
			w.must(w.h.Start(w.ctx, in.ID))
		}
		w.must(os.RemoveAll(filepath.Join(w.h.opts.RunDir, "instances")))
		w.must(os.RemoveAll(w.h.containers()))
		w.h.starters.Close()
		next, err := Open(w.h.opts)
		w.must(err)
		defer next.Close()
		w.h = next
		again := w.start(in)
		if alive, err := w.h.alive(p); alive || err != nil || again == p {
			t.Errorf("started %v: the old process lives: %v, %v", started, alive, err)
		}
		if s := w.state(in.ID); !s.Alive || len(s.Missing) > 0 {
			t.Errorf("started %v: made again: %+v", started, s)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
	}
}

// TestNetnsOfALostOneIsReleased: PID 1 is gone, and with it the way to tell its
// namespace but for what was written down.
func TestNetnsOfALostOneIsReleased(t *testing.T) {
	w := newWorld(t)
	for _, cleared := range []bool{false, true} {
		in := w.instance(1, "exec sleep 1000")
		p := w.start(in)
		if cleared {
			w.must(os.RemoveAll(filepath.Join(w.h.opts.RunDir, "instances")))
			w.must(os.RemoveAll(w.h.containers()))
		}
		w.must(unix.Kill(p.PID, unix.SIGKILL))
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		w.h.starters.Close()
		next, err := Open(w.h.opts)
		w.must(err)
		defer next.Close()
		w.h = next
		if cleared {
			w.h.Recall(in.ID, p, in.Mark)
		}
		w.start(in)
		if s := w.state(in.ID); !s.Alive || len(s.Missing) > 0 {
			t.Errorf("cleared %v: made again: %+v", cleared, s)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
	}
}
