package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// place is everything that follows from one attachment.
type place struct {
	id      string // instance
	port    string // the host's end
	bridge  string
	mac     net.HardwareAddr // the sandbox's
	address netip.Prefix
	gateway netip.Addr
	network runtime.Network
	ports   []publication
}

func (n *Net) place(id string, a runtime.Attachment, fs []runtime.Forward) (place, error) {
	port, err := n.portName(id)
	if err != nil {
		return place{}, err
	}
	bridge, err := n.bridgeName(a.Network.ID)
	if err != nil {
		return place{}, err
	}
	if err := checkNetwork(a.Network); err != nil {
		return place{}, err
	}
	ip := a.Address.Addr()
	switch {
	case !a.Address.IsValid() || a.Address.Masked() != a.Network.CIDR:
		return place{}, fmt.Errorf("address %s: must lie in %s and have its prefix length", a.Address, a.Network.CIDR)
	case ip == a.Network.Gateway || ip == a.Network.CIDR.Addr() || ip == lastAddr(a.Network.CIDR):
		return place{}, fmt.Errorf("address %s: is the gateway's, or the first or last of %s", ip, a.Network.CIDR)
	}
	p := place{id: id, port: port, bridge: bridge, mac: sandboxMAC(ip), address: a.Address, gateway: a.Network.Gateway, network: a.Network}
	p.ports, err = publications(id, ip, fs)
	return p, err
}

func publications(id string, ip netip.Addr, fs []runtime.Forward) ([]publication, error) {
	var out []publication
	for _, f := range fs {
		protocol, err := protocolNumber(f.Protocol)
		if err != nil {
			return nil, fmt.Errorf("port %q: %w", f.Name, err)
		}
		host := f.HostAddr.Unmap()
		if !host.Is4() {
			return nil, fmt.Errorf("port %q: host address %q: only IPv4 addresses are supported", f.Name, f.HostAddr)
		}
		if f.HostPort == 0 || f.ContainerPort == 0 {
			return nil, fmt.Errorf("port %q: needs a host port and a port of the sandbox, both above 0", f.Name)
		}
		p := publication{
			portKey: portKey{protocol, netip.AddrPortFrom(host, f.HostPort)},
			target:  netip.AddrPortFrom(ip, f.ContainerPort),
			owner:   id,
		}
		for _, o := range out {
			if o.portKey == p.portKey && o.target != p.target {
				return nil, fmt.Errorf("port %q: %s is published twice", f.Name, p.portKey)
			}
		}
		out = append(out, p)
	}
	return out, nil
}

// facts is what follows the mark in the alias of the sandbox's link.
func (p place) facts() string {
	return p.network.ID + " " + p.address.Addr().String() + " " + digest(p.ports)
}

func (p place) members(s sets) []member {
	out := []member{s.sender(p.port, p.mac, p.address.Addr())}
	for _, pub := range p.ports {
		out = append(out, s.publication(pub))
	}
	return out
}

// Attach connects the namespace at netnsPath to its network and publishes its
// ports: rules first, then a veth pair whose far end is eth0 there, with address,
// default route and lo up; last the near end joins the bridge. Called again it
// mends what is missing. runtime.ErrNotFound when the network is not on the host,
// runtime.ErrTaken when another sandbox has published one of the ports,
// runtime.ErrForeign when an interface with the name of ours is not. A failing
// call leaves nothing of what it made.
func (n *Net) Attach(ctx context.Context, instanceID, netnsPath string, a runtime.Attachment, fs []runtime.Forward) error {
	if err := n.attach(ctx, instanceID, netnsPath, a, fs); err != nil {
		return fmt.Errorf("cannot connect instance %s to %s: %w", instanceID, called(a.Network), err)
	}
	return nil
}

