package network

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// The elements of the sets: how a network, a sandbox and a published port are
// written into keys and values, and read back.

// ifname is an interface name as a key: 16 bytes, padded.
func ifname(s string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, s)
	return b
}

func padded(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func (s sets) sender(port string, mac net.HardwareAddr, ip netip.Addr) member {
	key := slices.Concat(ifname(port), padded(slices.Clone(mac)), ip.AsSlice())
	return member{s.senders, nftables.SetElement{Key: key}}
}

// network is the elements of one network.
func (s sets) network(bridge string, w runtime.Network) []member {
	name := ifname(bridge)
	ms := []member{
		{s.same, nftables.SetElement{Key: slices.Concat(name, name)}},
		{s.same, nftables.SetElement{Key: slices.Concat(ifname(""), name)}},
		{s.gateways, nftables.SetElement{Key: slices.Concat(name, w.Gateway.AsSlice())}},
	}
	if w.Internet {
		ms = append(ms, member{s.internet, nftables.SetElement{Key: name}})
	}
	return ms
}

// portKey is what a published port is found by: a socket address of the host.
type portKey struct {
	protocol byte
	host     netip.AddrPort // 0.0.0.0: every address of the host
}

func (k portKey) String() string { return protocolName(k.protocol) + " " + k.host.String() }

// clashes tells whether a packet could be meant by both keys.
func (k portKey) clashes(o portKey) bool {
	return k.protocol == o.protocol && k.host.Port() == o.host.Port() &&
		(k.host.Addr() == o.host.Addr() || k.host.Addr().IsUnspecified() || o.host.Addr().IsUnspecified())
}

// publication is a published port as it stands in the maps.
type publication struct {
	portKey
	target netip.AddrPort
	owner  string // instance id
}

func protocolNumber(name string) (byte, error) {
	switch name {
	case "tcp":
		return unix.IPPROTO_TCP, nil
	case "udp":
		return unix.IPPROTO_UDP, nil
	}
	return 0, fmt.Errorf(`protocol %q: must be "tcp" or "udp"`, name)
}

func protocolName(n byte) string {
	switch n {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol %d", n)
}

func (s sets) publication(p publication) member {
	key := append([]byte{p.protocol, 0, 0, 0}, padded(binary.BigEndian.AppendUint16(nil, p.host.Port()))...)
	set := s.portsAny
	if !p.host.Addr().IsUnspecified() {
		set, key = s.ports, append(p.host.Addr().AsSlice(), key...)
	}
	value := append(p.target.Addr().AsSlice(), padded(binary.BigEndian.AppendUint16(nil, p.target.Port()))...)
	return member{set, nftables.SetElement{Key: key, Val: value, Comment: p.owner}}
}

// publications reads the two port maps.
func (nf *nfnetlink) publications(s sets) ([]publication, error) {
	var out []publication
	for _, set := range []*nftables.Set{s.ports, s.portsAny} {
		es, err := nf.elements(set)
		if err != nil {
			return nil, err
		}
		for _, e := range es {
			host, key := netip.IPv4Unspecified(), e.Key
			if set == s.ports && len(key) == 12 {
				host, key = netip.AddrFrom4([4]byte(key[:4])), key[4:]
			}
			if len(key) != 8 || len(e.Val) != 8 {
				return nil, fmt.Errorf("element %x of %s in nftables table %s is not ours", e.Key, set.Name, set.Table.Name)
			}
			out = append(out, publication{
				portKey: portKey{key[0], netip.AddrPortFrom(host, binary.BigEndian.Uint16(key[4:]))},
				target:  netip.AddrPortFrom(netip.AddrFrom4([4]byte(e.Val[:4])), binary.BigEndian.Uint16(e.Val[4:])),
				owner:   e.Comment,
			})
		}
	}
	return out, nil
}

// digest sums up what is published for one sandbox, in any order.
func digest(ps []publication) string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.portKey.String() + " " + p.target.String()
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:6])
}

// keyName reads the first interface name of a key that starts with one or two.
func keyName(key []byte) string {
	for len(key) >= unix.IFNAMSIZ {
		if name := unix.ByteSliceToString(key[:unix.IFNAMSIZ]); name != "" {
			return name
		}
		key = key[unix.IFNAMSIZ:]
	}
	return ""
}
