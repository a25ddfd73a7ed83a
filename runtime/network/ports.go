package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// grants remembers the free ports that CheckPort has returned last, so that two
// callers do not get the same one before either has published it.
type grants struct {
	mu    sync.Mutex
	given map[portKey]bool
	order []portKey
}

// maxGrants is how many ports are remembered. It leaves most of the kernel's range
// of ephemeral ports, 28,232 by default, to choose from.
const maxGrants = 4096

// take grants k, unless it was granted not long ago.
func (g *grants) take(k portKey) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.given[k] {
		return false
	}
	if g.given == nil {
		g.given = map[portKey]bool{}
	}
	if len(g.order) == maxGrants {
		delete(g.given, g.order[0])
		g.order = g.order[1:]
	}
	g.given[k] = true
	g.order = append(g.order, k)
	return true
}

// freePortTries is how many free ports of the kernel's choice are looked at before
// giving up.
const freePortTries = 100

// CheckPort tells whether a socket address of the host is free to be published:
// runtime.ErrTaken when a socket is bound to it, on the wildcard address included,
// or when a sandbox of any lineage on this host has published it. Port 0 asks for
// a free one, which is returned. Redirections made by other programs cannot be seen.
func (n *Net) CheckPort(ctx context.Context, addr netip.Addr, port uint16, protocol string) (uint16, error) {
	got, err := n.checkPort(ctx, addr.Unmap(), port, protocol)
	if err != nil {
		return 0, fmt.Errorf("cannot publish %s %s: %w", protocol, netip.AddrPortFrom(addr, port), err)
	}
	return got, nil
}

func (n *Net) checkPort(ctx context.Context, addr netip.Addr, port uint16, protocol string) (uint16, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	number, err := protocolNumber(protocol)
	if err != nil {
		return 0, err
	}
	if !addr.Is4() {
		return 0, fmt.Errorf("host address %q: only IPv4 addresses are supported", addr)
	}
	published, err := n.allPublications()
	if err != nil {
		return 0, err
	}
	holder := func(k portKey) (publication, bool) {
		for _, p := range published {
			if p.clashes(k) {
				return p, true
			}
		}
		return publication{}, false
	}
	if port != 0 {
		k := portKey{number, netip.AddrPortFrom(addr, port)}
		if p, taken := holder(k); taken {
			return 0, fmt.Errorf("%w: instance %s has published %s", runtime.ErrTaken, p.owner, p.portKey)
		}
		return bind(k)
	}
	for range freePortTries {
		got, err := bind(portKey{number, netip.AddrPortFrom(addr, 0)})
		if err != nil {
			return 0, err
		}
		k := portKey{number, netip.AddrPortFrom(addr, got)}
		if _, taken := holder(k); !taken && n.grants.take(k) {
			return got, nil
		}
	}
	return 0, fmt.Errorf("no free port found in %d tries: %w; choose one", freePortTries, runtime.ErrTaken)
}

// allPublications reads the port maps of every lineage on the host.
func (n *Net) allPublications() ([]publication, error) {
	tables, err := n.rules.nf.lineageTables()
	if err != nil {
		return nil, err
	}
	var out []publication
	for _, t := range tables {
		ps, err := n.rules.nf.publications(newSets(t, t))
		if err != nil {
			return nil, err
		}
		out = append(out, ps...)
	}
	return out, nil
}

// bind binds a socket to the address and lets it go, and returns its port.
func bind(k portKey) (uint16, error) {
	kind := unix.SOCK_STREAM
	if k.protocol == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("cannot open a socket: %w", err)
	}
	defer unix.Close(fd)
	if kind == unix.SOCK_STREAM {
		// Remains of closed connections do not count, listening sockets do.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return 0, fmt.Errorf("cannot set up a socket: %w", err)
		}
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: k.host.Addr().As4(), Port: int(k.host.Port())})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return 0, fmt.Errorf("%w by a socket of the host", runtime.ErrTaken)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return 0, fmt.Errorf("the host has no address %s; choose one of its own, or 0.0.0.0 for all: %w", k.host.Addr(), err)
	case err != nil:
		return 0, fmt.Errorf("cannot bind a socket: %w", err)
	}
	at, err := unix.Getsockname(fd)
	if err != nil {
		return 0, fmt.Errorf("cannot read a socket's address: %w", err)
	}
	in4, ok := at.(*unix.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("a socket's address is a %T", at)
	}
	return uint16(in4.Port), nil
}
