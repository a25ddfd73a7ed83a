package plan

import (
	"errors"
	"testing"
	"time"

	"pinfold/config"
)

// leased is a sandbox made an hour before t0 whose lease ends an hour after it.
func leased(edit ...func(*Sandbox, *Seen)) *Sandbox {
	return newWorld().record("sandbox.a", spec(ttl(2*time.Hour)), edit...).Records.Sandboxes["sandbox.a"]
}

func TestRenew(t *testing.T) {
	undated := func(s *Sandbox, _ *Seen) { s.Spec.Lifetime.TTL, s.Lease = 0, Lease{Start: s.Lease.Start} }
	until := func(at time.Time) func(*Sandbox, *Seen) {
		return func(s *Sandbox, _ *Seen) {
			s.Spec.ShutdownTime = at
			s.Sources = map[string]config.Position{"shutdown_time": {File: "main.hcl", Line: 12}}
		}
	}
	const day = 24 * time.Hour
	for _, c := range []struct {
		name   string
		edit   []func(*Sandbox, *Seen)
		r      Renewal
		max    time.Duration
		want   time.Duration // from t0; 0: no end
		refuse string
	}{
		{name: "until later", r: Renewal{Form: RenewUntil, Until: t0.Add(3 * time.Hour)}, want: 3 * time.Hour},
		{name: "until earlier", r: Renewal{Form: RenewUntil, Until: t0.Add(time.Minute)}, refuse: "-until 2026-12-01T08:31:00Z is not later than its lease, which ends at 2026-12-01T09:30:00Z; use -in D to shorten it"},
		{name: "until the same", r: Renewal{Form: RenewUntil, Until: t0.Add(time.Hour)}, refuse: "-until 2026-12-01T09:30:00Z is not later than its lease, which ends at 2026-12-01T09:30:00Z; use -in D to shorten it"},
		{name: "until in the past", r: Renewal{Form: RenewUntil, Until: t0}, refuse: "-until 2026-12-01T08:30:00Z is not in the future"},
		{name: "until without a lease", edit: []func(*Sandbox, *Seen){undated}, r: Renewal{Form: RenewUntil, Until: t0.Add(day)}, refuse: "it has no lease that could be moved; use -in D to give it one"},
		{name: "at-least lengthens", r: Renewal{Form: RenewAtLeast, For: 2 * time.Hour}, want: 2 * time.Hour},
		{name: "at-least never shortens", r: Renewal{Form: RenewAtLeast, For: time.Minute}, want: time.Hour},
		{name: "at-least without a lease", edit: []func(*Sandbox, *Seen){undated}, r: Renewal{Form: RenewAtLeast, For: time.Hour}, refuse: "it has no lease that could be lengthened; use -in D to give it one"},
		{name: "at-least nothing", r: Renewal{Form: RenewAtLeast}, refuse: "-at-least 0s is no time ahead"},
		{name: "in shortens", r: Renewal{Form: RenewIn, For: time.Minute}, want: time.Minute},
		{name: "in sets one", edit: []func(*Sandbox, *Seen){undated}, r: Renewal{Form: RenewIn, For: time.Minute}, want: time.Minute},
		{name: "in nothing", r: Renewal{Form: RenewIn, For: -time.Second}, refuse: "-1s is no time ahead; use stop or destroy to end it now"},
		{name: "resume with a timeout", edit: []func(*Sandbox, *Seen){in(Paused)}, r: Renewal{Form: RenewResume, For: 3 * time.Hour}, want: 3 * time.Hour},
		{name: "resume without", edit: []func(*Sandbox, *Seen){in(Paused)}, r: Renewal{Form: RenewResume}, want: time.Hour},
		{name: "up to shutdown_time", edit: []func(*Sandbox, *Seen){until(t0.Add(3 * time.Hour))}, r: Renewal{Form: RenewIn, For: 3 * time.Hour}, want: 3 * time.Hour},
		{name: "past shutdown_time", edit: []func(*Sandbox, *Seen){until(t0.Add(3 * time.Hour))}, r: Renewal{Form: RenewIn, For: 4 * time.Hour}, refuse: "2026-12-01T12:30:00Z lies beyond its shutdown_time 2026-12-01T11:30:00Z (main.hcl:12), which only the files can move"},
		{name: "past shutdown_time by resume", edit: []func(*Sandbox, *Seen){in(Paused), until(t0.Add(3 * time.Hour))}, r: Renewal{Form: RenewResume, For: 4 * time.Hour}, refuse: "2026-12-01T12:30:00Z lies beyond its shutdown_time 2026-12-01T11:30:00Z (main.hcl:12), which only the files can move"},
		{name: "the cap itself", r: Renewal{Form: RenewIn, For: day}, max: day, want: day},
		{name: "beyond the cap", r: Renewal{Form: RenewIn, For: day + 1}, max: day, refuse: "2026-12-02T08:30:00.000000001Z is more than max_lifetime (24h) ahead"},
		{name: "expired", edit: []func(*Sandbox, *Seen){expiredAt(t0, TTLExpiry, true)}, r: Renewal{Form: RenewIn, For: day}, refuse: "it expired at 2026-12-01T08:30:00Z; only a later or removed deadline in the files revives it"},
		{name: "due but not yet acted on", edit: []func(*Sandbox, *Seen){renewed(t0)}, r: Renewal{Form: RenewIn, For: day}, refuse: "its deadline 2026-12-01T08:30:00Z has passed"},
		{name: "lost", edit: []func(*Sandbox, *Seen){in(Lost)}, r: Renewal{Form: RenewIn, For: day}, refuse: "it is lost; apply recreates it, or -replace where on_lost is retain"},
		{name: "pending", edit: []func(*Sandbox, *Seen){pending}, r: Renewal{Form: RenewIn, For: day}, refuse: "its lease has not started: no instance of it was created yet"},
		{name: "no such form", r: Renewal{Form: "somehow", For: day}, refuse: `there is no renewal of form "somehow"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := leased(c.edit...)
			before := s.Lease
			l, err := Renew(s, c.r, t0, c.max)
			if s.Lease != before {
				t.Errorf("the record changed to %v", s.Lease)
			}
			if c.refuse != "" {
				var r *Refusal
				if !errors.As(err, &r) || err.Error() != "sandbox: cannot renew sandbox.a: "+c.refuse || l != before {
					t.Errorf("%v, %v; want %s", l, err, c.refuse)
				}
				return
			}
			if err != nil || !l.Until.Equal(t0.Add(c.want)) || l.Start != before.Start || l.TTL != before.TTL {
				t.Errorf("%v, %v; want the end %s", l, err, stamp(t0.Add(c.want)))
			}
			if moved := l.Until != before.Until; moved != l.Renewed {
				t.Errorf("renewed is %v", l.Renewed)
			}
			// What a renewal leaves behind is never a difference to the files.
			w := newWorld().both("sandbox.a", s.Spec, c.edit...)
			w.Records.Sandboxes["sandbox.a"].Lease = l
			for _, ch := range Make(w.Input).Changes {
				if ch.Action == ActUpdate {
					t.Errorf("the next plan says %s", ch)
				}
			}
		})
	}
}

func TestLease(t *testing.T) {
	s := spec(ttl(8 * time.Hour))
	l := StartLease(&s, t0)
	if l.Until != t0.Add(8*time.Hour) || l.Start != t0 || l.Renewed {
		t.Errorf("a new lease is %v", l)
	}
	l.Until, l.Renewed = t0.Add(20*time.Hour), true
	if same := l.WithTTL(l.TTL); same != l {
		t.Errorf("an unchanged ttl makes it %v", same)
	}
	if e := l.WithTTL(config.Duration(time.Hour)); e.Until != t0.Add(time.Hour) || e.Renewed || e.Start != t0 {
		t.Errorf("an edited ttl makes it %v", e)
	}
	if e := l.WithTTL(0); !e.Until.IsZero() || e.Renewed {
		t.Errorf("a removed ttl makes it %v", e)
	}
	if e := (Lease{}).WithTTL(config.Duration(time.Hour)); e != (Lease{}) {
		t.Errorf("a lease that has not started becomes %v", e)
	}
}

func TestDeadline(t *testing.T) {
	early, late := t0, t0.Add(time.Hour)
	for _, c := range []struct {
		shutdown, until, want time.Time
		reason                string
	}{
		{},
		{shutdown: early, want: early, reason: ShutdownTime},
		{until: early, want: early, reason: TTLExpiry},
		{shutdown: early, until: late, want: early, reason: ShutdownTime},
		{shutdown: late, until: early, want: early, reason: TTLExpiry},
		{shutdown: early, until: early, want: early, reason: ShutdownTime},
	} {
		s := spec(shutdown(c.shutdown))
		got, reason, ok := Deadline(&s, Lease{Until: c.until})
		if got != c.want || reason != c.reason || ok != (c.reason != "") {
			t.Errorf("of %s and %s: %s %s %v", stamp(c.shutdown), stamp(c.until), stamp(got), reason, ok)
		}
	}
	if EndReason(TTLExpiry) != "ttl_expiry" || EndReason(ShutdownTime) != "shutdown_time" {
		t.Error("tombstone words are wrong")
	}
}

func TestEffectiveMode(t *testing.T) {
	for _, c := range []struct {
		expired        bool
		hold, declared string
		want           string
	}{
		{declared: "running", want: "running"},
		{declared: "", want: "running"},
		{declared: "paused", want: "paused"},
		{declared: "running", hold: "suspended", want: "suspended"},
		{declared: "suspended", hold: "created", want: "created"},
		{declared: "running", hold: "running", expired: true, want: "suspended"},
	} {
		s := leased()
		s.Spec.OperatingMode = c.declared
		if c.hold != "" {
			s.Hold = &Hold{Mode: c.hold}
		}
		if c.expired {
			s.Expired = &Expired{}
		}
		if mode, ended := EffectiveMode(s); mode != c.want || ended != c.expired {
			t.Errorf("%+v gives %s, %v", c, mode, ended)
		}
	}
}

func TestBackoff(t *testing.T) {
	r := Retry{}
	var last time.Duration
	for i := range 20 {
		r = Backoff(r, 0, t0, 0, "busy")
		d := r.NextAt.Sub(t0)
		if want := min(time.Second<<min(i, 20), 5*time.Minute); d != want {
			t.Errorf("attempt %d waits %s, want %s", i+1, d, want)
		}
		if d < last || r.Attempts != i+1 || r.Since != t0 || r.Error != "busy" {
			t.Errorf("attempt %d: %+v", i+1, r)
		}
		last = d
	}
	if j := Backoff(r, 0, t0, 0.999, ""); j.NextAt.Sub(t0) < last/2 || j.NextAt.Sub(t0) >= last || j.Error != "" {
		t.Errorf("jitter gives %s of %s", j.NextAt.Sub(t0), last)
	}
	if fresh := Backoff(r, StableWindow, t0.Add(time.Hour), 0, ""); fresh.Attempts != 1 || fresh.Since != t0.Add(time.Hour) {
		t.Errorf("after a stable time: %+v", fresh)
	}
	s := spec()
	for _, c := range []struct {
		r    Retry
		at   time.Duration
		want bool
	}{
		{Retry{Since: t0, Error: "busy"}, 5 * time.Minute, true},
		{Retry{Since: t0, Error: "busy"}, 5*time.Minute - 1, false},
		{Retry{Since: t0}, time.Hour, false},
		{Retry{}, time.Hour, false},
	} {
		if got := GiveUp(c.r, &s, t0.Add(c.at)); got != c.want {
			t.Errorf("%+v after %s: %v", c.r, c.at, got)
		}
	}
}
