package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold/runtime"
)

const bound = 30 * time.Second

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not so after %s: %s", bound, what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// soon is as alive, in a test's time.
var soon = net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}

// inside is what stands behind the port: a listener of the test's own.
type inside struct {
	*net.TCPListener
	t *testing.T
}

func newInside(t *testing.T) inside {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return inside{l, t}
}

func (i inside) open(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", i.Addr().String())
}

func (i inside) next() *net.TCPConn {
	i.t.Helper()
	must(i.t, i.SetDeadline(time.Now().Add(bound)))
	c, err := i.AcceptTCP()
	must(i.t, err)
	must(i.t, c.SetDeadline(time.Now().Add(bound)))
	i.t.Cleanup(func() { c.Close() })
	return c
}

type opener = func(context.Context) (net.Conn, error)

// serve serves a free port of 127.0.0.1 until the test ends, which then proves that
// Close leaves nothing: whatever happened, all that it began comes to an end.
func serve(t *testing.T, p Port, open opener, active func(), quiet time.Duration) *Server {
	t.Helper()
	if !p.Address.IsValid() {
		p.Address = netip.MustParseAddrPort("127.0.0.1:0")
	}
	if active == nil {
		active = func() {}
	}
	s, err := listen(p, open, active, quiet, soon)
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close())
		gone(t, s)
		if n := s.count(); n > 0 {
			t.Errorf("after Close %d links stand", n)
		}
	})
	return s
}

// gone waits until nothing is left of a closed server.
func gone(t *testing.T, s *Server) {
	t.Helper()
	over := make(chan struct{})
	go func() { s.Wait(); close(over) }()
	within(t, "all of the server's work has ended", over)
}

func within(t *testing.T, what string, over <-chan struct{}) {
	t.Helper()
	select {
	case <-over:
	case <-time.After(bound):
		t.Fatalf("still not so after %s: %s", bound, what)
	}
}

func dial(t *testing.T, network string, addr netip.AddrPort) net.Conn {
	t.Helper()
	c, err := net.Dial(network, addr.String())
	must(t, err)
	must(t, c.SetDeadline(time.Now().Add(bound)))
	t.Cleanup(func() { c.Close() })
	return c
}

func reads(t *testing.T, c io.Reader, want string) {
	t.Helper()
	b := make([]byte, len(want))
	if n, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v; want %q", b[:n], err, want)
	}
}

func writes(t *testing.T, c io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	must(t, err)
}

func ends(t *testing.T, c io.Reader, want string) {
	t.Helper()
	if b, err := io.ReadAll(c); err != nil || string(b) != want {
		t.Fatalf("read %d bytes to the end, %v; want %d", len(b), err, len(want))
	}
}

func TestTCPEndsEachWayByItself(t *testing.T) {
	behind := newInside(t)
	s := serve(t, Port{Protocol: "tcp"}, behind.open, nil, silence)
	large := strings.Repeat("0123456789abcdef", 1<<17) // 2 MiB: more than the buffers on the way

	client := dial(t, "tcp", s.Addr())
	server := behind.next()
	go func() {
		io.WriteString(client, large)
		client.(*net.TCPConn).CloseWrite()
	}()
	ends(t, server, large)
	go func() {
		io.WriteString(server, large)
		server.CloseWrite()
	}()
	ends(t, client, large)

	other := dial(t, "tcp", s.Addr())
	end := behind.next()
	must(t, end.CloseWrite())
	ends(t, other, "")
	writes(t, other, "still here")
	reads(t, end, "still here")
	must(t, other.Close())
	ends(t, end, "")
	eventually(t, "both connections are gone", func() bool { return s.count() == 0 })
}

func (s *Server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.standing)
}

// A reset on one side is one on the other.
func TestTCPReset(t *testing.T) {
	behind := newInside(t)
	s := serve(t, Port{Protocol: "tcp"}, behind.open, nil, silence)
	client := dial(t, "tcp", s.Addr())
	server := behind.next()
	must(t, server.SetLinger(0))
	must(t, server.Close())
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v", err)
	}
	eventually(t, "the connection is gone", func() bool { return s.count() == 0 })
}

