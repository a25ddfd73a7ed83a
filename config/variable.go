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

// undeclared reports values set from outside that no variable of the root module takes.
func (ev *evaluation) undeclared() {
	m := ev.root.m
	for _, name := range slices.Sorted(maps.Keys(ev.src.Variables)) {
		v := ev.src.Variables[name]
		if m.lookup("var", name) != nil || v.fromEnvironment() {
			continue // the environment may hold other configurations' values
		}
		// Its value may be that of a sensitive variable whose name is misspelt: the line
		// is told, not shown.
		hint := ended(didYouMean(name, m.names("var")))
		if v.Expr {
			ev.warn(v.place(), "Value for an undeclared variable", "%s sets %q, and no variable block has that name%s", v.Origin, name, hint)
		} else {
			ev.fail("", nil, "Value for an undeclared variable", "%s sets %q, and no variable block has that name%s", v.Origin, name, hint)
		}
	}
}

// constraint is what a variable block demands of values.
type constraint struct {
	ty       cty.Type
	defaults *typeexpr.Defaults
	nullable bool
	secret   bool
	fallback cty.Value // the default, converted; NilVal without one
	bad      bool      // has errors, which are reported
}

// constraintOf reads a variable block, once for all instances of its module.
func (ev *evaluation) constraintOf(d *declaration) *constraint {
	if d.constraint != nil {
		return d.constraint
	}
	c := &constraint{nullable: true, fallback: cty.NilVal}
	d.constraint = c
	body := d.block.Body
	var ok bool
	c.ty, c.defaults, ok = ev.variableType(d, body.Attributes["type"])
	c.bad = !ok
	if attr := body.Attributes["nullable"]; attr != nil {
		v, valid := ev.constant(d, attr, cty.Bool)
		c.bad = c.bad || !valid
		c.nullable = !valid || v.True()
	}
	if attr := body.Attributes["description"]; attr != nil {
		_, valid := ev.constant(d, attr, cty.String)
		c.bad = c.bad || !valid
	}
	c.secret = ev.flag(d, "sensitive")
	attr := body.Attributes["default"]
	if attr == nil {
		return c
	}
	v, diags := ev.budget.within(attr.Expr, ev.budget.constants())
	rng := attr.Expr.Range().Ptr()
	if diags.HasErrors() {
		ev.fail(d.m.path, rng, "Invalid default", "A default is a constant: it cannot use references or functions. Put what is computed into locals.")
		c.bad = true
	}
	if c.bad {
		return c
	}
	if c.fallback, ok = ev.fit(d, c, v, d.m.path, rng, "the default"); !ok {
		c.bad = true
	} else if c.fallback.IsNull() && !c.nullable {
		ev.fail(d.m.path, rng, "Invalid default", "The variable has nullable = false, so its default cannot be null.")
		c.bad = true
	}
	return c
}

// fit converts a value to the variable's type.
func (ev *evaluation) fit(d *declaration, c *constraint, v cty.Value, address string, rng *hcl.Range, origin string) (cty.Value, bool) {
	if c.defaults != nil && !v.IsNull() {
		plain, marks := v.UnmarkDeepWithPaths()
		v = c.defaults.Apply(plain).MarkWithPaths(marks)
	}
	out, err := convert.Convert(v, c.ty)
	if err != nil && (c.secret || v.ContainsMarked()) {
		ev.fail(address, rng, "Wrong type for variable "+quote(d.name), "%s is not what the variable's type %s asks for. %s", capital(origin), typeexpr.TypeString(c.ty), hidden)
		return cty.DynamicVal, false
	}
	if err != nil {
		ev.fail(address, rng, "Wrong type for variable "+quote(d.name), "%s is not what the variable's type %s asks for: %s.", capital(origin), typeexpr.TypeString(c.ty), err)
		return cty.DynamicVal, false
	}
	return out, true
}

// variable gives a variable its value.
func (ev *evaluation) variable(n *node) {
	c := ev.constraintOf(n.declaration)
	switch {
	case c.bad:
		n.broken = true
	case n.home.call == nil:
		ev.rootVariable(n, c)
	default:
		ev.moduleVariable(n, c)
	}
	if c.secret && n.value != cty.NilVal {
		n.value = n.value.Mark(sensitive)
	}
}

// flag is an argument of a block that is a plain true or false.
func (ev *evaluation) flag(d *declaration, name string) bool {
	attr := d.attr(name)
	if attr == nil {
		return false
	}
	v, ok := ev.constant(d, attr, cty.Bool)
	return ok && v.True()
}

