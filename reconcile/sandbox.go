package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// The steps of a sandbox. Each takes a private copy of the record, journals,
// touches the host, and commits the changed record; after any crash the record
// and the host together say how to go on. The caller holds the sandbox's lane.

// stepError is a step's failure that is on record: the sandbox's Retry holds the
// words and when to try again.
type stepError struct{ err error }

func (s *stepError) Error() string { return s.err.Error() }
func (s *stepError) Unwrap() error { return s.err }

// stepFailed records an error that the next pass will meet again, and returns it.
// w may hold what else is to be recorded with it.
func (e *actor) stepFailed(rec *plan.Sandbox, in *Intent, err error, w *write) error {
	rec.Retry = plan.Backoff(rec.Retry, 0, e.now(), rand.Float64(), err.Error())
	if w == nil {
		w = &write{}
	}
	w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "error", "step failed", err.Error()))
	var commit error
	if in != nil {
		commit = e.end(in, w)
	} else {
		commit = e.commit(w)
	}
	if commit != nil {
		return errors.Join(err, commit)
	}
	return &stepError{err}
}

// worked ends a series of failed steps. The series of kills and losses, which has
// no error, goes on.
func worked(rec *plan.Sandbox) {
	if rec.Retry.Error != "" {
		rec.Retry = plan.Retry{}
	}
}

// create makes a new instance of rec and brings it to the mode then. rec may be
// new; it is recorded before the host is touched, with all that it reserves. No
// earlier instance of it is alive when the new one comes.
func (e *actor) create(ctx context.Context, rec *plan.Sandbox, then string, w *write) error {
	var err error
	if e.current(rec.Address) != nil {
		if rec, err = e.recoverOwn(ctx, rec); err != nil {
			return e.stepFailed(rec, nil, err, w)
		}
	}
	if rec.CarryFrom != "" {
		if _, err := e.host.Stop(ctx, rec.CarryFrom, runtime.StopOptions{Grace: graceOf(&rec.Spec)}); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return e.stepFailed(rec, nil, fmt.Errorf("cannot take down instance %s of %s: %w", rec.CarryFrom, rec.Address, err), w)
		}
	}
	if doomed(rec) {
		if err := e.removeDoomed(ctx, rec); err != nil {
			return err
		}
	}
	if err := e.reserve(ctx, rec); err != nil {
		return e.createFailed(rec, nil, "", err)
	}
	claims := e.claim(rec)
	if w == nil {
		w = &write{}
	}
	w.bump = true
	begun := intent(opCreate, rec)
	begun.Instance = newID(6)
	in, err := e.begin(begun, w.sandbox(copySandbox(rec)))
	if err != nil {
		e.release(rec.Address)
		return err
	}
	inst, err := e.instanceOf(rec, in.Instance)
	if err == nil {
		err = legible(rec)
	}
	if err == nil {
		err = e.makeClaims(ctx, claims)
	}
	var proc runtime.Process
	if err == nil {
		proc, err = e.host.Create(ctx, inst)
	}
	if err != nil {
		return e.createFailed(rec, in, in.Instance, err)
	}
	now := e.now()
	rec.Instance = &plan.Instance{
		ID: in.Instance, Phase: plan.Created, CreatedAt: now, RunningSpec: rec.Generation,
		PID: proc.PID, StartTime: proc.StartTime, BootID: proc.BootID, Image: inst.Image.Digest,
	}
	if rec.Lease.Start.IsZero() {
		rec.Lease = rec.Lease.Anew(&rec.Spec, now)
	}
	born := fresh
	if rec.CarryFrom != "" {
		born = carried
		rec.Doomed = appendOnce(rec.Doomed, rec.CarryFrom)
		rec.CarryFrom = ""
	}
	if then == "created" && rec.Hold == nil {
		rec.Hold = &plan.Hold{Mode: "created", By: e.by, At: now, Reason: "-no-start"}
	}
	if then == "created" || then == "suspended" {
		worked(rec)
	}
	rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true, Alive: true, PID: proc.PID, StartTime: proc.StartTime}, true, now)
	w = &write{bump: true}
	w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "create", "created", ""))
	switch then {
	case "created":
		err = e.end(in, w)
	case "suspended":
		if err = e.end(in, w); err == nil {
			err = e.stop(ctx, rec, plan.BySuspend, nil)
		}
	default:
		var starting *Intent
		if starting, err = e.next(in, w, intent(opStart, rec)); err == nil {
			err = e.finishStart(ctx, starting, rec, born)
		}
		if err == nil && then == "paused" {
			err = e.pause(ctx, rec, nil)
		}
	}
	if err == nil && doomed(rec) {
		err = e.removeDoomed(ctx, rec)
	}
	return err
}

