package plan

import (
	"cmp"
	"time"

	"pinfold/config"
)

// renewMinInterval is lifetime.renew_min_interval's default.
const renewMinInterval = time.Minute

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

// Anew is the lease of a sandbox whose instance was replaced by the user's order
// and became created at the given instant: a new ttl starts. A shutdown_time that
// was acted on stays so.
func (l Lease) Anew(spec *config.Sandbox, at time.Time) Lease {
	n := StartLease(spec, at)
	n.ActedOn = l.ActedOn
	return n
}

// WithTTL is the lease after ttl was edited: its start plus the new ttl, with
// renewals dropped. The same ttl changes nothing, so that renewals stay. A lease
// that has not started takes nothing over: it will at its start. One that pausing
// stopped stays stopped.
func (l Lease) WithTTL(ttl config.Duration) Lease {
	if l.TTL == ttl || l.Start.IsZero() {
		return l
	}
	n := Lease{Start: l.Start, TTL: ttl, ActedOn: l.ActedOn}
	if ttl > 0 {
		n.Until = l.Start.Add(time.Duration(ttl))
	}
	if l.stopped() {
		n.Until, n.EndedAt = time.Time{}, n.Until
	}
	return n
}

// stopped reports whether pausing took its end away.
func (l Lease) stopped() bool { return l.Until.IsZero() && !l.EndedAt.IsZero() }

// running is the lease as if pausing had not stopped it.
func (l Lease) running() Lease {
	if l.stopped() {
		l.Until = l.EndedAt
	}
	l.EndedAt = time.Time{}
	return l
}

// unpaused is the lease as if no expiry had paused the sandbox.
func (l Lease) unpaused() Lease {
	l = l.running()
	l.ActedOn = time.Time{}
	return l
}

// OnPause is the lease of a sandbox that was frozen just now, by whomever: with
// lifetime.clock "running" it has no end until the sandbox is resumed.
func (l Lease) OnPause(spec *config.Sandbox) Lease {
	if spec.Lifetime.Clock == "running" && !l.Until.IsZero() {
		l.Until, l.EndedAt = time.Time{}, l.Until
	}
	return l
}

// OnExpiry is the lease of a sandbox that was frozen, instead of stopped, when its
// deadline passed: it has no end until the sandbox is resumed, and a shutdown_time
// that has passed, by that deadline or by now, ends it no second time.
func (l Lease) OnExpiry(spec *config.Sandbox, deadline, now time.Time) Lease {
	if !l.Until.IsZero() {
		l.Until, l.EndedAt = time.Time{}, l.Until
	}
	if t := spec.ShutdownTime; !t.IsZero() && !latest(deadline, now).Before(t) {
		l.ActedOn = t
	}
	return l
}

// OnResume is the lease of a sandbox that is thawed or started at now out of a
// hold: by an operator, with timeout or without (nil), or by an access. max is
// the host's max_lifetime, 0 for none. A lease that pausing stopped ends at now
// plus timeout, else lifetime.renew_on_access, else lifetime.ttl, the latter two
// clipped to max; any other is moved by timeout alone. A *Refusal says why not;
// after an expiry by pause it asks for -timeout where neither of the three is
// given. The caller clears such an expiry and its hold.
func (l Lease) OnResume(rec *Sandbox, timeout *time.Duration, now time.Time, max time.Duration) (Lease, error) {
	byExpiry := rec.Expired != nil && rec.Expired.Paused
	ask := Renewal{Form: RenewResume}
	if timeout != nil {
		if *timeout <= 0 {
			return l, refusal(rec, "-timeout %s is no time ahead; use stop or destroy to end it now", *timeout)
		}
		ask.For = *timeout
	}
	if byExpiry {
		woken := *rec
		woken.Expired = nil
		rec = &woken
	}
	n, err := renew(rec, l, ask, now, max)
	if err != nil {
		return l, err
	}
	if timeout == nil && (l.stopped() || (byExpiry && l.Until.IsZero())) {
		life := &rec.Spec.Lifetime
		d := time.Duration(cmp.Or(life.RenewOnAccess, life.TTL))
		switch {
		case d > 0 && max > 0:
			n.Until, n.Renewed = now.Add(min(d, max)), true
		case d > 0:
			n.Until, n.Renewed = now.Add(d), true
		case byExpiry:
			return l, refusal(rec, "it expired, and nothing says how long it is to live now; resume with -timeout D does")
		}
	}
	n.EndedAt = time.Time{}
	return n, nil
}

// OnAccess is the lease after somebody used the running sandbox at now, and
// whether it is another one: lifetime.renew_on_access from now, never shorter
// than it was, at most once per lifetime.renew_min_interval, and clipped to max
// (the host's max_lifetime, 0 for none) and shutdown_time. A sandbox without a
// lease gets none: it does not end.
func (l Lease) OnAccess(rec *Sandbox, now time.Time, max time.Duration) (Lease, bool) {
	life := &rec.Spec.Lifetime
	if life.RenewOnAccess <= 0 || rec.Expired != nil || l.Until.IsZero() {
		return l, false
	}
	deadline, _, _ := Deadline(&rec.Spec, l)
	if !now.Before(deadline) {
		return l, false
	}
	interval := time.Duration(life.RenewMinInterval)
	if interval <= 0 {
		interval = renewMinInterval
	}
	// A last renewal that lies ahead is one of a clock that was stepped back.
	if last := l.AccessRenewedAt; !last.IsZero() && !last.After(now) && now.Before(last.Add(interval)) {
		return l, false
	}
	d := time.Duration(life.RenewOnAccess)
	if max > 0 {
		d = min(d, max)
	}
	until := now.Add(d)
	if t := rec.Spec.ShutdownTime; !t.IsZero() && !t.Equal(l.ActedOn) && until.After(t) {
		until = t
	}
	if !until.After(l.Until) {
		return l, false
	}
	l.Until, l.Renewed, l.AccessRenewedAt = until, true, now
	return l, true
}

// Deadline is the instant at which the sandbox ends, the earlier of its
// shutdown_time and its lease, and which of the two it is (ShutdownTime when
// they are equal); ok is false when it has none. A shutdown_time at which it was
// paused has had its effect and is none any more.
func Deadline(spec *config.Sandbox, l Lease) (t time.Time, reason string, ok bool) {
	shutdown := spec.ShutdownTime
	if shutdown.Equal(l.ActedOn) {
		shutdown = time.Time{}
	}
	switch {
	case shutdown.IsZero() && l.Until.IsZero():
		return time.Time{}, "", false
	case shutdown.IsZero(), !l.Until.IsZero() && l.Until.Before(shutdown):
		return l.Until, TTLExpiry, true
	}
	return shutdown, ShutdownTime, true
}

// EffectiveMode is the mode the sandbox is to be in: ended by expiry, else its
// hold's, else the declared one. An ended one is suspended; one that expiry paused
// has not ended.
func EffectiveMode(s *Sandbox) (mode string, ended bool) {
	if s.Expired != nil && s.Expired.Paused {
		return "paused", false
	}
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
