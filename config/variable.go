package config

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// variables gives every variable its value, and reports values set from
// outside that no variable takes.
func (ev *evaluation) variables() {
	for _, name := range slices.Sorted(maps.Keys(ev.m.nodes["var"])) {
		n := ev.m.nodes["var"][name]
		value, ok := ev.variable(n)
		if !ok {
			n.broken, value = true, cty.DynamicVal
		}
		n.value, n.state = value, visited
	}
	for _, name := range slices.Sorted(maps.Keys(ev.src.Variables)) {
		v := ev.src.Variables[name]
		if ev.m.lookup("var", name) != nil || v.fromEnvironment() {
			continue // the environment may hold other configurations' values
		}
		hint := ended(didYouMean(name, ev.m.names("var")))
		ev.show(v)
		if v.Expr {
			ev.warn(v.place(), "Value for an undeclared variable", "%s sets %q, and no variable block has that name%s", v.Origin, name, hint)
		} else {
			ev.fail("", nil, "Value for an undeclared variable", "%s sets %q, and no variable block has that name%s", v.Origin, name, hint)
		}
	}
}

func (ev *evaluation) variable(n *node) (cty.Value, bool) {
	body := n.block.Body
	ty, defaults, ok := ev.variableType(body.Attributes["type"])
	nullable := true
	if attr := body.Attributes["nullable"]; attr != nil {
		v, valid := ev.constant(attr, cty.Bool)
		ok = ok && valid
		nullable = !valid || v.True()
	}
	if attr := body.Attributes["description"]; attr != nil {
		_, valid := ev.constant(attr, cty.String)
		ok = ok && valid
	}
	fit := func(v cty.Value, rng *hcl.Range, origin string) (cty.Value, bool) {
		if defaults != nil && !v.IsNull() {
			v = defaults.Apply(v)
		}
		out, err := convert.Convert(v, ty)
		if err != nil {
			ev.fail("", rng, "Wrong type for variable "+quote(n.name), "%s is not what the variable's type %s asks for: %s.", capital(origin), typeexpr.TypeString(ty), err)
			return cty.DynamicVal, false
		}
		return out, true
	}

	fallback := cty.NilVal
	if attr := body.Attributes["default"]; attr != nil {
		v, diags := ev.budget.within(attr.Expr, ev.budget.constants())
		if diags.HasErrors() {
			ev.fail("", attr.Expr.Range().Ptr(), "Invalid default", "A default is a constant: it cannot use references or functions. Put what is computed into locals.")
			return cty.DynamicVal, false
		}
		if !ok {
			return cty.DynamicVal, false
		}
		if fallback, ok = fit(v, attr.Expr.Range().Ptr(), "the default"); !ok {
			return cty.DynamicVal, false
		}
		if fallback.IsNull() && !nullable {
			ev.fail("", attr.Expr.Range().Ptr(), "Invalid default", "The variable has nullable = false, so its default cannot be null.")
			return cty.DynamicVal, false
		}
	}
	if !ok {
		return cty.DynamicVal, false
	}
	given, set := ev.src.Variables[n.name]
	if !set {
		if fallback == cty.NilVal && ev.valueless {
			n.tainted = true // what it decides cannot be told here
			return cty.UnknownVal(ty), true
		}
		if fallback == cty.NilVal {
			ev.fail("", n.rng.Ptr(), "No value for variable "+quote(n.name),
				"The variable has no default. Set it with -var '%s=VALUE', in pinfold.pfvars, in a file given by -var-file, or as PINFOLD_VAR_%s.", n.name, n.name)
			return cty.DynamicVal, false
		}
		return fallback, true
	}
	raw, ok := ev.given(n.name, given, ty)
	if !ok {
		return cty.DynamicVal, false
	}
	ev.show(given)
	value, ok := fit(raw, given.place(), "the value from "+given.Origin)
	if !ok {
		return cty.DynamicVal, false
	}
	if value.IsNull() && !nullable {
		if fallback != cty.NilVal {
			return fallback, true
		}
		ev.fail("", given.place(), "No value for variable "+quote(n.name), "%s sets it to null, and the variable has nullable = false.", capital(given.Origin))
		return cty.DynamicVal, false
	}
	return value, true
}

func (ev *evaluation) variableType(attr *hclsyntax.Attribute) (cty.Type, *typeexpr.Defaults, bool) {
	if attr == nil {
		return cty.DynamicPseudoType, nil, true
	}
	ty, defaults, diags := typeexpr.TypeConstraintWithDefaults(attr.Expr)
	ev.addAll("", diags)
	return ty, defaults, !diags.HasErrors()
}

// constant evaluates an argument that can use neither references nor functions.
func (ev *evaluation) constant(attr *hclsyntax.Attribute, ty cty.Type) (cty.Value, bool) {
	v, diags := ev.budget.within(attr.Expr, ev.budget.constants())
	if !diags.HasErrors() {
		if out, err := convert.Convert(v, ty); err == nil && !out.IsNull() && out.IsKnown() {
			return out, true
		}
	}
	ev.fail("", attr.Expr.Range().Ptr(), "Invalid "+attr.Name, "%s must be a constant %s.", capital(attr.Name), ty.FriendlyName())
	return cty.NilVal, false
}

// show makes the value's own text the one that diagnostics about its file quote.
func (ev *evaluation) show(v Value) {
	ev.texts[v.file()] = text{src: v.lines(), line: v.start().Line}
}

// given reads a value from outside. Text from the command line or the
// environment is taken as it stands for a string, number or bool, and for a
// variable without a type; for lists, maps and objects it is an expression.
func (ev *evaluation) given(name string, v Value, ty cty.Type) (cty.Value, bool) {
	if !v.Expr && (ty.IsPrimitiveType() || ty == cty.DynamicPseudoType) {
		return cty.StringVal(v.Text), true
	}
	ev.show(v)
	expr, diags := hclsyntax.ParseExpression([]byte(v.Text+"\n"), v.file(), v.start())
	if diags.HasErrors() {
		if !v.Expr {
			for _, d := range diags {
				d.Detail += fmt.Sprintf(" The value of variable %s is written as in a file: a list as '%s=[\"a\", \"b\"]'.", quote(name), name)
			}
		}
		ev.addAll("", diags)
		return cty.DynamicVal, false
	}
	out, diags := ev.budget.within(bound(expr), ev.budget.constants())
	if diags.HasErrors() {
		ev.fail("", expr.Range().Ptr(), "Invalid value for variable "+quote(name), "Values of variables are constants: they cannot use references or functions. Put text in double quotes.")
		return cty.DynamicVal, false
	}
	return out, true
}
