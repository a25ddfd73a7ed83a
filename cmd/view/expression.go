package view

import (
	"fmt"
	"strings"

	"github.com/zclconf/go-cty/cty"

	"pinfold/config"
)

// Expression writes the value of an expression as one that gives the same value
// again, as far as it is known and may be shown. A text of several lines is a heredoc.
func Expression(v cty.Value) string { return expression(v, 0) }

func expression(v cty.Value, indent int) string {
	if v.IsMarked() {
		return config.Redacted
	}
	ty := v.Type()
	switch {
	case !v.IsKnown():
		return afterApply
	case v.IsNull():
		return nullOf(ty)
	case ty == cty.String:
		return textExpression(v.AsString(), indent)
	case ty == cty.Number:
		return v.AsBigFloat().Text('f', -1)
	case ty == cty.Bool:
		return fmt.Sprint(v.True())
	case ty.IsObjectType():
		return braced(v, indent)
	case ty.IsMapType():
		return "tomap(" + braced(v, indent) + ")"
	case ty.IsTupleType():
		return listed(v, indent)
	case ty.IsListType():
		return "tolist(" + listed(v, indent) + ")"
	case ty.IsSetType():
		return "toset(" + listed(v, indent) + ")"
	}
	return "(" + ty.FriendlyName() + ")"
}

// nullOf is null with its type, where it has one.
func nullOf(ty cty.Type) string {
	switch {
	case ty == cty.DynamicPseudoType:
		return "null"
	case ty.IsPrimitiveType():
		return "to" + ty.FriendlyName() + "(null)"
	}
	return "null /* " + ty.FriendlyName() + " */"
}

// textExpression is a heredoc where a text of several lines stands alone. One that
// does not end with a line break, or holds what does not print, cannot be one.
func textExpression(s string, indent int) string {
	body := strings.TrimSuffix(s, "\n")
	if indent > 0 || !strings.Contains(body, "\n") || body == s || printable(s) != s {
		return quote(s)
	}
	word := "EOT"
	for strings.Contains(s, word) {
		word += "_"
	}
	return "<<" + word + "\n" + strings.NewReplacer("${", "$${", "%{", "%%{").Replace(body) + "\n" + word
}

func listed(v cty.Value, indent int) string {
	if v.LengthInt() == 0 {
		return "[]"
	}
	var out strings.Builder
	out.WriteString("[\n")
	for it := v.ElementIterator(); it.Next(); {
		_, element := it.Element()
		fmt.Fprintf(&out, "%s%s,\n", spaces(indent+2), expression(element, indent+2))
	}
	return out.String() + spaces(indent) + "]"
}

func braced(v cty.Value, indent int) string {
	if v.LengthInt() == 0 {
		return "{}"
	}
	var out strings.Builder
	out.WriteString("{\n")
	for it := v.ElementIterator(); it.Next(); {
		key, element := it.Element()
		fmt.Fprintf(&out, "%s%s = %s\n", spaces(indent+2), quote(key.AsString()), expression(element, indent+2))
	}
	return out.String() + spaces(indent) + "}"
}
