package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// route speaks rtnetlink in one network namespace. It sends exactly the messages
// needed: links are created, marked and enslaved with two, and dumps leave out
// the statistics that make up most of a link's size.
type route struct {
	sockets map[int]*nl.SocketHandle
}

// link is what we need to know of an interface.
type link struct {
	index  int
	name   string
	alias  string
	kind   string // IFLA_INFO_KIND: "bridge", "veth", …; empty for hardware
	mac    net.HardwareAddr
	master int
	flags  uint32
	peer   int  // IFLA_LINK: index of a veth's other end, in its own namespace
	remote bool // the other end is in another namespace
	nsid   int  // that namespace's number here; -1 when it is being torn down
}

func (l link) up() bool      { return l.flags&unix.IFF_UP != 0 }
func (l link) carrier() bool { return l.flags&unix.IFF_LOWER_UP != 0 }

// rtextFilterSkipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
const rtextFilterSkipStats = 1 << 3

// openRoute opens a socket in the calling thread's namespace.
func openRoute() (*route, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("cannot open a netlink socket: %w", err)
	}
	return &route{sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (r *route) close() {
	for _, s := range r.sockets {
		s.Close()
	}
}

func (r *route) request(kind, flags int, header nl.NetlinkRequestData, attrs ...*nl.RtAttr) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = r.sockets
	req.AddData(header)
	for _, a := range attrs {
		req.AddData(a)
	}
	return req
}

func (r *route) change(kind, flags int, header nl.NetlinkRequestData, attrs ...*nl.RtAttr) error {
	_, err := r.request(kind, flags|unix.NLM_F_ACK, header, attrs...).Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// dump repeats a dump that changes on the host have interrupted, so that what it
// returns is one consistent look.
func (r *route) dump(kind int, answer uint16, header nl.NetlinkRequestData, attrs ...*nl.RtAttr) ([][]byte, error) {
	var msgs [][]byte
	var err error
	for range dumpTries {
		msgs, err = r.request(kind, unix.NLM_F_DUMP, header, attrs...).Execute(unix.NETLINK_ROUTE, answer)
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			return msgs, err
		}
	}
	// Busy hosts never stand still. A dump that missed or doubled an entry is
	// corrected by the next one.
	return msgs, nil
}

func str(kind int, s string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(s)) }
func u32(kind int, v uint32) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(v)) }
func raw(kind int, b []byte) *nl.RtAttr { return nl.NewRtAttr(kind, b) }
func ifinfo(index int) *nl.IfInfomsg {
	m := nl.NewIfInfomsg(unix.AF_UNSPEC)
	m.Index = int32(index)
	return m
}
func setFlags(m *nl.IfInfomsg, f uint32) { m.Flags |= f; m.Change |= f }

// links dumps every link of the namespace.
func (r *route) links() ([]link, error) {
	msgs, err := r.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, ifinfo(0), u32(unix.IFLA_EXT_MASK, rtextFilterSkipStats))
	if err != nil {
		return nil, fmt.Errorf("cannot list network interfaces: %w", err)
	}
	out := make([]link, 0, len(msgs))
	for _, m := range msgs {
		l, err := parseLink(m)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, nil
}

// link looks one link up by name; found is false when there is none.
func (r *route) link(name string) (l link, found bool, err error) {
	msgs, err := r.request(unix.RTM_GETLINK, 0, ifinfo(0),
		u32(unix.IFLA_EXT_MASK, rtextFilterSkipStats), str(unix.IFLA_IFNAME, name)).Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.ENODEV) {
		return link{}, false, nil
	}
	if err != nil {
		return link{}, false, fmt.Errorf("cannot look up interface %s: %w", name, err)
	}
	if len(msgs) != 1 {
		return link{}, false, fmt.Errorf("cannot look up interface %s: %d answers", name, len(msgs))
	}
	l, err = parseLink(msgs[0])
	return l, err == nil, err
}

// doomed tells that the namespace of the link's other end has lost its last user:
// the kernel tears it down, and the link with it.
func (r *route) doomed(l link) (bool, error) {
	if !l.remote {
		return false, nil
	}
	if l.nsid < 0 {
		return true, nil
	}
	// The kernel finds a namespace by number only while somebody uses it. Its first
	// link is as good as any to ask for.
	_, err := r.request(unix.RTM_GETLINK, 0, ifinfo(loopbackIndex),
		u32(unix.IFLA_EXT_MASK, rtextFilterSkipStats), u32(unix.IFLA_TARGET_NETNSID, uint32(l.nsid))).Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EINVAL) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot tell whether the namespace behind %s is alive: %w", l.name, err)
	}
	return false, nil
}

