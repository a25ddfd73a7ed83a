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

// wanted is the declaration a change ends in, with everything known; nil when the
// record is what is wanted.
func wanted[T any](r *run, c *plan.Change, all map[string]*config.Resource[T], pick func(*declared) map[string]*config.Resource[T]) (*config.Resource[T], error) {
	if len(c.Unknown) > 0 {
		return known(r, c.Address, pick)
	}
	if len(c.After) == 0 {
		return nil, nil
	}
	res := config.Resource[T]{Address: c.Address}
	if d := all[c.Address]; d != nil {
		res = *d
	}
	var spec T
	if err := json.Unmarshal(c.After, &spec); err != nil {
		return nil, fmt.Errorf("%s: the plan holds no readable spec: %w", c.Address, err)
	}
	res.Spec = spec
	return &res, nil
}

func (r *run) networkChange(ctx context.Context, c plan.Change) error {
	rec, exists := r.network(c.Address)
	switch c.Action {
	case plan.ActDelete:
		if !exists {
			return nil
		}
		return r.deleteNetwork(ctx, rec, reasonOf(c))
	case plan.ActForget:
		if exists {
			r.alloc.leaveNetwork(rec)
		}
		w := &write{bump: true}
		set(&w.networks, c.Address, nil)
		return r.commit(w)
	}
	want, err := wanted(r, &c, r.declared.networks, networks)
	if err != nil {
		return err
	}
	if !exists && want == nil {
		return nil // gone since it was found in need of repair
	}
	if c.Action == plan.ActReplace && exists {
		if err := r.deleteNetwork(ctx, rec, "replaced"); err != nil {
			return err
		}
		exists = false
	}
	if !exists {
		rec = &plan.Network{Address: c.Address, ID: newID(4)}
	}
	if want != nil {
		rec.Spec, rec.Lifecycle, rec.DependsOn = want.Spec, want.Lifecycle, want.DependsOn
	}
	if !rec.CIDR.IsValid() {
		if err := r.place(ctx, rec); err != nil {
			return fmt.Errorf("cannot create %s: %w", c.Address, err)
		}
	}
	return r.ensureNetwork(ctx, rec, string(c.Action), c.Cause)
}

// place gives a network its range. A chosen one is recorded before another
// network can choose.
func (e *actor) place(ctx context.Context, rec *plan.Network) error {
	e.choosing.Lock()
	defer e.choosing.Unlock()
	var cidr netip.Prefix
	var err error
	if rec.Spec.CIDR == "" {
		cidr, err = e.chooseCIDR(ctx)
	} else {
		cidr, err = netip.ParsePrefix(rec.Spec.CIDR)
	}
	if err != nil {
		return err
	}
	rec.CIDR, rec.Gateway = cidr, cidr.Masked().Addr().Next()
	if rec.Spec.CIDR != "" {
		return nil
	}
	w := &write{bump: true}
	chosen := *rec
	set(&w.networks, rec.Address, &chosen)
	return e.commit(w)
}

// ensureNetwork makes or mends a network. A new one is recorded first, unmade; of
// an existing one the new spec is recorded when the host has it, so that a failed
// or interrupted change is planned again.
func (e *actor) ensureNetwork(ctx context.Context, rec *plan.Network, verb, cause string) error {
	w := &write{}
	if !rec.Made {
		before := *rec
		w.bump = true
		set(&w.networks, rec.Address, &before)
	}
	in, err := e.begin(Intent{Op: opNetwork, Kind: "network", Address: rec.Address, UID: rec.ID, Instance: rec.ID}, w)
	if err != nil {
		return err
	}
	err = e.host.EnsureNetwork(ctx, networkOf(rec))
	if err != nil {
		err = fmt.Errorf("cannot %s %s: %w", verb, rec.Address, err)
		if rec.Made {
			return errors.Join(err, e.end(in, nil))
		}
		// Nothing of a failed make stays, neither on the host nor in the records.
		w := &write{bump: true}
		set(&w.networks, rec.Address, nil)
		if undo := e.host.RemoveNetwork(ctx, networkOf(rec)); undo != nil && !errors.Is(undo, runtime.ErrForeign) && !errors.Is(undo, runtime.ErrNotFound) {
			err = errors.Join(err, undo)
			w = nil // the record stays, unmade: what is left is removed with it
		}
		return errors.Join(err, e.end(in, w))
	}
	rec.Made = true
	w = &write{bump: true}
	set(&w.networks, rec.Address, rec)
	return e.end(in, w.event(Event{Address: rec.Address, Type: verb, Reason: cause, Instance: rec.ID}))
}

