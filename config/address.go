package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// Address names one declared thing: sandbox.py, sandbox.worker["a"],
// sandbox.worker[0].
type Address struct {
	Type string // sandbox, image, network, volume, policy
	Name string
	Key  any // nil, a string (for_each) or an int (count)
}

// String writes the address as ParseAddress reads it. A string key is quoted
// as in HCL, so that the text also works as a reference in a file.
func (a Address) String() string {
	return a.Type + "." + a.Name + index(a.Key)
}

// index is a key in brackets, or nothing for none.
func index(key any) string {
	switch key := key.(type) {
	case string:
		return "[" + quote(key) + "]"
	case int:
		return "[" + strconv.Itoa(key) + "]"
	}
	return ""
}

// Whole is the address without its key.
func (a Address) Whole() string { return a.Type + "." + a.Name }

// ParseAddress reads the text of an address. Only a type, a name and at most
// one key are accepted: sandbox.py["a"].address is an expression, not an address.
func ParseAddress(text string) (Address, error) {
	bad := func(why string) (Address, error) {
		return Address{}, fmt.Errorf("%q is not an address: %s; write TYPE.NAME, TYPE.NAME[\"KEY\"] or TYPE.NAME[0], such as sandbox.py", text, why)
	}
	traversal, diags := hclsyntax.ParseTraversalAbs([]byte(text), "", hcl.InitialPos)
	if diags.HasErrors() {
		return bad(strings.TrimSuffix(strings.ToLower(diags[0].Detail), "."))
	}
	if len(traversal) < 2 || len(traversal) > 3 {
		return bad("it has " + strconv.Itoa(len(traversal)) + " parts")
	}
	name, ok := traversal[1].(hcl.TraverseAttr)
	if !ok {
		return bad("a name must follow the type")
	}
	address := Address{Type: traversal.RootName(), Name: name.Name}
	if _, ok := resourceKinds[address.Type]; !ok && address.Type != "policy" {
		return bad("there is no type " + strconv.Quote(address.Type))
	}
	if len(traversal) == 3 {
		index, ok := traversal[2].(hcl.TraverseIndex)
		if !ok {
			return bad("only a key in brackets may follow the name")
		}
		key, err := keyOf(index.Key)
		if err != nil {
			return bad(err.Error())
		}
		address.Key = key
	}
	return address, nil
}

// keyOf turns an index into an address key.
func keyOf(v cty.Value) (any, error) {
	switch {
	case !v.IsKnown() || v.IsNull():
		return nil, errors.New("the key must be a string or a number")
	case v.Type() == cty.String:
		return v.AsString(), nil
	case v.Type() == cty.Number:
		n, accuracy := v.AsBigFloat().Int64()
		if accuracy != 0 || n < 0 || n > 1<<31-1 {
			return nil, errors.New("a numeric key must be a whole number from 0 on")
		}
		return int(n), nil
	}
	return nil, errors.New("the key must be a string or a number")
}

// quote writes a string as an HCL literal.
func quote(s string) string {
	var out strings.Builder
	out.WriteByte('"')
	for i, r := range s {
		switch r {
		case '"', '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case '\n':
			out.WriteString(`\n`)
		case '\r':
			out.WriteString(`\r`)
		case '\t':
			out.WriteString(`\t`)
		case '$', '%':
			out.WriteRune(r)
			if strings.HasPrefix(s[i+1:], "{") {
				out.WriteRune(r)
			}
		default:
			if r < ' ' || r == 0x7f {
				fmt.Fprintf(&out, `\u%04x`, r)
				continue
			}
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// step extends an attribute path by a key: env.NET, file["/etc/app.toml"].
func step(path, key string) string {
	if hclsyntax.ValidIdentifier(key) {
		return path + "." + key
	}
	return path + "[" + quote(key) + "]"
}
