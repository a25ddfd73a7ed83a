package plan

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Types lists the conditions in the order in which they are kept.
var Types = []string{"Ready", "Suspended", "Paused", "Expired", "Finished", "Drifted"}

// Conditions gives the six conditions of a sandbox whose record already says
// its phase. seen is the last look at its instance; known is false when it
// could not be looked at. Since is taken over from the record unless the status
// flips.
func Conditions(s *Sandbox, seen Seen, known bool, now time.Time) []Condition {
	st := Status{Phase: s.phase()}
	if s.Instance != nil {
		st.StoppedBy, st.Outcome = s.Instance.StoppedBy, s.Instance.Outcome
	}
	return conditions(s, &st, seen, known, now)
}

func conditions(s *Sandbox, st *Status, seen Seen, known bool, now time.Time) []Condition {
	mode, ended := EffectiveMode(s)
	out := [...]Condition{
		ready(s, st, &seen, known, mode, ended),
		suspended(st, &seen, known, mode, ended),
		paused(s, st, known),
		expired(s),
		finished(st),
		drifted(s, st, &seen, known, mode, ended),
	}
	for i := range out {
		c := &out[i]
		c.Generation, c.Since = s.Generation, now
		if i < len(s.Conditions) && s.Conditions[i].Type == c.Type {
			if s.Conditions[i].Status == c.Status {
				c.Since = s.Conditions[i].Since
			}
		} else if j := slices.IndexFunc(s.Conditions, func(o Condition) bool { return o.Type == c.Type }); j >= 0 && s.Conditions[j].Status == c.Status {
			c.Since = s.Conditions[j].Since
		}
	}
	if slices.Equal(out[:], s.Conditions) {
		return s.Conditions
	}
	return slices.Clone(out[:])
}

func ready(s *Sandbox, st *Status, seen *Seen, known bool, mode string, ended bool) Condition {
	c := Condition{Type: "Ready", Status: "False"}
	switch {
	case !known:
		c.Status, c.Reason, c.Message = "Unknown", "Unknown", seen.Unknown
	case st.Phase == Lost:
		c.Reason, c.Message = "Lost", "its process is gone and left no outcome"
	case st.Phase == Failed:
		c.Reason = "Failed"
		if s.Instance != nil {
			c.Message = s.Instance.FailReason
		}
		if c.Message == "" {
			c.Message = s.Retry.Error
		}
	case ended:
		c.Reason = "Expired"
	case st.ownEnd():
		c.Reason, c.Message = "Exited", ending(st.Outcome)
	case st.Phase == Paused:
		c.Reason = "Paused"
	case mode == "suspended" && st.Phase == Stopped:
		c.Reason = "Suspended"
	case st.Phase != Running:
		c.Reason, c.Message = "Starting", s.Retry.Error
	case seen.Dying && !seen.Alive:
		c.Reason, c.Message = "Degraded", "its main process ended, others are still dying"
	case mode != "running":
		c.Reason, c.Message = "Degraded", "to be "+mode
	default:
		if lacking := without(seen.Missing, "limits"); len(lacking) > 0 {
			c.Reason, c.Message = "Degraded", strings.Join(lacking, ", ")+" missing"
		} else {
			c.Status, c.Reason, c.Message = healthy(s.Spec.Health != nil, seen.Health)
		}
	}
	return c
}

// healthy is Ready of a sandbox that runs as declared, by its health probe.
func healthy(probed bool, h *Health) (status, reason, message string) {
	switch {
	case !probed:
		return "True", "Running", ""
	case h == nil:
		return "Unknown", "Unknown", "nobody probes it: no agent runs"
	case h.Status == "failing":
		return "False", "Degraded", h.Message
	case h.Status == "passing":
		return "True", "Running", ""
	}
	return "False", "Starting", "its health probe has not passed yet"
}

func suspended(st *Status, seen *Seen, known bool, mode string, ended bool) Condition {
	c := Condition{Type: "Suspended", Status: "False", Reason: "NotSuspended"}
	wanted := mode == "suspended" && !ended
	switch {
	case !known:
		c.Status, c.Reason = "Unknown", "Unobservable"
	case !wanted:
	case st.Phase.live() || seen.Alive || seen.Dying:
		c.Reason = "Terminating"
	case st.Phase == Stopped && !st.ownEnd() && st.StoppedBy != ByExpiry:
		c.Status, c.Reason = "True", "Suspended"
	}
	return c
}

