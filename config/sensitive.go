package config

import (
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// A sensitive value carries a mark, which goes with it through expressions, locals,
// modules and functions to wherever it is decoded. What decides the shape of things,
// or is shown by lists and events, cannot be sensitive; the paths of the rest are in
// Resource.Sensitive. No diagnostic has a sensitive value in its words.

type mark string

const sensitive = mark("sensitive")

// hidden is said instead of what is wrong with a sensitive value.
const hidden = "The value is sensitive, so what exactly is wrong with it is not shown."

// mayBeSensitive tells which arguments take sensitive values: those that are shown
// nowhere but among the values of the resource itself.
func mayBeSensitive(path string) bool {
	switch path {
	case "command", "health.command", "health.http", "user", "working_dir":
		return true
	}
	return within(path, "env") || within(path, "file")
}

// conceal keeps errors about an argument from showing its value.
func (d *decoder) conceal(attr *hclsyntax.Attribute) {
	if !slices.Contains(d.concealed, attr) {
		d.concealed = append(d.concealed, attr)
	}
}

// misplaced reports a sensitive value where none can be.
func (ev *evaluation) misplaced(address string, attr *hclsyntax.Attribute) {
	ev.fail(address, attr.Expr.Range().Ptr(), "Sensitive value out of place",
		"What stands here decides what there is, or is shown by lists and events, so it cannot be sensitive. Use nonsensitive(…) if it is no secret.")
}

// open takes the marks off a value that cannot be sensitive; ok is false when it is.
func (ev *evaluation) open(address string, attr *hclsyntax.Attribute, v cty.Value) (plain cty.Value, ok bool) {
	v, marks := v.UnmarkDeep()
	if len(marks) > 0 {
		ev.misplaced(address, attr)
	}
	return v, len(marks) == 0
}

// tellsNothing are the errors of expressions whose words never hold a value.
var tellsNothing = []string{"Unsupported attribute", "Invalid template interpolation value", "Invalid operand", "Too much work", "No such instance"}

// discreet is a diagnostic about an expression without the values in its words, if
// some that it reads are sensitive.
func discreet(d *hcl.Diagnostic, expr hclsyntax.Expression, scope *hcl.EvalContext) *hcl.Diagnostic {
	if slices.Contains(tellsNothing, d.Summary) || !readsSensitive(expr, scope) {
		return d
	}
	out := *d
	out.Detail = hidden
	return &out
}

// readsSensitive reports whether an expression reads or makes a sensitive value.
func readsSensitive(expr hclsyntax.Expression, scope *hcl.EvalContext) bool {
	for _, t := range hclsyntax.Variables(expr) {
		for ctx := scope; ctx != nil; ctx = ctx.Parent() {
			if v, ok := ctx.Variables[t.RootName()]; ok {
				if v.ContainsMarked() {
					return true
				}
				break
			}
		}
	}
	found := false
	_ = hclsyntax.VisitAll(expr, func(part hclsyntax.Node) hcl.Diagnostics {
		if call, ok := part.(*hclsyntax.FunctionCallExpr); ok && call.Name == "sensitive" {
			found = true
		}
		return nil
	})
	return found
}

// markFunc is a function of any one value, marked or not.
func markFunc(want func(cty.Value) cty.Type, f func(cty.Value) cty.Value) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType, AllowUnknown: true, AllowNull: true, AllowMarked: true, AllowDynamicType: true}},
		Type:   func(args []cty.Value) (cty.Type, error) { return want(args[0]), nil },
		Impl:   func(args []cty.Value, _ cty.Type) (cty.Value, error) { return f(args[0]), nil },
	})
}

func sameType(v cty.Value) cty.Type { return v.Type() }

var (
	sensitiveFunc    = markFunc(sameType, func(v cty.Value) cty.Value { return v.Mark(sensitive) })
	nonsensitiveFunc = markFunc(sameType, func(v cty.Value) cty.Value {
		v, marks := v.Unmark()
		delete(marks, sensitive)
		return v.WithMarks(marks)
	})
	issensitiveFunc = markFunc(func(cty.Value) cty.Type { return cty.Bool }, func(v cty.Value) cty.Value {
		return cty.BoolVal(v.HasMark(sensitive))
	})
)
