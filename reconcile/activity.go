package reconcile

import (
	"context"
	"sync"
	"time"

	"pinfold/reconcile/plan"
)

// byAccess names in the journal and the history what waking and renewing on
// access do.
const byAccess = "access"

// activityEvery is how coarsely the last use of a sandbox is stored: what a
// crash forgets of it.
const activityEvery = 15 * time.Second

// activity is what this process knows of the use of sandboxes beyond their
// records. Only what pinfold itself can vouch for counts: exec, attach and
// copies until they end, connections when opened and with each byte, touch. The
// zero value is ready to use.
type activity struct {
	mu sync.Mutex
	of map[string]*use // by sandbox address
	// watched is set in the agent: every use comes through it. Any other process
	// cannot know what is in use, so that to it nothing is idle.
	watched bool
}

type use struct {
	last    time.Time
	open    int           // uses that go on
	resting chan struct{} // closed when the idle rule is done with it; nil: it is not at it
}

func (a *activity) get(address string) *use {
	if a.of == nil {
		a.of = map[string]*use{}
	}
	u := a.of[address]
	if u == nil {
		u = &use{}
		a.of[address] = u
	}
	return u
}

func (a *activity) touch(address string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.get(address); now.After(u.last) {
		u.last = now
	}
}

// begin opens a use that goes on until the returned function is called, with
// whether it was one. While the idle rule is putting the sandbox to rest it waits,
// within ctx.
func (a *activity) begin(ctx context.Context, address string, now func() time.Time) (end func(used bool)) {
	var u *use // the same one whatever becomes of the address
	for {
		a.mu.Lock()
		u = a.get(address)
		resting := u.resting
		if resting == nil || ctx.Err() != nil {
			u.open++
			a.mu.Unlock()
			break
		}
		a.mu.Unlock()
		select {
		case <-resting:
		case <-ctx.Done():
		}
	}
	var once sync.Once
	return func(used bool) {
		once.Do(func() {
			at := now()
			a.mu.Lock()
			defer a.mu.Unlock()
			if used && at.After(u.last) {
				u.last = at
			}
			u.open--
		})
	}
}

// rest tells whether the sandbox, unused since last by its record, is still idle
// for so long, and keeps new uses waiting until done.
func (a *activity) rest(address string, last, now time.Time, timeout time.Duration) (done func(), idle bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.get(address)
	if u.last.After(last) {
		last = u.last
	}
	if u.open > 0 || u.resting != nil || now.Before(last.Add(timeout)) {
		return nil, false
	}
	u.resting = make(chan struct{})
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		close(u.resting)
		u.resting = nil
	}, true
}

// read is the use of one sandbox in the planner's words.
func (a *activity) read(address string) plan.Activity {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.of[address]; u != nil {
		return plan.Activity{Last: u.last, Busy: u.open > 0}
	}
	return plan.Activity{}
}

// all is the use of every sandbox; nil where nobody watches it.
func (a *activity) all() map[string]plan.Activity {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.watched {
		return nil
	}
	out := make(map[string]plan.Activity, len(a.of))
	for address, u := range a.of {
		out[address] = plan.Activity{Last: u.last, Busy: u.open > 0}
	}
	return out
}

// one is all of one sandbox.
func (a *activity) one(address string) map[string]plan.Activity {
	a.mu.Lock()
	watched := a.watched
	a.mu.Unlock()
	if !watched {
		return nil
	}
	return map[string]plan.Activity{address: a.read(address)}
}

// watch says that from now on every use comes through this process.
func (a *activity) watch() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watched = true
}

// rename follows sandboxes to new addresses.
func (a *activity) rename(to map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	renameKeys(a.of, to)
}

// forget drops a sandbox that is no more. Uses that still go on end later.
func (a *activity) forget(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if u := a.of[address]; u != nil && u.open == 0 {
		delete(a.of, address)
	}
}

// lastUse is when the sandbox was last used, by record and by this process.
func (e *Engine) lastUse(rec *plan.Sandbox) time.Time {
	last := rec.LastActivity
	a := e.activity.read(rec.Address)
	if a.Last.After(last) {
		last = a.Last
	}
	if a.Busy {
		last = e.now()
	}
	return last
}

// storeActivity makes the last use of these sandboxes durable, in one transaction,
// as far as nobody is at them: who is will store it with what comes of that.
func (e *actor) storeActivity(addresses ...string) error {
	w := &write{}
	for _, address := range addresses {
		release, holder := e.lanes.try(address, "status", e.by)
		if holder != nil {
			continue
		}
		defer release()
		if rec, ok := e.sandbox(address); ok && e.lastUse(rec).After(rec.LastActivity) {
			w.sandbox(rec) // commit takes the last use over
		}
	}
	if len(w.sandboxes) == 0 {
		return nil
	}
	return e.commit(w)
}

// keepActivity stores, every activityEvery and at the end, what was used since,
// until ctx ends.
func (a *agent) keepActivity(ctx context.Context) {
	t := time.NewTicker(activityEvery)
	defer t.Stop()
	for over := false; !over; {
		coarse := activityEvery
		select {
		case <-ctx.Done():
			over, coarse = true, 0
		case <-t.C:
		}
		var used []string
		for address, use := range a.activity.all() {
			rec := a.current(address)
			switch {
			case rec == nil:
				a.activity.forget(address)
			case use.Busy || use.Last.Sub(rec.LastActivity) > coarse:
				used = append(used, address)
			}
		}
		if err := a.storeActivity(used...); err != nil {
			a.complain("", "cannot store when sandboxes were used", err)
		}
	}
}