func (e *actor) deleteNetwork(ctx context.Context, rec *plan.Network, reason string) error {
	in, err := e.begin(Intent{Op: opDelete, Kind: "network", Address: rec.Address, UID: rec.ID, Instance: rec.ID}, nil)
	if err != nil {
		return err
	}
	if err := e.host.RemoveNetwork(ctx, networkOf(rec)); err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return errors.Join(fmt.Errorf("cannot destroy %s: %w", rec.Address, err), e.end(in, nil))
	}
	w := &write{bump: true}
	set(&w.networks, rec.Address, nil)
	return e.end(in, w.event(Event{Address: rec.Address, Type: "destroyed", Reason: reason, Instance: rec.ID}))
}

func (r *run) volumeChange(ctx context.Context, c plan.Change) error {
	rec, exists := r.volume(c.Address)
	switch {
	case c.Action == plan.ActDelete && !exists:
		return nil
	case c.Action == plan.ActDelete:
		return r.deleteVolume(ctx, rec, reasonOf(c))
	case c.Action == plan.ActForget:
		w := &write{bump: true}
		set(&w.volumes, c.Address, nil)
		return r.commit(w)
	}
	want, err := wanted(r, &c, r.declared.volumes, volumesOf)
	if err != nil {
		return err
	}
	if !exists && want == nil {
		return nil // gone since it was found in need of repair
	}
	if !exists {
		rec = &plan.Volume{Address: c.Address, ID: newID(6), CreatedAt: r.now()}
	}
	if want != nil {
		rec.Spec, rec.Lifecycle, rec.DependsOn = want.Spec, want.Lifecycle, want.DependsOn
	}
	w := &write{bump: true}
	before := *rec
	set(&w.volumes, c.Address, &before)
	in, err := r.begin(Intent{Op: opVolume, Kind: "volume", Address: c.Address, UID: rec.ID, Instance: rec.ID}, w)
	if err != nil {
		return err
	}
	err = r.host.EnsureVolume(ctx, runtime.Volume{ID: rec.ID})
	if err != nil {
		err = fmt.Errorf("cannot %s %s: %w", c.Action, c.Address, err)
		if rec.Made {
			return errors.Join(err, r.end(in, nil))
		}
		w := &write{bump: true}
		set(&w.volumes, c.Address, nil)
		if undo := r.host.RemoveVolume(ctx, rec.ID); undo != nil && !errors.Is(undo, runtime.ErrForeign) && !errors.Is(undo, runtime.ErrNotFound) {
			err = errors.Join(err, undo)
			w = nil // the record stays, unmade: what is left is removed with it
		}
		return errors.Join(err, r.end(in, w))
	}
	rec.Made = true
	w = &write{bump: true}
	set(&w.volumes, c.Address, rec)
	return r.end(in, w.event(Event{Address: c.Address, Type: string(c.Action), Reason: c.Cause, Instance: rec.ID}))
}

func volumesOf(d *declared) map[string]*config.Resource[config.Volume] { return d.volumes }

func (e *actor) deleteVolume(ctx context.Context, rec *plan.Volume, reason string) error {
	in, err := e.begin(Intent{Op: opDelete, Kind: "volume", Address: rec.Address, UID: rec.ID, Instance: rec.ID}, nil)
	if err != nil {
		return err
	}
	if err := e.host.RemoveVolume(ctx, rec.ID); err != nil && !errors.Is(err, runtime.ErrNotFound) {
		return errors.Join(fmt.Errorf("cannot destroy %s: %w", rec.Address, err), e.end(in, nil))
	}
	w := &write{bump: true}
	set(&w.volumes, rec.Address, nil)
	return e.end(in, w.event(Event{Address: rec.Address, Type: "destroyed", Reason: reason, Instance: rec.ID}))
}

// imageChange pins what the image is now. It touches nothing that would have to
// be undone: layers of host and dir images are used where they lie.
func (r *run) imageChange(ctx context.Context, c plan.Change) error {
	w := &write{bump: true}
	if c.Action == plan.ActDelete || c.Action == plan.ActForget {
		set(&w.images, c.Address, nil)
		return r.commit(w)
	}
	want, err := wanted(r, &c, r.declared.images, images)
	if err != nil {
		return err
	}
	if want == nil {
		return fmt.Errorf("%s: the plan holds no spec", c.Address)
	}
	img, err := r.host.PrepareImage(ctx, imageSource(want.Spec))
	if errors.Is(err, runtime.ErrNotFound) {
		return fmt.Errorf("cannot use %s: %w; correct the path in source = %q", c.Address, err, want.Spec.Source)
	} else if err != nil {
		return fmt.Errorf("cannot use %s: %w", c.Address, err)
	}
	set(&w.images, c.Address, &plan.Image{Address: c.Address, Spec: want.Spec, Digest: img.Digest, Lifecycle: want.Lifecycle, DependsOn: want.DependsOn})
	return r.commit(w)
}
