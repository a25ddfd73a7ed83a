package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// sandboxChange runs one change on one sandbox. What is decided is in c; what
// is true now is in the record, read under the lane.
func (r *run) sandboxChange(ctx context.Context, c plan.Change) error {
	rec, exists := r.sandbox(c.Address)
	switch {
	case c.Action == plan.ActForget && c.Reason == plan.Released && exists:
		return r.giveUp(ctx, rec, c.Cause)
	case c.Action == plan.ActForget:
		return r.forget(c)
	case c.Action == plan.ActCreate && !exists:
		rec = &plan.Sandbox{Address: c.Address, UID: newID(8), CreatedAt: r.now()}
	case !exists && (c.Action == plan.ActDelete || c.Action == plan.ActExpire):
		return nil // the agent has done the same meanwhile
	case !exists:
		return &Error{Kind: Stale, Message: fmt.Sprintf("%s is gone since the plan was made; plan again", c.Address)}
	case c.Instance != "" && (rec.Instance == nil || rec.Instance.ID != c.Instance):
		return &Error{Kind: Stale, Message: fmt.Sprintf("%s changed since the plan was made; plan again", c.Address)}
	}
	if c.Deposed != "" {
		return r.removeDeposed(ctx, rec, c.Deposed)
	}
	if len(c.Unknown) > 0 && (c.Action == plan.ActUpdate || c.Action == plan.ActRestart) {
		return r.decideAgain(ctx, c)
	}
	w := &write{}
	old := copySandbox(rec)
	if err := r.adopt(rec, &c); err != nil {
		return err
	}
	switch c.Action {
	case plan.ActCreate:
		w.bump = true
		set(&w.ended, c.Address, nil)
		return r.create(ctx, rec, c.Then, w)
	case plan.ActUpdate:
		return r.update(ctx, old, rec, c)
	case plan.ActRestart:
		w.bump = true
		w.event(r.eventOf(rec, "restart", c.Cause, ""))
		return r.restart(ctx, rec, thenOf(c, "running"), w)
	case plan.ActReplace:
		if c.NewLease {
			// A new ttl starts; a shutdown_time that was acted on stays so. Whether it
			// is expired no more is for the plan to say (Revive).
			rec.Lease = plan.Lease{ActedOn: old.Lease.ActedOn}
		}
		rec.Retry = plan.Retry{}
		if c.CreateFirst && live(rec) {
			return r.replaceFirst(ctx, old, rec, c)
		}
		w.event(r.eventOf(rec, "destroyed", "replaced", c.Cause))
		if err := r.detach(rec, w); err != nil {
			return err
		}
		return r.create(ctx, rec, c.Then, nil)
	case plan.ActRecreate:
		return r.recreate(ctx, rec, c, w)
	case plan.ActStart:
		w.bump = true
		if c.Reason == plan.Restarted {
			rec.Restarts = plan.RestartBackoff(rec.Restarts, &rec.Spec, upTime(rec.Instance), r.now(), rand.Float64())
		}
		return r.bringTo(ctx, rec, thenOf(c, "running"), w)
	case plan.ActStop:
		return r.stop(ctx, rec, plan.ByStop, nil)
	case plan.ActSuspend, plan.ActPause:
		return r.toRest(ctx, rec, c)
	case plan.ActResume:
		if lease, err := rec.Lease.OnResume(rec, nil, r.now(), r.limits().MaxLifetime); err == nil {
			rec.Lease = lease
		}
		return r.resume(ctx, rec, nil)
	case plan.ActNoop:
		return r.noteOnly(rec, c)
	case plan.ActExpire:
		return r.expire(ctx, rec, c)
	case plan.ActDelete:
		return r.delete(ctx, rec, reasonOf(c), nil)
	case plan.ActRepair:
		return r.repair(ctx, rec, c)
	case plan.ActRelease:
		if c.Wake {
			if err := r.runAgain(rec, "release", nil, w); err != nil {
				return err
			}
		}
		rec.Hold = c.Hold
		w.bump = true
		return r.commit(w.sandbox(rec).event(r.eventOf(rec, "release", c.Cause, "")))
	default:
		return fmt.Errorf("%s: %s is not supported yet", c.Address, c.Action)
	}
}

