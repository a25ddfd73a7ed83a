package config

import (
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// A dynamic block stands for as many blocks of its label's type as its for_each has
// elements. It is written out before the block around it is decoded: the blocks made
// have the content's arguments, each with the element at hand in its scope, so that
// whoever decodes them sees blocks like any other.

const dynamic = "dynamic"

// dynamicSchema is what a dynamic block itself has; its content is of its label's type.
var dynamicSchema = &schema{
	attrs:  map[string]attrRule{"for_each": {required: true}, "iterator": {literal: true}, "labels": {}},
	blocks: map[string]blockRule{"content": {}},
}

// checkDynamic reports what is wrong with a dynamic block in a body of schema s, and
// gives the rule of what it makes.
func (k *sink) checkDynamic(address string, b *hclsyntax.Block, s *schema, what string) {
	if !k.checkLabels(address, b, blockRule{label: "the type of the blocks it makes"}) {
		return
	}
	kind := b.Labels[0]
	rule, known := s.blocks[kind]
	names := s.dynamicNames()
	switch {
	case !known || kind == dynamic:
		hint := didYouMean(kind, names)
		if _, isAttr := s.attrs[kind]; isAttr {
			hint = ": it is an argument. Write " + kind + " = … with a for expression."
		}
		k.fail(address, b.LabelRanges[0].Ptr(), "Unknown block", "%s has no block %q that could be made%s", capital(what), kind, ended(hint))
		return
	case kind == "lifecycle":
		k.fail(address, b.LabelRanges[0].Ptr(), "Invalid dynamic block", "A lifecycle block belongs to the block it stands in, whatever its values, so it cannot be dynamic. Write it out.")
		return
	case rule.later != "":
		k.later(address, b.LabelRanges[0].Ptr(), kind, rule.later)
		return
	}
	title := "block " + header(b)
	k.check(address, b.Body, dynamicSchema, title)
	if attr := b.Body.Attributes["iterator"]; attr != nil && hcl.ExprAsKeyword(attr.Expr) == "" {
		k.fail(address, attr.Expr.Range().Ptr(), "Invalid dynamic block", "The iterator is a name without quotes, such as iterator = item.")
	}
	switch labels := b.Body.Attributes["labels"]; {
	case labels == nil && rule.label != "":
		k.fail(address, b.Body.MissingItemRange().Ptr(), "Missing argument", "A %s block needs %s as a label: give it with labels = [%s.key].", kind, rule.label, kind)
	case labels != nil && rule.label == "":
		k.fail(address, labels.NameRange.Ptr(), "Unknown argument", "A %s block takes no labels.", kind)
	}
	content := blockOf(b.Body, "content")
	if content == nil {
		k.fail(address, b.Body.MissingItemRange().Ptr(), "Missing block", "A dynamic block needs a content block with the arguments of the %s blocks it makes.", kind)
		return
	}
	k.check(address, content.Body, rule.schema, "block "+kind)
}

// dynamicNames are the blocks that may be made dynamically.
func (s *schema) dynamicNames() []string {
	var out []string
	for name, rule := range s.blocks {
		if name != "lifecycle" && rule.later == "" {
			out = append(out, name)
		}
	}
	return out
}

// iteratorOf is the name that a dynamic block's element has in it.
func iteratorOf(b *hclsyntax.Block) string {
	if attr := b.Body.Attributes["iterator"]; attr != nil {
		if name := hcl.ExprAsKeyword(attr.Expr); name != "" {
			return name
		}
	}
	return b.Labels[0]
}

// resolveDynamic finds what a dynamic block refers to. iterators are the names of the
// elements of those around it.
func (m *module) resolveDynamic(k *sink, d *declaration, b *hclsyntax.Block, s *schema, iterators []string) {
	if len(b.Labels) != 1 {
		return
	}
	rule, known := s.blocks[b.Labels[0]]
	if !known || rule.schema == nil {
		return
	}
	d.dynamic = append(d.dynamic, b.Labels[0])
	if attr := b.Body.Attributes["for_each"]; attr != nil {
		m.resolveAttr(k, d, attr, iterators)
	}
	inner := append(slices.Clip(iterators), iteratorOf(b))
	if attr := b.Body.Attributes["labels"]; attr != nil {
		m.resolveAttr(k, d, attr, inner)
	}
	if content := blockOf(b.Body, "content"); content != nil {
		m.resolveBody(k, d, content.Body, rule.schema, inner)
	}
	d.varies = d.varies || d.differs(b)
}

// static is a body without its dynamic blocks.
func static(body *hclsyntax.Body) *hclsyntax.Body {
	out := *body
	out.Blocks = slices.DeleteFunc(slices.Clone(body.Blocks), func(b *hclsyntax.Block) bool { return b.Type == dynamic })
	return &out
}

// elementExpr is an argument of a block that a dynamic block makes.
type elementExpr struct {
	hclsyntax.Expression
	of        *hclsyntax.Attribute // as it is written in content
	variables map[string]cty.Value // the elements of the dynamic blocks around it
}

func (e elementExpr) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	scope := ctx.NewChild()
	scope.Variables = e.variables
	return e.Expression.Value(scope)
}

