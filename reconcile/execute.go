package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
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

// run executes a plan. It decides nothing: it orders the plan's changes by what
// depends on what, runs independent ones side by side, and skips what depends
// on a failed one.
type run struct {
	e        *Engine
	source   *config.Source
	who      string
	verb     string // apply, destroy: what a refusal tells others
	progress func(Progress)
	stop     context.Context // done: start nothing more

	// declared holds what the files say of each sandbox, for what is recorded
	// beside the spec; nil when no files are involved.
	declared map[string]*config.Resource[config.Sandbox]

	nodes    []*node
	up       map[string]*node
	mu       sync.Mutex
	done     []plan.Change
	failures []Failure

	evalMu sync.Mutex
	fresh  *config.Desired // the last evaluation with exports, until one is too old
	index  map[string]int  // of fresh.Sandboxes by address
}

// node is one resource's part of the work: taking the old down, or bringing the
// new up. A replaced resource has both, so that what it stands on can be
// replaced in between.
type node struct {
	address string
	down    bool
	changes []plan.Change
	needs   []*node
	users   []*node // nodes that need this one
	pending int     // unfinished needs
	failed  string  // not empty: why this one or one it needs did not succeed
}

// graph builds the nodes and their order. Up: what it depends on first. Down:
// what depends on it first, and an old one before its successor.
func (r *run) graph(p *plan.Plan, records plan.Records) {
	up, down := map[string]*node{}, map[string]*node{}
	r.up = up
	get := func(m map[string]*node, address string, isDown bool) *node {
		n := m[address]
		if n == nil {
			n = &node{address: address, down: isDown}
			m[address] = n
			r.nodes = append(r.nodes, n)
		}
		return n
	}
	for _, c := range p.Changes {
		if c.Kind == "output" || c.Action == plan.ActNoop {
			continue
		}
		switch c.Action {
		case plan.ActDelete, plan.ActForget:
			get(down, c.Address, true).changes = append(get(down, c.Address, true).changes, c)
		case plan.ActReplace:
			get(down, c.Address, true).changes = append(get(down, c.Address, true).changes, c)
			get(up, c.Address, false).changes = append(get(up, c.Address, false).changes, c)
		default:
			get(up, c.Address, false).changes = append(get(up, c.Address, false).changes, c)
		}
	}
	edge := func(after, before *node) {
		if after != nil && before != nil && after != before && !slices.Contains(after.needs, before) {
			after.needs = append(after.needs, before)
			before.users = append(before.users, after)
		}
	}
	for address, n := range up {
		edge(n, down[address])
		for _, c := range n.changes {
			for _, dep := range c.DependsOn {
				edge(n, up[dep])
			}
		}
	}
	// Recorded dependencies: what stands on a thing goes, or leaves it, first.
	recorded := func(address string, deps []string) {
		for _, dep := range deps {
			if d := down[dep]; d != nil {
				if own := down[address]; own != nil {
					edge(d, own)
				} else if u := up[address]; u != nil && !slices.ContainsFunc(u.needs, func(x *node) bool { return x == up[dep] && up[dep] != nil }) {
					edge(d, u)
				}
			}
		}
	}
	for address, s := range records.Sandboxes {
		deps := s.DependsOn
		if s.Net != nil {
			deps = append([]string{s.Net.Network}, deps...)
		}
		for _, m := range s.Spec.Mounts {
			if m.Volume != "" {
				deps = append([]string{m.Volume}, deps...)
			}
		}
		recorded(address, append([]string{s.Spec.Image}, deps...))
	}
	for address, x := range records.Networks {
		recorded(address, x.DependsOn)
	}
	for address, x := range records.Volumes {
		recorded(address, x.DependsOn)
	}
	for address, x := range records.Images {
		recorded(address, x.DependsOn)
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
	left := len(r.nodes)
	for _, n := range r.nodes {
		n.pending = len(n.needs)
		if n.pending == 0 {
			ready <- n
		}
	}
	var wg sync.WaitGroup
	running := 0
	finish := func(n *node) {
		left--
		for _, u := range n.users {
			if n.failed != "" && u.failed == "" {
				u.failed = "skipped: " + n.address + " failed"
			}
			if u.pending--; u.pending == 0 {
				ready <- u
			}
		}
	}
	for left > 0 {
		var in chan *node
		if running < parallelism {
			in = ready
		}
		if running == 0 && len(ready) == 0 {
			r.cycle()
			return
		}
		select {
		case n := <-in:
			if n.failed == "" && r.stop.Err() != nil {
				n.failed = "not started: interrupted"
			}
			if n.failed != "" {
				r.skip(n)
				finish(n)
				continue
			}
			running++
			wg.Go(func() {
				r.node(work, n)
				done <- n
			})
		case n := <-done:
			running--
			finish(n)
		}
	}
	wg.Wait()
}

// cycle reports nodes that wait for each other; configurations cannot have
// cycles, so this is a mistake of ours, said rather than waited for.
func (r *run) cycle() {
	for _, n := range r.nodes {
		if n.pending > 0 {
			n.failed = "waits for itself through its dependencies"
			r.skip(n)
		}
	}
}

func (r *run) skip(n *node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range n.changes {
		r.failures = append(r.failures, Failure{Address: n.address, Action: c.Action, Skipped: true, Error: n.failed})
		r.tell(Progress{Address: n.address, Action: c.Action, State: "skipped", Message: n.failed})
	}
}

func (r *run) tell(p Progress) {
	if r.progress != nil {
		p.At = r.e.now()
		r.progress(p)
	}
}

// node runs one node's changes in order under the resource's lane.
func (r *run) node(ctx context.Context, n *node) {
	release, err := r.e.lanes.wait(r.stop, n.address, r.verb, r.who)
	if err != nil {
		n.failed = err.Error()
		r.skip(n)
		return
	}
	defer release()
	for i, c := range n.changes {
		begun := r.e.now()
		half := n.down && c.Action == plan.ActReplace
		action := c.Action
		if half {
			action = plan.ActDelete
		}
		r.tellLocked(Progress{Address: c.Address, Action: action, State: "started"})
		stop := r.heartbeat(c, begun)
		err := r.change(ctx, n, c)
		stop()
		elapsed := r.e.now().Sub(begun)
		if err != nil {
			n.failed = err.Error()
			r.mu.Lock()
			r.failures = append(r.failures, Failure{Address: c.Address, Action: c.Action, Error: err.Error()})
			for _, rest := range n.changes[i+1:] {
				r.failures = append(r.failures, Failure{Address: rest.Address, Action: rest.Action, Skipped: true, Error: "skipped: " + string(c.Action) + " failed"})
			}
			r.tell(Progress{Address: c.Address, Action: c.Action, State: "failed", Elapsed: elapsed, Message: err.Error()})
			r.mu.Unlock()
			return
		}
		r.mu.Lock()
		if !half {
			r.done = append(r.done, c)
		}
		r.tell(Progress{Address: c.Address, Action: action, State: "done", Elapsed: elapsed, Message: r.e.identity(c.Address)})
		r.mu.Unlock()
	}
}

func (r *run) tellLocked(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tell(p)
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
				r.tellLocked(Progress{Address: c.Address, Action: c.Action, State: "running", Elapsed: r.e.now().Sub(begun)})
			case <-quit:
				return
			}
		}
	})
	return func() { t.Stop(); close(quit); wg.Wait() }
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

