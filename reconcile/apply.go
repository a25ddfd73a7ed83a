package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
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
	before  plan.Records              // as they were when the plan was made
	records plan.Records              // those that the plan speaks of: after its moves and imports
	imports map[string]plan.Candidate // what import blocks name, by id
	seen    sight
	source  *config.Source // nil: a destroy without files
	options plan.Options
	stuck   []Failure // sandboxes whose ended processes do not go
}

// Plan makes a plan and changes nothing.
func (e *Engine) Plan(ctx context.Context, r PlanRequest) (*PlanResult, error) {
	running := e.turn.running()
	p, err := e.prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	if running != "" {
		p.Plan.Notes = append(p.Plan.Notes, running+"; this plan is of a moment in it")
	}
	told := p.told()
	if r.Save {
		if told.Sealed, err = e.sealPlan(&SavedPlan{Source: r.Source, Options: r.Options, Result: p.PlanResult}); err != nil {
			return nil, errorOf(err)
		}
	}
	return &told, nil
}

// told is the plan as it leaves the engine.
func (p *prepared) told() PlanResult {
	r := p.PlanResult
	r.Plan = redactedPlan(r.Plan)
	return r
}

func (e *Engine) prepare(ctx context.Context, r PlanRequest) (*prepared, error) {
	p := &prepared{source: r.Source, options: r.Options, desired: &config.Desired{}}
	switch {
	case r.Source != nil:
		if err := e.bound(r.Source.Dir, r.TakeOver); err != nil {
			return nil, err
		}
		p.Digest = r.Source.Digest()
	case !r.Options.Destroy:
		return nil, &Error{Kind: Invalid, Message: "a plan needs a configuration"}
	}
	p.Lineage = e.store.Lineage()
	p.before = e.snapshot()
	p.Serial = p.before.Serial
	var err error
	if r.Options.NoRefresh {
		p.seen = sight{Observed: believed(&p.before)}
	} else if p.seen, err = e.look(ctx); err != nil {
		return nil, err
	}
	p.seen.hide(p.before.Sandboxes)
	now := e.now()
	if r.Source == nil {
		p.Plan = plan.Make(plan.Input{
			Desired: p.desired, Records: p.before, Observed: p.seen.Observed, Activity: e.activity.all(), Now: now,
			Trigger: plan.Apply, Options: r.Options, Limits: e.limits(),
		})
		p.records = p.Plan.Records
		p.Diagnostics = p.Plan.Diags
		return p, nil
	}
	exports, followed, retried := exportsOf(&p.before), false, false
	for range unsettledRounds {
		var diags config.Diagnostics
		p.desired, diags = r.Source.Judge(e.settings, exports)
		if diags.HasErrors() && !retried {
			// A for_each or count may need what something moved exports.
			if moves := r.Source.Moves(e.settings); len(moves) > 0 {
				after := p.before.Moved(moves)
				exports, retried = exportsOf(&after), true
				continue
			}
		}
		if diags.HasErrors() {
			return nil, &Error{Kind: Invalid, Message: "the configuration is not valid", Diagnostics: diags}
		}
		if p.imports, err = e.candidates(ctx, p.desired, &p.before, &p.seen, r.Options.NoRefresh); err != nil {
			return nil, err
		}
		p.Plan = plan.Make(plan.Input{
			Desired: p.desired, Records: p.before, Observed: p.seen.Observed, Activity: e.activity.all(), Now: now,
			Trigger: plan.Apply, Options: r.Options, Limits: e.limits(), Imports: p.imports,
		})
		p.records = p.Plan.Records
		p.Diagnostics = append(diags, p.Plan.Diags...)
		if !followed && p.Plan.Readdresses() {
			// What was moved or taken back exports by its new address what it is.
			exports, followed = exportsOf(&p.records), true
			continue
		}
		// What the plan itself makes anew has no exports until then: what refers
		// to it is unknown, and may have to change as well.
		if !e.foretell(exports, p.Plan, &p.records) {
			break
		}
	}
	if diags := refused(r.Source, e.settings, exports, p.desired, r.Options); diags.HasErrors() {
		return nil, &Error{Kind: Invalid, Message: "the configuration is not valid", Diagnostics: diags}
	} else if diags != nil {
		p.Diagnostics = append(diags, p.Plan.Diags...)
	}
	p.Checks = p.desired.Checks
	taken, err := e.rangesTaken(ctx, p)
	if err != nil {
		return nil, err
	}
	p.Diagnostics = append(p.Diagnostics, taken...)
	return p, nil
}

