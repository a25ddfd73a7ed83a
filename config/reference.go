package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// reference is one mention of another declaration of the same module.
type reference struct {
	target *declaration
	key    any                  // of one instance, when written as a literal
	index  hclsyntax.Expression // the key, when it is computed
	output string               // of a module, when written; else all of them
	whole  bool                 // in depends_on: of a module, all that is in it
	rng    hcl.Range
	text   string // as written, for error texts
}

// refused are functions that a repeatable plan cannot have, with the reason.
var refused = map[string]string{
	"timestamp":     "it reads the clock. For a deadline relative to the sandbox's start use lifetime { ttl = \"8h\" }, for an instant a variable",
	"plantimestamp": "it reads the clock. For a deadline relative to the sandbox's start use lifetime { ttl = \"8h\" }, for an instant a variable",
	"uuid":          "it is random. Take the value from a variable; a limit to a sandbox's life is lifetime { ttl = \"8h\" }",
	"bcrypt":        "its salt is random. Take the hash from a variable",
	"pathexpand":    "it depends on who runs the plan. Write the path out, or take it from a variable",
}

// resolve finds what every expression of the module refers to, and reports what
// does not exist. It fills deps.
func (m *module) resolve(k *sink) {
	for _, d := range m.ordered {
		m.resolveDeclaration(k, d)
		for _, name := range slices.Sorted(maps.Keys(d.inputs)) {
			m.resolveDeclaration(k, d.inputs[name])
		}
		if d.after != nil {
			m.resolveDeclaration(k, d.after)
		}
	}
}

func (m *module) resolveDeclaration(k *sink, d *declaration) {
	d.exprs = map[*hclsyntax.Attribute]*expression{}
	switch {
	case d.local != nil:
		m.resolveAttr(k, d, d.local, nil)
	case d.kind == "after":
		m.explicit(k, d)
	case d.kind == "module":
		for _, name := range []string{"for_each", "count"} {
			if attr := d.attr(name); attr != nil {
				m.resolveAttr(k, d, attr, nil)
			}
		}
	case d.kind == "var":
		// Types and defaults are constants.
	case d.kind == "validation":
		m.resolveValidations(k, d)
	default:
		m.resolveBody(k, d, d.block.Body, schemaOf(d.kind), nil)
		m.explicit(k, d)
		if d.isResource() {
			m.triggers(k, d)
		}
	}
	d.dependOn()
}

// dependOn collects what must be evaluated before the declaration, in the order of
// the file.
func (d *declaration) dependOn() {
	seen := map[dependency]bool{}
	need := func(r reference) {
		r.target.used = true
		dep := dependency{r.target, r.output}
		if !seen[dep] {
			seen[dep] = true
			d.deps = append(d.deps, dep)
		}
	}
	for _, attr := range slices.SortedFunc(maps.Keys(d.exprs), func(a, b *hclsyntax.Attribute) int { return a.SrcRange.Start.Byte - b.SrcRange.Start.Byte }) {
		for _, r := range d.exprs[attr].refs {
			need(r)
		}
	}
	for _, r := range d.explicit {
		need(r)
	}
	for _, t := range d.triggers {
		need(t.reference)
	}
}

// resolveValidations goes through the validations of a variable.
func (m *module) resolveValidations(k *sink, d *declaration) {
	for _, b := range d.block.Body.Blocks {
		attr := b.Body.Attributes["condition"]
		if b.Type != "validation" || attr == nil {
			continue
		}
		m.resolveBody(k, d, b.Body, conditionSchema, nil)
		own := slices.ContainsFunc(hclsyntax.Variables(attr.Expr), func(t hcl.Traversal) bool {
			return t.RootName() == "var" && attrName(t, 1) == d.name
		})
		if !own {
			k.fail(d.blame(), attr.Expr.Range().Ptr(), "Invalid condition", "A validation is about its variable, and this one does not look at var.%s. For a rule about other things write a check block.", d.name)
		}
	}
}

func schemaOf(kind string) *schema { return rootSchema.blocks[kind].schema }