func (r *run) change(ctx context.Context, n *node, c plan.Change) error {
	switch c.Kind {
	case "network":
		return r.networkChange(ctx, n, c)
	case "volume":
		return r.volumeChange(ctx, c)
	case "image":
		return r.imageChange(ctx, c)
	default:
		return r.sandboxChange(ctx, n, c)
	}
}

// sandboxChange runs one change on one sandbox. What is decided is in c; what
// is true now is in the record, read under the lane.
func (r *run) sandboxChange(ctx context.Context, n *node, c plan.Change) error {
	e := r.e
	rec, exists := e.sandbox(c.Address)
	if exists && c.Instance != "" && c.Action != plan.ActReplace && c.Action != plan.ActRecreate &&
		(rec.Instance == nil || rec.Instance.ID != c.Instance) {
		return &Error{Kind: Stale, Message: fmt.Sprintf("%s changed since the plan was made; plan again", c.Address)}
	}
	switch c.Action {
	case plan.ActCreate:
		want, spec, err := r.desired(c)
		if err != nil {
			return err
		}
		if !exists {
			rec = &plan.Sandbox{Address: c.Address, UID: newID(8), CreatedAt: e.now()}
		}
		e.adopt(rec, want, spec, exists)
		if err := e.forgetEnding(c.Address); err != nil {
			return err
		}
		return e.create(ctx, rec, c.Then)
	}
	if !exists && c.Action != plan.ActForget {
		return &Error{Kind: Stale, Message: fmt.Sprintf("%s is gone since the plan was made; plan again", c.Address)}
	}
	switch c.Action {
	case plan.ActUpdate, plan.ActRestart:
		if len(c.Unknown) > 0 {
			return r.again(ctx, n, c)
		}
		if err := e.update(ctx, rec, c, r.declared[c.Address]); err != nil {
			return err
		}
		if c.Action == plan.ActRestart {
			return e.restart(ctx, rec, c.Then)
		}
		return nil
	case plan.ActReplace:
		if n.down {
			if c.NewLease {
				rec.Lease, rec.Expired = plan.Lease{}, nil
			}
			rec.Retry = plan.Retry{}
			return e.detach(ctx, rec, "replaced")
		}
		want, spec, err := r.desired(c)
		if err != nil {
			return err
		}
		e.adopt(rec, want, spec, true)
		return e.create(ctx, rec, c.Then)
	case plan.ActRecreate:
		if rec.Instance != nil {
			if !c.Fresh {
				rec.CarryFrom = rec.Instance.ID
			}
			rec.Doomed = appendOnce(rec.Doomed, rec.Instance.ID)
			if rec.Instance.Phase == plan.Failed {
				rec.Retry = plan.Retry{}
			} else {
				rec.Retry = plan.Backoff(rec.Retry, e.now().Sub(rec.Instance.StartedAt), e.now(), rand.Float64(), "")
			}
			rec.Instance = nil
			if err := e.commit((&write{bump: true}).sandbox(copySandbox(rec)).event(e.eventOf(rec, "lost", c.Cause, ""))); err != nil {
				return err
			}
			failpoint("recreate.recorded")
		}
		return e.create(ctx, rec, c.Then)
	case plan.ActStart:
		return e.bringTo(ctx, rec, thenOf(c, "running"), false)
	case plan.ActStop:
		return e.stop(ctx, rec, "stop")
	case plan.ActSuspend:
		return e.stop(ctx, rec, "suspend")
	case plan.ActPause:
		return e.pause(ctx, rec)
	case plan.ActResume:
		return e.resume(ctx, rec)
	case plan.ActExpire:
		return e.expire(ctx, rec, c.Deadline)
	case plan.ActDelete:
		return e.delete(ctx, rec, reasonOf(c))
	case plan.ActRepair:
		return e.repair(ctx, rec)
	case plan.ActRelease:
		rec.Hold = nil
		return e.commit((&write{bump: true}).sandbox(rec).event(e.eventOf(rec, "release", c.Cause, "")))
	case plan.ActForget:
		return e.forgetEnding(c.Address)
	default:
		return fmt.Errorf("%s: cannot %s yet", c.Address, c.Action)
	}
}

