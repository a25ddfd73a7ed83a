package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

const (
	// fullLook is how often the whole host is looked at though nothing happened:
	// what leaves no event (a deleted link, flushed rules) is found then.
	fullLook = 30 * time.Second
	// clockTick is how often the wall clock is compared with the next deadline,
	// so that a stepped clock or a host that slept is noticed within seconds.
	clockTick = time.Second
	// settle is how long after an event a pass waits for more of them.
	settle = 5 * time.Millisecond
)

// AgentOptions configure a resident agent.
type AgentOptions struct {
	OpenOptions
	ConfigDir    string        // follow this directory; empty: keep what is recorded
	Inputs       config.Inputs // values for it
	AllowDestroy []string      // digests that may delete more than max_destroy
	Ready        func()        // called once the socket serves and the first pass is planned
}

// agent keeps what was applied: it sleeps until the planner wants to look again,
// a process ends, a verb or apply changed something, or a bounded time passed;
// then it observes, plans, and carries out each sandbox's part in its own lane.
type agent struct {
	e    *Engine
	log  hclog.Logger
	kick chan struct{}

	mu       sync.Mutex
	watching map[string]context.CancelFunc // by instance id and pid
	busy     map[string]bool               // addresses whose lane of ours runs
	lanes    sync.WaitGroup
}

func newAgent(e *Engine) *agent {
	a := &agent{
		e: e, log: e.log, kick: make(chan struct{}, 1),
		watching: map[string]context.CancelFunc{}, busy: map[string]bool{},
	}
	e.nudge = a.nudge
	return a
}

// nudge asks for a pass soon; it never blocks.
func (a *agent) nudge() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// loop runs until ctx ends, then waits for the lanes that run.
func (a *agent) loop(ctx context.Context, ready func()) error {
	defer a.lanes.Wait()
	defer a.unwatch(nil)
	tick := time.NewTicker(clockTick)
	defer tick.Stop()
	var wake, lastLook time.Time
	for first := true; ; first = false {
		var err error
		lastLook = a.e.now()
		if wake, err = a.pass(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			a.log.Error("cannot look after the sandboxes", "error", err)
			wake = a.e.now().Add(clockTick)
		}
		if first && ready != nil {
			ready()
		}
		if !a.sleep(ctx, tick, wake, lastLook) {
			return nil
		}
	}
}

// sleep returns true when it is time for a pass, false when ctx is over.
func (a *agent) sleep(ctx context.Context, tick *time.Ticker, wake, lastLook time.Time) bool {
	var due <-chan time.Time
	if !wake.IsZero() {
		t := time.NewTimer(max(settle, wake.Sub(a.e.now())))
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
			now := a.e.now()
			if (!wake.IsZero() && !now.Before(wake)) || now.Sub(lastLook) >= fullLook || now.Before(lastLook) {
				return true
			}
		case <-a.kick:
			// One event seldom comes alone; gather its neighbours.
			t := time.NewTimer(settle)
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

// pass looks, plans, and starts what is to be done. It does not wait for it: a
// stuck sandbox delays nobody.
func (a *agent) pass(ctx context.Context) (wake time.Time, err error) {
	seen, err := a.e.look(ctx)
	if err != nil {
		return time.Time{}, err
	}
	records := a.e.snapshot()
	p := plan.Make(plan.Input{
		Records: records, Observed: seen, Now: a.e.now(), Trigger: plan.Keep, Limits: a.e.limits(),
	})
	a.watch(ctx, &records, p)
	changed := map[string]bool{}
	network := false
	for _, c := range p.Changes {
		if c.Action == plan.ActNoop {
			continue
		}
		changed[c.Address] = true
		network = network || c.Kind != "sandbox"
	}
	for _, address := range sortedKeys(p.Status) {
		// Lanes of ours and others' take over what they find themselves.
		if release, holder := a.e.lanes.try(address, "status", byAgent); holder == nil {
			err := a.e.takeStatus(address, p.Status[address])
			release()
			if err != nil {
				return time.Time{}, err
			}
		}
	}
	if network {
		a.repairShared(ctx, p)
	}
	for _, address := range sortedKeys(changed) {
		if _, ok := records.Sandboxes[address]; ok {
			a.lane(ctx, address)
		}
	}
	return p.WakeAt, nil
}

// repairShared mends networks and volumes before the sandboxes that use them.
func (a *agent) repairShared(ctx context.Context, p *plan.Plan) {
	r := &run{e: a.e, who: byAgent, verb: "keep", stop: ctx}
	for _, c := range p.Changes {
		if c.Kind == "sandbox" || c.Action == plan.ActNoop {
			continue
		}
		release, holder := a.e.lanes.try(c.Address, "keep", byAgent)
		if holder != nil {
			continue
		}
		if err := r.change(context.WithoutCancel(ctx), &node{address: c.Address}, c); err != nil {
			a.log.Error("cannot mend", "address", c.Address, "error", err)
		}
		release()
	}
}

// lane converges one sandbox on its own, unless somebody else is at it; they
// will nudge when they are done.
func (a *agent) lane(ctx context.Context, address string) {
	release, holder := a.e.lanes.try(address, "keep", byAgent)
	if holder != nil {
		return
	}
	a.lanes.Go(func() {
		defer a.nudge()
		defer release()
		if err := a.e.converge(context.WithoutCancel(ctx), address, byAgent); err != nil {
			a.log.Error("cannot converge", "address", address, "error", err)
		}
	})
}

// watch waits for the end of every live process, and for no other.
func (a *agent) watch(ctx context.Context, records *plan.Records, p *plan.Plan) {
	want := map[string]runtime.Process{}
	ids := map[string]string{}
	for address, rec := range records.Sandboxes {
		i := rec.Instance
		st, ok := p.Status[address]
		if i == nil || !ok {
			continue
		}
		pid, start, phase := i.PID, i.StartTime, i.Phase
		if st.PID != 0 {
			pid, start, phase = st.PID, st.StartTime, st.Phase
		}
		if pid == 0 || (phase != plan.Created && phase != plan.Running && phase != plan.Paused) {
			continue
		}
		key := fmt.Sprintf("%s/%d/%d", i.ID, pid, start)
		want[key] = runtime.Process{PID: pid, StartTime: start, BootID: i.BootID}
		ids[key] = i.ID
	}
	a.unwatch(want)
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, proc := range want {
		if a.watching[key] != nil {
			continue
		}
		w, cancel := context.WithCancel(ctx)
		a.watching[key] = cancel
		id := ids[key]
		a.lanes.Go(func() {
			err := a.e.host.WaitExit(w, id, proc)
			cancel()
			a.mu.Lock()
			delete(a.watching, key)
			a.mu.Unlock()
			if err == nil {
				a.nudge()
			} else if !errors.Is(err, context.Canceled) {
				a.log.Warn("cannot watch", "instance", id, "error", err)
			}
		})
	}
}

// unwatch ends the waits that are not wanted any more.
func (a *agent) unwatch(want map[string]runtime.Process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, cancel := range a.watching {
		if _, ok := want[key]; !ok {
			cancel()
		}
	}
}
