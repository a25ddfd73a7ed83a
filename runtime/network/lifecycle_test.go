package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

func TestOpenAndLookChangeNothing(t *testing.T) {
	h := newHost(t)
	if o := h.observe(); len(o.Networks)+len(o.Instances) != 0 {
		t.Errorf("an empty host shows %v", o)
	}
	if _, err := h.PrefixesInUse(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := h.CheckPort(context.Background(), hostAddr, 0, "tcp"); err != nil {
		t.Error(err)
	}
	proveClean(t, h.shortID)
	if _, err := Open("A1"); err == nil {
		t.Error("a bad short id is accepted")
	}
}

// The host's own forwarding is touched only by what needs it.
func TestForwardingIsSwitchedOnWhenNeeded(t *testing.T) {
	h := newHost(t)
	forwarding := func() string {
		b, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:1])
	}
	off := func() {
		if err := setSysctl("ipv4/ip_forward", "0"); err != nil {
			t.Fatal(err)
		}
	}
	off()
	w := h.network(1, false)
	h.sandbox(w, 11, forward("tcp", "127.0.0.1", 8080, 80))
	if forwarding() != "0" {
		t.Error("a closed network with a port on loopback switched forwarding on")
	}
	h.sandbox(w, 12, forward("tcp", "0.0.0.0", 8081, 80))
	if forwarding() != "1" {
		t.Error("a port published on every address leaves forwarding off")
	}
	off()
	h.network(2, true)
	if forwarding() != "1" {
		t.Error("a network with internet leaves forwarding off")
	}
}

func TestRangeTakenByTheHost(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	out, err := netlink.LinkByName(outLink)
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{LinkIndex: out.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 7, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}, Table: 77}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.RouteDel(route) })

	overlaps := testNetwork(7, false)
	onHost := runtime.Network{ID: "aaaaaaaa", CIDR: netip.MustParsePrefix("192.0.2.0/25"), Gateway: netip.MustParseAddr("192.0.2.100")}
	for _, w := range []runtime.Network{overlaps, onHost} {
		err := h.EnsureNetwork(ctx, w)
		if !errors.Is(err, runtime.ErrTaken) {
			t.Errorf("%s: %v, want %v", w.CIDR, err, runtime.ErrTaken)
		} else if !containsAll(err.Error(), outLink, "choose another cidr") {
			t.Errorf("%s: %v does not name the interface and the way out", w.CIDR, err)
		}
	}
	proveClean(t, h.shortID)

	// Our own networks are in each other's way, but not among what the host uses.
	w := h.network(1, false)
	twin := testNetwork(1, false)
	twin.ID = "bbbbbbbb"
	if err := h.EnsureNetwork(ctx, twin); !errors.Is(err, runtime.ErrTaken) {
		t.Errorf("a range used twice: %v, want %v", err, runtime.ErrTaken)
	}
	used, err := h.PrefixesInUse(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"192.0.2.0/24", "10.7.0.0/16", "127.0.0.0/8"} {
		if !slices.Contains(used, netip.MustParsePrefix(want)) {
			t.Errorf("%s is not among the prefixes in use %v", want, used)
		}
	}
	if slices.Contains(used, w.CIDR) {
		t.Errorf("our own %s is among the prefixes in use", w.CIDR)
	}
	other := newHost(t)
	if used, err = other.PrefixesInUse(ctx); err != nil || !slices.Contains(used, w.CIDR) {
		t.Errorf("another lineage does not see %s: %v %v", w.CIDR, used, err)
	}
	// A route that comes up later does not keep a network from being mended.
	late := &netlink.Route{LinkIndex: out.Attrs().Index, Dst: &net.IPNet{IP: net.IPv4(10, 1, 0, 0).To4(), Mask: net.CIDRMask(16, 32)}}
	if err := netlink.RouteAdd(late); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.RouteDel(late) })
	if err := h.EnsureNetwork(ctx, w); err != nil {
		t.Error(err)
	}
}

func containsAll(s string, words ...string) bool {
	for _, w := range words {
		if !strings.Contains(s, w) {
			return false
		}
	}
	return true
}

