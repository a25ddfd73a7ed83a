package config

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// An evaluation is bounded by the work it does, counted in steps, and not by the
// clock: the same configuration is accepted or refused everywhere. A step is about
// a visit to one element of a list, or 64 bytes of text; a call costs callSteps. Six
// million take a second or so.
const (
	maxSteps      = 6_000_000
	instanceSteps = 5_000 // what each instance of a block may cost more
	callSteps     = 10
	loopSteps     = 10
	walkSteps     = 5   // calls go through their arguments and results several times
	blockSteps    = 100 // making a block
	textStep      = 64  // bytes
	yamlSteps     = 5   // making a node
	pairsAStep    = 50  // comparisons of two types
)

// budget is what one evaluation may still do.
type budget struct {
	left  int64
	where *hcl.Range // what used it up, as far as that is known
	told  bool       // that it is used up was reported
}

func newBudget() *budget { return &budget{left: maxSteps} }

var errTooMuch = errors.New("evaluating the configuration takes too much work: lists or texts grow beyond what a configuration needs. Look here for a range(), a for inside a for, or a text made of itself, and make it smaller")

func (b *budget) spend(steps int64) error {
	if b.left -= min(max(steps, 1), maxSteps+1); b.left < 0 {
		return errTooMuch
	}
	return nil
}

func (b *budget) over() bool { return b.left < 0 }

// usedUp ends an evaluation under way from any depth: loops of the language would
// otherwise go on to their end, each round with an error. within recovers it.
type usedUp struct{}

// within evaluates an expression, and reports once, and nothing else, that the
// budget is used up.
func (b *budget) within(e hclsyntax.Expression, ctx *hcl.EvalContext) (v cty.Value, diags hcl.Diagnostics) {
	defer func() {
		switch r := recover(); r.(type) {
		case nil, usedUp:
			if !b.over() {
				return
			}
			if b.where == nil {
				b.where = e.Range().Ptr()
			}
			v, diags = cty.DynamicVal, hcl.Diagnostics{{Severity: hcl.DiagError, Summary: "Too much work", Detail: sentence(errTooMuch.Error()), Subject: b.where}}
		default:
			panic(r)
		}
	}()
	return e.Value(ctx)
}

// pay is spend for an expression, which it ends when the budget is used up.
func (b *budget) pay(n int64, rng hcl.Range) {
	if b.spend(n) != nil {
		if b.where == nil {
			b.where = &rng
		}
		panic(usedUp{})
	}
}

// The budget travels in the evaluation's context, under a name that no expression
// can spell, because syntax trees are shared by evaluations.
const budgetName = " budget"

var budgetType = cty.Capsule("budget", reflect.TypeFor[budget]())

func (b *budget) value() cty.Value { return cty.CapsuleVal(budgetType, b) }

// constants is the context of what can use neither references nor functions.
func (b *budget) constants() *hcl.EvalContext {
	return &hcl.EvalContext{Variables: map[string]cty.Value{budgetName: b.value()}}
}

func budgetOf(ctx *hcl.EvalContext) *budget {
	for ; ctx != nil; ctx = ctx.Parent() {
		if v, ok := ctx.Variables[budgetName]; ok {
			return v.EncapsulatedValue().(*budget)
		}
	}
	return newBudget()
}

// steps is what it costs to walk through a value, as far as that is below limit.
func steps(v cty.Value, limit int64) int64 {
	if v == cty.NilVal || !v.IsKnown() || v.IsNull() {
		return 1
	}
	v, _ = v.Unmark()
	switch ty := v.Type(); {
	case ty == cty.String:
		return 1 + int64(len(v.AsString()))/textStep
	case ty == cty.Number:
		// As many digits as it has when it is written out.
		exponent := int64(v.AsBigFloat().MantExp(nil))
		return 1 + max(exponent, -exponent)/textStep*8
	case ty.IsSetType() && ty.ElementType().IsPrimitiveType():
		return 1 + int64(v.LengthInt())
	case v.CanIterateElements():
		n := int64(1)
		for it := v.ElementIterator(); n <= limit && it.Next(); {
			_, e := it.Element()
			n += steps(e, limit-n)
		}
		return n
	}
	return 1
}

