package network

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// flowFilter picks tracked connections that were opened to a published port.
type flowFilter []publication

func (f flowFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	dst, ok := netip.AddrFromSlice(flow.Forward.DstIP)
	if !ok {
		return false
	}
	asked := portKey{flow.Forward.Protocol, netip.AddrPortFrom(dst.Unmap(), flow.Forward.DstPort)}
	for _, p := range f {
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
func forgetFlows(ps []publication) error {
	if len(ps) == 0 {
		return nil
	}
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("cannot open a netlink socket: %w", err)
	}
	defer h.Close()
	if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, flowFilter(ps)); err != nil {
		return fmt.Errorf("cannot drop tracked connections to %s: %w", ps[0].portKey, err)
	}
	return nil
}
