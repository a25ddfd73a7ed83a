package view

import (
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

func TestExpression(t *testing.T) {
	text := cty.StringVal
	for _, tc := range []struct {
		v    cty.Value
		want string
	}{
		{text("a\"${x}"), `"a\"$${x}"`},
		{text("one\ntwo\n"), "<<EOT\none\ntwo\nEOT"},
		{text("  EOT ${a}\n%{b}\n"), "<<EOT_\n  EOT $${a}\n%%{b}\nEOT_"},
		{text("one\ntwo"), `"one\ntwo"`},
		{text("one\n\x1b[2J\n"), `"one\n\u001b[2J\n"`},
		{cty.MustParseNumberVal("100000000000000000001.5"), "100000000000000000001.5"},
		{cty.True, "true"},
		{cty.NullVal(cty.String), "tostring(null)"},
		{cty.NullVal(cty.DynamicPseudoType), "null"},
		{cty.NullVal(cty.List(cty.String)), "null /* list of string */"},
		{cty.UnknownVal(cty.Number), "(known after apply)"},
		{text("secret").Mark("sensitive"), "(sensitive value)"},
		{cty.ListValEmpty(cty.String), "tolist([])"},
		{cty.SetVal([]cty.Value{text("b"), text("a")}), "toset([\n  \"a\",\n  \"b\",\n])"},
		{cty.EmptyObjectVal, "{}"},
		{cty.TupleVal([]cty.Value{
			cty.MapVal(map[string]cty.Value{"k": text("one\ntwo\n")}),
			cty.ObjectVal(map[string]cty.Value{"a b": text("s").Mark("sensitive"), "c": cty.UnknownVal(cty.String)}),
		}), "[\n  tomap({\n    \"k\" = \"one\\ntwo\\n\"\n  }),\n  {\n    \"a b\" = (sensitive value)\n    \"c\" = (known after apply)\n  },\n]"},
	} {
		if got := Expression(tc.v); got != tc.want {
			t.Errorf("%#v is\n%s\nnot\n%s", tc.v, got, tc.want)
		}
		if !tc.v.IsWhollyKnown() || tc.v.ContainsMarked() || tc.v.IsNull() {
			continue
		}
		expr, diags := hclsyntax.ParseExpression([]byte(tc.want+"\n"), "", hcl.InitialPos)
		if diags.HasErrors() {
			t.Errorf("%s cannot be read: %v", tc.want, diags)
			continue
		}
		if !tc.v.Type().IsPrimitiveType() {
			continue // that needs functions
		}
		if back, diags := expr.Value(nil); diags.HasErrors() || !back.RawEquals(tc.v) {
			t.Errorf("%s reads back as %#v: %v", tc.want, back, diags)
		}
	}
}
