package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// The steps of networks, volumes and images.

func (r *run) networkChange(ctx context.Context, n *node, c plan.Change) error {
	e := r.e
	rec, exists := e.network(c.Address)
	switch c.Action {
	case plan.ActDelete:
		return e.deleteNetwork(ctx, rec)
	case plan.ActReplace:
		if n.down {
			return e.deleteNetwork(ctx, rec)
		}
		exists = false
	case plan.ActForget:
		w := &write{bump: true}
		set(&w.networks, c.Address, nil)
		return e.commit(w)
	case plan.ActRepair:
		return e.ensureNetwork(ctx, rec, "repair")
	}
	var spec config.Network
	if err := json.Unmarshal(c.After, &spec); err != nil {
		if !exists {
			return fmt.Errorf("%s: plan holds no spec: %w", c.Address, err)
		}
		spec = rec.Spec
	}
	if len(c.Unknown) > 0 {
		found, err := evaluated(r, c.Address, func(d *config.Desired) []config.Resource[config.Network] { return d.Networks })
		if err != nil {
			return err
		}
		spec = found.Spec
	}
	if !exists {
		rec = &plan.Network{Address: c.Address, ID: newID(4)}
	}
	rec.Spec = spec
	rec.DependsOn = c.DependsOn
	if !rec.CIDR.IsValid() {
		cidr, err := e.cidrOf(ctx, spec)
		if err != nil {
			return fmt.Errorf("cannot create %s: %w", c.Address, err)
		}
		rec.CIDR, rec.Gateway = cidr, cidr.Masked().Addr().Next()
	}
	return e.ensureNetwork(ctx, rec, string(c.Action))
}

func (e *Engine) cidrOf(ctx context.Context, spec config.Network) (netip.Prefix, error) {
	if spec.CIDR == "" {
		return e.chooseCIDR(ctx)
	}
	return netip.ParsePrefix(spec.CIDR)
}

func (e *Engine) ensureNetwork(ctx context.Context, rec *plan.Network, verb string) error {
	w := &write{bump: true}
	before := *rec
	set(&w.networks, rec.Address, &before)
	in, err := e.begin(Intent{Op: opNetwork, Kind: "network", Address: rec.Address, Instance: rec.ID}, w)
	if err != nil {
		return err
	}
	if err := e.host.EnsureNetwork(ctx, networkOf(rec)); err != nil {
		if !rec.Made { // nothing of a failed make stays, neither on the host nor in the records
			undo := e.host.RemoveNetwork(ctx, networkOf(rec))
			if errors.Is(undo, runtime.ErrForeign) || errors.Is(undo, runtime.ErrNotFound) {
				undo = nil
			}
			w := &write{bump: true}
			set(&w.networks, rec.Address, nil)
			return errors.Join(fmt.Errorf("cannot %s %s: %w", verb, rec.Address, err), undo, e.end(in, w))
		}
		return errors.Join(fmt.Errorf("cannot %s %s: %w", verb, rec.Address, err), e.end(in, nil))
	}
	failpoint("host.ensurenetwork.after")
	rec.Made = true
	w = &write{bump: true}
	set(&w.networks, rec.Address, rec)
	return e.end(in, w.event(Event{Address: rec.Address, Type: verb, Reason: verb, Instance: rec.ID}))
}

func (e *Engine) deleteNetwork(ctx context.Context, rec *plan.Network) error {
	if rec == nil {
		return nil
	}
	in, err := e.begin(Intent{Op: opDelete, Kind: "network", Address: rec.Address, Instance: rec.ID}, nil)
	if err != nil {
		return err
	}
	if err := e.host.RemoveNetwork(ctx, networkOf(rec)); err != nil {
		return errors.Join(fmt.Errorf("cannot destroy %s: %w", rec.Address, err), e.end(in, nil))
	}
	failpoint("host.removenetwork.after")
	w := &write{bump: true}
	set(&w.networks, rec.Address, nil)
	return e.end(in, w.event(Event{Address: rec.Address, Type: "destroyed", Reason: "user_delete", Instance: rec.ID}))
}