func TestBadNetworksAndAttachments(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	good := testNetwork(1, false)
	for name, change := range map[string]func(*runtime.Network){
		"id":        func(w *runtime.Network) { w.ID = "../../etc" },
		"host bits": func(w *runtime.Network) { w.CIDR = netip.MustParsePrefix("10.1.0.1/24") },
		"too small": func(w *runtime.Network) { w.CIDR = netip.MustParsePrefix("10.1.0.0/31") },
		"IPv6":      func(w *runtime.Network) { w.CIDR = netip.MustParsePrefix("fd00::/64") },
		"loopback": func(w *runtime.Network) {
			w.CIDR, w.Gateway = netip.MustParsePrefix("127.9.0.0/24"), netip.MustParseAddr("127.9.0.1")
		},
		"gateway":      func(w *runtime.Network) { w.Gateway = netip.MustParseAddr("10.2.0.1") },
		"broadcast gw": func(w *runtime.Network) { w.Gateway = netip.MustParseAddr("10.1.0.255") },
	} {
		w := good
		change(&w)
		if err := h.EnsureNetwork(ctx, w); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	proveClean(t, h.shortID)

	b := h.newBox(good, 11)
	if err := h.Attach(ctx, b.id, b.path(), b.net, nil); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("attaching to no network: %v, want %v", err, runtime.ErrNotFound)
	}
	h.network(1, false)
	for name, change := range map[string]func(id *string, path *string, a *runtime.Attachment, f *runtime.Forward){
		"id":        func(id, _ *string, _ *runtime.Attachment, _ *runtime.Forward) { *id = "short" },
		"namespace": func(_, path *string, _ *runtime.Attachment, _ *runtime.Forward) { *path = "/nowhere" },
		"not a ns":  func(_, path *string, _ *runtime.Attachment, _ *runtime.Forward) { *path = "/dev/null" },
		"gateway": func(_, _ *string, a *runtime.Attachment, _ *runtime.Forward) {
			a.Address = netip.MustParsePrefix("10.1.0.1/24")
		},
		"outside": func(_, _ *string, a *runtime.Attachment, _ *runtime.Forward) {
			a.Address = netip.MustParsePrefix("10.2.0.5/24")
		},
		"protocol":  func(_, _ *string, _ *runtime.Attachment, f *runtime.Forward) { f.Protocol = "sctp" },
		"host port": func(_, _ *string, _ *runtime.Attachment, f *runtime.Forward) { f.HostPort = 0 },
		"IPv6": func(_, _ *string, _ *runtime.Attachment, f *runtime.Forward) {
			f.HostAddr = netip.MustParseAddr("::1")
		},
	} {
		id, path, a, f := b.id, b.path(), b.net, forward("tcp", "127.0.0.1", 8080, 80)
		change(&id, &path, &a, &f)
		if err := h.Attach(ctx, id, path, a, []runtime.Forward{f}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if o := h.observe(); len(o.Instances) != 0 {
		t.Errorf("failed calls left %v", o.Instances)
	}
}

func TestForeignLinksAreLeftAlone(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	w := testNetwork(1, false)
	name, _ := h.bridgeName(w.ID)
	stranger := func(name string) link {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}}); err != nil {
			t.Fatal(err)
		}
		l, found, err := h.route.link(name)
		if err != nil || !found {
			t.Fatal(found, err)
		}
		return l
	}
	untouched := func(before link) {
		t.Helper()
		after, found, err := h.route.link(before.name)
		if err != nil || !found || !reflect.DeepEqual(before, after) {
			t.Errorf("the foreign interface was %+v and is %+v (%v %v)", before, after, found, err)
		}
	}
	remove := func(l link) {
		if err := h.route.deleteLink(l.index); err != nil {
			t.Fatal(err)
		}
	}

	before := stranger(name)
	for what, call := range map[string]func() error{
		"EnsureNetwork": func() error { return h.EnsureNetwork(ctx, w) },
		"RemoveNetwork": func() error { return h.RemoveNetwork(ctx, w) },
		"Attach": func() error {
			b := h.newBox(w, 11)
			return h.Attach(ctx, b.id, b.path(), b.net, nil)
		},
	} {
		if err := call(); !errors.Is(err, runtime.ErrForeign) {
			t.Errorf("%s: %v, want %v", what, err, runtime.ErrForeign)
		}
	}
	if o := h.observe(); len(o.Networks) != 0 {
		t.Errorf("a foreign bridge is observed as ours: %v", o)
	}
	untouched(before)
	remove(before)

	// The same for a sandbox's port, even with another lineage's mark.
	w = h.network(1, false)
	b := h.newBox(w, 12)
	port, _ := h.portName(b.id)
	before = stranger(port)
	if err := h.route.set(before.index, false, alias("pinfold ffffff instance "+b.id)); err != nil {
		t.Fatal(err)
	}
	before, _, _ = h.route.link(port)
	if err := h.Attach(ctx, b.id, b.path(), b.net, nil); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("Attach: %v, want %v", err, runtime.ErrForeign)
	}
	if err := h.Detach(ctx, b.id, &b.net, nil); err != nil {
		t.Error(err)
	}
	untouched(before)
	remove(before)

	// And for eth0 in the namespace.
	if err := b.run(func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: insideName, TxQLen: -1}})
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.Attach(ctx, b.id, b.path(), b.net, []runtime.Forward{forward("tcp", "0.0.0.0", 8080, 80)}); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("Attach: %v, want %v", err, runtime.ErrForeign)
	}
	if o := h.observe(); len(o.Instances) != 0 {
		t.Errorf("the failed Attach left %v", o.Instances)
	}
}