// rangesTaken refuses, before anything is taken down for it, a network whose
// range the host itself uses.
func (e *Engine) rangesTaken(ctx context.Context, p *prepared) (config.Diagnostics, error) {
	var diags config.Diagnostics
	var used []netip.Prefix
	for _, c := range p.Plan.Changes {
		if c.Kind != "network" || (c.Action != plan.ActCreate && c.Action != plan.ActReplace) {
			continue
		}
		i := slices.IndexFunc(p.desired.Networks, func(n config.Resource[config.Network]) bool { return n.Address == c.Address })
		if i < 0 {
			continue
		}
		want := &p.desired.Networks[i]
		cidr, err := netip.ParsePrefix(want.Spec.CIDR)
		if err != nil {
			continue // chosen when it is made, or not known yet
		}
		if used == nil {
			if used, err = e.host.PrefixesInUse(ctx); err != nil {
				return nil, fmt.Errorf("cannot tell which address ranges the host uses: %w", err)
			}
		}
		if j := slices.IndexFunc(used, cidr.Overlaps); j >= 0 {
			d := config.Diagnostic{
				Severity: "error", Summary: fmt.Sprintf("the range of %s is taken", c.Address), Address: c.Address,
				Detail: fmt.Sprintf("%s overlaps %s, which an interface or route of this host uses. Choose another cidr, or leave it out to have a free one chosen.", cidr, used[j]),
			}
			at := want.Source
			if s, ok := want.Sources["cidr"]; ok {
				at = s
			}
			if at.File != "" {
				pos := config.Pos{Line: at.Line, Column: 1}
				d.Range = &config.Range{File: at.File, Start: pos, End: pos}
			}
			diags = append(diags, d)
		}
	}
	return diags, nil
}

// unsettledRounds bounds how often a plan is made again because something it
// replaces is referred to by something else; each round takes exports away.
const unsettledRounds = 16

func (e *Engine) limits() plan.Limits {
	return plan.Limits{MaxLifetime: time.Duration(e.settings.MaxLifetime), ExpiryWarning: time.Duration(e.settings.ExpiryWarning)}
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
	have := e.meta(metaConfigDir)
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
	verb := "apply"
	if r.Options.Destroy {
		verb = "destroy"
	}
	release, err := e.turn.take(ctx, lockWait(r.LockWait), verb)
	if err != nil {
		return nil, err
	}
	defer release()
	req := r.PlanRequest
	var saved *SavedPlan
	if r.Saved != nil {
		if saved, err = e.currentPlan(r.Saved); err != nil {
			return nil, err
		}
		req.Source, req.Options = saved.Source, saved.Options
	}
	if err := e.following.allows(&req, r.Override); err != nil {
		return nil, err
	}
	p, err := e.prepareSettled(ctx, req)
	if err != nil {
		return nil, errorOf(err)
	}
	if saved != nil {
		if err := sameWork(saved.Result.Plan, p.Plan); err != nil {
			return nil, err
		}
		p.Diagnostics = saved.Source.WithSnippets(p.Diagnostics) // whoever asks has no source
	}
	res := &ApplyResult{PlanResult: p.told()}
	if p.Diagnostics.HasErrors() {
		return res, &Error{Kind: Invalid, Message: "the plan cannot be applied", Diagnostics: p.Diagnostics}
	}
	if (!r.AutoApprove || r.Show) && r.Saved == nil && confirm != nil {
		yes, err := confirm(&res.PlanResult)
		if err != nil {
			return res, errorOf(err)
		}
		if !yes {
			res.Declined = true
			return res, nil
		}
		if p, err = e.stillApproved(ctx, req, p, r.AutoApprove); err != nil {
			return res, errorOf(err)
		}
	}
	if ctx.Err() != nil {
		res.Interrupted = true
		return res, nil
	}
	if r.Override {
		if err := e.following.suspend(); err != nil {
			return res, errorOf(err)
		}
	}
	return res, errorOf(e.execute(ctx, p, r, progress, res))
}

