package plan

import (
	"time"

	"pinfold/config"
)

// Reasons of condition Expired and of Expired.Reason.
const (
	TTLExpiry    = "TTLExpiry"
	ShutdownTime = "ShutdownTime"
)

// EndReason is the tombstone's word for a reason of condition Expired.
func EndReason(expired string) string {
	if expired == TTLExpiry {
		return "ttl_expiry"
	}
	return "shutdown_time"
}

// StartLease is the lease of a sandbox whose first instance, or whose
// replacement ordered by the user, became `created` at the given instant.
func StartLease(spec *config.Sandbox, at time.Time) Lease {
	return Lease{Start: at}.WithTTL(spec.Lifetime.TTL)
}

// WithTTL is the lease after ttl was edited: its start plus the new ttl, with
// renewals dropped. The same ttl changes nothing, so that renewals stay. A lease
// that has not started takes nothing over: it will at its start.
func (l Lease) WithTTL(ttl config.Duration) Lease {
	if l.TTL == ttl || l.Start.IsZero() {
		return l
	}
	n := Lease{Start: l.Start, TTL: ttl}
	if ttl > 0 {
		n.Until = l.Start.Add(time.Duration(ttl))
	}
	return n
}

// Deadline is the instant at which the sandbox ends, the earlier of its
// shutdown_time and its lease, and which of the two it is (ShutdownTime when
// they are equal); ok is false when it has none.
func Deadline(spec *config.Sandbox, l Lease) (t time.Time, reason string, ok bool) {
	switch {
	case spec.ShutdownTime.IsZero() && l.Until.IsZero():
		return time.Time{}, "", false
	case spec.ShutdownTime.IsZero(), !l.Until.IsZero() && l.Until.Before(spec.ShutdownTime):
		return l.Until, TTLExpiry, true
	}
	return spec.ShutdownTime, ShutdownTime, true
}

// EffectiveMode is the mode the sandbox is to be in: ended by expiry, else its
// hold's, else the declared one. An ended one is suspended.
func EffectiveMode(s *Sandbox) (mode string, ended bool) {
	return effectiveMode(s.Expired != nil, s.Hold, &s.Spec)
}

func effectiveMode(ended bool, hold *Hold, spec *config.Sandbox) (string, bool) {
	switch {
	case ended:
		return "suspended", true
	case hold != nil:
		return hold.Mode, false
	case spec.OperatingMode == "":
		return "running", false
	}
	return spec.OperatingMode, false
}