// meter makes functions spend the budget: for the call, for what they walk through
// and for what they give, before they begin where they could give much more than
// they are given.
func (b *budget) meter(all map[string]function.Function) map[string]function.Function {
	out := maps.Clone(all)
	for name, f := range all {
		out[name] = function.New(&function.Spec{
			Description: f.Description(),
			Params:      f.Params(),
			VarParam:    f.VarParam(),
			Type: func(args []cty.Value) (cty.Type, error) {
				n := int64(callSteps)
				for _, a := range args {
					n += steps(a, b.left) * walkSteps
				}
				if name == "yamldecode" { // which unfolds the text to tell its type
					n += growth(name, args)
				}
				if err := b.spend(n); err != nil {
					return cty.NilType, err
				}
				return f.ReturnTypeForValues(args)
			},
			Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
				if err := b.spend(growth(name, args)); err != nil {
					return cty.NilVal, err
				}
				v, err := f.Call(args)
				if err == nil {
					n := steps(v, b.left) * walkSteps
					if name == "range" {
						n *= 2 // counting in the language's numbers is slow
					}
					err = b.spend(n)
				}
				return v, err
			},
		})
	}
	return out
}

// growth is what a call costs beyond its arguments and its result.
func growth(name string, args []cty.Value) int64 {
	args = slices.Clone(args)
	for i, a := range args {
		args[i], _ = a.UnmarkDeep()
		if !a.IsKnown() || a.IsNull() {
			return 0
		}
	}
	length := func(i int) int64 {
		if i >= len(args) || !args[i].CanIterateElements() {
			return 0
		}
		return int64(args[i].LengthInt())
	}
	text := func(i int) string {
		if i >= len(args) || args[i].Type() != cty.String {
			return ""
		}
		return args[i].AsString()
	}
	switch name {
	case "yamldecode":
		return yamlNodes(text(0)) * yamlSteps
	case "setproduct":
		n := int64(1)
		for i := range args {
			n = min(n*length(i), maxSteps+1)
		}
		return n * int64(len(args))
	case "distinct":
		return min(length(0), 1<<31) * min(length(0), 1<<31) / 4
	case "matchkeys":
		return length(1) * length(2)
	case "join":
		n := int64(0)
		for i := 1; i < len(args); i++ {
			n += length(i)
		}
		return n * int64(len(text(0))) / textStep
	case "replace":
		places := int64(len(text(0))) + 1
		if old := text(1); len(old) > 1 && !(strings.HasPrefix(old, "/") && strings.HasSuffix(old, "/")) {
			places = int64(strings.Count(text(0), old))
		}
		return places * int64(len(text(2))) / textStep
	case "indent":
		spaces, _ := args[0].AsBigFloat().Int64()
		return min(max(spaces, 0), 1<<31) * int64(strings.Count(text(1), "\n")) / textStep
	case "format", "formatlist":
		n := int64(1)
		for i := range args {
			n = max(n, length(i))
		}
		return n * widths(text(0)) / textStep
	}
	return 0
}

// widths adds up the numbers in a format, which widths and precisions are among.
func widths(format string) int64 {
	sum, number := int64(0), int64(0)
	for _, c := range format + "%" {
		if c >= '0' && c <= '9' {
			number = min(number*10+int64(c-'0'), 1<<31)
			continue
		}
		sum, number = sum+number, 0
	}
	return sum
}

// The expressions that can cost more than they are long. They embed what the parser
// made, so that walks through the tree find the same parts.
type (
	boundedFor      struct{ *hclsyntax.ForExpr }
	boundedSplat    struct{ *hclsyntax.SplatExpr }
	boundedTemplate struct{ *hclsyntax.TemplateExpr }
	boundedBinary   struct{ *hclsyntax.BinaryOpExpr }
	boundedLiteral  struct{ *hclsyntax.LiteralValueExpr }
	boundedRound    struct{ *hclsyntax.ParenthesesExpr } // of a for
	boundedArg      struct{ *hclsyntax.ParenthesesExpr } // of a call
)

// passed evaluates what an expression goes through, and spends a step per element.
func passed(ctx *hcl.EvalContext, e hclsyntax.Expression, rng hcl.Range) (hclsyntax.Expression, hcl.Diagnostics) {
	v, diags := e.Value(ctx)
	if diags.HasErrors() {
		return nil, diags
	}
	if plain, _ := v.Unmark(); plain.IsKnown() && !plain.IsNull() && plain.CanIterateElements() {
		budgetOf(ctx).pay(int64(plain.LengthInt())*loopSteps, rng)
	}
	return &hclsyntax.LiteralValueExpr{Val: v, SrcRange: e.Range()}, nil
}

func (e boundedFor) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	coll, diags := passed(ctx, e.CollExpr, e.Range())
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	once := *e.ForExpr
	once.CollExpr = coll
	return once.Value(ctx)
}

func (e boundedSplat) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	coll, diags := passed(ctx, e.Source, e.Range())
	if diags.HasErrors() {
		return cty.DynamicVal, diags
	}
	once := *e.SplatExpr
	once.Source = coll
	return once.Value(ctx)
}

func (e boundedTemplate) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	return spent(ctx, e.TemplateExpr)
}

