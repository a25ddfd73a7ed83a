package reconcile

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/state"
)

const (
	metaConfigDir = "config_dir" // the directory this state serves
	metaDigest    = "digest"     // of the configuration last applied without an error
)

// prepared is a plan with all that running it needs.
type prepared struct {
	PlanResult
	desired *config.Desired
	records plan.Records
	source  *config.Source
	options plan.Options
}

// Plan makes a plan and changes nothing.
func (e *Engine) Plan(ctx context.Context, r PlanRequest) (*PlanResult, error) {
	p, err := e.prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	return &p.PlanResult, nil
}

func (e *Engine) prepare(ctx context.Context, r PlanRequest) (*prepared, error) {
	if r.Source == nil {
		return nil, &Error{Kind: Invalid, Message: "a plan needs a configuration"}
	}
	if err := e.bound(r.Source.Dir, r.TakeOver); err != nil {
		return nil, err
	}
	p := &prepared{source: r.Source, options: r.Options}
	p.Lineage, p.Digest = e.store.Lineage(), r.Source.Digest()
	p.records = e.snapshot()
	p.Serial = p.records.Serial
	var seen plan.Observed
	var err error
	if r.Options.NoRefresh {
		seen = believed(&p.records)
	} else if seen, err = e.look(ctx); err != nil {
		return nil, err
	}
	now := e.now()
	exports := e.exports()
	for range unsettledRounds {
		var diags config.Diagnostics
		p.desired, diags = r.Source.Evaluate(e.settings, exports)
		if diags.HasErrors() {
			return nil, &Error{Kind: Invalid, Message: "the configuration is not valid", Diagnostics: diags}
		}
		p.Plan = plan.Make(plan.Input{
			Desired: p.desired, Records: p.records, Observed: seen, Now: now,
			Trigger: plan.Apply, Options: r.Options, Limits: e.limits(),
		})
		p.Diagnostics = append(diags, p.Plan.Diags...)
		// What the plan itself makes anew has no exports until then: what refers
		// to it is unknown, and may have to change as well.
		settled := true
		for _, address := range p.Plan.Unsettled() {
			if _, known := exports[address]; known {
				delete(exports, address)
				settled = false
			}
		}
		if settled {
			break
		}
	}
	return p, nil
}

// unsettledRounds bounds how often a plan is made again because something it
// replaces is referred to by something else; each round takes exports away.
const unsettledRounds = 16

func (e *Engine) limits() plan.Limits {
	return plan.Limits{MaxLifetime: time.Duration(e.settings.MaxLifetime)}
}

// look observes the host in the planner's words.
func (e *Engine) look(ctx context.Context) (plan.Observed, error) {
	o, err := e.host.Observe(ctx)
	if err != nil {
		return plan.Observed{}, fmt.Errorf("cannot look at the host: %w", err)
	}
	return observedOf(o), nil
}

// believed is the last seen status put as an observation, for -refresh=false.
func believed(r *plan.Records) plan.Observed {
	o := plan.Observed{Instances: map[string]plan.Seen{}, Networks: map[string]plan.SeenNetwork{}, Volumes: map[string]bool{}}
	for _, s := range r.Sandboxes {
		if i := s.Instance; i != nil {
			o.BootID = i.BootID
			o.Instances[i.ID] = plan.Seen{
				UID: s.UID, Layer: true, PID: i.PID, StartTime: i.StartTime,
				Alive:   i.Phase == plan.Created || i.Phase == plan.Running || i.Phase == plan.Paused,
				Started: i.Phase == plan.Running || i.Phase == plan.Paused,
				Frozen:  i.Phase == plan.Paused, Outcome: i.Outcome,
			}
		}
		for _, id := range s.Claim {
			o.Volumes[id] = true
		}
	}
	for _, n := range r.Networks {
		o.Networks[n.ID] = plan.SeenNetwork{Exists: n.Made}
	}
	for _, v := range r.Volumes {
		o.Volumes[v.ID] = v.Made
	}
	return o
}

// bound refuses a configuration from another directory than the one this state
// serves. A state without any record serves whoever comes.
func (e *Engine) bound(dir string, takeOver bool) error {
	var have string
	if err := e.store.View(func(tx state.Tx) error { have = tx.Meta(metaConfigDir); return nil }); err != nil {
		return err
	}
	if have == "" || have == dir || takeOver || e.empty() {
		return nil
	}
	return &Error{Kind: Invalid, Message: fmt.Sprintf(
		"state %s serves the configuration in %s, not %s; run pinfold there, give this one its own -state-dir and -run-dir, or move the state over with -take-over",
		filepath.Dir(e.store.Path()), have, dir)}
}

