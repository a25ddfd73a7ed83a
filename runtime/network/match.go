package network

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The words rules are put together from. Each returns the expressions of one
// condition or statement; a rule is their concatenation.

// word is the first of the 4-byte registers (NFT_REG32_00). A concatenated key
// occupies consecutive ones, each part padded to whole words.
const word = unix.NFT_REG32_00

// Registers of the parts of a concatenated key.
const (
	ifnameWords = 4 // 16 bytes
	macWords    = 2 // 6 bytes
)

func cat(parts ...[]expr.Any) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func meta(key expr.MetaKey, reg uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg}}
}

func payload(base expr.PayloadBase, offset, length, reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: length}}
}

func equals(reg uint32, data []byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data}}
}

func differs(reg uint32, data []byte) []expr.Any {
	return []expr.Any{&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: data}}
}

// under compares the first bits of an address in reg with the prefix.
func under(reg uint32, p netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := make([]byte, 4)
	for i := range p.Bits() {
		mask[i/8] |= 1 << (7 - i%8)
	}
	return []expr.Any{
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: reg, Data: p.Masked().Addr().AsSlice()},
	}
}

func anyBit(reg uint32, bits uint32) []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: make([]byte, 4)},
	}
}

// named is true for interfaces whose name starts with prefix.
func named(key expr.MetaKey, prefix string) []expr.Any {
	return cat(meta(key, word), equals(word, []byte(prefix)))
}

// in looks the key that starts at the first word up in a set.
func in(s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: word, SetName: s.Name, SetID: s.ID}}
}

func ipv4() []expr.Any {
	return cat(meta(expr.MetaKeyNFPROTO, word), equals(word, []byte{unix.NFPROTO_IPV4}))
}

func etherType(t uint16) []expr.Any {
	return cat(payload(expr.PayloadBaseLLHeader, 12, 2, word), equals(word, binaryutil.BigEndian.PutUint16(t)))
}

func etherSource(reg uint32) []expr.Any { return payload(expr.PayloadBaseLLHeader, 6, 6, reg) }
func ipSource(reg uint32) []expr.Any    { return payload(expr.PayloadBaseNetworkHeader, 12, 4, reg) }
func ipDest(reg uint32) []expr.Any      { return payload(expr.PayloadBaseNetworkHeader, 16, 4, reg) }
func destPort(reg uint32) []expr.Any    { return payload(expr.PayloadBaseTransportHeader, 2, 2, reg) }

// ARP for Ethernet and IPv4 (RFC 826): sender hardware address at 8, sender
// protocol address at 14.
func arpSenderMAC(reg uint32) []expr.Any { return payload(expr.PayloadBaseNetworkHeader, 8, 6, reg) }
func arpSenderIP(reg uint32) []expr.Any  { return payload(expr.PayloadBaseNetworkHeader, 14, 4, reg) }

func ctState(bits uint32) []expr.Any {
	return cat([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: word}}, anyBit(word, bits))
}

// reply is true for packets that answer a connection opened from the other side.
func reply() []expr.Any {
	return cat(
		[]expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: word}}, equals(word, []byte{1}), // IP_CT_DIR_REPLY
		ctState(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED),
	)
}

// published is true for packets of a connection that a published port redirected.
func published() []expr.Any {
	const ipsDstNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	return cat([]expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: word}}, anyBit(word, ipsDstNAT))
}

// toThisHost is true when the destination is an address of the host.
func toThisHost() []expr.Any {
	return cat(
		[]expr.Any{&expr.Fib{Register: word, ResultADDRTYPE: true, FlagDADDR: true}},
		equals(word, binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)),
	)
}

// redirect sends the packet to the address and port found in m under the key that
// starts at the first word. A key that is not there ends the rule.
func redirect(m *nftables.Set) []expr.Any {
	return []expr.Any{
		&expr.Lookup{SourceRegister: word, DestRegister: word, IsDestRegSet: true, SetName: m.Name, SetID: m.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: word, RegProtoMin: word + 1},
	}
}

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func continueIn(c chain) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: string(c)}}
}

func accept() []expr.Any { return verdict(expr.VerdictAccept) }
func drop() []expr.Any   { return verdict(expr.VerdictDrop) }

// refuse drops the packet and tells its sender at once, so that programs in a
// sandbox get an error and not a time-out.
func refuse() []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
}
