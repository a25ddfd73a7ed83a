// Package proxy serves a port of the host in this process and hands what comes to
// it on to wherever a function leads: into a sandbox that may have to be woken
// first. It sees each connection open and each byte pass, which is what a rule in
// the kernel cannot tell.
//
// It knows nothing of sandboxes, and never drops what a client has sent while the
// way is still being opened: until then it stays in the kernel's own buffer.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// DefaultLimit is how many connections and flows a port has at once.
const DefaultLimit = 1024

const (
	// openBound is how long opening the way may take: a sandbox wakes meanwhile.
	openBound = time.Minute
	// seenEvery is how often a connection on which bytes pass says so.
	seenEvery = 100 * time.Millisecond
	// silence ends a flow of datagrams, as the kernel's own tracking of connections
	// would (nf_conntrack_udp_timeout_stream is twice that).
	silence = time.Minute
	// patience is how long a client may go unwatched while nothing is read from it.
	patience = time.Second
)

// alive asks a client that is silent whether it still is there. A half-closed one
// that waits answers; the kernel of one that has closed forgets it after a minute
// (tcp_fin_timeout), and answers with a reset from then on.
var alive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 3}

// Port is what is served.
type Port struct {
	Address  netip.AddrPort // port 0: any free one, see Server.Addr
	Protocol string         // "tcp" or "udp"
	// Limit of connections, or flows, at once; 0: DefaultLimit. For a further one the
	// connection whose client stopped sending longest ago ends; where there is none
	// such, the further one is refused.
	Limit int
}

// Server serves one port until Close.
type Server struct {
	port   Port
	addr   netip.AddrPort
	open   func(context.Context) (net.Conn, error)
	active func()

	silence time.Duration
	alive   net.KeepAliveConfig

	free   func()          // gives the port back, once; it is free when any call returns
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	closed   bool // nothing new is taken
	standing map[*link]bool
}

// Listen begins to serve a port. open is called once for each connection, or flow
// of datagrams from one client, on a goroutine of its own; it must return when its
// context ends. active is called when one is opened, before open, and when bytes
// pass either way, at most every 100 ms for each connection; it must not wait.
// runtime.ErrTaken when another socket has the port.
func Listen(p Port, open func(ctx context.Context) (net.Conn, error), active func()) (*Server, error) {
	return listen(p, open, active, silence, alive)
}

func listen(p Port, open func(context.Context) (net.Conn, error), active func(), silence time.Duration, alive net.KeepAliveConfig) (*Server, error) {
	if p.Limit == 0 {
		p.Limit = DefaultLimit
	}
	if p.Limit < 0 || !p.Address.IsValid() {
		return nil, fmt.Errorf("cannot serve %s port %s with %d connections: address or number is not valid", p.Protocol, p.Address, p.Limit)
	}
	s := &Server{port: p, open: open, active: active, silence: silence, alive: alive, standing: map[*link]bool{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	switch p.Protocol {
	case "tcp":
		err = s.listenTCP()
	case "udp":
		err = s.listenUDP()
	default:
		err = errors.New("the protocol must be tcp or udp")
	}
	if err != nil {
		s.cancel()
		return nil, refusal(p, err)
	}
	return s, nil
}

func refusal(p Port, err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Errorf("cannot serve %s port %s: another program listens there; stop it, or choose another host port: %w", p.Protocol, p.Address, runtime.ErrTaken)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("cannot serve %s port %s: no interface of this host has the address; choose one that does: %w", p.Protocol, p.Address, err)
	}
	return fmt.Errorf("cannot serve %s port %s: %w", p.Protocol, p.Address, err)
}

// Addr is where it listens.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Release gives the port back and lets the connections that stand go on until they
// end or Close comes, so that somebody else can take the port over in place. Flows
// of datagrams end: they have no socket but the port's.
func (s *Server) Release() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.free()
	if s.port.Protocol == "udp" {
		s.drop()
	}
}

// Close gives the port back, cancels what is being opened, drops what stands, and
// returns at once, with the port free: it may be called from anywhere, open, active
// and the connections that open gave included. It may be called again, and never
// fails.
func (s *Server) Close() error {
	s.Release()
	s.drop()
	return nil
}