// bodyOf is a declaration's body with its dynamic blocks written out for an instance.
// What is wrong with them is reported, and they are left out.
func (ev *evaluation) bodyOf(n *node, in *instance) *hclsyntax.Body {
	body := n.block.Body
	switch {
	case n.dynamic == nil:
		return body
	case !n.varies && n.body != nil:
		return n.body
	}
	w := writer{ev: ev, n: n, address: in.address, each: in.each}
	out := w.body(body, nil)
	ev.checkRepeats(in.address, out, schemaOf(n.kind), n.title())
	if !n.varies {
		n.body = out
	}
	return out
}

// writer writes dynamic blocks out.
type writer struct {
	ev      *evaluation
	n       *node
	address string
	each    *hcl.EvalContext
}

// body copies a body. variables are the elements of the dynamic blocks around it.
func (w writer) body(from *hclsyntax.Body, variables map[string]cty.Value) *hclsyntax.Body {
	out := *from
	if variables != nil {
		out.Attributes = make(hclsyntax.Attributes, len(from.Attributes))
		for name, attr := range from.Attributes {
			bound := *attr
			bound.Expr = elementExpr{attr.Expr, attr, variables}
			out.Attributes[name] = &bound
		}
	}
	out.Blocks = make(hclsyntax.Blocks, 0, len(from.Blocks))
	for _, b := range from.Blocks {
		switch {
		case b.Type == dynamic:
			out.Blocks = append(out.Blocks, w.made(b, variables)...)
		default:
			copied := *b
			copied.Body = w.body(b.Body, variables)
			out.Blocks = append(out.Blocks, &copied)
		}
	}
	return &out
}

// made are the blocks that a dynamic block makes.
func (w writer) made(b *hclsyntax.Block, variables map[string]cty.Value) (out []*hclsyntax.Block) {
	attr, content := b.Body.Attributes["for_each"], blockOf(b.Body, "content")
	if attr == nil || content == nil || len(b.Labels) != 1 {
		return nil // reported with the schema
	}
	v, ok := w.value(attr, variables)
	if !ok || !w.ev.iterable(w.n, w.address, attr, v) || !w.affords(attr, v.LengthInt()) {
		return nil
	}
	name := iteratorOf(b)
	for it := v.ElementIterator(); it.Next(); {
		key, value := it.Element()
		if v.Type().IsSetType() {
			key = value
		}
		inner := map[string]cty.Value{}
		for other, element := range variables {
			inner[other] = element
		}
		inner[name] = cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})
		made := *content
		made.Type, made.TypeRange = b.Labels[0], b.TypeRange
		if made.Labels, ok = w.labels(b, inner); !ok {
			return nil
		}
		for range made.Labels {
			made.LabelRanges = append(made.LabelRanges[:0:0], b.Body.Attributes["labels"].Expr.Range())
		}
		made.Body = w.body(content.Body, inner)
		out = append(out, &made)
	}
	return out
}

