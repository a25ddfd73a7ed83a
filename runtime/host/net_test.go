package host

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pinfold/runtime"
)

// network makes a network in a range that nobody uses.
func (w *world) network() runtime.Network {
	w.t.Helper()
	used, err := w.h.PrefixesInUse(w.ctx)
	w.must(err)
	for range 1000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + rand.IntN(150)), byte(rand.IntN(256)), 0}), 24)
		free := true
		for _, u := range used {
			free = free && (u.Bits() == 0 || !u.Overlaps(p))
		}
		if !free {
			continue
		}
		n := runtime.Network{ID: "0000000a", Address: "network.test", CIDR: p, Gateway: p.Addr().Next()}
		w.must(w.h.EnsureNetwork(w.ctx, n))
		w.t.Cleanup(func() {
			removeAll(w.t, w.h)
			if err := w.h.RemoveNetwork(w.ctx, n); err != nil {
				w.t.Error(err)
			}
		})
		return n
	}
	w.t.Fatal("no range is free for a network")
	return runtime.Network{}
}

// TestInternetInPlaceBringsNameServers: what runs on a network has the name servers
// that the network offers now, seen from inside, and its own where it declares them.
func TestInternetInPlaceBringsNameServers(t *testing.T) {
	w := newWorld(t)
	const none, some = "# this sandbox has no name servers\n", "nameserver 192.0.2.53\n"
	w.h.resolvers = []string{filepath.Join(t.TempDir(), "resolv.conf")}
	w.must(os.WriteFile(w.h.resolvers[0], []byte("nameserver 127.0.0.53\n"+some), 0o644))
	n := w.network()
	attached := func(i int) runtime.Instance {
		in := w.instance(i, "exec sleep 1000")
		in.IDs.Base += uint32(i) << 16
		in.Net = &runtime.Attachment{Network: n, Address: netip.PrefixFrom(netip.AddrFrom4([4]byte{n.CIDR.Addr().As4()[0], n.CIDR.Addr().As4()[1], n.CIDR.Addr().As4()[2], byte(10 + i)}), 24)}
		return in
	}
	plain, own, created, apart := attached(1), attached(2), attached(3), w.instance(4, "exec sleep 1000")
	own.Files = []runtime.File{{Path: "/etc/motd", Content: []byte("first\n"), Mode: 0o644}, {Path: "/etc/resolv.conf", Content: []byte("mine\n"), Mode: 0o644}}
	w.start(plain)
	w.start(own)
	w.create(created)
	w.start(apart)
	holds := func(id, want string) {
		t.Helper()
		if _, got := w.sh(id, "cat /etc/resolv.conf"); got != want {
			t.Errorf("instance %s has %q, want %q", id, got, want)
		}
	}
	holds(plain.ID, none)
	n.Internet = true
	w.must(w.h.EnsureNetwork(w.ctx, n))
	w.must(w.h.Start(w.ctx, created.ID))
	holds(plain.ID, some)
	holds(created.ID, some)
	holds(own.ID, "mine\n")
	holds(apart.ID, none)
	if rec, err := w.h.loadRecord(plain.ID); err != nil || !rec.Instance.Net.Network.Internet {
		t.Errorf("the record: %+v, %v", rec.Instance.Net, err)
	}
	n.Internet = false
	w.must(w.h.EnsureNetwork(w.ctx, n))
	holds(plain.ID, none)
	holds(own.ID, "mine\n")

	// An update tells it too, should a change have been missed.
	n.Internet = true
	plain.Net.Network = n
	w.must(w.h.Update(w.ctx, plain))
	holds(plain.ID, some)
}

// TestLoopbackIsUp: with a network and without, IPv4 and IPv6, and IPv6 nowhere else.
func TestLoopbackIsUp(t *testing.T) {
	w := newWorld(t)
	n := w.network()
	with, without := w.instance(1, "exec sleep 1000"), w.instance(2, "exec sleep 1000")
	with.Net = &runtime.Attachment{Network: n, Address: netip.PrefixFrom(n.Gateway.Next(), 24)}
	without.IDs.Base += 1 << 16
	for _, in := range []runtime.Instance{with, without} {
		w.start(in)
		for script, want := range map[string]string{
			"cat /sys/class/net/lo/flags":             "0x9\n", // up, loopback
			"awk '{print $1, $6}' /proc/net/if_inet6": "00000000000000000000000000000001 lo\n",
		} {
			code, out := w.sh(in.ID, script)
			if code != 0 || out != want {
				t.Errorf("`%s`: %d %q, want %q", script, code, out, want)
			}
		}
		if _, out := w.sh(in.ID, "grep -B1 'host LOCAL' /proc/net/fib_trie"); !strings.Contains(out, "127.0.0.1") {
			t.Errorf("no 127.0.0.1 in %q", out)
		}
	}
}
