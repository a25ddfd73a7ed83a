package config

import (
	"slices"
	"strconv"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// trigger is one element of replace_triggered_by as it is written.
type trigger struct {
	reference
	path string
}

// triggers reads replace_triggered_by.
func (m *module) triggers(k *sink, d *declaration) {
	b := blockOf(d.block.Body, "lifecycle")
	if b == nil || b.Body.Attributes["replace_triggered_by"] == nil {
		return
	}
	attr := b.Body.Attributes["replace_triggered_by"]
	list, diags := hcl.ExprList(attr.Expr)
	if diags.HasErrors() {
		k.fail(d.blame(), attr.Expr.Range().Ptr(), "Invalid replace_triggered_by", "Write a list of references, such as replace_triggered_by = [image.base, network.agents.cidr].")
		return
	}
	for _, item := range list {
		if t, ok := m.trigger(k, d, item); ok {
			d.triggers = append(d.triggers, t)
		}
	}
}

func (m *module) trigger(k *sink, d *declaration, item hcl.Expression) (trigger, bool) {
	rng := item.Range()
	fail := func(format string, args ...any) (trigger, bool) {
		k.fail(d.blame(), &rng, "Invalid replace_triggered_by", format, args...)
		return trigger{}, false
	}
	whole, key, rest, ok := takeApart(item)
	if !ok || len(whole) < 2 {
		return fail("Write references without quotes, such as replace_triggered_by = [image.base, sandbox.db.command].")
	}
	kind, name := whole.RootName(), attrName(whole, 1)
	if resourceKinds[kind] == nil {
		return fail("%s is nothing that is created, so it has no changes that could be seen. Name a sandbox, image, network or volume, or an argument of one.", written(whole[:2]))
	}
	target := m.lookup(kind, name)
	if target == nil { // the words for it are those of any reference
		_, _ = m.reference(k, d, whole[:2])
		return trigger{}, false
	}
	out := trigger{reference: reference{target: target, index: key, whole: true, rng: rng, text: kind + "." + name}}
	if len(rest) > 0 {
		if at, isKey := rest[0].(hcl.TraverseIndex); isKey && key == nil {
			literal, err := keyOf(at.Key)
			if err != nil {
				return fail("%s.", capital(err.Error()))
			}
			out.key, rest = literal, rest[1:]
		}
	}
	if (out.key != nil || key != nil) && !target.repeated() {
		return fail("%s has neither for_each nor count, so it takes no key. Write %s.", target.relative(), target.relative())
	}
	if key != nil {
		for _, t := range key.Variables() {
			if t.RootName() != "each" && t.RootName() != "count" {
				return fail("A key here is a literal, or each.key, each.value or count.index.")
			}
			if checkEach(k, d, t, false) {
				return trigger{}, false
			}
		}
	}
	if len(rest) == 0 {
		return out, true
	}
	argument := attrName(rest, 0)
	s := schemaOf(kind)
	if !slices.Contains(s.specNames(), argument) {
		if slices.Contains(resourceKinds[kind], argument) {
			return fail("What is seen are changes of arguments; %s is not one. Write %s for any change of it.", argument, out.text)
		}
		return fail("%s has no argument or block %q%s", capital(article(kind)), argument, ended(didYouMean(argument, s.specNames())))
	}
	for _, part := range rest {
		switch part := part.(type) {
		case hcl.TraverseAttr:
			if out.path == "" {
				out.path = part.Name
			} else {
				out.path = Step(out.path, part.Name)
			}
		case hcl.TraverseIndex:
			literal, err := keyOf(part.Key)
			switch literal := literal.(type) {
			case string:
				out.path = Step(out.path, literal)
			case int:
				out.path += "[" + strconv.Itoa(literal) + "]"
			default:
				return fail("%s.", capital(err.Error()))
			}
		default:
			return fail("A splat names no argument.")
		}
	}
	return out, true
}

// takeApart splits a reference into what names a block, the key if it is computed, and
// what follows.
func takeApart(item hcl.Expression) (whole hcl.Traversal, key hclsyntax.Expression, rest hcl.Traversal, ok bool) {
	if t, diags := hcl.AbsTraversalForExpr(item); !diags.HasErrors() {
		return t[:min(2, len(t))], nil, t[min(2, len(t)):], true
	}
	if relative, is := item.(*hclsyntax.RelativeTraversalExpr); is {
		item, rest = relative.Source, relative.Traversal
	}
	if index, is := item.(*hclsyntax.IndexExpr); is {
		if of, diags := hcl.AbsTraversalForExpr(index.Collection); !diags.HasErrors() && len(of) == 2 {
			return of, index.Key, rest, true
		}
	}
	return nil, nil, nil, false
}

// specNames are the arguments and blocks that decide what a resource is, and are
// enforced.
func (s *schema) specNames() []string {
	return slices.DeleteFunc(s.names(), func(name string) bool {
		switch name {
		case "for_each", "count", "depends_on", "lifecycle", "policies":
			return true
		}
		return !s.usable(name)
	})
}

// replaceTriggers are the instance's replace_triggered_by.
func (d *decoder) replaceTriggers() []Trigger {
	var out []Trigger
	for _, t := range d.n.triggers {
		target := d.n.home.node(t.target)
		key := t.key
		if t.index != nil {
			v, diags := d.ev.budget.within(t.index, d.in.each)
			d.ev.addAll(d.in.address, diags)
			if diags.HasErrors() {
				continue
			}
			var err error
			if key, err = keyOf(v); err != nil {
				d.ev.fail(d.in.address, &t.rng, "Invalid replace_triggered_by", "%s.", capital(err.Error()))
				continue
			}
		}
		if _, found := target.byKey[key]; key != nil && !found && !target.broken {
			d.ev.fail(d.in.address, &t.rng, "No such instance", "%s%s does not exist. %s", t.text, index(key), target.keysHint(key))
			continue
		}
		out = append(out, Trigger{Address: target.address() + index(key), Path: t.path})
	}
	return out
}
