package config

import (
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// output evaluates an output block. Those of the root module are kept; others are for
// who calls the module.
func (ev *evaluation) output(n *node) {
	out := Output{Name: n.name}
	if attr := n.attr("description"); attr != nil {
		out.Description = ev.plainText(n, attr)
	}
	attr := n.attr("value")
	if attr == nil {
		n.broken = true
		return // reported with the schema
	}
	v, ok := ev.value(n, attr, n.scope, n.home.address)
	if !ok {
		n.broken = true
		return
	}
	out.Sensitive = ev.flag(n.declaration, "sensitive")
	if out.Sensitive {
		v = v.Mark(sensitive)
	}
	n.value = v
	if n.judged {
		ev.judge(n, n.block.Body, "precondition", n.scope, n.address())
	}
	if n.home.call != nil {
		return
	}
	if v.ContainsMarked() && !out.Sensitive {
		ev.fail("", attr.Expr.Range().Ptr(), "Output of a sensitive value", "Outputs are shown. Write sensitive = true to keep this one hidden, or nonsensitive(…) around what is no secret.")
		return
	}
	v, _ = v.UnmarkDeep()
	if !v.IsWhollyKnown() {
		out.Unknown = true
		ev.out.Outputs = append(ev.out.Outputs, out)
		return
	}
	ty, err := ctyjson.MarshalType(v.Type())
	if err == nil {
		out.Type = ty
		out.Value, err = ctyjson.Marshal(v, v.Type())
	}
	if err != nil {
		ev.fail("", attr.Expr.Range().Ptr(), "Invalid value for value", "It cannot be kept: %s.", err)
		return
	}
	ev.out.Outputs = append(ev.out.Outputs, out)
}

// plainText is an argument that must be a known string.
func (ev *evaluation) plainText(n *node, attr *hclsyntax.Attribute) string {
	v, ok := ev.value(n, attr, n.scope, n.home.address)
	if !ok || v.IsNull() {
		return ""
	}
	if v, ok = ev.open(n.home.address, attr, v); !ok {
		return ""
	}
	text, err := convert.Convert(v, cty.String)
	if err != nil || !text.IsKnown() {
		if !n.tainted {
			ev.fail(n.home.address, attr.Expr.Range().Ptr(), "Invalid value for "+attr.Name, "A string is needed that is known before apply.")
		}
		return ""
	}
	return text.AsString()
}
