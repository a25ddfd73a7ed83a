package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// The tests run on the real kernel, in a network namespace of their own that
// plays the host: TestMain starts this binary again in a new one. Sandboxes and
// the world outside are further namespaces. Nothing of the real host is touched.

const privateHost = "PINFOLD_TEST_PRIVATE_HOST"

// The private host's link to the outside.
const outLink = "out0"

var (
	hostAddr  = netip.MustParseAddr("192.0.2.1")
	outerAddr = netip.MustParseAddr("192.0.2.2")
	outer     *box
)

func TestMain(m *testing.M) {
	if os.Getenv(privateHost) == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), privateHost+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		goruntime.LockOSThread() // Pdeathsig is the thread's
		err := cmd.Run()
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit):
			os.Exit(exit.ExitCode())
		case err != nil:
			fmt.Fprintln(os.Stderr, "cannot start the tests in a network namespace of their own (are you root?):", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if err := setUpHost(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot set up the private host:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// setUpHost brings lo up and connects the world outside.
func setUpHost() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	if outer, err = newNamespace(); err != nil {
		return err
	}
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: outLink, TxQLen: -1})
	veth.PeerName = "eth0"
	veth.PeerNamespace = netlink.NsFd(outer.ns.Fd())
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := give(outLink, hostAddr); err != nil {
		return err
	}
	return outer.run(func() error {
		if lo, err := netlink.LinkByName("lo"); err != nil {
			return err
		} else if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		if err := give("eth0", outerAddr); err != nil {
			return err
		}
		// As a neighbour would that tries to reach sandboxes through the host.
		return netlink.RouteAdd(&netlink.Route{Gw: hostAddr.AsSlice()})
	})
}

// give gives a link of the current namespace an address of a /24 and brings it up.
func give(link string, addr netip.Addr) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	err = netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// box is a namespace: a sandbox, or the world outside.
type box struct {
	ns   *os.File
	id   string
	addr netip.Addr
	net  runtime.Attachment
}

func newNamespace() (*box, error) {
	type made struct {
		ns  *os.File
		err error
	}
	done := make(chan made)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- made{nil, err}
			return
		}
		ns, err := os.Open("/proc/thread-self/ns/net")
		done <- made{ns, err}
	}()
	m := <-done
	return &box{ns: m.ns}, m.err
}

func (b *box) path() string { return fmt.Sprintf("/proc/self/fd/%d", b.ns.Fd()) }

func (b *box) run(fn func() error) error {
	return within(b.path(), func(*os.File) error { return fn() })
}

// host is the private host opened for a lineage of the test's own.
type host struct {
	*Net
	t     testing.TB
	boxes []*box
}

var lineages atomic.Uint32

