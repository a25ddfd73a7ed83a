package reconcile

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// Id ranges are cut from this part of the 32-bit id space: above what
// distributions give to users and their subordinate ids, below 2^31, which
// some file systems and tools treat as negative.
const (
	idRangeSize  = 65536
	idRangeFirst = 1 << 24 // 16777216
	idRangeCount = (1<<31 - idRangeFirst) / idRangeSize
)

// allocator remembers what is reserved, so that a reservation costs the same
// with ten thousand records as with one. What a record holds is reserved until
// the record is gone.
type allocator struct {
	mu      sync.Mutex
	lineage string
	ids     map[uint32]string                // slot → sandbox address
	addrs   map[string]map[netip.Addr]string // network address → IP → sandbox address
	next    map[string]netip.Addr            // network address → where to look first
	ports   map[portKey]string               // → sandbox address
	held    map[string]holding               // sandbox address → all of the above
	strange strange
	left    strange // what was given up since this process began: a look may be older
}

// strange is what instances have that live, or were released, and are on no record, by
// the last look: given away twice it would be shared with them.
type strange struct {
	slots map[uint32]bool
	addrs map[netip.Addr]bool
	nets  []netip.Prefix
}

// leave keeps what a sandbox has from being given away once its record is gone, and
// leaveNetwork a network's range.
func (a *allocator) leave(rec *plan.Sandbox) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if rec.IDs.Size > 0 {
		set(&a.left.slots, (rec.IDs.Base-idRangeFirst)/idRangeSize, true)
	}
	if rec.Net != nil {
		set(&a.left.addrs, rec.Net.Address, true)
	}
}

func (a *allocator) leaveNetwork(n *plan.Network) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left.nets = append(a.left.nets, n.CIDR)
}

// avoid takes note of the strangers among what was seen.
func (a *allocator) avoid(o runtime.Observation, known, networks map[string]bool) {
	s := strange{slots: map[uint32]bool{}, addrs: map[netip.Addr]bool{}}
	for id, n := range o.Networks {
		if !networks[id] && n.CIDR.IsValid() {
			s.nets = append(s.nets, n.CIDR)
		}
	}
	for id, in := range o.Instances {
		if known[id] || !in.Alive && !in.Released {
			continue
		}
		if in.IDs.Size > 0 {
			s.slots[(in.IDs.Base-idRangeFirst)/idRangeSize] = true
		}
		if in.Address.IsValid() {
			s.addrs[in.Address] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.strange = s
}

type portKey struct {
	addr     string
	port     int
	protocol string
}

type holding struct {
	slots []uint32
	nets  []plan.Net
	ports []portKey
}

func newAllocator(r *plan.Records) *allocator {
	a := &allocator{
		lineage: r.Lineage,
		ids:     map[uint32]string{}, addrs: map[string]map[netip.Addr]string{},
		next: map[string]netip.Addr{}, ports: map[portKey]string{}, held: map[string]holding{},
	}
	for addr, s := range r.Sandboxes {
		a.hold(addr, s)
	}
	return a
}

// took follows a commit: what left the records is free again.
func (a *allocator) took(w *write) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for addr, s := range w.sandboxes {
		a.drop(addr)
		if s != nil {
			a.hold(addr, s)
		}
	}
}

func (a *allocator) hold(addr string, s *plan.Sandbox) {
	var h holding
	a.take(&h, addr, s.IDs, s.Net, s.Ports)
	for _, d := range s.Deposed {
		a.take(&h, addr, d.IDs, d.Net, d.Ports)
	}
	a.held[addr] = h
}

// take puts one instance's part into what an address holds.
func (a *allocator) take(h *holding, addr string, ids plan.IDRange, net *plan.Net, ports map[string]plan.Port) {
	if ids.Size > 0 {
		slot := (ids.Base - idRangeFirst) / idRangeSize
		a.ids[slot] = addr
		h.slots = append(h.slots, slot)
	}
	if net != nil {
		m := a.addrs[net.Network]
		if m == nil {
			m = map[netip.Addr]string{}
			a.addrs[net.Network] = m
		}
		m[net.Address] = addr
		h.nets = append(h.nets, *net)
	}
	for _, p := range ports {
		k := portKey{p.Address, p.Host, p.Protocol}
		a.ports[k] = addr
		h.ports = append(h.ports, k)
	}
}

func (a *allocator) drop(addr string) {
	h, ok := a.held[addr]
	if !ok {
		return
	}
	for _, slot := range h.slots {
		if a.ids[slot] == addr {
			delete(a.ids, slot)
		}
	}
	for _, n := range h.nets {
		if a.addrs[n.Network][n.Address] == addr {
			delete(a.addrs[n.Network], n.Address)
			delete(a.next, n.Network)
		}
	}
	for _, k := range h.ports {
		if a.ports[k] == addr {
			delete(a.ports, k)
		}
	}
	delete(a.held, addr)
}

// clash names the sandbox that has something of what rec has, "" when none has.
func (a *allocator) clash(rec *plan.Sandbox) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	why := a.taken(rec.IDs, rec.Net, rec.Ports)
	for _, d := range rec.Deposed {
		why = cmp.Or(why, a.taken(d.IDs, d.Net, d.Ports))
	}
	return why
}