// resolveBody goes through a body. iterators are the names that dynamic blocks around
// it give to their elements.
func (m *module) resolveBody(k *sink, n *declaration, body *hclsyntax.Body, s *schema, iterators []string) {
	for name, attr := range body.Attributes {
		if rule, known := s.attrs[name]; known && !rule.literal && rule.later == "" {
			m.resolveAttr(k, n, attr, iterators)
		}
	}
	for _, b := range body.Blocks {
		if b.Type == dynamic {
			m.resolveDynamic(k, n, b, s, iterators)
		} else if rule, known := s.blocks[b.Type]; known && rule.schema != nil {
			inner := iterators
			switch b.Type {
			case "postcondition":
				inner = append(slices.Clip(inner), "self")
				n.judged = true
			case "precondition":
				n.judged = true
			}
			m.resolveBody(k, n, b.Body, rule.schema, inner)
		}
	}
}

func (m *module) resolveAttr(k *sink, n *declaration, attr *hclsyntax.Attribute, iterators []string) {
	x := &expression{attr: attr, slot: len(n.exprs)}
	n.exprs[attr] = x
	// sandbox.x[each.key] reads one instance, which the traversal alone does not tell.
	computed := map[int]hclsyntax.Expression{}
	_ = hclsyntax.VisitAll(attr.Expr, func(part hclsyntax.Node) hcl.Diagnostics {
		switch part := part.(type) {
		case *hclsyntax.IndexExpr:
			if of, ok := part.Collection.(*hclsyntax.ScopeTraversalExpr); ok && len(of.Traversal) == 2 {
				computed[of.SrcRange.Start.Byte] = part.Key
			}
		case *hclsyntax.FunctionCallExpr:
			x.bad = m.checkCall(k, n, part) || x.bad
		}
		return nil
	})
	repeats := attr == n.attr("for_each") || attr == n.attr("count")
	for _, t := range hclsyntax.Variables(attr.Expr) {
		if t.RootName() == "self" {
			x.perInstance = true
			x.bad = checkSelf(k, n, t, slices.Contains(iterators, "self")) || x.bad
			continue
		}
		if slices.Contains(iterators, t.RootName()) {
			x.bad = checkIterator(k, n, t) || x.bad
			continue
		}
		switch t.RootName() {
		case "each", "count":
			x.perInstance = true
			x.readsValue = x.readsValue || t.RootName() == "each" && attrName(t, 1) != "key"
			x.bad = checkEach(k, n, t, repeats) || x.bad
		case "path":
			x.bad = checkPath(k, n, t) || x.bad
		default:
			r, ok := m.reference(k, n, t)
			if !ok {
				x.bad = true
				continue
			}
			r.index = computed[t.SourceRange().Start.Byte]
			x.refs = append(x.refs, r)
		}
	}
}

// checkCall reports functions that do not exist or are refused.
func (m *module) checkCall(k *sink, n *declaration, call *hclsyntax.FunctionCallExpr) bool {
	if reason, no := refused[call.Name]; no {
		k.fail(n.blame(), call.NameRange.Ptr(), "Function "+call.Name+"() is refused",
			"A plan must be repeatable, and %s() is not: %s.", call.Name, reason)
		return true
	}
	if call.Name == "type" && n.kind == "console" {
		return false
	}
	if call.Name == "type" {
		k.fail(n.blame(), call.NameRange.Ptr(), "Unknown function", "type() shows the type of a value in 'pinfold console' only: no configuration needs it. Use can(tostring(…)) and its like to tell types apart.")
		return true
	}
	if !functionNames[call.Name] {
		k.fail(n.blame(), call.NameRange.Ptr(), "Unknown function", "There is no function %q%s",
			call.Name, ended(didYouMean(call.Name, slices.Collect(maps.Keys(functionNames)))))
		return true
	}
	return false
}

