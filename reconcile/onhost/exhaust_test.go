package onhost

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// sleepers are n sandboxes that do nothing.
func sleepers(n int) string {
	return fmt.Sprintf("sandbox \"s\" {\n count = %d\n image = image.base\n command = [\"sleep\", \"infinity\"]\n}\n", n)
}

// bounded applies and demands an answer in a time in which a wedge would give none.
func (w *world) bounded(text string, bound time.Duration) (*reconcile.ApplyResult, error) {
	w.Helper()
	conf := filepath.Join(w.dir, "config")
	w.must(os.WriteFile(filepath.Join(conf, "main.hcl"), []byte("image \"base\" { source = \"host\" }\n"+text), 0o644))
	ctx, cancel := context.WithTimeout(w.ctx, bound)
	defer cancel()
	res, err := w.Apply(ctx, reconcile.ApplyRequest{PlanRequest: reconcile.PlanRequest{Source: w.source()}, AutoApprove: true}, nil, nil)
	if ctx.Err() != nil {
		w.Fatalf("apply does not end within %s: %v", bound, err)
	}
	return res, err
}

// running counts the sandboxes that run, and whose process the host has.
func (w *world) running() (n int) {
	w.Helper()
	list, err := w.List(w.ctx)
	w.must(err)
	for _, v := range list.Sandboxes {
		if v.Phase == plan.Running && !dead(*v.PID) {
			n++
		}
	}
	return n
}

// TestDescriptorsUsedUp: an agent that may open few descriptors brings up what it
// can, says for the others what it lacked, and answers; with fewer sandboxes, or more
// descriptors, everything works again.
func TestDescriptorsUsedUp(t *testing.T) {
	w := newWorld(t, logged, func(w *world) { w.env = append(w.env, mayOpen+"=96") })
	w.apply(sleepers(4))
	list, err := w.List(w.ctx)
	w.must(err)
	first := *list.Sandboxes[0].PID

	res, err := w.bounded(sleepers(60), 5*time.Minute)
	if err != nil && res == nil {
		t.Fatalf("apply: %v", err)
	}
	if len(failures(res, err)) == 0 {
		t.Fatal("60 sandboxes with 96 descriptors")
	}
	told := 0
	for _, f := range res.Failures {
		if f.Skipped {
			continue
		}
		// The other words are what libcontainer sometimes makes of it.
		if !strings.Contains(f.Error, "too many open files") && !strings.Contains(f.Error, "bad file descriptor") {
			t.Errorf("%s: %s", f.Address, f.Error)
		}
		told++
	}
	// A look needs descriptors too.
	if !within(time.Minute, func() bool {
		err = w.answers(30 * time.Second)
		return err == nil || strings.Contains(err.Error(), "too many open files")
	}) {
		t.Error(err)
	}
	t.Logf("%d failures in words", told)
	if dead(first) {
		t.Error("one that ran before is dead")
	}

	// Fewer need less. What had failed is not in the way.
	var last error
	if !within(3*time.Minute, func() bool {
		res, err := w.bounded(sleepers(4), 3*time.Minute)
		last = err
		if err == nil && len(res.Failures) > 0 {
			last = fmt.Errorf("%+v", res.Failures)
		}
		return last == nil
	}) {
		t.Errorf("with four again: %v", last)
	}
	// What looked after the others lets its descriptors go in its own time.
	if !within(time.Minute, func() bool {
		said, err := w.sh("sandbox.s[0]", "echo well")
		last = err
		return err == nil && said == "well\n"
	}) {
		t.Errorf("exec with four again: %v", last)
	}
	if dead(first) {
		t.Error("one that ran before is dead")
	}

	// More descriptors, all of them.
	w.kill()
	w.env = slices.DeleteFunc(w.env, func(e string) bool { return strings.HasPrefix(e, mayOpen) })
	w.serve()
	w.apply(sleepers(60))
	if n := w.running(); n != 60 {
		t.Errorf("%d of 60 run", n)
	}
	if v := w.view("sandbox.s[0]"); *v.PID != first {
		t.Errorf("process %d, was %d", *v.PID, first)
	}
}

// TestDescriptorsUsedUpAtTheStart: an agent that has too few descriptors for all that
// it takes over disturbs none of it, and whoever asks is answered or told why not.
func TestDescriptorsUsedUpAtTheStart(t *testing.T) {
	w := newWorld(t, logged)
	w.apply(sleepers(40))
	pids := w.processes(40)
	w.kill()
	w.env = append(w.env, mayOpen+"=32")
	w.start()
	if err := w.answers(30 * time.Second); err != nil && !strings.Contains(err.Error(), "too many open files") {
		t.Error(err)
	}
	for address, pid := range pids {
		if dead(pid) {
			t.Errorf("%s is dead", address)
		}
	}
	w.kill()
	w.env = slices.DeleteFunc(w.env, func(e string) bool { return strings.HasPrefix(e, mayOpen) })
	w.serve()
	if now := w.processes(40); !maps.Equal(now, pids) {
		t.Errorf("the processes are %v, were %v", now, pids)
	}
}