func (e boundedBinary) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	return spent(ctx, e.BinaryOpExpr)
}

func (e boundedLiteral) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	return spent(ctx, e.LiteralValueExpr)
}

// spent evaluates an expression and pays for its result.
func spent(ctx *hcl.EvalContext, e hclsyntax.Expression) (cty.Value, hcl.Diagnostics) {
	v, diags := e.Value(ctx)
	if !diags.HasErrors() {
		budgetOf(ctx).pay(steps(v, maxSteps), e.Range())
	}
	return v, diags
}

func (e boundedRound) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	budgetOf(ctx).pay(1, e.Range()) // a function may have used it up in the round before
	return e.ParenthesesExpr.Value(ctx)
}

// Value also pays for what comes before the call: making a list of a tuple compares
// the types of all its elements with each other.
func (e boundedArg) Value(ctx *hcl.EvalContext) (cty.Value, hcl.Diagnostics) {
	v, diags := e.ParenthesesExpr.Value(ctx)
	if !diags.HasErrors() && v.Type().IsTupleType() {
		n := int64(len(v.Type().TupleElementTypes()))
		budgetOf(ctx).pay(n*n/pairsAStep, e.Range())
	}
	return v, diags
}

// UnwrapExpression lets types of variables be read as syntax, which calls in them are.
func (e boundedArg) UnwrapExpression() hcl.Expression { return e.Expression }

// boundBody bounds every expression of a body.
func boundBody(body *hclsyntax.Body) {
	for _, attr := range body.Attributes {
		attr.Expr = bound(attr.Expr)
	}
	for _, b := range body.Blocks {
		boundBody(b.Body)
	}
}

// bound gives the expression with everything in it bounded that needs it.
func bound(e hclsyntax.Expression) hclsyntax.Expression {
	each := func(list []hclsyntax.Expression) {
		for i := range list {
			list[i] = bound(list[i])
		}
	}
	switch e := e.(type) {
	case *hclsyntax.TemplateExpr:
		if e.IsStringLiteral() {
			return e
		}
		each(e.Parts)
		return boundedTemplate{e}
	case *hclsyntax.TemplateWrapExpr:
		e.Wrapped = bound(e.Wrapped)
	case *hclsyntax.TemplateJoinExpr:
		e.Tuple = bound(e.Tuple)
	case *hclsyntax.FunctionCallExpr:
		for i, arg := range e.Args {
			if _, literal := arg.(*hclsyntax.LiteralValueExpr); !literal {
				e.Args[i] = boundedArg{&hclsyntax.ParenthesesExpr{Expression: bound(arg), SrcRange: arg.Range()}}
			}
		}
	case *hclsyntax.ConditionalExpr:
		e.Condition, e.TrueResult, e.FalseResult = bound(e.Condition), bound(e.TrueResult), bound(e.FalseResult)
	case *hclsyntax.IndexExpr:
		e.Collection, e.Key = bound(e.Collection), bound(e.Key)
	case *hclsyntax.TupleConsExpr:
		each(e.Exprs)
	case *hclsyntax.ObjectConsExpr:
		for i := range e.Items {
			e.Items[i].KeyExpr, e.Items[i].ValueExpr = bound(e.Items[i].KeyExpr), bound(e.Items[i].ValueExpr)
		}
	case *hclsyntax.ObjectConsKeyExpr:
		e.Wrapped = bound(e.Wrapped)
	case *hclsyntax.ForExpr:
		e.CollExpr = bound(e.CollExpr)
		e.ValExpr = boundedRound{&hclsyntax.ParenthesesExpr{Expression: bound(e.ValExpr), SrcRange: e.ValExpr.Range()}}
		if e.KeyExpr != nil {
			e.KeyExpr = bound(e.KeyExpr)
		}
		if e.CondExpr != nil {
			e.CondExpr = bound(e.CondExpr)
		}
		return boundedFor{e}
	case *hclsyntax.SplatExpr:
		e.Source, e.Each = bound(e.Source), bound(e.Each)
		return boundedSplat{e}
	case *hclsyntax.BinaryOpExpr:
		e.LHS, e.RHS = bound(e.LHS), bound(e.RHS)
		return boundedBinary{e}
	case *hclsyntax.UnaryOpExpr:
		e.Val = bound(e.Val)
	case *hclsyntax.ParenthesesExpr:
		e.Expression = bound(e.Expression)
	case *hclsyntax.RelativeTraversalExpr:
		e.Source = bound(e.Source)
	case *hclsyntax.LiteralValueExpr:
		if e.Val.Type() == cty.Number && steps(e.Val, maxSteps) > 1000 {
			return boundedLiteral{e}
		}
	}
	return e
}
