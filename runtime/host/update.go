package host

import (
	"context"
	"fmt"

	"pinfold/runtime"
)

// Update implements runtime.Host. What needs another process to take effect is
// recorded by the Create that makes one.
func (h *Host) Update(ctx context.Context, in runtime.Instance) error {
	rec, err := h.mustRecord(in.ID)
	if err != nil {
		return err
	}
	p, err := h.loadProcess(in.ID)
	if err != nil {
		return err
	}
	ok, err := h.alive(p.Process)
	if err != nil {
		return err
	}
	now := rec.Instance
	change(&now, in)
	if ok {
		tree, err := h.cgroupsOf(in.ID)
		if err != nil {
			return err
		}
		if now.Limits != rec.Instance.Limits {
			if err := h.limit(in.ID, now.Limits, tree); err != nil {
				return err
			}
		}
		if now.Net != nil {
			if err := h.net.UpdateForwards(ctx, in.ID, *now.Net, now.Forwards); err != nil {
				return err
			}
		}
	}
	return h.editRecord(in.ID, func(now *runtime.Instance) { change(now, in) })
}

// change puts in what of an instance can change under a running process.
func change(now *runtime.Instance, in runtime.Instance) {
	now.Limits, now.Forwards = in.Limits, in.Forwards
	if in.Net != nil {
		joined(now, in.Net.Network)
	}
}

// limit brings the limits of an instance that lives to l.
func (h *Host) limit(id string, l runtime.Limits, tree *cgroupTree) error {
	out, err := h.readOutcome(id)
	if err != nil {
		return err
	}
	if !out.started {
		if err := h.savePIDs(id, l); err != nil {
			return err
		}
	}
	hold, err := tree.limitsHold(id, l, out.started)
	if err != nil || hold {
		return err
	}
	return tree.setLimits(id, l, out.started)
}

// Repair implements runtime.Host. A lost cgroup or root cannot be given back to
// a running process: the instance has to be stopped and created again.
func (h *Host) Repair(ctx context.Context, in runtime.Instance) error {
	if _, err := h.mustRecord(in.ID); err != nil {
		return err
	}
	p, err := h.loadProcess(in.ID)
	if err != nil {
		return err
	}
	ok, err := h.alive(p.Process)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("cannot repair instance %s: %w", in.ID, runtime.ErrNotRunning)
	}
	tree, err := h.cgroupsOf(in.ID)
	if err != nil {
		return err
	}
	if err := h.restoreRunDir(in, p, tree); err != nil {
		return err
	}
	if !tree.complete(in.ID) {
		return fmt.Errorf("instance %s has lost its cgroup, which only a restart can bring back: %w", in.ID, runtime.ErrUnsupported)
	}
	ns, err := namespaceOf(p.Process.PID)
	if err != nil {
		return err
	}
	if err := h.bindNetns(in.ID, p.Process.PID, ns); err != nil {
		return fmt.Errorf("cannot repair %w", err)
	}
	if in.Net != nil {
		if err := h.net.Attach(ctx, in.ID, h.netns(in.ID), *in.Net, in.Forwards); err != nil {
			return err
		}
	}
	if err := h.limit(in.ID, in.Limits, tree); err != nil {
		return err
	}
	return h.editRecord(in.ID, func(now *runtime.Instance) { change(now, in) })
}
