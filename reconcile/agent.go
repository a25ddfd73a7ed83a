package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/state"
)

const (
	// The whole host is looked at though nothing happened: what leaves no event (a
	// deleted link, flushed rules) is found then. How often, follows from how many
	// sandboxes there are, each of which costs 0.1 to 0.2 ms: after lookRest for each,
	// between soonLook and fullLook.
	soonLook = 5 * time.Second
	fullLook = time.Minute
	lookRest = 50 * time.Millisecond
	// clockTick is how often the wall clock is compared with what is due, so that
	// a stepped clock or a host that slept is noticed within seconds.
	clockTick = time.Second
	// settleTime is how long after an event the loop waits for its neighbours.
	settleTime = 5 * time.Millisecond
	// manyDirty is from how many events on one look at everything is cheaper.
	manyDirty = 64
	// bringUps bounds how many sandboxes are brought up side by side: a start
	// needs memory and CPU, and a rebooted host has all of them to start.
	bringUps = 16
)

// AgentOptions configure a resident agent.
type AgentOptions struct {
	OpenOptions
	ConfigDir    string        // follow this directory; empty: keep what is recorded
	Inputs       config.Inputs // values for it
	AllowDestroy []string      // digests that may delete more than max_destroy
	Ready        func()        // called once the socket serves and the first pass is planned
}

// agent keeps what was applied. It sleeps until a sandbox is due, a process ends,
// a verb or an apply changed something, or a bounded time passed. Then it looks,
// plans, and carries out each sandbox's part in its own lane, without waiting for
// it: a stuck sandbox delays nobody.
//
// What concerns one sandbox costs a glance at that one. Only the periodic look
// goes over the whole host.
type agent struct {
	*actor
	log  hclog.Logger
	kick chan struct{}
	ups  chan struct{} // a token for each that is being brought up

	mu      sync.Mutex
	all     bool                 // everything is to be looked at
	dirty   map[string]bool      // sandboxes to be looked at
	due     map[string]time.Time // when the planner wants to look at a sandbox again
	paces   map[string]pace
	watches map[string]watch // by address
	missed  map[string]bool  // asked for while we were at it already
	told    map[string]bool  // orphans that an event told of, by id; only pass uses it
	passes  int              // full looks, for tests and measurements
	glances int              // looks at one sandbox

	work sync.WaitGroup // lanes and watches
}

// pace keeps a sandbox from being worked at without a pause when each step leads
// to the next: one that fails, or one that claims success and changes nothing.
// The planner's own back-off comes first; this is what holds when it cannot, as
// when the state cannot be written.
type pace struct {
	rounds int // steps since there was nothing to do
	until  time.Time
}

const (
	freeRounds = 4 // as many steps as a way from any state to any other takes
	paceMin    = time.Second
	paceMax    = time.Minute
)

type watch struct {
	process runtime.Process
	id      string
	cancel  context.CancelFunc
}

func newAgent(e *Engine) *agent {
	a := &agent{
		actor: e.as(byAgent), log: e.log, kick: make(chan struct{}, 1), ups: make(chan struct{}, bringUps),
		all: true, dirty: map[string]bool{}, due: map[string]time.Time{}, paces: map[string]pace{}, watches: map[string]watch{}, missed: map[string]bool{},
	}
	e.nudge = a.nudgeThese
	e.activity.watch()
	e.relay, e.probes = &ports{a: a}, &probes{a: a}
	return a
}

