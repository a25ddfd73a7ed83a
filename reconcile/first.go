package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// create_before_destroy: a new instance is made beside the old one, with an id
// range, an address and host ports of its own, and becomes the sandbox's when it is
// ready. Until then the old one is the sandbox's instance, and the new one stands
// among the deposed: whatever is cut off in between, what is deposed goes. When the
// two change places, in one transaction, the old one is deposed. Its removal is a
// change of its own, so that what refers to the sandbox can turn to the new one first.

// replaceFirst carries out a replace with CreateFirst. old is the record as it is,
// rec as it is to be, on the old instance still.
func (r *run) replaceFirst(ctx context.Context, old, rec *plan.Sandbox, c plan.Change) error {
	if no := config.CanComeFirst(&rec.Spec); len(no) > 0 {
		return fmt.Errorf("create_before_destroy of %s is not possible with %s: %s", rec.Address, strings.Join(no, ", "), config.WayToComeFirst)
	}
	if now, err := r.recoverOwn(ctx, old); err != nil {
		return r.stepFailed(old, nil, err, nil)
	} else if now != old {
		return r.sandboxChange(ctx, c) // on the record as it is now
	}
	if doomed(old) {
		if err := r.removeDoomed(ctx, old); err != nil {
			return err
		}
	}
	next := copySandbox(rec)
	next.Doomed, next.Retry = nil, plan.Retry{}
	next.Depose()
	if err := r.reserve(ctx, next); err != nil {
		r.release(rec.Address)
		return r.stepFailed(old, nil, fmt.Errorf("cannot replace %s: %w; its instance %s stays", rec.Address, err, old.Instance.ID), nil)
	}
	begun := intent(opCreate, old)
	begun.Instance = newID(6)
	beside := copySandbox(old)
	beside.Deposed = append(beside.Deposed, plan.Deposed{
		Instance: plan.Instance{ID: begun.Instance, Phase: plan.Pending, CreatedAt: r.now()}, IDs: next.IDs, Net: next.Net, Ports: next.Ports,
	})
	in, err := r.begin(begun, (&write{bump: true}).sandbox(copySandbox(beside)))
	if err != nil {
		r.release(rec.Address)
		return err
	}
	if err := discreet(next, r.bringUpBeside(ctx, next, in.Instance, c)); err != nil {
		return r.withdraw(ctx, in, beside, err)
	}
	next.Conditions = plan.Conditions(next, aliveSeen(next, next.Instance.Phase == plan.Paused), true, r.now())
	w := &write{bump: true}
	w.sandbox(copySandbox(next)).event(r.eventOf(old, "deposed", "replaced", c.Cause))
	w.event(r.eventOf(next, "create", "created", "")).event(r.eventOf(next, "start", "started", ""))
	r.probes.passed(next)
	return r.end(in, w)
}

// bringUpBeside makes next's instance beside the one that is there and has it ready
// for the mode that the change ends in.
func (r *run) bringUpBeside(ctx context.Context, next *plan.Sandbox, id string, c plan.Change) error {
	made, err := r.instanceOf(next, id)
	if err != nil {
		return err
	}
	proc, err := r.host.Create(ctx, made)
	if err != nil {
		return err
	}
	now := r.now()
	next.Instance = &plan.Instance{
		ID: id, Phase: plan.Created, CreatedAt: now, RunningSpec: next.Generation,
		PID: proc.PID, StartTime: proc.StartTime, BootID: proc.BootID, Image: made.Image.Digest,
	}
	if next.Lease.Start.IsZero() {
		next.Lease = next.Lease.Anew(&next.Spec, now)
	}
	if err := r.host.Start(ctx, id); err != nil {
		return err
	}
	now = r.now()
	next.Instance.Phase, next.Instance.StartedAt, next.LastActivity = plan.Running, now, now
	if err := r.untilReady(ctx, next, c.Then == "running"); err != nil {
		return err
	}
	if c.Then != "paused" {
		return nil
	}
	next.Lease = next.Lease.OnPause(&next.Spec)
	next.Instance.Phase = plan.Paused
	return r.host.Pause(ctx, id)
}

// The wait for a new instance rests this long between two looks at it, at first and
// at most.
const (
	readyPauseMin = 50 * time.Millisecond
	readyPauseMax = time.Second
)