// prepareSettled is prepare once what is dying is dead, which it waits for within
// the host's bound: nothing can be done with a sandbox before. A destroy does so itself.
func (e *Engine) prepareSettled(ctx context.Context, r PlanRequest) (*prepared, error) {
	p, err := e.prepare(ctx, r)
	if err != nil || r.Options.Destroy || r.Options.RefreshOnly {
		return p, err
	}
	var all []*plan.Sandbox
	covered := p.covered()
	for _, address := range sortedKeys(p.before.Sandboxes) {
		if rec := p.before.Sandboxes[address]; dying(p.seen.Instances, rec) && covered[rec.UID] {
			all = append(all, rec)
		}
	}
	if len(all) == 0 {
		return p, nil
	}
	as := e.as(byApply)
	var mu sync.Mutex
	var stuck []Failure
	each(all, DefaultParallelism, func(rec *plan.Sandbox) {
		release, holder := e.lanes.try(rec.Address, "apply", as.by)
		if holder != nil {
			return // whoever is at it does the same
		}
		defer release()
		if e.current(rec.Address) != rec {
			return
		}
		if err := as.finishDying(context.WithoutCancel(ctx), rec); err != nil {
			mu.Lock()
			defer mu.Unlock()
			stuck = append(stuck, Failure{Address: rec.Address, Action: plan.ActStop, Error: err.Error()})
		}
	})
	if p, err = e.prepare(ctx, r); err == nil {
		p.stuck = stuck
	}
	return p, err
}

// covered are the recorded sandboxes that the plan speaks of, by uid: not those that
// -target and -exclude leave out.
func (p *prepared) covered() map[string]bool {
	uids := make(map[string]bool, len(p.Plan.Status))
	for address := range p.Plan.Status {
		if rec := p.records.Sandboxes[address]; rec != nil {
			uids[rec.UID] = true
		}
	}
	return uids
}

// stillApproved makes the plan again when the state changed while it was shown,
// as when the agent brought something back. Unless anything goes, only the work
// that was shown is approved.
func (e *Engine) stillApproved(ctx context.Context, r PlanRequest, shown *prepared, anything bool) (*prepared, error) {
	if e.snapshot().Serial == shown.Serial {
		return shown, nil
	}
	now, err := e.prepare(ctx, r)
	if err != nil {
		return nil, err
	}
	now.stuck = shown.stuck
	if now.Diagnostics.HasErrors() {
		return nil, &Error{Kind: Invalid, Message: "the plan cannot be applied", Diagnostics: now.Diagnostics}
	}
	if !anything && sameWork(shown.Plan, now.Plan) != nil {
		return nil, &Error{Kind: Stale, Message: "the state changed while the plan waited for approval; run apply again"}
	}
	return now, nil
}

// lockWait is the time that a LockWait of options and requests stands for.
func lockWait(d time.Duration) time.Duration {
	if d == 0 {
		return DefaultLockWait
	}
	return max(0, d)
}