func paused(s *Sandbox, st *Status, known bool) Condition {
	c := Condition{Type: "Paused", Status: "False", Reason: "NotPaused"}
	switch {
	case !known:
		c.Status, c.Reason = "Unknown", "Unobservable"
	case st.Phase != Paused:
	case s.Hold != nil && s.Hold.Mode == "paused":
		c.Status, c.Reason = "True", "ByOperator"
		switch s.Hold.By {
		case "idle":
			c.Reason = "ByIdle"
		case "expiry":
			c.Reason = "ByExpiry"
		}
	case s.Spec.OperatingMode == "paused":
		c.Status, c.Reason = "True", "Declared"
	case s.Expired != nil && s.Expired.Paused:
		c.Status, c.Reason = "True", "ByExpiry"
	default:
		c.Status, c.Reason, c.Message = "True", "Outside", "frozen by something else than pinfold"
	}
	return c
}

func expired(s *Sandbox) Condition {
	if s.Expired == nil {
		return Condition{Type: "Expired", Status: "False", Reason: "NotExpired"}
	}
	return Condition{Type: "Expired", Status: "True", Reason: s.Expired.Reason, Message: "its deadline " + stamp(s.Expired.Deadline) + " passed"}
}

// finished speaks of the process's own end, which expiry does not undo. A kill
// from outside is none.
func finished(st *Status) Condition {
	c := Condition{Type: "Finished", Status: "False", Reason: "NotFinished"}
	if o := st.Outcome; o != nil && (st.Phase == Stopped || st.Phase == Failed) {
		switch {
		case o.Reason == "oom":
			c.Status, c.Reason = "True", "OOMKilled"
		case o.Reason == "exited" && o.ExitCode == 0:
			c.Status, c.Reason = "True", "Succeeded"
		case o.Reason == "exited", o.Reason == "signalled":
			c.Status, c.Reason, c.Message = "True", "Failed", ending(o)
		}
	}
	return c
}

func drifted(s *Sandbox, st *Status, seen *Seen, known bool, mode string, ended bool) Condition {
	c := Condition{Type: "Drifted", Status: "False", Reason: "InSync"}
	switch {
	case !known:
		c.Status, c.Reason = "Unknown", "Unobservable"
	case st.Phase == Lost && s.Spec.Lifetime.OnLost != "retain":
		c.Status, c.Reason = "True", "Lost"
	case st.Phase == Stopped && st.StoppedBy == ByKilled && !ended && mode != "suspended":
		c.Status, c.Reason, c.Message = "True", "Killed", ending(st.Outcome)
	case st.Phase.live() && len(seen.Missing) > 0:
		c.Status, c.Message = "True", strings.Join(seen.Missing, ", ")+" missing"
		for _, m := range seen.Missing {
			if m != "" {
				c.Reason = strings.ToUpper(m[:1]) + m[1:] + "Missing"
				break
			}
		}
		if c.Reason == "InSync" {
			c.Reason = "Missing"
		}
	case st.Phase == Running && mode == "paused":
		c.Status, c.Reason = "True", "NotFrozen"
	case st.Phase == Paused && mode == "running":
		c.Status, c.Reason = "True", "PausedOutside"
	}
	return c
}

// ending words an outcome.
func ending(o *Outcome) string {
	switch {
	case o == nil:
		return "ended, how is not known"
	case o.Reason == "oom":
		return "killed by the kernel: out of memory"
	case o.Reason == "killed" && o.Outside != 0 && o.Signal == 0:
		return "exited with code " + strconv.Itoa(o.ExitCode) + " after signal " + strconv.Itoa(o.Outside) + " from outside"
	case o.Signal != 0:
		return "ended by signal " + strconv.Itoa(o.Signal)
	}
	return "exited with code " + strconv.Itoa(o.ExitCode)
}

func without(list []string, drop string) []string {
	if !slices.Contains(list, drop) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == drop })
}