// createFailed undoes a create and records why, and either when to try again or,
// after start_timeout, that nobody should. tried is the instance that did not
// come up; in its intent, nil when the host was not touched yet, or when all was
// taken back already and why is in the history.
func (e *actor) createFailed(rec *plan.Sandbox, in *Intent, tried string, cause error) error {
	cause = discreet(rec, cause)
	w := &write{bump: true}
	of := func(typ, reason, message string) {
		ev := e.eventOf(rec, typ, reason, message)
		ev.Instance = tried
		w.event(ev)
	}
	step := "create failed"
	if in != nil || tried == "" {
		cause = fmt.Errorf("cannot create %s: %w", rec.Address, cause)
	}
	var undo error
	if in != nil {
		if undo = e.undoCreate(context.Background(), in, rec); undo != nil {
			e.openMu.Lock()
			e.unrecovered = append(e.unrecovered, *in)
			e.openMu.Unlock()
			cause = errors.Join(cause, undo)
		}
	}
	if in != nil || tried == "" {
		of("error", step, cause.Error())
	} else {
		step = "start failed"
	}
	switch {
	case tried == "" || undo != nil || slices.Contains(rec.Doomed, tried):
	case rec.CarryFrom == tried:
		of("undone", step, "the instance is down; its files go to the next one")
	default:
		of("undone", step, "the instance is removed")
	}
	now := e.now()
	rec.Retry = plan.Backoff(rec.Retry, 0, now, rand.Float64(), cause.Error())
	if tried != "" && plan.GiveUp(rec.Retry, &rec.Spec, now) {
		rec.Instance = &plan.Instance{ID: tried, Phase: plan.Failed, CreatedAt: now, FailReason: "provision_timeout"}
		of("failed", "provision_timeout", cause.Error())
	}
	rec.Conditions = plan.Conditions(rec, plan.Seen{}, true, now)
	if err := e.commit(w.sandbox(copySandbox(rec))); err != nil {
		return errors.Join(cause, err)
	}
	return &stepError{cause}
}

// bringTo takes an instance that is created or stopped to a mode: created,
// running, paused or suspended. w is recorded before the host is touched.
func (e *actor) bringTo(ctx context.Context, rec *plan.Sandbox, mode string, w *write) error {
	switch mode {
	case "created":
		if w == nil {
			return nil
		}
		return e.commit(w)
	case "suspended":
		return e.stop(ctx, rec, plan.BySuspend, w)
	}
	if err := e.start(ctx, rec, w); err != nil {
		return err
	}
	if mode == "paused" {
		return e.pause(ctx, rec, nil)
	}
	return nil
}

// start runs the command: at once in a created instance, after making a stopped
// one ready again on the same files.
func (e *actor) start(ctx context.Context, rec *plan.Sandbox, w *write) error {
	if rec.Instance.Phase == plan.Stopped {
		if err := e.reserve(ctx, rec); err != nil {
			return e.startFailed(ctx, nil, rec, kept, err)
		}
		rec.Instance.RunningSpec = rec.Generation
		e.claim(rec)
	}
	if w == nil {
		w = &write{}
	}
	in, err := e.begin(intent(opStart, rec), w.sandbox(copySandbox(rec)))
	if err != nil {
		e.release(rec.Address)
		return err
	}
	return e.finishStart(ctx, in, rec, kept)
}

