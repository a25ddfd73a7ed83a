package config

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// relocation is a moved or removed block as it is written: its addresses are relative
// to the module it stands in.
type relocation struct {
	from, to string // no to when it is removed
	destroy  bool   // of a removed block
	rng      hcl.Range
	fromRng  hcl.Range
	toRng    hcl.Range
}

// relocate reads a moved or removed block.
func (m *module) relocate(k *sink, b *hclsyntax.Block) {
	r := relocation{rng: b.TypeRange, destroy: true}
	from, ok := m.endpoint(k, b, "from", &r.fromRng)
	if !ok {
		return
	}
	r.from = from.text()
	if b.Type == "removed" {
		if strings.Contains(r.from, "[") {
			k.fail(m.path, &r.fromRng, "Invalid from", "A removed block is about all instances of what it names, in all instances of modules. Write it without keys: %s.", from.plain())
			return
		}
		if life := blockOf(b.Body, "lifecycle"); life != nil && life.Body.Attributes["destroy"] != nil {
			attr := life.Body.Attributes["destroy"]
			v, diags := attr.Expr.Value(nil)
			if diags.HasErrors() || v.Type() != cty.Bool || v.IsNull() {
				k.fail(m.path, attr.Expr.Range().Ptr(), "Invalid destroy", "Write true or false: whether what is removed here is destroyed as well is decided in the file.")
				return
			}
			r.destroy = v.True()
		}
		m.removed = append(m.removed, r)
		return
	}
	to, ok := m.endpoint(k, b, "to", &r.toRng)
	if !ok {
		return
	}
	r.to = to.text()
	switch {
	case from.Type == "" != (to.Type == ""):
		k.fail(m.path, &r.toRng, "Invalid move", "A module moves to a module and a resource to a resource; %s and %s are not of one kind.", r.from, r.to)
	case from.Type != to.Type:
		k.fail(m.path, &r.toRng, "Invalid move", "%s is %s and %s %s: nothing becomes something else by moving.", r.from, article(from.Type), r.to, article(to.Type))
	case r.from == r.to:
		k.fail(m.path, &r.toRng, "Invalid move", "%s is both the from and the to of this block.", r.from)
	default:
		m.moved = append(m.moved, r)
	}
}

// endpoint is the address that an argument of a moved or removed block names.
func (m *module) endpoint(k *sink, b *hclsyntax.Block, name string, rng *hcl.Range) (Address, bool) {
	attr := b.Body.Attributes[name]
	if attr == nil {
		return Address{}, false // reported with the schema
	}
	*rng = attr.Expr.Range()
	t, diags := hcl.AbsTraversalForExpr(attr.Expr)
	if diags.HasErrors() {
		k.fail(m.path, rng, "Invalid "+name, "Write an address without quotes, such as %s = sandbox.py, sandbox.py[\"a\"] or module.ci.", name)
		return Address{}, false
	}
	a, _, err := addressOf(t)
	if err == nil && a.Type == "policy" {
		k.fail(m.path, rng, "Invalid "+name, "A policy is nothing that is created, so nothing of it is recorded. Rename it wherever it is used.")
		return Address{}, false
	}
	if err != nil {
		k.fail(m.path, rng, "Invalid "+name, "%s is not the address of a resource or module: %s. Write one such as sandbox.py, sandbox.py[\"a\"] or module.ci.", written(t), err)
		return Address{}, false
	}
	return a, true
}

// text is the address of a resource or module.
func (a Address) text() string {
	if a.Type == "" {
		return a.Module
	}
	return a.String()
}

// plain is the address without any keys.
func (a Address) plain() string { return withoutKeys(a.text()) }

func withoutKeys(address string) string {
	var parts []string
	for address != "" {
		s := splitStep(address)
		parts = append(parts, s.text)
		address = s.rest
	}
	return strings.Join(parts, ".")
}

// inventory is everything that is declared, by address.
type inventory struct {
	instances map[string]bool // of resources and modules
	wholes    map[string]bool // resources and modules, without their own key
	plain     map[string]bool // the same, without the keys of the modules on the way
}

func (home *moduleInstance) inventory(out *inventory) {
	for _, d := range home.m.ordered {
		if !d.isResource() && d.kind != "module" {
			continue
		}
		n := home.node(d)
		out.wholes[n.address()] = true
		out.plain[withoutKeys(n.address())] = true
		for _, in := range n.instances {
			out.instances[in.address] = true
		}
		for _, in := range n.modules {
			in.inventory(out)
		}
	}
}