func (e *Engine) empty() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.records.Sandboxes)+len(e.records.Networks)+len(e.records.Volumes)+len(e.records.Images)+len(e.records.Ended) == 0
}

// Apply makes a plan, has it confirmed, and runs it.
func (e *Engine) Apply(ctx context.Context, r ApplyRequest, confirm func(*PlanResult) (bool, error), progress func(Progress)) (*ApplyResult, error) {
	if err := e.takeTurn(ctx, r.LockWait); err != nil {
		return nil, err
	}
	defer func() { <-e.applies }()
	if err := e.following.allows(&r); err != nil {
		return nil, err
	}
	req := r.PlanRequest
	if r.Saved != nil {
		if err := e.current(r.Saved); err != nil {
			return nil, err
		}
		req.Source, req.Options = r.Saved.Source, r.Saved.Options
	}
	p, err := e.prepare(ctx, req)
	if err != nil {
		return nil, err
	}
	res := &ApplyResult{PlanResult: p.PlanResult}
	if r.Saved != nil {
		if err := sameWork(r.Saved.Result.Plan, p.Plan); err != nil {
			return nil, err
		}
	}
	if p.Diagnostics.HasErrors() {
		return res, &Error{Kind: Invalid, Message: "the plan cannot be applied", Diagnostics: p.Diagnostics}
	}
	if !r.AutoApprove && r.Saved == nil && confirm != nil {
		yes, err := confirm(&res.PlanResult)
		if err != nil {
			return res, err
		}
		if !yes {
			res.Declined = true
			return res, nil
		}
		if e.snapshot().Serial != p.Serial {
			return res, &Error{Kind: Stale, Message: "the state changed while the plan waited for approval; run apply again"}
		}
	}
	if err := ctx.Err(); err != nil {
		res.Interrupted = true
		return res, nil
	}
	return res, e.execute(ctx, p, r, progress, res)
}

// takeTurn waits for another apply that runs in this process.
func (e *Engine) takeTurn(ctx context.Context, wait time.Duration) error {
	if wait <= 0 {
		wait = 10 * time.Second
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case e.applies <- struct{}{}:
		return nil
	case <-t.C:
		return &Error{Kind: Locked, Message: fmt.Sprintf("another apply has been running for longer than %s; wait for it or raise -lock-timeout", wait)}
	case <-ctx.Done():
		return &Error{Kind: Interrupted, Message: "interrupted while waiting for another apply"}
	}
}

// execute runs a prepared plan and records what it was for.
func (e *Engine) execute(ctx context.Context, p *prepared, r ApplyRequest, progress func(Progress), res *ApplyResult) error {
	if err := e.bind(p); err != nil {
		return err
	}
	if err := e.takeOver(p.Plan); err != nil {
		return err
	}
	run := &run{e: e, source: p.source, who: byApply, verb: "apply", progress: progress, stop: ctx}
	if p.options.Destroy {
		run.verb = "destroy"
	}
	run.declared = make(map[string]*config.Resource[config.Sandbox], len(p.desired.Sandboxes))
	for i := range p.desired.Sandboxes {
		run.declared[p.desired.Sandboxes[i].Address] = &p.desired.Sandboxes[i]
	}
	run.graph(p.Plan, p.records)
	run.execute(ctx, r.Parallelism)
	res.Applied, res.Failures = plan.Summarize(run.done), run.failures
	res.Interrupted = ctx.Err() != nil
	if err := e.finishApply(p, res); err != nil {
		return err
	}
	if e.nudge != nil {
		e.nudge()
	} else {
		res.Warnings = append(res.Warnings, e.unwatched()...)
	}
	if len(res.Failures) > 0 && !res.Interrupted {
		return applyFailed(res.Failures)
	}
	return nil
}

func applyFailed(failures []Failure) *Error {
	err := &Error{Kind: Internal, Message: fmt.Sprintf("%d of the planned changes failed", len(failures))}
	for _, f := range failures {
		err.Diagnostics = append(err.Diagnostics, config.Diagnostic{
			Severity: "error", Summary: f.Address + ": " + string(f.Action) + " failed", Detail: f.Error, Address: f.Address,
		})
	}
	return err
}

func (e *Engine) bind(p *prepared) error {
	w := &write{meta: map[string]string{metaConfigDir: p.source.Dir}}
	return e.commit(w)
}

// takeOver stores what a plan found to be true of recorded sandboxes.
func (e *Engine) takeOver(p *plan.Plan) error {
	for _, address := range sortedKeys(p.Status) {
		if err := e.takeStatus(address, p.Status[address]); err != nil {
			return err
		}
	}
	return nil
}

