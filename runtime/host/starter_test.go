package host

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/host/starter"
)

// starterPID is the process that starts our sandboxes, made when there is none.
func (w *world) starterPID() int {
	w.t.Helper()
	_, err := w.h.starters.get(w.ctx, w.h.stage)
	w.must(err)
	defer w.h.starters.put()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	w.must(err)
	for _, list := range lists {
		children, _ := os.ReadFile(list) // a thread may have ended meanwhile
		for _, child := range strings.Fields(string(children)) {
			fd, err := os.Readlink(fmt.Sprintf("/proc/%s/fd/%d", child, starter.LockFD))
			if err == nil && fd == w.h.starters.path {
				pid, err := strconv.Atoi(child)
				w.must(err)
				return pid
			}
		}
	}
	w.t.Fatal("no process starts sandboxes")
	return 0
}

// TestStarterKilledAtAnyMoment kills the process that starts sandboxes while it starts
// one, at moments drawn by chance. Create then fails, and leaves nothing that runs, or
// has succeeded; in either case the next starter makes the instance whole.
func TestStarterKilledAtAnyMoment(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	n := w.network()
	in.Net = &runtime.Attachment{Network: n, Address: netip.PrefixFrom(n.Gateway.Next(), n.CIDR.Bits())}
	w.create(in)
	w.must(w.h.Remove(w.ctx, in.ID))
	begun := time.Now()
	w.create(in)
	whole := time.Since(begun)
	w.must(w.h.Remove(w.ctx, in.ID))

	seed := rand.Uint64()
	t.Logf("seed %d, a create takes %s", seed, whole)
	chance := rand.New(rand.NewPCG(seed, 0))
	failed := 0
	const rounds = 30
	for range rounds {
		victim := w.starterPID()
		ended := time.AfterFunc(time.Duration(chance.Int64N(int64(whole))), func() { _ = unix.Kill(victim, unix.SIGKILL) })
		_, err := w.h.Create(w.ctx, in)
		ended.Stop()
		s, there, ierr := w.h.Inspect(w.ctx, in.ID)
		w.must(ierr)
		switch {
		case err == nil && (!there || !s.Alive):
			t.Fatalf("created, and is not there: %+v", s)
		case err != nil && !errors.Is(err, starter.ErrGone):
			t.Errorf("the error is not the starter's end: %v", err)
		case err != nil && s.Alive:
			t.Errorf("not created (%v), and runs: %+v", err, s)
		}
		if err != nil {
			failed++
			w.create(in)
		}
		w.must(w.h.Start(w.ctx, in.ID))
		if s := w.state(in.ID); !s.Alive || !s.Started || len(s.Missing) > 0 {
			t.Errorf("made whole: %+v", s)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
	}
	t.Logf("%d of %d creates failed", failed, rounds)
	if failed == 0 {
		t.Error("no create met the end of its starter")
	}
}
