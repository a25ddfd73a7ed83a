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
// module.ci["a"].sandbox.runner[0].
type Address struct {
	Module string // address of the module it is declared in, as ParseModule gives it; empty for the root module
	Type   string // sandbox, image, network, volume, policy
	Name   string
	Key    any // nil, a string (for_each) or an int (count)
}

// String writes the address as ParseAddress reads it. A string key is quoted
// as in HCL, so that the text also works as a reference in a file.
func (a Address) String() string { return a.Whole() + index(a.Key) }

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

// Whole is the address without its own key.
func (a Address) Whole() string { return inModule(a.Module, a.Type+"."+a.Name) }

// inModule is what a module calls by a relative address, seen from the root module.
func inModule(module, relative string) string {
	if module == "" {
		return relative
	}
	return module + "." + relative
}

// ParseAddress reads the text of a resource's or policy's address: modules, a type,
// a name and at most one key. sandbox.py["a"].address is an expression, not an
// address, and module.ci is a module's.
func ParseAddress(text string) (Address, error) {
	address, _, err := parseAddress(text)
	if err == nil && address.Type == "" {
		err = errors.New("it names a module, not a thing in it")
	}
	if err != nil {
		return Address{}, fmt.Errorf("%q is not an address: %w; write TYPE.NAME, TYPE.NAME[\"KEY\"] or TYPE.NAME[0], such as sandbox.py, with module.NAME. in front for what is in a module", text, err)
	}
	return address, nil
}

// ParseModule reads the text of a module's address and gives it in the form that
// Address.Module and Move have: module.ci, module.ci["a"], module.ci["a"].module.db.
func ParseModule(text string) (string, error) {
	address, _, err := parseAddress(text)
	if err == nil && address.Type != "" {
		err = errors.New("it names a " + address.Type)
	}
	if err != nil {
		return "", fmt.Errorf("%q is not the address of a module: %w; write module.NAME, module.NAME[\"KEY\"] or module.NAME[0]", text, err)
	}
	return address.Module, nil
}

// moduleStep is one module on the way to an address.
type moduleStep struct {
	name string
	key  any
}

// parseAddress reads either; a module's address has no type. It also gives the way
// to the module, step by step.
func parseAddress(text string) (out Address, way []moduleStep, err error) {
	traversal, diags := hclsyntax.ParseTraversalAbs([]byte(text), "", hcl.InitialPos)
	if diags.HasErrors() {
		return out, nil, errors.New(strings.TrimSuffix(strings.ToLower(diags[0].Detail), "."))
	}
	return addressOf(traversal)
}

// addressOf is parseAddress of what is parsed already.
func addressOf(traversal hcl.Traversal) (out Address, way []moduleStep, err error) {
	for rest := traversal; len(rest) > 0; {
		kind, name := traverserName(rest[0]), attrName(rest, 1)
		switch {
		case out.Type != "":
			return out, nil, errors.New("only a key in brackets may follow the name")
		case kind == "":
			return out, nil, errors.New("a type must follow the module")
		case kind != "module" && kind != "policy" && resourceKinds[kind] == nil:
			return out, nil, errors.New("there is no type " + strconv.Quote(kind))
		case name == "":
			return out, nil, errors.New("a name must follow " + kind)
		}
		var key any
		rest = rest[2:]
		if len(rest) > 0 {
			if at, ok := rest[0].(hcl.TraverseIndex); ok {
				if key, err = keyOf(at.Key); err != nil {
					return out, nil, err
				}
				rest = rest[1:]
			}
		}
		if kind == "module" {
			way = append(way, moduleStep{name, key})
			out.Module = inModule(out.Module, "module."+name+index(key))
		} else {
			out.Type, out.Name, out.Key = kind, name, key
		}
	}
	return out, way, nil
}

// traverserName is the name at the root of a traversal or of an attribute in it.
func traverserName(t hcl.Traverser) string {
	switch t := t.(type) {
	case hcl.TraverseRoot:
		return t.Name
	case hcl.TraverseAttr:
		return t.Name
	}
	return ""
}

// keyOf turns an index into an address key.
func keyOf(v cty.Value) (any, error) {
	switch {
	case v.IsMarked():
		return nil, errors.New("the key is sensitive, and keys are shown")
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

// Step extends an attribute path by a key: env.NET, file["/etc/app.toml"]. The path
// of a spec's own member is its name.
func Step(path, key string) string {
	if path == "" {
		return key
	}
	if hclsyntax.ValidIdentifier(key) {
		return path + "." + key
	}
	return path + "[" + quote(key) + "]"
}

// Steps takes an attribute path apart into its keys: strings, and ints in lists. nil
// for a text that is no path.
func Steps(path string) []any {
	traversal, diags := hclsyntax.ParseTraversalAbs([]byte(path), "", hcl.InitialPos)
	if diags.HasErrors() {
		return nil
	}
	steps := make([]any, 0, len(traversal))
	for _, t := range traversal {
		switch t := t.(type) {
		case hcl.TraverseRoot:
			steps = append(steps, t.Name)
		case hcl.TraverseAttr:
			steps = append(steps, t.Name)
		case hcl.TraverseIndex:
			key, err := keyOf(t.Key)
			if err != nil {
				return nil
			}
			steps = append(steps, key)
		default:
			return nil
		}
	}
	return steps
}

// StepAt extends an attribute path by the index of a list's element: command[2].
func StepAt(path string, index int) string { return path + "[" + strconv.Itoa(index) + "]" }
