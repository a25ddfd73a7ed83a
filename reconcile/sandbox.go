package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// The steps of a sandbox. Each takes a private copy of the record, journals,
// touches the host, and commits the changed record; after any crash the record
// and the host together say how to go on. The caller holds the sandbox's lane.

// create makes a new instance of rec and brings it to the mode then. rec may be
// new; it is recorded before the host is touched, with all that it reserves.
func (e *Engine) create(ctx context.Context, rec *plan.Sandbox, then string) error {
	if len(rec.Doomed) > 0 {
		if err := e.removeDoomed(ctx, rec, rec.CarryFrom); err != nil {
			return err
		}
	}
	if err := e.reserve(ctx, rec); err != nil {
		return e.createFailed(rec, "", err)
	}
	claims := e.claim(rec)
	id := newID(6)
	w := &write{bump: true}
	in, err := e.begin(Intent{Op: opCreate, Kind: "sandbox", Address: rec.Address, UID: rec.UID, Instance: id}, w.sandbox(copySandbox(rec)))
	if err != nil {
		e.release(rec.Address)
		return err
	}
	inst, err := e.instanceOf(rec, id)
	if err == nil {
		err = e.makeClaims(ctx, claims)
	}
	var proc runtime.Process
	if err == nil {
		proc, err = e.host.Create(ctx, inst)
		failpoint("host.create.after")
	}
	if err != nil {
		if undo := e.undoCreate(ctx, in, rec); undo != nil {
			err = errors.Join(err, undo)
		}
		return e.createFailed(rec, id, err)
	}
	now := e.now()
	rec.Instance = &plan.Instance{
		ID: id, Phase: plan.Created, CreatedAt: now, RunningSpec: rec.Generation,
		PID: proc.PID, StartTime: proc.StartTime, BootID: proc.BootID,
	}
	if rec.Lease.Start.IsZero() {
		rec.Lease = plan.StartLease(&rec.Spec, now)
	}
	if rec.CarryFrom != "" {
		rec.Doomed = appendOnce(rec.Doomed, rec.CarryFrom)
		rec.CarryFrom = ""
	}
	if then == "created" && rec.Hold == nil {
		rec.Hold = &plan.Hold{Mode: "created", By: e.by, At: now, Reason: "-no-start"}
	}
	w = &write{bump: true}
	w.event(e.eventOf(rec, "create", "created", ""))
	if err := e.end(in, w.sandbox(copySandbox(rec))); err != nil {
		return err
	}
	if len(rec.Doomed) > 0 {
		if err := e.removeDoomed(ctx, rec, ""); err != nil {
			return err
		}
	}
	return e.bringTo(ctx, rec, then, true)
}

// createFailed records why, and either when to try again or, after
// start_timeout, that nobody should. tried is the instance that did not come up.
func (e *Engine) createFailed(rec *plan.Sandbox, tried string, err error) error {
	now := e.now()
	rec.Retry = plan.Backoff(rec.Retry, 0, now, rand.Float64(), err.Error())
	ev := e.eventOf(rec, "error", "create failed", err.Error())
	if tried != "" && plan.GiveUp(rec.Retry, &rec.Spec, now) {
		rec.Instance = &plan.Instance{ID: tried, Phase: plan.Failed, CreatedAt: now, FailReason: "provision_timeout"}
		ev = e.eventOf(rec, "failed", "provision_timeout", err.Error())
	}
	rec.Conditions = plan.Conditions(rec, plan.Seen{}, true, now)
	w := &write{}
	if commit := e.commit(w.sandbox(copySandbox(rec)).event(ev)); commit != nil {
		return errors.Join(err, commit)
	}
	return err
}

// bringTo takes an instance that is created or stopped to a mode: created,
// running, paused or suspended. fresh: the instance was made just now, and goes
// again if its command cannot be started.
func (e *Engine) bringTo(ctx context.Context, rec *plan.Sandbox, mode string, fresh bool) error {
	switch mode {
	case "created":
		return nil
	case "suspended":
		return e.stop(ctx, rec, "suspend")
	case "paused":
		if err := e.start(ctx, rec, fresh); err != nil {
			return err
		}
		return e.pause(ctx, rec)
	default:
		return e.start(ctx, rec, fresh)
	}
}