// What a client sends and ends while the way is being opened arrives.
func TestTCPWaitsForTheWay(t *testing.T) {
	behind := newInside(t)
	awake := make(chan struct{})
	s := serve(t, Port{Protocol: "tcp"}, func(ctx context.Context) (net.Conn, error) {
		select {
		case <-awake:
			return behind.open(ctx)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, nil, silence)
	client := dial(t, "tcp", s.Addr())
	writes(t, client, "while you were asleep")
	must(t, client.(*net.TCPConn).CloseWrite())
	eventually(t, "it is waited for", func() bool { return s.count() == 1 })
	close(awake)
	server := behind.next()
	ends(t, server, "while you were asleep")
	writes(t, server, "good morning")
	must(t, server.Close())
	ends(t, client, "good morning")
}

func TestTCPWithoutAWay(t *testing.T) {
	s := serve(t, Port{Protocol: "tcp"}, func(context.Context) (net.Conn, error) { return nil, errors.New("no") }, nil, silence)
	refused(t, s)
}

// refused asserts that a client sees a reset, in connecting or right after it.
func refused(t *testing.T, s *Server) {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err == nil {
		defer c.Close()
		must(t, c.SetDeadline(time.Now().Add(bound)))
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v", err)
	}
}

func TestTCPLimit(t *testing.T) {
	behind := newInside(t)
	s := serve(t, Port{Protocol: "tcp", Limit: 2}, behind.open, nil, silence)
	one := dial(t, "tcp", s.Addr())
	server := behind.next()
	dial(t, "tcp", s.Addr())
	behind.next()
	refused(t, s)
	must(t, server.Close())
	must(t, one.Close())
	eventually(t, "there is room", func() bool { return s.count() == 1 })
	four := dial(t, "tcp", s.Addr())
	writes(t, four, "4")
	reads(t, behind.next(), "4")
}

// half dials, says so, ends its sending, and waits until that has arrived.
func (i inside) half(s *Server) (client, server *net.TCPConn) {
	i.t.Helper()
	client = dial(i.t, "tcp", s.Addr()).(*net.TCPConn)
	writes(i.t, client, "request")
	must(i.t, client.CloseWrite())
	server = i.next()
	ends(i.t, server, "request")
	return client, server
}

// A client that has ended and waits stays; one that is gone is noticed though the
// inside says nothing: by its reset, and by keep-alive where none was sent.
func TestTCPClientsThatAreGone(t *testing.T) {
	behind := newInside(t)
	s := serve(t, Port{Protocol: "tcp"}, behind.open, nil, silence)
	waits, answers := behind.half(s)
	resets, server := behind.half(s)
	if n := s.count(); n != 2 {
		t.Fatalf("%d connections stand, want 2", n)
	}
	must(t, resets.SetLinger(0))
	must(t, resets.Close())
	eventually(t, "the one that was reset is gone", func() bool { return s.count() == 1 })
	_, err := server.Write([]byte("x"))
	eventually(t, "the inside is told", func() bool {
		_, err = server.Write([]byte("x"))
		return err != nil
	})

	closes, _ := behind.half(s)
	raw, err := closes.SyscallConn()
	must(t, err)
	raw.Control(func(fd uintptr) { // the kernel forgets it soon
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_LINGER2, 1)
	})
	must(t, err)
	must(t, closes.Close())
	eventually(t, "the one that has closed is gone", func() bool { return s.count() == 1 })

	writes(t, answers, "answer")
	must(t, answers.Close())
	ends(t, waits, "answer")
}

func TestTCPKeepAlive(t *testing.T) {
	behind := newInside(t)
	s, err := Listen(Port{Address: netip.MustParseAddrPort("127.0.0.1:0"), Protocol: "tcp"}, behind.open, func() {})
	must(t, err)
	defer s.Close()
	dial(t, "tcp", s.Addr())
	behind.next()
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.standing {
		raw, err := l.client.SyscallConn()
		must(t, err)
		raw.Control(func(fd uintptr) {
			for _, o := range []struct{ level, name, want int }{
				{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 15},
				{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 15}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
			} {
				if got, err := syscall.GetsockoptInt(int(fd), o.level, o.name); err != nil || got != o.want {
					t.Errorf("option %d: %d, %v; want %d", o.name, got, err, o.want)
				}
			}
		})
	}
	if len(s.standing) != 1 {
		t.Errorf("%d connections stand", len(s.standing))
	}
}

// At the limit the client that ended longest ago makes room; only when all may
// still send is one refused.
func TestTCPRoom(t *testing.T) {
	behind := newInside(t)
	s := serve(t, Port{Protocol: "tcp", Limit: 3}, behind.open, nil, silence)
	one, oneInside := behind.half(s)
	two, twoInside := behind.half(s)
	three := dial(t, "tcp", s.Addr())
	threeInside := behind.next()

	four := dial(t, "tcp", s.Addr())
	writes(t, four, "four")
	reads(t, behind.next(), "four")
	if _, err := one.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the one that made room sees %v", err)
	}
	eventually(t, "its inside is told", func() bool {
		_, err := oneInside.Write([]byte("x"))
		return err != nil
	})
	writes(t, twoInside, "two")
	reads(t, two, "two")

	dial(t, "tcp", s.Addr())
	behind.next()
	if _, err := two.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the next that made room sees %v", err)
	}
	refused(t, s)
	writes(t, three, "three")
	reads(t, threeInside, "three")
}

