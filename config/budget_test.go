package config

import (
	"fmt"
	"strings"
	"testing"
)

// doubling is a chain of locals, each of which uses the one before.
func doubling(first, next string, n int) string {
	out := "  a0 = " + first + "\n"
	for i := 1; i <= n; i++ {
		out += fmt.Sprintf("  a%d = %s\n", i, strings.ReplaceAll(next, "@", fmt.Sprint("local.a", i-1)))
	}
	return out
}

// What would run for minutes, or use up the memory, ends in an error that says
// where, and only once.
func TestEvaluationIsBounded(t *testing.T) {
	for name, locals := range map[string]string{
		"for in for":            "x = [for a in range(100000) : [for b in range(100000) : a]]",
		"for over a local":      "big = range(100000)\n x = [for a in local.big : [for b in local.big : a + b]]",
		"for with an object":    "x = { for a in range(50000) : a => { for b in range(50000) : b => a } }",
		"condition in a for":    "x = [for a in range(100000) : a if length([for b in range(100000) : b]) > 0]",
		"for in a template":     "x = [for a in range(100000) : \"%{ for b in range(100000) }${b}%{ endfor }\"]",
		"splats":                "big = [for a in range(100000) : { b = a }]\n x = [for a in range(100000) : local.big[*].b]",
		"doubled text":          doubling(`"0123456789abcdef"`, `"${@}${@}"`, 60),
		"doubled list":          doubling("[1]", "concat(@, @)", 60),
		"tripled by for":        doubling("[1]", "flatten([for x in range(3) : @])", 60),
		"a long tuple":          "x = join(\"\", [for a in range(100000) : \"a\"])",
		"setproduct":            "x = setproduct(range(10000), range(10000), range(10000))",
		"distinct":              "x = distinct(range(100000))",
		"matchkeys":             "x = matchkeys(range(100000), range(100000), range(100000))",
		"join with a long glue": "glue = join(\"\", [for a in range(10000) : \"01234567890123456789012345678901234567890123456789\"])\n x = join(local.glue, range(100000))",
		"join of a long list":   "text = join(\"\", [for a in range(10000) : \"01234567890123456789012345678901234567890123456789\"])\n x = join(\",\", [for a in range(20000) : local.text])",
		"wide format":           "x = format(\"%0999999999d\", 1)",
		"many formats":          "x = formatlist(\"%099999d\", range(100000))",
		"replace":               "text = join(\"\", [for a in range(10000) : \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"])\n x = replace(local.text, \"a\", local.text)",
		"replace of nothing":    "text = join(\"\", [for a in range(10000) : \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"])\n x = replace(local.text, \"\", local.text)",
		"replace by a pattern":  "text = join(\"\", [for a in range(10000) : \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"])\n x = replace(local.text, \"/a/\", local.text)",
		"indent":                "text = join(\"\\n\", range(100000))\n x = indent(1000000, local.text)",
		"huge number":           "x = \"${1e99999999}\"",
		"huge product":          doubling("1e1000", "@ * @", 60),
		"huge number as JSON":   "x = \"${jsondecode(\"1e99999999\")}\"",
		"nested try":            "x = " + strings.Repeat("try(", 40) + "tonumber(\"x\")" + strings.Repeat(", 1)", 40),
		"many ranges":           "x = [for a in range(100000) : range(100000)]",
	} {
		t.Run(name, func(t *testing.T) {
			s := source(t, "locals {\n"+locals+"\n}\noutput \"o\" { value = local."+map[bool]string{true: "a60", false: "x"}[strings.Contains(locals, "a60")]+" }\n")
			_, diags := s.Evaluate(DefaultSettings(), nil)
			if len(diags) != 1 || !strings.Contains(diags[0].Detail, "too much work") || diags[0].Range == nil {
				t.Fatal(show(t, diags))
			}
		})
	}
}

// Values of variables, their defaults and host settings are bounded as well.
func TestConstantsAreBounded(t *testing.T) {
	list := "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
	expr := list
	for i := range 12 {
		expr = fmt.Sprintf("[for v%d in %s : %s]", i, list, expr)
	}
	s := source(t, "variable \"v\" { default = "+expr+" }\n")
	if _, diags := s.Evaluate(DefaultSettings(), nil); !diags.HasErrors() {
		t.Error("a default")
	}
	dir := directory(t, map[string]string{"main.hcl": "variable \"v\" {}\n", "pinfold.pfvars": "v = " + expr + "\n", "host.hcl": "max_destroy = length(" + expr + ")\n"})
	if _, diags := mustLoad(t, dir, Inputs{}).Evaluate(DefaultSettings(), nil); !diags.HasErrors() {
		t.Error("a value")
	}
	if _, diags := LoadSettings(dir + "/host.hcl"); !diags.HasErrors() {
		t.Error("host settings")
	}
}

// Large configurations that somebody may mean are not refused.
func TestLargeConfigurationsFit(t *testing.T) {
	s := source(t, `
image "base" { source = "host" }
locals {
  names = [for i in range(10000) : format("w%05d", i)]
  text  = join("\n", [for i in range(5000) : "line ${i} of a long file"])
}
sandbox "w" {
  for_each = toset(local.names)
  image    = image.base
  command  = ["x", "--name", each.key, join(",", [for i in range(20) : "${each.key}-${i}"])]
  env      = { for i in range(10) : "V${i}" => upper(format("%s-%d", each.key, i)) }
  labels   = { index = index(["a", "b"], "b"), lines = length(split("\n", "a\nb")) }
}
`)
	d, diags := s.Evaluate(DefaultSettings(), nil)
	if diags.HasErrors() || len(d.Sandboxes) != 10000 {
		t.Fatal(show(t, diags))
	}
}
