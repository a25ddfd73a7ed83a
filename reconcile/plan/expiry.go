package plan

import (
	"slices"
	"time"
)

// date works out the lease as it will be, and checks what the files say about
// deadlines against the host's cap; false when that refuses them.
func (o *one) date() bool {
	w, rec := o.w, o.rec
	o.lease = rec.Lease.WithTTL(o.spec.Lifetime.TTL)
	if o.newLease {
		o.lease = rec.Lease.Anew(o.spec, w.in.Now)
	}
	if o.d != nil && (o.dateChanged || o.newLease) {
		l := o.lease
		if l.Start.IsZero() {
			l = StartLease(o.spec, w.in.Now)
		}
		if deadline, _, dated := Deadline(o.spec, l); !dated || w.in.Now.Before(deadline) {
			return !w.capped(rec.Address, o.spec, l, o.d)
		}
	}
	return true
}

// expire plans what deadlines ask for, and reports whether that is all: expiry
// beats modes and holds.
func (o *one) expire() bool {
	w, rec := o.w, o.rec
	now := w.in.Now
	deadline, reason, dated := Deadline(o.spec, o.lease)
	due := dated && !now.Before(deadline)
	ex := rec.Expired
	switch {
	case ex != nil && o.revives(ex):
		o.revive = true
		if ex.Paused {
			o.lease, o.hold = o.unpaused(), o.hold.without("expiry")
			deadline, _, _ = Deadline(o.spec, o.lease)
		}
		if w.in.Options.ReleaseHolds && o.rests() && o.hold != nil {
			c := o.change(ActRelease, FromFiles, "-release-holds", "released: no longer held "+o.hold.Mode)
			o.hold, o.released = nil, true
			w.add(c)
		}
		w.wake(deadline)
		return false
	case w.in.Options.ReleaseHolds && o.rests() && !o.newLease:
		return !o.wake()
	case w.in.Options.ReleaseHolds && o.rests(): // replaced, and nothing of it is woken
		o.released = o.release(nil, FromFiles, "-release-holds")
	case ex == nil && !due:
		if dated {
			w.wake(deadline)
		}
		return false
	}

	remove := o.spec.ShutdownPolicy == "delete"
	cause := attributeOf(reason) + " passed"
	switch {
	case ex == nil, ex.Paused && due && deadline.After(ex.Deadline): // a second deadline passed while it was paused by the first
		ex = &Expired{Deadline: deadline, Reason: reason}
	default:
		if ex.Paused && dated && deadline.After(ex.Deadline) {
			w.wake(deadline)
		}
		cause = attributeOf(ex.Reason) + " passed; its teardown was not finished"
		if ex.Done && remove {
			cause = "shutdown_policy is delete, and it has expired"
		}
		if w.waits(rec.Retry) && !ex.Done {
			w.wake(rec.Retry.NextAt)
			w.note(rec.Address + " could not be taken down (" + rec.Retry.Error + "); tried again at " + stamp(rec.Retry.NextAt))
			return true
		}
	}
	end := func(then, consequence string) {
		origin := FromHost
		if rec.Expired != nil && rec.Expired.Done && (remove || rec.Expired.Paused) &&
			slices.ContainsFunc(o.diffs, func(d difference) bool { return d.Path == "shutdown_policy" }) {
			origin = FromFiles
		}
		c := o.change(ActExpire, origin, cause, consequence)
		c.Deadline, c.Reason, c.Then = ex.Deadline, ex.Reason, then
		switch then {
		case "destroyed":
			c.Volumes = dyingClaims(o.spec)
		case "paused":
			c.Hold = o.expiryHold()
		}
		if then != "paused" {
			o.hold = o.hold.without("expiry")
		}
		w.add(c)
	}

	if remove {
		if rec.Expired == nil {
			o.update("updated, expires at once")
			end("destroyed", "expired: destroyed, "+losses(o.spec))
		} else {
			o.update("updated")
			end("destroyed", destruction(o.spec))
		}
		return true
	}
	phase := o.st.Phase
	if o.class == Replace && phase != Pending && !w.networkGone(o) {
		o.replace("suspended")
		phase = Stopped
	} else if rec.Expired == nil {
		o.update("updated, expires at once")
	} else {
		o.update("updated, stays expired")
	}
	old := rec.Expired // nil: it expires in this plan
	done := old != nil && ex == old && ex.Done
	freezes := o.spec.ShutdownPolicy == "pause" && (phase == Running || phase == Paused) && (old == nil || old.Paused || !old.Done)
	switch down := phase.live() || (phase == Stopped && rec.Instance != nil); {
	case done && freezes && ex.Paused && phase == Paused:
		w.note(rec.Address + " expired at " + stamp(ex.Deadline) + " and is paused; resume wakes it, with -timeout D for D, and so does a later deadline in the files, or none")
	case freezes:
		consequence := "expired: paused, processes and memory kept"
		if phase == Paused {
			consequence = "expired: stays paused, processes and memory kept"
		}
		if done {
			cause = "it runs although it expired"
		}
		end("paused", consequence)
	case done && !ex.Paused && !phase.live():
		w.note(rec.Address + " expired at " + stamp(ex.Deadline) + " and is kept; a later deadline in the files, or none, revives it")
	case down:
		switch {
		case done && ex.Paused && phase.live():
			cause = "shutdown_policy is " + o.spec.ShutdownPolicy + ", and it has expired"
		case done && ex.Paused:
			cause = "its process is gone, and it has expired"
		case done:
			cause = "it runs although it expired"
		}
		end("stopped", stopping(phase))
	default:
		if done {
			cause = "its process is gone, and it has expired"
		}
		end("", "marked as expired")
	}
	return true
}

