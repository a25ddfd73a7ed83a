package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// declared is what the files say, by address.
type declared struct {
	desired   *config.Desired
	images    map[string]*config.Resource[config.Image]
	networks  map[string]*config.Resource[config.Network]
	volumes   map[string]*config.Resource[config.Volume]
	sandboxes map[string]*config.Resource[config.Sandbox]
	checks    map[judged][]config.Check
}

func declaredBy(d *config.Desired) declared {
	if d == nil {
		d = &config.Desired{}
	}
	return declared{d, byAddress(d.Images), byAddress(d.Networks), byAddress(d.Volumes), byAddress(d.Sandboxes), byThing(d.Checks)}
}

func byAddress[T any](list []config.Resource[T]) map[string]*config.Resource[T] {
	m := make(map[string]*config.Resource[T], len(list))
	for i := range list {
		m[list[i].Address] = &list[i]
	}
	return m
}

// evaluation is the configuration evaluated again while it is applied, with what
// exists by then known. One evaluation serves all that were unknown for the same
// reason.
type evaluation struct {
	mu      sync.Mutex
	fresh   *declared
	unmade  map[string]bool // what this plan makes anew and has not made yet: its exports are not to be relied on
	changed bool            // something was made since fresh was evaluated
}

// made notes that an address's changes are done.
func (v *evaluation) made(address string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.unmade[address] {
		delete(v.unmade, address)
		v.changed = true
	}
}

// evaluated is the configuration with what exists known: as it was last evaluated, or,
// with anew, again if something was made since. The caller holds v.mu.
func (v *evaluation) evaluated(r *run, anew bool) (*declared, error) {
	if v.fresh != nil && !(anew && v.changed) {
		return v.fresh, nil
	}
	exports := r.exports()
	for a := range v.unmade {
		delete(exports, a)
	}
	d, diags := r.source.Judge(r.settings, exports)
	if diags.HasErrors() {
		return nil, &Error{Kind: Invalid, Message: "the configuration cannot be evaluated now that what it refers to exists", Diagnostics: diags}
	}
	f := declaredBy(d)
	v.fresh, v.changed = &f, false
	return v.fresh, nil
}

// known finds a resource with everything it refers to known.
func known[T any](r *run, address string, pick func(*declared) map[string]*config.Resource[T]) (*config.Resource[T], error) {
	if r.source == nil {
		return nil, fmt.Errorf("%s has values that are known only with its configuration; apply from its directory", address)
	}
	v := &r.again
	v.mu.Lock()
	defer v.mu.Unlock()
	for pass := range 2 {
		now, err := v.evaluated(r, pass > 0)
		if err != nil {
			return nil, err
		}
		res := pick(now)[address]
		switch {
		case res == nil:
			return nil, fmt.Errorf("%s is no longer declared once what it refers to exists", address)
		case len(res.Unknown) == 0:
			return res, nil
		case pass == 1:
			return nil, fmt.Errorf("%s: still unknown: %s", address, strings.Join(res.Unknown, ", "))
		}
	}
	panic("unreachable")
}

func sandboxes(d *declared) map[string]*config.Resource[config.Sandbox] { return d.sandboxes }
func networks(d *declared) map[string]*config.Resource[config.Network]  { return d.networks }
func images(d *declared) map[string]*config.Resource[config.Image]      { return d.images }

// planOne decides about one sandbox again, with what is known and true now. The
// caller holds its lane.
func (r *run) planOne(ctx context.Context, address string) ([]plan.Change, error) {
	res := r.declared.sandboxes[address]
	if res != nil && len(res.Unknown) > 0 {
		var err error
		if res, err = known(r, address, sandboxes); err != nil {
			return nil, err
		}
	}
	records := r.only(address)
	options := r.options
	options.Targets, options.Excludes = []string{address}, nil
	options.Replace = nil
	if slices.ContainsFunc(r.options.Replace, func(name string) bool { return config.Covers(name, address) }) {
		options.Replace = []string{address}
	}
	now := sight{}
	if rec := records.Sandboxes[address]; rec != nil {
		var err error
		if now, err = r.closeLook(ctx, rec); err != nil {
			return nil, err
		}
		st := now.status(rec, r.now())
		if rec, err = r.take(ctx, rec, &st, &now); err != nil {
			return nil, err
		}
		records.Sandboxes[address] = rec
	} else if res == nil {
		return nil, nil // it is gone, as it should be
	}
	p := plan.Make(plan.Input{
		Desired: declaring(r.declared.desired, res, &records), Records: records, Observed: now.Observed, Activity: r.activity.one(address), Now: r.now(),
		Trigger: plan.Apply, Options: options, Limits: r.limits(), Triggered: r.triggered,
	})
	if p.Diags.HasErrors() {
		return nil, &Error{Kind: Invalid, Message: address + " cannot be changed as its configuration now says", Diagnostics: p.Diags}
	}
	return slices.DeleteFunc(ofSandbox(p, address), func(c plan.Change) bool { return c.Action == plan.ActNoop }), nil
}

// ofSandbox picks the changes of one sandbox out of a plan.
func ofSandbox(p *plan.Plan, address string) []plan.Change {
	var out []plan.Change
	for _, c := range p.Changes {
		if c.Address == address && c.Kind == "sandbox" && !nothing(&c) {
			out = append(out, c)
		}
	}
	return out
}