// birth tells where the instance that is started comes from.
type birth int

const (
	kept    birth = iota // it was there
	fresh                // made just now: it goes again if its command cannot be started
	carried              // made just now on an earlier one's files: those stay for the next
)

// finishStart is start once its intent is durable.
func (e *actor) finishStart(ctx context.Context, in *Intent, rec *plan.Sandbox, born birth) error {
	inst := rec.Instance
	var err error
	if inst.Phase == plan.Stopped {
		err = e.ready(ctx, rec)
	}
	if err == nil {
		err = e.host.Start(ctx, inst.ID)
	}
	if err != nil && inst.Phase == plan.Created && born == kept && !errors.Is(err, runtime.ErrCommand) {
		err = e.startAnew(ctx, rec, err)
	}
	if err != nil {
		return e.startFailed(ctx, in, rec, born, err)
	}
	now := e.now()
	switch {
	case inst.StoppedBy == plan.ByKilled:
		rec.Retry = plan.Backoff(rec.Retry, upTime(inst), now, rand.Float64(), "")
	case rec.Retry.Error != "" || born == kept:
		rec.Retry = plan.Retry{} // it came up; a recreated one keeps its series
	}
	rec.LastActivity = now
	inst.Phase, inst.StartedAt, inst.Outcome, inst.StoppedBy, inst.OOMKills = plan.Running, now, nil, "", 0
	rec.Conditions = plan.Conditions(rec, aliveSeen(rec, false), true, now)
	w := &write{bump: true}
	return e.end(in, w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "start", "started", "")))
}

// startAnew starts a created instance that could not be started as it was: what it
// waits at may be gone with the run dir. It has run nothing yet that could be lost.
func (e *actor) startAnew(ctx context.Context, rec *plan.Sandbox, cause error) error {
	id := rec.Instance.ID
	e.log.Warn("made again, because it cannot be started as it was created", "address", rec.Address, "instance", id, "error", cause)
	if _, err := e.host.Stop(ctx, id, runtime.StopOptions{}); err != nil {
		return errors.Join(cause, err)
	}
	if err := e.ready(ctx, rec); err != nil {
		return errors.Join(cause, err)
	}
	rec.Instance.RunningSpec = rec.Generation
	return e.host.Start(ctx, id)
}

// ready makes a stopped instance's surroundings and PID 1 again.
func (e *actor) ready(ctx context.Context, rec *plan.Sandbox) error {
	inst := rec.Instance
	made, err := e.instanceOf(rec, inst.ID)
	if err == nil {
		err = legible(rec)
	}
	if err != nil {
		return err
	}
	if err := e.makeClaims(ctx, e.claim(rec)); err != nil {
		return err
	}
	made.CarryFrom = ""
	proc, err := e.host.Create(ctx, made)
	inst.PID, inst.StartTime, inst.BootID = proc.PID, proc.StartTime, proc.BootID
	return err
}

// upTime is how long the instance's last process was up, 0 when it never was.
func upTime(i *plan.Instance) time.Duration {
	if i == nil || i.StartedAt.IsZero() || i.Outcome == nil {
		return 0
	}
	return i.Outcome.At.Sub(i.StartedAt)
}

// aliveSeen is what the host will say of an instance that a step just brought up.
func aliveSeen(rec *plan.Sandbox, frozen bool) plan.Seen {
	return plan.Seen{
		UID: rec.UID, Layer: true, Alive: true, PID: rec.Instance.PID,
		StartTime: rec.Instance.StartTime, Started: true, Frozen: frozen,
	}
}