func (a *allocator) taken(ids plan.IDRange, net *plan.Net, ports map[string]plan.Port) string {
	if ids.Size > 0 {
		if owner, used := a.ids[(ids.Base-idRangeFirst)/idRangeSize]; used {
			return owner + " has its id range"
		}
	}
	if net != nil {
		if owner, used := a.addrs[net.Network][net.Address]; used {
			return owner + " has its address " + net.Address.String()
		}
	}
	for name, p := range ports {
		if owner, used := a.ports[portKey{p.Address, p.Host, p.Protocol}]; used {
			return owner + " has the host port of its port " + name
		}
	}
	return ""
}

// reserve fills in what rec still lacks of id range, address and host ports,
// and gives back what its spec no longer asks for. The reservation becomes
// durable with rec's next commit; release takes it back when that never comes.
func (e *Engine) reserve(ctx context.Context, rec *plan.Sandbox) error {
	var net *plan.Network
	if rec.Spec.Network != nil {
		n, ok := e.network(rec.Spec.Network.Name)
		if !ok {
			return fmt.Errorf("cannot place %s: %s does not exist yet", rec.Address, rec.Spec.Network.Name)
		}
		net = n
	}
	e.alloc.mu.Lock()
	defer e.alloc.mu.Unlock()
	if err := e.alloc.fill(ctx, e.host, rec, net); err != nil {
		return err
	}
	e.alloc.drop(rec.Address)
	e.alloc.hold(rec.Address, rec)
	return nil
}

// release takes back what reserve gave and no commit made durable.
func (e *Engine) release(address string) {
	rec, ok := e.sandbox(address)
	e.alloc.mu.Lock()
	defer e.alloc.mu.Unlock()
	e.alloc.drop(address)
	if ok {
		e.alloc.hold(address, rec)
	}
}

func (a *allocator) fill(ctx context.Context, host runtime.Host, rec *plan.Sandbox, net *plan.Network) error {
	switch {
	case !rec.Spec.Security.UserNamespace:
		rec.IDs = plan.IDRange{}
	case rec.IDs.Size == 0:
		slot, err := a.freeSlot(rec.UID)
		if err != nil {
			return err
		}
		rec.IDs = plan.IDRange{Base: idRangeFirst + slot*idRangeSize, Size: idRangeSize}
	}
	switch {
	case net == nil:
		rec.Net = nil
	case rec.Net == nil || rec.Net.Network != net.Address || !usable(net, rec.Net.Address):
		ip, err := a.freeAddress(net)
		if err != nil {
			return err
		}
		rec.Net = &plan.Net{Network: net.Address, Address: ip}
	}
	return a.fillPorts(ctx, host, rec)
}

