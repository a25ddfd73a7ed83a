package conformance_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/conformance"
	"pinfold/runtime/host"
	_ "pinfold/runtime/host/boot"
)

// TestHost runs the suite on the kernel under it. It needs root.
func TestHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("the real host needs root; run the tests as root")
	}
	t.Cleanup(func() { firstThreadAtHome(t) })
	conformance.Run(t, func(t *testing.T) conformance.Subject {
		one, other := newMachine(t), newMachine(t)
		return conformance.Subject{
			Open:      one.open,
			OpenOther: other.open,
			Image:     runtime.ImageSource{Kind: "host"},
			NoImage:   runtime.ImageSource{Kind: "dir", Path: filepath.Join(t.TempDir(), "none")},
			HostDir: func(t *testing.T, file, text string) string {
				dir := t.TempDir()
				must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
				return dir
			},
			HostLink: func(t *testing.T, dir, name, target string) {
				must(t, os.Symlink(target, filepath.Join(dir, name)))
			},
			Commands: shell,
			Controls: conformance.Controls{
				KillInit: func(t *testing.T, s runtime.InstanceState) {
					must(t, unix.Kill(s.Process.PID, unix.SIGKILL))
				},
				KillMain: func(t *testing.T, s runtime.InstanceState, sig int) {
					must(t, unix.Kill(onlyChild(t, s.Process.PID), unix.Signal(sig)))
				},
				Listen: func(t *testing.T) (netip.AddrPort, func()) {
					// An address of its own, so that no parallel test takes the port
					// once it is free.
					b := make([]byte, 3)
					rand.Read(b)
					l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 1+b[0]/2, b[1], 1+b[2]/2)})
					must(t, err)
					return l.Addr().(*net.TCPAddr).AddrPort(), func() { l.Close() }
				},
				Connect: func(_ *testing.T, addr netip.AddrPort, protocol string) (net.Conn, error) {
					return net.Dial(protocol, addr.String())
				},
				Occupy:           occupy,
				Break:            one.breakInstance,
				Breakable:        []string{"netns", "rundir", "link", "address", "rules", "limits"},
				BreakNetwork:     one.breakNetwork,
				NetworkBreakable: []string{"bridge", "address", "rules"},
			},
			Leftovers: func(t *testing.T) []string { return append(one.leftovers(t), other.leftovers(t)...) },
		}
	})
}

// machine is the real host as one lineage of its own sees it.
type machine struct{ stateDir, runDir, short string }

func newMachine(t *testing.T) machine {
	dir := t.TempDir()
	return machine{filepath.Join(dir, "state"), filepath.Join(dir, "run"), randomHex(6)}
}

func (m machine) open(t *testing.T) runtime.Host {
	h, err := host.Open(host.Options{StateDir: m.stateDir, RunDir: m.runDir, Lineage: "lineage-" + m.short, ShortID: m.short})
	must(t, err)
	return h
}

var shell = conformance.Commands{
	Forever:  []string{"sleep", "infinity"},
	Stubborn: script(`trap "" TERM; echo ready; exec sleep infinity`),
	OnSignal: func(sig int, path, text string) []string {
		return script(`trap 'printf %s "$2" >"$1"; exit 0' "$0"; echo ready; while :; do sleep 1000 & wait; done`, strconv.Itoa(sig), path, text)
	},
	Exit:      func(code int) []string { return script(`exit "$0"`, strconv.Itoa(code)) },
	KillSelf:  func(sig int) []string { return script(`kill -"$0" $$`, strconv.Itoa(sig)) },
	Print:     func(stdout, stderr string) []string { return script(`echo "$0"; echo "$1" >&2`, stdout, stderr) },
	Write:     func(path, text string) []string { return script(`printf %s "$1" >"$0"`, path, text) },
	Cat:       func(path string) []string { return []string{"cat", path} },
	Env:       func(name string) []string { return []string{"printenv", name} },
	WorkDir:   []string{"pwd"},
	User:      script(`echo "$(id -u):$(id -g)"`),
	Hostname:  []string{"uname", "-n"},
	CopyInput: []string{"cat"},
	Hog:       []string{"tail", "/dev/zero"},
	Busy:      script(`echo ready; while :; do :; done`),
	Hold: func(bytes int) []string {
		return []string{"perl", "-e", `$| = 1; $x = "x" x $ARGV[0]; print "ready\n"; sleep 1 while 1`, strconv.Itoa(bytes)}
	},
	Missing: []string{"/no/such/command"},
	Serve:   func(port uint16) []string { return []string{"python3", "-c", echo, "", strconv.Itoa(int(port))} },
	ServeLoopback: func(port uint16) []string {
		return []string{"python3", "-c", echo, "127.0.0.1", strconv.Itoa(int(port))}
	},
}

