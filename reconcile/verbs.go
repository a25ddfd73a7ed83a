package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// accessWait bounds how long exec and logs wait for a sandbox that is just
// being paused or resumed (contract 3.1).
const accessWait = 30 * time.Second

// Act runs an operator verb. It acts at once and leaves a hold, so that the
// next pass does not undo it; or takes the hold away when the verb asks for
// what is declared anyway.
func (e *Engine) Act(ctx context.Context, r ActRequest) (*ActResult, error) {
	rec, release, err := e.hold(ctx, r.Address, r.Verb)
	if err != nil {
		return nil, err
	}
	defer release()
	work := context.WithoutCancel(ctx)
	res := &ActResult{}
	switch r.Verb {
	case "start":
		err = e.opStart(work, rec, r)
	case "stop":
		err = e.opStop(work, rec, r)
	case "pause":
		err = e.opPause(work, rec, r)
	case "resume":
		err = e.opResume(work, rec, r)
	case "release":
		res.Note, err = e.opRelease(work, rec)
	default:
		err = &Error{Kind: Invalid, Message: fmt.Sprintf("there is no verb %q", r.Verb)}
	}
	e.wake()
	if err != nil {
		return nil, errorOf(err)
	}
	res.Sandbox, err = e.viewOne(work, rec.Address)
	return res, err
}

// wake lets the agent's loop look again.
func (e *Engine) wake() {
	if e.nudge != nil {
		e.nudge()
	}
}

// hold takes the sandbox's lane for an operator and brings its record up to
// date with the host.
func (e *Engine) hold(ctx context.Context, address, verb string) (*plan.Sandbox, func(), error) {
	address, err := e.resolve(address)
	if err != nil {
		return nil, nil, err
	}
	release, err := e.lanes.verb(ctx, address, verb, byOperator)
	if err != nil {
		return nil, nil, errorOf(err)
	}
	rec, err := e.refresh(ctx, address)
	if err != nil {
		release()
		return nil, nil, err
	}
	return rec, release, nil
}

// refresh takes over what is true of one sandbox now and returns its record.
func (e *Engine) refresh(ctx context.Context, address string) (*plan.Sandbox, error) {
	rec, ok := e.sandbox(address)
	if !ok {
		return nil, e.notFound(address)
	}
	if rec.Instance == nil {
		return rec, nil
	}
	seen, there, err := e.host.Inspect(ctx, rec.Instance.ID)
	if err != nil {
		return nil, errorOf(fmt.Errorf("cannot look at %s: %w", address, err))
	}
	if err := e.takeStatus(address, plan.StatusOf(rec, seenOf(seen), there, "", e.now())); err != nil {
		return nil, errorOf(err)
	}
	rec, ok = e.sandbox(address)
	if !ok {
		return nil, e.notFound(address)
	}
	return rec, nil
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
	if rec.Expired == nil {
		return nil
	}
	return &Error{Kind: Conflict, Message: fmt.Sprintf(
		"sandbox: cannot %s %s: it expired at %s; a later or removed deadline in the files revives it",
		verb, rec.Address, rec.Expired.Deadline.UTC().Format(time.RFC3339))}
}

// setHold records the operator's word, or that it agrees with the declaration.
func (e *Engine) setHold(rec *plan.Sandbox, mode string, r ActRequest) error {
	declared := rec.Spec.OperatingMode
	if declared == "" {
		declared = "running"
	}
	if mode == declared {
		rec.Hold = nil
	} else {
		by := r.By
		if by == "" {
			by = byOperator
		}
		rec.Hold = &plan.Hold{Mode: mode, By: by, At: e.now(), Reason: r.Reason}
	}
	w := &write{bump: true}
	return e.commit(w.sandbox(copySandbox(rec)).event(Event{
		Address: rec.Address, UID: rec.UID, Type: "held", Reason: mode, Message: r.Reason, By: byOperator,
	}))
}

func (e *Engine) opStart(ctx context.Context, rec *plan.Sandbox, r ActRequest) error {
	if err := notExpired(rec, "start"); err != nil {
		return err
	}
	if err := allowed(rec, plan.VerbStart); err != nil {
		return err
	}
	rec.Retry = plan.Retry{}
	if err := e.start(ctx, rec, false); err != nil {
		return err
	}
	return e.setHold(rec, "running", r)
}

func (e *Engine) opStop(ctx context.Context, rec *plan.Sandbox, r ActRequest) error {
	if err := allowed(rec, plan.VerbStop); err != nil {
		return err
	}
	// The hold first: a crash in the middle must not end in a restart.
	if err := e.setHold(rec, "suspended", r); err != nil {
		return err
	}
	return e.stop(ctx, rec, plan.ByStop)
}

func (e *Engine) opPause(ctx context.Context, rec *plan.Sandbox, r ActRequest) error {
	if rec.Hold != nil && rec.Hold.Mode == "paused" && rec.Hold.By != byOperator && phaseOf(rec) == plan.Paused {
		return e.setHold(rec, "paused", r) // only taken over
	}
	if err := allowed(rec, plan.VerbPause); err != nil {
		return err
	}
	if err := e.setHold(rec, "paused", r); err != nil {
		return err
	}
	return e.pause(ctx, rec)
}

func (e *Engine) opResume(ctx context.Context, rec *plan.Sandbox, r ActRequest) error {
	if err := notExpired(rec, "resume"); err != nil {
		return err
	}
	if err := allowed(rec, plan.VerbResume); err != nil {
		return err
	}
	if r.Timeout != nil {
		lease, err := plan.Renew(rec, plan.Renewal{Form: plan.RenewResume, For: time.Duration(*r.Timeout)}, e.now(), time.Duration(e.settings.MaxLifetime))
		if err != nil {
			return &Error{Kind: Conflict, Message: err.Error()}
		}
		rec.Lease = lease
	}
	if err := e.setHold(rec, "running", r); err != nil {
		return err
	}
	return e.resume(ctx, rec)
}