func thenOf(c plan.Change, otherwise string) string {
	if c.Then != "" {
		return c.Then
	}
	return otherwise
}

func reasonOf(c plan.Change) string {
	if c.Reason != "" {
		return c.Reason
	}
	return "user_delete"
}

func (e *Engine) forgetEnding(address string) error {
	e.mu.Lock()
	_, ended := e.records.Ended[address]
	e.mu.Unlock()
	if !ended {
		return nil
	}
	w := &write{bump: true}
	set(&w.ended, address, nil)
	return e.commit(w)
}

// adopt takes the desired spec over into the record.
func (e *Engine) adopt(rec *plan.Sandbox, want *config.Resource[config.Sandbox], spec config.Sandbox, exists bool) {
	if !exists || !reflect.DeepEqual(rec.Spec, spec) {
		rec.Generation++
		rec.Retry = plan.Retry{}
	}
	rec.Spec = spec
	if want != nil {
		rec.Lifecycle, rec.DependsOn, rec.Sources = want.Lifecycle, want.DependsOn, want.Sources
	}
}

// update takes over what can change under a running process, and the record of
// everything else; the host is told of limits and ports.
func (e *Engine) update(ctx context.Context, rec *plan.Sandbox, c plan.Change, want *config.Resource[config.Sandbox]) error {
	var spec config.Sandbox
	if err := json.Unmarshal(c.After, &spec); err != nil {
		return fmt.Errorf("%s: plan holds no spec: %w", c.Address, err)
	}
	old := rec.Spec
	e.adopt(rec, want, spec, true)
	rec.Lease = rec.Lease.WithTTL(spec.Lifetime.TTL)
	if rec.Expired != nil {
		if at, _, ok := plan.Deadline(&rec.Spec, rec.Lease); !ok || at.After(rec.Expired.Deadline) {
			rec.Expired = nil
		}
	}
	if spec.OperatingMode != old.OperatingMode {
		rec.Hold = nil
	}
	if err := e.reserve(ctx, rec); err != nil {
		return err
	}
	w := &write{bump: true}
	w.event(e.eventOf(rec, "update", c.Cause, ""))
	if !live(rec) || c.Action == plan.ActRestart {
		return e.commit(w.sandbox(copySandbox(rec)))
	}
	in, err := e.begin(Intent{Op: opUpdate, Kind: "sandbox", Address: rec.Address, UID: rec.UID, Instance: rec.Instance.ID}, w.sandbox(copySandbox(rec)))
	if err != nil {
		e.release(rec.Address)
		return err
	}
	return e.applyUpdate(ctx, in, rec)
}

