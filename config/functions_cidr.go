package config

import (
	"fmt"
	"math/big"
	"net/netip"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// parsePrefix reads a range as an argument of the cidr functions.
func parsePrefix(arg int, text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return p, function.NewArgErrorf(arg, "%q is not an address range, such as 10.1.0.0/16", text)
	}
	return p.Masked(), nil
}

// offset is the address n places after base.
func offset(base netip.Addr, n *big.Int) (netip.Addr, bool) {
	raw := base.AsSlice()
	sum := new(big.Int).Add(new(big.Int).SetBytes(raw), n)
	if sum.Sign() < 0 || sum.BitLen() > len(raw)*8 {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(sum.FillBytes(make([]byte, len(raw))))
}

// wholeNumber reads an integer argument.
func wholeNumber(arg int, v cty.Value) (*big.Int, error) {
	n, accuracy := v.AsBigFloat().Int(nil)
	if n == nil || accuracy != big.Exact {
		return nil, function.NewArgErrorf(arg, "a whole number is needed")
	}
	return n, nil
}

// cidrhost is the address at a place in a range; negative places count from its end.
var cidrHostFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "prefix", Type: cty.String}, {Name: "hostnum", Type: cty.Number}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		p, err := parsePrefix(0, args[0].AsString())
		if err != nil {
			return cty.NilVal, err
		}
		n, err := wholeNumber(1, args[1])
		if err != nil {
			return cty.NilVal, err
		}
		size := new(big.Int).Lsh(big.NewInt(1), uint(p.Addr().BitLen()-p.Bits()))
		if n.Sign() < 0 {
			n = new(big.Int).Add(size, n)
		}
		if n.Sign() < 0 || n.Cmp(size) >= 0 {
			return cty.NilVal, function.NewArgErrorf(1, "%s has no address number %s", p, args[1].AsBigFloat().Text('f', 0))
		}
		addr, ok := offset(p.Addr(), n)
		if !ok {
			return cty.NilVal, function.NewArgErrorf(1, "%s has no such address", p)
		}
		return cty.StringVal(addr.String()), nil
	},
})

var cidrNetmaskFunc = textFunc([]string{"prefix"}, func(a []string) (string, error) {
	p, err := parsePrefix(0, a[0])
	if err != nil {
		return "", err
	}
	if !p.Addr().Is4() {
		return "", function.NewArgErrorf(0, "only IPv4 ranges have a netmask")
	}
	mask := ^uint32(0)
	if p.Bits() < 32 {
		mask <<= 32 - p.Bits()
	}
	return netip.AddrFrom4([4]byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}).String(), nil
})

// subnet is the n-th range of p with newBits more bits.
func subnet(p netip.Prefix, newBits, n *big.Int) (netip.Prefix, error) {
	if newBits.Sign() < 0 || !newBits.IsInt64() || newBits.Int64() > int64(p.Addr().BitLen()-p.Bits()) {
		return netip.Prefix{}, fmt.Errorf("%s cannot be divided by %s more bits", p, newBits)
	}
	bits := p.Bits() + int(newBits.Int64())
	if n.Sign() < 0 || n.BitLen() > int(newBits.Int64()) {
		return netip.Prefix{}, fmt.Errorf("%s has no subnet number %s of /%d", p, n, bits)
	}
	addr, ok := offset(p.Addr(), new(big.Int).Lsh(n, uint(p.Addr().BitLen()-bits)))
	if !ok {
		return netip.Prefix{}, fmt.Errorf("%s has no subnet number %s of /%d", p, n, bits)
	}
	return netip.PrefixFrom(addr, bits), nil
}

var cidrSubnetFunc = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "prefix", Type: cty.String}, {Name: "newbits", Type: cty.Number}, {Name: "netnum", Type: cty.Number}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		p, err := parsePrefix(0, args[0].AsString())
		if err != nil {
			return cty.NilVal, err
		}
		newBits, err := wholeNumber(1, args[1])
		if err != nil {
			return cty.NilVal, err
		}
		n, err := wholeNumber(2, args[2])
		if err != nil {
			return cty.NilVal, err
		}
		out, err := subnet(p, newBits, n)
		if err != nil {
			return cty.NilVal, err
		}
		return cty.StringVal(out.String()), nil
	},
})

// cidrsubnets lays ranges one after the other, each with its own number of
// further bits.
var cidrSubnetsFunc = function.New(&function.Spec{
	Params:   []function.Parameter{{Name: "prefix", Type: cty.String}},
	VarParam: &function.Parameter{Name: "newbits", Type: cty.Number},
	Type:     function.StaticReturnType(cty.List(cty.String)),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		p, err := parsePrefix(0, args[0].AsString())
		if err != nil {
			return cty.NilVal, err
		}
		width := p.Addr().BitLen()
		next := new(big.Int) // the first free address, counted from the range's start
		var out []cty.Value
		for i, arg := range args[1:] {
			newBits, err := wholeNumber(i+1, arg)
			if err != nil {
				return cty.NilVal, err
			}
			if newBits.Sign() < 1 || !newBits.IsInt64() || newBits.Int64() > int64(width-p.Bits()) {
				return cty.NilVal, function.NewArgErrorf(i+1, "%s cannot be divided by %s more bits", p, newBits)
			}
			shift := uint(width - p.Bits() - int(newBits.Int64()))
			// Round up to the next range of this size.
			n := new(big.Int).Rsh(new(big.Int).Sub(new(big.Int).Add(next, new(big.Int).Lsh(big.NewInt(1), shift)), big.NewInt(1)), shift)
			one, err := subnet(p, newBits, n)
			if err != nil {
				return cty.NilVal, function.NewArgErrorf(i+1, "%s has no room left for it", p)
			}
			next = new(big.Int).Lsh(new(big.Int).Add(n, big.NewInt(1)), shift)
			out = append(out, cty.StringVal(one.String()))
		}
		if len(out) == 0 {
			return cty.ListValEmpty(cty.String), nil
		}
		return cty.ListVal(out), nil
	},
})