// freeSlot starts at a place given by lineage and uid, so that several state
// dirs on one host rarely share a range.
func (a *allocator) freeSlot(uid string) (uint32, error) {
	h := fnv.New32a()
	h.Write([]byte(a.lineage + uid))
	first := h.Sum32() % idRangeCount
	for i := range uint32(idRangeCount) {
		slot := (first + i) % idRangeCount
		if _, used := a.ids[slot]; !used && !a.strange.slots[slot] && !a.left.slots[slot] {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("no free id range: all %d are taken by recorded sandboxes; destroy some, or set security.user_namespace = false", idRangeCount)
}

func (a *allocator) freeAddress(n *plan.Network) (netip.Addr, error) {
	used := a.addrs[n.Address]
	first := n.CIDR.Masked().Addr().Next()
	from, ok := a.next[n.Address]
	if !ok || !n.CIDR.Contains(from) {
		from = first
	}
	for ip, wrapped := from, false; ; {
		if !n.CIDR.Contains(ip) || !n.CIDR.Contains(ip.Next()) { // the last one is the broadcast address
			if wrapped {
				return netip.Addr{}, fmt.Errorf("%s has no free address left in %s; give it a wider cidr (that replaces its sandboxes) or use a second network", n.Address, n.CIDR)
			}
			ip, wrapped = first, true
			continue
		}
		if _, taken := used[ip]; !taken && ip != n.Gateway && !a.strange.addrs[ip] && !a.left.addrs[ip] {
			a.next[n.Address] = ip.Next()
			return ip, nil
		}
		ip = ip.Next()
	}
}

// usable tells whether a sandbox on the network can have the address: in its
// range, and none of network address, broadcast address and gateway.
func usable(n *plan.Network, ip netip.Addr) bool {
	return n.CIDR.Contains(ip) && n.CIDR.Contains(ip.Next()) && ip != n.CIDR.Masked().Addr() && ip != n.Gateway
}

func (a *allocator) fillPorts(ctx context.Context, host runtime.Host, rec *plan.Sandbox) error {
	ports := map[string]plan.Port{}
	for _, name := range sortedKeys(rec.Spec.Ports) {
		want := rec.Spec.Ports[name]
		addr, protocol := portDefaults(want)
		old, had := rec.Ports[name]
		if had && old.Address == addr && old.Protocol == protocol && (want.Host == 0 || want.Host == old.Host) {
			old.Container = want.Container
			ports[name] = old
			continue
		}
		ip, err := netip.ParseAddr(addr)
		if err != nil {
			return fmt.Errorf("port %q of %s: %q is not an IP address", name, rec.Address, addr)
		}
		port := want.Host
		for try := 0; ; try++ {
			if port != 0 {
				if owner := a.portOwner(addr, port, protocol); owner != "" && owner != rec.Address {
					return fmt.Errorf("port %q of %s: host port %d/%s is already used by %s; choose another, or 0 for any free one", name, rec.Address, port, protocol, owner)
				} else if owner != "" { // its own already, under another name
					ports[name] = plan.Port{Container: want.Container, Host: port, Address: addr, Protocol: protocol}
					break
				}
			}
			got, err := host.CheckPort(ctx, ip, uint16(port), protocol)
			if errors.Is(err, runtime.ErrTaken) {
				return fmt.Errorf("port %q of %s: host port %s:%d/%s is taken by another program (%w); free it, choose another, or 0 for any free one", name, rec.Address, addr, port, protocol, err)
			} else if err != nil {
				return err
			}
			if want.Host == 0 && (a.portOwner(addr, int(got), protocol) != "" || chosen(ports, int(got), protocol)) {
				if try < 64 {
					continue
				}
				return fmt.Errorf("port %q of %s: no free host port found on %s; choose one", name, rec.Address, addr)
			}
			ports[name] = plan.Port{Container: want.Container, Host: int(got), Address: addr, Protocol: protocol}
			break
		}
	}
	rec.Ports = ports
	return nil
}

// chosen tells whether another port of the same sandbox just got this one.
func chosen(ports map[string]plan.Port, port int, protocol string) bool {
	for _, p := range ports {
		if p.Host == port && p.Protocol == protocol {
			return true
		}
	}
	return false
}

// portOwner tells which sandbox has reserved a host port; the wildcard address
// overlaps every other.
func (a *allocator) portOwner(addr string, port int, protocol string) string {
	if owner := a.ports[portKey{addr, port, protocol}]; owner != "" {
		return owner
	}
	if addr != "0.0.0.0" {
		return a.ports[portKey{"0.0.0.0", port, protocol}]
	}
	for k, owner := range a.ports {
		if k.port == port && k.protocol == protocol {
			return owner
		}
	}
	return ""
}

func portDefaults(p config.Port) (addr, protocol string) {
	addr, protocol = p.Address, p.Protocol
	if addr == "" {
		addr = "127.0.0.1"
	}
	if protocol == "" {
		protocol = "tcp"
	}
	return addr, protocol
}

// chooseCIDR cuts a /24 from the host's address pools that overlaps neither a
// recorded network nor anything the host itself uses.
func (e *Engine) chooseCIDR(ctx context.Context) (netip.Prefix, error) {
	used, err := e.host.PrefixesInUse(ctx)
	if err != nil {
		return netip.Prefix{}, err
	}
	e.mu.Lock()
	for _, n := range e.records.Networks {
		if n.CIDR.IsValid() {
			used = append(used, n.CIDR)
		}
	}
	e.mu.Unlock()
	e.alloc.mu.Lock()
	used = append(append(used, e.alloc.strange.nets...), e.alloc.left.nets...)
	e.alloc.mu.Unlock()
	for _, pool := range e.settings.AddressPools {
		p, err := netip.ParsePrefix(pool)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("address_pools: %w", err)
		}
		bits := max(24, p.Bits())
		for sub := netip.PrefixFrom(p.Masked().Addr(), bits); p.Contains(sub.Addr()); {
			if !slices.ContainsFunc(used, sub.Overlaps) {
				return sub, nil
			}
			next, ok := addrAfter(sub)
			if !ok {
				break
			}
			sub = netip.PrefixFrom(next, bits)
		}
	}
	return netip.Prefix{}, fmt.Errorf("no free address range left in address_pools %v; write cidr in the network block or widen address_pools in the host settings", e.settings.AddressPools)
}

// addrAfter returns the first address after p; false at the end of the space.
func addrAfter(p netip.Prefix) (netip.Addr, bool) {
	b := p.Masked().Addr().As4()
	v := uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
	v += 1 << (32 - p.Bits())
	if v > 0xffffffff {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), true
}

// newID returns n random bytes as lower-case hex.
func newID(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