// A crash between the message that makes a link and the one that marks it leaves a
// link that is known for ours by its hardware address.
func TestHalfMadeLinksAreAdopted(t *testing.T) {
	h := newHost(t)
	w := testNetwork(1, false)
	name, _ := h.bridgeName(w.ID)
	if err := h.route.addBridge(name, markMAC(h.networkMark(w.ID))); err != nil {
		t.Fatal(err)
	}
	if s := h.observe().Networks[w.ID]; !s.Exists || !slices.Contains(s.Missing, "bridge") {
		t.Errorf("a half-made bridge is observed as %+v", s)
	}
	h.network(1, false)

	b := h.newBox(w, 11)
	port, _ := h.portName(b.id)
	if err := h.route.addVeth(port, markMAC(h.instanceMark(b.id)), int(b.ns.Fd()), sandboxMAC(b.addr)); err != nil {
		t.Fatal(err)
	}
	if in, seen := h.observe().Instances[b.id]; !seen || in.Link {
		t.Errorf("a half-made link is observed as %+v, %v", in, seen)
	}
	h.attach(b)
	h.whole(w, b)
	if err := ping(b, w.Gateway, patience); err != nil {
		t.Error(err)
	}
	// And one in a namespace that is no longer the instance's.
	h.releaseAll()
	b = h.newBox(w, 12)
	stale, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer stale.ns.Close()
	port, _ = h.portName(b.id)
	if err := h.route.addVeth(port, markMAC(h.instanceMark(b.id)), int(stale.ns.Fd()), sandboxMAC(b.addr)); err != nil {
		t.Fatal(err)
	}
	h.attach(b)
	h.whole(w, b)
	if err := ping(b, w.Gateway, patience); err != nil {
		t.Error(err)
	}
}

// whole fails the test when Observe misses anything.
func (h *host) whole(w runtime.Network, boxes ...*box) {
	h.t.Helper()
	o := h.observe()
	if s := o.Networks[w.ID]; !s.Exists || s.Missing != nil {
		h.t.Errorf("network %s is observed as %+v", w.ID, s)
	}
	for _, b := range boxes {
		if in := o.Instances[b.id]; in != (InstanceNet{true, true, true}) {
			h.t.Errorf("instance %s is observed as %+v", b.id, in)
		}
		if !h.inside(b) {
			h.t.Errorf("instance %s lacks something inside", b.id)
		}
	}
}

