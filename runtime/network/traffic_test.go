package network

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

func TestSameNetworkTalksOthersDoNot(t *testing.T) {
	eachBridgeNetfilter(t, sameNetworkTalksOthersDoNot)
}

func sameNetworkTalksOthersDoNot(t *testing.T) {
	h := newHost(t)
	one, two := h.network(1, false), h.network(2, true)
	a1, a2, b1 := h.sandbox(one, 11), h.sandbox(one, 12), h.sandbox(two, 11)

	for _, proto := range []string{"tcp4", "udp4"} {
		a, b := serve(t, a2, proto, at(a2.addr, 7000)), serve(t, b1, proto, at(b1.addr, 7000))
		if from := reaches(t, a1, proto, a.addr); from != a1.addr.String() {
			t.Errorf("%s: neighbour saw %s, want %s", proto, from, a1.addr)
		}
		reaches(t, nil, proto, a.addr)
		reaches(t, nil, proto, b.addr)
		cannotReach(t, b1, proto, a.addr, a)
		cannotReach(t, a1, proto, b.addr, b)
		cannotReach(t, outer, proto, a.addr, a)
	}
	for _, p := range []struct {
		from *box
		to   netip.Addr
		want bool
	}{
		{a1, a2.addr, true}, {a1, one.Gateway, true}, {b1, two.Gateway, true},
		{a1, b1.addr, false}, {b1, a1.addr, false},
		{a1, two.Gateway, false}, {b1, one.Gateway, false}, {b1, hostAddr, false},
	} {
		wait := denied
		if p.want {
			wait = patience
		}
		if err := ping(p.from, p.to, wait); (err == nil) != p.want {
			t.Errorf("ping %s from %s: %v, want success %v", p.to, p.from.addr, err, p.want)
		}
	}
}

func TestHostServicesAreOutOfReach(t *testing.T) {
	h := newHost(t)
	closed, open := h.network(1, false), h.network(2, true)
	for _, b := range []*box{h.sandbox(closed, 11), h.sandbox(open, 11)} {
		for _, proto := range []string{"tcp4", "udp4"} {
			s := serve(t, nil, proto, "0.0.0.0:0")
			_, port, err := net.SplitHostPort(s.addr)
			if err != nil {
				t.Fatal(err)
			}
			for _, addr := range []string{b.net.Network.Gateway.String(), hostAddr.String()} {
				cannotReach(t, b, proto, net.JoinHostPort(addr, port), s)
				reaches(t, nil, proto, net.JoinHostPort(addr, port))
			}
			if proto == "tcp4" {
				// Refused, not left hanging.
				_, err := ask(b, proto, net.JoinHostPort(hostAddr.String(), port), patience)
				if !errors.Is(err, unix.EHOSTUNREACH) {
					t.Errorf("asking a host service: %v, want %v", err, unix.EHOSTUNREACH)
				}
			}
		}
	}
}

// Ports published on loopback need route_localnet, which lets packets for 127/8
// in. They must still reach nothing.
func TestHostLoopbackIsOutOfReach(t *testing.T) { eachBridgeNetfilter(t, hostLoopbackIsOutOfReach) }

