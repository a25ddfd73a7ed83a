package sim

import (
	"context"
	"fmt"
	"time"

	"pinfold/runtime"
)

// Host is one process's handle on a World, for one lineage.
type Host struct {
	w       *World
	l       *lineage
	closed  bool
	crashed bool
	// recalled is which PID 1 an instance has by the caller's record, or was given
	// through this handle.
	recalled map[string]runtime.Process
}

var _ runtime.Host = (*Host)(nil)

// midway is called by a method when half of its work is done. It returns the
// fault to fail with; a crash in it is told apart because nothing may be cleaned
// up then.
type midway func() error

// call runs one method with everything that can come between: a closed handle,
// a cancelled context, faults, crashes, delays and the books. effect takes the
// world's lock itself.
func (h *Host) call(ctx context.Context, op Op, id string, effect func(midway) error) error {
	w := h.w
	leave, dies, when, err := h.enter(ctx, op, id)
	if err != nil {
		return err
	}
	defer leave()

	struck := false
	mid := func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		struck = true
		if dies && when == Midway {
			h.crashed = true
			return ErrCrashed
		}
		return w.strike(op, id, Midway)
	}
	err = effect(mid)
	if err == nil && !struck {
		err = mid()
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case dies && when == After:
		h.crashed = true
		err = ErrCrashed
	case err == nil:
		err = w.strike(op, id, After)
	}
	if op.Writes() {
		w.ops = append(w.ops, Call{op, h.l.name, id, err})
	}
	return err
}

// enter lets a call begin, or says why not.
func (h *Host) enter(ctx context.Context, op Op, id string) (leave func(), dies bool, when When, err error) {
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := h.usable(ctx); err != nil {
		return nil, false, 0, err
	}
	if op.Writes() && w.readOnly != nil {
		w.readOnly.Errorf("%s %s writes to a host that must only be read", op, id)
		return nil, false, 0, fmt.Errorf("sim: %s %s: the world is read-only", op, id)
	}
	leave = func() {}
	if op.serialised() {
		key := h.l.name + "/" + id
		if other, busy := w.inCall[key]; busy {
			return nil, false, 0, fmt.Errorf("sim: %s while %s of instance %s is under way: the caller must serialise them", op, other, id)
		}
		w.inCall[key] = op
		leave = func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.inCall, key)
		}
	}
	fail := func(err error) (func(), bool, When, error) {
		if op.serialised() {
			delete(w.inCall, h.l.name+"/"+id)
		}
		if op.Writes() {
			w.ops = append(w.ops, Call{op, h.l.name, id, err})
		}
		return nil, false, 0, err
	}
	if d := w.delays[op]; d > 0 {
		w.mu.Unlock()
		err := wait(ctx, d)
		w.mu.Lock()
		if err != nil {
			return fail(err)
		}
	}
	if err := w.strike(op, id, Before); err != nil {
		return fail(err)
	}
	if op.Writes() {
		if when, dies = w.crashing(); dies && when == Before {
			h.crashed = true
			return fail(ErrCrashed)
		}
	}
	return leave, dies, when, nil
}

// usable tells whether this handle may still do anything.
func (h *Host) usable(ctx context.Context) error {
	switch {
	case h.crashed:
		return ErrCrashed
	case h.closed:
		return errClosed
	}
	return ctx.Err()
}

// serialised tells which methods the caller must not call at the same time for
// one instance.
func (o Op) serialised() bool {
	switch o {
	case OpCreate, OpStart, OpPause, OpResume, OpStop, OpUpdate, OpRepair, OpRemove, OpSignal:
		return true
	}
	return false
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Info implements runtime.Host.
func (h *Host) Info(ctx context.Context) (info runtime.Info, err error) {
	err = h.call(ctx, OpInfo, "", func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		info = runtime.Info{BootID: h.w.bootID(), Cgroups: "v2", Kernel: "sim", Lacking: h.w.lacking}
		return nil
	})
	return info, err
}

// Close implements runtime.Host.
func (h *Host) Close() error {
	err := h.call(context.Background(), OpClose, "", func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		h.closed = true
		if !h.l.inUse() {
			h.l.table, h.l.parent = false, false
		}
		return nil
	})
	if err == errClosed {
		return nil
	}
	return err
}

// inUse tells whether anything of the lineage needs its nft table or cgroup parent.
func (l *lineage) inUse() bool {
	for _, n := range l.networks {
		if n.bridge || n.rules {
			return true
		}
	}
	for _, in := range l.instances {
		if in.holdsHost() {
			return true
		}
	}
	return false
}