// start runs the command: at once in a created instance, after making a stopped
// one ready again on the same files.
func (e *Engine) start(ctx context.Context, rec *plan.Sandbox, fresh bool) error {
	inst := rec.Instance
	if inst.Phase == plan.Stopped {
		if err := e.reserve(ctx, rec); err != nil {
			return e.startFailed(ctx, rec, false, err)
		}
	}
	w := &write{}
	in, err := e.begin(Intent{Op: opStart, Kind: "sandbox", Address: rec.Address, UID: rec.UID, Instance: inst.ID}, w.sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	if inst.Phase == plan.Stopped {
		var made runtime.Instance
		made, err = e.instanceOf(rec, inst.ID)
		if err == nil {
			var proc runtime.Process
			proc, err = e.host.Create(ctx, made)
			failpoint("host.recreate.after")
			inst.PID, inst.StartTime, inst.BootID = proc.PID, proc.StartTime, proc.BootID
			inst.RunningSpec = rec.Generation
		}
	}
	if err == nil {
		err = e.host.Start(ctx, inst.ID)
		failpoint("host.start.after")
	}
	if err != nil {
		if end := e.end(in, nil); end != nil {
			return errors.Join(err, end)
		}
		return e.startFailed(ctx, rec, fresh, err)
	}
	now := e.now()
	if inst.StoppedBy == plan.ByKilled {
		rec.Retry = plan.Backoff(rec.Retry, upTime(inst), now, rand.Float64(), "")
	} else if rec.Retry.Error != "" || !fresh {
		rec.Retry = plan.Retry{} // it came up; a recreated one keeps its series
	}
	inst.Phase, inst.StartedAt, inst.Outcome, inst.StoppedBy, inst.OOMKills = plan.Running, now, nil, "", 0
	rec.Conditions = plan.Conditions(rec, aliveSeen(rec, false), true, now)
	w = &write{bump: true}
	return e.end(in, w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "start", "started", "")))
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
// again, one with a past is stopped and keeps its files.
func (e *Engine) startFailed(ctx context.Context, rec *plan.Sandbox, fresh bool, cause error) error {
	inst := rec.Instance
	cause = fmt.Errorf("cannot start %s: %w", rec.Address, cause)
	if fresh {
		rec.Instance = nil
		rec.Doomed = appendOnce(rec.Doomed, inst.ID)
		if err := e.removeDoomed(ctx, rec, ""); err != nil {
			return errors.Join(cause, err)
		}
		return e.createFailed(rec, inst.ID, cause)
	}
	if _, err := e.host.Stop(ctx, inst.ID, runtime.StopOptions{}); err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return errors.Join(cause, err)
	}
	now := e.now()
	rec.Retry = plan.Backoff(rec.Retry, 0, now, rand.Float64(), cause.Error())
	inst.Phase, inst.PID, inst.StartTime = plan.Stopped, 0, 0
	if inst.StoppedBy == "" || inst.StoppedBy == "exit" {
		inst.StoppedBy = "start_failed"
	}
	if plan.GiveUp(rec.Retry, &rec.Spec, now) {
		inst.Phase, inst.FailReason = plan.Failed, "provision_timeout"
	}
	rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true}, true, now)
	w := &write{bump: true}
	if err := e.commit(w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "error", "start failed", cause.Error()))); err != nil {
		return errors.Join(cause, err)
	}
	return cause
}

func (e *Engine) pause(ctx context.Context, rec *plan.Sandbox) error {
	return e.freezer(ctx, rec, opPause, e.host.Pause, plan.Paused)
}

func (e *Engine) resume(ctx context.Context, rec *plan.Sandbox) error {
	return e.freezer(ctx, rec, opResume, e.host.Resume, plan.Running)
}