// untilReady waits until the running instance of next is what condition Ready asks
// for: it runs, nothing of its surroundings is missing, and, unless it is to be frozen
// next, its health probe has passed, which this process makes itself. It waits until
// lifetime.start_timeout has passed or the sandbox's new deadline comes.
func (e *actor) untilReady(ctx context.Context, next *plan.Sandbox, probed bool) error {
	limit := plan.ReadyWithin(&next.Spec)
	if at, _, dated := plan.Deadline(&next.Spec, next.Lease); dated {
		limit = min(limit, at.Sub(e.now()))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	wanted := *next // as if nothing were to happen to it but to run
	wanted.Hold, wanted.Expired, wanted.Spec.OperatingMode = nil, nil, "running"
	asks := &probe{instance: next.Instance.ID, started: next.Instance.StartedAt}
	if probed && next.Spec.Health != nil {
		asks.spec = *next.Spec.Health
	} else {
		wanted.Spec.Health = nil
	}
	for pause := readyPauseMin; ; pause = min(2*pause, readyPauseMax) {
		why, err := e.lacksReady(ctx, &wanted, asks)
		if err != nil || why == "" {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("it was not ready within %s: %s", limit.Round(time.Millisecond), why)
		}
	}
}

// lacksReady looks at an instance once and says what it lacks to be ready; an error
// when no waiting will help.
func (e *actor) lacksReady(ctx context.Context, rec *plan.Sandbox, asks *probe) (why string, err error) {
	s, there, err := e.host.Inspect(ctx, rec.Instance.ID)
	if err != nil {
		return err.Error(), nil // the host may answer at the next look
	}
	seen := seenOf(s)
	if rec.Spec.Health != nil && there && seen.Alive {
		seen.Health = &plan.Health{Status: "passing"}
		if err := e.probe(ctx, asks); err != nil {
			seen.Health = &plan.Health{Status: "failing", Message: "its health probe does not pass: " + err.Error()}
		}
	}
	st := plan.StatusOf(rec, seen, there, s.Process.BootID, e.now())
	ready := st.Conditions[0]
	switch {
	case ready.Status == "True":
		return "", nil
	case st.Phase == plan.Stopped && st.Outcome != nil:
		return "", fmt.Errorf("it ended before it was ready: %s", DescribeOutcome(st.Outcome))
	case st.Phase == plan.Lost || st.Phase == plan.Stopped:
		return "", errors.New("it was gone before it was ready")
	}
	return cmp.Or(ready.Message, "it is "+string(st.Phase)), nil
}

// withdraw takes back a replacement that did not become ready. The old instance is the
// sandbox's still; the new one goes, now or by a later plan.
func (e *actor) withdraw(ctx context.Context, in *Intent, rec *plan.Sandbox, cause error) error {
	cause = fmt.Errorf("cannot replace %s: the new instance %s is not ready: %w; it is taken away, instance %s stays", rec.Address, in.Instance, cause, rec.Instance.ID)
	rec.Retry = plan.Backoff(rec.Retry, 0, e.now(), rand.Float64(), cause.Error())
	w := (&write{bump: true}).event(e.eventOf(rec, "error", "replace failed", cause.Error()))
	if err := e.retire(ctx, in, rec, in.Instance, graceOf(&rec.Spec), w); err != nil {
		return &stepError{errors.Join(cause, err)}
	}
	return &stepError{cause}
}

// removeDeposed removes a deposed instance.
func (e *actor) removeDeposed(ctx context.Context, rec *plan.Sandbox, id string) error {
	if rec.DeposedAt(id) < 0 {
		return nil // somebody else has done it
	}
	begun := intent(opRetire, rec)
	begun.Instance = id
	in, err := e.begin(begun, nil)
	if err != nil {
		return err
	}
	return e.retire(ctx, in, rec, id, graceOf(&rec.Spec), nil)
}

// retire is removeDeposed once its intent is durable. When it fails, the instance
// keeps what is reserved for it, and the plan asks for its removal again.
func (e *actor) retire(ctx context.Context, in *Intent, rec *plan.Sandbox, id string, grace time.Duration, w *write) error {
	if w == nil {
		w = &write{}
	}
	i := rec.DeposedAt(id)
	if i < 0 {
		return e.end(in, w)
	}
	ev := e.eventOf(rec, "destroyed", "replaced", "")
	ev.Instance = id
	never := rec.Deposed[i].Instance.Phase == plan.Pending // it never was the sandbox's
	failed := e.takeDown(ctx, id, grace)
	if failed != nil {
		failed = fmt.Errorf("cannot remove the deposed instance %s of %s: %w", id, rec.Address, failed)
		d := &rec.Deposed[i]
		d.Retry = plan.Backoff(d.Retry, 0, e.now(), rand.Float64(), failed.Error())
		ev.Type, ev.Reason, ev.Message = "error", "removal failed", failed.Error()
	} else {
		w.bump = true
		rec.Deposed = slices.Delete(rec.Deposed, i, i+1)
	}
	if failed != nil || !never {
		w.event(ev)
	}
	if err := e.end(in, w.sandbox(copySandbox(rec))); err != nil {
		return errors.Join(failed, err)
	}
	if failed != nil {
		return &stepError{failed}
	}
	return nil
}

// retireAll removes all deposed instances of a sandbox, unless somebody is at it.
func (e *actor) retireAll(ctx context.Context) {
	for address, rec := range e.snapshot().Sandboxes {
		if len(rec.Deposed) == 0 || ctx.Err() != nil {
			continue
		}
		release, holder := e.lanes.try(address, "remove", e.by)
		if holder != nil {
			continue
		}
		for _, d := range rec.Deposed {
			now, ok := e.sandbox(address)
			if !ok {
				break
			}
			if err := e.removeDeposed(ctx, now, d.Instance.ID); err != nil {
				e.log.Warn("cannot remove a deposed instance yet", "address", address, "instance", d.Instance.ID, "error", err)
			}
		}
		release()
	}
}

// recallDeposed tells the host which processes the deposed instances had.
func (e *Engine) recallDeposed(rec *plan.Sandbox) {
	for _, d := range rec.Deposed {
		if i := d.Instance; i.PID != 0 {
			e.host.Recall(i.ID, runtime.Process{PID: i.PID, StartTime: i.StartTime, BootID: i.BootID}, runtime.Mark{UID: rec.UID, Address: rec.Address})
		}
	}
}
