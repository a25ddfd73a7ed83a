package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// What is seen on the host becomes the recorded status here, and nowhere else.

// sight is one look at the host, in its own words and in the planner's.
type sight struct {
	plan.Observed
	processes map[string]runtime.Process // of live instances, by id
}

func sightOf(o runtime.Observation) sight {
	s := sight{Observed: observedOf(o), processes: make(map[string]runtime.Process, len(o.Instances))}
	for id, in := range o.Instances {
		if in.Alive && in.Unknown == "" {
			s.processes[id] = in.Process
		}
	}
	return s
}

// hide takes the sandboxes' old instances out of the sight. They are ours, on
// record, and to be removed before anything else happens: nothing to go on with
// for a planner that looks for survivors.
func (s *sight) hide(records map[string]*plan.Sandbox) {
	for _, rec := range records {
		for _, id := range rec.Doomed {
			delete(s.Instances, id)
		}
		if rec.CarryFrom != "" {
			delete(s.Instances, rec.CarryFrom)
		}
	}
}

// observe looks at the whole host. An instance's mark has the address that its sandbox
// had when it was made; of those on no record the note tells the last one.
func (e *Engine) observe(ctx context.Context) (runtime.Observation, error) {
	o, err := e.host.Observe(ctx)
	if err != nil {
		return o, err
	}
	known := e.instancesOnRecord()
	var noted map[string]runtime.Noted
	for id, in := range o.Instances {
		if known[id] {
			continue
		}
		if noted == nil {
			if noted, err = e.host.Notes(ctx); err != nil {
				e.log.Debug("cannot read the notes beside instances", "error", err)
				break // the mark's is as good as any, then
			}
		}
		if doc, ok := readNote(id, noted[id]); ok {
			in.Mark.Address = doc.Sandbox.Address
			o.Instances[id] = in
		}
	}
	return o, nil
}

// look observes the whole host.
func (e *Engine) look(ctx context.Context) (sight, error) {
	o, err := e.observe(ctx)
	if err != nil {
		return sight{}, fmt.Errorf("cannot look at the host: %w", err)
	}
	e.noteMissing(o)
	e.alloc.avoid(o, e.instancesOnRecord(), e.networksOnRecord())
	s := sightOf(o)
	e.probes.fill(&s)
	return s, nil
}

// glance looks at one sandbox's own instance only, which costs the same however
// many others there are. Networks and volumes are not looked at.
func (e *Engine) glance(ctx context.Context, rec *plan.Sandbox) (sight, error) {
	o := runtime.Observation{Instances: map[string]runtime.InstanceState{}}
	if rec.Instance != nil {
		in, there, err := e.host.Inspect(ctx, rec.Instance.ID)
		if err != nil {
			return sight{}, fmt.Errorf("cannot look at %s: %w", rec.Address, err)
		}
		if there {
			o.Instances[rec.Instance.ID] = in
			o.BootID = in.Process.BootID
		}
	}
	s := sightOf(o)
	e.probes.fill(&s)
	s.Networks, s.Volumes = nil, nil
	return s, nil
}

// closeLook is a glance before something is decided. Of a sandbox whose instance is
// gone, others may live: then everything is looked at, so that none is made beside
// them.
func (e *Engine) closeLook(ctx context.Context, rec *plan.Sandbox) (sight, error) {
	s, err := e.glance(ctx, rec)
	if err != nil {
		return s, err
	}
	if phase := s.status(rec, e.now()).Phase; phase != plan.Lost && phase != plan.Pending {
		return s, nil
	}
	all, err := e.look(ctx)
	if err != nil {
		return s, err
	}
	all.hide(map[string]*plan.Sandbox{rec.Address: rec})
	for id, seen := range all.Instances {
		if seen.UID == rec.UID {
			s.Instances[id] = seen
			if p, ok := all.processes[id]; ok {
				s.processes[id] = p
			}
		}
	}
	s.BootID = all.BootID
	return s, nil
}

// status is what StatusOf says of rec in this sight.
func (s *sight) status(rec *plan.Sandbox, now time.Time) plan.Status {
	var seen plan.Seen
	var there bool
	if rec.Instance != nil {
		seen, there = s.Instances[rec.Instance.ID]
	}
	return plan.StatusOf(rec, seen, there, s.BootID, now)
}

// alive tells whether an instance in this phase has a PID 1.
func alive(p plan.Phase) bool {
	return p == plan.Created || p == plan.Running || p == plan.Paused
}

// ends tells whether by st a process that the record has is no more.
func ends(rec *plan.Sandbox, st *plan.Status) bool {
	return live(rec) && (st.Phase == plan.Stopped || st.Phase == plan.Lost)
}