// nudgeThese asks for a look at these addresses soon, or at everything when none
// is named; it never blocks.
func (a *agent) nudgeThese(addresses ...string) {
	a.mu.Lock()
	a.all = a.all || len(addresses) == 0
	for _, address := range addresses {
		a.dirty[address] = true
	}
	a.mu.Unlock()
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// loop runs until ctx ends, or the state can be relied on no more, and then waits for
// the lanes that run.
func (a *agent) loop(ctx context.Context, ready func()) error {
	defer a.work.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer a.unwatchAll()
	defer a.relay.Close()
	a.work.Go(func() { a.keepActivity(ctx) })
	a.work.Go(func() { a.keepBackups(ctx, backupTick) })
	tick := time.NewTicker(clockTick)
	defer tick.Stop()
	var last look
	failed := 0 // looks in a row
	for {
		full, dirty := a.takeDirty()
		now := a.now()
		a.log.Debug("awake", "everything", full, "addresses", dirty)
		if full || last.over(now) {
			err := a.pass(ctx)
			rest := time.Duration(len(a.snapshot().Sandboxes)) * lookRest
			last = look{at: now, rest: min(max(rest, soonLook), fullLook)}
			switch {
			case err == nil:
				failed = 0
				a.content("")
			case errors.Is(err, state.ErrOutcome):
				return err // only opening the state anew tells what is in it
			case ctx.Err() == nil:
				last.rest = min(paceMin<<min(failed, 10), fullLook)
				failed++
				a.complain("", "cannot look after the sandboxes", err, "again_in", last.rest)
			}
		} else {
			for _, address := range dirty {
				a.one(ctx, address)
			}
		}
		if ready != nil {
			ready()
			ready = nil
		}
		if !a.sleep(ctx, tick, last) {
			return nil
		}
	}
}

// look is one look at everything, and how long it is good for.
type look struct {
	at   time.Time
	rest time.Duration
}

// over reports whether the next look is due. A clock that was set back makes it so.
func (l look) over(now time.Time) bool { return now.Sub(l.at) >= l.rest || now.Before(l.at) }

// takeDirty empties the list of what is to be looked at now: what was asked for
// and what is due.
func (a *agent) takeDirty() (full bool, addresses []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for address, at := range a.due {
		if !now.Before(at) {
			a.dirty[address] = true
			delete(a.due, address)
		}
	}
	full = a.all || len(a.dirty) >= manyDirty
	if !full {
		addresses = sortedKeys(a.dirty)
	}
	a.all = false
	clear(a.dirty)
	return full, addresses
}

// sleep returns true when there is something to look at, false when ctx is over.
func (a *agent) sleep(ctx context.Context, tick *time.Ticker, last look) bool {
	var due <-chan time.Time
	if at := a.nextDue(); !at.IsZero() {
		t := time.NewTimer(max(0, at.Sub(a.now())))
		defer t.Stop()
		due = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-due:
			return true
		case <-tick.C:
			now := a.now()
			at := a.nextDue()
			if (!at.IsZero() && !now.Before(at)) || last.over(now) {
				return true
			}
		case <-a.kick:
			// One event seldom comes alone; gather its neighbours.
			t := time.NewTimer(settleTime)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return false
			}
			return true
		}
	}
}

func (a *agent) nextDue() (at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.due {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at
}

// pass looks at the whole host, records what is true, and starts what is to be
// done.
func (a *agent) pass(ctx context.Context) error {
	a.mu.Lock()
	a.passes++
	a.mu.Unlock()
	if err := a.stored(); err != nil {
		return err
	}
	a.recoverAgain(ctx)
	seen, err := a.look(ctx)
	if err != nil {
		return err
	}
	records := a.snapshot()
	seen.hide(records.Sandboxes)
	now := a.now()
	p := plan.Make(plan.Input{Records: records, Observed: seen.Observed, Activity: a.activity.all(), Now: now, Trigger: plan.Keep, Limits: a.limits()})
	todo := map[string][]plan.Change{}
	for _, c := range p.Changes {
		if c.Kind == "sandbox" && !nothing(&c) {
			todo[c.Address] = append(todo[c.Address], c)
		}
	}
	for address, rec := range records.Sandboxes {
		if st := p.Status[address]; doomed(rec) || ends(rec, &st) {
			todo[address] = append(todo[address], []plan.Change{}...)
			if todo[address] == nil {
				todo[address] = []plan.Change{}
			}
		}
	}
	base, err := a.takeAll(ctx, p.Status, records.Sandboxes, &seen, func(address string) bool { return todo[address] != nil })
	if err != nil {
		return err
	}
	a.log.Debug("looked at everything", "sandboxes", len(records.Sandboxes), "to_do", len(todo), "wake_at", p.WakeAt.UTC().Format(time.RFC3339))
	a.tellOrphans(ctx, &seen)
	a.mendShared(ctx, p)
	for address := range records.Sandboxes {
		switch {
		case todo[address] != nil:
			a.lane(ctx, address, &found{rec: records.Sandboxes[address], st: p.Status[address], seen: &seen, changes: todo[address]})
		case base[address] == nil: // somebody is or was at it
			a.again(address, now.Add(clockTick))
		default:
			a.quiet(ctx, base[address], &seen)
		}
	}
	a.forgetGone(records.Sandboxes)
	return nil
}

// stored tells whether what is recorded is still kept where it is looked for.
func (e *Engine) stored() error {
	return e.store.View(func(state.Tx) error { return nil })
}

// quiet is for a sandbox that needs nothing now: its process is watched, and the
// planner told when to look again.
func (a *agent) quiet(ctx context.Context, rec *plan.Sandbox, seen *sight) {
	a.attend(ctx, rec.Address, rec)
	wake := a.wakeOf(rec, seen)
	if settled(rec, a.now()) {
		wake = a.now()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.paces, rec.Address)
	if wake.IsZero() {
		delete(a.due, rec.Address)
	} else {
		a.due[rec.Address] = wake
	}
}

// wakeOf asks the planner when a sandbox needs the next look.
func (a *agent) wakeOf(rec *plan.Sandbox, seen *sight) time.Time {
	own := plan.Observed{BootID: seen.BootID, Instances: map[string]plan.Seen{}}
	if rec.Instance != nil {
		if in, there := seen.Instances[rec.Instance.ID]; there {
			own.Instances[rec.Instance.ID] = in
		}
	}
	p := plan.Make(plan.Input{Records: a.only(rec.Address), Observed: own, Activity: a.activity.one(rec.Address), Now: a.now(), Trigger: plan.Keep, Limits: a.limits()})
	return p.WakeAt
}

// again asks for a look at that time, or earlier if one is due already.
func (a *agent) again(address string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t, ok := a.due[address]; !ok || at.Before(t) {
		a.due[address] = at
	}
}

// forget drops what is kept of a sandbox that is no more.
func (a *agent) forget(address string) {
	a.relay.follow(address, nil)
	a.probes.follow(context.Background(), address, nil)
	a.activity.forget(address)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.due, address)
	delete(a.paces, address)
	delete(a.missed, address)
	a.content(address)
	if w, ok := a.watches[address]; ok {
		w.cancel()
		delete(a.watches, address)
	}
}

