package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// Act runs an operator verb. It acts at once and leaves a hold, so that the
// next pass does not undo it; or takes the hold away when the verb asks for
// what is declared anyway.
func (e *Engine) Act(ctx context.Context, r ActRequest) (*ActResult, error) {
	if !slices.Contains([]string{"start", "stop", "pause", "resume", "release", "kill"}, r.Verb) {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("there is no verb %q", r.Verb)}
	}
	op := e.as(byOperator)
	rec, release, err := op.hold(ctx, r.Address, r.Verb)
	if err != nil {
		return nil, errorOf(err)
	}
	defer e.wake(rec.Address)
	defer release()
	work := context.WithoutCancel(ctx) // once begun it is finished
	res := &ActResult{}
	before := copySandbox(rec)
	switch r.Verb {
	case "start":
		err = op.opStart(work, rec, r)
	case "stop":
		res.Note, err = op.opStop(work, rec, r)
	case "pause":
		res.Note, err = op.opPause(work, rec, r)
	case "resume":
		err = op.opResume(work, rec, r)
	case "release":
		res.Note, err = op.opRelease(work, rec)
	case "kill":
		res.Note, err = op.opKill(work, rec, r)
	}
	if err != nil {
		e.log.Warn("cannot act", "address", rec.Address, "verb", r.Verb, "error", err)
		if r.Verb != "release" {
			err = errors.Join(err, op.takeBack(before, r.Verb))
		}
		return nil, errorOf(err)
	}
	e.acted(rec.Address, r.Verb, r.Reason, res.Note)
	res.Sandbox, err = e.viewOne(work, rec.Address)
	return res, err
}

// wake lets the agent, if there is one, look again at these addresses.
func (e *Engine) wake(addresses ...string) {
	if e.nudge != nil {
		e.nudge(addresses...)
	}
}

// hold takes the sandbox's lane for an operator and brings its record up to
// date with the host.
func (e *actor) hold(ctx context.Context, word, verb string) (*plan.Sandbox, func(), error) {
	address, err := e.resolve(word)
	if err != nil {
		return nil, nil, err
	}
	release, err := e.lanes.verb(ctx, address, verb, e.by)
	if err != nil {
		return nil, nil, err
	}
	rec, err := e.refresh(ctx, address)
	if err != nil {
		release()
		return nil, nil, err
	}
	return rec, release, nil
}

// refresh takes over what is true of one sandbox now and returns its record. The
// caller holds its lane.
func (e *actor) refresh(ctx context.Context, address string) (*plan.Sandbox, error) {
	rec := e.current(address)
	if rec == nil {
		return nil, e.notFound(address)
	}
	now, err := e.glance(ctx, rec)
	if err != nil {
		return nil, err
	}
	st := now.status(rec, e.now())
	if rec, err = e.take(ctx, rec, &st, &now); err != nil {
		return nil, err
	}
	return copySandbox(rec), nil
}

// resolve finds the sandbox that a user's word means: its address, or the short
// form without "sandbox." where that is unambiguous.
func (e *Engine) resolve(word string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.records.Sandboxes[word]; ok {
		return word, nil
	}
	if _, ok := e.records.Sandboxes["sandbox."+word]; ok {
		return "sandbox." + word, nil
	}
	var ends []string
	for a := range e.records.Sandboxes {
		if strings.HasSuffix(a, ".sandbox."+word) {
			ends = append(ends, a)
		}
	}
	switch len(ends) {
	case 1:
		return ends[0], nil
	case 0:
		for _, a := range []string{word, "sandbox." + word} {
			if x := e.records.Ended[a]; x != nil {
				return "", &Error{Kind: NotFound, Message: fmt.Sprintf("sandbox: not found: %s ended at %s (%s)", a, x.At.UTC().Format(time.RFC3339), x.Reason)}
			}
		}
		return "", &Error{Kind: NotFound, Message: "sandbox: not found: " + word}
	}
	slices.Sort(ends)
	return "", &Error{Kind: Invalid, Message: fmt.Sprintf("%q is ambiguous: %s", word, strings.Join(ends, ", "))}
}

func (e *Engine) notFound(address string) error {
	return &Error{Kind: NotFound, Message: "sandbox: not found: " + address}
}

func phaseOf(rec *plan.Sandbox) plan.Phase {
	if rec.Instance == nil {
		return plan.Pending
	}
	return rec.Instance.Phase
}

func allowed(rec *plan.Sandbox, v plan.Verb) error {
	if _, err := plan.TransitionOf(rec.Address, phaseOf(rec), v); err != nil {
		return &Error{Kind: Conflict, Message: err.Error()}
	}
	return nil
}

func notExpired(rec *plan.Sandbox, verb string) error {
	if rec.Expired == nil || rec.Expired.Paused {
		return nil
	}
	return &Error{Kind: Conflict, Message: fmt.Sprintf(
		"sandbox: cannot %s %s: it expired at %s; a later or removed deadline in the files revives it",
		verb, rec.Address, rec.Expired.Deadline.UTC().Format(time.RFC3339))}
}

