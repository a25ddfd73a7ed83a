package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pinfold/reconcile/plan"
)

// Who holds a sandbox that is at rest by its own rules.
const (
	byIdle   = "idle"
	byExpiry = "expiry"
)

// accessWait bounds how long exec, copies, logs and connections wait for a
// sandbox that is being paused or resumed, or that they wake.
const accessWait = 30 * time.Second

// access waits, within its bound, for a pause or resume that is going on, and
// returns the record as it is then. It takes no lane.
func (e *Engine) access(ctx context.Context, word string) (*plan.Sandbox, error) {
	address, err := e.resolve(word)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, accessWait)
	defer cancel()
	for {
		h := e.lanes.freezing(address)
		if h == nil {
			break
		}
		select {
		case <-h.free:
		case <-ctx.Done():
			return nil, inProgress(h)
		}
	}
	rec, ok := e.sandbox(address)
	if !ok {
		return nil, e.notFound(address)
	}
	return rec, nil
}

// visit is a use of a sandbox that begins. While it is open the idle rule leaves
// the sandbox alone; only what turned out to be a use counts as one.
type visit struct {
	e       *Engine
	rec     *plan.Sandbox
	end     func(used bool)
	counted bool
}

// count says that the use is one: the sandbox let it in. It renews the lease where
// the rules say that.
func (v *visit) count() {
	v.counted = true
	v.e.activity.touch(v.rec.Address, v.e.now())
	v.e.renewByAccess(v.rec)
	if v.e.nudge == nil && v.rec.Spec.Lifetime.IdleTimeout > 0 {
		// Nobody stores it later.
		if err := v.e.as(byAccess).storeActivity(v.rec.Address); err != nil {
			v.e.log.Warn("cannot store when a sandbox was used", "address", v.rec.Address, "error", err)
		}
	}
}

// leave ends the use.
func (v *visit) leave() { v.end(v.counted) }

// enter is access for what uses the sandbox. It wakes one that rests by the idle
// rule or by expiry where its rules say so.
func (e *Engine) enter(ctx context.Context, word string) (*visit, error) {
	address, err := e.resolve(word)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, accessWait)
	defer cancel()
	// First of all: from now on the idle rule finds it in use.
	v := &visit{e: e, end: e.activity.begin(bounded, address, e.now)}
	v.rec, err = e.access(ctx, address)
	if err == nil && rests(v.rec) {
		v.rec, err = e.as(byAccess).awaken(ctx, address)
	}
	if err != nil {
		v.leave()
		return nil, err
	}
	return v, nil
}

// rests tells whether access wakes the sandbox: it is held by the idle rule or
// by expiry, never by an operator, and its rules say so.
func rests(rec *plan.Sandbox) bool {
	ended := rec.Expired != nil && !rec.Expired.Paused
	return rec.Spec.Lifetime.ResumeOnAccess && heldByRule(rec) && !ended
}

func heldByRule(rec *plan.Sandbox) bool {
	return rec.Hold != nil && (rec.Hold.By == byIdle || rec.Hold.By == byExpiry)
}

// awaken brings a sandbox that rests back. Of many that come at once one does it
// and the others find it done.
func (e *actor) awaken(ctx context.Context, address string) (*plan.Sandbox, error) {
	release, err := e.lanes.wait(ctx, accessWait, address, "resume", e.by)
	if err != nil {
		return nil, errorOf(err)
	}
	defer e.wake(address)
	defer release()
	defer e.relay.hold(address)()
	rec, err := e.refresh(ctx, address)
	if err != nil {
		return nil, errorOf(err)
	}
	if !rests(rec) {
		return rec, nil
	}
	work := context.WithoutCancel(ctx)
	switch phase := phaseOf(rec); phase {
	case plan.Paused, plan.Stopped:
		w, err := e.lift(rec)
		if err != nil {
			return nil, errorOf(err)
		}
		if phase == plan.Paused {
			err = e.resume(work, rec, w)
		} else {
			err = e.start(work, rec, w)
		}
		if err != nil {
			return nil, errorOf(fmt.Errorf("cannot wake %s: %w", address, err))
		}
		e.acted(address, "resume", "access", "")
		return copySandbox(rec), nil
	}
	return rec, nil
}

// lift ends a rest in the record: the hold goes, what lay under it comes back,
// and the lease runs again. The caller resumes or starts with what it returns.
func (e *actor) lift(rec *plan.Sandbox) (*write, error) {
	w := &write{bump: true}
	if err := e.runAgain(rec, "wake", nil, w); err != nil {
		return nil, err
	}
	by := rec.Hold.By
	rec.Hold = rec.Hold.Under
	w.event(e.eventOf(rec, "release", by, "used"))
	if h := rec.Hold; h != nil {
		w.event(e.eventOf(rec, "held", h.Mode, "by "+h.By+" again"))
	}
	return w, nil
}

// runAgain sets the lease of a sandbox that is resumed or started out of a hold,
// which also ends an expiry by pause. What changes is put into w as an event.
func (e *actor) runAgain(rec *plan.Sandbox, verb string, timeout *time.Duration, w *write) error {
	lease, err := rec.Lease.OnResume(rec, timeout, e.now(), time.Duration(e.settings.MaxLifetime))
	if err != nil {
		var no *plan.Refusal
		if errors.As(err, &no) {
			no.Verb = verb
		}
		return &Error{Kind: Conflict, Message: err.Error()}
	}
	if !lease.Until.Equal(rec.Lease.Until) {
		w.event(e.eventOf(rec, "renewed", verb, lease.Until.UTC().Format(time.RFC3339)))
	}
	rec.Lease, rec.Expired = lease, nil
	return nil
}

// renewByAccess moves the lease where access does that, without holding up or
// failing the access itself, one at a time.
func (e *Engine) renewByAccess(rec *plan.Sandbox) {
	limit := time.Duration(e.settings.MaxLifetime)
	if _, due := rec.Lease.OnAccess(rec, e.now(), limit); !due {
		return
	}
	if _, busy := e.renewing.LoadOrStore(rec.Address, true); busy {
		return
	}
	renew := func() {
		defer e.renewing.Delete(rec.Address)
		if err := e.as(byAccess).renewForAccess(rec.Address, limit); err != nil {
			e.complain(rec.Address, "cannot renew on access", err)
		}
	}
	if e.nudge == nil {
		renew() // this process may end before anything that goes on beside it
		return
	}
	e.background.Go(renew)
}

func (e *actor) renewForAccess(address string, limit time.Duration) error {
	release, err := e.lanes.wait(context.Background(), accessWait, address, "renew", e.by)
	if err != nil {
		return err
	}
	defer e.wake(address)
	defer release()
	rec, ok := e.sandbox(address)
	if !ok {
		return nil
	}
	lease, due := rec.Lease.OnAccess(rec, e.now(), limit)
	if !due {
		return nil
	}
	rec.Lease = lease
	ev := e.eventOf(rec, "renewed", "access", lease.Until.UTC().Format(time.RFC3339))
	return e.commit((&write{}).sandbox(rec).event(ev))
}

// Touch counts as use of the sandbox, now. It wakes nothing and renews nothing.
func (e *Engine) Touch(ctx context.Context, word string) (*ActResult, error) {
	rec, err := e.access(ctx, word)
	if err != nil {
		return nil, err
	}
	e.activity.touch(rec.Address, e.now())
	if err := e.as(byAccess).storeActivity(rec.Address); err != nil {
		return nil, errorOf(err)
	}
	e.wake(rec.Address)
	res := &ActResult{}
	res.Sandbox, err = e.viewOne(ctx, rec.Address)
	return res, err
}