func checkEach(k *sink, n *declaration, t hcl.Traversal, repeats bool) (bad bool) {
	root, needs, attrs := t.RootName(), "for_each", []string{"key", "value"}
	if root == "count" {
		needs, attrs = "count", []string{"index"}
	}
	if repeats {
		k.fail(n.blame(), t.SourceRange().Ptr(), "Reference out of place", "%s decides how many instances there are, so it cannot read %s.", needs, root)
		return true
	}
	if n.attr(needs) == nil || !n.repeats() {
		k.fail(n.blame(), t.SourceRange().Ptr(), "Reference out of place",
			"%s exists only in a block with %s, and %s has none.", root, needs, n.title())
		return true
	}
	if name := attrName(t, 1); !slices.Contains(attrs, name) {
		k.fail(n.blame(), t.SourceRange().Ptr(), "Unknown attribute", "%s has %s%s",
			root, strings.Join(attrs, " and "), ended(didYouMean(name, attrs)))
		return true
	}
	return false
}

// checkSelf reports self where there is none, and what it does not have.
func checkSelf(k *sink, n *declaration, t hcl.Traversal, there bool) (bad bool) {
	if !there || !n.isResource() {
		k.fail(n.blame(), t.SourceRange().Ptr(), "Reference out of place", "self exists only in a postcondition, where it is the instance itself.")
		return true
	}
	if name := attrName(t, 1); name != "" && !slices.Contains(resourceKinds[n.kind], name) {
		k.fail(n.blame(), t.SourceRange().Ptr(), "Unknown attribute", "%s exports %s, but not %q%s", capital(article(n.kind)), strings.Join(resourceKinds[n.kind], ", "), name,
			ended(didYouMean(name, resourceKinds[n.kind])))
		return true
	}
	return false
}

func checkIterator(k *sink, n *declaration, t hcl.Traversal) (bad bool) {
	if name := attrName(t, 1); name != "key" && name != "value" {
		k.fail(n.blame(), t.SourceRange().Ptr(), "Unknown attribute", "%s, an element of a dynamic block, has key and value%s",
			t.RootName(), ended(didYouMean(name, []string{"key", "value"})))
		return true
	}
	return false
}

func checkPath(k *sink, n *declaration, t hcl.Traversal) (bad bool) {
	if name := attrName(t, 1); name != "module" && name != "root" {
		k.fail(n.blame(), t.SourceRange().Ptr(), "Unknown attribute", "path has module and root%s",
			ended(didYouMean(name, []string{"module", "root"})))
		return true
	}
	return false
}

// attrName is the attribute at place i of a traversal, or "".
func attrName(t hcl.Traversal, i int) string {
	if len(t) > i {
		if a, ok := t[i].(hcl.TraverseAttr); ok {
			return a.Name
		}
	}
	return ""
}