func hostLoopbackIsOutOfReach(t *testing.T) {
	h := newHost(t)
	w := h.network(1, true)
	b := h.sandbox(w, 11, forward("udp", "127.0.0.1", 7001, 7001))
	service := serve(t, nil, "udp4", "127.0.0.1:7000")
	inside := serve(t, b, "udp4", at(b.addr, 7001))
	bridge, _ := h.bridgeName(w.ID)

	// Two locks: each must hold alone.
	table := "pinfold-" + h.shortID
	for _, open := range []string{"", string(chainInput), string(chainRaw)} {
		if open != "" {
			nft(t, "flush", "chain", "inet", table, open)
		}
		service.seen.Store(0)
		inside.seen.Store(0)
		for _, port := range []uint16{7000, 7001} {
			to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)
			b.send(t, frame(macOf(t, bridge), sandboxMAC(b.addr), netip.AddrPortFrom(b.addr, 7777), to, "stray"))
			outer.send(t, frame(macOf(t, outLink), outerMAC(t), netip.AddrPortFrom(outerAddr, 7777), to, "stray"))
		}
		// What comes later has arrived; then what came before has not.
		reaches(t, nil, "udp4", "127.0.0.1:7000")
		reaches(t, nil, "udp4", "127.0.0.1:7001")
		if n := service.seen.Load(); n != 1 {
			t.Errorf("without %q the host's loopback service saw %d datagrams, want the host's own", open, n)
		}
		if n := inside.seen.Load(); n != 1 {
			t.Errorf("without %q the port published on loopback saw %d datagrams, want the host's own", open, n)
		}
		h.network(1, true)
	}
}

func outerMAC(t testing.TB) (mac net.HardwareAddr) {
	t.Helper()
	if err := outer.run(func() error { mac = macOf(t, "eth0"); return nil }); err != nil {
		t.Fatal(err)
	}
	return mac
}

func TestInternet(t *testing.T) {
	h := newHost(t)
	closed, open := h.network(1, false), h.network(2, true)
	a, b := h.sandbox(closed, 11), h.sandbox(open, 11)
	for _, proto := range []string{"tcp4", "udp4"} {
		s := serve(t, outer, proto, at(outerAddr, 0))
		if from := reaches(t, b, proto, s.addr); from != hostAddr.String() {
			t.Errorf("%s: outside saw %s, want the host's address %s", proto, from, hostAddr)
		}
		cannotReach(t, a, proto, s.addr, s)
	}
	if err := ping(b, outerAddr, patience); err != nil {
		t.Errorf("ping outside: %v", err)
	}
	if err := ping(a, outerAddr, denied); err == nil {
		t.Error("a sandbox without internet pinged the outside")
	}
}

// What connection tracking cannot place is not masqueraded. It must not leave with
// the sandbox's own address.
func TestInvalidPacketsDoNotLeave(t *testing.T) {
	h := newHost(t)
	w := h.network(2, true)
	b := h.sandbox(w, 11)
	bridge, _ := h.bridgeName(w.ID)
	s := serve(t, outer, "tcp4", at(outerAddr, 0))
	var fd int
	if err := outer.run(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)

	f := frame(macOf(t, bridge), sandboxMAC(b.addr), netip.AddrPortFrom(b.addr, 7777), netip.AddrPortFrom(outerAddr, 80), "twelve bytes")
	ip := f[14:]
	ip[9] = unix.IPPROTO_TCP
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:20]))
	ip[20+12], ip[20+13] = 5<<4, 0x07 // FIN, SYN and RST at once
	b.send(t, f)
	reaches(t, b, "tcp4", s.addr)

	seen := map[netip.Addr]bool{}
	buf := make([]byte, 1500)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if n >= 20 {
			seen[netip.AddrFrom4([4]byte(buf[12:16]))] = true
		}
	}
	if !seen[hostAddr] || seen[b.addr] {
		t.Errorf("the outside saw packets from %v, want the host's address %s and not the sandbox's", seen, hostAddr)
	}
}

// Cloud metadata is served on a link-local address.
func TestLinkLocalIsClosed(t *testing.T) {
	h := newHost(t)
	b := h.sandbox(h.network(2, true), 11)
	metadata := netip.MustParseAddr("169.254.169.254")
	l, err := netlink.LinkByName(outLink)
	if err != nil {
		t.Fatal(err)
	}
	route := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: metadata.AsSlice(), Mask: net.CIDRMask(32, 32)}}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netlink.RouteDel(route) })
	if err := outer.run(func() error { return give("lo", metadata) }); err != nil {
		t.Fatal(err)
	}
	s := serve(t, outer, "tcp4", at(metadata, 80))
	reaches(t, nil, "tcp4", s.addr)
	cannotReach(t, b, "tcp4", s.addr, s)
}