// Wait returns when nothing is left of a closed server. It must not be called from
// open, active or a connection that open gave: it waits for them.
func (s *Server) Wait() { s.work.Wait() }

func (s *Server) drop() {
	s.cancel()
	s.mu.Lock()
	standing := slices.Collect(maps.Keys(s.standing))
	s.mu.Unlock()
	for _, l := range standing {
		l.drop()
	}
}

// link is one connection, or one client's flow, with both of its ends.
type link struct {
	s      *Server
	seen   atomic.Int64       // when active was last called, nanoseconds since start
	ended  atomic.Int64       // when it was seen that the client sends no more, likewise; 0: it may
	ctx    context.Context    // ends with the link
	cancel context.CancelFunc // of ctx
	client *net.TCPConn       // nil for a flow

	mu      sync.Mutex
	dropped bool
	inside  io.Closer // nil until it is open
}

// enter counts a new link. False: the port has as many as it may, and none that can
// make room, or is closed.
func (s *Server) enter(client *net.TCPConn) (*link, bool) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, false
	}
	var room *link
	if len(s.standing) >= s.port.Limit {
		if room = s.longestEnded(); room == nil {
			s.mu.Unlock()
			return nil, false
		}
		delete(s.standing, room)
	}
	l := &link{s: s, client: client}
	l.ctx, l.cancel = context.WithCancel(s.ctx)
	s.standing[l] = true
	s.work.Add(1)
	s.mu.Unlock()
	if room != nil {
		room.client.SetLinger(0) // not as if the answer were whole
		room.drop()
	}
	return l, true
}

// longestEnded returns the link whose client has sent nothing more for the longest
// time, nil when all may still send.
func (s *Server) longestEnded() *link {
	var found *link
	look := func() {
		for l := range s.standing {
			if at := l.ended.Load(); at != 0 && (found == nil || at < found.ended.Load()) {
				found = l
			}
		}
	}
	if look(); found != nil {
		return found
	}
	// Some may have ended and not been seen to: their goroutines have not run yet.
	for l := range s.standing {
		if l.client == nil {
			continue
		}
		raw, err := l.client.SyscallConn()
		if err != nil {
			continue
		}
		raw.Control(func(fd uintptr) {
			if sends, _ := client(fd); !sends {
				l.sawEnd()
			}
		})
	}
	look()
	return found
}

// sawEnd notes that the client sends no more.
func (l *link) sawEnd() {
	l.ended.CompareAndSwap(0, int64(time.Since(start))+1)
}

// leave ends the link.
func (l *link) leave() {
	l.drop()
	l.s.mu.Lock()
	delete(l.s.standing, l)
	l.s.mu.Unlock()
	l.s.work.Done()
}

// drop closes both ends. It waits for nobody, and so can be called by anybody: the
// inside is not a connection of ours, and what its Close does is its own affair.
func (l *link) drop() {
	l.cancel()
	l.mu.Lock()
	first, inside := !l.dropped, l.inside
	l.dropped = true
	l.mu.Unlock()
	if !first {
		return
	}
	if l.client != nil {
		l.client.Close()
	}
	if inside != nil {
		l.closeInside(inside)
	}
}

func (l *link) closeInside(c io.Closer) {
	l.s.work.Go(func() { c.Close() })
}

// through opens the other side.
func (l *link) through() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.ctx, openBound)
	defer cancel()
	c, err := l.s.open(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.inside = c
	dropped := l.dropped
	l.mu.Unlock()
	if dropped {
		l.closeInside(c)
		return nil, net.ErrClosed
	}
	return c, nil
}

// start is what seen counts from.
var start = time.Now()

// touch says that something has happened, unless that was said just before.
func (l *link) touch() {
	now := int64(time.Since(start)) + 1
	last := l.seen.Load()
	if last != 0 && now-last < int64(seenEvery) {
		return
	}
	if l.seen.CompareAndSwap(last, now) {
		l.s.active()
	}
}