// takeStatus stores one sandbox's observed status where it differs, and tells
// the history when the process ended or the sandbox was lost.
func (e *Engine) takeStatus(address string, st plan.Status) error {
	rec, ok := e.sandbox(address)
	if !ok {
		return nil
	}
	changed := false
	w := &write{}
	if st.Rebind != "" && rec.Instance != nil && rec.Instance.ID != st.Rebind {
		rec.Instance.ID, rec.Instance.PID, rec.Instance.StartTime = st.Rebind, st.PID, st.StartTime
		w.bump, changed = true, true
		w.event(e.eventOf(rec, "rebound", "survivor", "the recorded instance is gone; this one of the same sandbox lives"))
	}
	if i := rec.Instance; i != nil && (i.Phase != st.Phase || i.StoppedBy != st.StoppedBy || (st.Outcome != nil && i.Outcome == nil)) {
		if i.Phase != st.Phase {
			typ, why := string(st.Phase), st.StoppedBy
			if st.Phase == plan.Stopped {
				typ = "exited"
			}
			msg := ""
			if st.Outcome != nil {
				msg = describeOutcome(st.Outcome)
			}
			w.event(e.eventOf(rec, typ, why, msg))
		}
		i.Phase, i.StoppedBy = st.Phase, st.StoppedBy
		if st.Outcome != nil {
			i.Outcome = st.Outcome
		}
		if st.Phase != plan.Created && st.Phase != plan.Running && st.Phase != plan.Paused {
			i.PID, i.StartTime = 0, 0
		} else if st.PID != 0 {
			i.PID, i.StartTime = st.PID, st.StartTime
		}
		changed = true
	}
	if st.Conditions != nil && !slices.Equal(rec.Conditions, st.Conditions) {
		rec.Conditions = st.Conditions
		changed = true
	}
	if !changed {
		return nil
	}
	return e.commit(w.sandbox(rec))
}

func describeOutcome(o *plan.Outcome) string {
	switch {
	case o.OOM:
		return "out of memory"
	case o.Signal != 0:
		return fmt.Sprintf("signal %d", o.Signal)
	default:
		return fmt.Sprintf("exit code %d", o.ExitCode)
	}
}

// finishApply records, beside the changes themselves, what the files say of
// unchanged resources (lifecycle, sources), the outputs, and the digest.
func (e *Engine) finishApply(p *prepared, res *ApplyResult) error {
	if p.options.RefreshOnly {
		return nil
	}
	w := &write{}
	for i := range p.desired.Sandboxes {
		want := &p.desired.Sandboxes[i]
		rec, ok := e.sandbox(want.Address)
		if !ok || p.options.Destroy {
			continue
		}
		if rec.Lifecycle.PreventDestroy == want.Lifecycle.PreventDestroy &&
			slices.Equal(rec.Lifecycle.IgnoreChanges, want.Lifecycle.IgnoreChanges) &&
			slices.Equal(rec.DependsOn, want.DependsOn) && mapsEqual(rec.Sources, want.Sources) {
			continue
		}
		rec.Lifecycle, rec.DependsOn, rec.Sources = want.Lifecycle, want.DependsOn, want.Sources
		w.sandbox(rec)
	}
	if !p.options.Destroy {
		for i := range p.desired.Networks {
			if rec, ok := e.network(p.desired.Networks[i].Address); ok {
				rec.Lifecycle, rec.DependsOn = p.desired.Networks[i].Lifecycle, p.desired.Networks[i].DependsOn
				set(&w.networks, rec.Address, rec)
			}
		}
		for i := range p.desired.Volumes {
			if rec, ok := e.volume(p.desired.Volumes[i].Address); ok {
				rec.Lifecycle, rec.DependsOn = p.desired.Volumes[i].Lifecycle, p.desired.Volumes[i].DependsOn
				set(&w.volumes, rec.Address, rec)
			}
		}
		for i := range p.desired.Images {
			if rec, ok := e.image(p.desired.Images[i].Address); ok {
				rec.Lifecycle, rec.DependsOn = p.desired.Images[i].Lifecycle, p.desired.Images[i].DependsOn
				set(&w.images, rec.Address, rec)
			}
		}
	}
	outputs, err := e.outputs(p)
	if err != nil {
		return err
	}
	e.mu.Lock()
	for name := range e.records.Outputs {
		if !slices.ContainsFunc(outputs, func(o config.Output) bool { return o.Name == name }) {
			set(&w.outputs, name, nil)
		}
	}
	e.mu.Unlock()
	for i := range outputs {
		if !outputs[i].Unknown {
			set(&w.outputs, outputs[i].Name, &outputs[i])
		}
	}
	res.Outputs = outputs
	if len(res.Failures) == 0 && !res.Interrupted && len(p.options.Targets)+len(p.options.Excludes) == 0 {
		w.meta = map[string]string{metaDigest: p.Digest}
		if p.options.Destroy {
			w.meta[metaDigest] = ""
		}
	}
	return e.commit(w)
}