// execute runs a prepared plan and records what it was for.
func (e *Engine) execute(ctx context.Context, p *prepared, r ApplyRequest, progress func(Progress), res *ApplyResult) error {
	as := e.as(byApply)
	if err := as.bind(p); err != nil {
		return err
	}
	as.recoverAgain(ctx)
	run := &run{
		actor: as, source: p.source, options: p.options, verb: "apply", progress: progress, quit: ctx,
		lockWait: lockWait(r.LockWait), override: r.Override, declared: declaredBy(p.desired),
	}
	if p.options.Destroy {
		run.verb = "destroy"
	}
	if !p.options.Destroy && !p.options.RefreshOnly {
		run.undecided = map[judged]bool{}
		for _, c := range p.desired.Checks {
			if c.Status == undecided {
				run.undecided[judged{c.Address, c.Kind}] = true
			}
		}
	}
	run.again.unmade = unsettled(p.Plan, &p.records)
	if err := run.readdress(ctx, p); err != nil {
		return err
	}
	var err error
	if p.options.NoRefresh {
		run.base = p.records.Sandboxes
		if _, err := as.look(ctx); err != nil { // so that nothing is given away that another instance has
			return err
		}
	} else if run.base, err = as.takeAll(ctx, p.Plan.Status, p.records.Sandboxes, &p.seen, nil); err != nil {
		return err
	}
	run.graph(p.Plan)
	e.log.Debug("applying", "digest", p.Digest, "serial", p.Serial, "changes", len(p.Plan.Changes))
	run.execute(ctx, r.Parallelism)
	as.sweepAll(ctx)
	res.Applied, res.Noted, res.Interrupted = plan.Summarize(run.done), plan.NotedOf(run.done), run.interrupted
	res.Failures = slices.Concat(run.failures, p.stuck)
	if !res.Interrupted {
		res.Failures = append(res.Failures, e.remaining(p, res.Failures)...)
	}
	if err := as.finishApply(ctx, p, run, res); err != nil {
		return err
	}
	if len(run.done) > 0 {
		for _, lack := range e.lacking(ctx) {
			res.Warnings = append(res.Warnings, config.Diagnostic{Severity: "warning", Summary: "this host does not offer all that sandboxes can use", Detail: lack})
		}
	}
	if e.nudge == nil {
		res.Warnings = append(res.Warnings, e.unwatched()...)
	}
	if len(res.Failures) > 0 && !res.Interrupted {
		return applyFailed(res.Failures)
	}
	return nil
}

// remaining are the sandboxes that were to go and are still on record though
// nothing has failed: the plan has left them alone, and says why.
func (e *Engine) remaining(p *prepared, failures []Failure) []Failure {
	if p.options.RefreshOnly {
		return nil
	}
	wanted, covered := declaredBy(p.desired).sandboxes, p.covered()
	var all []Failure
	for _, address := range sortedKeys(p.records.Sandboxes) {
		if !p.options.Destroy && wanted[address] != nil || !covered[p.records.Sandboxes[address].UID] || e.current(address) == nil ||
			slices.ContainsFunc(failures, func(f Failure) bool { return f.Address == address }) {
			continue
		}
		why := "it is still there"
		for _, note := range p.Plan.Notes {
			if about, found := strings.CutPrefix(note, address+" "); found {
				why += ": it " + about
			}
		}
		all = append(all, Failure{Address: address, Action: plan.ActDelete, Error: why})
	}
	return all
}

// sweepAll removes old instances that earlier steps could not remove.
func (e *actor) sweepAll(ctx context.Context) {
	for address, rec := range e.snapshot().Sandboxes {
		if !doomed(rec) || ctx.Err() != nil {
			continue
		}
		if err := e.sweep(ctx, address); err != nil {
			e.log.Warn("cannot remove an old instance yet", "address", address, "error", err)
		}
	}
}

func applyFailed(failures []Failure) *Error {
	err := &Error{Kind: Internal, Message: fmt.Sprintf("%d of the planned changes failed", len(failures))}
	for _, f := range failures {
		err.Diagnostics = append(err.Diagnostics, config.Diagnostic{
			Severity: "error", Summary: plan.NameOf(f.Address, f.Deposed) + ": " + string(f.Action) + " failed", Detail: f.Error, Address: f.Address,
		})
	}
	return err
}

// bind records which directory this state serves.
func (e *actor) bind(p *prepared) error {
	if p.source == nil || e.meta(metaConfigDir) == p.source.Dir {
		return nil
	}
	return e.commit(&write{meta: map[string]string{metaConfigDir: p.source.Dir}})
}

func (e *Engine) meta(key string) string {
	var v string
	_ = e.store.View(func(tx state.Tx) error { v = tx.Meta(key); return nil }) // unreadable is unknown
	return v
}

