package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
		if err := checkNetwork(n); err != nil {
			return err
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

// checkNetwork refuses what no host could make.
func checkNetwork(n runtime.Network) error {
	switch {
	case len(n.ID) != 8 || strings.Trim(n.ID, "0123456789abcdefghijklmnopqrstuvwxyz") != "":
		return fmt.Errorf("id %q is not 8 lower-case letters and digits", n.ID)
	case !n.CIDR.IsValid() || !n.CIDR.Addr().Is4() || n.CIDR.Masked() != n.CIDR:
		return fmt.Errorf("range %s is no IPv4 range", n.CIDR)
	case n.CIDR.Bits() < 8 || n.CIDR.Bits() > 30:
		return fmt.Errorf("range %s is not between 8 and 30 bits", n.CIDR)
	case !usable(n.CIDR, n.Gateway):
		return fmt.Errorf("gateway %s is no usable address of %s", n.Gateway, n.CIDR)
	}
	return nil
}

// usable tells whether a host of the range can have the address: neither its
// first nor its last.
func usable(p netip.Prefix, a netip.Addr) bool {
	return p.Contains(a) && a != p.Addr() && p.Contains(a.Next())
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