func (n *Net) attach(ctx context.Context, id, netnsPath string, a runtime.Attachment, fs []runtime.Forward) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := n.place(id, a, fs)
	if err != nil {
		return err
	}
	bridge, found, err := n.route.link(p.bridge)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("bridge %s: %w; make the network first", p.bridge, runtime.ErrNotFound)
	}
	if _, ours := n.networkOf(bridge); !ours {
		return fmt.Errorf("interface %s %w", p.bridge, runtime.ErrForeign)
	}
	near, exists, err := n.route.link(p.port)
	if err != nil {
		return err
	}
	if exists {
		if _, ours := n.instanceOf(near); !ours {
			return fmt.Errorf("interface %s %w; remove or rename it", p.port, runtime.ErrForeign)
		}
		if near, exists, err = n.keepOrClear(ctx, near, netnsPath); err != nil {
			return err
		}
	}

	n.wrote.Store(true)
	if !exists {
		defer func() {
			if err != nil {
				n.unmakeLink(p.port)
				n.withdraw(p.id, p.port)
			}
		}()
	}
	if err := n.install(p, exists); err != nil {
		return err
	}
	n.wiring.Lock()
	defer n.wiring.Unlock()
	err = within(netnsPath, func(ns *os.File) error {
		r, err := openRoute()
		if err != nil {
			return err
		}
		defer r.close()
		if !exists {
			if err := n.connect(r, p, ns); err != nil {
				return err
			}
		}
		return furnish(r, p.mac, p.address, p.gateway)
	})
	if err != nil {
		return err
	}
	if !exists {
		if near, _, err = n.route.link(p.port); err != nil {
			return err
		}
	}
	// The port itself needs no address of any kind.
	err = failpoint.Step("network.port.setting", func() error { return setSysctl("ipv6/conf/"+p.port+"/disable_ipv6", "1") })
	if err != nil {
		return err
	}
	err = failpoint.Step("network.port.join", func() error {
		return n.route.set(near.index, true, alias(n.instanceMark(id)+" "+p.facts()), u32(unix.IFLA_MASTER, uint32(bridge.index)))
	})
	if err != nil {
		return fmt.Errorf("cannot join %s to bridge %s: %w", p.port, p.bridge, err)
	}
	if exists || len(p.ports) > 0 {
		if err := n.reflect(near.index, p); err != nil {
			return err
		}
	}
	return n.afterPublishing(p.ports)
}

// reflect lets a sandbox that publishes ports reach them itself. With br_netfilter
// the redirected packet stays in the bridge and would have to leave by the port it
// came from.
func (n *Net) reflect(index int, p place) error {
	err := failpoint.Step("network.port.reflect", func() error { return n.route.setHairpin(index, len(p.ports) > 0) })
	if err != nil {
		return fmt.Errorf("cannot set hairpin mode of %s: %w", p.port, err)
	}
	return nil
}

// connect makes the veth pair. r speaks in the sandbox's namespace ns.
func (n *Net) connect(r *route, p place, ns *os.File) error {
	if _, found, err := r.link(insideName); err != nil {
		return err
	} else if found {
		return fmt.Errorf("the namespace has an interface %s that %w", insideName, runtime.ErrForeign)
	}
	// Born without IPv6, whatever brings the link up.
	err := failpoint.Step("network.inside.default", func() error { return setSysctl("ipv6/conf/default/disable_ipv6", "1") })
	if err != nil {
		return err
	}
	err = failpoint.Step("network.veth.add", func() error {
		return n.route.addVeth(p.port, markMAC(n.instanceMark(p.id)), int(ns.Fd()), p.mac)
	})
	if err != nil {
		return fmt.Errorf("cannot make veth pair %s: %w", p.port, err)
	}
	// The name is this link's now: whoever waits for its predecessor has seen it go.
	n.leaving.remove(p.port)
	return nil
}

// keepOrClear keeps a link of ours that leads into the namespace, and sees one gone
// that leads elsewhere: it is left from an earlier namespace of the instance.
func (n *Net) keepOrClear(ctx context.Context, near link, netnsPath string) (link, bool, error) {
	far, found, err := look(netnsPath)
	if err != nil {
		return link{}, false, err
	}
	if found && far.peer == near.index && near.peer == far.index && near.remote {
		n.leaving.remove(near.name)
		return near, true, nil
	}
	doomed, err := n.route.doomed(near)
	if err != nil {
		return link{}, false, err
	}
	if !doomed {
		if err := failpoint.Step("network.port.clear", func() error { return n.route.deleteLink(near.index) }); err != nil {
			return link{}, false, fmt.Errorf("cannot remove %s, left from an earlier namespace: %w", near.name, err)
		}
	}
	err = poll(ctx, teardownBound, func() (bool, error) {
		_, found, err := n.route.link(near.name)
		return !found, err
	})
	if err != nil {
		return link{}, false, fmt.Errorf("%s, left from an earlier namespace, does not go: %w", near.name, err)
	}
	n.leaving.remove(near.name)
	return link{}, false, nil
}

