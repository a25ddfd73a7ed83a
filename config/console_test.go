package config

import (
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"
)

const consoleConfig = `
variable "given" { default = "x" }
variable "open" { type = string }
locals { words = ["a", var.given] }
image "base" { source = "host" }
network "n" {}
sandbox "w" {
  for_each = toset(local.words)
  image    = image.base
  command  = ["sleep", var.open]
  network { name = network.n }
}
sandbox "unused" {
  image   = image.base
  command = ["true"]
}
`

func TestConsole(t *testing.T) {
	dir := directory(t, map[string]string{"main.hcl": consoleConfig, "note.txt": "noted"})
	s := mustLoad(t, dir, Inputs{})
	c, diags := s.Console(Settings{}, Exports{"sandbox.unused": {Address: "10.1.2.3", InstanceID: "0123456789ab"}, "network.n": {CIDR: "10.1.2.0/24", Gateway: "10.1.2.1"}})
	if len(diags) > 0 {
		t.Fatalf("the configuration: %s", show(t, diags))
	}
	for text, want := range map[string]cty.Value{
		"1 + 1":                                 cty.NumberIntVal(2),
		"local.words":                           cty.TupleVal([]cty.Value{cty.StringVal("a"), cty.StringVal("x")}),
		"var.open":                              cty.UnknownVal(cty.String),
		"network.n.gateway":                     cty.StringVal("10.1.2.1"),
		"sandbox.unused.instance_id":            cty.StringVal("0123456789ab"),
		`sandbox.w["a"].id`:                     cty.StringVal(`sandbox.w["a"]`),
		"keys(sandbox.w)":                       cty.ListVal([]cty.Value{cty.StringVal("a"), cty.StringVal("x")}),
		"[for w in local.words :\n\n upper(w)]": cty.TupleVal([]cty.Value{cty.StringVal("A"), cty.StringVal("X")}),
		"<<EOT\none\nEOT":                       cty.StringVal("one\n"),
		`file("note.txt")`:                      cty.StringVal("noted"), // not read when the files were loaded
		"path.module":                           cty.StringVal("."),
		`try(sandbox.w["z"].id, "none")`:        cty.StringVal("none"),
	} {
		got, diags := c.Evaluate(text)
		if len(diags) > 0 {
			t.Errorf("%s: %s", text, show(t, diags))
		} else if !got.RawEquals(want) && got.IsKnown() == want.IsKnown() && (!got.IsKnown() || !got.Equals(want).True()) {
			t.Errorf("%s is %#v, not %#v", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"1 +":                                    "Missing expression",
		"sandbox.v":                              `There is no sandbox named "v". Did you mean "w"?`,
		"each.key":                               "the console has none",
		"timestamp()":                            "Function timestamp() is refused",
		"output.x":                               "Outputs cannot be referred to",
		"uper(var.given)":                        `There is no function "uper". Did you mean "upper"?`,
		`sandbox.w["b"].id`:                      `Its keys are "a", "x"`,
		"[for a in range(90000) : range(90000)]": "Too much work",
		strings.Repeat("(", 6000) + "1" + strings.Repeat(")", 6000): "Nested too deeply",
	} {
		_, diags := c.Evaluate(text)
		if !diags.HasErrors() || !strings.Contains(show(t, diags), want) {
			t.Errorf("%.40s: %s\nlacks %s", text, show(t, diags), want)
		}
	}
	if v, diags := c.Evaluate("length(range(100000))"); len(diags) > 0 || !v.RawEquals(cty.NumberIntVal(100000)) {
		t.Errorf("after one that was too much work: %#v %s", v, show(t, diags))
	}
}

// What is wrong with the files is told once; what is not concerned can be asked for.
func TestConsoleOverBrokenFiles(t *testing.T) {
	dir := directory(t, map[string]string{"main.hcl": "locals {\n  good = 1\n  bad = nope.x\n}\n"})
	c, diags := mustLoad(t, dir, Inputs{}).Console(Settings{}, nil)
	if !diags.HasErrors() {
		t.Fatal("nothing is wrong")
	}
	if v, diags := c.Evaluate("local.good"); len(diags) > 0 || !v.RawEquals(cty.NumberIntVal(1)) {
		t.Errorf("%#v %s", v, show(t, diags))
	}
	if v, diags := c.Evaluate("local.bad"); len(diags) > 0 || v.IsKnown() {
		t.Errorf("%#v %s", v, show(t, diags))
	}
}

func TestConsoleWithoutFiles(t *testing.T) {
	c, diags := (&Source{Dir: t.TempDir()}).Console(Settings{}, nil)
	if len(diags) > 0 {
		t.Fatal(show(t, diags))
	}
	if v, diags := c.Evaluate(`upper("a")`); len(diags) > 0 || !v.RawEquals(cty.StringVal("A")) {
		t.Errorf("%#v %s", v, show(t, diags))
	}
}

// Modules are asked for what they give, as in the files.
func TestConsoleModules(t *testing.T) {
	s := through(map[string]string{
		"main.hcl":   "module \"m\" {\n  source   = \"./m\"\n  for_each = toset([\"a\", \"b\"])\n  in       = each.key\n}\n",
		"m/main.hcl": "variable \"in\" {}\noutput \"out\" { value = upper(var.in) }\noutput \"dir\" { value = path.module }\n",
	})
	c, diags := s.Console(Settings{}, nil)
	if len(diags) > 0 {
		t.Fatal(show(t, diags))
	}
	for text, want := range map[string]cty.Value{
		`module.m["a"].out`:                           cty.StringVal("A"),
		"[for m in module.m : \"${m.dir}/${m.out}\"]": cty.TupleVal([]cty.Value{cty.StringVal("m/A"), cty.StringVal("m/B")}),
	} {
		if got, diags := c.Evaluate(text); len(diags) > 0 || !got.RawEquals(want) {
			t.Errorf("%s is %#v %s", text, got, show(t, diags))
		}
	}
	if _, diags := c.Evaluate(`module.m["a"].ot`); !strings.Contains(show(t, diags), `Did you mean "out"?`) {
		t.Error(show(t, diags))
	}
}
