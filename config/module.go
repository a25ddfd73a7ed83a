package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// resourceKinds are the blocks that stand for something on the host, with the
// attributes a reference may read. id is the block's own address.
var resourceKinds = map[string][]string{
	"image":   {"digest", "id"},
	"network": {"cidr", "gateway", "id"},
	"volume":  {"id"},
	"sandbox": {"address", "id", "instance_id", "ports"},
}

// referable are the roots of references to other declarations.
var referable = []string{"image", "local", "network", "policy", "sandbox", "var", "volume"}

// node is one declaration: everything that can be referred to, or refers.
type node struct {
	kind, name string
	rng        hcl.Range            // of its header
	block      *hclsyntax.Block     // nil for a local
	local      *hclsyntax.Attribute // of a local
	exprs      map[*hclsyntax.Attribute]*expression
	explicit   []reference // depends_on
	deps       []*node     // what must be evaluated first

	state   visit
	broken  bool // has no value: its errors are reported, users of it stay silent
	tainted bool // depends on something broken

	value     cty.Value
	scope     *hcl.EvalContext
	instances []instance
	byKey     map[any]string              // address of each instance of for_each or count
	used      bool                        // something refers to it
	needs     []string                    // addresses of the resources it depends on, own references and those of locals and policies
	computed  []reference                 // to resources, with a key that differs per instance
	paths     map[*hclsyntax.Block]string // attribute paths of labelled blocks
	ports     cty.Value                   // exports of ports that all instances share
	places    []place                     // of the last instance decoded
	sources   map[string]Position
	blocks    map[string]Position // where labelled blocks begin, once asked for
}

type visit int

const (
	unvisited visit = iota
	visiting
	visited
)

// instance is one element of a resource.
type instance struct {
	address string
	key     any // nil, string, int
	each    *hcl.EvalContext
}

// expression is one argument's expression and what is known about it before
// it is evaluated.
type expression struct {
	attr        *hclsyntax.Attribute
	refs        []reference
	perInstance bool // reads each or count
	bad         bool // has errors already reported; not evaluated
	done        bool // for one that is the same for all instances
	value       cty.Value
	failed      bool
}

func (n *node) address() string { return n.kind + "." + n.name }

// title is how a text speaks of the node.
func (n *node) title() string {
	switch n.kind {
	case "local":
		return "local value " + quote(n.name)
	case "var":
		return "variable " + quote(n.name)
	case "console":
		return "the console"
	}
	return n.kind + " " + quote(n.name)
}

func (n *node) attr(name string) *hclsyntax.Attribute {
	if n.block == nil {
		return nil
	}
	return n.block.Body.Attributes[name]
}

func (n *node) isResource() bool { return resourceKinds[n.kind] != nil }

// repeated reports whether references need a key.
func (n *node) repeated() bool { return n.attr("for_each") != nil || n.attr("count") != nil }

// module is a directory's declarations.
type module struct {
	nodes   map[string]map[string]*node // kind, name
	ordered []*node                     // by kind and name
}

func (m *module) lookup(kind, name string) *node { return m.nodes[kind][name] }

func (m *module) names(kind string) []string { return slices.Collect(maps.Keys(m.nodes[kind])) }

func (m *module) add(k *sink, n *node) {
	if !hclsyntax.ValidIdentifier(n.name) {
		k.fail("", n.rng.Ptr(), "Invalid name",
			"%q cannot be a name: start with a letter, go on with letters, digits, hyphens and underscores.", n.name)
		return
	}
	if len(n.name) > 64 {
		k.fail("", n.rng.Ptr(), "Invalid name", "The name has %d bytes; names have at most 64.", len(n.name))
		return
	}
	if previous := m.lookup(n.kind, n.name); previous != nil {
		k.fail(n.address(), n.rng.Ptr(), "Duplicate name",
			"%s is already declared at %s line %d. Give this one another name.",
			capital(n.title()), previous.rng.Filename, previous.rng.Start.Line)
		return
	}
	if m.nodes[n.kind] == nil {
		m.nodes[n.kind] = map[string]*node{}
	}
	m.nodes[n.kind][n.name] = n
}

// parsedFile is one file's syntax tree.
type parsedFile struct {
	name string
	src  []byte
	body *hclsyntax.Body
}

// parseFiles parses all files and reports the syntax errors of all of them.
func parseFiles(k *sink, files map[string][]byte) []parsedFile {
	var out []parsedFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		src := files[name]
		parsed, diags := parseConfig(src, name)
		var body *hclsyntax.Body
		if parsed != nil {
			body, _ = parsed.Body.(*hclsyntax.Body)
		}
		k.source(name, src, body)
		k.addAll("", diags)
		if body != nil {
			out = append(out, parsedFile{name, src, body})
		}
	}
	return out
}

// collect turns syntax trees into declarations and reports what does not
// belong there.
func collect(k *sink, files []parsedFile) *module {
	m := &module{nodes: map[string]map[string]*node{}}
	for _, f := range files {
		k.check("", f.body, rootSchema, "the configuration")
		for _, b := range f.body.Blocks {
			rule, known := rootSchema.blocks[b.Type]
			if !known || rule.later != "" {
				continue
			}
			switch b.Type {
			case "locals":
				for _, nested := range b.Body.Blocks {
					k.fail("", nested.TypeRange.Ptr(), "Unknown block", "A locals block holds NAME = VALUE arguments only.")
				}
				for name, attr := range b.Body.Attributes {
					m.add(k, &node{kind: "local", name: name, rng: attr.NameRange, local: attr})
				}
			case "pinfold":
				k.check("", b.Body, rule.schema, "the pinfold block")
				requiredVersion(k, b)
			default:
				if len(b.Labels) != 1 {
					continue // reported by check
				}
				kind := b.Type
				if kind == "variable" {
					kind = "var"
				}
				n := &node{kind: kind, name: b.Labels[0], block: b, rng: hcl.RangeBetween(b.TypeRange, b.LabelRanges[0])}
				k.check(n.blame(), b.Body, rule.schema, n.title())
				m.add(k, n)
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(m.nodes)) {
		for _, name := range slices.Sorted(maps.Keys(m.nodes[kind])) {
			m.ordered = append(m.ordered, m.nodes[kind][name])
		}
	}
	return m
}

// blame is the address errors about the node carry; empty for what is no resource.
func (n *node) blame() string {
	if n.isResource() {
		return n.address()
	}
	return ""
}

// requiredVersion checks this build against the constraint.
func requiredVersion(k *sink, b *hclsyntax.Block) {
	attr := b.Body.Attributes["required_version"]
	if attr == nil {
		return
	}
	work := newBudget()
	value, diags := work.within(attr.Expr, work.constants())
	if diags.HasErrors() || value.IsNull() || !value.IsKnown() || value.Type() != cty.String {
		k.fail("", attr.Expr.Range().Ptr(), "Invalid version constraint", "required_version must be a plain string, such as \">= 0.1\".")
		return
	}
	constraint := value.AsString()
	ok, err := satisfies(Version, constraint)
	switch {
	case err != nil:
		k.fail("", attr.Expr.Range().Ptr(), "Invalid version constraint", "%s.", capital(err.Error()))
	case !ok:
		k.fail("", attr.Expr.Range().Ptr(), "Wrong version of pinfold",
			"This is pinfold %s, and the configuration asks for %s. Install another version, or change required_version.", Version, strings.TrimSpace(constraint))
	}
}
