package host

import (
	"context"
	"fmt"

	"github.com/opencontainers/cgroups"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// Pause implements runtime.Host. A frozen instance stays frozen.
func (h *Host) Pause(ctx context.Context, id string) error {
	g := h.gate(id)
	g.Lock()
	defer g.Unlock()
	return h.setFrozen(id, "pause", cgroups.Frozen)
}

// Resume implements runtime.Host. A running instance runs on.
func (h *Host) Resume(ctx context.Context, id string) error {
	return h.setFrozen(id, "resume", cgroups.Thawed)
}

func (h *Host) setFrozen(id, verb string, state cgroups.FreezerState) error {
	if _, err := h.mustRecord(id); err != nil {
		return err
	}
	r, err := h.loadProcess(id)
	if err != nil {
		return err
	}
	ok, err := h.alive(r.Process)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("cannot %s instance %s: %w", verb, id, runtime.ErrNotRunning)
	}
	tree, err := h.cgroupsOf(id)
	if err != nil {
		return err
	}
	if err := failpoint.Step("host.cgroup.freeze", func() error { return tree.freeze(id, state) }); err != nil {
		return fmt.Errorf("cannot %s instance %s: %w", verb, id, err)
	}
	return nil
}
