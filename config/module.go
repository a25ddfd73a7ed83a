package config

import (
	"maps"
	"path"
	"slices"
	"strconv"
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
var referable = []string{"image", "local", "module", "network", "policy", "sandbox", "var", "volume"}

// module is a directory's declarations: what the files say, whatever values they
// will have. It is worked out once, however often the module is called.
type module struct {
	dir     string // "." is the root module; others relative to it, such as modules/ci
	path    string // of the first call that leads here, without keys: module.ci; empty for the root module
	decls   map[string]map[string]*declaration
	ordered []*declaration // by kind and name
	slots   int            // how many declarations there are, those within module blocks counted

	moved   []relocation
	removed []relocation
}

// declaration is everything of a module that can be referred to, or refers.
type declaration struct {
	kind, name string
	m          *module
	slot       int                  // its place among the module's declarations
	rng        hcl.Range            // of its header
	block      *hclsyntax.Block     // nil for a local
	local      *hclsyntax.Attribute // of a local or an input
	exprs      map[*hclsyntax.Attribute]*expression
	explicit   []reference  // depends_on
	deps       []dependency // what must be evaluated first
	used       bool         // something refers to it
	judged     bool         // has preconditions or postconditions
	triggers   []trigger    // replace_triggered_by
	dynamic    []string     // the types of blocks that dynamic blocks in it make
	varies     bool         // what they make differs between instances

	// of a module block
	calls  *module                 // nil when there is none that could be called
	inputs map[string]*declaration // kind input, by the variable's name
	after  *declaration            // kind after: what its depends_on names; nil without one

	constraint *constraint                 // of a variable, once asked for
	paths      map[*hclsyntax.Block]string // attribute paths of labelled blocks
	blocks     map[string]Position         // where labelled blocks begin, once asked for
	places     []place                     // of the last instance decoded
	sources    map[string]Position         // the same as a map
}

// dependency is a declaration that must be evaluated before another.
type dependency struct {
	target *declaration
	output string // of a module; empty: all of them
}

// expression is one argument's expression and what is known about it before
// it is evaluated.
type expression struct {
	attr        *hclsyntax.Attribute
	slot        int // its place among the declaration's expressions
	refs        []reference
	perInstance bool // reads each or count
	readsValue  bool // reads each.value
	bad         bool // has errors already reported; not evaluated
}

// relative is the declaration's address within its module.
func (d *declaration) relative() string { return d.kind + "." + d.name }

// title is how a text speaks of the declaration.
func (d *declaration) title() string {
	switch d.kind {
	case "local":
		return "local value " + quote(d.name)
	case "var":
		return "variable " + quote(d.name)
	case "console":
		return "the console"
	case "validation":
		return "variable " + quote(d.name)
	case "input", "after", "import":
		return header(d.block)
	}
	return d.kind + " " + quote(d.name)
}

func (d *declaration) attr(name string) *hclsyntax.Attribute {
	if d.block == nil {
		return nil
	}
	return d.block.Body.Attributes[name]
}

func (d *declaration) isResource() bool { return resourceKinds[d.kind] != nil }

// repeats reports whether a block of this kind may have several instances.
func (d *declaration) repeats() bool {
	return d.isResource() || d.kind == "module" || d.kind == "input" || d.kind == "import"
}

// repeated reports whether references need a key.
func (d *declaration) repeated() bool { return d.attr("for_each") != nil || d.attr("count") != nil }

// blame is the address that errors about the declaration carry, before its instances
// are known: empty for what is no resource of the root module.
func (d *declaration) blame() string {
	switch {
	case d.isResource():
		return inModule(d.m.path, d.relative())
	case d.kind == "module" || d.kind == "input" || d.kind == "after":
		return inModule(d.m.path, "module."+d.block.Labels[0])
	}
	return d.m.path
}

func (m *module) lookup(kind, name string) *declaration { return m.decls[kind][name] }

func (m *module) names(kind string) []string { return slices.Sorted(maps.Keys(m.decls[kind])) }

func (m *module) add(k *sink, d *declaration) {
	d.m = m
	if !hclsyntax.ValidIdentifier(d.name) {
		k.fail(m.path, d.rng.Ptr(), "Invalid name",
			"%q cannot be a name: start with a letter, go on with letters, digits, hyphens and underscores.", d.name)
		return
	}
	if len(d.name) > 64 {
		k.fail(m.path, d.rng.Ptr(), "Invalid name", "The name has %d bytes; names have at most 64.", len(d.name))
		return
	}
	if previous := m.lookup(d.kind, d.name); previous != nil {
		k.fail(inModule(m.path, d.relative()), d.rng.Ptr(), "Duplicate name",
			"%s is already declared at %s line %d. Give this one another name.",
			capital(d.title()), previous.rng.Filename, previous.rng.Start.Line)
		return
	}
	if m.decls[d.kind] == nil {
		m.decls[d.kind] = map[string]*declaration{}
	}
	m.decls[d.kind][d.name] = d
}

// order sorts what was added. What variables must be like comes first, so that nobody
// uses a value before it is judged.
func (m *module) order() {
	for _, name := range m.names("var") {
		v := m.decls["var"][name]
		if blockOf(v.block.Body, "validation") != nil {
			m.ordered = append(m.ordered, m.place(&declaration{kind: "validation", name: name, m: m, rng: v.rng, block: v.block}))
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(m.decls)) {
		for _, name := range m.names(kind) {
			m.ordered = append(m.ordered, m.place(m.decls[kind][name]))
		}
	}
}

// place gives a declaration its slot.
func (m *module) place(d *declaration) *declaration {
	d.slot = m.slots
	m.slots++
	return d
}

// parsedFile is one file's syntax tree.
type parsedFile struct {
	name string
	src  []byte
	body *hclsyntax.Body
}

// dir is the module that a file belongs to.
func (f parsedFile) dir() string { return path.Dir(f.name) }

// parseFiles parses all files and reports the syntax errors of all of them.
func parseFiles(k *sink, files map[string][]byte) []parsedFile {
	var out []parsedFile
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if f, ok := parseFile(k, name, files[name]); ok {
			out = append(out, f)
		}
	}
	return out
}

func parseFile(k *sink, name string, src []byte) (parsedFile, bool) {
	parsed, diags := parseConfig(src, name)
	var body *hclsyntax.Body
	if parsed != nil {
		body, _ = parsed.Body.(*hclsyntax.Body)
	}
	k.source(name, src, body)
	k.addAll("", diags)
	return parsedFile{name, src, body}, body != nil
}

// collect turns syntax trees into declarations and reports what does not
// belong there.
func (m *module) collect(k *sink, files []parsedFile) {
	var imports []*declaration
	for _, f := range files {
		k.check(m.path, f.body, rootSchema, "the configuration")
		for _, b := range f.body.Blocks {
			rule, known := rootSchema.blocks[b.Type]
			if !known || rule.later != "" {
				continue
			}
			switch b.Type {
			case "locals":
				for _, nested := range b.Body.Blocks {
					k.fail(m.path, nested.TypeRange.Ptr(), "Unknown block", "A locals block holds NAME = VALUE arguments only.")
				}
				for name, attr := range b.Body.Attributes {
					m.add(k, &declaration{kind: "local", name: name, rng: attr.NameRange, local: attr})
				}
			case "pinfold":
				k.check(m.path, b.Body, rule.schema, "the pinfold block")
				requiredVersion(k, m, b)
			case "moved", "removed":
				k.check(m.path, b.Body, rule.schema, "the "+b.Type+" block")
				m.relocate(k, b)
			case "import":
				k.check(m.path, b.Body, rule.schema, "the import block")
				if m.dir != "." {
					k.fail(m.path, b.TypeRange.Ptr(), "Invalid import", "Only the configuration itself can import, not a module: an id is of one host, a module is for many. Write it there, with to = %s.ADDRESS.", m.path)
					continue
				}
				imports = append(imports, &declaration{kind: "import", name: strconv.Itoa(len(imports)), m: m, block: b, rng: b.TypeRange})
			default:
				if len(b.Labels) != 1 {
					continue // reported by check
				}
				kind := b.Type
				if kind == "variable" {
					kind = "var"
				}
				d := &declaration{kind: kind, name: b.Labels[0], m: m, block: b, rng: hcl.RangeBetween(b.TypeRange, b.LabelRanges[0])}
				if rule.schema != nil {
					k.check(d.blame(), b.Body, rule.schema, d.title())
				}
				m.add(k, d)
			}
		}
	}
	m.order()
	for _, d := range imports {
		m.ordered = append(m.ordered, m.place(d))
	}
}

// requiredVersion checks this build against the constraint.
func requiredVersion(k *sink, m *module, b *hclsyntax.Block) {
	attr := b.Body.Attributes["required_version"]
	if attr == nil {
		return
	}
	work := newBudget()
	value, diags := work.within(attr.Expr, work.constants())
	if diags.HasErrors() || value.IsNull() || !value.IsKnown() || value.Type() != cty.String {
		k.fail(m.path, attr.Expr.Range().Ptr(), "Invalid version constraint", "required_version must be a plain string, such as \">= 0.1\".")
		return
	}
	constraint := value.AsString()
	ok, err := satisfies(Version, constraint)
	switch {
	case err != nil:
		k.fail(m.path, attr.Expr.Range().Ptr(), "Invalid version constraint", "%s.", capital(err.Error()))
	case !ok:
		k.fail(m.path, attr.Expr.Range().Ptr(), "Wrong version of pinfold",
			"This is pinfold %s, and the configuration asks for %s. Install another version, or change required_version.", Version, strings.TrimSpace(constraint))
	}
}