// echo answers what it is sent, by tcp and udp.
const echo = `
import socket, sys, threading
at = (sys.argv[1], int(sys.argv[2]))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(at)
t = socket.socket()
t.bind(at)
t.listen()
def datagrams():
    while True:
        data, client = u.recvfrom(65536)
        u.sendto(data, client)
def stream(c):
    while data := c.recv(65536):
        c.sendall(data)
    c.close()
threading.Thread(target=datagrams, daemon=True).start()
print("ready", flush=True)
while True:
    threading.Thread(target=stream, args=(t.accept()[0],), daemon=True).start()
`

// script is a shell script with its arguments, the first of which is $0.
func script(text string, args ...string) []string { return append([]string{"sh", "-c", text}, args...) }

// onlyChild finds the command that PID 1 of a sandbox runs.
func onlyChild(t *testing.T, pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	must(t, err)
	children := strings.Fields(string(text))
	if len(children) != 1 {
		t.Fatalf("PID 1 (%d) of the sandbox has the children %q, want one", pid, children)
	}
	child, err := strconv.Atoi(children[0])
	must(t, err)
	return child
}

// occupy makes a bridge of somebody else in 10.40.0.0/13.
func occupy(t *testing.T) netip.Prefix {
	b := make([]byte, 2)
	rand.Read(b)
	p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 40 + b[0]%8, b[1], 0}), 24)
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "occ" + randomHex(8)}}
	must(t, netlink.LinkAdd(link))
	t.Cleanup(func() { must(t, netlink.LinkDel(link)) })
	must(t, netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().Next().AsSlice(), Mask: net.CIDRMask(24, 32)}}))
	must(t, netlink.LinkSetUp(link))
	return p
}

func (m machine) breakInstance(t *testing.T, in runtime.Instance, s runtime.InstanceState, part string) {
	switch part {
	case "netns":
		must(t, unix.Unmount(filepath.Join(m.runDir, "netns", in.ID), unix.MNT_DETACH))
	case "rundir":
		m.wipeRunDir(t)
	case "link":
		must(t, netlink.LinkDel(m.link(t, "instance "+in.ID)))
	case "address":
		m.inNetns(t, s.Process.PID, func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.AddrDel(link, &netlink.Addr{IPNet: &net.IPNet{
				IP: in.Net.Address.Addr().AsSlice(), Mask: net.CIDRMask(in.Net.Address.Bits(), 32)}})
		})
	case "rules":
		m.flush(t, nftables.TableFamilyBridge, "senders")
	case "limits":
		if m.writeLimit(filepath.Join("/sys/fs/cgroup/memory", "pinfold-"+m.short, in.ID, "memory.limit_in_bytes"), "-1") ||
			m.writeLimit(filepath.Join("/sys/fs/cgroup", "pinfold-"+m.short, in.ID, "memory.max"), "max") {
			return
		}
		t.Fatalf("instance %s has no memory limit to lift", in.ID)
	default:
		t.Fatalf("no way to break %q", part)
	}
}

// wipeRunDir is "rm -rf RUN/*": what something is mounted on stays, as it does for rm.
func (m machine) wipeRunDir(t *testing.T) {
	must(t, filepath.WalkDir(m.runDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, unix.EBUSY) {
			return err
		}
		return nil
	}))
	for _, dir := range []string{"instances", "containers"} {
		must(t, os.RemoveAll(filepath.Join(m.runDir, dir)))
	}
}

// inNetns runs f in the network namespace of a process, on a thread that ends with it.
func (m machine) inNetns(t *testing.T, pid int, f func() error) {
	done := make(chan error)
	go func() {
		goruntime.LockOSThread()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	must(t, <-done)
}

// writeLimit tells whether there was such a file. On cgroup v1 the limit with
// swap is lifted first, because it cannot be the lower one.
func (m machine) writeLimit(path, value string) bool {
	swap := filepath.Join(filepath.Dir(path), "memory.memsw.limit_in_bytes")
	_ = os.WriteFile(swap, []byte(value), 0) // absent without swap accounting
	return os.WriteFile(path, []byte(value), 0) == nil
}

func (m machine) breakNetwork(t *testing.T, n runtime.Network, part string) {
	switch part {
	case "bridge":
		must(t, netlink.LinkDel(m.link(t, "network "+n.ID)))
	case "address":
		bridge := m.link(t, "network "+n.ID)
		addrs, err := netlink.AddrList(bridge, netlink.FAMILY_V4)
		must(t, err)
		for _, a := range addrs {
			must(t, netlink.AddrDel(bridge, &a))
		}
	case "rules":
		m.flush(t, nftables.TableFamilyINet, "gateways")
	default:
		t.Fatalf("no way to break %q", part)
	}
}

// links lists the host's links. A list that changed while it was read is read again.
func links(t *testing.T) []netlink.Link {
	for {
		links, err := netlink.LinkList()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			must(t, err)
			return links
		}
	}
}