// finishApply records, beside the changes themselves, what the files say around
// the specs of unchanged resources (what they refer to, and where values come
// from), the outputs, and the digest.
func (e *actor) finishApply(ctx context.Context, p *prepared, run *run, res *ApplyResult) error {
	if p.options.RefreshOnly {
		return nil
	}
	if !p.options.Destroy {
		if err := e.takeSurroundings(ctx, p, run); err != nil {
			return err
		}
	}
	outputs, withheld, err := e.outputs(p, res)
	if err != nil {
		return err
	}
	narrow := len(p.options.Targets)+len(p.options.Excludes) > 0
	w := &write{}
	e.mu.Lock()
	for name, have := range e.records.Outputs {
		i := slices.IndexFunc(outputs, func(o config.Output) bool { return o.Name == name })
		switch {
		case i < 0 && !(narrow && p.options.Destroy):
			set(&w.outputs, name, nil)
		case i >= 0 && (outputs[i].Unknown || withheld[name] || len(res.Failures) > 0):
			// What it was, until it is known again, or until what it may speak of
			// was really done.
			outputs[i] = *have
		}
	}
	for i := range outputs {
		have := e.records.Outputs[outputs[i].Name]
		if !outputs[i].Unknown && !withheld[outputs[i].Name] && (have == nil || !reflect.DeepEqual(*have, outputs[i])) {
			set(&w.outputs, outputs[i].Name, &outputs[i])
		}
	}
	outputs = slices.DeleteFunc(outputs, func(o config.Output) bool {
		return withheld[o.Name] && e.records.Outputs[o.Name] == nil // nothing is kept of it
	})
	e.mu.Unlock()
	res.Outputs = redactedOutputs(outputs)
	if len(res.Failures) == 0 && !res.Interrupted && !narrow {
		digest := p.Digest
		if p.options.Destroy {
			digest = ""
		}
		if e.meta(metaDigest) != digest {
			w.meta = map[string]string{metaDigest: digest}
			if !run.override && e.meta(metaOverride) != "" {
				w.meta[metaOverride] = "" // following goes on
			}
		}
	}
	if len(w.outputs) == 0 && w.meta == nil {
		return nil
	}
	return e.commit(w)
}

// takeSurroundings takes each sandbox's lane for it: a step that goes on there
// has a record of its own in hand.
func (e *actor) takeSurroundings(ctx context.Context, p *prepared, run *run) error {
	w := &write{}
	var releases []func()
	defer func() {
		for _, release := range releases {
			release()
		}
	}()
	for i := range p.desired.Sandboxes {
		want := &p.desired.Sandboxes[i]
		if rec := e.current(want.Address); rec == nil || !run.covers(want.Address) || sameSurroundings(rec, want) {
			continue
		}
		release, err := e.lanes.wait(ctx, run.lockWait, want.Address, run.verb, e.by)
		if err != nil {
			continue // the next apply takes it over
		}
		releases = append(releases, release)
		if rec, ok := e.sandbox(want.Address); ok {
			rec.DependsOn, rec.Sources, rec.Sensitive = want.DependsOn, want.Sources, want.Sensitive
			w.sandbox(rec)
		}
	}
	for i := range p.desired.Networks {
		d := &p.desired.Networks[i]
		if rec, ok := e.network(d.Address); ok && !slices.Equal(rec.DependsOn, d.DependsOn) {
			rec.DependsOn = d.DependsOn
			set(&w.networks, rec.Address, rec)
		}
	}
	for i := range p.desired.Volumes {
		d := &p.desired.Volumes[i]
		if rec, ok := e.volume(d.Address); ok && !slices.Equal(rec.DependsOn, d.DependsOn) {
			rec.DependsOn = d.DependsOn
			set(&w.volumes, rec.Address, rec)
		}
	}
	for i := range p.desired.Images {
		d := &p.desired.Images[i]
		if rec, ok := e.image(d.Address); ok && !slices.Equal(rec.DependsOn, d.DependsOn) {
			rec.DependsOn = d.DependsOn
			set(&w.images, rec.Address, rec)
		}
	}
	if len(w.sandboxes)+len(w.networks)+len(w.volumes)+len(w.images) == 0 {
		return nil
	}
	return e.commit(w)
}

