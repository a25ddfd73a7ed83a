package plan

import (
	"cmp"
	"fmt"
	"time"
)

// RenewForm is one of the four ways to renew.
type RenewForm string

const (
	RenewUntil   RenewForm = "until"
	RenewAtLeast RenewForm = "at-least"
	RenewIn      RenewForm = "in"
	RenewResume  RenewForm = "resume" // resume -timeout; For 0: without -timeout
)

// Renewal is what an operator asks for.
type Renewal struct {
	Form  RenewForm     `json:"form"`
	Until time.Time     `json:"until,omitzero"` // form until
	For   time.Duration `json:"for,omitempty"`  // the other forms, from now
}

// Refusal is a renewal that the rules forbid: 409 for the API.
type Refusal struct {
	Address string
	Why     string
	Verb    string // that was refused; empty: renew
}

func (r *Refusal) Error() string {
	return "sandbox: cannot " + cmp.Or(r.Verb, "renew") + " " + r.Address + ": " + r.Why
}

func refusal(s *Sandbox, format string, args ...any) *Refusal {
	return &Refusal{Address: s.Address, Why: fmt.Sprintf(format, args...)}
}

// Renew gives the sandbox's lease after a renewal at now, or a *Refusal. max is
// the host's max_lifetime, 0 for none. It changes nothing itself.
func Renew(s *Sandbox, r Renewal, now time.Time, max time.Duration) (Lease, error) {
	return renew(s, s.Lease, r, now, max)
}

func renew(s *Sandbox, l Lease, r Renewal, now time.Time, max time.Duration) (Lease, error) {
	refuse := func(format string, args ...any) (Lease, error) { return l, refusal(s, format, args...) }
	deadline, _, dated := Deadline(&s.Spec, l)
	switch {
	case s.Expired != nil && s.Expired.Paused:
		return refuse("it expired at %s and is paused; resume with -timeout D", stamp(s.Expired.Deadline))
	case s.Expired != nil:
		return refuse("it expired at %s; only a later or removed deadline in the files revives it", stamp(s.Expired.Deadline))
	case dated && !now.Before(deadline):
		return refuse("its deadline %s has passed", stamp(deadline))
	case s.phase() == Lost:
		return refuse("it is lost; apply recreates it, or -replace where on_lost is retain")
	case r.Form == RenewResume && r.For == 0:
		return l, nil
	case l.Start.IsZero():
		return refuse("its lease has not started: no instance of it was created yet")
	}

	until := now.Add(r.For)
	switch r.Form {
	case RenewUntil:
		until = r.Until
		switch {
		case l.stopped():
			return refuse("its lease is stopped while it is paused; use -in D, or resume with -timeout D")
		case l.Until.IsZero():
			return refuse("it has no lease that could be moved; use -in D to give it one")
		case !until.After(now):
			return refuse("-until %s is not in the future", stamp(until))
		case !until.After(l.Until):
			u, l := stamps(until, l.Until)
			return refuse("-until %s is not later than its lease, which ends at %s; use -in D to shorten it", u, l)
		}
	case RenewAtLeast:
		switch {
		case r.For <= 0:
			return refuse("-at-least %s is no time ahead", r.For)
		case l.stopped():
			return refuse("its lease is stopped while it is paused; use -in D, or resume with -timeout D")
		case l.Until.IsZero():
			return refuse("it has no lease that could be lengthened; use -in D to give it one")
		case !until.After(l.Until):
			return l, nil
		}
	case RenewIn, RenewResume:
		if r.For <= 0 {
			return refuse("%s is no time ahead; use stop or destroy to end it now", r.For)
		}
	default:
		return refuse("there is no renewal of form %q", r.Form)
	}
	if st := s.Spec.ShutdownTime; !st.IsZero() && !st.Equal(l.ActedOn) && until.After(st) {
		u, t := stamps(until, st)
		return refuse("%s lies beyond its shutdown_time %s%s, which only the files can move", u, t, from(s.Sources["shutdown_time"]))
	}
	if max > 0 && until.Sub(now) > max {
		u, _ := stamps(until, now.Add(max))
		return refuse("%s is more than max_lifetime (%s) ahead", u, words(max))
	}
	l.Until, l.Renewed, l.EndedAt = until, true, time.Time{}
	return l, nil
}
