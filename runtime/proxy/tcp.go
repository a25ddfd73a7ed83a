package proxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func (s *Server) listenTCP() error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(s.port.Address))
	if err != nil {
		return err
	}
	s.free, s.addr = sync.OnceFunc(func() { l.Close() }), l.Addr().(*net.TCPAddr).AddrPort()
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		s.accept(l)
	}()
	return nil
}

func (s *Server) accept(l *net.TCPListener) {
	for {
		c, err := l.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			// Most likely there are no descriptors left: it goes on when there are.
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-s.ctx.Done():
				return
			}
		}
		c.SetKeepAliveConfig(s.alive) // an error shows in using it
		link, ok := s.enter(c)
		if !ok {
			refuse(c)
			continue
		}
		go link.serve()
	}
}

// refuse closes a connection so that the client sees an error, not an empty answer.
func refuse(c *net.TCPConn) {
	c.SetLinger(0)
	c.Close()
}

func (l *link) serve() {
	defer l.leave()
	l.touch()
	var inside net.Conn
	var err error
	l.watched(func() { inside, err = l.through() })
	if err != nil {
		refuse(l.client)
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		if l.pass(inside, l.client) {
			l.sawEnd()
			l.s.work.Go(func() { l.watch(nil) })
		}
	})
	both.Go(func() { l.pass(l.client, inside) })
	both.Wait()
}

// pass copies until one side ends, and ends the other likewise: what goes the
// other way goes on. An error ends both ways, with a reset where there is one, and
// so does an end that cannot be handed on by itself; it returns false then.
func (l *link) pass(to, from net.Conn) bool {
	err := l.copy(to, from)
	if err == nil {
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			half.CloseWrite() // an error shows in the other direction
			return true
		}
	}
	for _, c := range []net.Conn{to, from} {
		if tcp, ok := c.(*net.TCPConn); ok && err != nil {
			tcp.SetLinger(0)
		}
	}
	l.drop()
	return false
}

// client tells whether the client of a socket may still send, and whether it has
// the connection at all.
func client(fd uintptr) (sends, there bool) {
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return false, false
	}
	switch info.State {
	case unix.BPF_TCP_CLOSE:
		return false, false
	case unix.BPF_TCP_CLOSE_WAIT, unix.BPF_TCP_LAST_ACK, unix.BPF_TCP_CLOSING, unix.BPF_TCP_TIME_WAIT:
		return false, true
	}
	return true, true
}

// watch drops the link when its client no longer has the connection, and notes when
// it sends no more. It reads nothing: the poller tells of every change, and the
// kernel then what it was. It ends with the link, or, with a deadline for reading in
// the past, when quit is set. Nobody else can read meanwhile.
func (l *link) watch(quit *atomic.Bool) {
	raw := readiness(l.client)
	if raw == nil {
		return // it is closed
	}
	gone := false
	raw.Read(func(fd uintptr) bool {
		sends, there := client(fd)
		if !sends {
			l.sawEnd()
		}
		gone = !there
		return gone || quit != nil && quit.Load()
	})
	if gone {
		l.drop()
	}
}

// watched calls do, during which nobody reads from the client, and watches the
// client when that takes long.
func (l *link) watched(do func()) {
	var quit atomic.Bool
	over := make(chan struct{})
	t := time.AfterFunc(patience, func() {
		defer close(over)
		l.watch(&quit)
	})
	do()
	if t.Stop() {
		return
	}
	quit.Store(true)
	l.client.SetReadDeadline(time.Unix(1, 0))
	<-over
	l.client.SetReadDeadline(time.Time{})
}

// chunk is how much is copied at once. Buffers are held only while there is
// something to copy, so that a connection on which nothing happens has none.
const chunk = 64 << 10

var buffers = sync.Pool{New: func() any { return new([chunk]byte) }}

// copy copies by chunks and says so with each. Splicing would leave the bytes in
// the kernel, but what io.Copy splices it shows only at the end: a connection that
// trickles would look idle. It would gain nothing either: over loopback, 2 GiB take
// 1.1 s of processor time by chunks and 1.3 s spliced.
func (l *link) copy(to io.Writer, from net.Conn) error {
	ready := readiness(from)
	for {
		n, buf, err := readReady(ready, from)
		if n > 0 {
			l.touch()
			write := func() {
				if _, werr := to.Write(buf[:n]); werr != nil {
					err = werr
				}
			}
			if from == net.Conn(l.client) {
				l.watched(write)
			} else {
				write()
			}
		}
		if buf != nil {
			buffers.Put(buf)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// readiness is by which a connection of the kernel's tells that there is something
// to read, nil for another.
func readiness(c net.Conn) syscall.RawConn {
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// readReady reads once, into a buffer that it takes when there is something to read
// and that the caller gives back; nil when there was not. io.EOF: nothing was read.
func readReady(ready syscall.RawConn, from net.Conn) (n int, buf *[chunk]byte, err error) {
	if ready == nil {
		buf = buffers.Get().(*[chunk]byte)
		n, err = from.Read(buf[:])
		return n, buf, err
	}
	var rerr error
	err = ready.Read(func(fd uintptr) bool {
		buf = buffers.Get().(*[chunk]byte)
		for {
			n, rerr = syscall.Read(int(fd), buf[:])
			if rerr != syscall.EINTR {
				break
			}
		}
		if rerr != nil {
			buffers.Put(buf)
			buf, n = nil, 0
		}
		return rerr != syscall.EAGAIN
	})
	switch {
	case err != nil:
		return 0, buf, err
	case rerr != nil:
		return 0, buf, rerr
	case n == 0:
		return 0, buf, io.EOF
	}
	return n, buf, nil
}
