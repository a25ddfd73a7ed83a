package config

import (
	"cmp"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// decoder turns one instance's block into its spec.
//
// Of a sandbox with for_each or count, what reads neither each nor count is the
// same for all instances: it is decoded once (phase shared), and each instance
// starts from a copy of that and decodes the rest (phase own).
type decoder struct {
	ev        *evaluation
	n         *node
	in        *instance
	body      *hclsyntax.Body // the block's, dynamic blocks written out
	phase     phase
	unknown   []string
	sensitive []string               // paths
	concealed []*hclsyntax.Attribute // whose values must not be shown
	inherited []place                // of the shared phase
	places    []place
	needs     []string // found while decoding, beside n.needs
	lifecycle Lifecycle
	badProbe  bool // a health probe is written and wrong
}

type phase int

const (
	whole phase = iota
	shared
	own
)

// place says where the value of a path was written.
type place struct {
	path string
	at   Position
	attr *hclsyntax.Attribute
}

func (ev *evaluation) decoder(n *node, in *instance) *decoder {
	return &decoder{ev: ev, n: n, in: in, body: ev.bodyOf(n, in)}
}

// sharedDecoder decodes what reads neither each nor count, on behalf of the block.
func (ev *evaluation) sharedDecoder(n *node) *decoder {
	in := &instance{address: n.address(), each: n.scope}
	if n.varies { // what its dynamic blocks make is not shared
		return &decoder{ev: ev, n: n, in: in, body: static(n.block.Body), phase: shared}
	}
	d := ev.decoder(n, in)
	d.phase = shared
	return d
}

// skips reports whether an argument is not this phase's.
func (d *decoder) skips(l layer, attr *hclsyntax.Attribute) bool {
	if d.phase == whole {
		return false
	}
	x := l.n.expression(attr)
	return x != nil && x.perInstance != (d.phase == own)
}

// skipsBlock reports whether no argument of a block is this phase's.
func (d *decoder) skipsBlock(b *hclsyntax.Block) bool {
	return d.phase == own && !d.n.differs(b)
}

// differs reports whether an argument of a block, at any depth, reads each or count.
func (n *declaration) differs(b *hclsyntax.Block) bool {
	for _, attr := range b.Body.Attributes {
		if x := n.expression(attr); x != nil && x.perInstance {
			return true
		}
	}
	for _, nested := range b.Body.Blocks {
		if n.differs(nested) {
			return true
		}
	}
	return false
}

// layer is one place that values come from: the block itself or a policy.
type layer struct {
	n      *node
	scope  *hcl.EvalContext
	body   *hclsyntax.Body // its dynamic blocks written out
	policy string          // address of the policy; empty for the block itself
}

func (d *decoder) own() layer { return layer{n: d.n, scope: d.in.each, body: d.body} }

type presence int

const (
	absent presence = iota // not written, null, or wrong and reported
	unknown
	present
)

// read evaluates one argument and converts it. It records where the value of
// path comes from, and whether it is unknown.
func (d *decoder) read(l layer, body *hclsyntax.Body, name, path string, ty cty.Type) (cty.Value, *hclsyntax.Attribute, presence) {
	attr := body.Attributes[name]
	if attr == nil || d.skips(l, attr) {
		return cty.NilVal, nil, absent
	}
	v, ok := d.ev.value(l.n, attr, l.scope, d.in.address)
	if !ok || v.IsNull() {
		return cty.NilVal, attr, absent
	}
	hide := false
	parts := !v.IsMarked() && v.IsKnown() && elementwise(v.Type(), ty) // each element is looked at by itself
	if !parts && marked(v) {
		d.conceal(attr)
		if !mayBeSensitive(path) {
			d.ev.misplaced(d.in.address, attr)
			return cty.NilVal, attr, absent
		}
		hide = true
		v, _ = v.UnmarkDeep()
	}
	// A list or map is converted element by element by its caller.
	if v.Type() != ty && !(v.IsKnown() && elementwise(v.Type(), ty)) {
		var err error
		if v, err = convert.Convert(v, ty); err != nil {
			d.wrong(attr, "%s", sentence(err.Error()))
			return cty.NilVal, attr, absent
		}
	}
	d.written(path, l, attr)
	if hide {
		d.sensitive = append(d.sensitive, path)
	}
	if !v.IsKnown() {
		d.unknown = append(d.unknown, path)
		return v, attr, unknown
	}
	return v, attr, present
}

// written records that a layer sets path, in place of whatever was there.
func (d *decoder) written(path string, l layer, attr *hclsyntax.Attribute) {
	if len(d.unknown) > 0 {
		d.unknown = slices.DeleteFunc(d.unknown, func(p string) bool { return within(p, path) })
	}
	if len(d.sensitive) > 0 {
		d.sensitive = slices.DeleteFunc(d.sensitive, func(p string) bool { return within(p, path) })
	}
	position := Position{File: attr.NameRange.Filename, Line: attr.NameRange.Start.Line, Policy: l.policy}
	d.places = append(d.places, place{path, position, attr})
}

// argument is what path was written with last; nil when nobody wrote it.
func (d *decoder) argument(path string) *hclsyntax.Attribute {
	for _, places := range [][]place{d.places, d.inherited} {
		for i := len(places) - 1; i >= 0; i-- {
			if places[i].path == path {
				return places[i].attr
			}
		}
	}
	return nil
}

// elementwise reports whether have is a list or map of the shape of want whose
// elements can be converted one by one: much cheaper than converting it whole.
func elementwise(have, want cty.Type) bool {
	switch {
	case want.IsListType():
		return have.IsListType() || have.IsTupleType()
	case want.IsMapType():
		return have.IsMapType() || have.IsObjectType()
	}
	return false
}

// toText converts an element of a list or map.
func toText(v cty.Value) (cty.Value, error) {
	switch {
	case v.Type() == cty.String:
		return v, nil
	case v.Type() == cty.Number && v.IsKnown() && !v.IsNull():
		// Whole numbers are common, and converting them the general way is slow.
		if n, accuracy := v.AsBigFloat().Int64(); accuracy == big.Exact {
			return cty.StringVal(strconv.FormatInt(n, 10)), nil
		}
	}
	return convert.Convert(v, cty.String)
}

// sources are the positions of all paths written, the last of each.
func (d *decoder) sources() map[string]Position {
	out := make(map[string]Position, len(d.inherited)+len(d.places))
	for _, p := range d.inherited {
		out[p.path] = p.at
	}
	for _, p := range d.places {
		out[p.path] = p.at
	}
	return out
}

// within reports whether path p is root or a part of it.
func within(p, root string) bool {
	return strings.HasPrefix(p, root) && (len(p) == len(root) || p[len(root)] == '.' || p[len(root)] == '[')
}

func (d *decoder) isUnknown(path string) bool { return slices.Contains(d.unknown, path) }

// wrong reports a value that does not do, at its expression.
func (d *decoder) wrong(attr *hclsyntax.Attribute, format string, args ...any) {
	if slices.Contains(d.concealed, attr) {
		format, args = hidden, nil
	}
	d.ev.fail(d.in.address, attr.Expr.Range().Ptr(), "Invalid value for "+attr.Name, format, args...)
}

// sentence makes an error's text one.
func sentence(s string) string {
	s = capital(s)
	if strings.HasSuffix(s, ".") || strings.HasSuffix(s, "?") {
		return s
	}
	return s + "."
}

// kind is how values of one meaning are read: the type they are converted to,
// and the check that follows.
type kind[T any] struct {
	ty  cty.Type
	get func(cty.Value) (T, error)
}

// set decodes an argument into dst when it is written; an unknown one sets the
// zero value.
func set[T any](d *decoder, l layer, body *hclsyntax.Body, name, path string, k kind[T], dst *T) presence {
	v, attr, p := d.read(l, body, name, path, k.ty)
	switch p {
	case unknown:
		var zero T
		*dst = zero
	case present:
		out, err := k.get(v)
		if err != nil {
			d.wrong(attr, "%s", sentence(err.Error()))
			return absent
		}
		*dst = out
	}
	return p
}

// require is set for an argument that null does not leave out.
func require[T any](d *decoder, l layer, body *hclsyntax.Body, name, path string, k kind[T], dst *T) presence {
	p := set(d, l, body, name, path, k, dst)
	if attr := body.Attributes[name]; p == absent && attr != nil && !d.skips(l, attr) {
		if v, ok := d.ev.value(l.n, attr, l.scope, d.in.address); ok && v.IsNull() {
			d.ev.fail(d.in.address, attr.Expr.Range().Ptr(), "Missing argument", "%s is required, and its value is null.", name)
		}
	}
	return p
}

// setTexts decodes a list of strings; unknown elements are left empty.
func setTexts(d *decoder, l layer, body *hclsyntax.Body, name, path string, dst *[]string) presence {
	v, attr, p := d.read(l, body, name, path, cty.List(cty.String))
	switch p {
	case unknown:
		*dst = nil
	case present:
		out := make([]string, 0, v.LengthInt())
		for it := v.ElementIterator(); it.Next(); {
			_, element := it.Element()
			if marked(element) {
				if !d.hides(attr, path) {
					return absent
				}
				element, _ = element.UnmarkDeep()
				d.sensitive = append(d.sensitive, StepAt(path, len(out)))
			}
			element, err := toText(element)
			switch {
			case err != nil:
				d.wrong(attr, "Element %d: %s.", len(out), err)
				return absent
			case element.IsNull():
				d.wrong(attr, "Element %d is null.", len(out))
				return absent
			case !element.IsKnown():
				d.unknown = append(d.unknown, StepAt(path, len(out)))
				out = append(out, "")
			default:
				out = append(out, element.AsString())
			}
		}
		*dst = out
	}
	return p
}

// marked reports whether a value is sensitive, whole or in parts.
func marked(v cty.Value) bool {
	if v.Type().IsPrimitiveType() {
		return v.IsMarked()
	}
	return v.ContainsMarked()
}

// hides keeps errors about an argument with a sensitive element from showing it. It is
// false, and that is reported, when the argument may have none.
func (d *decoder) hides(attr *hclsyntax.Attribute, path string) bool {
	d.conceal(attr)
	if !mayBeSensitive(path) {
		d.ev.misplaced(d.in.address, attr)
		return false
	}
	return true
}

// setPairs decodes a map of strings. A null value leaves its key out; an
// unknown one is left empty.
func setPairs(d *decoder, l layer, body *hclsyntax.Body, name, path string, check func(key, value string) error, dst *map[string]string) {
	v, attr, p := d.read(l, body, name, path, cty.Map(cty.String))
	switch p {
	case unknown:
		*dst = nil
	case present:
		out := make(map[string]string, v.LengthInt())
		for it := v.ElementIterator(); it.Next(); {
			k, element := it.Element()
			key, value := k.AsString(), ""
			if marked(element) {
				if !d.hides(attr, path) {
					return
				}
				element, _ = element.UnmarkDeep()
				d.sensitive = append(d.sensitive, Step(path, key))
			}
			element, err := toText(element)
			if err != nil {
				d.wrong(attr, "Element %q: %s.", key, err)
				continue
			}
			if element.IsNull() {
				continue
			}
			if element.IsKnown() {
				value = element.AsString()
			} else if slices.Contains(d.sensitive, path) { // not even its key is told
				d.unknown, *dst = append(d.unknown, path), nil
				return
			} else {
				d.unknown = append(d.unknown, Step(path, key))
			}
			if err := check(key, value); err != nil {
				d.wrong(attr, "%s", sentence(err.Error()))
				continue
			}
			out[key] = value
		}
		if len(out) == 0 {
			out = nil
		}
		*dst = out
	}
}

// refer decodes an argument that names another block, such as image.base. ok is
// false when there is none or it is wrong and reported. Null is an error where
// the argument is required.
func (d *decoder) refer(l layer, body *hclsyntax.Body, name, path, kind string, required bool) (address string, ok bool) {
	attr := body.Attributes[name]
	if attr == nil || d.skips(l, attr) {
		return "", false
	}
	v, ok := d.ev.value(l.n, attr, l.scope, d.in.address)
	if ok && v.IsNull() && required {
		d.ev.fail(d.in.address, attr.Expr.Range().Ptr(), "Missing argument", "%s is required, and its value is null.", name)
	}
	if !ok || v.IsNull() {
		return "", false
	}
	if v, ok = d.ev.open(d.in.address, attr, v); !ok {
		return "", false
	}
	address, ok = d.target(attr.Name, attr.Expr.Range(), v, kind)
	if ok {
		d.written(path, l, attr)
		if kind != "policy" {
			d.needs = append(d.needs, address)
		}
	}
	return address, ok
}

// target is the address behind a value that should be a block of a kind.
func (d *decoder) target(name string, rng hcl.Range, v cty.Value, kind string) (string, bool) {
	fail := func(format string, args ...any) (string, bool) {
		d.ev.fail(d.in.address, &rng, "Invalid value for "+name, format, args...)
		return "", false
	}
	example := kind + ".NAME"
	if names := d.n.home.m.names(kind); len(names) > 0 {
		example = kind + "." + names[0]
	}
	ty := v.Type()
	switch {
	case v.IsNull():
		return fail("A reference such as %s is needed, not null.", example)
	case ty == cty.String && v.IsKnown():
		given := v.AsString()
		if best := closest(strings.TrimPrefix(given, kind+"."), d.n.home.m.names(kind)); best != "" {
			example = kind + "." + best
		}
		return fail("A reference to %s block is needed, not a string: write %s without quotes.", article(kind), example)
	case !v.IsKnown():
		if d.n.tainted {
			return "", false
		}
		return fail("Which %s is meant must be known before anything is made; this value is known only after apply.", kind)
	case ty.IsObjectType() && ty.HasAttribute("id") && ty.AttributeType("id") == cty.String:
		id := v.GetAttr("id")
		if !id.IsKnown() || id.IsNull() {
			return fail("A reference such as %s is needed.", example)
		}
		address := id.AsString()
		policy := d.ev.policies[address]
		if kind == "policy" && policy != nil || d.ev.known[address] == kind {
			return address, true
		}
		if other := d.ev.known[address]; other != "" {
			return fail("%s is %s, and %s is needed here, such as %s.", address, article(other), article(kind), example)
		}
		if policy != nil {
			return fail("%s is a policy, and %s is needed here, such as %s.", address, article(kind), example)
		}
	case ty.IsMapType() || ty.IsListType():
		if element := ty.ElementType(); element.IsObjectType() && element.HasAttribute("id") {
			key := "each.key"
			if ty.IsListType() {
				key = "count.index"
			}
			return fail("The block has several instances. Name one by its key, as in %s[%s].", example, key)
		}
	}
	return fail("A reference to %s block is needed, such as %s, not %s.", article(kind), example, ty.FriendlyName())
}

// readLifecycle decodes the lifecycle block.
func (d *decoder) readLifecycle() {
	b := blockOf(d.body, "lifecycle")
	if b == nil {
		return
	}
	l := d.own()
	mustBool := func(name string, dst *bool) {
		if set(d, l, b.Body, name, "lifecycle."+name, asBool, dst) == unknown && !d.n.tainted {
			d.ev.fail(d.in.address, b.Body.Attributes[name].Expr.Range().Ptr(), "Invalid value for "+name, "It must be known before anything is made.")
		}
	}
	mustBool("prevent_destroy", &d.lifecycle.PreventDestroy)
	mustBool("create_before_destroy", &d.lifecycle.CreateBeforeDestroy)
	if attr := b.Body.Attributes["ignore_changes"]; attr != nil {
		d.ignoreChanges(l, attr)
	}
}

func (d *decoder) ignoreChanges(l layer, attr *hclsyntax.Attribute) {
	names := schemaOf(d.n.kind).specNames()
	d.written("lifecycle.ignore_changes", l, attr)
	if hcl.ExprAsKeyword(attr.Expr) == "all" {
		if len(names) > 0 {
			d.lifecycle.IgnoreChanges = names
		}
		return
	}
	list, diags := hcl.ExprList(attr.Expr)
	if diags.HasErrors() {
		d.wrong(attr, "Write a list of arguments or blocks, such as ignore_changes = [labels], or all.")
		return
	}
	var chosen []string
	for _, item := range list {
		t, diags := hcl.AbsTraversalForExpr(item)
		switch {
		case diags.HasErrors():
			d.ev.fail(d.in.address, item.Range().Ptr(), "Invalid value for ignore_changes", "Write names without quotes, such as ignore_changes = [labels].")
		case !slices.Contains(names, t.RootName()):
			d.ev.fail(d.in.address, item.Range().Ptr(), "Invalid value for ignore_changes", "%s has no argument or block %q%s",
				capital(article(d.n.kind)), t.RootName(), ended(didYouMean(t.RootName(), names)))
		case len(t) > 1:
			d.ev.later(d.in.address, item.Range().Ptr(), "a part of an argument in ignore_changes", "Write "+t.RootName()+", which ignores changes of all of it.")
		default:
			chosen = append(chosen, t.RootName())
		}
	}
	slices.Sort(chosen)
	d.lifecycle.IgnoreChanges = slices.Compact(chosen)
}

// usable reports whether the schema's argument or block is enforced.
func (s *schema) usable(name string) bool {
	if a, ok := s.attrs[name]; ok {
		return a.later == ""
	}
	return s.blocks[name].later == ""
}

// finish makes the resource of a decoded spec.
func finish[T any](d *decoder, spec T) Resource[T] {
	slices.Sort(d.unknown)
	slices.Sort(d.sensitive)
	d.sensitive = slices.Compact(d.sensitive)
	d.lifecycle.ReplaceTriggeredBy = d.replaceTriggers()
	sources := d.n.sources
	if !d.n.sharesSources(d.inherited, d.places) {
		sources = d.sources()
		d.n.sources, d.n.places = sources, slices.Concat(d.inherited, d.places)
	}
	return Resource[T]{
		Address:   d.in.address,
		Spec:      spec,
		Unknown:   slices.Compact(d.unknown),
		Sensitive: d.sensitive,
		DependsOn: d.dependsOn(),
		Lifecycle: d.lifecycle,
		Source:    Position{File: d.n.rng.Filename, Line: d.n.rng.Start.Line},
		Sources:   sources,
		Blocks:    d.labelled(),
	}
}

// labelled tells where the labelled blocks inside begin, by attribute path. All
// instances share the map, unless dynamic blocks make others for each.
func (d *decoder) labelled() map[string]Position {
	if d.n.blocks != nil && d.n.dynamic == nil {
		return d.n.blocks
	}
	out := map[string]Position{}
	for _, b := range d.body.Blocks {
		if len(b.Labels) == 1 {
			out[Step(b.Type, b.Labels[0])] = Position{File: b.TypeRange.Filename, Line: b.TypeRange.Start.Line}
		}
	}
	d.n.blocks = out
	return out
}

// sharesSources reports whether the last instance's values came from the same
// places, as nearly always.
func (n *declaration) sharesSources(inherited, places []place) bool {
	return n.sources != nil && len(n.places) == len(inherited)+len(places) &&
		slices.Equal(n.places[:len(inherited)], inherited) && slices.Equal(n.places[len(inherited):], places)
}

// at is the path of a list's element.

// dependsOn is what the whole block needs and what this instance's computed
// keys name. Instances without such keys share one slice.
func (d *decoder) dependsOn() []string {
	var missing []string
	add := func(addresses []string) {
		for _, a := range addresses {
			if _, found := slices.BinarySearch(d.n.needs, a); !found {
				missing = append(missing, a)
			}
		}
	}
	add(d.needs)
	if d.phase != shared { // there is no key yet
		for _, r := range d.n.computed {
			add(r.addresses(d.n.home, d.in.each))
		}
	}
	if len(missing) == 0 {
		return d.n.needs
	}
	out := slices.Concat(d.n.needs, missing)
	slices.SortFunc(out, cmp.Compare[string])
	return slices.Compact(out)
}

// blockOf is the one block of a type, or nil.
func blockOf(body *hclsyntax.Body, kind string) *hclsyntax.Block {
	for _, b := range body.Blocks {
		if b.Type == kind {
			return b
		}
	}
	return nil
}