// outputs are evaluated with what exists now. After a destroy there are none.
func (e *Engine) outputs(p *prepared) ([]config.Output, error) {
	if p.options.Destroy && len(p.options.Targets)+len(p.options.Excludes) == 0 {
		return nil, nil
	}
	if !slices.ContainsFunc(p.desired.Outputs, func(o config.Output) bool { return true }) {
		return nil, nil
	}
	d, diags := p.source.Evaluate(e.settings, e.exports())
	if diags.HasErrors() {
		return nil, &Error{Kind: Invalid, Message: "outputs cannot be evaluated", Diagnostics: diags}
	}
	return d.Outputs, nil
}

func mapsEqual[K, V comparable](a, b map[K]V) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// unwatched warns of rules that nobody enforces while no agent runs.
func (e *Engine) unwatched() config.Diagnostics {
	var with []string
	e.mu.Lock()
	for a, s := range e.records.Sandboxes {
		if _, _, ok := plan.Deadline(&s.Spec, s.Lease); ok && s.Expired == nil {
			with = append(with, a)
		}
	}
	e.mu.Unlock()
	if len(with) == 0 {
		return nil
	}
	slices.Sort(with)
	shown := strings.Join(with[:min(3, len(with))], ", ")
	if len(with) > 3 {
		shown += fmt.Sprintf(" and %d more", len(with)-3)
	}
	return config.Diagnostics{{
		Severity: "warning", Summary: "no agent is running to enforce deadlines",
		Detail: shown + " have a deadline. Without an agent it is acted on only at the next apply; run pinfold agent.",
	}}
}

// Outputs are the values kept by the last apply.
func (e *Engine) Outputs(context.Context) ([]config.Output, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := []config.Output{}
	for _, name := range sortedKeys(e.records.Outputs) {
		all = append(all, *e.records.Outputs[name])
	}
	return all, nil
}

// current refuses a saved plan whose state has moved on.
func (e *Engine) current(s *SavedPlan) error {
	r := e.snapshot()
	stale := func(why string) error {
		return &Error{Kind: Stale, Message: "the saved plan is stale: " + why + "; make a new plan"}
	}
	switch {
	case s.FormatVersion != PlanFormatVersion:
		return stale(fmt.Sprintf("it has format version %q, this program writes %q", s.FormatVersion, PlanFormatVersion))
	case s.Result.Lineage != r.Lineage:
		return stale("it was made for another state (lineage " + s.Result.Lineage + ")")
	case s.Result.Serial != r.Serial:
		return stale(fmt.Sprintf("the state has changed since (serial %d then, %d now)", s.Result.Serial, r.Serial))
	case s.Source == nil || s.Source.Digest() != s.Result.Digest:
		return stale("its configuration does not match its digest")
	}
	return nil
}

// PlanFormatVersion is the version of saved plans and of plan -json.
const PlanFormatVersion = "1"

// sameWork refuses a saved plan when the host or the clock has made other work
// of it: what was shown is what is run, or nothing is.
func sameWork(saved, now *plan.Plan) error {
	key := func(p *plan.Plan) []string {
		var k []string
		for _, c := range p.Changes {
			if c.Action != plan.ActNoop {
				k = append(k, c.Address+" "+string(c.Action)+" "+string(c.After)+" "+c.Then)
			}
		}
		return k
	}
	a, b := key(saved), key(now)
	if slices.Equal(a, b) {
		return nil
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			f := strings.Fields(x)
			return &Error{Kind: Stale, Message: fmt.Sprintf("the saved plan is stale: the host has changed since, %s now needs %s; make a new plan", f[0], f[1])}
		}
	}
	return &Error{Kind: Stale, Message: "the saved plan is stale: the host has changed since and some of it is no longer needed; make a new plan"}
}

// errorOf turns any error into the *Error a Service returns.
func errorOf(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	kind := Internal
	switch {
	case errors.Is(err, context.Canceled):
		kind = Interrupted
	case errors.Is(err, state.ErrLocked):
		kind = Locked
	case errors.Is(err, runtime.ErrNotFound):
		kind = NotFound
	}
	return &Error{Kind: kind, Message: err.Error()}
}