// writeStatus puts st into rec, a copy, and into w with the events it means.
func (e *Engine) writeStatus(w *write, rec *plan.Sandbox, st *plan.Status, s *sight) {
	i := rec.Instance
	if i != nil && st.Rebind != "" && i.ID != st.Rebind {
		rec.Doomed = appendOnce(rec.Doomed, i.ID) // what is left of it has no process
		i.ID = st.Rebind
		w.bump = true
		w.event(e.eventOf(rec, "rebound", "survivor", "the recorded instance is gone; this one of the same sandbox lives"))
	}
	if i != nil {
		if i.Phase != st.Phase {
			typ, why, message := string(st.Phase), st.StoppedBy, ""
			if st.Phase == plan.Stopped {
				typ = "exited"
			}
			if st.Outcome != nil {
				message = DescribeOutcome(st.Outcome)
			}
			ev := e.eventOf(rec, typ, why, message)
			if st.Phase == plan.Stopped && st.Outcome != nil {
				ev.EndedAt = st.Outcome.At
			}
			w.event(ev)
			w.bump = true
			if st.Phase == plan.Paused { // by something else than pinfold
				e.execs.paused(rec)
			}
		}
		i.Phase, i.StoppedBy = st.Phase, st.StoppedBy
		if st.Outcome != nil {
			i.Outcome = st.Outcome
		}
		switch {
		case !alive(st.Phase):
			i.PID, i.StartTime = 0, 0
		case st.PID != 0:
			i.PID, i.StartTime, i.Outcome = st.PID, st.StartTime, nil
			if p, ok := s.processes[i.ID]; ok {
				i.BootID = p.BootID
			}
		}
	}
	if st.Conditions != nil {
		rec.Conditions = st.Conditions
	}
	w.sandbox(rec)
}

// DescribeOutcome is how a process ended, in the words of events.
func DescribeOutcome(o *plan.Outcome) string {
	switch {
	case o.OOM:
		return "out of memory"
	case o.Signal != 0:
		return fmt.Sprintf("signal %d", o.Signal)
	default:
		return fmt.Sprintf("exit code %d", o.ExitCode)
	}
}

// take records st, which was made from the record as it is now, where it
// differs. The caller holds the lane. What a process that ended still holds of
// the host (cgroup, network namespace, ports) is released before its end is on
// record, so that no crash leaves it behind.
func (e *actor) take(ctx context.Context, rec *plan.Sandbox, st *plan.Status, s *sight) (*plan.Sandbox, error) {
	if !plan.Differs(rec, st) {
		return rec, nil
	}
	rec = copySandbox(rec)
	if ends(rec, st) {
		if _, err := e.host.Stop(ctx, rec.Instance.ID, runtime.StopOptions{}); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return nil, fmt.Errorf("cannot release what the ended process of %s left: %w", rec.Address, err)
		}
	}
	w := &write{}
	e.writeStatus(w, rec, st, s)
	if err := e.commit(w); err != nil {
		return nil, err
	}
	e.noticed(w.events)
	return copySandbox(rec), nil
}

// takeAll records what a look found to be true of all sandboxes of a plan, in
// one transaction, and returns the records as they are then. A sandbox that
// somebody else is at, or was since the plan's records were read, or whose ended
// process cannot be cleared away, has no entry.
func (e *actor) takeAll(ctx context.Context, status map[string]plan.Status, records map[string]*plan.Sandbox, s *sight, skip func(address string) bool) (map[string]*plan.Sandbox, error) {
	now := make(map[string]*plan.Sandbox, len(records))
	var releases []func()
	defer func() {
		for _, release := range releases {
			release()
		}
	}()
	w := &write{}
	var ended []string
	for _, address := range sortedKeys(status) {
		rec, st := records[address], status[address]
		if skip != nil && skip(address) {
			continue
		}
		if !plan.Differs(rec, &st) {
			if e.current(address) == rec {
				now[address] = rec
			}
			continue
		}
		release, holder := e.lanes.try(address, "status", e.by)
		if holder != nil {
			continue
		}
		releases = append(releases, release)
		switch {
		case e.current(address) != rec:
		case ends(rec, &st):
			ended = append(ended, address)
		default:
			c := copySandbox(rec)
			e.writeStatus(w, c, &st, s)
			now[address] = c
		}
	}
	if len(w.sandboxes) > 0 {
		if err := e.commit(w); err != nil {
			return nil, err
		}
		e.noticed(w.events)
	}
	var mu sync.Mutex
	each(ended, DefaultParallelism, func(address string) {
		st := status[address]
		_, err := e.take(ctx, records[address], &st, s)
		mu.Lock()
		defer mu.Unlock()
		if err != nil { // its own step, if the plan has one, meets it again
			e.log.Warn("cannot take over what was seen", "address", address, "error", err)
			return
		}
		now[address] = e.current(address)
	})
	return now, nil
}

// each runs do for all of list, at most n at a time.
func each[T any](list []T, n int, do func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, n)
	for _, x := range list {
		slots <- struct{}{}
		wg.Go(func() {
			do(x)
			<-slots
		})
	}
	wg.Wait()
}