// toRest freezes or suspends a sandbox. By the idle rule it does so only while
// nobody uses it, and whoever wants to use it meanwhile waits until it is done.
func (r *run) toRest(ctx context.Context, rec *plan.Sandbox, c plan.Change) error {
	var w *write
	if c.Hold != nil {
		last := rec.LastActivity
		if at := rec.Instance.StartedAt; at.After(last) {
			last = at
		}
		done, idle := r.activity.rest(rec.Address, last, r.now(), time.Duration(rec.Spec.Lifetime.IdleTimeout))
		if !idle {
			return nil
		}
		defer done()
		rec.Hold = c.Hold
		ev := r.eventOf(rec, "held", c.Hold.Mode, c.Cause)
		ev.By = c.Hold.By
		w = (&write{bump: true}).event(ev)
	}
	if c.Action == plan.ActSuspend {
		return r.stop(ctx, rec, plan.BySuspend, w)
	}
	return r.pause(ctx, rec, w)
}

// noteOnly records what needs no work on the host.
func (r *run) noteOnly(rec *plan.Sandbox, c plan.Change) error {
	w := &write{}
	switch {
	case !c.Warn.IsZero():
		rec.Warned = c.Warn
		w.event(r.eventOf(rec, "expiring", c.Cause, "ends at "+c.Warn.UTC().Format(time.RFC3339)))
	case c.Then == "failed" && rec.Instance != nil:
		w.bump = true
		rec.Instance.Phase, rec.Instance.FailReason = plan.Failed, c.Reason
		rec.Restarts.NextAt = time.Time{}
		rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true}, true, r.now())
		w.event(r.eventOf(rec, "failed", c.Reason, c.Cause))
	default:
		return nil
	}
	return r.commit(w.sandbox(rec))
}

// nothing tells whether a change asks for no work at all.
func nothing(c *plan.Change) bool {
	return c.Action == plan.ActNoop && c.Warn.IsZero() && c.Then == ""
}

func thenOf(c plan.Change, otherwise string) string {
	if c.Then != "" {
		return c.Then
	}
	return otherwise
}

func reasonOf(c plan.Change) string {
	if c.Reason != "" {
		return c.Reason
	}
	return "user_delete"
}

// adopt takes over into the record what the change says of the spec, and that it
// is no longer expired.
func (r *run) adopt(rec *plan.Sandbox, c *plan.Change) error {
	if len(c.After) == 0 && len(c.Unknown) == 0 {
		if c.Revive {
			plan.Revive(rec)
		}
		return nil
	}
	res := r.declared.sandboxes[c.Address]
	if len(c.Unknown) > 0 {
		var err error
		if res, err = known(r, c.Address, sandboxes); err != nil {
			return err
		}
	} else {
		// What was shown is what is taken over, even where a file has changed since.
		var shown config.Resource[config.Sandbox]
		if res != nil {
			shown = *res
		} else {
			shown = config.Resource[config.Sandbox]{Address: rec.Address, Lifecycle: rec.Lifecycle, DependsOn: rec.DependsOn, Sources: rec.Sources, Sensitive: rec.Sensitive}
		}
		shown.Spec, shown.Unknown = config.Sandbox{}, nil
		if err := json.Unmarshal(c.After, &shown.Spec); err != nil {
			return fmt.Errorf("%s: the plan holds no readable spec: %w", c.Address, err)
		}
		res = &shown
	}
	plan.Adopt(rec, res, c)
	return nil
}

// forget drops what is remembered of a sandbox of which nothing is left.
func (r *run) forget(c plan.Change) error {
	w := &write{bump: true}
	set(&w.ended, c.Address, nil)
	if rec, ok := r.sandbox(c.Address); ok && phaseOf(rec) == plan.Destroyed {
		set(&w.sandboxes, c.Address, nil)
	}
	return r.commit(w.event(Event{Address: c.Address, Type: "forget", Reason: c.Cause}))
}

