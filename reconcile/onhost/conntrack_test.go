package onhost

import (
	"encoding/binary"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/reconcile/plan"
)

// TestConnectionTableFull: where the kernel can track no further connection, new
// connections to sandboxes fail, and nothing else does: sandboxes are made, entered,
// paused, stopped and started. When there is room again they are reached again. The
// agent has a network namespace of its own, so that only its table is full.
func TestConnectionTableFull(t *testing.T) {
	w := newWorld(t, logged, func(w *world) { w.attr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET} })
	w.inAgentsNet(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	const on = "network { name = network.n }\nport \"p\" { container = 7000 }\n"
	conf := "network \"n\" {}\n" + box("plain", upper, on) + box("relayed", upper, on+"lifetime {\n idle_timeout = \"1h\"\n}\n")
	w.apply(conf)
	reached := func(name string, bound time.Duration) (err error) {
		port := w.view(name).Ports["p"].Host
		w.inAgentsNet(func() error { err = hello(port, bound); return nil })
		return err
	}
	for _, name := range []string{"plain", "relayed"} {
		var err error
		if !within(30*time.Second, func() bool { err = reached(name, 10*time.Second); return err == nil }) {
			t.Fatalf("%s: %v", name, err)
		}
	}

	for _, name := range []string{"plain", "relayed"} {
		// Real ones of before end meanwhile and make room, which is filled, too.
		if !within(time.Minute, func() bool { w.inAgentsNet(fillConnections); return reached(name, 2*time.Second) != nil }) {
			t.Errorf("%s is reached: the table is not full", name)
		}
	}
	w.apply(conf + box("new", upper, on))
	for _, verb := range []string{"pause", "resume", "stop", "start"} {
		w.act(verb, "plain")
	}
	w.says("new", "echo in", "in\n")
	w.phase("plain", plan.Running)
	w.nothingToDo()

	w.inAgentsNet(forgetConnections)
	for _, name := range []string{"plain", "relayed", "new"} {
		var err error
		if !within(30*time.Second, func() bool { err = reached(name, 10*time.Second); return err == nil }) {
			t.Errorf("with room again, %s: %v", name, err)
		}
	}
	w.apply("") // what is in the agent's network namespace nobody else can remove
}

// inAgentsNet runs do in the agent's network namespace.
func (w *world) inAgentsNet(do func() error) {
	w.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", w.agent.Process.Pid))
	w.must(err)
	defer ns.Close()
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	w.must(<-done)
}

// fillConnections puts made-up connections into this network namespace's table until
// it is full.
func fillConnections() error {
	most, err := connections("max")
	if err != nil {
		return err
	}
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	const batch = 200
	for n := 0; n < 2*most; {
		var b []byte
		for range batch {
			b = append(b, connection(uint32(n))...)
			n++
		}
		if err := unix.Sendto(s, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		if now, err := connections("count"); err != nil || now >= most {
			return err
		}
	}
	now, err := connections("count")
	return fmt.Errorf("%d of %d connections: %v", now, most, err)
}

// forgetConnections empties the table.
func forgetConnections() error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Sendto(s, message(deleteConnection, 0, nil), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func connections(what string) (int, error) {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + what)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// linux/netfilter/nfnetlink_conntrack.h and nf_conntrack_common.h
const (
	newConnection, deleteConnection = 0, 2
	ctnetlink                       = 1
	tupleOrig, tupleReply           = 1, 2
	ctStatus, ctTimeout             = 3, 7
	nested                          = 1 << 15
	// Confirmed, as each in the table is; seen a reply; and assured: not dropped for another.
	assured = 1<<3 | 1<<1 | 1<<2
)

// connection is the message that makes the n-th one.
func connection(n uint32) []byte {
	from, to := binary.BigEndian.AppendUint32(nil, 0xc6120000|n>>14), []byte{198, 19, 0, 1} // RFC 2544: for tests
	one, other := binary.BigEndian.AppendUint16(nil, uint16(1024+n&0x3fff)), []byte{0, 9}
	tuple := func(src, dst, sport, dport []byte) []byte {
		return append(attribute(1|nested, append(attribute(1, src), attribute(2, dst)...)),
			attribute(2|nested, append(append(attribute(1, []byte{unix.IPPROTO_UDP}), attribute(2, sport)...), attribute(3, dport)...))...)
	}
	body := attribute(tupleOrig|nested, tuple(from, to, one, other))
	body = append(body, attribute(tupleReply|nested, tuple(to, from, other, one))...)
	body = append(body, attribute(ctStatus, binary.BigEndian.AppendUint32(nil, assured))...)
	body = append(body, attribute(ctTimeout, binary.BigEndian.AppendUint32(nil, 600))...)
	return message(newConnection, unix.NLM_F_CREATE, body)
}

// message is a netlink one: header, struct nfgenmsg, attributes.
func message(kind, flags uint16, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+4+len(body)))
	b = binary.NativeEndian.AppendUint16(b, ctnetlink<<8|kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = append(b, make([]byte, 8)...)
	return append(append(b, unix.AF_INET, 0, 0, 0), body...)
}

func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}