func parseLink(b []byte) (link, error) {
	h := nl.DeserializeIfInfomsg(b)
	attrs, err := nl.ParseRouteAttr(b[h.Len():])
	if err != nil {
		return link{}, fmt.Errorf("cannot read an interface's description: %w", err)
	}
	l := link{index: int(h.Index), flags: h.Flags}
	for _, a := range attrs {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			l.name = nl.BytesToString(a.Value)
		case unix.IFLA_IFALIAS:
			l.alias = nl.BytesToString(a.Value)
		case unix.IFLA_ADDRESS:
			l.mac = net.HardwareAddr(a.Value)
		case unix.IFLA_MASTER:
			l.master = int(nl.NativeEndian().Uint32(a.Value))
		case unix.IFLA_LINK:
			l.peer = int(nl.NativeEndian().Uint32(a.Value))
		case unix.IFLA_LINK_NETNSID:
			l.remote = true
			l.nsid = int(int32(nl.NativeEndian().Uint32(a.Value))) // NETNSA_NSID_NOT_ASSIGNED is -1
		case unix.IFLA_LINKINFO:
			info, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return link{}, fmt.Errorf("cannot read the kind of interface %s: %w", l.name, err)
			}
			for _, i := range info {
				if i.Attr.Type == nl.IFLA_INFO_KIND {
					l.kind = nl.BytesToString(i.Value)
				}
			}
		}
	}
	return l, nil
}

// brNoLinkLocalLearn is 1 << BR_BOOLOPT_NO_LL_LEARN of linux/if_bridge.h.
const brNoLinkLocalLearn = 1

// addBridge makes a bridge, down. It does no multicast snooping: there is no
// querier on it, and snooping without one loses multicast. It does not learn from
// frames to link-local group addresses, because some of them pass no netfilter
// hook and anybody could claim another's address with them.
func (r *route) addBridge(name string, mac net.HardwareAddr) error {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_BR_MCAST_SNOOPING, []byte{0})
	bits := nl.Uint32Attr(brNoLinkLocalLearn)
	data.AddRtAttr(unix.IFLA_BR_MULTI_BOOLOPT, append(bits, bits...)) // struct br_boolopt_multi: value, mask
	return r.change(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifinfo(0),
		str(unix.IFLA_IFNAME, name), raw(unix.IFLA_ADDRESS, mac), info)
}

// addVeth makes a veth pair, both ends down: name here, insideName with peerMAC in
// the namespace that nsFD refers to.
func (r *route) addVeth(name string, mac net.HardwareAddr, nsFD int, peerMAC net.HardwareAddr) error {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	peer := data.AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(insideName))
	peer.AddRtAttr(unix.IFLA_ADDRESS, peerMAC)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(nsFD)))
	return r.change(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, ifinfo(0),
		str(unix.IFLA_IFNAME, name), raw(unix.IFLA_ADDRESS, mac), info)
}

