package network

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// chain is a chain's name in its table.
type chain string

const (
	chainRaw         chain = "raw"          // inet prerouting, before connection tracking
	chainPrerouting  chain = "prerouting"   // inet, published ports for packets from outside
	chainOutput      chain = "output"       // inet, published ports for the host itself
	chainPostrouting chain = "postrouting"  // inet, masquerade
	chainForward     chain = "forward"      // inet
	chainInput       chain = "input"        // inet
	chainFromSandbox chain = "from_sandbox" // inet, forwarded packets that come from a bridge of ours
	chainToSandbox   chain = "to_sandbox"   // inet, forwarded packets that leave by a bridge of ours
	chainToHost      chain = "to_host"      // inet, packets from a bridge of ours to the host

	chainPorts    chain = "ports"     // bridge prerouting
	chainFromPort chain = "from_port" // bridge, frames that come from a sandbox
)

// declared is a chain with its rules in order.
type declared struct {
	name     chain
	kind     nftables.ChainType // empty for a chain without a hook
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    []declaredRule
}

// declaredRule is a rule and the words an administrator reads beside it.
type declaredRule struct {
	words string
	exprs []expr.Any
}

// comment is what the rule carries in the kernel: its words and a digest of its
// expressions, by which Observe sees that it is there and of this program's version.
func (r declaredRule) comment(family nftables.TableFamily) string {
	h := sha256.New()
	for _, e := range r.exprs {
		b, err := expr.Marshal(byte(family), e)
		if err != nil {
			panic(fmt.Sprintf("network: rule %q cannot be encoded: %v", r.words, err))
		}
		h.Write(b)
	}
	return r.words + " (" + hex.EncodeToString(h.Sum(nil)[:4]) + ")"
}

// sets are the tables' variable parts. Their number is fixed; what grows with the
// sandboxes are their elements, each found by hash.
type sets struct {
	// bridge table
	senders *nftables.Set // port . MAC . IPv4: who may send what

	// inet table, one element per network
	same     *nftables.Set // bridge . bridge, and nothing . bridge: in and out on the same network
	gateways *nftables.Set // bridge . IPv4: where ICMP echo is answered
	internet *nftables.Set // bridge: may leave the host

	// inet table, one element per published port; the comment is the instance id
	ports    *nftables.Set // IPv4 . protocol . port → IPv4 . port
	portsAny *nftables.Set // protocol . port → IPv4 . port, on every address of the host
}

func (s sets) all() []*nftables.Set {
	return []*nftables.Set{s.senders, s.same, s.gateways, s.internet, s.ports, s.portsAny}
}

func (s sets) perNetwork() []*nftables.Set {
	return []*nftables.Set{s.same, s.gateways, s.internet}
}

func newSets(inet, bridge *nftables.Table) sets {
	key := nftables.MustConcatSetType
	target := key(nftables.TypeIPAddr, nftables.TypeInetService)
	s := sets{
		senders:  &nftables.Set{Table: bridge, Name: "senders", KeyType: key(nftables.TypeIFName, nftables.TypeEtherAddr, nftables.TypeIPAddr)},
		same:     &nftables.Set{Table: inet, Name: "same", KeyType: key(nftables.TypeIFName, nftables.TypeIFName)},
		gateways: &nftables.Set{Table: inet, Name: "gateways", KeyType: key(nftables.TypeIFName, nftables.TypeIPAddr)},
		internet: &nftables.Set{Table: inet, Name: "internet", KeyType: nftables.TypeIFName},
		ports:    &nftables.Set{Table: inet, Name: "ports", IsMap: true, KeyType: key(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService), DataType: target},
		portsAny: &nftables.Set{Table: inet, Name: "ports_any", IsMap: true, KeyType: key(nftables.TypeInetProto, nftables.TypeInetService), DataType: target},
	}
	for i, set := range s.all() {
		set.ID = uint32(i + 1) // unique within a transaction
	}
	return s
}

var (
	loopback  = netip.MustParsePrefix("127.0.0.0/8")
	linkLocal = netip.MustParsePrefix("169.254.0.0/16")
)