// As many clients as there may be that have come and gone keep nobody out, whether
// the way opens or not, however fast the next one is.
func TestTCPRoomOfClosed(t *testing.T) {
	for _, opens := range []bool{true, false} {
		behind := newInside(t)
		var last atomic.Bool
		s := serve(t, Port{Protocol: "tcp", Limit: 16}, func(ctx context.Context) (net.Conn, error) {
			if !opens && !last.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return behind.open(ctx)
		}, nil, silence)
		for range 16 {
			c := dial(t, "tcp", s.Addr())
			must(t, c.Close())
			if opens {
				behind.next()
			}
		}
		eventually(t, "all are taken", func() bool { return s.count() == 16 })
		last.Store(true)
		c := dial(t, "tcp", s.Addr())
		writes(t, c, "here")
		reads(t, behind.next(), "here")
	}
}

// A client that is gone ends the opening of its way, and the writing of what the
// inside does not take.
func TestTCPGoneWhileBusy(t *testing.T) {
	opening, cancelled := make(chan struct{}), make(chan struct{})
	s := serve(t, Port{Protocol: "tcp"}, func(ctx context.Context) (net.Conn, error) {
		close(opening)
		<-ctx.Done()
		close(cancelled)
		return nil, ctx.Err()
	}, nil, silence)
	c := dial(t, "tcp", s.Addr()).(*net.TCPConn)
	within(t, "it is being opened", opening)
	must(t, c.SetLinger(0))
	must(t, c.Close())
	within(t, "the opening has ended", cancelled)

	behind := newInside(t)
	s = serve(t, Port{Protocol: "tcp"}, behind.open, nil, silence)
	c = dial(t, "tcp", s.Addr()).(*net.TCPConn)
	behind.next()
	must(t, c.SetWriteDeadline(time.Now().Add(2*patience)))
	if _, err := io.Copy(c, endless{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("writing what nobody reads: %v", err)
	}
	must(t, c.SetLinger(0))
	must(t, c.Close())
	eventually(t, "the connection is gone", func() bool { return s.count() == 0 })
}

// A pause in what the inside takes loses and changes nothing.
func TestTCPSlowInside(t *testing.T) {
	behind := newInside(t)
	s := serve(t, Port{Protocol: "tcp"}, behind.open, nil, silence)
	c := dial(t, "tcp", s.Addr()).(*net.TCPConn)
	server := behind.next()
	must(t, c.SetWriteDeadline(time.Now().Add(2*patience)))
	n, err := io.Copy(c, endless{})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("writing what nobody reads: %v", err)
	}
	must(t, c.CloseWrite())
	if got, err := io.Copy(io.Discard, server); err != nil || got != n {
		t.Errorf("%d bytes arrived, %v; sent %d", got, err, n)
	}
	writes(t, server, "thanks")
	reads(t, c, "thanks")
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// Opening is activity before the way is opened, and so are bytes, either way.
func TestTCPActivity(t *testing.T) {
	behind := newInside(t)
	var seen atomic.Int64
	atOpen := make(chan int64, 1)
	s := serve(t, Port{Protocol: "tcp"}, func(ctx context.Context) (net.Conn, error) {
		atOpen <- seen.Load()
		return behind.open(ctx)
	}, func() { seen.Add(1) }, silence)
	client := dial(t, "tcp", s.Addr())
	server := behind.next()
	if n := <-atOpen; n != 1 {
		t.Errorf("active was called %d times before open", n)
	}
	// A byte at a time, until one is told: a connection that only trickles is seen.
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		before, sent := seen.Load(), 0
		eventually(t, "a byte was told", func() bool {
			writes(t, way[0], "x")
			reads(t, way[1], "x")
			sent++
			return seen.Load() > before
		})
		if told := seen.Load() - before; told != 1 {
			t.Errorf("of %d bytes within a moment %d were told", sent, told)
		}
	}
}