func (r *route) deleteLink(index int) error {
	err := r.change(unix.RTM_DELLINK, 0, ifinfo(index))
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// set changes a link with one message.
func (r *route) set(index int, up bool, attrs ...*nl.RtAttr) error {
	m := ifinfo(index)
	if up {
		setFlags(m, unix.IFF_UP)
	}
	return r.change(unix.RTM_NEWLINK, 0, m, attrs...)
}

// setHairpin lets the bridge send a frame back out of the port it came in by.
func (r *route) setHairpin(index int, on bool) error {
	m := nl.NewIfInfomsg(unix.AF_BRIDGE)
	m.Index = int32(index)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	mode := []byte{0}
	if on {
		mode[0] = 1
	}
	info.AddRtAttr(nl.IFLA_BRPORT_MODE, mode)
	return r.change(unix.RTM_SETLINK, 0, m, info)
}

func alias(s string) *nl.RtAttr { return raw(unix.IFLA_IFALIAS, []byte(s)) }

// addAddress gives a link an address; having it already is no error.
func (r *route) addAddress(index int, p netip.Prefix) error {
	m := nl.NewIfAddrmsg(unix.AF_INET)
	m.Prefixlen = uint8(p.Bits())
	m.Index = uint32(index)
	attrs := []*nl.RtAttr{raw(unix.IFA_LOCAL, p.Addr().AsSlice()), raw(unix.IFA_ADDRESS, p.Addr().AsSlice())}
	if p.Bits() < 31 {
		attrs = append(attrs, raw(unix.IFA_BROADCAST, lastAddr(p).AsSlice()))
	}
	return r.change(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, m, attrs...)
}

func (r *route) deleteAddress(index int, p netip.Prefix) error {
	m := nl.NewIfAddrmsg(unix.AF_INET)
	m.Prefixlen = uint8(p.Bits())
	m.Index = uint32(index)
	return r.change(unix.RTM_DELADDR, 0, m, raw(unix.IFA_LOCAL, p.Addr().AsSlice()))
}

// address is one IPv4 address of an interface.
type address struct {
	index  int
	prefix netip.Prefix // not masked: the address with its prefix length
}

// addresses dumps every IPv4 address of the namespace.
func (r *route) addresses() ([]address, error) {
	msgs, err := r.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, nl.NewIfAddrmsg(unix.AF_INET))
	if err != nil {
		return nil, fmt.Errorf("cannot list addresses: %w", err)
	}
	var out []address
	for _, b := range msgs {
		h := nl.DeserializeIfAddrmsg(b)
		attrs, err := nl.ParseRouteAttr(b[h.Len():])
		if err != nil {
			return nil, fmt.Errorf("cannot read an address: %w", err)
		}
		var local netip.Addr
		for _, a := range attrs {
			if a.Attr.Type == unix.IFA_LOCAL || (a.Attr.Type == unix.IFA_ADDRESS && !local.IsValid()) {
				local, _ = netip.AddrFromSlice(a.Value)
			}
		}
		if local.IsValid() {
			out = append(out, address{int(h.Index), netip.PrefixFrom(local, int(h.Prefixlen))})
		}
	}
	return out, nil
}

// setOwnRoute sends what is for the address's own network directly over the link.
// The kernel does so itself when an address comes or its link goes up, and not again
// when only the route was removed.
func (r *route) setOwnRoute(index int, addr netip.Prefix) error {
	m := nl.NewRtMsg()
	m.Family = unix.AF_INET
	m.Dst_len = uint8(addr.Bits())
	m.Scope = unix.RT_SCOPE_LINK
	m.Protocol = unix.RTPROT_KERNEL
	return r.change(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, m,
		raw(unix.RTA_DST, addr.Masked().Addr().AsSlice()), raw(unix.RTA_PREFSRC, addr.Addr().AsSlice()), u32(unix.RTA_OIF, uint32(index)))
}

// setDefaultRoute sends what has no other route to gateway over the link.
func (r *route) setDefaultRoute(index int, gateway netip.Addr) error {
	m := nl.NewRtMsg()
	m.Family = unix.AF_INET
	return r.change(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, m,
		raw(unix.RTA_GATEWAY, gateway.AsSlice()), u32(unix.RTA_OIF, uint32(index)))
}

// destination is one IPv4 route.
type destination struct {
	prefix  netip.Prefix
	gateway netip.Addr // not valid for what is reached directly
	index   int        // of the interface; 0 for blackholes and multipath routes
}

// destinations dumps the IPv4 routes of every table but local, whose entries
// repeat the addresses.
func (r *route) destinations() ([]destination, error) {
	m := &nl.RtMsg{}
	m.Family = unix.AF_INET
	msgs, err := r.dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, m)
	if err != nil {
		return nil, fmt.Errorf("cannot list routes: %w", err)
	}
	var out []destination
	for _, b := range msgs {
		h := nl.DeserializeRtMsg(b)
		if h.Flags&unix.RTM_F_CLONED != 0 || h.Type == unix.RTN_LOCAL || h.Type == unix.RTN_BROADCAST || h.Type == unix.RTN_MULTICAST {
			continue
		}
		attrs, err := nl.ParseRouteAttr(b[h.Len():])
		if err != nil {
			return nil, fmt.Errorf("cannot read a route: %w", err)
		}
		d := destination{prefix: netip.PrefixFrom(netip.IPv4Unspecified(), int(h.Dst_len))}
		for _, a := range attrs {
			switch a.Attr.Type {
			case unix.RTA_DST:
				if ip, ok := netip.AddrFromSlice(a.Value); ok {
					d.prefix = netip.PrefixFrom(ip, int(h.Dst_len))
				}
			case unix.RTA_GATEWAY:
				d.gateway, _ = netip.AddrFromSlice(a.Value)
			case unix.RTA_OIF:
				d.index = int(nl.NativeEndian().Uint32(a.Value))
			}
		}
		out = append(out, d)
	}
	return out, nil
}

// lastAddr is the broadcast address of an IPv4 prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}
