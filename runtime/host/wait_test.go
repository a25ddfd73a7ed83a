package host

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWaitWithoutADescriptor: what is looked at instead of waited for is found to have
// ended all the same, and the wait ends with its context.
func TestWaitWithoutADescriptor(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	p := w.start(in)
	ended := make(chan error, 1)
	go func() { ended <- w.h.pollExit(w.ctx, in.ID, p) }()
	given, cancel := context.WithCancel(w.ctx)
	cancel()
	if err := w.h.pollExit(given, in.ID, p); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
	select {
	case err := <-ended:
		t.Fatalf("it lives, and the wait ended: %v", err)
	default:
	}
	w.must(unix.Kill(p.PID, unix.SIGKILL))
	w.must(<-ended)
	w.h.waits.Store(1 << 40) // more than may have a descriptor
	w.must(w.h.WaitExit(w.ctx, in.ID, p))
	w.h.waits.Store(0)
	w.must(w.h.Remove(w.ctx, in.ID))
}
