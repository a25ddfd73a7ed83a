package sim

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"pinfold/runtime"
)

// Dial implements runtime.Host. Behind a port that the running script serves
// stands an echo; a frozen one answers when it is thawed.
func (h *Host) Dial(ctx context.Context, id, protocol string, port uint16) (net.Conn, error) {
	return h.dial(ctx, OpDial, id, protocol, port, func(in *instance) netip.Addr {
		if in.spec.Net != nil {
			return in.spec.Net.Address.Addr()
		}
		return loopback
	})
}

// DialInside implements runtime.Host. Inside are the IPv4 loopback and the
// instance's own address; nobody listens on any other.
func (h *Host) DialInside(ctx context.Context, id, protocol string, addr netip.AddrPort) (net.Conn, error) {
	return h.dial(ctx, OpDialInside, id, protocol, addr.Port(), func(*instance) netip.Addr { return addr.Addr() })
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func (h *Host) dial(ctx context.Context, op Op, id, protocol string, port uint16, at func(*instance) netip.Addr) (net.Conn, error) {
	var c *conn
	err := h.call(ctx, op, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		if protocol != "tcp" && protocol != "udp" || port == 0 {
			return errors.New("the protocol must be tcp or udp, the port 1 to 65535")
		}
		in, err := h.started(id)
		if err != nil {
			return err
		}
		addr := at(in)
		if !addr.IsValid() || addr.Zone() != "" {
			return errors.New("the address must be a plain one of IPv4 or IPv6, without a zone")
		}
		served := in.answers(addr, port)
		switch {
		case in.proc.frozen:
			return runtime.ErrPaused
		case !served && protocol == "tcp":
			return syscall.ECONNREFUSED
		}
		c = newConn(h.w, in.proc, protocol, netip.AddrPortFrom(addr, port), served)
		in.proc.conns[c] = true
		return nil
	})
	if err != nil {
		if c != nil {
			c.Close()
		}
		return nil, wrap("connect to", id, err)
	}
	return c, nil
}

// answers tells whether the running script serves a port of an address.
func (in *instance) answers(addr netip.Addr, port uint16) bool {
	everywhere, served := in.proc.serves[port]
	switch {
	case addr.Is4() && addr.IsLoopback():
		return everywhere || served && addr == loopback
	case in.spec.Net != nil && addr == in.spec.Net.Address.Addr():
		return everywhere
	}
	return false
}

// conn is a connection to an echo. The world's lock guards it.
type conn struct {
	w        *World
	p        *process
	protocol string
	remote   netip.AddrPort
	served   bool

	queue   [][]byte // what is to be read, one datagram each
	refused bool     // the next Read says so
	ended   bool     // nothing more is written: by CloseWrite
	lost    bool     // the process is gone
	closed  bool

	changed chan struct{} // closed and made anew at every change
	read    *deadline
}

// maxQueued is how much an echo holds that nobody reads, in bytes.
const maxQueued = 4 << 20

func newConn(w *World, p *process, protocol string, remote netip.AddrPort, served bool) *conn {
	return &conn{w: w, p: p, protocol: protocol, remote: remote, served: served, changed: make(chan struct{}), read: newDeadline()}
}

// change wakes those who wait in Read. With the world's lock held.
func (c *conn) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// lose is the end of the process that the connection leads to.
func (c *conn) lose() {
	c.lost = true
	c.change()
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		c.w.mu.Lock()
		n, done, err := c.take(b)
		changed := c.changed
		c.w.mu.Unlock()
		if done {
			if err != nil && err != io.EOF {
				err = c.error("read", err)
			}
			return n, err
		}
		select {
		case <-changed:
		case <-c.read.passed():
			return 0, c.error("read", os.ErrDeadlineExceeded)
		}
	}
}

func (c *conn) take(b []byte) (n int, done bool, err error) {
	select {
	case <-c.read.passed():
		return 0, true, os.ErrDeadlineExceeded
	default:
	}
	switch {
	case c.closed:
		return 0, true, net.ErrClosed
	case c.refused:
		c.refused = false
		return 0, true, syscall.ECONNREFUSED
	case c.lost && c.protocol == "tcp":
		return 0, true, syscall.ECONNRESET
	case c.p.frozen || c.lost:
		return 0, false, nil
	case len(c.queue) > 0:
		n = copy(b, c.queue[0])
		if c.protocol == "udp" || n == len(c.queue[0]) {
			c.queue = c.queue[1:]
		} else {
			c.queue[0] = c.queue[0][n:]
		}
		return n, true, nil
	case c.ended:
		return 0, true, io.EOF
	}
	return 0, len(b) == 0, nil
}

func (c *conn) Write(b []byte) (int, error) {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	switch {
	case c.closed:
		return 0, c.error("write", net.ErrClosed)
	case c.protocol == "udp" && (c.lost || !c.served):
		c.refused = true
		c.change()
		return len(b), nil
	case c.lost || c.ended:
		return 0, c.error("write", syscall.EPIPE)
	}
	queued := len(b)
	for _, d := range c.queue {
		queued += len(d)
	}
	if queued > maxQueued {
		return 0, c.error("write", errors.New("sim: too much is written that nobody reads"))
	}
	if len(b) > 0 || c.protocol == "udp" {
		c.queue = append(c.queue, append([]byte(nil), b...))
		c.change()
	}
	return len(b), nil
}

// CloseWrite ends what is sent; the echo ends too once all has come back.
func (c *conn) CloseWrite() error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.closed {
		return c.error("close", net.ErrClosed)
	}
	c.ended = true
	c.change()
	return nil
}

func (c *conn) Close() error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.closed {
		return c.error("close", net.ErrClosed)
	}
	c.closed = true
	delete(c.p.conns, c)
	c.change()
	c.read.set(time.Time{})
	return nil
}

func (c *conn) error(op string, err error) error {
	return &net.OpError{Op: op, Net: c.protocol, Addr: c.RemoteAddr(), Err: err}
}

func (c *conn) LocalAddr() net.Addr {
	return c.address(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 1))
}
func (c *conn) RemoteAddr() net.Addr { return c.address(c.remote) }

func (c *conn) address(a netip.AddrPort) net.Addr {
	if c.protocol == "udp" {
		return net.UDPAddrFromAddrPort(a)
	}
	return net.TCPAddrFromAddrPort(a)
}

func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *conn) SetReadDeadline(t time.Time) error {
	c.read.set(t)
	return nil
}

// SetWriteDeadline has no effect: writing never waits.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// deadline is an instant that can be moved while somebody waits for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	over  chan struct{}
}

func newDeadline() *deadline { return &deadline{over: make(chan struct{})} }

// passed is closed once the deadline has passed. Moving the deadline ahead makes a
// new one; who waits for an old one waits for the old instant.
func (d *deadline) passed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.over
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.over // it rings just now
	}
	d.timer = nil
	select {
	case <-d.over:
		d.over = make(chan struct{})
	default:
	}
	over := d.over
	switch left := time.Until(t); {
	case t.IsZero():
	case left <= 0:
		close(over)
	default:
		d.timer = time.AfterFunc(left, func() { close(over) })
	}
}