// takeBack restores hold, lease and expiry as they were before a verb that failed:
// they would say that it happened.
func (e *actor) takeBack(before *plan.Sandbox, verb string) error {
	rec, ok := e.sandbox(before.Address)
	if !ok || reflect.DeepEqual(rec.Hold, before.Hold) && reflect.DeepEqual(rec.Expired, before.Expired) && rec.Lease == before.Lease {
		return nil
	}
	rec.Hold, rec.Lease, rec.Expired = before.Hold, before.Lease, before.Expired
	w := &write{bump: true}
	return e.commit(w.sandbox(rec).event(e.eventOf(rec, "undone", verb+" failed", "hold and lease are as they were before it")))
}

// held puts the operator's word into the record, or takes the hold away where
// it says what is declared, and returns what is to be recorded with the step
// that follows it.
func (e *actor) held(rec *plan.Sandbox, mode string, r ActRequest) *write {
	declared := rec.Spec.OperatingMode
	if declared == "" {
		declared = "running"
	}
	w := &write{bump: true}
	if mode != declared {
		rec.Hold = &plan.Hold{Mode: mode, By: cmp.Or(r.By, byOperator), At: e.now(), Reason: r.Reason}
		return w.event(e.eventOf(rec, "held", mode, r.Reason))
	}
	if rec.Hold != nil {
		rec.Hold = nil
		w.event(e.eventOf(rec, "release", byOperator, r.Reason))
	}
	return w
}

func (e *actor) opStart(ctx context.Context, rec *plan.Sandbox, r ActRequest) error {
	if err := notExpired(rec, "start"); err != nil {
		return err
	}
	if err := allowed(rec, plan.VerbStart); err != nil {
		return err
	}
	w := e.held(rec, "running", r)
	if err := e.runAgain(rec, "start", nil, w); err != nil {
		return err
	}
	rec.Retry, rec.Restarts = plan.Retry{}, plan.Retry{}
	return e.start(ctx, rec, w)
}

// opStop records the hold first: a crash in the middle must not end in a restart.
func (e *actor) opStop(ctx context.Context, rec *plan.Sandbox, r ActRequest) (note string, err error) {
	if h := rec.Hold; h != nil && h.Mode == "suspended" && h.By == byIdle && phaseOf(rec) == plan.Stopped {
		w := e.held(rec, "suspended", r)
		return "hold taken over from " + h.By, e.commit(w.sandbox(rec))
	}
	if err := allowed(rec, plan.VerbStop); err != nil {
		return "", err
	}
	return "", e.stop(ctx, rec, plan.ByStop, e.held(rec, "suspended", r))
}

func (e *actor) opPause(ctx context.Context, rec *plan.Sandbox, r ActRequest) (note string, err error) {
	if h := rec.Hold; h != nil && h.Mode == "paused" && (h.By == "idle" || h.By == "expiry") && phaseOf(rec) == plan.Paused {
		w := e.held(rec, "paused", r)
		return "hold taken over from " + h.By, e.commit(w.sandbox(rec))
	}
	if err := allowed(rec, plan.VerbPause); err != nil {
		return "", err
	}
	return "", e.pause(ctx, rec, e.held(rec, "paused", r))
}

func (e *actor) opResume(ctx context.Context, rec *plan.Sandbox, r ActRequest) error {
	if err := notExpired(rec, "resume"); err != nil {
		return err
	}
	if err := allowed(rec, plan.VerbResume); err != nil {
		return err
	}
	w := e.held(rec, "running", r)
	if err := e.runAgain(rec, "resume", (*time.Duration)(r.Timeout), w); err != nil {
		return err
	}
	return e.resume(ctx, rec, w)
}

// opRelease drops the hold and brings the sandbox to its declared mode.
func (e *actor) opRelease(ctx context.Context, rec *plan.Sandbox) (note string, err error) {
	if rec.Hold == nil {
		return rec.Address + " is not held", nil
	}
	w := &write{bump: true}
	if heldByRule(rec) || rec.Expired != nil && rec.Expired.Paused {
		// Out of its rest, as if it were resumed; what lies under goes too.
		if err := e.runAgain(rec, "release", nil, w); err != nil {
			return "", err
		}
	}
	w.event(e.eventOf(rec, "release", byOperator, ""))
	rec.Hold = nil
	if err := e.commit(w.sandbox(copySandbox(rec))); err != nil {
		return "", err
	}
	_, _, err = e.converge(ctx, rec.Address)
	return "", err
}