func (e *Engine) freezer(ctx context.Context, rec *plan.Sandbox, op Op, act func(context.Context, string) error, phase plan.Phase) error {
	in, err := e.begin(Intent{Op: op, Kind: "sandbox", Address: rec.Address, UID: rec.UID, Instance: rec.Instance.ID}, (&write{}).sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	if err := act(ctx, rec.Instance.ID); err != nil {
		err = fmt.Errorf("cannot %s %s: %w", op, rec.Address, err)
		return errors.Join(err, e.end(in, nil))
	}
	failpoint("host." + string(op) + ".after")
	rec.Instance.Phase = phase
	rec.Conditions = plan.Conditions(rec, aliveSeen(rec, phase == plan.Paused), true, e.now())
	w := &write{bump: true}
	return e.end(in, w.sandbox(copySandbox(rec)).event(e.eventOf(rec, string(op), string(phase), "")))
}

// stop takes the process down and leaves files and outcome. why becomes
// stopped_by: stop, suspend, expiry, restart.
func (e *Engine) stop(ctx context.Context, rec *plan.Sandbox, why string) error {
	w := &write{}
	in, err := e.begin(Intent{Op: opStop, Kind: "sandbox", Address: rec.Address, UID: rec.UID, Instance: rec.Instance.ID, Why: why}, w.sandbox(copySandbox(rec)))
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

func (e *Engine) finishStop(ctx context.Context, in *Intent, rec *plan.Sandbox, grace time.Duration) error {
	out, err := e.host.Stop(ctx, rec.Instance.ID, runtime.StopOptions{Grace: grace})
	failpoint("host.stop.after")
	if err != nil && !errors.Is(err, runtime.ErrNotFound) {
		// The intent stays open on purpose: what began to stop goes on stopping.
		return e.stepFailed(rec, fmt.Errorf("cannot stop %s: %w", rec.Address, err))
	}
	now := e.now()
	i := rec.Instance
	if i.Phase != plan.Stopped {
		i.Outcome = outcomeOf(out, stopReason(rec, in.Why))
		if i.Outcome == nil {
			i.Outcome = &plan.Outcome{ExitCode: 137, Signal: 9, Reason: stopReason(rec, in.Why), At: now}
			if i.StartedAt.IsZero() {
				i.Outcome = nil // never ran
			}
		}
	}
	i.Phase, i.PID, i.StartTime, i.StoppedBy = plan.Stopped, 0, 0, in.Why
	if in.Why == "expiry" && rec.Expired != nil {
		rec.Expired.Done = true
	}
	rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true}, true, now)
	w := &write{bump: true}
	return e.end(in, w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "stop", stopReason(rec, in.Why), "")))
}

func stopReason(rec *plan.Sandbox, why string) string {
	switch why {
	case "suspend":
		return "suspended"
	case "expiry":
		return tombstone(rec.Expired)
	case "restart":
		return "restarted"
	default:
		return "stopped"
	}
}

// tombstone is the reason that stays of an expiry.
func tombstone(x *plan.Expired) string {
	if x == nil {
		return "shutdown_time"
	}
	return plan.EndReason(x.Reason)
}

// stepFailed records an error that the next pass will meet again, and returns it.
func (e *Engine) stepFailed(rec *plan.Sandbox, err error) error {
	cur, ok := e.sandbox(rec.Address)
	if !ok {
		return err
	}
	cur.Retry = plan.Backoff(cur.Retry, 0, e.now(), rand.Float64(), err.Error())
	w := &write{}
	return errors.Join(err, e.commit(w.sandbox(cur).event(e.eventOf(rec, "error", "step failed", err.Error()))))
}

// restart gives the instance a new process on the same files.
func (e *Engine) restart(ctx context.Context, rec *plan.Sandbox, then string) error {
	if live(rec) {
		if err := e.stop(ctx, rec, "restart"); err != nil {
			return err
		}
	}
	return e.bringTo(ctx, rec, then, false)
}

func live(rec *plan.Sandbox) bool {
	if rec.Instance == nil {
		return false
	}
	switch rec.Instance.Phase {
	case plan.Created, plan.Running, plan.Paused:
		return true
	}
	return false
}

// detach makes the instance doomed and removes it: the sandbox is pending, and
// keeps uid, lease, hold, address, ports, id range and claims.
func (e *Engine) detach(ctx context.Context, rec *plan.Sandbox, why string) error {
	if rec.Instance == nil {
		return nil
	}
	rec.Doomed = appendOnce(rec.Doomed, rec.Instance.ID)
	rec.Instance = nil
	w := &write{bump: true}
	if err := e.commit(w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "destroyed", why, ""))); err != nil {
		return err
	}
	return e.removeDoomed(ctx, rec, "")
}

