package sim

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"pinfold/runtime"
)

// published is a listener that a process of ours has on the host.
type published struct {
	open   func(context.Context) (net.Conn, error)
	active func()
	ctx    context.Context // until it is closed
}

// Publish implements runtime.Host. Connect is the other side.
func (h *Host) Publish(f runtime.Forward, open func(context.Context) (net.Conn, error), active func()) (io.Closer, error) {
	w := h.w
	w.mu.Lock()
	defer w.mu.Unlock()
	key := socket{netip.AddrPortFrom(f.HostAddr, f.HostPort), f.Protocol}
	if w.listening(f.HostAddr, f.HostPort, f.Protocol) {
		return nil, fmt.Errorf("%s port %d on %s: a socket listens there: %w", f.Protocol, f.HostPort, f.HostAddr, runtime.ErrTaken)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.sockets[key] = true
	w.published[key] = &published{open, active, ctx}
	return closer(sync.OnceFunc(func() {
		cancel()
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.sockets, key)
		delete(w.published, key)
	})), nil
}

type closer func()

func (c closer) Close() error { c(); return nil }

// Connect is a client on the host that connects to a port served by Publish. The
// connection is open once the sandbox answers; syscall.ECONNREFUSED when nobody
// listens.
func (w *World) Connect(addr netip.AddrPort, protocol string) (net.Conn, error) {
	w.mu.Lock()
	p := w.published[socket{addr, protocol}]
	w.mu.Unlock()
	if p == nil {
		return nil, syscall.ECONNREFUSED
	}
	p.active()
	c, err := p.open(p.ctx)
	if err != nil {
		return nil, err
	}
	return &busy{c, p.active}, nil
}

// busy tells of the bytes that pass.
type busy struct {
	net.Conn
	active func()
}

func (b *busy) Read(data []byte) (int, error) {
	n, err := b.Conn.Read(data)
	if n > 0 {
		b.active()
	}
	return n, err
}

func (b *busy) Write(data []byte) (int, error) {
	b.active()
	return b.Conn.Write(data)
}