// startFailed undoes a start: a fresh instance goes and the sandbox is pending
// again, one with a past is stopped and keeps its files. in is nil when the host
// was not touched yet.
func (e *actor) startFailed(ctx context.Context, in *Intent, rec *plan.Sandbox, born birth, cause error) error {
	inst := rec.Instance
	cause = fmt.Errorf("cannot start %s: %w", rec.Address, discreet(rec, cause))
	if born != kept {
		failed := e.eventOf(rec, "error", "start failed", cause.Error())
		rec.Instance = nil
		if born == carried {
			if _, err := e.host.Stop(ctx, inst.ID, runtime.StopOptions{}); err != nil {
				cause = errors.Join(cause, err) // who carries its files on stops it again
			}
			rec.CarryFrom = inst.ID
		} else {
			rec.Doomed = appendOnce(rec.Doomed, inst.ID)
		}
		if err := e.end(in, (&write{bump: true}).sandbox(copySandbox(rec)).event(failed)); err != nil {
			return errors.Join(cause, err)
		}
		if err := e.removeDoomed(ctx, rec); err != nil {
			return errors.Join(cause, err)
		}
		return e.createFailed(rec, nil, inst.ID, cause)
	}
	if _, err := e.host.Stop(ctx, inst.ID, runtime.StopOptions{}); err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return e.stepFailed(rec, in, errors.Join(cause, err), nil)
	}
	now := e.now()
	rec.Retry = plan.Backoff(rec.Retry, 0, now, rand.Float64(), cause.Error())
	inst.Phase, inst.PID, inst.StartTime = plan.Stopped, 0, 0
	if inst.StoppedBy == "" || inst.StoppedBy == plan.ByExit || inst.StoppedBy == plan.ByOOM {
		inst.StoppedBy = "start_failed"
	}
	ev := e.eventOf(rec, "error", "start failed", cause.Error())
	if plan.GiveUp(rec.Retry, &rec.Spec, now) {
		inst.Phase, inst.FailReason = plan.Failed, "provision_timeout"
		ev = e.eventOf(rec, "failed", "provision_timeout", cause.Error())
	}
	rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true}, true, now)
	w := &write{bump: true}
	w.sandbox(copySandbox(rec)).event(ev)
	var err error
	if in != nil {
		err = e.end(in, w)
	} else {
		err = e.commit(w)
	}
	if err != nil {
		return errors.Join(cause, err)
	}
	return &stepError{cause}
}

func (e *actor) pause(ctx context.Context, rec *plan.Sandbox, w *write) error {
	rec.Lease = rec.Lease.OnPause(&rec.Spec)
	return e.freezer(ctx, rec, opPause, e.host.Pause, plan.Paused, w)
}

func (e *actor) resume(ctx context.Context, rec *plan.Sandbox, w *write) error {
	return e.freezer(ctx, rec, opResume, e.host.Resume, plan.Running, w)
}