// Taking internet away cuts what is open.
func TestInternetIsChangedInPlace(t *testing.T) {
	h := newHost(t)
	w := h.network(2, true)
	b := h.sandbox(w, 11)
	s := serve(t, outer, "tcp4", at(outerAddr, 0))
	var c net.Conn
	if err := b.run(func() (err error) { c, err = net.DialTimeout("tcp4", s.addr, patience); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := askOver(c, patience); err != nil {
		t.Fatal(err)
	}

	w = h.network(2, false)
	if _, err := askOver(c, denied); err == nil {
		t.Error("an open connection outlived the network's internet")
	}
	cannotReach(t, b, "tcp4", s.addr, s)
	if missing := h.observe().Networks[w.ID].Missing; missing != nil {
		t.Errorf("missing %v", missing)
	}
	h.network(2, true)
	reaches(t, b, "tcp4", s.addr)
}

func TestPublishedOnLoopback(t *testing.T) { eachBridgeNetfilter(t, publishedOnLoopback) }

func publishedOnLoopback(t *testing.T) {
	h := newHost(t)
	closed, open := h.network(1, false), h.network(2, true)
	for _, proto := range []string{"tcp", "udp"} {
		b := h.sandbox(closed, 11, forward(proto, "127.0.0.1", 8080, 80))
		s := serve(t, b, proto+"4", at(b.addr, 80))
		if from := reaches(t, nil, proto+"4", "127.0.0.1:8080"); from != closed.Gateway.String() {
			t.Errorf("%s: the sandbox saw %s, want the gateway", proto, from)
		}
		cannotReach(t, outer, proto+"4", at(hostAddr, 8080), s)
		cannotReach(t, h.sandbox(open, 11), proto+"4", at(hostAddr, 8080), s)
		cannotReach(t, h.sandbox(closed, 12), proto+"4", at(hostAddr, 8080), s)
		h.releaseAll()
	}
}

func TestPublishedOnEveryAddress(t *testing.T) { eachBridgeNetfilter(t, publishedOnEveryAddress) }

func publishedOnEveryAddress(t *testing.T) {
	h := newHost(t)
	one, two, open := h.network(1, false), h.network(2, false), h.network(3, true)
	for _, proto := range []string{"tcp", "udp"} {
		b := h.sandbox(one, 11, forward(proto, "0.0.0.0", 8080, 80))
		s := serve(t, b, proto+"4", at(b.addr, 80))
		neighbour, other, guest := h.sandbox(one, 12), h.sandbox(two, 11), h.sandbox(open, 11)

		reaches(t, nil, proto+"4", "127.0.0.1:8080")
		reaches(t, nil, proto+"4", at(hostAddr, 8080))
		if from := reaches(t, outer, proto+"4", at(hostAddr, 8080)); from != outerAddr.String() {
			t.Errorf("%s: the sandbox saw %s, want the asker's own address", proto, from)
		}
		// From its own network and from itself, by any address of the host.
		for _, from := range []*box{b, neighbour} {
			reaches(t, from, proto+"4", at(one.Gateway, 8080))
			reaches(t, from, proto+"4", at(hostAddr, 8080))
		}
		// As anybody outside; but not without internet.
		reaches(t, guest, proto+"4", at(hostAddr, 8080))
		cannotReach(t, other, proto+"4", at(hostAddr, 8080), s)
		cannotReach(t, other, proto+"4", at(two.Gateway, 8080), s)
		h.releaseAll()
	}
}

func TestPublishedOnOneAddress(t *testing.T) {
	h := newHost(t)
	w := h.network(1, false)
	b := h.sandbox(w, 11, forward("tcp", hostAddr.String(), 8080, 80))
	s := serve(t, b, "tcp4", at(b.addr, 80))
	reaches(t, outer, "tcp4", at(hostAddr, 8080))
	reaches(t, nil, "tcp4", at(hostAddr, 8080))
	cannotReach(t, nil, "tcp4", "127.0.0.1:8080", s)
}

func TestUpdateForwards(t *testing.T) {
	h := newHost(t)
	w := h.network(1, false)
	b := h.sandbox(w, 11, forward("tcp", "0.0.0.0", 8080, 80), forward("udp", "127.0.0.1", 8080, 80))
	s, u := serve(t, b, "tcp4", at(b.addr, 80)), serve(t, b, "udp4", at(b.addr, 80))
	var c net.Conn // will be cut
	if err := outer.run(func() (err error) { c, err = net.DialTimeout("tcp4", at(hostAddr, 8080), patience); return err }); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := askOver(c, patience); err != nil {
		t.Fatal(err)
	}

	update := func(b *box, fs ...runtime.Forward) error {
		return h.UpdateForwards(context.Background(), b.id, b.net, fs)
	}
	if err := update(b, forward("tcp", "0.0.0.0", 8081, 80), forward("udp", "127.0.0.1", 8080, 80)); err != nil {
		t.Fatal(err)
	}
	reaches(t, outer, "tcp4", at(hostAddr, 8081))
	reaches(t, nil, "udp4", "127.0.0.1:8080")
	cannotReach(t, outer, "tcp4", at(hostAddr, 8080), s)
	if _, err := askOver(c, denied); err == nil {
		t.Error("a connection outlived its published port")
	}
	if !h.observe().Instances[b.id].Rules {
		t.Error("rules are reported missing after an update")
	}

	// Another sandbox wants a port that is taken, beside a free one: neither changes.
	o := h.sandbox(w, 12, forward("tcp", "0.0.0.0", 9000, 80))
	so := serve(t, o, "tcp4", at(o.addr, 80))
	err := update(o, forward("tcp", "0.0.0.0", 9001, 80), forward("tcp", "0.0.0.0", 8081, 80))
	if !errors.Is(err, runtime.ErrTaken) {
		t.Errorf("publishing a taken port: %v, want %v", err, runtime.ErrTaken)
	}
	reaches(t, outer, "tcp4", at(hostAddr, 9000))
	cannotReach(t, outer, "tcp4", at(hostAddr, 9001), so)

	// The port goes over to the other.
	if err := update(b); err != nil {
		t.Fatal(err)
	}
	cannotReach(t, outer, "tcp4", at(hostAddr, 8081), s)
	cannotReach(t, nil, "udp4", "127.0.0.1:8080", u)
	if err := update(o, forward("tcp", "0.0.0.0", 8081, 80)); err != nil {
		t.Fatal(err)
	}
	before := so.seen.Load()
	reaches(t, outer, "tcp4", at(hostAddr, 8081))
	if so.seen.Load() != before+1 {
		t.Error("the port leads to the old sandbox")
	}
}

// A UDP client that keeps its socket follows the port to the new sandbox.
func TestUDPClientFollowsThePort(t *testing.T) {
	h := newHost(t)
	w := h.network(1, false)
	b, o := h.sandbox(w, 11, forward("udp", "0.0.0.0", 8080, 80)), h.sandbox(w, 12)
	s, so := serve(t, b, "udp4", at(b.addr, 80)), serve(t, o, "udp4", at(o.addr, 80))
	for _, from := range []*box{nil, outer} {
		var c net.Conn
		if err := on(from, func() (err error) { c, err = net.Dial("udp4", at(hostAddr, 8080)); return err }); err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := askOver(c, patience); err != nil {
			t.Fatal(err)
		}
		if err := h.UpdateForwards(context.Background(), b.id, b.net, nil); err != nil {
			t.Fatal(err)
		}
		// Answers nobody gives are remembered by the tracker too.
		if _, err := askOver(c, denied); err == nil {
			t.Fatal("an unpublished port answers")
		}
		if err := h.UpdateForwards(context.Background(), o.id, o.net, []runtime.Forward{forward("udp", "0.0.0.0", 8080, 80)}); err != nil {
			t.Fatal(err)
		}
		old, before := s.seen.Load(), so.seen.Load()
		if _, err := askOver(c, patience); err != nil {
			t.Errorf("the client does not follow the port: %v", err)
		}
		if s.seen.Load() != old || so.seen.Load() != before+1 {
			t.Error("the client still reaches the old sandbox")
		}
		if err := h.UpdateForwards(context.Background(), o.id, o.net, nil); err != nil {
			t.Fatal(err)
		}
		if err := h.UpdateForwards(context.Background(), b.id, b.net, []runtime.Forward{forward("udp", "0.0.0.0", 8080, 80)}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSpoofingIsDropped(t *testing.T) { eachBridgeNetfilter(t, spoofingIsDropped) }

func spoofingIsDropped(t *testing.T) {
	h := newHost(t)
	w := h.network(1, true)
	liar, victim, target := h.sandbox(w, 11), h.sandbox(w, 12), h.sandbox(w, 13)
	s := serve(t, target, "udp4", at(target.addr, 7000))
	to := netip.AddrPortFrom(target.addr, 7000)
	own, dst := sandboxMAC(liar.addr), sandboxMAC(target.addr)
	src := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, 7777) }
	tagged := frame(dst, own, src(liar.addr), to, "tagged")
	tagged = ethernet(dst, own, unix.ETH_P_8021Q, append([]byte{0, 5}, tagged[12:]...))

	reaches(t, victim, "udp4", s.addr) // neighbours know each other
	before := s.seen.Load()
	liar.send(t,
		frame(dst, own, src(victim.addr), to, "other's IP"),
		frame(dst, own, src(w.Gateway), to, "gateway's IP"),
		frame(dst, own, src(outerAddr), to, "foreign IP"),
		frame(dst, sandboxMAC(victim.addr), src(liar.addr), to, "other's MAC"),
		frame(dst, sandboxMAC(victim.addr), src(victim.addr), to, "other's MAC and IP"),
		tagged,
		frame(dst, own, src(liar.addr), to, "honest"),
	)
	waitFor(t, "the honest datagram", func() bool { return s.seen.Load() > before })
	if n := s.seen.Load() - before; n != 1 {
		t.Errorf("%d datagrams arrived, want the honest one only", n)
	}

	// ARP that claims the victim's or the gateway's address, truly or half truly.
	arp := func(ether, sha net.HardwareAddr, spa netip.Addr) []byte {
		body := []byte{0, 1, 8, 0, 6, 4, 0, 2}
		body = append(append(body, sha...), spa.AsSlice()...)
		body = append(append(body, dst...), target.addr.AsSlice()...)
		return ethernet(dst, ether, unix.ETH_P_ARP, body)
	}
	liar.send(t, arp(own, own, victim.addr), arp(own, own, w.Gateway), arp(own, sandboxMAC(victim.addr), liar.addr),
		arp(sandboxMAC(victim.addr), sandboxMAC(victim.addr), victim.addr))
	// Frames to link-local group addresses skip the bridge's prerouting hook.
	liar.send(t, ethernet(net.HardwareAddr{1, 0x80, 0xc2, 0, 0, 0x0e}, sandboxMAC(victim.addr), 0x88cc, make([]byte, 46)))
	before = s.seen.Load()
	liar.send(t, frame(dst, own, src(liar.addr), to, "honest"))
	waitFor(t, "the honest datagram", func() bool { return s.seen.Load() > before })
	var neighbours map[netip.Addr]string
	if err := target.run(func() (err error) { neighbours, err = arpTable(); return err }); err != nil {
		t.Fatal(err)
	}
	for ip, mac := range neighbours {
		if mac == own.String() && ip != liar.addr {
			t.Errorf("the target believes %s to be at the liar's address", ip)
		}
	}
	if mac := neighbours[victim.addr]; mac != sandboxMAC(victim.addr).String() {
		t.Errorf("the target believes the victim to be at %q", mac)
	}
	// And the bridge does not believe the victim to be at the liar's port.
	liarPort, _ := h.portName(liar.id)
	l, err := netlink.LinkByName(liarPort)
	if err != nil {
		t.Fatal(err)
	}
	fdb, err := netlink.NeighList(l.Attrs().Index, unix.AF_BRIDGE)
	if err != nil {
		t.Fatal(err)
	}
	if len(fdb) == 0 {
		t.Error("the bridge knows nobody at the liar's port")
	}
	for _, e := range fdb {
		if e.HardwareAddr.String() == sandboxMAC(victim.addr).String() {
			t.Error("the bridge has learned the victim's address at the liar's port")
		}
	}
	reaches(t, victim, "udp4", s.addr)
}

func arpTable() (map[netip.Addr]string, error) {
	list, err := netlink.NeighList(0, unix.AF_INET)
	out := map[netip.Addr]string{}
	for _, e := range list {
		if ip, ok := netip.AddrFromSlice(e.IP.To4()); ok {
			out[ip] = e.HardwareAddr.String()
		}
	}
	return out, err
}

func TestIPv6IsDead(t *testing.T) {
	h := newHost(t)
	w := h.network(1, true)
	a, b := h.sandbox(w, 11), h.sandbox(w, 12)
	bridge, _ := h.bridgeName(w.ID)
	port, _ := h.portName(a.id)
	for _, link := range []string{bridge, port} {
		if addrs := inet6(t, link); len(addrs) > 0 {
			t.Errorf("%s has IPv6 addresses %v", link, addrs)
		}
	}
	for _, s := range []*box{a, b} {
		s.run(func() error {
			if addrs := inet6(t, "eth0"); len(addrs) > 0 {
				t.Errorf("eth0 of %s has IPv6 addresses %v", s.addr, addrs)
			}
			return nil
		})
	}
	// Whoever switches it on inside does not get out.
	ip6 := func(s *box, addr string) {
		err := s.run(func() error {
			if err := setSysctl("ipv6/conf/eth0/disable_ipv6", "0"); err != nil {
				return err
			}
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			p := &net.IPNet{IP: net.ParseIP(addr), Mask: net.CIDRMask(64, 128)}
			return netlink.AddrAdd(l, &netlink.Addr{IPNet: p, Flags: unix.IFA_F_NODAD})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	ip6(a, "fd00::a")
	ip6(b, "fd00::b")
	s := serve(t, b, "tcp6", "[fd00::b]:7000")
	waitFor(t, "IPv6 inside the sandbox", func() bool {
		_, err := ask(b, "tcp6", s.addr, patience)
		return err == nil
	})
	cannotReach(t, a, "tcp6", s.addr, s)
}

func inet6(t testing.TB, link string) []netlink.Addr {
	t.Helper()
	l, err := netlink.LinkByName(link)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(l, unix.AF_INET6)
	if err != nil {
		t.Fatal(err)
	}
	return addrs
}

func TestLineagesAreApart(t *testing.T) {
	one, two := newHost(t), newHost(t)
	a, b := one.sandbox(one.network(1, true), 11), two.sandbox(two.network(2, true), 11)
	sa, sb := serve(t, a, "tcp4", at(a.addr, 7000)), serve(t, b, "tcp4", at(b.addr, 7000))
	cannotReach(t, a, "tcp4", sb.addr, sb)
	cannotReach(t, b, "tcp4", sa.addr, sa)
	reaches(t, nil, "tcp4", sa.addr)
	reaches(t, nil, "tcp4", sb.addr)
	if o := one.observe(); len(o.Instances) != 1 || len(o.Networks) != 1 {
		t.Errorf("one lineage sees %v", o)
	}
}