// reference checks one traversal as far as it can be without evaluating.
func (m *module) reference(k *sink, n *declaration, t hcl.Traversal) (reference, bool) {
	root, rng := t.RootName(), t.SourceRange()
	fail := func(rng hcl.Range, summary, format string, args ...any) (reference, bool) {
		k.fail(n.blame(), rng.Ptr(), summary, format, args...)
		return reference{}, false
	}
	if !slices.Contains(referable, root) {
		roots := append([]string{"each", "count", "path"}, referable...)
		switch {
		case root == "output":
			return fail(rng, "Invalid reference", "Outputs cannot be referred to. Put the value into locals and use local.NAME in both places.")
		case root == "variable" || root == "locals" || root == "policies":
			return fail(rng, "Invalid reference", "Write %s instead of %s.", map[string]string{"variable": "var.NAME", "locals": "local.NAME", "policies": "policy.NAME"}[root], root)
		case len(t) == 1:
			return fail(rng, "Invalid reference", "There is nothing named %s here%s If it is meant as text, put it in quotes: %s.",
				root, ended(didYouMean(root, roots)), quote(root))
		}
		return fail(rng, "Invalid reference", "There is nothing named %s to refer to%s", root, ended(didYouMean(root, roots)))
	}
	name := attrName(t, 1)
	if name == "" {
		return fail(rng, "Invalid reference", "A name must follow: %s.NAME.", root)
	}
	target := m.lookup(root, name)
	if target == nil {
		what := root
		switch root {
		case "var":
			what = "variable"
		case "local":
			what = "local value"
		}
		hint := ended(didYouMean(name, m.names(root)))
		for _, kind := range referable {
			if hint == "." && m.lookup(kind, name) != nil {
				hint = ". Did you mean " + kind + "." + name + "?"
			}
		}
		return fail(hcl.RangeBetween(t[0].SourceRange(), t[1].SourceRange()), "Reference to something undeclared", "There is no %s named %q%s", what, name, hint)
	}
	r := reference{target: target, rng: rng, text: written(t)}
	if root == "module" {
		return m.moduleReference(k, n, t, r)
	}
	if !target.isResource() {
		if root == "policy" && len(t) > 2 {
			return fail(rng, "Invalid reference", "A policy has no attributes to read. Use it whole: policies = [policy.%s].", name)
		}
		return r, true
	}
	rest := t[2:]
	if len(rest) > 0 {
		switch next := rest[0].(type) {
		case hcl.TraverseIndex:
			if !target.repeated() {
				return fail(rng, "Invalid reference", "%s has neither for_each nor count, so it takes no key. Write %s.", target.relative(), target.relative())
			}
			if key, err := keyOf(next.Key); err == nil {
				r.key = key
			}
			rest = rest[1:]
		case hcl.TraverseAttr:
			// A for_each key that is an identifier may also be written as an attribute.
			if target.repeated() {
				if slices.Contains(resourceKinds[root], next.Name) {
					key := "\"KEY\""
					if target.attr("count") != nil {
						key = "0"
					}
					return fail(rng, "Invalid reference", "%s has several instances. Name one, as in %s[%s].%s, or go over all: [for x in %s : x.%s].",
						target.relative(), target.relative(), key, next.Name, target.relative(), next.Name)
				}
				r.key = next.Name
				rest = rest[1:]
			}
		default:
			rest = nil
		}
	}
	if name := attrName(rest, 0); name != "" {
		if !slices.Contains(resourceKinds[root], name) {
			return fail(rng, "Unknown attribute", "%s exports %s, but not %q%s", capital(article(root)), strings.Join(resourceKinds[root], ", "), name,
				ended(didYouMean(name, resourceKinds[root])))
		}
		if name == "ports" && len(rest) > 1 {
			if port := portName(rest[1]); port != "" && !target.makes("port") && !slices.Contains(target.portNames(), port) {
				return fail(rng, "Unknown port", "%s has no port block named %q%s", target.relative(), port, ended(didYouMean(port, target.portNames())))
			}
			if field := attrName(rest, 2); field != "" && !slices.Contains(portFields, field) {
				return fail(rng, "Unknown attribute", "A port exports %s, but not %q%s", strings.Join(portFields, ", "), field, ended(didYouMean(field, portFields)))
			}
		}
	}
	return r, true
}

// moduleReference checks a reference to what a module gives.
func (m *module) moduleReference(k *sink, n *declaration, t hcl.Traversal, r reference) (reference, bool) {
	fail := func(summary, format string, args ...any) (reference, bool) {
		k.fail(n.blame(), t.SourceRange().Ptr(), summary, format, args...)
		return reference{}, false
	}
	target, rest := r.target, t[2:]
	if target.calls == nil {
		return r, true // reported at the block
	}
	if len(rest) > 0 {
		switch next := rest[0].(type) {
		case hcl.TraverseIndex:
			if !target.repeated() {
				return fail("Invalid reference", "%s has neither for_each nor count, so it takes no key. Write %s.", target.relative(), target.relative())
			}
			if key, err := keyOf(next.Key); err == nil {
				r.key = key
			}
			rest = rest[1:]
		case hcl.TraverseAttr:
			if !target.repeated() {
				break
			}
			if target.calls.lookup("output", next.Name) != nil {
				key := "\"KEY\""
				if target.attr("count") != nil {
					key = "0"
				}
				return fail("Invalid reference", "%s has several instances. Name one, as in %s[%s].%s, or go over all: [for x in %s : x.%s].",
					target.relative(), target.relative(), key, next.Name, target.relative(), next.Name)
			}
			r.key = next.Name
			rest = rest[1:]
		default:
			rest = nil
		}
	}
	name := attrName(rest, 0)
	if name == "" {
		return r, true
	}
	if target.calls.lookup("output", name) == nil {
		outputs := target.calls.names("output")
		switch {
		case len(outputs) == 0:
			return fail("Unknown output", "Module %s in %s has no outputs, so nothing can be read of it. Add output %s there.", quote(target.name), target.calls.dir, quote(name))
		case target.calls.lookup("sandbox", name) != nil || slices.Contains(referable, name):
			return fail("Unknown output", "What is in a module is seen from outside only through its outputs, and module %s in %s has none named %q. Add it there.", quote(target.name), target.calls.dir, name)
		}
		return fail("Unknown output", "Module %s in %s has no output %q%s", quote(target.name), target.calls.dir, name, ended(didYouMean(name, outputs)))
	}
	r.output = name
	return r, true
}

