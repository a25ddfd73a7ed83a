package sim

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"pinfold/runtime"
)

// portKey is a port of the host; holder who published it on which address.
type portKey struct {
	protocol string
	port     uint16
}

type holder struct {
	addr netip.Addr
	in   *instance
}

// socket is a listening socket of somebody else.
type socket struct {
	addr     netip.AddrPort
	protocol string
}

// CheckPort implements runtime.Host. It sees sockets, not published ports,
// except that a free port it chooses is neither, and is not chosen again soon.
func (h *Host) CheckPort(ctx context.Context, addr netip.Addr, port uint16, protocol string) (free uint16, err error) {
	err = h.call(ctx, OpCheckPort, fmt.Sprintf("%s:%d/%s", addr, port, protocol), func(midway) error {
		w := h.w
		w.mu.Lock()
		defer w.mu.Unlock()
		if protocol != "tcp" && protocol != "udp" {
			return fmt.Errorf("unknown protocol %q", protocol)
		}
		if port != 0 {
			if w.listening(addr, port, protocol) {
				return fmt.Errorf("%s port %d on %s: a socket listens there: %w", protocol, port, addr, runtime.ErrTaken)
			}
			free = port
			return nil
		}
		for range 1 << 15 {
			w.nextPort = max(w.nextPort+1, 32768)
			if !w.listening(addr, w.nextPort, protocol) && len(w.ports[portKey{protocol, w.nextPort}]) == 0 {
				free = w.nextPort
				return nil
			}
		}
		return fmt.Errorf("no %s port is free on %s: %w", protocol, addr, runtime.ErrTaken)
	})
	if err != nil {
		return 0, err
	}
	return free, nil
}

func (w *World) listening(addr netip.Addr, port uint16, protocol string) bool {
	for s := range w.sockets {
		if s.protocol == protocol && s.addr.Port() == port && overlap(s.addr.Addr(), addr) {
			return true
		}
	}
	return false
}

func overlap(a, b netip.Addr) bool {
	return a == b || a.IsUnspecified() || b.IsUnspecified()
}

// publishable tells whether every port of the instance can be published.
func (w *World) publishable(lineage string, spec runtime.Instance) error {
	for _, f := range spec.Forwards {
		for _, held := range w.ports[portKey{f.Protocol, f.HostPort}] {
			mine := held.in.spec.ID == spec.ID && held.in.l.name == lineage
			if !mine && overlap(held.addr, f.HostAddr) {
				return fmt.Errorf("port %q: %s port %d on %s is published by instance %s: %w",
					f.Name, f.Protocol, f.HostPort, f.HostAddr, held.in.spec.ID, runtime.ErrTaken)
			}
		}
	}
	return nil
}

func (w *World) publish(in *instance) {
	for _, f := range in.spec.Forwards {
		key := portKey{f.Protocol, f.HostPort}
		w.ports[key] = append(w.ports[key], holder{f.HostAddr, in})
	}
}

func (w *World) unpublish(in *instance) {
	for _, f := range in.spec.Forwards {
		key := portKey{f.Protocol, f.HostPort}
		rest := slices.DeleteFunc(w.ports[key], func(h holder) bool { return h.in == in })
		if len(rest) == 0 {
			delete(w.ports, key)
		} else {
			w.ports[key] = rest
		}
	}
}
