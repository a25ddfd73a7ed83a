package network

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

// flowFilter picks tracked connections that were opened to a published port.
type flowFilter struct {
	ports []publication
	local map[netip.Addr]bool // the host's addresses
}

func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	dst, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok {
		return false
	}
	dst = dst.Unmap()
	if !f.local[dst] && !dst.IsLoopback() {
		return false // somebody's connection to the same port of another machine
	}
	asked := portKey{flow.Forward.Protocol, netip.AddrPortFrom(dst, flow.Forward.DstPort)}
	for _, p := range f.ports {
		if p.clashes(asked) {
			return true
		}
	}
	return false
}

// forgetFlows drops what connection tracking remembers of connections to the
// given ports. An entry keeps the decision made at its first packet: it would send
// a UDP client, who never says goodbye, to a sandbox that no longer has the port,
// or past one that has it now.
func (n *Net) forgetFlows(ps []publication) error {
	if len(ps) == 0 {
		return nil
	}
	addrs, err := n.route.addresses()
	if err != nil {
		return err
	}
	local := map[netip.Addr]bool{}
	for _, a := range addrs {
		local[a.prefix.Addr()] = true
	}
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("cannot open a netlink socket: %w", err)
	}
	defer h.Close()
	err = failpoint.Step("network.flows.forget", func() error {
		_, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, flowFilter{ps, local})
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot drop tracked connections to %s: %w", ps[0].portKey, err)
	}
	return nil
}