// install writes the sandbox's rules. careful compares with what is there; without
// it the sandbox is taken to have none.
func (n *Net) install(p place, careful bool) error {
	write := func() error {
		if careful {
			return n.reconcile(p)
		}
		err := failpoint.Step("network.port.rules", func() error { return n.rules.commits.apply(change{add: p.members(n.rules.sets)}) })
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			return n.reconcile(p)
		}
		return err
	}
	err := write()
	if errors.Is(err, unix.ENOENT) {
		// Somebody flushed the tables. The network's own rules first.
		n.networks.Lock()
		err = n.networkRules(p.bridge, p.network)
		n.networks.Unlock()
		if err == nil {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the rules of %s: %w", p.port, err)
	}
	return nil
}

// reconcile brings the sandbox's elements to exactly p's.
func (n *Net) reconcile(p place) error {
	have, err := n.belonging(p.id, p.port)
	if err != nil {
		return err
	}
	for _, want := range p.ports {
		for _, o := range have.others {
			if o.portKey == want.portKey {
				return fmt.Errorf("%s is %w: instance %s has published it; choose another host port", want.portKey, runtime.ErrTaken, o.owner)
			}
		}
	}
	want := p.members(n.rules.sets)
	c := change{remove: without(have.members, want), add: without(want, have.members)}
	return failpoint.Step("network.port.mend", func() error { return n.rules.commits.apply(c) })
}

// holdings is what the sets hold for one instance.
type holdings struct {
	members []member
	ports   []publication
	others  []publication // of other instances
}

func (n *Net) belonging(id, port string) (holdings, error) {
	var h holdings
	s := n.rules.sets
	senders, err := n.rules.nf.elements(s.senders)
	if err != nil {
		return h, err
	}
	for _, e := range senders {
		if keyName(e.Key) == port {
			h.members = append(h.members, member{s.senders, e})
		}
	}
	pubs, err := n.rules.nf.publications(s)
	if err != nil {
		return h, err
	}
	for _, p := range pubs {
		if p.owner != id {
			h.others = append(h.others, p)
			continue
		}
		h.ports = append(h.ports, p)
		h.members = append(h.members, s.publication(p))
	}
	return h, nil
}

// without returns the elements of a that are not in b.
func without(a, b []member) []member {
	return slices.DeleteFunc(slices.Clone(a), func(m member) bool {
		return slices.ContainsFunc(b, func(o member) bool {
			return m.set == o.set && bytes.Equal(m.Key, o.Key) && bytes.Equal(m.Val, o.Val) && m.Comment == o.Comment
		})
	})
}

// withdraw removes every rule of the instance and returns the ports it had published.
func (n *Net) withdraw(id, port string) ([]publication, error) {
	h, err := n.belonging(id, port)
	if err != nil {
		return nil, err
	}
	return h.ports, failpoint.Step("network.port.withdraw", func() error { return n.rules.commits.apply(change{remove: h.members}) })
}

// afterPublishing lets packets reach ports that were just published.
func (n *Net) afterPublishing(ps []publication) error {
	for _, p := range ps {
		if !p.host.Addr().IsLoopback() {
			if err := forwardPackets(); err != nil {
				return err
			}
			break
		}
	}
	return n.forgetFlows(slices.DeleteFunc(slices.Clone(ps), func(p publication) bool { return p.protocol != unix.IPPROTO_UDP }))
}

// UpdateForwards publishes exactly fs for a connected instance. Connections
// through ports that are no longer published end. runtime.ErrTaken when another
// sandbox has published one of the ports; nothing is changed then.
func (n *Net) UpdateForwards(ctx context.Context, instanceID string, a runtime.Attachment, fs []runtime.Forward) error {
	if err := n.updateForwards(ctx, instanceID, a, fs); err != nil {
		return fmt.Errorf("cannot change the published ports of instance %s: %w", instanceID, err)
	}
	return nil
}