// inetLayout is the inet table: routing decisions, published ports, masquerade.
func inetLayout(shortID string, s sets) []declared {
	fromBridge := named(expr.MetaKeyIIFNAME, bridgeKind+shortID)
	toBridge := named(expr.MetaKeyOIFNAME, bridgeKind+shortID)
	notToBridge := cat(meta(expr.MetaKeyOIFNAME, word), differs(word, []byte(bridgeKind+shortID)))
	sameNetwork := cat(meta(expr.MetaKeyIIFNAME, word), meta(expr.MetaKeyOIFNAME, word+ifnameWords), in(s.same))
	fromInternet := cat(meta(expr.MetaKeyIIFNAME, word), in(s.internet))
	toLoopback := cat(ipv4(), ipDest(word), under(word, loopback, expr.CmpOpEq))
	notToLoopback := cat(ipv4(), ipDest(word), under(word, loopback, expr.CmpOpNeq))
	portOnAddress := cat(ipDest(word), meta(expr.MetaKeyL4PROTO, word+1), destPort(word+2), redirect(s.ports))
	portOnAny := cat(toThisHost(), meta(expr.MetaKeyL4PROTO, word), destPort(word+1), redirect(s.portsAny))

	return []declared{
		{chainRaw, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, []declaredRule{
			// route_localnet, which published ports on loopback need, would let these in. The
			// input chain refuses them too; this is the second lock on that door.
			{"no sandbox reaches the host's loopback", cat(fromBridge, toLoopback, drop())},
		}},
		{chainPrerouting, nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, []declaredRule{
			// A packet for 127/8 that comes over a wire is never for a published port.
			{"published on one address", cat(notToLoopback, portOnAddress)},
			{"published on every address", cat(notToLoopback, portOnAny)},
		}},
		{chainOutput, nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, []declaredRule{
			{"published on one address", cat(ipv4(), portOnAddress)},
			{"published on every address", cat(ipv4(), portOnAny)},
		}},
		{chainPostrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, []declaredRule{
			// Or a neighbour's answer would go straight to the asker, who does not know it,
			// and one to the host's loopback nowhere. The host's own packets, and those that
			// br_netfilter redirects within the bridge, come from no interface here.
			{"published port asked from its own network or the host", cat(sameNetwork, ipv4(), published(), masquerade())},
			{"to the outside", cat(fromInternet, notToBridge, ipv4(), masquerade())},
		}},
		{chainForward, nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter, []declaredRule{
			{"from a sandbox", cat(fromBridge, continueIn(chainFromSandbox))},
			{"to a sandbox", cat(toBridge, continueIn(chainToSandbox))},
		}},
		{chainInput, nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter, []declaredRule{
			{"from a sandbox", cat(fromBridge, continueIn(chainToHost))},
		}},
		{chainFromSandbox, "", nil, nil, []declaredRule{
			{"same network", cat(sameNetwork, ipv4(), accept())},
			// Masquerade skips these, so they would leave with the sandbox's own address.
			{"invalid", cat(ctState(expr.CtStateBitINVALID), drop())},
			{"answers to published ports", cat(reply(), accept())},
			// Routers must not forward link-local destinations (RFC 3927, 2.6.2 and 7).
			{"link-local", cat(ipv4(), ipDest(word), under(word, linkLocal, expr.CmpOpEq), refuse())},
			{"another network's published port", cat(toBridge, fromInternet, ipv4(), published(), accept())},
			{"no other network", cat(toBridge, refuse())},
			{"internet", cat(fromInternet, ipv4(), accept())},
			{"nothing else", refuse()},
		}},
		{chainToSandbox, "", nil, nil, []declaredRule{
			{"answers to a sandbox", cat(reply(), accept())},
			{"published port", cat(published(), accept())},
			{"nothing else", drop()},
		}},
		{chainToHost, "", nil, nil, []declaredRule{
			{"answers to the host", cat(reply(), accept())},
			{"gateway answers echo", cat(
				ipv4(), meta(expr.MetaKeyIIFNAME, word), ipDest(word+ifnameWords), in(s.gateways),
				meta(expr.MetaKeyL4PROTO, word), equals(word, []byte{unix.IPPROTO_ICMP}),
				payload(expr.PayloadBaseTransportHeader, 0, 1, word), equals(word, []byte{8}), // echo request
				accept())},
			{"nothing else", refuse()},
		}},
	}
}

// bridgeLayout is the bridge table: what a sandbox may put on the wire.
func bridgeLayout(shortID string, s sets) []declared {
	fromPort := named(expr.MetaKeyIIFNAME, portKind+shortID)
	priority := nftables.ChainPriorityRaw
	port := meta(expr.MetaKeyIIFNAME, word)
	const mac, ip = word + ifnameWords, word + ifnameWords + macWords

	return []declared{
		{chainPorts, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, priority, []declaredRule{
			{"from a sandbox", cat(fromPort, continueIn(chainFromPort))},
		}},
		{chainFromPort, "", nil, nil, []declaredRule{
			{"IPv4 from its own address", cat(etherType(unix.ETH_P_IP), port, etherSource(mac), ipSource(ip), in(s.senders), accept())},
			{"ARP for its own address", cat(etherType(unix.ETH_P_ARP),
				port, etherSource(mac), arpSenderIP(ip), in(s.senders),
				port, arpSenderMAC(mac), arpSenderIP(ip), in(s.senders), accept())},
			{"nothing else", drop()},
		}},
	}
}