// affords spends the budget for blocks to be made, and reports when it is used up.
func (w writer) affords(attr *hclsyntax.Attribute, blocks int) bool {
	if w.ev.budget.spend(int64(blocks)*blockSteps) == nil {
		return true
	}
	if !w.ev.budget.told {
		w.ev.budget.told = true
		w.ev.fail(w.address, attr.Expr.Range().Ptr(), "Too much work", "%s", sentence(errTooMuch.Error()))
	}
	return false
}

// value evaluates an argument of the dynamic block itself.
func (w writer) value(attr *hclsyntax.Attribute, variables map[string]cty.Value) (cty.Value, bool) {
	if variables == nil {
		return w.ev.value(w.n, attr, w.each, w.address)
	}
	bound := *attr
	bound.Expr = elementExpr{attr.Expr, attr, variables}
	return w.ev.value(w.n, &bound, w.each, w.address)
}

// labels are those of one block made.
func (w writer) labels(b *hclsyntax.Block, variables map[string]cty.Value) ([]string, bool) {
	attr := b.Body.Attributes["labels"]
	if attr == nil {
		return nil, true
	}
	v, ok := w.value(attr, variables)
	if !ok {
		return nil, false
	}
	if v, ok = w.ev.open(w.address, attr, v); !ok {
		return nil, false
	}
	v, err := convert.Convert(v, cty.List(cty.String))
	rng := attr.Expr.Range().Ptr()
	switch {
	case err != nil || v.IsNull():
		w.ev.fail(w.address, rng, "Invalid labels", "A list with one string is needed, such as labels = [%s.key].", iteratorOf(b))
		return nil, false
	case !v.IsWhollyKnown():
		if !w.n.tainted {
			w.ev.fail(w.address, rng, "Invalid labels", "The names of blocks must be known before anything is made; this value is known only after apply.")
		}
		return nil, false
	case v.LengthInt() != 1 || v.Index(cty.Zero).IsNull():
		w.ev.fail(w.address, rng, "Invalid labels", "A %s block takes one label; this list has %d.", b.Labels[0], v.LengthInt())
		return nil, false
	}
	return []string{v.Index(cty.Zero).AsString()}, true
}

// iterable reports what keeps the for_each of a dynamic block from being gone through.
func (ev *evaluation) iterable(n *node, address string, attr *hclsyntax.Attribute, v cty.Value) bool {
	rng := attr.Expr.Range().Ptr()
	switch {
	case v.IsMarked():
		ev.misplaced(address, attr)
	case v.IsNull():
		ev.fail(address, rng, "Invalid for_each", "The value is null. Use an empty list for no blocks.")
	case !v.IsKnown():
		ev.unknownKeys(n, attr, "for_each")
	case !v.CanIterateElements():
		ev.fail(address, rng, "Invalid for_each", "A list, set, map, tuple or object is needed, not %s.", v.Type().FriendlyName())
	default:
		return true
	}
	return false
}

// checkRepeats reports blocks that dynamic blocks made once too often.
func (k *sink) checkRepeats(address string, body *hclsyntax.Body, s *schema, what string) {
	first := map[string]*hclsyntax.Block{}
	labels := map[[2]string]*hclsyntax.Block{}
	for _, b := range body.Blocks {
		rule, known := s.blocks[b.Type]
		if !known || rule.schema == nil {
			continue
		}
		if k.repeats(address, b, rule, s, what, first, labels) {
			continue
		}
		k.checkRepeats(address, b.Body, rule.schema, "block "+header(b))
	}
}