func TestPortThatCannotBeServed(t *testing.T) {
	s := serve(t, Port{Protocol: "tcp"}, newInside(t).open, nil, silence)
	u := serve(t, Port{Protocol: "udp"}, newInside(t).open, nil, silence)
	for _, p := range []Port{{Address: s.Addr(), Protocol: "tcp"}, {Address: u.Addr(), Protocol: "udp"}} {
		if _, err := Listen(p, nil, nil); !errors.Is(err, runtime.ErrTaken) || !strings.Contains(err.Error(), p.Address.String()) {
			t.Errorf("a port that is served: %v", err)
		}
	}
	for _, p := range []Port{
		{Address: netip.MustParseAddrPort("192.0.2.1:0"), Protocol: "tcp"}, {Address: netip.MustParseAddrPort("192.0.2.1:0"), Protocol: "udp"},
		{Address: s.Addr(), Protocol: "sctp"}, {Protocol: "tcp"}, {Address: netip.MustParseAddrPort("127.0.0.1:0"), Protocol: "tcp", Limit: -1},
	} {
		if s, err := Listen(p, nil, nil); err == nil || errors.Is(err, runtime.ErrTaken) {
			t.Errorf("%+v: %v, %v", p, s, err)
		}
	}
}

// Released, the port is free and what stands goes on; closed, nothing stands.
func TestReleaseAndClose(t *testing.T) {
	behind := newInside(t)
	s := serve(t, Port{Protocol: "tcp"}, behind.open, nil, silence)
	client := dial(t, "tcp", s.Addr())
	server := behind.next()
	s.Release()
	next := serve(t, Port{Address: s.Addr(), Protocol: "tcp"}, behind.open, nil, silence)
	writes(t, client, "old")
	reads(t, server, "old")
	writes(t, dial(t, "tcp", next.Addr()), "new")
	reads(t, behind.next(), "new")
	for range 2 {
		must(t, s.Close())
	}
	if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after Close the client sees %v", err)
	}
	must(t, next.Close())
	if c, err := net.Dial("tcp", next.Addr().String()); err == nil {
		c.Close()
		t.Error("a closed port is served")
	}
}

// Close does not wait for a way that does not open.
func TestCloseWhileOpening(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		opening := make(chan struct{})
		s := serve(t, Port{Protocol: network}, func(ctx context.Context) (net.Conn, error) {
			close(opening)
			<-ctx.Done()
			return nil, ctx.Err()
		}, nil, silence)
		writes(t, dial(t, network, s.Addr()), "x")
		<-opening
		must(t, s.Close())
	}
}

// calling is a connection of whoever opened it that calls out when it is used.
type calling struct {
	net.Conn
	onWrite, onClose func()
}

func (c calling) CloseWrite() error {
	if half, ok := c.Conn.(*net.TCPConn); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c calling) Write(b []byte) (int, error) { c.onWrite(); return c.Conn.Write(b) }
func (c calling) Close() error                { c.onClose(); return c.Conn.Close() }

// Whatever the server calls may close it, from within, and has the port free then;
// and whoever closes it does not wait for what it calls.
func TestCloseFromWithin(t *testing.T) {
	echoes, stop := echo(t)
	defer stop()
	for _, network := range []string{"tcp", "udp"} {
		for _, from := range []string{"open", "active", "write", "close"} {
			t.Run(network+" "+from, func(t *testing.T) {
				var s *Server
				ready, closed := make(chan struct{}), make(chan struct{})
				shut := sync.OnceFunc(func() {
					<-ready
					s.Close()
					again, err := Listen(Port{Address: s.Addr(), Protocol: network}, nil, nil)
					if err != nil {
						t.Errorf("closed from %s: %v", from, err)
					} else {
						again.Close()
					}
					close(closed)
				})
				at := func(place string) func() {
					return func() {
						if place == from {
							shut()
						}
					}
				}
				s = serve(t, Port{Protocol: network}, func(ctx context.Context) (net.Conn, error) {
					at("open")()
					if from == "open" && ctx.Err() == nil {
						t.Error("closed, and the context of open goes on")
					}
					c, err := echoes(network)(context.WithoutCancel(ctx))
					if err != nil {
						return nil, err
					}
					return calling{c, at("write"), at("close")}, nil
				}, at("active"), 50*time.Millisecond)
				close(ready)
				c := dial(t, network, s.Addr())
				writes(t, c, "x")
				if from == "close" {
					reads(t, c, "x")
					must(t, c.Close())
				}
				within(t, "Close has returned", closed)
				gone(t, s)
			})
		}
	}
}

