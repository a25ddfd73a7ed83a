package reconcile

import (
	"context"
	"slices"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// List tells all sandboxes, observed afresh, sorted by address.
func (e *Engine) List(ctx context.Context, addresses ...string) (*ListResult, error) {
	res := &ListResult{FormatVersion: "1", Sandboxes: []SandboxView{}}
	if len(addresses) > 0 {
		for _, word := range addresses {
			address, err := e.resolve(word)
			if err != nil {
				return nil, err
			}
			v, err := e.viewOne(ctx, address)
			if err != nil {
				return nil, err
			}
			res.Sandboxes = append(res.Sandboxes, v)
		}
		return res, nil
	}
	seen, err := e.look(ctx)
	if err != nil {
		return nil, errorOf(err)
	}
	records := e.snapshot()
	now := e.now()
	for _, address := range sortedKeys(records.Sandboxes) {
		rec := records.Sandboxes[address]
		var s plan.Seen
		var there bool
		if rec.Instance != nil {
			s, there = seen.Instances[rec.Instance.ID]
		}
		res.Sandboxes = append(res.Sandboxes, e.viewOf(rec, plan.StatusOf(rec, s, there, seen.BootID, now)))
	}
	return res, nil
}

// viewOne looks at one sandbox and shows it; it stores nothing.
func (e *Engine) viewOne(ctx context.Context, address string) (SandboxView, error) {
	rec, ok := e.sandbox(address)
	if !ok {
		return SandboxView{}, e.notFound(address)
	}
	now, err := e.glance(ctx, rec)
	if err != nil {
		return SandboxView{}, errorOf(err)
	}
	return e.viewOf(rec, now.status(rec, e.now())), nil
}

func (e *Engine) viewOf(rec *plan.Sandbox, st plan.Status) SandboxView {
	mode, _ := plan.EffectiveMode(rec)
	declared := rec.Spec.OperatingMode
	if declared == "" {
		declared = "running"
	}
	v := SandboxView{
		Address: rec.Address, Generation: rec.Generation, Phase: st.Phase,
		Mode: mode, DeclaredMode: declared, Hold: rec.Hold,
		Ports: rec.Ports, Conditions: st.Conditions, Labels: rec.Spec.Labels,
		Volumes: map[string]string{}, Deposed: []string{},
	}
	for _, d := range rec.Deposed {
		v.Deposed = append(v.Deposed, d.Instance.ID)
	}
	if v.Ports == nil {
		v.Ports = map[string]plan.Port{}
	}
	if v.Labels == nil {
		v.Labels = map[string]string{}
	}
	for name, c := range rec.Spec.Volumes {
		v.Volumes[name] = c.Path
	}
	for _, m := range rec.Spec.Mounts {
		if m.Volume != "" {
			v.Volumes[m.Volume] = m.Path
		}
	}
	if rec.Net != nil {
		v.AddressV4 = pointer(rec.Net.Address.String())
	}
	if last := e.lastUse(rec); !last.IsZero() {
		v.LastActivity = pointer(last)
	}
	if !rec.Lease.EndedAt.IsZero() {
		v.EndedAt = pointer(rec.Lease.EndedAt)
	}
	if rec.Expired != nil {
		v.EndedAt = pointer(rec.Expired.Deadline)
	} else if at, _, ok := plan.Deadline(&rec.Spec, rec.Lease); ok {
		v.ExpiresAt = pointer(at)
	}
	if i := rec.Instance; i != nil {
		v.InstanceID, v.CreatedAt, v.Outcome = pointer(i.ID), pointer(i.CreatedAt), st.Outcome
		if !i.StartedAt.IsZero() {
			v.StartedAt = pointer(i.StartedAt)
		}
		if st.PID != 0 && (st.Phase == plan.Created || st.Phase == plan.Running || st.Phase == plan.Paused) {
			v.PID = pointer(st.PID)
		}
	}
	return v
}

func pointer[T any](v T) *T { return &v }

// Describe tells everything about one sandbox, and what will happen to it next.
func (e *Engine) Describe(ctx context.Context, word string) (*Description, error) {
	address, err := e.resolve(word)
	if err != nil {
		return nil, err
	}
	view, err := e.viewOne(ctx, address)
	if err != nil {
		return nil, err
	}
	rec, ok := e.sandbox(address)
	if !ok {
		return nil, e.notFound(address)
	}
	d := &Description{
		FormatVersion: "1", Sandbox: view, Spec: redactedSpec(&rec.Spec, rec.Sensitive), Sensitive: rec.Sensitive, Sources: rec.Sources, Lease: rec.Lease, Restarts: rec.Restarts, UID: rec.UID,
	}
	if d.Events, err = e.history(address, 20); err != nil {
		return nil, errorOf(err)
	}
	if d.Events == nil {
		d.Events = []Event{}
	}
	if d.Sources == nil {
		d.Sources = map[string]config.Position{}
	}
	return d, e.foresee(ctx, address, d)
}

// foresee asks the planner what this sandbox needs now, or when it will need
// something.
func (e *Engine) foresee(ctx context.Context, address string, d *Description) error {
	records := e.only(address)
	rec := records.Sandboxes[address]
	if rec == nil {
		return e.notFound(address)
	}
	now, err := e.glance(ctx, rec)
	if err != nil {
		return errorOf(err)
	}
	in := plan.Input{Records: records, Observed: now.Observed, Activity: e.activity.one(address), Now: e.now(), Trigger: plan.Keep, Limits: e.limits()}
	p := plan.Make(in)
	next := func(changes []plan.Change, at time.Time) {
		d.NextLook = pointer(at)
		if len(changes) > 0 {
			d.NextAction = string(changes[0].Action) + ": " + changes[0].Cause
		}
	}
	// A look that only warns of something is no news here: what comes after it is.
	for range 4 {
		changes := slices.DeleteFunc(ofSandbox(p, address), func(c plan.Change) bool { return c.Action == plan.ActNoop && c.Then == "" })
		if len(changes) > 0 {
			next(changes, in.Now)
			return nil
		}
		if p.WakeAt.IsZero() || !p.WakeAt.After(in.Now) {
			return nil
		}
		in.Now = p.WakeAt
		next(nil, in.Now)
		p = plan.Make(in)
	}
	return nil
}
