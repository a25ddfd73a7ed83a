package network

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"pinfold/runtime"
)

// Observe looks at every link and rule of the lineage. It makes one dump of the
// host's links, one of its addresses, and one of each table's rules and of each
// set, however many sandboxes there are. What is left of networks and instances
// whose link is gone is listed too.
func (n *Net) Observe(ctx context.Context) (Observed, error) {
	if err := ctx.Err(); err != nil {
		return Observed{}, err
	}
	o, err := n.observe()
	if err != nil {
		return Observed{}, fmt.Errorf("cannot look at the network of lineage %s: %w", n.shortID, err)
	}
	return o, nil
}

func (n *Net) observe() (Observed, error) {
	links, err := n.route.links()
	if err != nil {
		return Observed{}, err
	}
	for _, name := range n.leaving.names() {
		if !slices.ContainsFunc(links, func(l link) bool { return l.name == name }) {
			n.leaving.remove(name)
		}
	}
	addrs, err := n.route.addresses()
	if err != nil {
		return Observed{}, err
	}
	intact, err := n.rules.intact()
	if err != nil {
		return Observed{}, err
	}
	s := n.rules.sets
	held := map[*nftables.Set]map[string][]nftables.SetElement{} // by interface name
	for _, set := range append(s.perNetwork(), s.senders) {
		es, err := n.rules.nf.elements(set)
		if err != nil {
			return Observed{}, err
		}
		held[set] = map[string][]nftables.SetElement{}
		for _, e := range es {
			held[set][keyName(e.Key)] = append(held[set][keyName(e.Key)], e)
		}
	}
	pubs, err := n.rules.nf.publications(s)
	if err != nil {
		return Observed{}, err
	}
	published := map[string][]publication{}
	for _, p := range pubs {
		published[p.owner] = append(published[p.owner], p)
	}

	o := Observed{Networks: map[string]runtime.NetworkState{}, Instances: map[string]InstanceNet{}}
	bridges := map[int]string{} // network id by link index
	for _, l := range links {
		id, ours := n.networkOf(l)
		if !ours {
			continue
		}
		bridges[l.index] = id
		state := runtime.NetworkState{ID: id, Exists: true}
		facts, _ := marked(l, n.networkMark(id))
		gateway, internet, known := parseNetworkFacts(facts)
		if !known || !l.up() {
			state.Missing = append(state.Missing, "bridge")
		}
		if !known || !slices.Contains(addrs, address{l.index, gateway}) {
			state.Missing = append(state.Missing, "address")
		}
		state.CIDR = gateway.Masked()
		w := runtime.Network{ID: id, Gateway: gateway.Addr(), Internet: internet}
		if !intact || !known || !holds(held, s.perNetwork(), l.name, s.network(l.name, w)) {
			state.Missing = append(state.Missing, "rules")
		}
		o.Networks[id] = state
	}
	for _, l := range links {
		id, ours := n.instanceOf(l)
		if !ours {
			continue
		}
		if len(held[s.senders][l.name]) == 0 && len(published[id]) == 0 {
			// Detached, or somebody flushed the rules.
			if doomed, err := n.route.doomed(l); doomed || err != nil {
				if err != nil {
					return Observed{}, err
				}
				continue
			}
		}
		facts, _ := marked(l, n.instanceMark(id))
		network, ip, sum, known := parseInstanceFacts(facts)
		at, bridged := bridges[l.master]
		in := InstanceNet{Link: known && l.up() && bridged && at == network}
		in.Address = in.Link && l.carrier()
		if known {
			want := []member{s.sender(l.name, sandboxMAC(ip), ip)}
			in.Rules = holds(held, []*nftables.Set{s.senders}, l.name, want) && digest(published[id]) == sum
		}
		o.Instances[id] = in
	}

	// Leftovers.
	for _, set := range s.perNetwork() {
		for name := range held[set] {
			if id, named := n.networkFromBridge(name); named {
				if _, seen := o.Networks[id]; !seen {
					o.Networks[id] = runtime.NetworkState{ID: id, Missing: []string{"bridge"}}
				}
			}
		}
	}
	for name := range held[s.senders] {
		if id, named := n.instanceFromPort(name); named {
			if _, seen := o.Instances[id]; !seen {
				o.Instances[id] = InstanceNet{Rules: true}
			}
		}
	}
	for id := range published {
		if _, seen := o.Instances[id]; !seen {
			o.Instances[id] = InstanceNet{Rules: true}
		}
	}
	return o, nil
}

// holds tells whether the elements of the given sets that name the interface are
// exactly the wanted ones.
func holds(held map[*nftables.Set]map[string][]nftables.SetElement, in []*nftables.Set, name string, want []member) bool {
	count := 0
	for _, set := range in {
		count += len(held[set][name])
	}
	if count != len(want) {
		return false
	}
	for _, m := range want {
		if !slices.ContainsFunc(held[m.set][name], func(e nftables.SetElement) bool { return bytes.Equal(e.Key, m.Key) }) {
			return false
		}
	}
	return true
}

// parseNetworkFacts is the inverse of networkFacts.
func parseNetworkFacts(facts string) (gateway netip.Prefix, internet, known bool) {
	f := strings.Fields(facts)
	if len(f) != 2 {
		return netip.Prefix{}, false, false
	}
	gateway, err := netip.ParsePrefix(f[0])
	return gateway, f[1] == "internet", err == nil && gateway.Addr().Is4()
}

// parseInstanceFacts is the inverse of place.facts.
func parseInstanceFacts(facts string) (network string, ip netip.Addr, sum string, known bool) {
	f := strings.Fields(facts)
	if len(f) != 3 {
		return "", netip.Addr{}, "", false
	}
	ip, err := netip.ParseAddr(f[1])
	return f[0], ip, f[2], err == nil && ip.Is4()
}