// opRelease drops the hold and brings the sandbox to its declared mode.
func (e *Engine) opRelease(ctx context.Context, rec *plan.Sandbox) (note string, err error) {
	if rec.Hold == nil {
		return rec.Address + " is not held", nil
	}
	rec.Hold = nil
	w := &write{bump: true}
	if err := e.commit(w.sandbox(copySandbox(rec)).event(Event{Address: rec.Address, UID: rec.UID, Type: "release", Reason: "operator", By: byOperator})); err != nil {
		return "", err
	}
	return "", e.converge(ctx, rec.Address, byOperator)
}

// converge plans for one sandbox what keeps it as recorded, and does it. The
// caller holds its lane.
func (e *Engine) converge(ctx context.Context, address, who string) error {
	rec, err := e.refresh(ctx, address)
	if err != nil {
		return err
	}
	o := plan.Observed{Instances: map[string]plan.Seen{}, Volumes: map[string]bool{}}
	for _, id := range rec.Claim {
		o.Volumes[id] = true // a missing claim is the full look's to find
	}
	if rec.Instance != nil {
		seen, there, err := e.host.Inspect(ctx, rec.Instance.ID)
		if err != nil {
			return err
		}
		if there {
			o.Instances[rec.Instance.ID] = seenOf(seen)
		}
	}
	p := plan.Make(plan.Input{
		Records:  plan.Records{Lineage: e.store.Lineage(), Sandboxes: map[string]*plan.Sandbox{address: rec}},
		Observed: o, Now: e.now(), Trigger: plan.Keep, Limits: e.limits(),
	})
	return e.carryOut(ctx, p, address, who)
}

// carryOut runs the plan's changes of one sandbox, whose lane the caller holds.
func (e *Engine) carryOut(ctx context.Context, p *plan.Plan, address, who string) error {
	r := &run{e: e, who: who, verb: "keep", stop: ctx}
	for _, c := range p.Changes {
		if c.Address != address || c.Action == plan.ActNoop || c.Kind != "sandbox" {
			continue
		}
		for _, down := range []bool{true, false} {
			if down && c.Action != plan.ActReplace {
				continue
			}
			if err := r.sandboxChange(ctx, &node{address: address, down: down}, c); err != nil {
				return err
			}
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
	rec, release, err := e.hold(ctx, r.Address, "renew")
	if err != nil {
		return nil, err
	}
	defer release()
	lease, err := plan.Renew(rec, ask, e.now(), time.Duration(e.settings.MaxLifetime))
	if err != nil {
		return nil, &Error{Kind: Conflict, Message: err.Error()}
	}
	rec.Lease = lease
	w := &write{}
	ev := e.eventOf(rec, "renewed", string(ask.Form), lease.Until.UTC().Format(time.RFC3339))
	ev.By = byOperator
	if err := e.commit(w.sandbox(rec).event(ev)); err != nil {
		return nil, errorOf(err)
	}
	e.wake()
	res := &ActResult{}
	res.Sandbox, err = e.viewOne(ctx, rec.Address)
	return res, err
}

// access waits, within its bound, for a pause or resume that is going on, and
// returns a record that is true now. It takes no lane.
func (e *Engine) access(ctx context.Context, word string) (*plan.Sandbox, error) {
	address, err := e.resolve(word)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, accessWait)
	defer cancel()
	for {
		e.lanes.mu.Lock()
		h := e.lanes.held[address]
		e.lanes.mu.Unlock()
		if h == nil || (h.verb != "pause" && h.verb != "resume") {
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

// Exec starts a process in a running sandbox.
func (e *Engine) Exec(ctx context.Context, r ExecRequest) (ExecSession, error) {
	if len(r.Args) == 0 {
		return nil, &Error{Kind: Invalid, Message: "exec needs a command"}
	}
	rec, err := e.access(ctx, r.Address)
	if err != nil {
		return nil, err
	}
	if rec.Instance == nil {
		return nil, &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: %s is pending, cannot exec; apply creates it", rec.Address)}
	}
	p, err := e.host.Exec(context.WithoutCancel(ctx), rec.Instance.ID, runtime.Exec{
		Args: r.Args, Env: r.Env, WorkingDir: r.WorkingDir, User: r.User,
		TTY: r.TTY, Width: r.Width, Height: r.Height,
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
	})
	switch {
	case errors.Is(err, runtime.ErrPaused):
		return nil, &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: %s is paused, cannot exec; resume it first", rec.Address)}
	case errors.Is(err, runtime.ErrNotRunning):
		return nil, &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: %s is %s, cannot exec; start it first", rec.Address, e.phaseNow(ctx, rec))}
	case errors.Is(err, runtime.ErrCommand):
		code := 126
		if errors.Is(err, os.ErrNotExist) {
			code = 127
		}
		return nil, &Error{Kind: Invalid, Message: err.Error(), Code: code}
	case err != nil:
		return nil, errorOf(fmt.Errorf("cannot exec in %s: %w", rec.Address, err))
	}
	return p, nil
}

// phaseNow is the phase a refusal should name.
func (e *Engine) phaseNow(ctx context.Context, rec *plan.Sandbox) plan.Phase {
	seen, there, err := e.host.Inspect(ctx, rec.Instance.ID)
	if err != nil {
		return rec.Instance.Phase
	}
	return plan.StatusOf(rec, seenOf(seen), there, "", e.now()).Phase
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
	if err != nil {
		return nil, errorOf(fmt.Errorf("cannot read the output of %s: %w", rec.Address, err))
	}
	return f, nil
}