var portFields = []string{"address", "container", "host", "protocol"}

func portName(t hcl.Traverser) string {
	switch t := t.(type) {
	case hcl.TraverseAttr:
		return t.Name
	case hcl.TraverseIndex:
		if t.Key.Type() == cty.String && t.Key.IsKnown() && !t.Key.IsNull() {
			return t.Key.AsString()
		}
	}
	return ""
}

// makes reports whether a dynamic block makes blocks of a kind.
func (n *declaration) makes(kind string) bool { return slices.Contains(n.dynamic, kind) }

// portNames are the labels of a sandbox's port blocks, in file order.
func (n *declaration) portNames() []string {
	var out []string
	for _, b := range n.block.Body.Blocks {
		if b.Type == "port" && len(b.Labels) == 1 {
			out = append(out, b.Labels[0])
		}
	}
	return out
}

// explicit reads depends_on.
func (m *module) explicit(k *sink, n *declaration) {
	attr := n.attr("depends_on")
	if attr == nil {
		return
	}
	list, diags := hcl.ExprList(attr.Expr)
	if diags.HasErrors() {
		k.fail(n.blame(), attr.Expr.Range().Ptr(), "Invalid depends_on", "Write a list of references, such as depends_on = [sandbox.db].")
		return
	}
	for _, item := range list {
		t, diags := hcl.AbsTraversalForExpr(item)
		if diags.HasErrors() {
			k.fail(n.blame(), item.Range().Ptr(), "Invalid depends_on", "Write references without quotes, such as depends_on = [sandbox.db].")
			continue
		}
		r, ok := m.reference(k, n, t)
		if !ok {
			continue
		}
		if !r.target.isResource() && r.target.kind != "module" {
			k.fail(n.blame(), item.Range().Ptr(), "Invalid depends_on", "%s is nothing that is created. Name a sandbox, image, network, volume or module.", r.text)
			continue
		}
		if len(t) > 3 || len(t) == 3 && r.key == nil {
			k.fail(n.blame(), item.Range().Ptr(), "Invalid depends_on", "Name the whole %s, not an attribute of it.", r.target.kind)
			continue
		}
		r.whole, r.output = true, ""
		n.explicit = append(n.explicit, r)
	}
}

// written is a traversal as the file has it.
func written(t hcl.Traversal) string {
	var out strings.Builder
	for _, part := range t {
		switch part := part.(type) {
		case hcl.TraverseRoot:
			out.WriteString(part.Name)
		case hcl.TraverseAttr:
			out.WriteString("." + part.Name)
		case hcl.TraverseIndex:
			key, err := keyOf(part.Key)
			if err != nil {
				key = "?"
			}
			out.WriteString(index(key))
		case hcl.TraverseSplat:
			out.WriteString("[*]")
		}
	}
	return out.String()
}

func article(noun string) string {
	if strings.ContainsRune("aeiou", rune(noun[0])) {
		return "an " + noun
	}
	return "a " + noun
}
