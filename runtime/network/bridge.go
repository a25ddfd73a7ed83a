package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// called names a network for people.
func called(w runtime.Network) string {
	if w.Address != "" {
		return w.Address
	}
	return "network " + w.ID
}

func checkNetwork(w runtime.Network) error {
	switch {
	case !w.CIDR.IsValid() || !w.CIDR.Addr().Is4():
		return fmt.Errorf("cidr %s: only IPv4 ranges are supported", w.CIDR)
	case w.CIDR.Bits() > 30 || w.CIDR.Bits() < 8:
		return fmt.Errorf("cidr %s: the prefix length must be from 8 to 30", w.CIDR)
	case w.CIDR.Overlaps(loopback) || w.CIDR.Overlaps(linkLocal) || w.CIDR.Addr().IsMulticast():
		return fmt.Errorf("cidr %s: overlaps a range with a meaning of its own; choose one of 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16", w.CIDR)
	case w.CIDR.Masked() != w.CIDR:
		return fmt.Errorf("cidr %s: has host bits set; write %s", w.CIDR, w.CIDR.Masked())
	case !w.CIDR.Contains(w.Gateway) || w.Gateway == w.CIDR.Addr() || w.Gateway == lastAddr(w.CIDR):
		return fmt.Errorf("gateway %s: is no usable address of %s", w.Gateway, w.CIDR)
	}
	return nil
}

// networkFacts is what follows the mark in a bridge's alias.
func networkFacts(w runtime.Network) string {
	reach := "closed"
	if w.Internet {
		reach = "internet"
	}
	return netip.PrefixFrom(w.Gateway, w.CIDR.Bits()).String() + " " + reach
}

// EnsureNetwork makes the network's rules, bridge and gateway address, in this
// order, or mends what is missing or differs. runtime.ErrTaken when something else
// on the host uses an overlapping range, runtime.ErrForeign when an interface that
// is not ours has the bridge's name. What a failing call has made, it removes.
func (n *Net) EnsureNetwork(ctx context.Context, w runtime.Network) error {
	n.networks.Lock()
	defer n.networks.Unlock()
	if err := n.ensureNetwork(ctx, w); err != nil {
		return fmt.Errorf("cannot make %s: %w", called(w), err)
	}
	return nil
}

func (n *Net) ensureNetwork(ctx context.Context, w runtime.Network) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkNetwork(w); err != nil {
		return err
	}
	name, err := n.bridgeName(w.ID)
	if err != nil {
		return err
	}
	bridge, found, err := n.route.link(name)
	if err != nil {
		return err
	}
	if found {
		if _, ours := n.networkOf(bridge); !ours {
			return fmt.Errorf("interface %s %w; remove or rename it (ip link delete %s)", name, runtime.ErrForeign, name)
		}
	}
	addrs, err := n.route.addresses()
	if err != nil {
		return err
	}
	gateway := netip.PrefixFrom(w.Gateway, w.CIDR.Bits())
	if !found || !slices.Contains(addrs, address{bridge.index, gateway}) {
		if err := n.checkRange(w, name); err != nil {
			return err
		}
	}

	n.wrote.Store(true)
	if !found {
		defer func() {
			if err != nil {
				n.unmakeNetwork(name)
			}
		}()
	}
	if err := n.networkRules(name, w); err != nil {
		return err
	}
	if !found {
		mac := markMAC(n.networkMark(w.ID))
		if err := failpoint.Step("network.bridge.add", func() error { return n.route.addBridge(name, mac) }); err != nil {
			return fmt.Errorf("cannot make bridge %s: %w", name, err)
		}
		if bridge, found, err = n.route.link(name); err != nil || !found {
			return fmt.Errorf("bridge %s vanished while it was made: %w", name, err)
		}
	}
	if want := n.networkMark(w.ID) + " " + networkFacts(w); bridge.alias != want {
		err := failpoint.Step("network.bridge.mark", func() error { return n.route.set(bridge.index, false, alias(want)) })
		if err != nil {
			return fmt.Errorf("cannot mark bridge %s: %w", name, err)
		}
	}
	for _, s := range [][2]string{
		{"ipv6/conf/" + name + "/disable_ipv6", "1"},
		{"ipv4/conf/" + name + "/route_localnet", "1"}, // ports published on loopback; see chainRaw
		{"ipv4/conf/" + name + "/arp_ignore", "1"},     // ARP tells of the gateway only, not of the host's other addresses
	} {
		if err := failpoint.Step("network.bridge.setting", func() error { return setSysctl(s[0], s[1]) }); err != nil {
			return err
		}
	}
	for _, a := range addrs {
		if a.index == bridge.index && a.prefix != gateway {
			err := failpoint.Step("network.bridge.dropaddress", func() error { return n.route.deleteAddress(bridge.index, a.prefix) })
			if err != nil {
				return fmt.Errorf("cannot remove address %s from bridge %s: %w", a.prefix, name, err)
			}
		}
	}
	err = failpoint.Step("network.bridge.address", func() error { return n.route.addAddress(bridge.index, gateway) })
	if err != nil {
		return fmt.Errorf("cannot give bridge %s the address %s: %w", name, gateway, err)
	}
	if err := failpoint.Step("network.bridge.up", func() error { return n.route.set(bridge.index, true) }); err != nil {
		return fmt.Errorf("cannot bring bridge %s up: %w", name, err)
	}
	if w.Internet {
		return forwardPackets()
	}
	return nil
}