// readdressed follows sandboxes to new addresses. They are looked at soon, which
// watches their processes again.
func (a *agent) readdressed(to map[string]string) {
	a.mu.Lock()
	for old := range to {
		if w, ok := a.watches[old]; ok {
			w.cancel()
			delete(a.watches, old)
		}
	}
	renameKeys(a.due, to)
	renameKeys(a.paces, to)
	renameKeys(a.missed, to)
	renameKeys(a.dirty, to)
	for _, address := range to {
		a.dirty[address] = true
	}
	a.mu.Unlock()
}

// forgetGone is forget for all that have no record.
func (a *agent) forgetGone(records map[string]*plan.Sandbox) {
	a.mu.Lock()
	gone := map[string]bool{}
	for address := range a.due {
		gone[address] = records[address] == nil
	}
	for address := range a.watches {
		gone[address] = records[address] == nil
	}
	a.mu.Unlock()
	for address, is := range gone {
		if is && a.current(address) == nil {
			a.forget(address)
		}
	}
}

// mendShared mends networks and volumes before the sandboxes that use them.
func (a *agent) mendShared(ctx context.Context, p *plan.Plan) {
	r := &run{actor: a.actor, quit: ctx, declared: declaredBy(nil)}
	for _, c := range p.Changes {
		if c.Kind == "sandbox" || c.Kind == "output" || c.Action == plan.ActNoop {
			continue
		}
		release, holder := a.lanes.try(c.Address, "keep", byAgent)
		if holder != nil {
			continue
		}
		if err := r.change(context.WithoutCancel(ctx), c); err != nil {
			a.complain(c.Address, "cannot mend", err, "action", c.Action, "cause", c.Cause)
		}
		release()
	}
}

// found is what a look at the whole host says of one sandbox.
type found struct {
	rec     *plan.Sandbox
	st      plan.Status
	seen    *sight
	changes []plan.Change
}

// one looks at one sandbox and does what it needs, in its lane.
func (a *agent) one(ctx context.Context, address string) {
	if a.current(address) == nil {
		a.forget(address)
		return
	}
	a.lane(ctx, address, nil)
}

// lane works at one sandbox on its own, unless somebody else is at it: they will
// nudge when they are done. f is what was found by a look at everything; nil: it
// is looked at now.
func (a *agent) lane(ctx context.Context, address string, f *found) {
	a.mu.Lock()
	until := a.paces[address].until
	a.mu.Unlock()
	if a.now().Before(until) {
		a.again(address, until)
		return
	}
	release, holder := a.lanes.try(address, "keep", byAgent)
	if holder != nil {
		a.mu.Lock()
		a.missed[address] = true
		a.mu.Unlock()
		a.again(address, a.now().Add(clockTick))
		return
	}
	a.work.Go(func() {
		did, wake, err := a.keep(context.WithoutCancel(ctx), address, f)
		release()
		a.after(ctx, address, did, wake, err)
	})
}

