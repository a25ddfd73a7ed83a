package conformance

import (
	"net/netip"
	"slices"
	"strings"

	"pinfold/runtime"
)

var network = []test{
	{"made and removed, each twice", func(w *world) {
		n := w.network()
		w.must(w.h.EnsureNetwork(w.ctx, n))
		o, err := w.h.Observe(w.ctx)
		w.must(err)
		if s := o.Networks[n.ID]; !s.Exists || s.ID != n.ID || len(s.Missing) > 0 {
			w.Errorf("made: %+v", s)
		}
		for range 2 {
			w.must(w.h.RemoveNetwork(w.ctx, n))
			o, err = w.h.Observe(w.ctx)
			w.must(err)
			if s := o.Networks[n.ID]; s.Exists {
				w.Errorf("removed: %+v", s)
			}
		}
	}},
	{"a network in use stays", func(w *world) {
		n := w.network()
		in := w.instance(w.Commands.Forever)
		attach(&in, n, 0)
		w.create(in)
		w.fails("RemoveNetwork under a created one", w.h.RemoveNetwork(w.ctx, n), nil)
		w.must(w.h.Start(w.ctx, in.ID))
		w.fails("RemoveNetwork under a running one", w.h.RemoveNetwork(w.ctx, n), nil)
		w.must(w.h.EnsureNetwork(w.ctx, n))
		o, err := w.h.Observe(w.ctx)
		w.must(err)
		if s := o.Networks[n.ID]; !s.Exists || len(s.Missing) > 0 {
			w.Errorf("the network: %+v", s)
		}
		if s := o.Instances[in.ID]; !s.Alive || len(s.Missing) > 0 {
			w.Errorf("its member: %+v", s)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
		w.must(w.h.RemoveNetwork(w.ctx, n))
	}},
	{"a range of the host is taken", func(w *world) {
		taken := w.Controls.Occupy(w.T)
		used, err := w.h.PrefixesInUse(w.ctx)
		w.must(err)
		if !slices.Contains(used, taken) {
			w.Errorf("%s of the host is not among what it uses: %v", taken, used)
		}
		for _, bits := range []int{taken.Bits(), taken.Bits() - 1, taken.Bits() + 1} {
			cidr := netip.PrefixFrom(taken.Addr(), bits).Masked()
			bad := runtime.Network{ID: randomHex(8), Address: "network.bad", CIDR: cidr, Gateway: cidr.Addr().Next()}
			w.networks = append(w.networks, bad)
			w.fails("EnsureNetwork with "+cidr.String(), w.h.EnsureNetwork(w.ctx, bad), runtime.ErrTaken)
			o, err := w.h.Observe(w.ctx)
			w.must(err)
			if s := o.Networks[bad.ID]; s.Exists {
				w.Errorf("it is there: %+v", s)
			}
		}
		if used, err = w.h.PrefixesInUse(w.ctx); err != nil || !slices.Contains(used, taken) {
			w.Errorf("the host lost %s: %v, %v", taken, used, err)
		}
	}},
	{"its own range is not one of the host's", func(w *world) {
		n := w.network()
		used, err := w.h.PrefixesInUse(w.ctx)
		w.must(err)
		if slices.Contains(used, n.CIDR) {
			w.Errorf("%s is among what the host uses: %v", n.CIDR, used)
		}
	}},
	{"another lineage's range is taken", func(w *world) {
		n := w.network()
		other := w.openOther()
		twin := n
		twin.ID = randomHex(8)
		w.fails("EnsureNetwork", other.EnsureNetwork(w.ctx, twin), runtime.ErrTaken)
		used, err := other.PrefixesInUse(w.ctx)
		w.must(err)
		if !slices.ContainsFunc(used, func(p netip.Prefix) bool { return p.Overlaps(n.CIDR) && p.Bits() > 0 }) {
			w.Errorf("the other lineage does not see %s in use: %v", n.CIDR, used)
		}
		w.must(other.RemoveNetwork(w.ctx, twin))
		o, err := w.h.Observe(w.ctx)
		w.must(err)
		if s := o.Networks[n.ID]; !s.Exists || len(s.Missing) > 0 {
			w.Errorf("the first one: %+v", s)
		}
	}},
	{"names of others are in its hosts file", func(w *world) {
		n := w.network()
		in := w.instance(w.Commands.Forever)
		in.Hostname = "here"
		attach(&in, n, 0)
		in.Net.Hosts = []runtime.HostEntry{{Address: n.Gateway, Names: []string{"gate", "gate.test.internal"}}}
		w.up(in)
		_, text := w.run(in.ID, w.Commands.Cat("/etc/hosts"))
		names := map[string]string{}
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 1 {
				for _, name := range f[1:] {
					if names[name] == "" {
						names[name] = f[0]
					}
				}
			}
		}
		if names["gate"] != n.Gateway.String() || names["gate.test.internal"] != n.Gateway.String() || names["localhost"] != "127.0.0.1" {
			w.Errorf("the hosts file:\n%s", text)
		}
	}},
	{"its own name is in its hosts file once", func(w *world) {
		n := w.network()
		in := w.instance(w.Commands.Forever)
		in.Hostname = "here"
		attach(&in, n, 0)
		own := in.Net.Address.Addr()
		in.Net.Hosts = []runtime.HostEntry{
			{Address: own, Names: []string{"here"}},
			{Address: own, Names: []string{"here.test.internal", "here"}},
		}
		w.up(in)
		_, text := w.run(in.ID, w.Commands.Cat("/etc/hosts"))
		var lines []string
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) > 0 && (f[0] == own.String() || slices.Contains(f, "here")) {
				lines = append(lines, strings.Join(f, " "))
			}
		}
		if want := own.String() + " here here.test.internal"; len(lines) != 1 || lines[0] != want {
			w.Errorf("the lines %q, want only %q", lines, want)
		}
	}},
	{"without a network its name is a loopback address's", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.Hostname = "here"
		w.up(in)
		_, text := w.run(in.ID, w.Commands.Cat("/etc/hosts"))
		if !slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
			return slices.Equal(strings.Fields(line), []string{"127.0.1.1", "here"})
		}) {
			w.Errorf("the hosts file:\n%s", text)
		}
	}},
	{"without a network there is nothing to lack", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		if s := w.state(in.ID); len(s.Missing) > 0 {
			w.Errorf("it lacks %q", s.Missing)
		}
	}},
	{"ports of sockets are taken, others free", func(w *world) {
		addr, closeSocket := w.Controls.Listen(w.T)
		_, err := w.h.CheckPort(w.ctx, addr.Addr(), addr.Port(), "tcp")
		w.fails("CheckPort", err, runtime.ErrTaken)
		free, err := w.h.CheckPort(w.ctx, addr.Addr(), 0, "tcp")
		w.must(err)
		if free == 0 || free == addr.Port() {
			w.Errorf("the free port is %d", free)
		}
		closeSocket()
		got, err := w.h.CheckPort(w.ctx, addr.Addr(), addr.Port(), "tcp")
		w.must(err)
		if got != addr.Port() {
			w.Errorf("asked for %d, got %d", addr.Port(), got)
		}
		if udp, err := w.h.CheckPort(w.ctx, addr.Addr(), 0, "udp"); err != nil || udp == 0 {
			w.Errorf("a free udp port: %d, %v", udp, err)
		}
	}},
	{"limits and ports change under a running process", func(w *world) {
		n := w.network()
		in := w.instance(w.Commands.Forever)
		attach(&in, n, 0)
		in.Limits = runtime.Limits{Memory: 512 << 20, PIDs: 200}
		p := w.up(in)
		for _, port := range []uint16{80, 81} {
			free, err := w.h.CheckPort(w.ctx, w.loopback, 0, "tcp")
			w.must(err)
			in.Forwards = []runtime.Forward{{Name: "web", Protocol: "tcp", HostAddr: w.loopback, HostPort: free, ContainerPort: port}}
			in.Limits = runtime.Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 100 + int64(port)}
			for range 2 {
				w.must(w.h.Update(w.ctx, in))
			}
			if s := w.state(in.ID); !s.Alive || s.Process != p || len(s.Missing) > 0 {
				w.Errorf("updated: %+v", s)
			}
		}
		in.Forwards, in.Limits = nil, runtime.Limits{}
		w.must(w.h.Update(w.ctx, in))
		if s := w.state(in.ID); !s.Alive || s.Process != p || len(s.Missing) > 0 {
			w.Errorf("updated to none: %+v", s)
		}
	}},
}