// removeDoomed removes all doomed instances except keep, gracefully.
func (e *Engine) removeDoomed(ctx context.Context, rec *plan.Sandbox, keep string) error {
	in, err := e.begin(Intent{Op: opRemove, Kind: "sandbox", Address: rec.Address, UID: rec.UID}, (&write{}).sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	return e.removeAll(ctx, in, rec, keep, graceOf(&rec.Spec))
}

// finishRemove is removeDoomed after a crash: nothing is waited for.
func (e *Engine) finishRemove(ctx context.Context, in *Intent, rec *plan.Sandbox) error {
	return e.removeAll(ctx, in, rec, rec.CarryFrom, 0)
}

func (e *Engine) removeAll(ctx context.Context, in *Intent, rec *plan.Sandbox, keep string, grace time.Duration) error {
	var kept []string
	for _, id := range rec.Doomed {
		if id == keep {
			kept = append(kept, id)
			continue
		}
		if err := e.takeDown(ctx, id, grace); err != nil {
			return errors.Join(e.stepFailed(rec, fmt.Errorf("cannot remove instance %s of %s: %w", id, rec.Address, err)), e.end(in, nil))
		}
	}
	rec.Doomed = kept
	return e.end(in, (&write{}).sandbox(copySandbox(rec)))
}

// takeDown stops an instance within its grace and removes all of it.
func (e *Engine) takeDown(ctx context.Context, id string, grace time.Duration) error {
	if grace > 0 {
		if _, err := e.host.Stop(ctx, id, runtime.StopOptions{Grace: grace}); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
		failpoint("host.stop.after")
	}
	err := e.host.Remove(ctx, id)
	failpoint("host.remove.after")
	return err
}

// delete ends the sandbox: instance, claims, record, in this order.
func (e *Engine) delete(ctx context.Context, rec *plan.Sandbox, reason string) error {
	in, err := e.begin(Intent{Op: opDelete, Kind: "sandbox", Address: rec.Address, UID: rec.UID, Why: reason}, (&write{}).sandbox(copySandbox(rec)))
	if err != nil {
		return err
	}
	return e.destroyAll(ctx, in, rec, graceOf(&rec.Spec))
}

func (e *Engine) finishDelete(ctx context.Context, in *Intent, rec *plan.Sandbox) error {
	return e.destroyAll(ctx, in, rec, 0)
}

func (e *Engine) destroyAll(ctx context.Context, in *Intent, rec *plan.Sandbox, grace time.Duration) error {
	fail := func(err error) error {
		// Only this try is over: the plan deletes again while the record stands.
		return errors.Join(e.stepFailed(rec, fmt.Errorf("cannot destroy %s: %w", rec.Address, err)), e.end(in, nil))
	}
	ids := rec.Doomed
	if rec.Instance != nil {
		ids = append([]string{rec.Instance.ID}, ids...)
	}
	if rec.CarryFrom != "" {
		ids = appendOnce(ids, rec.CarryFrom)
	}
	var out *plan.Outcome
	for _, id := range ids {
		if err := e.takeDown(ctx, id, grace); err != nil {
			return fail(err)
		}
	}
	for _, name := range sortedKeys(rec.Claim) {
		if err := e.host.RemoveVolume(ctx, rec.Claim[name]); err != nil {
			return fail(fmt.Errorf("volume %q: %w", name, err))
		}
		failpoint("host.removevolume.after")
	}
	w := &write{bump: true}
	set(&w.sandboxes, rec.Address, nil)
	switch in.Why {
	case "ttl_expiry", "shutdown_time", "lost":
		end := &plan.Ended{
			Address: rec.Address, UID: rec.UID, Reason: in.Why, At: e.now(),
			ShutdownTime: rec.Spec.ShutdownTime, TTL: rec.Spec.Lifetime.TTL, Outcome: out,
		}
		if rec.Expired != nil {
			end.Deadline = rec.Expired.Deadline
		}
		if rec.Instance != nil {
			end.Instance = rec.Instance.ID
			end.Outcome = rec.Instance.Outcome
		}
		set(&w.ended, rec.Address, end)
	default:
		set(&w.ended, rec.Address, nil)
	}
	return e.end(in, w.event(e.eventOf(rec, "destroyed", in.Why, "")))
}

// expire acts on a deadline that passed: first the fact becomes durable, then
// the process goes, and with it, when the policy says so, everything.
func (e *Engine) expire(ctx context.Context, rec *plan.Sandbox, deadline time.Time) error {
	now := e.now()
	at, reason, due := plan.Deadline(&rec.Spec, rec.Lease)
	if rec.Expired == nil || !rec.Expired.Deadline.Equal(at) {
		if !due || at.After(now) {
			return nil // renewed between the look and the lock
		}
		rec.Expired = &plan.Expired{Deadline: at, Reason: reason, At: now}
		rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true, Alive: live(rec)}, true, now)
		w := &write{bump: true}
		if err := e.commit(w.sandbox(copySandbox(rec)).event(e.eventOf(rec, "expired", tombstone(rec.Expired), deadline.Format(time.RFC3339Nano)))); err != nil {
			return err
		}
		failpoint("expire.recorded")
	}
	if rec.Spec.ShutdownPolicy == "delete" {
		return e.delete(ctx, rec, tombstone(rec.Expired))
	}
	if live(rec) {
		return e.stop(ctx, rec, "expiry")
	}
	rec.Expired.Done = true
	rec.Conditions = plan.Conditions(rec, plan.Seen{UID: rec.UID, Layer: true}, true, now)
	return e.commit((&write{}).sandbox(copySandbox(rec)))
}

// claim gives rec ids for the volumes it claims and does not have yet.
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
		failpoint("host.ensurevolume.after")
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