// covers tells whether the plan spoke of this sandbox without failing at it.
func (r *run) covers(address string) bool {
	if len(r.options.Targets)+len(r.options.Excludes) > 0 && r.last[address] == nil {
		return false
	}
	n := r.last[address]
	return n == nil || n.failed == ""
}

func sameSurroundings(rec *plan.Sandbox, want *config.Resource[config.Sandbox]) bool {
	return slices.Equal(rec.DependsOn, want.DependsOn) && maps.Equal(rec.Sources, want.Sources) && slices.Equal(rec.Sensitive, want.Sensitive)
}

// outputs are evaluated with what exists now, and with them the conditions that wait
// for the end. After a destroy there are none. withheld are those whose precondition
// failed.
func (e *Engine) outputs(p *prepared, res *ApplyResult) (outputs []config.Output, withheld map[string]bool, err error) {
	if p.options.Destroy || len(p.desired.Outputs)+len(p.desired.Checks) == 0 {
		return nil, nil, nil
	}
	d, diags := p.source.Judge(e.settings, e.exports())
	if diags.HasErrors() {
		return nil, nil, &Error{Kind: Invalid, Message: "outputs cannot be evaluated", Diagnostics: diags}
	}
	return d.Outputs, p.concludes(d, res), nil
}

// lacking says in words what this host cannot do; what could not be found out is
// no reason to fail.
func (e *Engine) lacking(ctx context.Context) []string {
	info, err := e.host.Info(context.WithoutCancel(ctx))
	if err != nil {
		e.log.Warn("cannot tell what this host offers", "error", err)
	}
	return info.Lacking
}

