package plan

import (
	"slices"
	"time"
)

// Why an instance is stopped (Instance.StoppedBy).
const (
	ByExit    = "exit"
	ByStop    = "stop"
	BySuspend = "suspend"
	ByExpiry  = "expiry"
	ByKilled  = "killed"
	ByOOM     = "oom"
)

const sigkill = 9

// StatusOf says what is now true of a sandbox: its phase, outcome and
// conditions, from the record and one look at its instance. present is false
// when the host knows nothing of the instance. Lost is a recorded live instance
// whose PID 1 is gone without an outcome; one that could not be looked at keeps
// its last phase.
func StatusOf(rec *Sandbox, seen Seen, present bool, bootID string, now time.Time) Status {
	known := !present || seen.Unknown == ""
	st := lookedAt(rec, seen, present)
	st.Conditions = conditions(rec, &st, seen, known, now)
	return st
}

// lookedAt is StatusOf without the conditions.
func lookedAt(rec *Sandbox, seen Seen, present bool) Status {
	was := rec.phase()
	st := Status{Phase: was}
	inst := rec.Instance
	if inst == nil {
		return st
	}
	st.StoppedBy, st.Outcome, st.PID, st.StartTime = inst.StoppedBy, inst.Outcome, inst.PID, inst.StartTime
	switch {
	case present && seen.Unknown != "", was == Failed, was == Lost:
		return st
	case present && seen.Alive:
		st.PID, st.StartTime = seen.PID, seen.StartTime
		st.StoppedBy, st.Outcome = "", nil
		switch {
		case seen.Frozen:
			st.Phase = Paused
		case seen.Started:
			st.Phase = Running
		default:
			st.Phase = Created
		}
		return st
	case present && seen.Dying, !was.live():
		return st
	}
	st.PID, st.StartTime = 0, 0
	st.Phase = Stopped
	oom := present && seen.OOMKills > inst.OOMKills
	switch o := seen.Outcome; {
	case present && o != nil:
		end := *o
		end.OOM = end.OOM || oom
		switch {
		case end.OOM && (end.Signal == sigkill || end.ExitCode == 128+sigkill):
			st.StoppedBy, end.Reason = ByOOM, "oom"
		case end.Signal == sigkill, end.Outside != 0:
			st.StoppedBy, end.Reason = killed(rec)
			if st.StoppedBy == ByKilled && end.Signal == sigkill && end.Outside == sigkill {
				// PID 1 was asked to: nobody else can bring SIGKILL to it from outside.
				st.StoppedBy, end.Reason = ByExit, "signalled"
			}
		case end.Signal != 0:
			st.StoppedBy, end.Reason = ByExit, "signalled"
		default:
			st.StoppedBy, end.Reason = ByExit, "exited"
		}
		st.Outcome = &end
	case oom:
		st.StoppedBy = ByOOM
		st.Outcome = &Outcome{ExitCode: 128 + sigkill, Signal: sigkill, OOM: true, Reason: "oom"}
	default:
		// One that is to have no process was being taken down when it went.
		st.Outcome = nil
		if st.StoppedBy, _ = killed(rec); st.StoppedBy == ByKilled {
			st.Phase, st.StoppedBy = Lost, ""
		}
	}
	return st
}

// killed says what a signal from outside was for. A sandbox that is to have no
// process, by its record, is just being stopped.
func killed(rec *Sandbox) (stoppedBy, reason string) {
	switch mode, ended := EffectiveMode(rec); {
	case ended:
		return ByExpiry, EndReason(rec.Expired.Reason)
	case mode != "suspended":
		return ByKilled, "killed"
	case rec.Hold != nil && rec.Hold.By == "operator":
		return ByStop, "stopped"
	}
	return BySuspend, "suspended"
}

// Differs reports whether the record of a sandbox says something else than st.
func Differs(rec *Sandbox, st *Status) bool {
	if i := rec.Instance; i != nil {
		if i.Phase != st.Phase || i.StoppedBy != st.StoppedBy || (st.Outcome != nil && i.Outcome == nil) ||
			(st.Rebind != "" && st.Rebind != i.ID) || (st.Phase.live() && st.PID != 0 && (st.PID != i.PID || st.StartTime != i.StartTime)) {
			return true
		}
	}
	return st.Conditions != nil && !slices.Equal(rec.Conditions, st.Conditions)
}

// ownEnd reports whether the process ended by itself: no drift, and nothing is
// started again without being asked to.
func (st *Status) ownEnd() bool {
	return st.Phase == Stopped && (st.StoppedBy == ByExit || st.StoppedBy == ByOOM)
}