// keep does what the sandbox needs. The caller holds its lane.
func (a *agent) keep(ctx context.Context, address string, f *found) (did bool, wake time.Time, err error) {
	a.mu.Lock()
	a.glances++
	a.mu.Unlock()
	rec := a.current(address)
	if rec == nil {
		return false, time.Time{}, nil
	}
	if doomed(rec) && !a.now().Before(rec.Retry.NextAt) {
		return true, time.Time{}, a.removeLate(ctx, copySandbox(rec))
	}
	if f == nil || f.rec != rec {
		return a.converge(ctx, address)
	}
	// Nothing was recorded since the look, the deadline least of all.
	if _, err := a.take(ctx, rec, &f.st, f.seen); err != nil {
		return true, time.Time{}, err
	}
	if len(f.changes) == 0 {
		return true, time.Time{}, nil
	}
	defer a.up(f.changes)()
	return true, time.Time{}, a.carryOut(ctx, f.changes)
}

// up takes a token where the changes bring a process up.
func (a *agent) up(changes []plan.Change) (done func()) {
	for _, c := range changes {
		if c.CreateFirst {
			return func() {} // it may wait for long until the new one is ready
		}
		switch c.Action {
		case plan.ActCreate, plan.ActStart, plan.ActRestart, plan.ActRecreate, plan.ActReplace:
			a.ups <- struct{}{}
			return func() { <-a.ups }
		}
	}
	return func() {}
}

// after decides when to look at the sandbox next.
func (a *agent) after(ctx context.Context, address string, did bool, wake time.Time, err error) {
	rec := a.current(address)
	if rec == nil {
		a.forget(address)
		return
	}
	a.attend(ctx, address, rec)
	a.log.Debug("looked at one", "address", address, "did", did, "phase", phaseOf(rec), "wake_at", wake.UTC().Format(time.RFC3339))
	if err != nil {
		a.complain(address, "cannot keep", err, "again_at", rec.Retry.NextAt.UTC().Format(time.RFC3339))
	}
	a.mu.Lock()
	missed := a.missed[address]
	delete(a.missed, address)
	a.mu.Unlock()
	if missed {
		defer a.nudgeThese(address)
	}
	if !did && err == nil {
		a.mu.Lock()
		delete(a.paces, address)
		if wake.IsZero() {
			delete(a.due, address)
		} else {
			a.due[address] = wake
		}
		a.mu.Unlock()
		return
	}
	// Something was done: look once more, at once while that is progress.
	a.mu.Lock()
	p := a.paces[address]
	p.rounds++
	over := p.rounds - freeRounds
	var known *stepError
	if err != nil && !errors.As(err, &known) {
		over = max(over, p.rounds)
	}
	now := a.now()
	p.until = time.Time{}
	if over > 0 {
		p.until = now.Add(min(paceMin<<min(over-1, 10), paceMax))
	}
	a.paces[address] = p
	a.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if p.until.IsZero() {
		a.nudgeThese(address)
		return
	}
	a.mu.Lock()
	a.due[address] = p.until
	a.mu.Unlock()
	select {
	case a.kick <- struct{}{}: // the loop sleeps towards an older time
	default:
	}
}

// attend does for a sandbox what goes on beside the looks: its process is watched
// and probed, and its ports are served.
func (a *agent) attend(ctx context.Context, address string, rec *plan.Sandbox) {
	a.watch(ctx, rec)
	a.probes.follow(ctx, address, rec)
	a.relay.follow(address, rec)
}

// watch waits for the end of the sandbox's process, and of no other.
func (a *agent) watch(ctx context.Context, rec *plan.Sandbox) {
	var want watch
	if i := rec.Instance; live(rec) && i.PID != 0 {
		want = watch{id: i.ID, process: runtime.Process{PID: i.PID, StartTime: i.StartTime, BootID: i.BootID}}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	have, watching := a.watches[rec.Address]
	if watching && have.id == want.id && have.process == want.process {
		return
	}
	if watching {
		have.cancel()
		delete(a.watches, rec.Address)
	}
	if want.id == "" || ctx.Err() != nil {
		return
	}
	w, cancel := context.WithCancel(ctx)
	want.cancel = cancel
	a.watches[rec.Address] = want
	address := rec.Address
	a.work.Go(func() {
		defer cancel()
		err := a.host.WaitExit(w, want.id, want.process)
		if w.Err() != nil {
			return
		}
		if err != nil {
			a.log.Warn("cannot watch", "address", address, "error", err)
			return // the periodic look sees its end
		}
		a.nudgeThese(address)
	})
}

// unwatchAll ends all watches.
func (a *agent) unwatchAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for address, w := range a.watches {
		w.cancel()
		delete(a.watches, address)
	}
}