func (r *run) volumeChange(ctx context.Context, c plan.Change) error {
	e := r.e
	rec, exists := e.volume(c.Address)
	switch {
	case c.Action == plan.ActDelete && !exists:
		return nil
	case c.Action == plan.ActDelete:
		in, err := e.begin(Intent{Op: opDelete, Kind: "volume", Address: c.Address, Instance: rec.ID}, nil)
		if err != nil {
			return err
		}
		if err := e.host.RemoveVolume(ctx, rec.ID); err != nil {
			return errors.Join(fmt.Errorf("cannot destroy %s: %w", c.Address, err), e.end(in, nil))
		}
		failpoint("host.removevolume.after")
		w := &write{bump: true}
		set(&w.volumes, c.Address, nil)
		return e.end(in, w.event(Event{Address: c.Address, Type: "destroyed", Reason: "user_delete", Instance: rec.ID}))
	case !exists:
		rec = &plan.Volume{Address: c.Address, ID: newID(6)}
	}
	rec.DependsOn = c.DependsOn
	w := &write{bump: true}
	before := *rec
	set(&w.volumes, c.Address, &before)
	in, err := e.begin(Intent{Op: opVolume, Kind: "volume", Address: c.Address, Instance: rec.ID}, w)
	if err != nil {
		return err
	}
	if err := e.host.EnsureVolume(ctx, runtime.Volume{ID: rec.ID}); err != nil {
		w := &write{bump: true}
		if !rec.Made {
			set(&w.volumes, c.Address, nil)
		}
		return errors.Join(fmt.Errorf("cannot create %s: %w", c.Address, err), e.end(in, w))
	}
	failpoint("host.ensurevolume.after")
	rec.Made = true
	w = &write{bump: true}
	set(&w.volumes, c.Address, rec)
	return e.end(in, w.event(Event{Address: c.Address, Type: string(c.Action), Reason: string(c.Action), Instance: rec.ID}))
}

// imageChange pins what the image is now. It touches nothing that would have to
// be undone: layers of host and dir images are used where they lie.
func (r *run) imageChange(ctx context.Context, c plan.Change) error {
	e := r.e
	w := &write{bump: true}
	if c.Action == plan.ActDelete || c.Action == plan.ActForget {
		set(&w.images, c.Address, nil)
		return e.commit(w)
	}
	var spec config.Image
	if err := json.Unmarshal(c.After, &spec); err != nil {
		return fmt.Errorf("%s: plan holds no spec: %w", c.Address, err)
	}
	if len(c.Unknown) > 0 {
		found, err := evaluated(r, c.Address, func(d *config.Desired) []config.Resource[config.Image] { return d.Images })
		if err != nil {
			return err
		}
		spec = found.Spec
	}
	img, err := e.host.PrepareImage(ctx, imageSource(spec))
	if errors.Is(err, runtime.ErrNotFound) {
		return fmt.Errorf("cannot use %s: %w; correct the path in source = %q", c.Address, err, spec.Source)
	} else if err != nil {
		return fmt.Errorf("cannot use %s: %w", c.Address, err)
	}
	set(&w.images, c.Address, &plan.Image{Address: c.Address, Spec: spec, Digest: img.Digest, DependsOn: c.DependsOn})
	return e.commit(w)
}

// evaluated is run.evaluate for the kinds that are few.
func evaluated[T any](r *run, address string, pick func(*config.Desired) []config.Resource[T]) (*config.Resource[T], error) {
	if r.source == nil {
		return nil, fmt.Errorf("%s has values that are known only with its configuration; apply from its directory", address)
	}
	d, diags := r.source.Evaluate(r.e.settings, r.e.exports())
	if diags.HasErrors() {
		return nil, &Error{Kind: Invalid, Message: "the configuration cannot be evaluated now that what it refers to exists", Diagnostics: diags}
	}
	all := pick(d)
	for i := range all {
		if all[i].Address == address {
			if len(all[i].Unknown) > 0 {
				return nil, fmt.Errorf("%s: still unknown: %v", address, all[i].Unknown)
			}
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("%s is no longer declared once what it refers to exists", address)
}
