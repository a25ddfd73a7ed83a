package config

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/hashicorp/hcl/v2"
)

// What must be unique among all resources is noted while they are decoded, and
// compared once at the end, each by sorting: no step looks at all pairs.

type rangeUse struct {
	prefix  netip.Prefix
	address string
	rng     hcl.Range
}

type portUse struct {
	Port
	address, name string
	rng           hcl.Range
}

type hostUse struct {
	hostname, network, address string
	rng                        hcl.Range
}

func (ev *evaluation) crossCheck() {
	ev.checkRanges()
	ev.checkPorts()
	ev.checkHostnames()
}

// checkRanges reports networks that share addresses.
func (ev *evaluation) checkRanges() {
	slices.SortFunc(ev.ranges, func(a, b rangeUse) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()), cmp.Compare(a.address, b.address))
	})
	// Ranges either contain each other or are apart, and a containing one sorts
	// first: comparing with the widest so far finds every overlap.
	for i := 1; i < len(ev.ranges); i++ {
		widest, next := ev.ranges[i-1], ev.ranges[i]
		if widest.prefix.Overlaps(next.prefix) {
			ev.fail(next.address, next.rng.Ptr(), "Overlapping address ranges", "%s of %s overlaps %s of %s. Give each network a range of its own.",
				next.prefix, next.address, widest.prefix, widest.address)
			ev.ranges[i] = widest
		}
	}
}

// checkPorts reports two ports that want the same one of the host.
func (ev *evaluation) checkPorts() {
	const every = "0.0.0.0"
	slices.SortFunc(ev.ports, func(a, b portUse) int {
		return cmp.Or(
			cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Host, b.Host),
			cmp.Compare(a.Address, b.Address), cmp.Compare(a.address, b.address), cmp.Compare(a.name, b.name))
	})
	for i := 1; i < len(ev.ports); i++ {
		// 0.0.0.0 sorts before every other address, so the first of a group of
		// the same port conflicts with all, if it is that.
		first, next := ev.ports[i-1], ev.ports[i]
		if first.Protocol != next.Protocol || first.Host != next.Host || first.Address != next.Address && first.Address != every {
			continue
		}
		ev.fail(next.address, next.rng.Ptr(), "Host port used twice", "Port %q of %s and port %q of %s both want %s port %d on the host. Choose another, or host = 0 for any free one.",
			first.name, first.address, next.name, next.address, next.Protocol, next.Host)
		if first.Address == every {
			ev.ports[i] = first
		}
	}
}

// checkHostnames reports sandboxes of one network whose names become the same
// once cut down to what a host name may contain.
func (ev *evaluation) checkHostnames() {
	slices.SortFunc(ev.hosts, func(a, b hostUse) int {
		return cmp.Or(cmp.Compare(a.network, b.network), cmp.Compare(a.hostname, b.hostname), cmp.Compare(a.address, b.address))
	})
	for i := 1; i < len(ev.hosts); i++ {
		if a, b := ev.hosts[i-1], ev.hosts[i]; a.network == b.network && a.hostname == b.hostname {
			ev.fail(b.address, b.rng.Ptr(), "Host names collide", "%s and %s would both be called %s in %s. Rename one of them, or change its key.", a.address, b.address, a.hostname, a.network)
		}
	}
}
