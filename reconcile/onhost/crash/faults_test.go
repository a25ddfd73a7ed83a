//go:build failpoints

package crash

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/reconcile/plan"
)

// withBystander is the verb with another new sandbox in the same apply, which is to
// come up whatever becomes of sandbox.a.
func withBystander(v *verb) *verb {
	if !v.apply() || !strings.Contains(v.after, `network "n"`) {
		return v
	}
	w := *v
	w.after += box("c", "")
	w.bystander = true
	return &w
}

// beforehand are the errors that a step may fail with before anything has happened.
var beforehand = []string{"ENOSPC", "EBUSY", "EPERM", "ENOMEM"}

// errnoAt is what the i-th run's step fails with; a time-out is the error behind which
// it has happened.
func errnoAt(i int, at point) string {
	if at.when == "after" {
		return "ETIMEDOUT"
	}
	return beforehand[i%len(beforehand)]
}

// words are what the error says of its reason.
func wordsOf(errno string) string {
	for e := syscall.Errno(1); e < 200; e++ {
		if unix.ErrnoName(e) == errno {
			return e.Error()
		}
	}
	return errno
}

// fault makes one step of the verb fail; the next apply heals what that leaves.
func (v *verb) fault(t *testing.T, at point, errno string, ok ends, pass func(name string)) {
	s := v.setUp(t)
	log := filepath.Join(s.dir, "points")
	told, killed := s.do(v, at.arm(errno), log)
	points, err := passed(log)
	s.must(err)
	for _, p := range points {
		pass(p.name)
	}
	if killed != 0 {
		t.Errorf("%s with %s: it ends with %v", at, errno, killed)
	}
	switch {
	case told.Error != "" || len(told.Failures) > 0:
		s.clear(told, at, wordsOf(errno))
		s.lanes(told, at)
	case !v.agent: // that goes on trying
		s.open("test")
		if list := s.todo(); len(list) > 0 {
			s.Errorf("%s with %s is told to nobody, and there is still to do: %s", at, errno, strings.Join(list, "; "))
		}
		s.close()
	}
	s.recover("apply", ok)
	now, _ := s.settle(ok)
	s.check(now)
}

// clear wants each error to name the reason, and what could not be done. That of a
// call as a whole has no words of its own here: where it is made to fail, nobody has
// come to the object yet.
func (s *stage) clear(t told, at point, reason string) {
	s.Helper()
	all := []string{}
	for _, f := range t.Failures {
		if !f.Skipped {
			all = append(all, f.Error)
		}
	}
	if len(all) == 0 {
		all = []string{t.Error}
	}
	for _, words := range all {
		bare := words == reason && !strings.HasPrefix(at.name, "engine.") && !namesItself[at.name]
		if bare || !strings.Contains(words, reason) {
			s.Errorf("the error does not say what could not be done and that %q: %q", reason, words)
		}
	}
}

// namesItself are steps of several calls, which name what they fail at.
var namesItself = map[string]bool{"host.lineage.write": true}

// lanes wants one failing resource to stop nothing but what waits for it.
func (s *stage) lanes(t told, at point) {
	s.Helper()
	if !s.v.bystander || len(t.Failures) == 0 {
		return
	}
	// Where the network is replaced, all wait for it, and it for those that are on it.
	failed, skipped := map[string]bool{}, map[string]bool{}
	for _, f := range t.Failures {
		if f.Skipped {
			skipped[f.Address] = true
		} else {
			failed[f.Address] = true
		}
	}
	if at.name == eachPass && at.when == "after" {
		return // nobody can record anything in a state that may not be what it was
	}
	if len(failed) != 1 {
		s.Errorf("one step has failed, and these did: %v", slices.Sorted(maps.Keys(failed)))
	}
	shared := s.v.moves || failed["image.base"] || failed["network.n"] || failed["volume.data"]
	for address := range skipped {
		if !shared && !failed[address] {
			s.Errorf("%s was skipped, though nothing that it waits for has failed: %+v", address, t.Failures)
		}
	}
	if failed["sandbox.c"] || skipped["sandbox.c"] {
		return
	}
	s.open("test")
	defer s.close()
	if c := s.view("c"); c.Phase != plan.Running {
		s.Errorf("sandbox.c is %s, though only %v failed", c.Phase, slices.Sorted(maps.Keys(failed)))
	}
}

func TestEachStepFails(t *testing.T) {
	all := learned(t, withBystander)
	if t.Failed() {
		return
	}
	all = slices.DeleteFunc(all, func(r run) bool { return r.at.when == "at" })
	runs := chosen(t, all, func(r run) string { return r.at.name + " " + r.at.when })
	var done atomic.Int64
	var undone sync.Map // names that were passed
	t.Run("failed", func(t *testing.T) {
		i := 0
		for _, group := range byVerb(runs) {
			t.Run(group[0].v.name, func(t *testing.T) {
				for _, r := range group {
					i++
					errno := errnoAt(i, r.at)
					t.Run(r.at.String()+" with "+errno, func(t *testing.T) {
						t.Parallel()
						r.v.fault(t, r.at, errno, r.ok, func(name string) { undone.Store(name, true) })
						done.Add(1)
					})
				}
			})
		}
	})
	did := map[string]bool{}
	for _, r := range all {
		did[r.v.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(unpassed)) {
		if len(did) < len(verbs) {
			break // go test -run chose some
		}
		if _, is := undone.Load(name); !is && unpassed[name] == undoes {
			t.Errorf("no step that fails leads to %s", name)
		}
	}
	t.Logf("%d failure runs of %d that there are", done.Load(), len(all))
}