func newHost(t testing.TB) *host {
	t.Helper()
	n, err := Open(fmt.Sprintf("%06x", 0xa00000+lineages.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{Net: n, t: t}
	t.Cleanup(func() {
		h.releaseAll()
		o, err := h.Observe(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for id := range o.Networks {
			if err := h.RemoveNetwork(context.Background(), runtime.Network{ID: id}); err != nil {
				t.Error(err)
			}
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		proveClean(t, h.shortID)
	})
	return h
}

// releaseAll ends the sandboxes and detaches them, with nothing known but their ids.
func (h *host) releaseAll() {
	h.t.Helper()
	for _, b := range h.boxes {
		b.ns.Close()
		if err := h.Detach(context.Background(), b.id, nil, nil); err != nil {
			h.t.Error(err)
		}
	}
	h.boxes = nil
}

// waitFor polls a condition.
func waitFor(t testing.TB, what string, ready func() bool) {
	t.Helper()
	err := poll(context.Background(), patience, func() (bool, error) { return ready(), nil })
	if err != nil {
		t.Fatalf("waiting for %s: %v", what, err)
	}
}

// proveClean fails the test when anything of the lineage is left on the private host.
func proveClean(t testing.TB, shortID string) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.Contains(l.Attrs().Name, shortID) {
			t.Errorf("interface %s is left", l.Attrs().Name)
		}
	}
	if out := nft(t, "list", "tables"); strings.Contains(out, shortID) {
		t.Errorf("nftables tables are left: %s", out)
	}
}

// network makes 10.N.0.0/24 with the gateway .1.
func (h *host) network(octet byte, internet bool) runtime.Network {
	h.t.Helper()
	w := testNetwork(octet, internet)
	if err := h.EnsureNetwork(context.Background(), w); err != nil {
		h.t.Fatal(err)
	}
	return w
}

func testNetwork(octet byte, internet bool) runtime.Network {
	return runtime.Network{
		ID:       fmt.Sprintf("net%05d", octet),
		Address:  fmt.Sprintf("network.n%d", octet),
		CIDR:     netip.PrefixFrom(netip.AddrFrom4([4]byte{10, octet, 0, 0}), 24),
		Gateway:  netip.AddrFrom4([4]byte{10, octet, 0, 1}),
		Internet: internet,
	}
}

// newBox prepares a sandbox with address .N of w, not connected yet.
func (h *host) newBox(w runtime.Network, last byte) *box {
	h.t.Helper()
	b, err := newNamespace()
	if err != nil {
		h.t.Fatal(err)
	}
	ip := w.Gateway.As4()
	ip[3] = last
	b.addr = netip.AddrFrom4(ip)
	b.id = fmt.Sprintf("%04x%08x", lineages.Load(), binary.BigEndian.Uint32(ip[:]))
	b.net = runtime.Attachment{Network: w, Address: netip.PrefixFrom(b.addr, w.CIDR.Bits())}
	h.boxes = append(h.boxes, b)
	return b
}

// sandbox is a connected one.
func (h *host) sandbox(w runtime.Network, last byte, fs ...runtime.Forward) *box {
	h.t.Helper()
	b := h.newBox(w, last)
	h.attach(b, fs...)
	return b
}

func (h *host) attach(b *box, fs ...runtime.Forward) {
	h.t.Helper()
	if err := h.Attach(context.Background(), b.id, b.path(), b.net, fs); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) observe() Observed {
	h.t.Helper()
	o, err := h.Observe(context.Background())
	if err != nil {
		h.t.Fatal(err)
	}
	return o
}

// nft runs the nft command on the private host.
func nft(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// eachBridgeNetfilter runs a test with bridged packets passing the inet hooks, as
// Docker and Kubernetes set it, and without.
func eachBridgeNetfilter(t *testing.T, test func(t *testing.T)) {
	const knob = "bridge/bridge-nf-call-iptables"
	before, err := os.ReadFile("/proc/sys/net/" + knob)
	if errors.Is(err, os.ErrNotExist) { // no br_netfilter
		test(t)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { setSysctl(knob, strings.TrimSpace(string(before))) })
	for _, value := range []string{"0", "1"} {
		t.Run("bridge-nf-call-iptables="+value, func(t *testing.T) {
			if err := setSysctl(knob, value); err != nil {
				t.Fatal(err)
			}
			test(t)
		})
	}
}

// on runs fn in b, or on the host when b is nil.
func on(b *box, fn func() error) error {
	if b == nil {
		return fn()
	}
	return b.run(fn)
}

// serve listens on address in b and answers each line's first byte with the address it
// came from. It counts what reaches it.
type server struct {
	addr string
	seen atomic.Int64
}

func serve(t testing.TB, b *box, network, addr string) *server {
	t.Helper()
	s := &server{}
	err := on(b, func() error {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, addr)
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			s.addr = c.LocalAddr().String()
			go func() {
				buf := make([]byte, 100)
				for {
					n, from, err := c.ReadFrom(buf)
					if err != nil {
						return
					}
					s.seen.Add(1)
					c.WriteTo([]byte(from.String()+" "+string(buf[:n])), from)
				}
			}()
			return nil
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		s.addr = l.Addr().String()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				s.seen.Add(1)
				go func() {
					defer c.Close()
					buf := make([]byte, 100)
					for {
						n, err := c.Read(buf)
						if err != nil {
							return
						}
						io.WriteString(c, c.RemoteAddr().String()+" "+string(buf[:n]))
					}
				}()
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatalf("cannot listen on %s: %v", addr, err)
	}
	return s
}

const (
	// patience bounds what should succeed, denied what should not.
	patience = 5 * time.Second
	denied   = time.Second
)

// ask sends a word from b and returns who the server thinks sent it.
func ask(b *box, network, addr string, wait time.Duration) (from string, err error) {
	err = on(b, func() error {
		c, err := net.DialTimeout(network, addr, wait)
		if err != nil {
			return err
		}
		defer c.Close()
		from, err = askOver(c, wait)
		return err
	})
	return from, err
}

// askOver asks over a connection. A datagram may be lost, the first one above all,
// while a neighbour is looked for: it is sent again until the wait is over.
func askOver(c net.Conn, wait time.Duration) (string, error) {
	end := time.Now().Add(wait)
	buf := make([]byte, 100)
	var n int
	for {
		try := end
		if _, stream := c.(*net.TCPConn); !stream {
			if soon := time.Now().Add(500 * time.Millisecond); soon.Before(end) {
				try = soon
			}
		}
		c.SetDeadline(try)
		_, err := io.WriteString(c, "hello")
		if err == nil {
			n, err = c.Read(buf)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !try.Before(end) {
			return "", err
		}
	}
	from, word, _ := strings.Cut(string(buf[:n]), " ")
	if word != "hello" {
		return "", fmt.Errorf("answer %q", buf[:n])
	}
	host, _, err := net.SplitHostPort(from)
	return host, err
}

func reaches(t testing.TB, b *box, network, addr string) string {
	t.Helper()
	from, err := ask(b, network, addr, patience)
	if err != nil {
		t.Errorf("%s %s should be reached: %v", network, addr, err)
	}
	return from
}

// cannotReach asks and proves, with a server that is known to answer, that nothing
// arrived.
func cannotReach(t testing.TB, b *box, network, addr string, s *server) {
	t.Helper()
	before := s.seen.Load()
	if from, err := ask(b, network, addr, denied); err == nil {
		t.Errorf("%s %s should not be reached; it saw %s", network, addr, from)
	}
	if after := s.seen.Load(); after != before {
		t.Errorf("%s %s should not be reached, but the server saw %d", network, addr, after-before)
	}
}

// ping sends one ICMP echo from b.
func ping(b *box, to netip.Addr, wait time.Duration) error {
	return on(b, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		tv := unix.NsecToTimeval(int64(wait))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		echo := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1}
		binary.BigEndian.PutUint16(echo[2:], checksum(echo))
		if err := unix.Sendto(fd, echo, 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
			return err
		}
		buf := make([]byte, 1500)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				return err
			}
			if n >= 28 && buf[20] == 0 && buf[24] == 0x12 && netip.AddrFrom4([4]byte(buf[12:16])) == to {
				return nil
			}
		}
	})
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// frame is an Ethernet frame with a UDP datagram.
func frame(dstMAC, srcMAC net.HardwareAddr, src, dst netip.AddrPort, payload string) []byte {
	udp := make([]byte, 8+len(payload))
	binary.BigEndian.PutUint16(udp[0:], src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[8:], payload) // no checksum: optional over IPv4 (RFC 768)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(udp)))
	copy(ip[12:], src.Addr().AsSlice())
	copy(ip[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return ethernet(dstMAC, srcMAC, unix.ETH_P_IP, append(ip, udp...))
}

func ethernet(dst, src net.HardwareAddr, kind uint16, body []byte) []byte {
	f := append(append(net.HardwareAddr{}, dst...), src...)
	f = binary.BigEndian.AppendUint16(f, kind)
	return append(f, body...)
}

// send puts frames on eth0 of b, in order.
func (b *box) send(t testing.TB, frames ...[]byte) {
	t.Helper()
	err := b.run(func() error {
		l, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: l.Index, Halen: 6}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func macOf(t testing.TB, link string) net.HardwareAddr {
	t.Helper()
	l, err := net.InterfaceByName(link)
	if err != nil {
		t.Fatal(err)
	}
	return l.HardwareAddr
}

func forward(protocol, host string, hostPort, port uint16) runtime.Forward {
	return runtime.Forward{Name: "t", Protocol: protocol, HostAddr: netip.MustParseAddr(host), HostPort: hostPort, ContainerPort: port}
}

func at(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
