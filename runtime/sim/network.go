package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"pinfold/runtime"
)

// network is one network of a lineage. members are the instances whose link
// hangs on it, by address.
type network struct {
	spec                   runtime.Network
	bridge, address, rules bool
	members                map[netip.Addr]*instance
}

// EnsureNetwork implements runtime.Host. Ranges overlap with the host's own
// interfaces and with every other network, of this lineage too.
func (h *Host) EnsureNetwork(ctx context.Context, n runtime.Network) error {
	err := h.call(ctx, OpEnsureNetwork, n.ID, func(midway) error {
		w, l := h.w, h.l
		w.mu.Lock()
		defer w.mu.Unlock()
		if n.ID == "" || !n.CIDR.IsValid() || !n.CIDR.Contains(n.Gateway) {
			return fmt.Errorf("gateway %s is not in range %s", n.Gateway, n.CIDR)
		}
		if w.foreign[foreignKey{"bridge", n.ID}] {
			return fmt.Errorf("its bridge: %w", runtime.ErrForeign)
		}
		for _, p := range w.prefixes {
			if p.Overlaps(n.CIDR) {
				return fmt.Errorf("range %s overlaps %s of this host: %w", n.CIDR, p, runtime.ErrTaken)
			}
		}
		for _, other := range w.lineages {
			for id, o := range other.networks {
				if (other != l || id != n.ID) && o.bridge && o.spec.CIDR.Overlaps(n.CIDR) {
					return fmt.Errorf("range %s overlaps network %s: %w", n.CIDR, id, runtime.ErrTaken)
				}
			}
		}
		have := l.networks[n.ID]
		if have == nil {
			have = &network{members: map[netip.Addr]*instance{}}
			l.networks[n.ID] = have
		}
		have.spec = n
		have.bridge, have.address, have.rules = true, true, true
		l.table = true
		return nil
	})
	return wrapNetwork("make", n, err)
}

// RemoveNetwork implements runtime.Host.
func (h *Host) RemoveNetwork(ctx context.Context, n runtime.Network) error {
	err := h.call(ctx, OpRemoveNetwork, n.ID, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		if h.w.foreign[foreignKey{"bridge", n.ID}] {
			return fmt.Errorf("its bridge: %w", runtime.ErrForeign)
		}
		have := h.l.networks[n.ID]
		if have == nil {
			return nil
		}
		for _, in := range have.members {
			return fmt.Errorf("instance %s is on it: %w", in.spec.ID, runtime.ErrBusy)
		}
		delete(h.l.networks, n.ID)
		return nil
	})
	return wrapNetwork("remove", n, err)
}

// PrefixesInUse implements runtime.Host. It leaves out this lineage's own networks.
func (h *Host) PrefixesInUse(ctx context.Context) (used []netip.Prefix, err error) {
	err = h.call(ctx, OpPrefixesInUse, "", func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		used = slices.Clone(h.w.prefixes)
		for _, other := range h.w.lineages {
			for _, n := range other.networks {
				if other != h.l && n.bridge {
					used = append(used, n.spec.CIDR)
				}
			}
		}
		slices.SortFunc(used, func(a, b netip.Prefix) int { return a.Compare(b) })
		return nil
	})
	return used, err
}

func wrapNetwork(verb string, n runtime.Network, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s network %s (%s): %w", verb, n.ID, n.Address, err)
}
