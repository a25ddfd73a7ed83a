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
		o.lease = StartLease(o.spec, w.in.Now)
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
	case ex != nil && (!dated || (!due && (deadline.After(ex.Deadline) || o.newLease))):
		o.revive = true
		w.wake(deadline)
		return false
	case ex == nil && !due:
		if dated {
			w.wake(deadline)
		}
		return false
	}

	remove := o.spec.ShutdownPolicy == "delete"
	cause := attributeOf(reason) + " passed"
	if ex == nil {
		ex = &Expired{Deadline: deadline, Reason: reason}
	} else {
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
		if remove && rec.Expired != nil && rec.Expired.Done && slices.ContainsFunc(o.diffs, func(d difference) bool { return d.Path == "shutdown_policy" }) {
			origin = FromFiles
		}
		c := o.change(ActExpire, origin, cause, consequence)
		c.Deadline, c.Reason, c.Then = ex.Deadline, ex.Reason, then
		if then == "destroyed" {
			c.Volumes = dyingClaims(o.spec)
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
	switch down := phase.live() || (phase == Stopped && rec.Instance != nil); {
	case rec.Expired != nil && ex.Done && !phase.live():
		w.note(rec.Address + " expired at " + stamp(ex.Deadline) + " and is kept; a later deadline in the files, or none, revives it")
	case down:
		if rec.Expired != nil && ex.Done {
			cause = "it runs although it expired"
		}
		end("stopped", stopping(phase))
	default:
		end("", "marked as expired")
	}
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
// that, unless a new generation begins.
func (o *one) backsOff() bool {
	next := o.rec.Retry.NextAt
	if len(o.diffs) > 0 || !o.w.in.Now.Before(next) {
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