func (e *actor) freezer(ctx context.Context, rec *plan.Sandbox, op Op, act func(context.Context, string) error, phase plan.Phase, w *write) error {
	if w == nil {
		w = &write{}
	}
	in, err := e.begin(intent(op, rec), w.sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	defer e.lanes.step(rec.Address, op)()
	if err := act(ctx, rec.Instance.ID); err != nil {
		return e.stepFailed(rec, in, fmt.Errorf("cannot %s %s: %w", op, rec.Address, err), nil)
	}
	if op == opPause {
		e.execs.paused(rec)
	}
	rec.Instance.Phase = phase
	if phase == plan.Running {
		rec.LastActivity = e.now()
	}
	worked(rec)
	rec.Conditions = plan.Conditions(rec, aliveSeen(rec, phase == plan.Paused), true, e.now())
	w = &write{bump: true}
	return e.end(in, w.sandbox(copySandbox(rec)).event(e.eventOf(rec, string(op), string(phase), "")))
}

// stop takes the process down and leaves files and outcome. why becomes
// stopped_by: stop, suspend, expiry, restart.
func (e *actor) stop(ctx context.Context, rec *plan.Sandbox, why string, w *write) error {
	if w == nil {
		w = &write{}
	}
	begun := intent(opStop, rec)
	begun.Why = why
	in, err := e.begin(begun, w.sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	return e.finishStop(ctx, in, rec, graceOf(&rec.Spec))
}

func graceOf(s *config.Sandbox) time.Duration {
	if s.StopGrace > 0 {
		return time.Duration(s.StopGrace)
	}
	return defaultGrace
}

func (e *actor) finishStop(ctx context.Context, in *Intent, rec *plan.Sandbox, grace time.Duration) error {
	out, err := e.host.Stop(ctx, rec.Instance.ID, runtime.StopOptions{Grace: grace})
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		// The hold, the mode, Expired or the generation, recorded before, make the
		// plan ask for it again.
		return e.stepFailed(rec, in, fmt.Errorf("cannot stop %s: %w", rec.Address, err), nil)
	}
	now := e.now()
	i := rec.Instance
	if i.Phase != plan.Stopped {
		i.Outcome = outcomeOf(out, stopReason(rec, in.Why))
		if i.Outcome == nil && !i.StartedAt.IsZero() {
			i.Outcome = &plan.Outcome{ExitCode: 137, Signal: 9, Reason: stopReason(rec, in.Why), At: now}
		}
	}
	i.Phase, i.PID, i.StartTime, i.StoppedBy = plan.Stopped, 0, 0, in.Why
	if in.Why == plan.ByExpiry && rec.Expired != nil {
		rec.Expired.Done = true
	}
	worked(rec)
	rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true}, true, now)
	w := &write{bump: true}
	return e.end(in, w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "stop", stopReason(rec, in.Why), "")))
}

func stopReason(rec *plan.Sandbox, why string) string {
	switch why {
	case plan.BySuspend:
		return "suspended"
	case plan.ByExpiry:
		return tombstone(rec.Expired)
	case byRestart:
		return "restarted"
	default:
		return "stopped"
	}
}

// byRestart is stopped_by between the two halves of a restart.
const byRestart = "restart"

// tombstone is the reason that stays of an expiry.
func tombstone(x *plan.Expired) string {
	if x == nil {
		return "shutdown_time"
	}
	return plan.EndReason(x.Reason)
}

// restart gives the instance a new process on the same files. w is recorded
// before the host is touched.
func (e *actor) restart(ctx context.Context, rec *plan.Sandbox, then string, w *write) error {
	if live(rec) {
		if err := e.stop(ctx, rec, byRestart, w); err != nil {
			return err
		}
		w = nil
	}
	return e.bringTo(ctx, rec, then, w)
}

func live(rec *plan.Sandbox) bool {
	return rec.Instance != nil && alive(rec.Instance.Phase)
}

// detach makes the instance doomed: the sandbox is pending, and keeps uid,
// lease, hold, address, ports, id range and claims. Whoever goes on removes what
// is doomed before anything else.
func (e *actor) detach(rec *plan.Sandbox, w *write) error {
	if rec.Instance != nil {
		rec.Doomed = appendOnce(rec.Doomed, rec.Instance.ID)
		rec.Instance = nil
	}
	rec.Doomed = appendOnce(rec.Doomed, rec.CarryFrom)
	rec.CarryFrom = ""
	w.bump = true
	return e.commit(w.sandbox(copySandbox(rec)))
}

// doomed tells whether rec has instances to be removed before the next is made.
func doomed(rec *plan.Sandbox) bool {
	for _, id := range rec.Doomed {
		if id != rec.CarryFrom {
			return true
		}
	}
	return false
}

// sweep removes what earlier steps could not, unless somebody else is at the
// sandbox.
func (e *actor) sweep(ctx context.Context, address string) error {
	release, holder := e.lanes.try(address, "remove", e.by)
	if holder != nil {
		return nil
	}
	defer release()
	rec, ok := e.sandbox(address)
	if !ok || !doomed(rec) {
		return nil
	}
	return e.removeLate(ctx, rec)
}

