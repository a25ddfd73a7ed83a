package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/runtime"
)

// TestDamagedRecord: after a power cut instance.json is there and empty. The instance
// has no process and can be seen, stopped, run again, carried over and removed.
func TestDamagedRecord(t *testing.T) {
	w := newWorld(t)
	// What is left of an instance that was stopped when the power went.
	damage := func(in runtime.Instance) {
		p := w.start(in)
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		w.must(os.WriteFile(w.h.recordPath(in.ID), nil, 0o600))
		if s := w.state(in.ID); s.Alive || s.Dying || !s.Layer {
			t.Fatalf("damaged: %+v", s)
		}
		_, err = w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
	}
	in := w.instance(1, "cat /kept; echo text > /kept")
	damage(in)
	other := in
	other.IDs.Base += in.IDs.Size
	if _, err := w.h.Create(w.ctx, other); err == nil || !strings.Contains(err.Error(), "belongs to id") {
		t.Errorf("with other ids: %v", err)
	}
	damage(in)
	if got := w.log(in.ID); !strings.HasSuffix(got, "text\n") {
		t.Errorf("run again: log %q", got)
	}

	next := w.instance(2, "cat /kept")
	next.Mark, next.CarryFrom = in.Mark, in.ID
	other = next
	other.IDs.Base += in.IDs.Size
	if _, err := w.h.Create(w.ctx, other); err == nil || !strings.Contains(err.Error(), "belongs to id") {
		t.Errorf("carried to other ids: %v", err)
	}
	p := w.start(next)
	w.must(w.h.WaitExit(w.ctx, next.ID, p))
	if got := w.log(next.ID); !strings.HasSuffix(got, "text\n") {
		t.Errorf("carried over: log %q", got)
	}
	w.must(w.h.Remove(w.ctx, in.ID))

	// Of one that lives it cannot be said what it lacks.
	live := w.instance(3, "exec sleep 1000")
	w.start(live)
	w.must(os.WriteFile(w.h.recordPath(live.ID), []byte("{"), 0o600))
	s, there, err := w.h.Inspect(w.ctx, live.ID)
	if err != nil || !there || !strings.Contains(s.Unknown, filepath.Base(w.h.recordPath(live.ID))) {
		t.Errorf("damaged and alive: %+v, %v, %v", s, there, err)
	}
	_, err = w.h.Stop(w.ctx, live.ID, runtime.StopOptions{})
	w.must(err)
	if s := w.state(live.ID); s.Alive {
		t.Errorf("damaged and stopped: %+v", s)
	}
}