// Close waits for no connection's Close: that may need what the caller of it holds.
func TestCloseWaitsForNobody(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		held := make(chan struct{})
		wrote := make(chan struct{})
		ours, theirs := net.Pipe()
		s := serve(t, Port{Protocol: network}, func(context.Context) (net.Conn, error) {
			return calling{ours, sync.OnceFunc(func() { close(wrote) }), func() { <-held }}, nil
		}, nil, silence)
		writes(t, dial(t, network, s.Addr()), "x")
		within(t, "it is written to", wrote)
		reads(t, theirs, "x")
		over := make(chan struct{})
		go func() { s.Close(); close(over) }()
		within(t, "Close has returned", over)
		close(held)
	}
}

// A connection that is not the kernel's will do inside.
func TestConnectionInMemory(t *testing.T) {
	ours, theirs := net.Pipe()
	s := serve(t, Port{Protocol: "tcp"}, func(context.Context) (net.Conn, error) { return ours, nil }, nil, silence)
	client := dial(t, "tcp", s.Addr())
	writes(t, client, "there")
	reads(t, theirs, "there")
	writes(t, theirs, "back")
	reads(t, client, "back")
	must(t, theirs.Close())
	ends(t, client, "")
}

func TestDescriptors(t *testing.T) {
	// By what they lead to: those of an earlier test may still be closing.
	open := func() map[string]bool {
		all := map[string]bool{}
		entries, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		for _, e := range entries {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
				all[to] = true
			}
		}
		return all
	}
	more := func(than map[string]bool) (n int) {
		for to := range open() {
			if !than[to] && strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	echoes, stop := echo(t)
	defer stop()
	before := open()
	tcp, err := Listen(Port{Address: netip.MustParseAddrPort("127.0.0.1:0"), Protocol: "tcp"}, echoes("tcp"), func() {})
	must(t, err)
	udp, err := listen(Port{Address: netip.MustParseAddrPort("127.0.0.1:0"), Protocol: "udp"}, echoes("udp"), func() {}, time.Second, soon)
	must(t, err)
	listening := open()
	if n := more(before); n != 2 {
		t.Errorf("%d sockets listen, want 2", n)
	}
	for _, s := range []*Server{tcp, udp} {
		var all []net.Conn
		for i := range 100 {
			c := dial(t, s.port.Protocol, s.Addr())
			all = append(all, c)
			text := strings.Repeat(string(rune('A'+i%26)), 1000)
			writes(t, c, text)
			reads(t, c, text)
		}
		if n := more(listening); n < 200 {
			t.Errorf("%s: %d sockets for 100 connections", s.port.Protocol, n)
		}
		for _, c := range all {
			must(t, c.Close())
		}
		eventually(t, "no more descriptors than before the connections", func() bool { return more(listening) == 0 })
	}
	for _, s := range []*Server{tcp, udp} {
		must(t, s.Close())
		gone(t, s)
	}
	if n := more(before); n != 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

// echo answers on a port of 127.0.0.1.
func echo(t *testing.T) (way func(network string) opener, stop func()) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	u, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	all.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := u.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			u.WriteToUDPAddrPort(b[:n], from)
		}
	})
	return func(network string) opener {
			addr := l.Addr().String()
			if network == "udp" {
				addr = u.LocalAddr().String()
			}
			return func(ctx context.Context) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, network, addr)
			}
		}, func() {
			l.Close()
			u.Close()
			all.Wait()
		}
}

