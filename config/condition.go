package config

import (
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
)

// conditionSchema is a validation, a precondition, a postcondition or an assert.
var conditionSchema = &schema{attrs: map[string]attrRule{
	"condition":     {required: true},
	"error_message": {required: true},
}}

// What conditions come to, as Check.Status has it.
const (
	statusPass    = "pass"
	statusFail    = "fail"
	statusUnknown = "unknown" // until applied
)

// verdict is what a condition came to.
type verdict struct {
	status  string
	message string // of one that failed
	rng     hcl.Range
}

// told is what the user's own words say of a condition that failed.
func (v verdict) told() string {
	if strings.TrimSpace(v.message) == "" {
		return "The condition is false."
	}
	return v.message
}

// condition evaluates one condition block of n. ok is false when nothing can be told
// of it: why is reported.
func (ev *evaluation) condition(n *node, b *hclsyntax.Block, scope *hcl.EvalContext, address string) (out verdict, ok bool) {
	attr := b.Body.Attributes["condition"]
	if attr == nil {
		return out, false // reported with the schema
	}
	out.rng = attr.Expr.Range()
	v, ok := ev.value(n, attr, scope, address)
	if !ok {
		return out, false
	}
	v, _ = v.UnmarkDeep() // whether it holds is no secret
	given := v.Type()
	v, err := convert.Convert(v, cty.Bool)
	switch {
	case err != nil:
		ev.fail(address, &out.rng, "Invalid condition", "A condition is true or false, and this is %s.", article(given.FriendlyName()))
		return out, false
	case !v.IsKnown():
		out.status = statusUnknown
	case v.IsNull():
		ev.fail(address, &out.rng, "Invalid condition", "A condition is true or false, and this is null.")
		return out, false
	case v.True():
		out.status = statusPass
	default:
		out.status = statusFail
		out.message = ev.errorMessage(n, b, scope, address)
	}
	return out, true
}

// errorMessage is what a condition that failed says.
func (ev *evaluation) errorMessage(n *node, b *hclsyntax.Block, scope *hcl.EvalContext, address string) string {
	attr := b.Body.Attributes["error_message"]
	if attr == nil {
		return ""
	}
	v, ok := ev.value(n, attr, scope, address)
	if !ok {
		return "Its error_message is wrong as well."
	}
	if v.ContainsMarked() {
		return "Its error_message holds a sensitive value and is not shown."
	}
	v, err := convert.Convert(v, cty.String)
	switch {
	case err != nil || v.IsNull():
		ev.fail(address, attr.Expr.Range().Ptr(), "Invalid error_message", "A text is needed that says what is wrong and what would be right.")
		return ""
	case !v.IsKnown():
		return "Its error_message is known only after apply."
	}
	return v.AsString()
}

// judge evaluates the conditions of one kind in a body, keeps what they came to, and
// reports those that failed: as errors, or for a check block as warnings.
func (ev *evaluation) judge(n *node, body *hclsyntax.Body, kind string, scope *hcl.EvalContext, address string) {
	if n.home.phantom {
		return // there is nothing that could be wrong
	}
	for _, b := range body.Blocks {
		if b.Type != kind {
			continue
		}
		v, ok := ev.condition(n, b, scope, address)
		if !ok {
			continue
		}
		ev.out.Checks = append(ev.out.Checks, Check{
			Address: address, Kind: kind, Status: v.status, Message: v.message,
			Source: Position{File: b.TypeRange.Filename, Line: b.TypeRange.Start.Line},
		})
		if v.status != statusFail || ev.lenient {
			continue
		}
		detail := v.told()
		if kind == "assert" {
			ev.add(n.home.address, &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: "Check failed", Detail: detail, Subject: &v.rng})
			continue
		}
		ev.fail(address, &v.rng, capital(kind)+" failed", "%s", detail)
	}
}

// checkBlock evaluates the asserts of a check block.
func (ev *evaluation) checkBlock(n *node) {
	ev.judge(n, n.block.Body, "assert", n.scope, n.address())
}

// conditions evaluates an instance's preconditions and postconditions. self is what
// others would read of it.
func (d *decoder) conditions(self cty.Value) {
	b := blockOf(d.body, "lifecycle")
	if b == nil || len(b.Body.Blocks) == 0 {
		return
	}
	d.ev.judge(d.n, b.Body, "precondition", d.in.each, d.in.address)
	scope := d.in.each.NewChild()
	scope.Variables = map[string]cty.Value{"self": self}
	d.ev.judge(d.n, b.Body, "postcondition", scope, d.in.address)
}

// judged is self, after the conditions of a whole instance are evaluated.
func (d *decoder) judged(self cty.Value) cty.Value {
	if d.phase == whole {
		d.conditions(self)
	}
	return self
}

// validate evaluates the validations of a variable that has its value.
func (ev *evaluation) validate(n *node) {
	v := n.home.node(n.home.m.lookup("var", n.name))
	if n.home.phantom || v.broken || n.tainted {
		return
	}
	address, place := n.home.address, v.place
	for _, b := range n.block.Body.Blocks {
		if b.Type != "validation" {
			continue
		}
		verdict, ok := ev.condition(n, b, n.scope, address)
		if !ok || verdict.status != statusFail {
			continue
		}
		rule := b.TypeRange
		if place == nil {
			place = &v.rng
		}
		ev.fail(address, place, "Invalid value for variable "+quote(n.name), "%s\n\nThis is the rule at %s line %d.", verdict.told(), rule.Filename, rule.Start.Line)
		v.broken, v.value = true, cty.DynamicVal
	}
}