// revives reports whether the files give an expired sandbox a deadline that is
// later than the one that passed, or none. Of one that was paused it is as if
// nothing had been paused: only the files bring it back here, not that pausing
// took its lease away.
func (o *one) revives(ex *Expired) bool {
	lease := o.lease
	if ex.Paused {
		lease = o.unpaused()
	}
	deadline, _, dated := Deadline(o.spec, lease)
	if !dated {
		return true
	}
	return o.w.in.Now.Before(deadline) && (deadline.After(ex.Deadline) || o.newLease)
}

// unpaused is the lease as if no expiry had paused the sandbox; a new one is what it is.
func (o *one) unpaused() Lease {
	if o.newLease {
		return o.lease
	}
	return o.lease.unpaused()
}

// expiryHold is the hold that an expiry by pause leaves; nil when it is paused by
// an operator, the files or an earlier expiry already.
func (o *one) expiryHold() *Hold {
	under := o.hold.without("idle")
	if mode, _ := effectiveMode(false, under, o.spec); mode == "paused" {
		return nil
	}
	h := &Hold{Mode: "paused", By: "expiry", At: o.w.in.Now, Under: under}
	o.hold = h
	return h
}

// warn plans the event that tells of a deadline that is near, once for each, on
// behalf of whoever keeps watch. A deadline whose whole life is shorter than the
// warning's window is told of at once.
func (o *one) warn() {
	w, rec := o.w, o.rec
	deadline, reason, dated := Deadline(o.spec, o.lease)
	if w.in.Trigger != Keep || w.in.Limits.ExpiryWarning <= 0 || !dated || o.newLease || rec.Warned.Equal(deadline) {
		return
	}
	if at := deadline.Add(-w.in.Limits.ExpiryWarning); w.in.Now.Before(at) {
		w.wake(at)
		return
	}
	c := o.change(ActNoop, FromHost, attributeOf(reason)+" is near", "warned of: it ends at "+stamp(deadline))
	c.Warn = deadline
	w.add(c)
}

// wake plans the release of a sandbox that expiry froze, as a resume does it;
// false when nothing says how long it is to live then.
func (o *one) wake() bool {
	w, rec := o.w, *o.rec
	rec.Spec = *o.spec
	lease, err := o.lease.OnResume(&rec, nil, w.in.Now, w.in.Limits.MaxLifetime)
	if err != nil {
		w.fail(rec.Address, rec.Address+" cannot be released",
			"It expired and is paused, and neither lifetime.ttl nor renew_on_access says how long it is to live now. Resume it with -timeout, or give it a later deadline.", position(o.d))
		return false
	}
	o.lease, o.hold, o.released = lease, nil, true
	consequence := "released: no longer held paused by " + rec.Hold.By
	if deadline, _, dated := Deadline(o.spec, lease); dated {
		consequence += ", ends at " + stamp(deadline)
		w.wake(deadline)
	}
	c := o.change(ActRelease, FromFiles, "-release-holds", consequence)
	c.Wake = true
	o.step(c) // with the spec: how long it is to live now is the declared one's word
	return true
}

// stopping words an expiry that keeps everything.
func stopping(p Phase) string {
	if p.live() {
		return "expired: stopped, files and volumes kept"
	}
	return "expired: stays stopped, files and volumes kept"
}

// update records the declared spec where nothing else is to be done for it.
func (o *one) update(consequence string) {
	if len(o.diffs) == 0 {
		return
	}
	o.step(o.change(ActUpdate, o.origin, o.cause, consequence))
}

// waits reports whether a failed step is to be tried again only later. A user's
// plan does not wait.
func (w *walk) waits(r Retry) bool {
	return w.in.Trigger == Keep && r.Error != "" && w.in.Now.Before(r.NextAt)
}

// backsOff is waits for what comes back after a kill or a loss: nobody shortens
// that, unless a new generation begins or the sandbox is revived.
func (o *one) backsOff() bool {
	next := o.rec.Retry.NextAt
	if len(o.diffs) > 0 || o.revive || !o.w.in.Now.Before(next) {
		return false
	}
	o.w.wake(next)
	return true
}

// bothDeadlines words what a new lease, or an edit, does to the deadline.
func (o *one) bothDeadlines() string {
	was, _, had := Deadline(&o.rec.Spec, o.rec.Lease)
	is, reason, has := Deadline(o.spec, o.lease)
	if had == has && was.Equal(is) {
		return ""
	}
	old, new := stamps(was, is)
	if !had {
		old = "none"
	}
	if !has {
		new = "none"
	} else if reason == TTLExpiry && o.newLease {
		new += " (a new ttl of " + words(time.Duration(o.spec.Lifetime.TTL)) + " starts)"
	}
	if o.rec.Lease.Renewed && !o.lease.Renewed && !o.newLease {
		new += " (its renewal is dropped)"
	}
	return "deadline: " + old + " -> " + new
}