// moduleVariable takes the value from the block that calls the module.
func (ev *evaluation) moduleVariable(n *node, c *constraint) {
	v, rng, given := ev.input(n)
	switch {
	case n.broken:
		return
	case !given && c.fallback == cty.NilVal:
		n.broken = true // reported at the block
		return
	case !given:
		n.value = c.fallback
		return
	}
	n.place = &rng
	ev.take(n, c, v, n.home.address, "the value", "It is null here")
}

// rootVariable takes the value from outside.
func (ev *evaluation) rootVariable(n *node, c *constraint) {
	given, set := ev.src.Variables[n.name]
	if !set {
		switch {
		case c.fallback != cty.NilVal:
			n.value = c.fallback
		case ev.valueless:
			n.tainted = true // what it decides cannot be told here
			n.value = cty.UnknownVal(c.ty)
		default:
			ev.fail("", n.rng.Ptr(), "No value for variable "+quote(n.name),
				"The variable has no default. Set it with -var '%s=VALUE', in pinfold.pfvars, in a file given by -var-file, or as PINFOLD_VAR_%s.", n.name, n.name)
			n.broken = true
		}
		return
	}
	raw, ok := ev.given(n.name, given, c)
	if !ok {
		n.broken = true
		return
	}
	ev.show(given)
	if c.secret {
		ev.hide(given)
	}
	n.place = given.place()
	ev.take(n, c, raw, "", "the value from "+given.Origin, capital(given.Origin)+" sets it to null")
}

// take gives the variable the value that was set for it at its place. Where that may
// not be null, its default stands for null; null words it where there is none.
func (ev *evaluation) take(n *node, c *constraint, v cty.Value, address, origin, null string) {
	v, ok := ev.fit(n.declaration, c, v, address, n.place, origin)
	switch {
	case !ok:
		n.broken = true
	case !v.IsNull() || c.nullable:
		n.value = v
	case c.fallback != cty.NilVal:
		n.value = c.fallback
	default:
		ev.fail(address, n.place, "No value for variable "+quote(n.name), "%s, and the variable has nullable = false.", null)
		n.broken = true
	}
}

func (ev *evaluation) variableType(d *declaration, attr *hclsyntax.Attribute) (cty.Type, *typeexpr.Defaults, bool) {
	if attr == nil {
		return cty.DynamicPseudoType, nil, true
	}
	ty, defaults, diags := typeexpr.TypeConstraintWithDefaults(attr.Expr)
	ev.addAll(d.m.path, diags)
	return ty, defaults, !diags.HasErrors()
}

// constant evaluates an argument that can use neither references nor functions.
func (ev *evaluation) constant(d *declaration, attr *hclsyntax.Attribute, ty cty.Type) (cty.Value, bool) {
	v, diags := ev.budget.within(attr.Expr, ev.budget.constants())
	if !diags.HasErrors() {
		if out, err := convert.Convert(v, ty); err == nil && !out.IsNull() && out.IsKnown() {
			return out, true
		}
	}
	ev.fail(d.m.path, attr.Expr.Range().Ptr(), "Invalid "+attr.Name, "%s must be a constant %s.", capital(attr.Name), ty.FriendlyName())
	return cty.NilVal, false
}

// show makes the value's own text the one that diagnostics about its file quote.
func (ev *evaluation) show(v Value) {
	ev.texts[v.file()] = text{src: v.lines(), line: v.start().Line}
}

// hide keeps the value's text, and with it the file it is in, out of diagnostics.
func (ev *evaluation) hide(v Value) { delete(ev.texts, v.file()) }

// given reads a value from outside. Text from the command line or the
// environment is taken as it stands for a string, number or bool, and for a
// variable without a type; for lists, maps and objects it is an expression.
func (ev *evaluation) given(name string, v Value, c *constraint) (cty.Value, bool) {
	if !v.Expr && (c.ty.IsPrimitiveType() || c.ty == cty.DynamicPseudoType) {
		return cty.StringVal(v.Text), true
	}
	ev.show(v)
	if c.secret {
		ev.hide(v)
	}
	expr, diags := hclsyntax.ParseExpression([]byte(v.Text+"\n"), v.file(), v.start())
	if diags.HasErrors() && c.secret {
		ev.fail("", v.place(), "Invalid value for variable "+quote(name), "%s gives it no valid expression. %s", capital(v.Origin), hidden)
		return cty.DynamicVal, false
	}
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