// processes waits until n sandboxes run, and returns their processes by address.
func (w *world) processes(n int) map[string]int {
	w.Helper()
	pids := map[string]int{}
	if !within(time.Minute, func() bool {
		list, err := w.List(w.ctx)
		w.must(err)
		clear(pids)
		for _, v := range list.Sandboxes {
			if v.Phase == plan.Running && v.PID != nil {
				pids[v.Address] = *v.PID
			}
		}
		return len(pids) == n
	}) {
		w.Fatalf("%d of %d run", len(pids), n)
	}
	return pids
}

// answers tells whether a client of the agent is answered in that time.
func (w *world) answers(bound time.Duration) error {
	end := make(chan error, 1)
	go func() {
		_, err := w.List(w.ctx)
		end <- err
	}()
	select {
	case err := <-end:
		return err
	case <-time.After(bound):
		return fmt.Errorf("no answer in %s", bound)
	}
}

// TestProcessesUsedUp: an agent that may have no further process starts nothing and
// says so; what runs goes on; with room again everything is as declared.
func TestProcessesUsedUp(t *testing.T) {
	group := ""
	w := newWorld(t, func(w *world) {
		logging(w)
		group = pidsGroup(w)
		w.env = append(w.env, livesIn+"="+group)
	})
	w.apply(sleepers(2))
	list, err := w.List(w.ctx)
	w.must(err)
	first := *list.Sandboxes[0].PID
	limit := func(max string) { w.must(os.WriteFile(filepath.Join(group, "pids.max"), []byte(max), 0)) }
	b, err := os.ReadFile(filepath.Join(group, "pids.current"))
	w.must(err)
	limit(strings.TrimSpace(string(b)))
	res, err := w.bounded(sleepers(20), 3*time.Minute)
	if len(failures(res, err)) == 0 {
		t.Fatal("18 more without a process more")
	}
	for _, words := range failures(res, err) {
		if !strings.Contains(words, "resource temporarily unavailable") && !strings.Contains(words, "went away") {
			t.Errorf("says %q", words)
		}
	}
	if dead(first) {
		t.Error("one that ran before is dead")
	}
	limit("max")
	if err := w.answers(30 * time.Second); err != nil {
		// Go ends a process that cannot have the thread it needs.
		if said := w.said(); !strings.Contains(said, "failed to create new OS thread") && !strings.Contains(said, "pthread_create failed") {
			t.Errorf("the agent is gone without words: %v", err)
		}
		w.kill()
		w.serve()
	}
	w.apply(sleepers(20))
	if n := w.running(); n != 20 {
		t.Errorf("%d of 20 run", n)
	}
	if v := w.view("sandbox.s[0]"); *v.PID != first {
		t.Errorf("process %d, was %d", *v.PID, first)
	}
}

// failures are the words of an apply that did not do all.
func failures(res *reconcile.ApplyResult, err error) (all []string) {
	if res != nil {
		for _, f := range res.Failures {
			if !f.Skipped {
				all = append(all, f.Error)
			}
		}
	}
	if len(all) == 0 && err != nil {
		all = append(all, err.Error())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// pidsGroup makes a cgroup that can limit how many processes are in it.
func pidsGroup(w *world) string {
	w.Helper()
	root := "/sys/fs/cgroup/pids"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	dir := filepath.Join(root, "test-"+strconv.Itoa(os.Getpid())+"-"+strconv.Itoa(int(number.Add(1))))
	w.must(os.Mkdir(dir, 0o755))
	w.Cleanup(func() {
		var err error
		if !within(10*time.Second, func() bool { err = unix.Rmdir(dir); return err == nil || errors.Is(err, unix.ENOENT) }) {
			w.Errorf("remove %s: %v", dir, err)
		}
	})
	return dir
}

// TestFollowingWithoutInotify: that all inotify instances are in use is nothing to an
// agent that follows a directory.
func TestFollowingWithoutInotify(t *testing.T) {
	w := newWorld(t, logged, func(w *world) {
		w.env = append(w.env, follows+"=1", noInotify+"=1")
		w.must(os.WriteFile(filepath.Join(w.dir, "config", "main.hcl"), []byte("image \"base\" { source = \"host\" }\n"+sleepers(1)), 0o644))
	})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.agent.Process.Pid))
	w.must(err)
	if !strings.Contains(string(status), "Seccomp_filters:\t1\n") {
		t.Fatalf("the agent is not confined: %s", status)
	}
	for _, n := range []int{1, 3} {
		w.must(os.WriteFile(filepath.Join(w.dir, "config", "main.hcl"), []byte("image \"base\" { source = \"host\" }\n"+sleepers(n)), 0o644))
		if !within(time.Minute, func() bool { return w.running() == n }) {
			t.Errorf("%d run, the files declare %d", w.running(), n)
		}
	}
}