func (n *Net) updateForwards(ctx context.Context, id string, a runtime.Attachment, fs []runtime.Forward) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p, err := n.place(id, a, fs)
	if err != nil {
		return err
	}
	near, found, err := n.route.link(p.port)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("interface %s: %w; connect the instance first", p.port, runtime.ErrNotFound)
	}
	if _, ours := n.instanceOf(near); !ours {
		return fmt.Errorf("interface %s %w", p.port, runtime.ErrForeign)
	}
	n.wrote.Store(true)
	before, err := n.belonging(p.id, p.port)
	if err != nil {
		return err
	}
	if err := n.install(p, true); err != nil {
		return err
	}
	err = failpoint.Step("network.port.mark", func() error { return n.route.set(near.index, false, alias(n.instanceMark(id)+" "+p.facts())) })
	if err != nil {
		return fmt.Errorf("cannot mark %s: %w", p.port, err)
	}
	if err := n.reflect(near.index, p); err != nil {
		return err
	}
	if err := n.forgetFlows(slices.DeleteFunc(before.ports, func(o publication) bool { return slices.Contains(p.ports, o) })); err != nil {
		return err
	}
	return n.afterPublishing(p.ports)
}

const (
	// teardownBound is how long a namespace that is being torn down may take to
	// give back its link. The kernel does many at once, one batch after another.
	teardownBound = 10 * time.Second
	// lingerBound is how long Detach gives a namespace's last holder to let go
	// before it deletes the link itself, which costs tens of milliseconds under
	// the lock that all network changes need.
	lingerBound = 250 * time.Millisecond
)

// Detach removes the instance's rules and its link. Call it when the namespace is
// already released: then it does not wait for the kernel to tear it down, and the
// link goes with it some milliseconds later (RemoveNetwork, Close and another Attach
// wait for that). Where the namespace lives on, Detach deletes the link itself,
// after giving its last holder a quarter of a second to let go. With a, fs must be
// what was published. With a nil, every rule is found by the instance's id, at the
// cost of reading the sets. An instance that is not connected is no error.
func (n *Net) Detach(ctx context.Context, instanceID string, a *runtime.Attachment, fs []runtime.Forward) error {
	if err := n.detach(ctx, instanceID, a, fs); err != nil {
		return fmt.Errorf("cannot disconnect instance %s: %w", instanceID, err)
	}
	return nil
}

func (n *Net) detach(ctx context.Context, id string, a *runtime.Attachment, fs []runtime.Forward) error {
	port, err := n.portName(id)
	if err != nil {
		return err
	}
	n.wrote.Store(true)
	if a != nil && len(fs) == 0 {
		ip := a.Address.Addr()
		if !ip.Is4() {
			return fmt.Errorf("address %s: only IPv4 is supported", a.Address)
		}
		sender := n.rules.sets.sender(port, sandboxMAC(ip), ip)
		err := failpoint.Step("network.sender.remove", func() error { return n.rules.commits.apply(change{remove: []member{sender}}) })
		if err != nil {
			return fmt.Errorf("cannot remove the rules of %s: %w", port, err)
		}
	} else {
		gone, err := n.withdraw(id, port)
		if err != nil {
			return fmt.Errorf("cannot remove the rules of %s: %w", port, err)
		}
		if err := n.forgetFlows(slices.DeleteFunc(gone, func(p publication) bool { return p.protocol != unix.IPPROTO_UDP })); err != nil {
			return err
		}
	}
	return n.awaitLinkGone(ctx, port)
}

// awaitLinkGone returns when the instance's link is gone or certain to go, deleting
// it when its namespace lives on.
func (n *Net) awaitLinkGone(ctx context.Context, port string) error {
	start := time.Now()
	return poll(ctx, teardownBound, func() (bool, error) {
		l, found, err := n.route.link(port)
		if err != nil || !found {
			return true, err
		}
		if _, ours := n.instanceOf(l); !ours {
			return true, nil // not ours to remove
		}
		if doomed, err := n.route.doomed(l); doomed || err != nil {
			n.leaving.add(port)
			return true, err
		}
		if time.Since(start) < lingerBound {
			return false, nil
		}
		return false, failpoint.Step("network.port.delete", func() error { return n.route.deleteLink(l.index) })
	})
}

// unmakeLink deletes the link that a failing Attach made.
func (n *Net) unmakeLink(port string) {
	if l, found, err := n.route.link(port); err == nil && found {
		if _, ours := n.instanceOf(l); ours {
			_ = failpoint.Step("network.port.undo", func() error { return n.route.deleteLink(l.index) })
		}
	}
}

var errBound = fmt.Errorf("it took longer than it should: %w", runtime.ErrBusy)

// poll calls ready every millisecond until it returns true or an error, or the
// bound has passed (errBound), or ctx is done.
func poll(ctx context.Context, bound time.Duration, ready func() (bool, error)) error {
	deadline := time.Now().Add(bound)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return errBound
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