// removeLate is removeDoomed on its own, not as the first part of a create: when
// it works nothing is failing any more.
func (e *actor) removeLate(ctx context.Context, rec *plan.Sandbox) error {
	if err := e.removeDoomed(ctx, rec); err != nil {
		return err
	}
	if rec.Instance == nil || rec.Retry.Error == "" {
		return nil
	}
	worked(rec)
	return e.commit((&write{}).sandbox(copySandbox(rec)))
}

// removeDoomed removes all doomed instances except the one whose layer is still
// to be carried over, each within the grace.
func (e *actor) removeDoomed(ctx context.Context, rec *plan.Sandbox) error {
	in, err := e.begin(intent(opRemove, rec), (&write{}).sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	return e.removeAll(ctx, in, rec, rec.CarryFrom, graceOf(&rec.Spec))
}

func (e *actor) removeAll(ctx context.Context, in *Intent, rec *plan.Sandbox, keep string, grace time.Duration) error {
	var kept []string
	var failed []error
	for _, id := range rec.Doomed {
		if id == keep {
			kept = append(kept, id)
			continue
		}
		if err := e.takeDown(ctx, id, grace); err != nil {
			kept = append(kept, id)
			failed = append(failed, fmt.Errorf("cannot remove instance %s of %s: %w", id, rec.Address, err))
			continue
		}
		e.log.Info("removed an old instance", "address", rec.Address, "instance", id, "by", e.by)
	}
	rec.Doomed = kept
	if len(failed) > 0 {
		return e.stepFailed(rec, in, errors.Join(failed...), nil)
	}
	return e.end(in, (&write{}).sandbox(copySandbox(rec)))
}

// takeDown stops an instance within its grace and removes all of it.
func (e *actor) takeDown(ctx context.Context, id string, grace time.Duration) error {
	if grace > 0 {
		if _, err := e.host.Stop(ctx, id, runtime.StopOptions{Grace: grace}); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
	}
	e.forgetNote(id)
	return e.host.Remove(ctx, id)
}

// delete ends the sandbox: instance, claims, record, in this order.
func (e *actor) delete(ctx context.Context, rec *plan.Sandbox, reason string, w *write) error {
	if w == nil {
		w = &write{}
	}
	begun := intent(opDelete, rec)
	begun.Why = reason
	in, err := e.begin(begun, w.sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	return e.destroyAll(ctx, in, rec, graceOf(&rec.Spec))
}

// destroyAll is delete once its intent is durable. When it fails only this try is
// over: the plan deletes again while the record stands.
func (e *actor) destroyAll(ctx context.Context, in *Intent, rec *plan.Sandbox, grace time.Duration) error {
	fail := func(err error) error {
		return e.stepFailed(rec, in, fmt.Errorf("cannot destroy %s: %w", rec.Address, err), nil)
	}
	ids := rec.Past()
	if rec.Instance != nil {
		ids = append([]string{rec.Instance.ID}, ids...)
	}
	for _, id := range ids {
		if err := e.takeDown(ctx, id, grace); err != nil {
			return fail(err)
		}
	}
	for _, name := range sortedKeys(rec.Claim) {
		if err := e.host.RemoveVolume(ctx, rec.Claim[name]); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return fail(fmt.Errorf("volume %q: %w", name, err))
		}
	}
	w := &write{bump: true}
	set(&w.sandboxes, rec.Address, nil)
	set(&w.ended, rec.Address, ending(rec, in.Why, e.now()))
	return e.end(in, w.event(e.eventOf(rec, "destroyed", in.Why, "")))
}

// ending is what stays of a sandbox that expired or was lost; nil for one that
// somebody destroyed: nothing stays then.
func ending(rec *plan.Sandbox, why string, now time.Time) *plan.Ended {
	switch why {
	case "ttl_expiry", "shutdown_time", "lost":
	default:
		return nil
	}
	end := &plan.Ended{
		Address: rec.Address, UID: rec.UID, Reason: why, At: now,
		ShutdownTime: rec.Spec.ShutdownTime, TTL: rec.Spec.Lifetime.TTL,
	}
	if rec.Expired != nil {
		end.Deadline = rec.Expired.Deadline
	}
	if rec.Instance != nil {
		end.Instance, end.Outcome = rec.Instance.ID, rec.Instance.Outcome
	}
	return end
}

// expire acts on a deadline that passed: first the fact becomes durable, then
// the process is frozen or goes, and with it, when the policy says so, everything.
func (e *actor) expire(ctx context.Context, rec *plan.Sandbox, c plan.Change) error {
	now := e.now()
	at, reason, dated := plan.Deadline(&rec.Spec, rec.Lease)
	if ex := rec.Expired; ex != nil && ex.Paused && !(dated && !now.Before(at)) {
		at, reason, dated = ex.Deadline, ex.Reason, true // pausing took its deadline away
	}
	if dated && at.After(now) && (rec.Expired == nil || at.After(rec.Expired.Deadline)) {
		return nil // renewed between the look and the lock
	}
	if !dated {
		return nil // its deadline was removed
	}
	if c.Then != "paused" {
		plan.EndPause(rec)
	}
	if rec.Expired == nil || at.After(rec.Expired.Deadline) {
		rec.Retry = plan.Retry{}
		rec.Expired = &plan.Expired{Deadline: at, Reason: reason, At: now}
		rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true, Alive: live(rec)}, true, now)
		w := &write{bump: true}
		w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "expired", tombstone(rec.Expired), "deadline "+at.UTC().Format(time.RFC3339Nano)))
		if err := e.commit(w); err != nil {
			return err
		}
	}
	if c.Then == "paused" && rec.Spec.ShutdownPolicy == "pause" && (phaseOf(rec) == plan.Running || phaseOf(rec) == plan.Paused) {
		return e.restExpired(ctx, rec, c.Hold)
	}
	if rec.Spec.ShutdownPolicy == "delete" {
		return e.delete(ctx, rec, tombstone(rec.Expired), nil)
	}
	if live(rec) {
		return e.stop(ctx, rec, plan.ByExpiry, nil)
	}
	rec.Expired.Done = true
	worked(rec)
	rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true}, true, now)
	return e.commit((&write{}).sandbox(copySandbox(rec)))
}