// inside looks into the namespace of a sandbox, as Inside does into a process's.
func (h *host) inside(b *box) (ok bool) {
	h.t.Helper()
	if err := b.run(func() (err error) {
		ok, err = insideOf("/proc/thread-self/net", b.net)
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	return ok
}

// Whatever is taken away by hand is reported, and comes back.
func TestMissingThingsAreSeenAndMended(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	w := h.network(1, true)
	forwards := []runtime.Forward{forward("tcp", "127.0.0.1", 8080, 80), forward("udp", "0.0.0.0", 8080, 80)}
	b, neighbour := h.sandbox(w, 11, forwards...), h.sandbox(w, 12)
	s := serve(t, b, "tcp4", at(b.addr, 80))
	bridge, _ := h.bridgeName(w.ID)
	port, _ := h.portName(b.id)
	table := "pinfold-" + h.shortID
	link := func(name string) netlink.Link {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	h.whole(w, b, neighbour)

	good := InstanceNet{true, true, true}
	for _, c := range []struct {
		name    string
		damage  func()
		network []string
		inside  InstanceNet
	}{
		{"bridge down", func() { must(netlink.LinkSetDown(link(bridge))) }, []string{"bridge"}, good},
		{"bridge unmarked facts", func() { must(netlink.LinkSetAlias(link(bridge), h.networkMark(w.ID))) }, []string{"bridge", "address", "rules"}, good},
		{"address", func() {
			must(netlink.AddrDel(link(bridge), &netlink.Addr{IPNet: &net.IPNet{IP: w.Gateway.AsSlice(), Mask: net.CIDRMask(24, 32)}}))
		}, []string{"address"}, good},
		{"a second address", func() {
			must(netlink.AddrAdd(link(bridge), &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 1, 9, 9).To4(), Mask: net.CIDRMask(24, 32)}}))
		}, nil, good},
		{"all rules", func() { nft(t, "flush", "ruleset") }, []string{"rules"}, InstanceNet{true, true, false}},
		{"one table", func() { nft(t, "delete", "table", "bridge", table) }, []string{"rules"}, InstanceNet{true, true, false}},
		{"one chain's rules", func() { nft(t, "flush", "chain", "inet", table, "to_host") }, []string{"rules"}, good},
		{"a rule too many", func() { nft(t, "insert", "rule", "inet", table, "forward", "accept") }, []string{"rules"}, good},
		{"network's elements", func() { nft(t, "flush", "set", "inet", table, "same") }, []string{"rules"}, good},
		{"internet", func() { nft(t, "flush", "set", "inet", table, "internet") }, []string{"rules"}, good},
		{"anti-spoofing", func() { nft(t, "flush", "set", "bridge", table, "senders") }, nil, InstanceNet{true, true, false}},
		{"a second identity", func() {
			nft(t, "add", "element", "bridge", table, "senders", "{ "+port+" . 02:70:0a:01:00:63 . 10.1.0.99 }")
		}, nil, InstanceNet{true, true, false}},
		{"published ports", func() { nft(t, "flush", "map", "inet", table, "ports") }, nil, InstanceNet{true, true, false}},
		{"published ports, any address", func() { nft(t, "flush", "map", "inet", table, "ports_any") }, nil, InstanceNet{true, true, false}},
		{"link down", func() { must(netlink.LinkSetDown(link(port))) }, nil, InstanceNet{false, false, true}},
		{"link out of the bridge", func() { must(netlink.LinkSetNoMaster(link(port))) }, nil, InstanceNet{false, false, true}},
		{"link gone", func() { must(netlink.LinkDel(link(port))) }, nil, InstanceNet{false, false, true}},
		{"far end down", func() {
			must(b.run(func() error { return netlink.LinkSetDown(link(insideName)) }))
			waitFor(t, "the carrier to go", func() bool { l, _, _ := h.route.link(port); return !l.carrier() })
		}, nil, InstanceNet{true, false, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.damage()
			o := h.observe()
			if got := o.Networks[w.ID]; !got.Exists || !slices.Equal(got.Missing, c.network) {
				t.Errorf("the network is observed as %+v, want %v missing", got, c.network)
			}
			if got := o.Instances[b.id]; got != c.inside {
				t.Errorf("the instance is observed as %+v, want %+v", got, c.inside)
			}
			must(h.EnsureNetwork(ctx, w))
			must(h.Attach(ctx, b.id, b.path(), b.net, forwards))
			must(h.Attach(ctx, neighbour.id, neighbour.path(), neighbour.net, nil))
			h.whole(w, b, neighbour)
			reaches(t, neighbour, "tcp4", s.addr)
			reaches(t, nil, "tcp4", "127.0.0.1:8080")
			cannotReach(t, outer, "tcp4", at(hostAddr, 8080), s)
		})
	}

	// Attach alone mends a flushed table too, as far as its own network goes.
	nft(t, "flush", "ruleset")
	must(h.Attach(ctx, b.id, b.path(), b.net, forwards))
	h.whole(w, b)

	// What happens inside shows inside.
	subnet := net.CIDRMask(w.CIDR.Bits(), 32)
	everywhere := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	for _, c := range []struct {
		what   string
		damage func() error
	}{
		{"the address is removed", func() error {
			return netlink.AddrDel(link(insideName), &netlink.Addr{IPNet: &net.IPNet{IP: b.addr.AsSlice(), Mask: subnet}})
		}},
		{"another address of the range is in its place", func() error {
			other := &netlink.Addr{IPNet: &net.IPNet{IP: b.addr.Next().Next().AsSlice(), Mask: subnet}}
			own := &netlink.Addr{IPNet: &net.IPNet{IP: b.addr.AsSlice(), Mask: subnet}}
			return errors.Join(netlink.AddrDel(link(insideName), own), netlink.AddrAdd(link(insideName), other),
				netlink.RouteReplace(&netlink.Route{Dst: everywhere, Gw: w.Gateway.AsSlice(), LinkIndex: link(insideName).Attrs().Index}))
		}},
		{"the default route is removed", func() error {
			return netlink.RouteDel(&netlink.Route{Dst: everywhere, Gw: w.Gateway.AsSlice()})
		}},
		{"the default route leads elsewhere", func() error {
			return netlink.RouteReplace(&netlink.Route{Dst: everywhere, Gw: b.addr.Next().AsSlice(), LinkIndex: link(insideName).Attrs().Index})
		}},
		{"the default route is a blackhole", func() error {
			return errors.Join(netlink.RouteDel(&netlink.Route{Dst: everywhere, Gw: w.Gateway.AsSlice()}),
				netlink.RouteAdd(&netlink.Route{Dst: everywhere, Type: unix.RTN_BLACKHOLE}))
		}},
		{"the route to its own network is removed", func() error {
			return netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: w.CIDR.Masked().Addr().AsSlice(), Mask: subnet}, Scope: netlink.SCOPE_LINK, LinkIndex: link(insideName).Attrs().Index})
		}},
		{"the link is down", func() error { return netlink.LinkSetDown(link(insideName)) }},
	} {
		must(b.run(c.damage))
		if h.inside(b) {
			t.Errorf("%s, and it is not seen inside", c.what)
		}
		must(h.Attach(ctx, b.id, b.path(), b.net, forwards))
		h.whole(w, b)
	}
}

