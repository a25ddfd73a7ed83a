package host

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"pinfold/runtime"
)

// echo answers on a port of every address and says so in the log.
const echo = `python3 -c '
import socket, threading
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("", 7))
def datagrams():
    while True:
        b, a = u.recvfrom(65536); u.sendto(b, a)
threading.Thread(target=datagrams, daemon=True).start()
s = socket.socket(); s.bind(("", 7)); s.listen()
print("ready", flush=True)
def serve(c):
    while True:
        b = c.recv(65536)
        if not b: break
        c.sendall(b)
    c.close()
while True:
    c, _ = s.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
'`

// Dial reaches a sandbox with and without a network, by tcp and udp.
func TestDial(t *testing.T) {
	for _, c := range []struct {
		name      string
		networked bool
		ids       runtime.IDRange
	}{
		{"network", true, runtime.IDRange{Base: 1 << 20, Size: 65536}},
		{"loopback", false, runtime.IDRange{Base: 1 << 20, Size: 65536}},
		{"loopback without user namespace", false, runtime.IDRange{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			in := w.instance(1, "exec "+echo)
			in.IDs = c.ids
			if c.networked {
				b := make([]byte, 2)
				rand.Read(b)
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 60 + b[0]%8, b[1], 0}), 24)
				n := runtime.Network{ID: "deadbeef", Address: "network.test", CIDR: p, Gateway: p.Addr().Next()}
				w.must(w.h.EnsureNetwork(w.ctx, n))
				t.Cleanup(func() {
					removeAll(t, w.h)
					if err := w.h.RemoveNetwork(context.Background(), n); err != nil {
						t.Error(err)
					}
				})
				in.Net = &runtime.Attachment{Network: n, Address: netip.PrefixFrom(n.Gateway.Next(), 24)}
			}
			home, err := os.Readlink("/proc/self/ns/net")
			w.must(err)

			w.create(in)
			if _, err := w.h.Dial(w.ctx, in.ID, "tcp", 7); !errors.Is(err, runtime.ErrNotRunning) {
				t.Errorf("of a created one: %v", err)
			}
			w.must(w.h.Start(w.ctx, in.ID))
			w.waitLog(in.ID, "ready")
			for _, protocol := range []string{"tcp", "udp"} {
				dialled, cancel := context.WithCancel(w.ctx)
				conn, err := w.h.Dial(dialled, in.ID, protocol, 7)
				cancel() // the connection outlives it
				w.must(err)
				w.must(conn.SetDeadline(time.Now().Add(30 * time.Second)))
				_, err = conn.Write([]byte("hello"))
				w.must(err)
				b := make([]byte, 16)
				n, err := conn.Read(b)
				if err != nil || string(b[:n]) != "hello" {
					t.Errorf("%s: %q, %v", protocol, b[:n], err)
				}
				if protocol == "tcp" {
					w.must(conn.(*net.TCPConn).CloseWrite())
					if rest, err := io.ReadAll(conn); err != nil || len(rest) > 0 {
						t.Errorf("after the end: %q, %v", rest, err)
					}
				}
				w.must(conn.Close())
			}
			inside, err := w.h.DialInside(w.ctx, in.ID, "tcp", netip.MustParseAddrPort("127.0.0.1:7"))
			w.must(err)
			w.must(inside.Close())
			// Its own IPv6 loopback, where nobody listens: refused by itself, not unreachable.
			if _, err := w.h.DialInside(w.ctx, in.ID, "tcp", netip.MustParseAddrPort("[::1]:7")); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("by IPv6: %v", err)
			}
			if _, err := w.h.Dial(w.ctx, in.ID, "tcp", 8); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a port on which nobody listens: %v", err)
			}
			for protocol, port := range map[string]uint16{"sctp": 7, "tcp": 0} {
				if _, err := w.h.Dial(w.ctx, in.ID, protocol, port); err == nil {
					t.Errorf("%s port %d can be dialled", protocol, port)
				}
			}
			done, cancel := context.WithCancel(w.ctx)
			cancel()
			if _, err := w.h.Dial(done, in.ID, "tcp", 7); !errors.Is(err, context.Canceled) {
				t.Errorf("with a context that has ended: %v", err)
			}
			w.must(w.h.Pause(w.ctx, in.ID))
			if _, err := w.h.Dial(w.ctx, in.ID, "tcp", 7); !errors.Is(err, runtime.ErrPaused) {
				t.Errorf("of a frozen one: %v", err)
			}
			_, err = w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
			w.must(err)
			if _, err := w.h.Dial(w.ctx, in.ID, "tcp", 7); !errors.Is(err, runtime.ErrNotRunning) {
				t.Errorf("of a stopped one: %v", err)
			}
			if _, err := w.h.Dial(w.ctx, "ffffffffffff", "tcp", 7); !errors.Is(err, runtime.ErrNotFound) {
				t.Errorf("of an unknown one: %v", err)
			}
			if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != home {
				t.Errorf("this process is in %s now, it was in %s: %v", now, home, err)
			}
		})
	}
}