// each calls f with home and all module instances in it.
func (home *moduleInstance) everywhere(f func(*moduleInstance)) {
	f(home)
	for _, name := range home.m.names("module") {
		for _, in := range home.node(home.m.lookup("module", name)).modules {
			in.everywhere(f)
		}
	}
}

// placedMove is a move with what its diagnostics need.
type placedMove struct {
	Move
	relocation
	home string // address of the module instance
}

// relocations hands on what moved, import and removed blocks say, and reports what
// they cannot mean.
func (ev *evaluation) relocations() {
	var moves []placedMove
	var removed []relocation
	var homes []string
	ev.root.everywhere(func(home *moduleInstance) {
		for _, r := range home.m.moved {
			moves = append(moves, placedMove{
				Move:       Move{From: inModule(home.address, r.from), To: inModule(home.address, r.to), Source: Position{File: r.rng.Filename, Line: r.rng.Start.Line}},
				relocation: r, home: home.address,
			})
		}
		for _, r := range home.m.removed {
			removed = append(removed, r)
			homes = append(homes, home.address)
		}
	})
	if len(moves)+len(removed)+len(ev.out.Imports) == 0 {
		return
	}
	all := &inventory{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	ev.root.inventory(all)
	for i, r := range removed {
		from := inModule(homes[i], r.from)
		if all.plain[withoutKeys(from)] {
			ev.fail(homes[i], &removed[i].fromRng, "Still declared", "%s is said to be removed, and is still declared. Take out its block, or this one.", from)
			continue
		}
		ev.out.Removals = append(ev.out.Removals, Removal{From: from, Destroy: r.destroy, Source: Position{File: r.rng.Filename, Line: r.rng.Start.Line}})
	}
	slices.SortFunc(ev.out.Removals, func(a, b Removal) int { return cmp.Compare(a.From, b.From) })
	ev.checkMoves(moves, all)
	ev.checkImports(all)
}

// checkMoves reports moves that contradict the declarations or each other.
func (ev *evaluation) checkMoves(moves []placedMove, all *inventory) {
	slices.SortStableFunc(moves, func(a, b placedMove) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	byFrom, byTo := map[string]*placedMove{}, map[string]*placedMove{}
	for i := range moves {
		m := &moves[i]
		if other := byFrom[m.From]; other != nil {
			ev.fail(m.home, &m.fromRng, "Ambiguous moves", "%s moves to %s here, and to %s at %s line %d. Leave one of them.",
				m.From, m.To, other.To, other.Source.File, other.Source.Line)
			continue
		}
		if other := byTo[m.To]; other != nil {
			ev.fail(m.home, &m.toRng, "Ambiguous moves", "%s moves to %s here, and %s at %s line %d to the same place. Only one of them can be there.",
				m.From, m.To, other.From, other.Source.File, other.Source.Line)
			continue
		}
		byFrom[m.From], byTo[m.To] = m, m
	}
	for _, from := range slices.Sorted(maps.Keys(byFrom)) {
		m := byFrom[from]
		ev.out.Moves = append(ev.out.Moves, m.Move)
		if all.holds(m.From, m.To) && !inCycle(m, byFrom) {
			ev.fail(m.home, &m.fromRng, "Still declared", "%s is said to have moved to %s, and is still declared. Rename its block to what it has become, or take out this one. To swap two, write a moved block for each direction.", m.From, m.To)
		}
		to := strings.TrimSuffix(m.To, splitLast(m.To).key)
		if !all.wholes[to] && byFrom[m.To] == nil && !slices.ContainsFunc(ev.out.Removals, func(r Removal) bool { return Covers(r.From, m.To) }) {
			ev.add(m.home, &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: "Move to something undeclared", Subject: m.toRng.Ptr(),
				Detail: to + " is not declared, so what moves there is destroyed" + ended(didYouMean(to, slices.Collect(maps.Keys(all.wholes))))})
		}
	}
}

// holds reports whether something is declared that a move from one place to another
// would take away.
func (all *inventory) holds(from, to string) bool {
	if strings.HasSuffix(from, "]") || strings.HasSuffix(to, "]") {
		return all.instances[from]
	}
	return all.wholes[from]
}

// inCycle reports whether moves lead from a move's end back to its beginning.
func inCycle(m *placedMove, byFrom map[string]*placedMove) bool {
	at := m
	for range byFrom {
		if at = byFrom[at.To]; at == nil {
			return false
		}
		if at == m {
			return true
		}
	}
	return false
}

// splitLast is the last step of an address.
func splitLast(address string) addressStep {
	s := splitStep(address)
	for s.rest != "" {
		s = splitStep(s.rest)
	}
	return s
}

// imports evaluates an import block.
func (ev *evaluation) imports(n *node) {
	attr, id := n.attr("to"), n.attr("id")
	if attr == nil || id == nil || !ev.expand(n) {
		return
	}
	for i := range n.instances {
		in := &n.instances[i]
		to, ok := ev.importTo(n, attr, in.each)
		if !ok {
			continue
		}
		v, ok := ev.value(n, id, in.each, "")
		if !ok {
			continue
		}
		if v, ok = ev.open("", id, v); !ok {
			continue
		}
		v, err := convert.Convert(v, cty.String)
		rng := id.Expr.Range().Ptr()
		switch {
		case err != nil || v.IsNull() || v.IsKnown() && v.AsString() == "":
			ev.fail("", rng, "Invalid id", "The id of an instance or volume is needed, as 'pinfold list' and 'pinfold gc' show it.")
		case !v.IsKnown():
			if !n.tainted {
				ev.fail("", rng, "Invalid id", "What is imported must be known before anything is made; this value is known only after apply.")
			}
		default:
			ev.importing = append(ev.importing, importUse{attr.Expr.Range(), id.Expr.Range()})
			ev.out.Imports = append(ev.out.Imports, Import{To: to, ID: v.AsString(), Source: Position{File: n.rng.Filename, Line: n.rng.Start.Line}})
		}
	}
}

// importUse is where an import's arguments are written.
type importUse struct{ to, id hcl.Range }

// importTo is the address that the to of an import block names for an instance of it.
func (ev *evaluation) importTo(n *node, attr *hclsyntax.Attribute, scope *hcl.EvalContext) (string, bool) {
	rng := attr.Expr.Range()
	fail := func(format string, args ...any) (string, bool) {
		ev.fail("", &rng, "Invalid to", format, args...)
		return "", false
	}
	const example = "Write the address of a sandbox or volume without quotes, such as to = sandbox.py, or to = sandbox.py[each.key] with for_each."
	var t hcl.Traversal
	var key any
	expr := hcl.Expression(attr.Expr)
	if at, is := attr.Expr.(*hclsyntax.IndexExpr); is {
		v, diags := ev.budget.within(at.Key, scope)
		if diags.HasErrors() {
			return fail("Its key cannot be worked out. %s", example)
		}
		var err error
		if key, err = keyOf(v); err != nil {
			return fail("%s.", capital(err.Error()))
		}
		expr = at.Collection
	}
	t, diags := hcl.AbsTraversalForExpr(expr)
	if diags.HasErrors() {
		return fail(example)
	}
	a, _, err := addressOf(t)
	if err != nil {
		return fail("%s is not an address: %s. %s", written(t), err, example)
	}
	if a.Type != "sandbox" && a.Type != "volume" {
		return fail("Sandboxes and volumes can be imported. %s", example)
	}
	if key != nil {
		a.Key = key
	}
	return a.String(), true
}

// checkImports reports imports to what is not declared, and what is imported twice.
func (ev *evaluation) checkImports(all *inventory) {
	byTo, byID := map[string]bool{}, map[string]string{}
	for i, x := range ev.out.Imports {
		at := ev.importing[i]
		switch other := byID[x.ID]; {
		case !all.instances[x.To]:
			ev.fail("", &at.to, "Import to something undeclared", "%s is not declared. Declare it first, so that it is known what it should be%s",
				x.To, ended(didYouMean(x.To, slices.Collect(maps.Keys(all.instances)))))
		case byTo[x.To]:
			ev.fail("", &at.to, "Imported twice", "Something else is imported to %s already.", x.To)
		case other != "":
			ev.fail("", &at.id, "Imported twice", "%s is imported to %s already.", quote(x.ID), other)
		}
		byTo[x.To], byID[x.ID] = true, x.To
	}
	slices.SortFunc(ev.out.Imports, func(a, b Import) int { return cmp.Compare(a.To, b.To) })
}