// restExpired freezes a sandbox instead of ending it, under the given hold, or
// the one there is when that is nil. Its lease has no end until it is resumed.
func (e *actor) restExpired(ctx context.Context, rec *plan.Sandbox, hold *plan.Hold) error {
	now := e.now()
	rec.Lease = rec.Lease.OnExpiry(&rec.Spec, rec.Expired.Deadline, now)
	rec.Expired.Paused, rec.Expired.Done = true, true
	w := &write{bump: true}
	if hold != nil {
		rec.Hold = hold
		ev := e.eventOf(rec, "held", hold.Mode, "expired")
		ev.By = hold.By
		w.event(ev)
	}
	if phaseOf(rec) == plan.Paused {
		rec.Conditions = plan.Conditions(rec, aliveSeen(rec, true), true, now)
		return e.commit(w.sandbox(copySandbox(rec)))
	}
	return e.pause(ctx, rec, w)
}

// claim gives rec ids for the volumes it claims and does not have yet, and
// returns all of them.
func (e *Engine) claim(rec *plan.Sandbox) []string {
	var ids []string
	if rec.Claim == nil {
		rec.Claim = map[string]string{}
	}
	for _, name := range sortedKeys(rec.Spec.Volumes) {
		if rec.Claim[name] == "" {
			rec.Claim[name] = newID(6)
		}
		ids = append(ids, rec.Claim[name])
	}
	return ids
}

func (e *Engine) makeClaims(ctx context.Context, ids []string) error {
	for _, id := range ids {
		if err := e.host.EnsureVolume(ctx, runtime.Volume{ID: id}); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) eventOf(rec *plan.Sandbox, typ, reason, message string) Event {
	ev := Event{At: e.now(), Address: rec.Address, UID: rec.UID, Type: typ, Reason: reason, Message: message}
	if rec.Instance != nil {
		ev.Instance = rec.Instance.ID
	}
	return ev
}