// unwatched warns of rules that nobody enforces while no agent runs.
func (e *Engine) unwatched() config.Diagnostics {
	rules := []struct {
		what string
		has  func(*plan.Sandbox) bool
	}{
		{"a deadline, acted on only at the next apply", func(s *plan.Sandbox) bool {
			_, _, dated := plan.Deadline(&s.Spec, s.Lease)
			return dated && s.Expired == nil
		}},
		{"an idle_timeout: it does not rest", func(s *plan.Sandbox) bool { return s.Spec.Lifetime.IdleTimeout > 0 }},
		{"published ports that only the agent can serve", func(s *plan.Sandbox) bool { return relayed(&s.Spec) }},
		{"a restart block: it is started again only at the next apply", func(s *plan.Sandbox) bool {
			return s.Spec.Restart.Mode == "always" || s.Spec.Restart.Mode == "on-failure"
		}},
		{"a health block: nobody probes it", func(s *plan.Sandbox) bool { return s.Spec.Health != nil }},
	}
	records := e.snapshot()
	var words []string
	for _, r := range rules {
		var with []string
		for _, a := range sortedKeys(records.Sandboxes) {
			if r.has(records.Sandboxes[a]) {
				with = append(with, a)
			}
		}
		if len(with) > 0 {
			have := "have"
			if len(with) == 1 {
				have = "has"
			}
			words = append(words, some(with)+" "+have+" "+r.what+".")
		}
	}
	if len(words) == 0 {
		return nil
	}
	return config.Diagnostics{{
		Severity: "warning", Summary: "no agent is running to enforce rules",
		Detail: strings.Join(words, " ") + " Run pinfold agent.",
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
	return redactedOutputs(all), nil
}

// Output is one output with its value.
func (e *Engine) Output(_ context.Context, name string) (*config.Output, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.records.Outputs[name]
	switch {
	case o == nil:
		return nil, &Error{Kind: NotFound, Message: fmt.Sprintf("there is no output %q", name)}
	case o.Sensitive && o.Value == nil:
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("the value of output %q was sealed with a key that is not in %s any more; the next apply records it anew", name, e.blocks.box.Path())}
	}
	told := *o
	return &told, nil
}

// sealPlan makes a saved plan unreadable to whoever has not the state's key.
func (e *Engine) sealPlan(s *SavedPlan) (string, error) {
	doc, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	return e.blocks.box.Seal(doc, sealedPlan)
}

// currentPlan opens a saved plan, and refuses one whose state has moved on.
func (e *Engine) currentPlan(f *PlanFile) (*SavedPlan, error) {
	r := e.snapshot()
	stale := func(why string) (*SavedPlan, error) {
		return nil, &Error{Kind: Stale, Message: "the saved plan is stale: " + why + "; make a new plan"}
	}
	switch {
	case f.FormatVersion != PlanFileVersion:
		return stale(fmt.Sprintf("it has format version %q, this program writes %q", f.FormatVersion, PlanFileVersion))
	case f.Result.Lineage != r.Lineage:
		return stale("it was made for another state (lineage " + f.Result.Lineage + ")")
	}
	doc, err := e.blocks.box.Open(f.Result.Sealed, sealedPlan)
	switch {
	case errors.Is(err, seal.ErrNoKey):
		return stale(err.Error())
	case err != nil:
		return nil, &Error{Kind: Invalid, Message: "the saved plan cannot be read: " + err.Error() + "; make a new plan"}
	}
	s := new(SavedPlan)
	if err := json.Unmarshal(doc, s); err != nil {
		return nil, &Error{Kind: Invalid, Message: "the saved plan cannot be read: " + err.Error() + "; make a new plan"}
	}
	switch {
	case s.Result.Lineage != r.Lineage:
		return stale("it was made for another state (lineage " + s.Result.Lineage + ")")
	case s.Result.Serial != r.Serial:
		return stale(fmt.Sprintf("the state has changed since (serial %d then, %d now)", s.Result.Serial, r.Serial))
	case s.Source == nil || s.Source.Digest() != s.Result.Digest:
		return stale("its configuration does not match its digest")
	case !shownAs(f.Result.Plan, s.Result.Plan):
		return nil, &Error{Kind: Invalid, Message: "the saved plan is damaged: what it shows is not what it would do; make a new plan"}
	}
	return s, nil
}

// shownAs reports whether a plan file shows the plan that is sealed in it: only that one
// is protected against changes.
func shownAs(shown, sealed *plan.Plan) bool {
	if shown == nil || sealed == nil {
		return shown == sealed
	}
	a, err := json.Marshal(shown)
	b, err2 := json.Marshal(redactedPlan(sealed))
	return errors.Join(err, err2) == nil && bytes.Equal(a, b)
}

// PlanFileVersion is the version of plan files.
const PlanFileVersion = "1"

// sameWork refuses a saved plan when the host or the clock has made other work
// of it: what was shown is what is run, or nothing is.
func sameWork(saved, now *plan.Plan) error {
	if saved == nil {
		return &Error{Kind: Stale, Message: "the saved plan holds no plan; make a new one"}
	}
	type work struct {
		address      string
		from         string // of a move
		action       plan.Action
		after, then  string
		instance     string
		fresh, lease bool
	}
	list := func(p *plan.Plan) []work {
		var all []work
		for _, c := range p.Changes {
			if c.Action == plan.ActNoop {
				continue
			}
			all = append(all, work{c.Address, c.From, c.Action, canonical(c.After), c.Then, c.Instance, c.Fresh, c.NewLease})
		}
		return all
	}
	a, b := list(saved), list(now)
	if slices.Equal(a, b) {
		return nil
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			return &Error{Kind: Stale, Message: fmt.Sprintf("the saved plan is stale: the host has changed since, %s now needs %s; make a new plan", x.address, x.action)}
		}
	}
	return &Error{Kind: Stale, Message: "the saved plan is stale: the host has changed since and some of it is no longer needed; make a new plan"}
}

// canonical is a JSON document in one form, whoever wrote it: a plan file escapes
// more than the planner does.
func canonical(doc json.RawMessage) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	if len(doc) == 0 || d.Decode(&v) != nil {
		return string(doc)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(doc)
	}
	return string(b)
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
