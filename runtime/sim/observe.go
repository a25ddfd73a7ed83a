package sim

import (
	"context"

	"pinfold/runtime"
)

// Observe implements runtime.Host.
func (h *Host) Observe(ctx context.Context) (o runtime.Observation, err error) {
	err = h.call(ctx, OpObserve, "", func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		l := h.l
		o = runtime.Observation{
			BootID:    h.w.bootID(),
			At:        now(),
			Instances: make(map[string]runtime.InstanceState, len(l.instances)),
			Networks:  make(map[string]runtime.NetworkState, len(l.networks)),
			Volumes:   make(map[string]bool, len(l.volumes)),
		}
		for id, in := range l.instances {
			o.Instances[id] = h.state(in)
		}
		for id, n := range l.networks {
			o.Networks[id] = n.state()
		}
		for id := range l.volumes {
			o.Volumes[id] = true
		}
		return nil
	})
	if err != nil {
		return runtime.Observation{}, err
	}
	return o, nil
}

// Recall implements runtime.Host.
func (h *Host) Recall(id string, p runtime.Process, _ runtime.Mark) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	h.recalled[id] = p
}

// Inspect implements runtime.Host. Its Missing is as complete as Observe's.
func (h *Host) Inspect(ctx context.Context, id string) (s runtime.InstanceState, found bool, err error) {
	err = h.call(ctx, OpInspect, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		if in := h.l.instances[id]; in != nil {
			s, found = h.state(in), true
		}
		return nil
	})
	if err != nil {
		return runtime.InstanceState{}, false, wrap("inspect", id, err)
	}
	return s, found, nil
}

func (h *Host) state(in *instance) runtime.InstanceState {
	s := runtime.InstanceState{ID: in.spec.ID, Mark: in.spec.Mark}
	if in.unknown != "" {
		s.Unknown, s.Released = in.unknown, in.released
		return s
	}
	s.Released, s.Noted = in.released, in.note != nil
	s.IDs = in.spec.IDs
	if in.spec.Net != nil {
		s.Address, s.Network = in.spec.Net.Address.Addr(), in.spec.Net.Network.ID
	}
	s.Mounts = in.spec.Mounts
	s.Layer = in.layer != nil
	s.Outcome = copyOutcome(in.outcome)
	s.OOMKills = in.ooms
	if p := in.proc; p != nil {
		s.Alive = h.alive(in)
		s.Dying = !s.Alive && (!p.dead || in.stuck)
		if s.Alive {
			s.Process, s.Started, s.Frozen = p.id, p.started, p.frozen
			s.Missing = in.missing()
		}
	}
	return s
}

// missing lists the parts that a live instance should have and lacks.
func (in *instance) missing() (names []string) {
	if complete(&in.spec) == in.parts {
		return nil
	}
	want, have := complete(&in.spec), in.parts
	for _, part := range partNames {
		if *want.named(part) && !*have.named(part) {
			names = append(names, part)
		}
	}
	return names
}

var partNames = []string{"cgroup", "rootfs", "netns", "rundir", "link", "address", "rules", "limits"}

// named gives a part by its name in runtime.InstanceState.Missing; nil for no such part.
func (p *parts) named(name string) *bool {
	switch name {
	case "cgroup":
		return &p.cgroup
	case "rootfs":
		return &p.rootfs
	case "netns":
		return &p.netns
	case "rundir":
		return &p.runDir
	case "link":
		return &p.link
	case "address":
		return &p.address
	case "rules":
		return &p.rules
	case "limits":
		return &p.limits
	}
	return nil
}

func (n *network) state() runtime.NetworkState {
	s := runtime.NetworkState{ID: n.spec.ID, Exists: n.bridge, CIDR: n.spec.CIDR}
	if !n.bridge {
		s.Missing = append(s.Missing, "bridge")
	}
	if !n.address {
		s.Missing = append(s.Missing, "address")
	}
	if !n.rules {
		s.Missing = append(s.Missing, "rules")
	}
	return s
}

// bareMemory is what a simulated PID 1 has in use, and each process beside it.
const bareMemory = 1 << 20

// Stats implements runtime.Host.
func (h *Host) Stats(ctx context.Context, id string) (s runtime.Stats, err error) {
	err = h.call(ctx, OpStats, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.running(id)
		if err != nil {
			return err
		}
		s = in.stat()
		return nil
	})
	if err != nil {
		return runtime.Stats{}, wrap("look at what is used by", id, err)
	}
	return s, nil
}

func (in *instance) stat() runtime.Stats {
	p := in.proc
	p.count()
	s := runtime.Stats{CPU: p.ran, PIDs: 1 + int64(len(p.execs)), MemoryLimit: in.spec.Limits.Memory}
	if p.started {
		s.PIDs++
		s.PIDsLimit = in.spec.Limits.PIDs
	}
	s.Memory = bareMemory*s.PIDs + p.held
	if in.spec.Net != nil {
		s.Net = &runtime.Traffic{}
	}
	if in.stats != nil {
		s = *in.stats
	}
	s.At, s.Frozen = now(), p.frozen
	return s
}
