package reconcile

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// Who acts, in the journal, the history and refusals.
const (
	byApply    = "apply"
	byAgent    = "agent"
	byOperator = "operator"
)

// DefaultParallelism is how many lanes of one apply run at a time.
const DefaultParallelism = 10

// stillRunning is how often progress says that a long step is still going on.
const stillRunning = 10 * time.Second

// run executes a plan. It decides nothing: it runs the plan's changes in the
// plan's order, independent ones side by side, and skips what waits for a failed
// one.
type run struct {
	*actor
	source   *config.Source
	options  plan.Options
	verb     string // apply, destroy: what a refusal tells others
	progress func(Progress)
	quit     context.Context // done: start nothing more
	lockWait time.Duration   // for a sandbox that somebody else is at
	override bool            // goes past a followed directory

	declared declared                 // what the files say, for what is recorded beside the specs
	base     map[string]*plan.Sandbox // the records that the plan was made from

	nodes []*node
	last  map[string]*node // of each address

	undecided map[judged]bool   // conditions that are to be told on the way
	triggered map[string]string // sandboxes replaced by replace_triggered_by, and what for

	mu          sync.Mutex
	held        map[string]func() // lanes, from an address's first node to its last
	done        []plan.Change
	failures    []Failure
	interrupted bool // something was not begun because of quit

	again evaluation
}

// node is changes of one address that follow each other in the plan. An address
// has a second one where the plan puts something else in between: a sandbox that
// is taken down, its network replaced, the sandbox replaced.
type node struct {
	address string
	changes []plan.Change
	users   []*node // nodes that wait for this one
	waits   int     // nodes that this one still waits for
	main    bool    // what is done to the thing itself, not a part that goes before or after
	failed  string  // not empty: why this one or one it waits for did not succeed
}

// graph turns the plan's list into nodes. A change waits for its address's
// earlier changes, and for all earlier changes of what it depends on.
func (r *run) graph(p *plan.Plan) {
	r.last = map[string]*node{}
	r.held = map[string]func(){}
	r.triggered = map[string]string{}
	var cur *node
	for _, c := range p.Changes {
		if c.Kind == "output" || c.Action == plan.ActNoop || c.Action == plan.ActMove || c.Action == plan.ActImport {
			continue // outputs come last, moves and imports came first
		}
		if cur == nil || cur.address != c.Address {
			cur = &node{address: c.Address}
			r.nodes = append(r.nodes, cur)
			for _, dep := range append([]string{c.Address}, c.DependsOn...) {
				if before := r.last[dep]; before != nil {
					before.users = append(before.users, cur)
					cur.waits++
				}
			}
			r.last[c.Address] = cur
		}
		cur.changes = append(cur.changes, c)
		cur.main = cur.main || !c.PartOfReplace() && c.Deposed == ""
		if by := c.TriggeredBy(); by != "" {
			r.triggered[c.Address] = by
		}
	}
}

// execute runs all nodes, at most parallelism at a time, and returns when
// nothing runs any more.
func (r *run) execute(ctx context.Context, parallelism int) {
	if parallelism <= 0 {
		parallelism = DefaultParallelism
	}
	work := context.WithoutCancel(ctx) // a step that began is finished
	ready := make(chan *node, len(r.nodes))
	done := make(chan *node, len(r.nodes))
	for _, n := range r.nodes {
		if n.waits == 0 {
			ready <- n
		}
	}
	var wg sync.WaitGroup
	running := 0
	finish := func(n *node) {
		for _, u := range n.users {
			if n.failed != "" && u.failed == "" {
				u.failed = n.failed
				if n.address != u.address && !r.interrupted {
					u.failed = "skipped: " + n.address + " failed"
				}
			}
			if u.waits--; u.waits == 0 {
				ready <- u
			}
		}
	}
	// The order is one in which the plan is written, so it has no cycles.
	for left := len(r.nodes); left > 0; {
		var in chan *node
		if running < parallelism {
			in = ready
		}
		select {
		case n := <-in:
			if n.failed == "" && r.quit.Err() != nil {
				n.failed = "not started: interrupted"
				r.mu.Lock()
				r.interrupted = true
				r.mu.Unlock()
			}
			if n.failed != "" {
				r.skip(n)
				finish(n)
				left--
				continue
			}
			running++
			wg.Go(func() {
				r.node(work, n)
				done <- n
			})
		case n := <-done:
			running--
			left--
			finish(n)
		}
	}
	wg.Wait()
}

func (r *run) skip(n *node) {
	r.mu.Lock()
	for _, c := range n.changes {
		r.failures = append(r.failures, Failure{Address: n.address, Action: c.Action, Deposed: c.Deposed, Skipped: true, Error: n.failed})
		r.tell(Progress{Address: n.address, Action: c.Action, Deposed: c.Deposed, State: "skipped", Message: n.failed})
	}
	r.mu.Unlock()
	r.leave(n)
}

func (r *run) tell(p Progress) {
	if r.progress != nil {
		p.At = r.now()
		r.progress(p)
	}
}

// enter takes the resource's lane, unless an earlier node of it left it taken.
func (r *run) enter(n *node) (first bool, err error) {
	r.mu.Lock()
	_, have := r.held[n.address]
	r.mu.Unlock()
	if have {
		return false, nil
	}
	release, err := r.lanes.wait(r.quit, r.lockWait, n.address, r.verb, r.by)
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	r.held[n.address] = release
	r.mu.Unlock()
	return true, nil
}

// leave gives the lane back after the resource's last node, so that nobody, an
// agent least of all, comes in between two.
func (r *run) leave(n *node) {
	if r.last[n.address] != n {
		return
	}
	r.mu.Lock()
	release := r.held[n.address]
	delete(r.held, n.address)
	r.mu.Unlock()
	if release != nil {
		release()
		r.wake(n.address)
	}
}