// converge looks at one sandbox, plans what keeps it as recorded, and does it.
// The caller holds its lane. It tells whether there was something to do, and when
// the planner wants to look again.
func (e *actor) converge(ctx context.Context, address string) (did bool, wake time.Time, err error) {
	rec, err := e.refresh(ctx, address)
	if err != nil {
		return false, time.Time{}, err
	}
	now, err := e.closeLook(ctx, rec)
	if err != nil {
		return false, time.Time{}, err
	}
	if dying(now.Instances, rec) {
		if e.now().Before(rec.Retry.NextAt) {
			return false, rec.Retry.NextAt, nil
		}
		if err := e.finishDying(ctx, rec); err != nil {
			return true, time.Time{}, e.stepFailed(rec, nil, err, nil)
		}
		if rec, err = e.refresh(ctx, address); err != nil {
			return true, time.Time{}, err
		}
		if now, err = e.closeLook(ctx, rec); err != nil {
			return true, time.Time{}, err
		}
	}
	records := e.only(address)
	p := plan.Make(plan.Input{
		Records: records, Observed: now.Observed, Activity: e.activity.one(address), Now: e.now(), Trigger: plan.Keep, Limits: e.limits(),
	})
	changes := ofSandbox(p, address)
	if len(changes) == 0 && settled(rec, e.now()) {
		rec = copySandbox(rec)
		worked(rec)
		return false, p.WakeAt, e.commit((&write{}).sandbox(rec))
	}
	return len(changes) > 0, p.WakeAt, e.carryOut(ctx, changes)
}

// dying tells whether the main process of rec's instance is gone while others of
// it are still there.
func dying(seen map[string]plan.Seen, rec *plan.Sandbox) bool {
	if rec.Instance == nil {
		return false
	}
	s := seen[rec.Instance.ID]
	return s.Dying && !s.Alive && s.Unknown == ""
}

// finishDying ends what is left of an instance whose main process is gone, within
// the host's bound. The caller holds the lane.
func (e *actor) finishDying(ctx context.Context, rec *plan.Sandbox) error {
	_, err := e.host.Stop(ctx, rec.Instance.ID, runtime.StopOptions{})
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return fmt.Errorf("processes of %s do not end: %w", rec.Address, err)
	}
	return nil
}

// settled tells whether what failed once is not wanted any more: it could be
// tried again, and is not.
func settled(rec *plan.Sandbox, now time.Time) bool {
	phase := phaseOf(rec)
	return rec.Retry.Error != "" && !now.Before(rec.Retry.NextAt) && phase != plan.Pending && phase != plan.Failed
}

// carryOut runs changes of one sandbox, whose lane the caller holds.
func (e *actor) carryOut(ctx context.Context, changes []plan.Change) error {
	r := &run{actor: e, quit: ctx, declared: declaredBy(nil)}
	for _, c := range changes {
		if err := r.change(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// Renew changes the lease; it is durable before it is confirmed.
func (e *Engine) Renew(ctx context.Context, r RenewRequest) (*ActResult, error) {
	ask := plan.Renewal{}
	forms := 0
	if r.Until != nil {
		ask, forms = plan.Renewal{Form: plan.RenewUntil, Until: *r.Until}, forms+1
	}
	if r.AtLeast != nil {
		ask, forms = plan.Renewal{Form: plan.RenewAtLeast, For: time.Duration(*r.AtLeast)}, forms+1
	}
	if r.In != nil {
		ask, forms = plan.Renewal{Form: plan.RenewIn, For: time.Duration(*r.In)}, forms+1
	}
	if forms != 1 {
		return nil, &Error{Kind: Invalid, Message: "renew needs exactly one of -until, -at-least and -in"}
	}
	op := e.as(byOperator)
	rec, release, err := op.hold(ctx, r.Address, "renew")
	if err != nil {
		return nil, errorOf(err)
	}
	defer e.wake(rec.Address)
	defer release()
	lease, err := plan.Renew(rec, ask, e.now(), time.Duration(e.settings.MaxLifetime))
	if err != nil {
		return nil, &Error{Kind: Conflict, Message: err.Error()}
	}
	rec.Lease = lease
	w := &write{}
	ev := op.eventOf(rec, "renewed", string(ask.Form), lease.Until.UTC().Format(time.RFC3339))
	if err := op.commit(w.sandbox(rec).event(ev)); err != nil {
		return nil, errorOf(err)
	}
	e.acted(rec.Address, "renew", "", "until "+lease.Until.UTC().Format(time.RFC3339))
	res := &ActResult{}
	res.Sandbox, err = e.viewOne(ctx, rec.Address)
	return res, err
}

// OpenLog opens the sandbox's output for reading.
func (e *Engine) OpenLog(ctx context.Context, address string) (*os.File, error) {
	rec, err := e.access(ctx, address)
	if err != nil {
		return nil, err
	}
	if rec.Instance == nil {
		return nil, &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: %s is pending and has no output yet", rec.Address)}
	}
	f, err := e.host.OpenLog(ctx, rec.Instance.ID)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil, &Error{Kind: Conflict, Message: e.cannotEnter(ctx, rec, "read its output")}
	}
	if err != nil {
		return nil, errorOf(fmt.Errorf("cannot read the output of %s: %w", rec.Address, err))
	}
	return f, nil
}