func (e *Engine) applyUpdate(ctx context.Context, in *Intent, rec *plan.Sandbox) error {
	inst, err := e.instanceOf(rec, rec.Instance.ID)
	if err == nil {
		err = e.host.Update(ctx, inst)
		failpoint("host.update.after")
	}
	if err != nil {
		return errors.Join(e.stepFailed(rec, fmt.Errorf("cannot update %s: %w", rec.Address, err)), e.end(in, nil))
	}
	return e.end(in, nil)
}

// repair re-makes host objects under the running process.
func (e *Engine) repair(ctx context.Context, rec *plan.Sandbox) error {
	in, err := e.begin(Intent{Op: opRepair, Kind: "sandbox", Address: rec.Address, UID: rec.UID, Instance: rec.Instance.ID}, nil)
	if err != nil {
		return err
	}
	inst, err := e.instanceOf(rec, rec.Instance.ID)
	if err == nil {
		err = e.host.Repair(ctx, inst)
		failpoint("host.repair.after")
	}
	if err != nil {
		return errors.Join(e.stepFailed(rec, fmt.Errorf("cannot repair %s: %w", rec.Address, err)), e.end(in, nil))
	}
	w := &write{}
	return e.end(in, w.event(e.eventOf(rec, "repair", "repaired", "")))
}

