// Package network is the host's network as sandboxes see it: a bridge per
// declared network, a veth pair per sandbox, and two nftables tables per
// lineage that decide what may pass.
//
// # What it owns
//
// Links whose name starts with "b" or "p" and the lineage's short id and whose
// alias bears the lineage's mark, and the tables "pinfold-SHORTID" of the inet
// and bridge families. It never changes or removes a link that carries one of
// its names without the mark (runtime.ErrForeign), and no table, chain or rule
// of anybody else.
//
// # What may pass
//
// Everything starts closed and is decided by set membership, never by a rule
// per sandbox:
//
//   - A sandbox sends only from the MAC and IPv4 address it was given, and only
//     IPv4 and ARP. IPv6, VLAN tags and link-local control frames are dropped at
//     its bridge port, whatever it configures inside.
//   - Sandboxes of one network reach each other. Networks do not reach each other.
//   - The host's own services are out of reach, on every address of the host. The
//     gateway answers ICMP echo, nothing else.
//   - With internet = true a sandbox leaves the host, masqueraded. Link-local
//     destinations (169.254.0.0/16, where clouds serve a host's credentials) stay
//     closed. Without it nothing leaves the host.
//   - A published port is reached from the host itself, from sandboxes of the same
//     network, and, unless it is published on a loopback address, from outside the
//     host and from sandboxes of networks with internet = true, as if they came
//     from outside.
//   - The host itself reaches every sandbox.
//
// # What it changes on the host
//
// net.ipv4.ip_forward is switched on when a network has internet = true or a port
// is published beyond loopback, and stays on. route_localnet is on for our bridges
// only. Packets also pass the chains of other programs: where one of them drops
// forwarded packets by policy, as Docker's does, ours cannot overrule it; see
// ForwardingBlockedBy.
package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"pinfold/runtime"
)

// Net drives the network of one lineage in the network namespace of the process
// that opened it. Its methods may be called at the same time; calls for one
// instance must not overlap.
type Net struct {
	shortID string
	route   *route
	rules   *rules

	networks sync.Mutex // one network is made or removed at a time
	// One Attach makes links at a time. The kernel makes one change at a time anyway,
	// and more callers only burn processor time waiting for its lock.
	wiring sync.Mutex
	wrote  atomic.Bool // this Net has changed the host

	grants  grants     // ports CheckPort has handed out
	leaving departures // links that Detach has left to the kernel
}

// Open prepares for the lineage with the given short id, six hex characters. It
// changes nothing on the host.
func Open(shortID string) (*Net, error) {
	if !isHex(shortID, 6) {
		return nil, fmt.Errorf("cannot open the network of lineage %q: the short id must be six lower-case hex characters", shortID)
	}
	r, err := openRoute()
	if err != nil {
		return nil, fmt.Errorf("cannot open the network of lineage %s: %w", shortID, err)
	}
	return &Net{shortID: shortID, route: r, rules: newRules(shortID)}, nil
}

// Close releases the sockets. If this Net changed the host, it first waits for links
// whose namespace is being torn down, and when no network of the lineage is left,
// the nftables tables go too.
func (n *Net) Close() error {
	defer n.route.close()
	var err error
	if n.wrote.Load() {
		n.networks.Lock()
		defer n.networks.Unlock()
		err = errors.Join(n.awaitDoomed(), n.dropUnusedTables())
	}
	return errors.Join(err, n.rules.nf.close())
}

// awaitDoomed returns when the links that Detach has left to the kernel are gone.
func (n *Net) awaitDoomed() error {
	err := poll(context.Background(), teardownBound, func() (bool, error) {
		for _, name := range n.leaving.names() {
			_, found, err := n.route.link(name)
			if found || err != nil {
				return false, err
			}
			n.leaving.remove(name)
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("cannot see the last links of lineage %s go: %w", n.shortID, err)
	}
	return nil
}

// departures is the names of links that are about to go.
type departures struct {
	mu  sync.Mutex
	set map[string]bool
}

func (d *departures) add(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.set == nil {
		d.set = map[string]bool{}
	}
	d.set[name] = true
}

func (d *departures) remove(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.set, name)
}

func (d *departures) names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.set))
}

// dropUnusedTables removes the tables when no link of the lineage is left. The
// caller holds n.networks.
func (n *Net) dropUnusedTables() error {
	links, err := n.route.links()
	if err != nil {
		return fmt.Errorf("cannot look for networks of lineage %s: %w", n.shortID, err)
	}
	for _, l := range links {
		if _, ours := n.networkOf(l); ours {
			return nil
		}
		if _, ours := n.instanceOf(l); ours {
			return nil
		}
	}
	if err := n.rules.drop(); err != nil {
		return fmt.Errorf("cannot remove the nftables tables %s: %w", n.rules.inet.Name, err)
	}
	return nil
}

// Observed is one look at everything of the lineage.
type Observed struct {
	Networks  map[string]runtime.NetworkState // by network ID
	Instances map[string]InstanceNet          // by instance ID
}

// InstanceNet is what the host shows of one instance's connection.
type InstanceNet struct {
	// Link: the veth is there, up and in the bridge of a network of ours.
	Link bool
	// Address: the far end is up. It is brought up only after it has its address,
	// and the host cannot see into the namespace from outside; an address removed
	// from within shows in Inside only.
	Address bool
	// Rules: the anti-spoofing entry and the published ports are exactly those
	// that Attach or UpdateForwards last set.
	Rules bool
}

// PrefixesInUse lists the IPv4 ranges of the host's interfaces and of its routes
// in every table, without default routes and without this lineage's own bridges.
// Other lineages' bridges are included.
func (n *Net) PrefixesInUse(ctx context.Context) ([]netip.Prefix, error) {
	uses, err := n.uses()
	if err != nil {
		return nil, err
	}
	seen := map[netip.Prefix]bool{}
	var out []netip.Prefix
	for _, u := range uses {
		if !u.ours && !seen[u.prefix] {
			seen[u.prefix] = true
			out = append(out, u.prefix)
		}
	}
	return out, nil
}