// decideAgain decides a change once more with what is known now: an attribute
// that was unknown at plan may turn out not to change at all.
func (r *run) decideAgain(ctx context.Context, c plan.Change) error {
	next, err := r.planOne(ctx, c.Address)
	if err != nil {
		return err
	}
	for _, n := range next {
		if err := r.sandboxChange(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// recreate makes a new instance on the old one's files, or without them.
func (r *run) recreate(ctx context.Context, rec *plan.Sandbox, c plan.Change, w *write) error {
	if i := rec.Instance; i != nil {
		switch {
		case i.Phase == plan.Failed:
			rec.Retry, rec.Restarts = plan.Retry{}, plan.Retry{}
		case i.Phase == plan.Lost:
			rec.Retry = plan.Backoff(rec.Retry, r.now().Sub(i.StartedAt), r.now(), rand.Float64(), "")
		}
		w.event(r.eventOf(rec, "recreate", c.Cause, ""))
		if !c.Fresh {
			rec.CarryFrom = i.ID
		}
		rec.Doomed = appendOnce(rec.Doomed, i.ID)
		rec.Instance = nil
		w.bump = true
		if err := r.commit(w.sandbox(copySandbox(rec))); err != nil {
			return err
		}
	}
	return r.create(ctx, rec, c.Then, nil)
}

// update takes over what can change under a running process, and the record of
// everything else; the host is told of limits and ports. When the host refuses,
// the record is what it was, and the next plan shows the change again.
func (r *run) update(ctx context.Context, old, rec *plan.Sandbox, c plan.Change) error {
	// Without a process, an address on a network that is not there yet has time
	// until the next start.
	if live(rec) || r.networkThere(rec) {
		if err := r.reserve(ctx, rec); err != nil {
			return r.stepFailed(old, nil, fmt.Errorf("cannot update %s: %w", rec.Address, err), nil)
		}
	}
	w := &write{bump: true}
	w.sandbox(copySandbox(rec)).event(r.eventOf(rec, "update", c.Cause, ""))
	if !live(rec) || sameOnHost(old, rec) {
		if err := r.commit(w); err != nil {
			r.release(rec.Address)
			return err
		}
		return nil
	}
	in, err := r.begin(intent(opUpdate, rec), w)
	if err != nil {
		r.release(rec.Address)
		return err
	}
	inst, err := r.instanceOf(rec, rec.Instance.ID)
	if err == nil {
		err = r.host.Update(ctx, inst)
	}
	if err == nil {
		return r.end(in, nil)
	}
	err = fmt.Errorf("cannot update %s: %w", rec.Address, err)
	if back, undo := r.instanceOf(old, old.Instance.ID); undo == nil {
		if undo := r.host.Update(ctx, back); undo != nil {
			err = errors.Join(err, fmt.Errorf("and cannot go back: %w", undo))
		}
	}
	old.Generation = rec.Generation + 1 // generations only grow
	if old.Instance.RunningSpec > 0 {
		old.Instance.RunningSpec = old.Generation
	}
	return r.stepFailed(old, in, err, &write{bump: true})
}

func (e *Engine) networkThere(rec *plan.Sandbox) bool {
	if rec.Spec.Network == nil {
		return true
	}
	_, ok := e.network(rec.Spec.Network.Name)
	return ok
}

// sameOnHost tells whether an update changes nothing that the host knows of.
func sameOnHost(old, rec *plan.Sandbox) bool {
	if old.Spec.Resources != rec.Spec.Resources || len(old.Ports) != len(rec.Ports) || relayed(&old.Spec) != relayed(&rec.Spec) {
		return false
	}
	for name, p := range rec.Ports {
		if old.Ports[name] != p {
			return false
		}
	}
	return true
}

// repair re-makes host objects under the running process, and volumes that are
// gone.
func (r *run) repair(ctx context.Context, rec *plan.Sandbox, c plan.Change) error {
	in, err := r.begin(intent(opRepair, rec), (&write{}).sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	parts := 0
	for _, m := range c.Missing {
		name, isClaim := strings.CutPrefix(m, "volume ")
		if !isClaim {
			parts++
			continue
		}
		if err == nil && rec.Claim[name] != "" {
			err = r.host.EnsureVolume(ctx, runtime.Volume{ID: rec.Claim[name]})
		}
	}
	if err == nil && (parts > 0 || len(c.Missing) == 0) {
		var inst runtime.Instance
		if inst, err = r.instanceOf(rec, rec.Instance.ID); err == nil {
			err = r.host.Repair(ctx, inst)
		}
	}
	if err != nil {
		return r.stepFailed(rec, in, fmt.Errorf("cannot repair %s (%s missing): %w", rec.Address, strings.Join(c.Missing, ", "), err), nil)
	}
	worked(rec)
	if phase := rec.Instance.Phase; phase == plan.Running || phase == plan.Paused {
		rec.Conditions = plan.Conditions(rec, aliveSeen(rec, phase == plan.Paused), true, r.now())
	}
	w := &write{}
	return r.end(in, w.sandbox(rec).event(r.eventOf(rec, "repair", strings.Join(c.Missing, ", ")+" missing", "")))
}
