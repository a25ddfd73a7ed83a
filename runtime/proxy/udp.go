package proxy

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// datagram is the largest there is, with its header.
	datagram = 64 << 10
	// waiting and waitingBytes are how many datagrams of one client, and how many
	// bytes of all, are kept until they can be handed on. More are dropped, as a
	// socket with a full buffer would.
	waiting      = 256
	waitingBytes = 8 << 20
)

func (s *Server) listenUDP() error {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(s.port.Address))
	if err != nil {
		return err
	}
	s.free, s.addr = sync.OnceFunc(func() { c.Close() }), c.LocalAddr().(*net.UDPAddr).AddrPort()
	u := &relay{s: s, c: c, flows: map[flowKey]*flow{}}
	if s.addr.Addr().IsUnspecified() {
		// An answer has to come from the address that was asked.
		if err := u.wantDestination(); err != nil {
			c.Close()
			return err
		}
	}
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		u.receive()
	}()
	return nil
}

// relay is the port's socket and the flows on it.
type relay struct {
	s     *Server
	c     *net.UDPConn
	flows map[flowKey]*flow // only receive uses it
	ended atomic.Bool       // some flow has: the map is to be swept
	kept  atomic.Int64      // bytes that wait in the flows
}

type flowKey struct {
	client netip.AddrPort
	at     netip.Addr // which of our addresses it was sent to, where there are several
}

// flow is what one client and the other side say to each other.
type flow struct {
	*link
	u    *relay
	key  flowKey
	in   chan []byte
	done atomic.Bool
	last atomic.Int64 // when a datagram last passed, nanoseconds since start
}

func (u *relay) wantDestination() error {
	raw, err := u.c.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		if u.s.addr.Addr().Is6() {
			serr = errors.Join(serr, unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
		}
	})
	return errors.Join(err, serr)
}

func (u *relay) receive() {
	buf, oob := make([]byte, datagram), make([]byte, 128)
	for {
		n, oobn, _, client, err := u.c.ReadMsgUDPAddrPort(buf, oob)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // of an earlier answer: it could not be delivered
		}
		if u.ended.Swap(false) {
			for k, f := range u.flows {
				if f.done.Load() {
					u.forget(k, f)
				}
			}
		}
		key := flowKey{client, destination(oob[:oobn])}
		f := u.flows[key]
		if f != nil && f.done.Load() {
			u.forget(key, f)
			f = nil
		}
		if f == nil {
			link, ok := u.s.enter(nil)
			if !ok {
				continue
			}
			f = &flow{link: link, u: u, key: key, in: make(chan []byte, waiting)}
			u.flows[key] = f
			f.passed()
			go f.serve()
		}
		if u.kept.Add(int64(n)) > waitingBytes {
			u.kept.Add(int64(-n))
			continue
		}
		select {
		case f.in <- append([]byte(nil), buf[:n]...):
			f.passed()
		default:
			u.kept.Add(int64(-n))
		}
	}
}

// forget drops a flow that has ended, with what it did not come to hand on.
func (u *relay) forget(key flowKey, f *flow) {
	delete(u.flows, key)
	for {
		select {
		case b := <-f.in:
			u.kept.Add(int64(-len(b)))
		default:
			return
		}
	}
}

// destination is the address that a datagram was sent to (IP_PKTINFO, ip(7)).
func destination(oob []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}
	}
	for i := range messages {
		m := &messages[i]
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			a, _ := netip.AddrFromSlice(m.Data[8:12])
			return a
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			a, _ := netip.AddrFromSlice(m.Data[:16])
			return a.Unmap()
		}
	}
	return netip.Addr{}
}

// source asks that an answer come from this address.
func source(a netip.Addr) []byte {
	switch {
	case a.Is4():
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	case a.Is6():
		return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
	}
	return nil
}

func (f *flow) passed() { f.last.Store(int64(time.Since(start))) }

// quiet is how long the flow may still be silent.
func (f *flow) quiet() time.Duration {
	return f.u.s.silence - (time.Since(start) - time.Duration(f.last.Load()))
}

func (f *flow) serve() {
	defer f.leave()
	defer f.end()
	f.touch()
	inside, err := f.through()
	if err != nil {
		return
	}
	f.passed()
	over := make(chan struct{})
	f.s.work.Add(1)
	go func() {
		defer f.s.work.Done()
		defer f.drop() // ends the other direction's Write
		defer close(over)
		f.answer(inside)
	}()
	for {
		select {
		case b := <-f.in:
			f.u.kept.Add(int64(-len(b)))
			f.touch()
			if _, err := inside.Write(b); err != nil && !transient(err) {
				return
			}
		case <-over:
			return
		}
	}
}

// end lets the next datagram of the client begin a new flow.
func (f *flow) end() {
	f.done.Store(true)
	f.u.ended.Store(true)
}

// answer carries what comes back, until nothing has passed for a while.
func (f *flow) answer(inside net.Conn) {
	ready, oob := readiness(inside), source(f.key.at)
	for {
		left := f.quiet()
		if left <= 0 {
			return
		}
		inside.SetReadDeadline(time.Now().Add(left))
		n, buf, err := readReady(ready, inside)
		if err == nil || err == io.EOF { // an empty datagram
			f.passed()
			f.touch()
			_, _, err = f.u.c.WriteMsgUDPAddrPort(buf[:n], oob, f.key.client)
			if !errors.Is(err, net.ErrClosed) {
				err = nil // the client's affair
			}
		}
		if buf != nil {
			buffers.Put(buf)
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !transient(err) {
			return
		}
	}
}

// transient tells whether an error speaks of one datagram only: nobody listens for
// it yet (ICMP port unreachable), or there was no room for it.
func transient(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.EMSGSIZE) ||
		errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH)
}