// A bridge deleted by hand takes its ports out; both come back.
func TestDeletedBridgeIsMended(t *testing.T) {
	h := newHost(t)
	w := h.network(1, false)
	b := h.sandbox(w, 11)
	name, _ := h.bridgeName(w.ID)
	l, _, _ := h.route.link(name)
	if err := h.route.deleteLink(l.index); err != nil {
		t.Fatal(err)
	}
	o := h.observe()
	if s, seen := o.Networks[w.ID]; !seen || s.Exists || !slices.Equal(s.Missing, []string{"bridge"}) {
		t.Errorf("a deleted bridge is observed as %+v, %v", s, seen)
	}
	if in := o.Instances[b.id]; in != (InstanceNet{false, false, true}) {
		t.Errorf("its sandbox is observed as %+v", in)
	}
	h.network(1, false)
	h.attach(b)
	h.whole(w, b)
	if err := ping(b, w.Gateway, patience); err != nil {
		t.Error(err)
	}
}

func TestNetworkInUseIsNotRemoved(t *testing.T) {
	h := newHost(t)
	w := h.network(1, false)
	b := h.sandbox(w, 11)
	err := h.RemoveNetwork(context.Background(), w)
	if !errors.Is(err, runtime.ErrBusy) || !strings.Contains(err.Error(), b.id) {
		t.Errorf("removing a network in use: %v, want %v with the instance's id", err, runtime.ErrBusy)
	}
	h.whole(w, b)
}