// forwardPackets makes the host route packets between its interfaces. What may
// pass is for the rules to say.
func forwardPackets() error {
	return failpoint.Step("network.forwarding.enable", func() error { return setSysctl("ipv4/ip_forward", "1") })
}

// networkRules makes the tables and exactly the network's elements in them.
func (n *Net) networkRules(bridge string, w runtime.Network) error {
	if err := n.rules.ensure(); err != nil {
		return err
	}
	want := n.rules.sets.network(bridge, w)
	stale, err := n.networkElements(bridge)
	if err != nil {
		return err
	}
	stale = slices.DeleteFunc(stale, func(have member) bool {
		return slices.ContainsFunc(want, func(m member) bool { return m.set == have.set && bytes.Equal(m.Key, have.Key) })
	})
	err = failpoint.Step("network.bridge.rules", func() error { return n.rules.commits.apply(change{remove: stale, add: want}) })
	if err != nil {
		return fmt.Errorf("cannot add bridge %s to nftables table %s: %w", bridge, n.rules.inet.Name, err)
	}
	return nil
}

// networkElements finds every element that names the bridge.
func (n *Net) networkElements(bridge string) ([]member, error) {
	var out []member
	s := n.rules.sets
	for _, set := range s.perNetwork() {
		es, err := n.rules.nf.elements(set)
		if err != nil {
			return nil, err
		}
		for _, e := range es {
			if keyName(e.Key) == bridge {
				out = append(out, member{set, e})
			}
		}
	}
	return out, nil
}

// unmakeNetwork removes a network that failed half-way. What resists is found by
// the next Observe.
func (n *Net) unmakeNetwork(bridge string) {
	if l, found, err := n.route.link(bridge); err == nil && found {
		_ = failpoint.Step("network.bridge.undo", func() error { return n.route.deleteLink(l.index) })
	}
	if es, err := n.networkElements(bridge); err == nil {
		_ = failpoint.Step("network.bridge.undorules", func() error { return n.rules.commits.apply(change{remove: es}) })
	}
	_ = n.dropUnusedTables()
}

// RemoveNetwork removes the bridge and the network's rules, and the tables after
// the lineage's last network. runtime.ErrBusy when a sandbox is still connected,
// runtime.ErrForeign when an interface that is not ours has the bridge's name. A
// network that is not there is no error.
func (n *Net) RemoveNetwork(ctx context.Context, w runtime.Network) error {
	n.networks.Lock()
	defer n.networks.Unlock()
	if err := n.removeNetwork(ctx, w); err != nil {
		return fmt.Errorf("cannot remove %s: %w", called(w), err)
	}
	return nil
}