// node runs one node's changes in order under the resource's lane.
func (r *run) node(ctx context.Context, n *node) {
	first, err := r.enter(n)
	if err != nil && r.quit.Err() != nil {
		n.failed = "not started: interrupted"
		r.mu.Lock()
		r.interrupted = true
		r.mu.Unlock()
		r.skip(n)
		return
	}
	defer r.leave(n)
	changes := n.changes
	if err == nil && first && changes[0].Kind == "sandbox" && r.current(n.address) != r.base[n.address] {
		changes, err = r.replan(ctx, n)
	}
	if err == nil && n.main && len(changes) > 0 {
		err = r.judge(n.address, precondition)
	}
	if err != nil {
		r.fail(n, n.changes, time.Duration(0), err)
		return
	}
	for i, c := range changes {
		begun := r.now()
		r.mu.Lock()
		r.tell(Progress{Address: c.Address, Action: c.Action, Deposed: c.Deposed, State: "started"})
		r.mu.Unlock()
		stop := r.heartbeat(c, begun)
		err := r.change(ctx, c)
		stop()
		elapsed := r.now().Sub(begun)
		if err != nil {
			r.fail(n, changes[i:], elapsed, err)
			return
		}
		r.mu.Lock()
		r.done = append(r.done, c)
		r.mu.Unlock()
		if n.main && i == len(changes)-1 {
			r.again.made(n.address)
			if err := r.judge(n.address, postcondition); err != nil {
				r.fail(n, changes[i:], elapsed, err)
				return
			}
		}
		r.mu.Lock()
		r.tell(Progress{Address: c.Address, Action: c.Action, Deposed: c.Deposed, State: "done", Elapsed: elapsed, Message: r.made(&c)})
		r.mu.Unlock()
	}
	if n.main { // by a part that goes before it is not made yet
		r.again.made(n.address)
	}
}

// fail accounts for the first of changes, which failed, and the others, which
// are skipped for it.
func (r *run) fail(n *node, changes []plan.Change, elapsed time.Duration, err error) {
	c := changes[0]
	r.complain(c.Address, "cannot change", err, "action", c.Action, "cause", c.Cause, "by", r.by)
	n.failed = "skipped: " + string(c.Action) + " failed"
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, Failure{Address: c.Address, Action: c.Action, Deposed: c.Deposed, Error: err.Error()})
	r.tell(Progress{Address: c.Address, Action: c.Action, Deposed: c.Deposed, State: "failed", Elapsed: elapsed, Message: err.Error()})
	for _, rest := range changes[1:] {
		r.failures = append(r.failures, Failure{Address: rest.Address, Action: rest.Action, Deposed: rest.Deposed, Skipped: true, Error: n.failed})
		r.tell(Progress{Address: rest.Address, Action: rest.Action, Deposed: rest.Deposed, State: "skipped", Message: n.failed})
	}
}

// heartbeat tells every ten seconds that a step still runs.
func (r *run) heartbeat(c plan.Change, begun time.Time) (stop func()) {
	if r.progress == nil {
		return func() {}
	}
	t := time.NewTicker(stillRunning)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-t.C:
				r.mu.Lock()
				r.tell(Progress{Address: c.Address, Action: c.Action, Deposed: c.Deposed, State: "running", Elapsed: r.now().Sub(begun)})
				r.mu.Unlock()
			case <-quit:
				return
			}
		}
	})
	return func() { t.Stop(); close(quit); wg.Wait() }
}

// made is what progress shows of a change that is done: the id of what is there now.
func (e *Engine) made(c *plan.Change) string {
	if c.Deposed != "" {
		return ""
	}
	return e.identity(c.Address)
}

// identity is what progress shows of a finished resource: its id.
func (e *Engine) identity(address string) string {
	if s, ok := e.sandbox(address); ok && s.Instance != nil {
		return s.Instance.ID
	}
	if n, ok := e.network(address); ok {
		return n.ID
	}
	if v, ok := e.volume(address); ok {
		return v.ID
	}
	return ""
}

// change carries out one change and logs it. Its failure is for the caller to tell.
func (r *run) change(ctx context.Context, c plan.Change) error {
	err := r.step(ctx, c)
	if err == nil {
		r.changed(&c)
	}
	return err
}

func (r *run) step(ctx context.Context, c plan.Change) error {
	switch c.Kind {
	case "network":
		return r.networkChange(ctx, c)
	case "volume":
		return r.volumeChange(ctx, c)
	case "image":
		return r.imageChange(ctx, c)
	case "sandbox":
		return r.sandboxChange(ctx, c)
	default:
		return fmt.Errorf("%s: there is no kind %q", c.Address, c.Kind)
	}
}

// replan is for a sandbox that the agent or an operator changed after the plan
// was made: what it needs now is found out again. Nothing else than what was
// shown is done without asking.
func (r *run) replan(ctx context.Context, n *node) ([]plan.Change, error) {
	next, err := r.planOne(ctx, n.address)
	if err != nil {
		return nil, err
	}
	shown := map[plan.Action]bool{}
	for _, c := range n.changes {
		shown[c.Action] = true
	}
	if r.last[n.address] != n {
		// What is deposed has a node of its own, later.
		next = slices.DeleteFunc(next, func(c plan.Change) bool { return c.Deposed != "" })
	}
	for _, c := range next {
		if !shown[c.Action] {
			return nil, &Error{Kind: Stale, Message: fmt.Sprintf("%s changed since the plan was made and now needs %s (%s); plan again", n.address, c.Action, c.Cause)}
		}
	}
	return next, nil
}
