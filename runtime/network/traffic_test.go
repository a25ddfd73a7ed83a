package network

import (
	"net/netip"
	"testing"
)

func TestSameNetworkTalksOthersDoNot(t *testing.T) {
	h := newHost(t)
	one, two := h.network(1, false), h.network(2, true)
	a1, a2, b1 := h.sandbox(one, 11), h.sandbox(one, 12), h.sandbox(two, 11)

	for _, proto := range []string{"tcp4", "udp4"} {
		a, b := serve(t, a2, proto, at(a2.addr, 7000)), serve(t, b1, proto, at(b1.addr, 7000))
		if from := reaches(t, a1, proto, a.addr); from != a1.addr.String() {
			t.Errorf("%s: neighbour saw %s, want %s", proto, from, a1.addr)
		}
		reaches(t, nil, proto, a.addr)
		reaches(t, nil, proto, b.addr)
		cannotReach(t, b1, proto, a.addr, a)
		cannotReach(t, a1, proto, b.addr, b)
		cannotReach(t, outer, proto, a.addr, a)
	}
	for _, p := range []struct {
		from *box
		to   netip.Addr
		want bool
	}{
		{a1, a2.addr, true}, {a1, one.Gateway, true}, {b1, two.Gateway, true},
		{a1, b1.addr, false}, {b1, a1.addr, false},
		{a1, two.Gateway, false}, {b1, one.Gateway, false}, {b1, hostAddr, false},
	} {
		wait := denied
		if p.want {
			wait = patience
		}
		if err := ping(p.from, p.to, wait); (err == nil) != p.want {
			t.Errorf("ping %s from %s: %v, want success %v", p.to, p.from.addr, err, p.want)
		}
	}
}