func (n *Net) removeNetwork(ctx context.Context, w runtime.Network) error {
	name, err := n.bridgeName(w.ID)
	if err != nil {
		return err
	}
	bridge, found, err := n.route.link(name)
	if err != nil {
		return err
	}
	n.wrote.Store(true)
	if found {
		if _, ours := n.networkOf(bridge); !ours {
			return fmt.Errorf("interface %s %w; it is left alone", name, runtime.ErrForeign)
		}
		users, err := n.connected(ctx, bridge.index)
		if err != nil {
			return err
		}
		if len(users) > 0 {
			return fmt.Errorf("bridge %s is %w: %s connected; remove them first", name, runtime.ErrBusy, strings.Join(users, ", "))
		}
		if err := failpoint.Step("network.bridge.delete", func() error { return n.route.deleteLink(bridge.index) }); err != nil {
			return fmt.Errorf("cannot delete bridge %s: %w", name, err)
		}
	}
	es, err := n.networkElements(name)
	if err != nil {
		return err
	}
	err = failpoint.Step("network.bridge.withdraw", func() error { return n.rules.commits.apply(change{remove: es}) })
	if err != nil {
		return fmt.Errorf("cannot remove bridge %s from nftables table %s: %w", name, n.rules.inet.Name, err)
	}
	return n.dropUnusedTables()
}

// connected names what is in the bridge, after waiting for ports whose sandbox is
// being torn down.
func (n *Net) connected(ctx context.Context, bridge int) ([]string, error) {
	var users []string
	err := poll(ctx, teardownBound, func() (bool, error) {
		links, err := n.route.links()
		if err != nil {
			return false, err
		}
		users = nil
		leaving := false
		for _, l := range links {
			if l.master != bridge {
				continue
			}
			if id, ours := n.instanceOf(l); ours {
				users = append(users, "instance "+id)
				doomed, err := n.route.doomed(l)
				if err != nil {
					return false, err
				}
				leaving = leaving || doomed
			} else {
				users = append(users, "interface "+l.name)
			}
		}
		return !leaving, nil
	})
	if errors.Is(err, errBound) {
		err = nil
	}
	return users, err
}

// use is one claim on an address range.
type use struct {
	prefix netip.Prefix
	what   string // "address of eth0", "route over tun0"
	bridge string // the interface's name
	ours   bool   // a bridge of this lineage
}

// uses lists what the host does with which range.
func (n *Net) uses() ([]use, error) {
	links, err := n.route.links()
	if err != nil {
		return nil, err
	}
	byIndex := map[int]link{}
	for _, l := range links {
		byIndex[l.index] = l
	}
	addrs, err := n.route.addresses()
	if err != nil {
		return nil, err
	}
	ways, err := n.route.destinations()
	if err != nil {
		return nil, err
	}
	var out []use
	add := func(p netip.Prefix, what string, index int) {
		l := byIndex[index]
		_, ours := n.networkOf(l)
		if l.name != "" {
			what += " " + l.name
		}
		out = append(out, use{p.Masked(), what, l.name, ours})
	}
	for _, a := range addrs {
		add(a.prefix, "the address "+a.prefix.String()+" of interface", a.index)
	}
	for _, d := range ways {
		// Default routes claim nothing; VPNs split theirs in two halves.
		if d.prefix.Bits() > 1 {
			add(d.prefix, "the route to "+d.prefix.String()+" over interface", d.index)
		}
	}
	return out, nil
}

// checkRange refuses a range that somebody else uses.
func (n *Net) checkRange(w runtime.Network, bridge string) error {
	uses, err := n.uses()
	if err != nil {
		return err
	}
	for _, u := range uses {
		if u.bridge != bridge && u.prefix.Overlaps(w.CIDR) {
			return fmt.Errorf("%s is %w: it overlaps %s; choose another cidr", w.CIDR, runtime.ErrTaken, u.what)
		}
	}
	return nil
}