func TestDetachWhereTheNamespaceLivesOn(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	w := h.network(1, false)
	b := h.sandbox(w, 11, forward("tcp", "0.0.0.0", 8080, 80))
	s := serve(t, b, "tcp4", at(b.addr, 80))
	reaches(t, outer, "tcp4", at(hostAddr, 8080))
	if err := h.Detach(ctx, b.id, &b.net, []runtime.Forward{forward("tcp", "0.0.0.0", 8080, 80)}); err != nil {
		t.Fatal(err)
	}
	if in, seen := h.observe().Instances[b.id]; seen {
		t.Errorf("a detached instance is observed as %+v", in)
	}
	cannotReach(t, outer, "tcp4", at(hostAddr, 8080), s)
	if err := b.run(func() error {
		if _, err := net.InterfaceByName(insideName); err == nil {
			return errors.New("eth0 is still there")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := h.Detach(ctx, b.id, &b.net, nil); err != nil {
		t.Errorf("detaching again: %v", err)
	}
	h.attach(b) // the same namespace again
	h.whole(w, b)
}

// The instance's name is free again as soon as Detach returns.
func TestRestartKeepsTheName(t *testing.T) {
	h := newHost(t)
	w := h.network(1, false)
	for range 10 {
		b := h.sandbox(w, 11)
		b.ns.Close()
		if err := h.Detach(context.Background(), b.id, &b.net, nil); err != nil {
			t.Fatal(err)
		}
		h.boxes = nil
	}
	// Nor does it matter when Detach was never called.
	b := h.sandbox(w, 11)
	b.ns.Close()
	h.boxes = nil
	b = h.sandbox(w, 11)
	h.whole(w, b)
}

// Close waits for links that are about to go, and for no link that took the name of
// one since: that one stays.
func TestCloseDoesNotWaitForARestartedSandbox(t *testing.T) {
	h := newHost(t)
	w := h.network(1, false)
	b := h.sandbox(w, 11)
	b.ns.Close()
	if err := h.Detach(context.Background(), b.id, &b.net, nil); err != nil {
		t.Fatal(err)
	}
	port, err := h.portName(b.id)
	if err != nil {
		t.Fatal(err)
	}
	// As Detach does when the kernel takes longer over it than Detach itself.
	h.leaving.add(port)
	waitFor(t, "the old link to go", func() bool {
		_, found, err := h.route.link(port)
		return err == nil && !found
	})
	h.boxes = nil
	b = h.sandbox(w, 11)
	if left := h.leaving.names(); len(left) > 0 {
		t.Errorf("Close would wait for %v", left)
	}
	n, err := Open(h.shortID)
	if err != nil {
		t.Fatal(err)
	}
	old := h.Net
	h.Net = n
	if err := old.Close(); err != nil {
		t.Errorf("close beside a restarted sandbox: %v", err)
	}
	h.whole(w, b)
}

// A failing Detach-and-retry of one sandbox must not take another's port.
func TestDetachLeavesOthersPorts(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	w := h.network(1, false)
	port := forward("tcp", "0.0.0.0", 8080, 80)
	a := h.sandbox(w, 11, port)
	b := h.newBox(w, 12)
	err := h.Attach(ctx, b.id, b.path(), b.net, []runtime.Forward{port})
	if !errors.Is(err, runtime.ErrTaken) || !strings.Contains(err.Error(), a.id) {
		t.Errorf("publishing a taken port: %v, want %v with the holder's id", err, runtime.ErrTaken)
	}
	if in, seen := h.observe().Instances[b.id]; seen {
		t.Errorf("the failed Attach left %+v", in)
	}
	if err := h.Detach(ctx, b.id, &b.net, []runtime.Forward{port}); err != nil {
		t.Error(err)
	}
	h.whole(w, a)
}

func TestCheckPort(t *testing.T) {
	h, other := newHost(t), newHost(t)
	ctx := context.Background()
	local, every := netip.MustParseAddr("127.0.0.1"), netip.IPv4Unspecified()
	check := func(n *host, a netip.Addr, port uint16, protocol string, taken bool) {
		t.Helper()
		got, err := n.CheckPort(ctx, a, port, protocol)
		if taken && !errors.Is(err, runtime.ErrTaken) {
			t.Errorf("%s %s:%d: %v, want %v", protocol, a, port, err, runtime.ErrTaken)
		}
		if taken && strings.Contains(err.Error(), "choose") {
			t.Errorf("what to do is for the caller to say: %v", err)
		}
		if !taken && (err != nil || got != port) {
			t.Errorf("%s %s:%d: %d %v, want it free", protocol, a, port, got, err)
		}
	}
	l, err := net.Listen("tcp", "[::]:0") // every address of both families
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wild := uint16(l.Addr().(*net.TCPAddr).Port)
	check(h, local, wild, "tcp", true)
	check(h, every, wild, "tcp", true)
	check(h, hostAddr, wild, "tcp", true)
	check(h, local, wild, "udp", false)
	u, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	one := uint16(u.LocalAddr().(*net.UDPAddr).Port)
	check(h, local, one, "udp", true)
	check(h, every, one, "udp", true)
	check(h, hostAddr, one, "udp", false)

	h.sandbox(h.network(1, false), 11, forward("tcp", "127.0.0.1", 18080, 80), forward("udp", "0.0.0.0", 18081, 80))
	for _, n := range []*host{h, other} {
		check(n, local, 18080, "tcp", true)
		check(n, every, 18080, "tcp", true)
		check(n, hostAddr, 18080, "tcp", false)
		check(n, local, 18081, "udp", true)
		check(n, local, 18081, "tcp", false)
	}
	if _, err := h.CheckPort(ctx, netip.MustParseAddr("198.51.100.1"), 80, "tcp"); err == nil || errors.Is(err, runtime.ErrTaken) {
		t.Errorf("an address the host does not have: %v", err)
	}

	var mu sync.Mutex
	given := map[uint16]bool{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			port, err := h.CheckPort(ctx, local, 0, "tcp")
			mu.Lock()
			defer mu.Unlock()
			if err != nil || port == 0 || given[port] {
				t.Errorf("a free port: %d %v, given before: %v", port, err, given[port])
			}
			given[port] = true
		})
	}
	wg.Wait()
}

func TestForwardingBlockedByOthers(t *testing.T) {
	h := newHost(t)
	ctx := context.Background()
	h.network(1, true)
	if by, err := h.ForwardingBlockedBy(ctx); err != nil || len(by) != 0 {
		t.Errorf("blocked by %v, %v", by, err)
	}
	nft(t, "add", "table", "ip", "firewall")
	t.Cleanup(func() { nft(t, "delete", "table", "ip", "firewall") })
	nft(t, "add", "chain", "ip", "firewall", "FORWARD", "{ type filter hook forward priority 0; policy drop; }")
	if by, err := h.ForwardingBlockedBy(ctx); err != nil || len(by) != 1 || !containsAll(by[0], "FORWARD", "firewall") {
		t.Errorf("blocked by %v, %v", by, err)
	}
}

func TestManySandboxesAtOnce(t *testing.T) {
	const many = 200
	h := newHost(t)
	ctx := context.Background()
	w := h.network(1, true)
	forwards := func(i int) []runtime.Forward {
		return []runtime.Forward{forward("tcp", "127.0.0.1", uint16(20000+i), 80), forward("udp", "0.0.0.0", uint16(20000+i), 80)}
	}
	var boxes []*box
	for i := range many {
		boxes = append(boxes, h.newBox(w, byte(20+i)))
	}
	each := func(do func(i int, b *box) error) {
		t.Helper()
		var wg sync.WaitGroup
		turn := make(chan struct{}, 16)
		for i, b := range boxes {
			wg.Go(func() {
				turn <- struct{}{}
				defer func() { <-turn }()
				if err := do(i, b); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	each(func(i int, b *box) error { return h.Attach(ctx, b.id, b.path(), b.net, forwards(i)) })
	h.whole(w, boxes...)
	if n := len(h.observe().Instances); n != many {
		t.Errorf("%d instances are observed, want %d", n, many)
	}
	last := boxes[many-1]
	serve(t, last, "tcp4", at(last.addr, 80))
	reaches(t, nil, "tcp4", fmt.Sprintf("127.0.0.1:%d", 20000+many-1))
	if err := ping(boxes[0], last.addr, patience); err != nil {
		t.Error(err)
	}
	rules, _ := h.rules.nf.comments(h.rules.inet)
	if n := len(slices.Concat(mapValues(rules)...)); n > 30 {
		t.Errorf("%d rules for %d sandboxes", n, many)
	}

	each(func(i int, b *box) error {
		b.ns.Close()
		return h.Detach(ctx, b.id, &b.net, forwards(i))
	})
	h.boxes = nil
	o := h.observe()
	if len(o.Instances) != 0 {
		t.Errorf("%d instances are left", len(o.Instances))
	}
	h.whole(w)
	for _, s := range []string{"senders"} {
		if out := nft(t, "list", "set", "bridge", "pinfold-"+h.shortID, s); strings.Contains(out, "elements") {
			t.Errorf("set %s keeps elements: %s", s, out)
		}
	}
	for _, s := range []string{"ports", "ports_any"} {
		if out := nft(t, "list", "map", "inet", "pinfold-"+h.shortID, s); strings.Contains(out, "elements") {
			t.Errorf("map %s keeps elements: %s", s, out)
		}
	}
	// The last network takes the tables with it.
	if err := h.RemoveNetwork(ctx, w); err != nil {
		t.Fatal(err)
	}
	proveClean(t, h.shortID)
}

func mapValues(m map[chain][]string) [][]string {
	var out [][]string
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// One bad change fails alone, whatever shares its transaction.
func TestBatchSurvivesABadChange(t *testing.T) {
	h := newHost(t)
	w := h.network(1, false)
	taken := publication{portKey{unix.IPPROTO_TCP, netip.MustParseAddrPort("0.0.0.0:8080")}, netip.MustParseAddrPort("10.1.0.11:80"), "aaaaaaaaaaaa"}
	s := h.rules.sets
	if err := h.rules.commits.apply(change{add: []member{s.publication(taken)}}); err != nil {
		t.Fatal(err)
	}
	other := taken
	other.target = netip.MustParseAddrPort("10.1.0.12:80")
	batch := make([]pending, 6)
	results := make([]chan error, len(batch))
	for i := range batch {
		results[i] = make(chan error, 1)
		ip := netip.AddrFrom4([4]byte{10, 1, 0, byte(100 + i)})
		batch[i] = pending{change{add: []member{s.sender("px", sandboxMAC(ip), ip)}}, results[i]}
	}
	batch[2].change = change{add: []member{s.publication(other)}}
	absent := netip.MustParseAddr("10.1.0.250")
	batch[4].change.remove = []member{s.sender("px", sandboxMAC(absent), absent)}
	h.rules.commits.settle(batch)
	for i, r := range results {
		err := <-r
		if i == 2 && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EEXIST) {
			t.Errorf("a key with another value: %v", err)
		}
		if i != 2 && err != nil {
			t.Errorf("change %d: %v", i, err)
		}
	}
	es, err := h.rules.nf.elements(s.senders)
	if err != nil || len(es) != len(batch)-1 {
		t.Errorf("%d elements, want %d (%v)", len(es), len(batch)-1, err)
	}
	for _, e := range es {
		if err := h.rules.commits.apply(change{remove: []member{{s.senders, e}}}); err != nil {
			t.Error(err)
		}
	}
	if err := h.rules.commits.apply(change{remove: []member{s.publication(taken)}}); err != nil {
		t.Error(err)
	}
	h.whole(w)
}

func TestLoopback(t *testing.T) {
	h := newHost(t)
	b, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer b.ns.Close()
	if err := h.Loopback(b.path()); err != nil {
		t.Fatal(err)
	}
	if err := ping(b, netip.MustParseAddr("127.0.0.1"), patience); err != nil {
		t.Error(err)
	}
	if err := h.Loopback("/nowhere"); err == nil {
		t.Error("a namespace that is not there is accepted")
	}
}

func TestNames(t *testing.T) {
	n := &Net{shortID: "a1b2c3"}
	for _, id := range []string{"000000000000", "ffffffffffff", "0123456789ab"} {
		name, err := n.portName(id)
		if err != nil || len(name) > 15 {
			t.Errorf("%s: %q %v", id, name, err)
		}
		if back, ok := n.instanceFromPort(name); !ok || back != id {
			t.Errorf("%s becomes %s", id, back)
		}
	}
	for _, name := range []string{"eth0", "pa1b2c3", "pa1b2c3!!!!!!!!", "pffffffAAAAAAAA"} {
		if id, ok := n.instanceFromPort(name); ok {
			t.Errorf("%s is taken for instance %s's", name, id)
		}
	}
}