// desired is the spec a change ends in. What was unknown when it was planned is
// evaluated now that the things it depends on exist.
func (r *run) desired(c plan.Change) (*config.Resource[config.Sandbox], config.Sandbox, error) {
	var spec config.Sandbox
	if len(c.Unknown) == 0 {
		if len(c.After) == 0 { // an agent re-making what is recorded
			rec, ok := r.e.sandbox(c.Address)
			if !ok {
				return nil, spec, fmt.Errorf("%s: plan holds no spec", c.Address)
			}
			return r.declared[c.Address], rec.Spec, nil
		}
		if err := json.Unmarshal(c.After, &spec); err != nil {
			return nil, spec, fmt.Errorf("%s: plan holds no readable spec: %w", c.Address, err)
		}
		return r.declared[c.Address], spec, nil
	}
	res, err := r.evaluate(c.Address)
	if err != nil {
		return nil, spec, err
	}
	return res, res.Spec, nil
}

// evaluate finds the resource's spec with everything that exists now known.
func (r *run) evaluate(address string) (*config.Resource[config.Sandbox], error) {
	if r.source == nil {
		return nil, fmt.Errorf("%s has values that are known only with its configuration; apply from its directory", address)
	}
	r.evalMu.Lock()
	defer r.evalMu.Unlock()
	for pass := range 2 {
		if r.fresh == nil || pass == 1 {
			d, diags := r.source.Evaluate(r.e.settings, r.e.exports())
			if diags.HasErrors() {
				return nil, &Error{Kind: Invalid, Message: "the configuration cannot be evaluated now that what it refers to exists", Diagnostics: diags}
			}
			r.fresh, r.index = d, make(map[string]int, len(d.Sandboxes))
			for i := range d.Sandboxes {
				r.index[d.Sandboxes[i].Address] = i
			}
		}
		if i, ok := r.index[address]; ok && len(r.fresh.Sandboxes[i].Unknown) == 0 {
			return &r.fresh.Sandboxes[i], nil
		}
	}
	i, ok := r.index[address]
	if !ok {
		return nil, fmt.Errorf("%s is no longer declared once what it refers to exists", address)
	}
	return nil, fmt.Errorf("%s: still unknown: %s", address, strings.Join(r.fresh.Sandboxes[i].Unknown, ", "))
}

// again decides a change once more with what is known now: an attribute that
// was unknown at plan may turn out not to change at all.
func (r *run) again(ctx context.Context, n *node, c plan.Change) error {
	res, err := r.evaluate(c.Address)
	if err != nil {
		return err
	}
	seen, err := r.e.look(ctx)
	if err != nil {
		return err
	}
	d := &config.Desired{Sandboxes: []config.Resource[config.Sandbox]{*res}}
	all := r.e.snapshot()
	p := plan.Make(plan.Input{
		Desired: d, Records: only(all, c.Address), Observed: seen, Now: r.e.now(),
		Trigger: plan.Apply, Options: plan.Options{Targets: []string{c.Address}}, Limits: r.e.limits(),
	})
	if p.Diags.HasErrors() {
		return &Error{Kind: Invalid, Message: c.Address + " cannot be changed as its configuration now says", Diagnostics: p.Diags}
	}
	for _, next := range p.Changes {
		if next.Address != c.Address || next.Action == plan.ActNoop {
			continue
		}
		if next.Action == plan.ActReplace {
			if err := r.sandboxChange(ctx, &node{address: c.Address, down: true}, next); err != nil {
				return err
			}
		}
		if err := r.sandboxChange(ctx, &node{address: c.Address}, next); err != nil {
			return err
		}
	}
	return nil
}

// only narrows records to one sandbox and all that sandboxes stand on.
func only(r plan.Records, address string) plan.Records {
	s, ok := r.Sandboxes[address]
	r.Sandboxes = map[string]*plan.Sandbox{}
	if ok {
		r.Sandboxes[address] = s
	}
	return r
}
