package plan

import "time"

// idle plans what the idle rule asks for, of a sandbox that runs and is to run.
// Nothing is idle while nobody watches its use (Input.Activity is nil), nor while
// it is used. What is revived now, or whose holds a user releases, is in use.
func (o *one) idle() {
	w, rec := o.w, o.rec
	timeout := time.Duration(o.spec.Lifetime.IdleTimeout)
	if timeout <= 0 || w.in.Activity == nil {
		return
	}
	use := w.in.Activity[rec.Address]
	if use.Busy || rec.Expired != nil || w.in.Options.ReleaseHolds {
		w.wake(w.in.Now.Add(timeout)) // its use may end at any moment from now on
		return
	}
	last := latest(rec.LastActivity, rec.Instance.StartedAt, rec.Instance.CreatedAt, use.Last)
	if due := last.Add(timeout); w.in.Now.Before(due) {
		w.wake(due)
		return
	}
	cause := "idle since " + stamp(last)
	c := o.change(ActPause, FromHost, cause, "paused, processes and memory kept")
	mode := "paused"
	if o.spec.Lifetime.IdleAction == "suspend" {
		c = o.change(ActSuspend, FromHost, cause, "suspended: stopped, files kept")
		mode = "suspended"
	}
	c.Hold = &Hold{Mode: mode, By: "idle", At: w.in.Now, Under: o.hold}
	o.step(c)
}

func latest(times ...time.Time) time.Time {
	var l time.Time
	for _, t := range times {
		if t.After(l) {
			l = t
		}
	}
	return l
}

// again is what the restart block says of a process that ended by itself.
type again int

const (
	never  again = iota // it stays stopped
	atOnce              // it is started again now
	later               // when the back-off ends, which the plan asks to be woken for
	usedUp              // it has been started often enough
)

// restarts reads the restart block for a process that ended by itself. A process
// that was up for the block's window, and a new generation, begin a new series.
func (o *one) restarts() again {
	p := restartPolicy(o.spec)
	out := o.st.Outcome
	failed := out == nil || out.ExitCode != 0 || out.Signal != 0 || out.OOM
	if p.Mode != "always" && (p.Mode != "on-failure" || !failed) {
		return never
	}
	series := o.rec.Restarts
	if len(o.diffs) > 0 || upTime(o.rec.Instance, out) >= time.Duration(p.Window) {
		series = Retry{}
	}
	switch {
	case p.MaxAttempts > 0 && series.Attempts >= p.MaxAttempts:
		return usedUp
	case o.w.in.Now.Before(series.NextAt):
		o.w.wake(series.NextAt)
		return later
	}
	return atOnce
}

// upTime is how long the process that left the outcome was up, 0 when that is not known.
func upTime(i *Instance, out *Outcome) time.Duration {
	if out == nil || out.At.IsZero() || i.StartedAt.IsZero() {
		return 0
	}
	return out.At.Sub(i.StartedAt)
}