func TestUDPFlows(t *testing.T) {
	echoes, stop := echo(t)
	defer stop()
	var opened, seen atomic.Int64
	s := serve(t, Port{Protocol: "udp"}, func(ctx context.Context) (net.Conn, error) {
		opened.Add(1)
		return echoes("udp")(ctx)
	}, func() { seen.Add(1) }, silence)
	one, two := dial(t, "udp", s.Addr()), dial(t, "udp", s.Addr())
	for i, text := range []string{"a", "", strings.Repeat("z", 9000)} {
		for _, c := range []net.Conn{one, two} {
			writes(t, c, text)
			b := make([]byte, 1<<16)
			n, err := c.Read(b)
			if err != nil || string(b[:n]) != text {
				t.Errorf("datagram %d: %d bytes, %v", i, n, err)
			}
		}
	}
	if n := opened.Load(); n != 2 {
		t.Errorf("two clients have opened %d ways", n)
	}
	if seen.Load() < 2 {
		t.Errorf("active was called %d times", seen.Load())
	}
}

// A flow on which nothing passes ends, and its next datagram begins a new one.
func TestUDPSilence(t *testing.T) {
	echoes, stop := echo(t)
	defer stop()
	var opened atomic.Int64
	s := serve(t, Port{Protocol: "udp"}, func(ctx context.Context) (net.Conn, error) {
		opened.Add(1)
		return echoes("udp")(ctx)
	}, nil, 50*time.Millisecond)
	c := dial(t, "udp", s.Addr())
	for round := range int64(3) {
		writes(t, c, "ping")
		reads(t, c, "ping")
		eventually(t, "the flow has ended", func() bool { return s.count() == 0 })
		if n := opened.Load(); n != round+1 {
			t.Errorf("round %d: opened %d times", round, n)
		}
	}
}

// Datagrams sent while the way is being opened arrive, as many as are kept.
func TestUDPWaitsForTheWay(t *testing.T) {
	echoes, stop := echo(t)
	defer stop()
	awake := make(chan struct{})
	s := serve(t, Port{Protocol: "udp", Limit: 1}, func(ctx context.Context) (net.Conn, error) {
		<-awake
		return echoes("udp")(ctx)
	}, nil, silence)
	c := dial(t, "udp", s.Addr())
	for _, text := range []string{"1", "2", "3"} {
		writes(t, c, text)
	}
	eventually(t, "it is waited for", func() bool { return s.count() == 1 })
	// Another client is one too many: nothing of it is kept or answered.
	other := dial(t, "udp", s.Addr())
	writes(t, other, "x")
	close(awake)
	for _, text := range []string{"1", "2", "3"} {
		reads(t, c, text)
	}
	must(t, other.SetReadDeadline(time.Now()))
	if n, err := other.Read(make([]byte, 1)); err == nil {
		t.Errorf("the second client was answered with %d bytes", n)
	}
}

// That nobody listens yet ends no flow.
func TestUDPNobodyListens(t *testing.T) {
	free, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	addr := free.LocalAddr().(*net.UDPAddr)
	must(t, free.Close())
	s := serve(t, Port{Protocol: "udp"}, func(ctx context.Context) (net.Conn, error) {
		return net.DialUDP("udp", nil, addr)
	}, nil, silence)
	c := dial(t, "udp", s.Addr())
	writes(t, c, "lost")
	eventually(t, "the flow stands", func() bool { return s.count() == 1 })
	late, err := net.ListenUDP("udp", addr)
	must(t, err)
	defer late.Close()
	b := make([]byte, 16)
	eventually(t, "a datagram arrives", func() bool {
		writes(t, c, "heard")
		must(t, late.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		n, err := late.Read(b)
		return err == nil && string(b[:n]) == "heard"
	})
}

// On a port of all addresses, an answer comes from the one that was asked: a
// connected socket takes no other.
func TestUDPAnswersFromWhereItWasAsked(t *testing.T) {
	echoes, stop := echo(t)
	defer stop()
	for _, all := range []string{"0.0.0.0:0", "[::]:0"} {
		s := serve(t, Port{Address: netip.MustParseAddrPort(all), Protocol: "udp"}, echoes("udp"), nil, silence)
		for _, at := range []string{"127.0.0.1", "127.7.7.7"} {
			c := dial(t, "udp", netip.AddrPortFrom(netip.MustParseAddr(at), s.Addr().Port()))
			writes(t, c, at)
			reads(t, c, at)
		}
	}
}