// link finds the one link that bears our mark with this ending.
func (m machine) link(t *testing.T, mark string) netlink.Link {
	for _, l := range links(t) {
		if strings.HasPrefix(l.Attrs().Alias+" ", "pinfold "+m.short+" "+mark+" ") {
			return l
		}
	}
	t.Fatalf("no link is marked %q of %s", mark, m.short)
	return nil
}

// flush empties one of our sets.
func (m machine) flush(t *testing.T, family nftables.TableFamily, set string) {
	c, err := nftables.New()
	must(t, err)
	s, err := c.GetSetByName(&nftables.Table{Family: family, Name: "pinfold-" + m.short}, set)
	must(t, err)
	c.FlushSet(s)
	must(t, c.Flush())
}

// leftovers looks for everything a lineage could have left on the host.
func (m machine) leftovers(t *testing.T) []string {
	return slices.Concat(m.leftLinks(t), m.leftTables(t), m.leftMounts(t), m.leftCgroups(t), m.leftFiles(t))
}

// home is where the program's first thread was at the beginning. It stands for
// the program in /proc/self, and can never end.
var home = firstThread()

func firstThread() map[string]string {
	where := map[string]string{}
	for _, ns := range []string{"mnt", "net", "pid", "user"} {
		where[ns], _ = os.Readlink("/proc/self/ns/" + ns)
	}
	where["root"], _ = os.Readlink("/proc/self/root")
	return where
}

// firstThreadAtHome asserts that no goroutine has left it somewhere else: the
// namespaces of a sandbox would then live as long as the program.
func firstThreadAtHome(t *testing.T) {
	for what, now := range firstThread() {
		if now != home[what] {
			t.Errorf("the program's first thread is in %s %q, it was in %q", what, now, home[what])
		}
	}
}

func (m machine) leftLinks(t *testing.T) (left []string) {
	for _, l := range links(t) {
		a := l.Attrs()
		if strings.HasPrefix(a.Alias, "pinfold "+m.short+" ") || strings.Contains(a.Name, m.short) {
			left = append(left, fmt.Sprintf("link %s (%s)", a.Name, a.Alias))
		}
	}
	return left
}

func (m machine) leftTables(t *testing.T) (left []string) {
	c, err := nftables.New()
	must(t, err)
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge, nftables.TableFamilyIPv4} {
		tables, err := c.ListTablesOfFamily(family)
		must(t, err)
		for _, table := range tables {
			if strings.Contains(table.Name, m.short) {
				left = append(left, "nft table "+table.Name)
			}
		}
	}
	return left
}

func (m machine) leftMounts(t *testing.T) (left []string) {
	text, err := os.ReadFile("/proc/1/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, m.stateDir) || strings.Contains(line, m.runDir) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return left
}

// leftCgroups lists our groups, each once however many hierarchies have it, with
// the processes that are in them: a process of a sandbox cannot leave its group.
func (m machine) leftCgroups(t *testing.T) (left []string) {
	groups := map[string][]string{}
	must(t, filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of somebody else, and gone meanwhile
		}
		_, group, ours := strings.Cut(path, "/pinfold-"+m.short)
		if err != nil || !ours || !d.IsDir() {
			return err
		}
		pids, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		groups[group] = append(groups[group], strings.Fields(string(pids))...)
		return err
	}))
	for group, pids := range groups {
		slices.Sort(pids)
		left = append(left, fmt.Sprintf("cgroup pinfold-%s%s with processes %q", m.short, group, slices.Compact(pids)))
	}
	return left
}

func (m machine) leftFiles(t *testing.T) (left []string) {
	for _, dir := range []string{
		filepath.Join(m.stateDir, "instances"), filepath.Join(m.stateDir, "volumes"),
		filepath.Join(m.runDir, "instances"), filepath.Join(m.runDir, "containers"), filepath.Join(m.runDir, "netns"),
	} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		for _, e := range entries {
			left = append(left, "file "+filepath.Join(dir, e.Name()))
		}
	}
	return left
}

func randomHex(n int) string {
	b := make([]byte, n/2)
	rand.Read(b)
	return hex.EncodeToString(b)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
