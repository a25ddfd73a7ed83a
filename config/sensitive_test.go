package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// examples are values of required arguments.
var examples = map[string]string{
	"image": "image.base", "command": `["x"]`, "source": `"host"`, "name": "network.n", "container": "80", "path": `"/p"`,
	"content": `"x"`, "condition": "true", "error_message": `"m"`, "value": "1", "id": `"x"`, "to": "sandbox.s", "from": "sandbox.old",
}

// place is one argument of the language.
type argument struct {
	kind string   // of the block at top level
	way  []string // of the blocks inside
	name string
}

func (a argument) String() string {
	return strings.Join(append([]string{a.kind}, append(a.way, a.name)...), ".")
}

// arguments are all that are evaluated.
func arguments() []argument {
	var out []argument
	var walk func(kind string, way []string, s *schema)
	walk = func(kind string, way []string, s *schema) {
		for _, name := range s.names() {
			if rule, ok := s.attrs[name]; ok && rule.later == "" && !rule.literal {
				out = append(out, argument{kind, way, name})
			}
			if rule, ok := s.blocks[name]; ok && rule.later == "" && rule.schema != nil {
				walk(kind, append(slices.Clip(way), name), rule.schema)
			}
		}
	}
	for _, kind := range []string{"check", "image", "import", "network", "output", "policy", "sandbox", "variable", "volume"} {
		walk(kind, nil, rootSchema.blocks[kind].schema)
	}
	return out
}

// config is a configuration with an expression at the argument.
func (a argument) config(expr string) string {
	var body func(s *schema, way []string) string
	body = func(s *schema, way []string) string {
		out := ""
		for _, name := range s.names() {
			switch rule := s.attrs[name]; {
			case len(way) == 0 && name == a.name:
				out += name + " = " + expr + "\n"
			case rule.required && name == "error_message" && len(way) == 0 && a.name == "condition":
				out += name + " = \"m\"\n"
			case rule.required:
				out += name + " = " + examples[name] + "\n"
			}
		}
		if len(way) > 0 {
			rule := s.blocks[way[0]]
			label := ""
			switch {
			case way[0] == "file":
				label = ` "/etc/k"`
			case rule.label != "":
				label = ` "k"`
			}
			out += way[0] + label + " {\n" + body(rule.schema, way[1:]) + "}\n"
		}
		if s == conditionSchema && a.name == "error_message" {
			out = strings.ReplaceAll(out, "condition = true", "condition = 1 == 2")
		}
		return out
	}
	label := ` "it"`
	if a.kind == "import" {
		label = ""
	}
	return fmt.Sprintf(`
variable "secret" { sensitive = true }
image "base" { source = "host" }
network "n" {}
sandbox "s" {
  image   = image.base
  command = ["x"]
}
locals { list = [var.secret, "x", var.secret] }
%s%s {
%s}
`, a.kind, label, body(rootSchema.blocks[a.kind].schema, a.way))
}

// forms are ways to use a secret.
var forms = []string{
	"var.secret", `"${var.secret}"`, "[var.secret]", `["x", "a${var.secret}\u0000"]`, "{ k = var.secret }", "{ (var.secret) = 1 }", "upper(var.secret)",
	"tonumber(var.secret)", `timeadd(var.secret, "1h")`, "file(var.secret)", "local.list", "{ for x in local.list : x => 1 }", "[for x in local.list : tonumber(x)]",
	"{ a = 1 }[var.secret]", "try(tonumber(var.secret), file(var.secret))", "cidrhost(var.secret, 1)", "var.secret ? 1 : 2", "jsondecode(var.secret)",
	"{ id = var.secret }", "[{ id = var.secret }]", "regex(\"(\", var.secret)", `templatefile("none", { a = var.secret })`, "toset(local.list)", "sensitive(image.base)", "var.secret.x",
	"sensitive(true)", "sensitive(8080)", "sensitive(null)", "-var.secret", `format("%d", var.secret)`,
}

// reveals reports whether a diagnostic shows the secret, in any case.
func reveals(diags Diagnostics, secret string) bool {
	b, err := json.Marshal(diags)
	return err != nil || strings.Contains(strings.ToLower(string(b)), strings.ToLower(secret))
}

// No diagnostic shows a sensitive value, wherever and however it is used, valid or not.
func TestDiagnosticsKeepSecrets(t *testing.T) {
	all := arguments()
	if len(all) < 60 {
		t.Fatalf("%d arguments", len(all))
	}
	for _, a := range all {
		for _, form := range forms {
			s := source(t, a.config(form))
			s.parsed = parseFiles(newSink(), s.Files)
			for _, secret := range []string{"hunter2-topsecret", "/hunter2-topsecret", "10.99.98.97/33", "hunter2-topsecret=\x00\n"} {
				s.Variables["secret"] = Value{Text: secret, Origin: "-var"}
				_, diags := s.Evaluate(DefaultSettings(), nil)
				if text := strings.Trim(secret, "/=\x00\n"); reveals(diags, strings.TrimSuffix(text, "/33")) {
					t.Errorf("%s = %s: %s", a, form, show(t, diags))
				}
			}
		}
	}
}

// The same through modules, types and files of values, with any secret.
func TestModulesKeepSecrets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secret := rapid.StringMatching(`[a-z]{10,20}`).Draw(t, "secret")
		ty := rapid.SampledFrom([]string{"any", "string", "number", "bool", "list(number)", "map(number)", "object({ a = optional(number, 1) })", "set(string)"}).Draw(t, "type")
		given := rapid.SampledFrom([]string{"%q", "[%q, %[1]q]", "{ a = %q }", "{ %[1]s = 1 }", "{ a = ", "%s", "-%q"}).Draw(t, "given")
		use := rapid.SampledFrom(forms).Draw(t, "use")
		inner := rapid.SampledFrom([]string{"any", "number", "string", "list(bool)"}).Draw(t, "inner type")
		text := given
		if strings.Contains(given, "%") {
			text = fmt.Sprintf(given, secret)
		}
		s := through(map[string]string{
			"main.hcl": fmt.Sprintf(`
variable "secret" {
  type      = %s
  sensitive = true
  validation {
    condition     = var.secret == "x"
    error_message = "It is ${jsonencode(var.secret)}."
  }
}
locals { list = [var.secret] }
image "base" { source = "host" }
module "m" {
  source = "./m"
  in     = %s
}
output "o" { value = module.m.out }
`, ty, use),
			"m/main.hcl": fmt.Sprintf(`
variable "in" { type = %s }
locals { n = tonumber(var.in) }
output "out" { value = { a = var.in, b = local.n } }
check "c" {
  assert {
    condition     = var.in == 1
    error_message = "It is ${var.in}"
  }
}
`, inner),
		})
		s.Variables["secret"] = Value{Text: text, Expr: true, Origin: "pinfold.pfvars", File: "pinfold.pfvars", Line: 1, Column: 10}
		if _, diags := s.Evaluate(DefaultSettings(), nil); reveals(diags, secret) {
			t.Fatalf("%v", diags)
		}
	})
}

// Marks travel through locals, modules, functions and dynamic blocks to the paths of
// the resource, each only as far as it must.
func TestSensitivePaths(t *testing.T) {
	s := through(map[string]string{
		"main.hcl": `
variable "token" {
  type      = string
  sensitive = true
}
variable "map" {
  type    = map(string)
  default = { a = "x" }
}
image "base" { source = "host" }
locals { both = { A = "plain", T = var.token } }
module "m" {
  source = "./m"
  in     = upper(var.token)
}
sandbox "s" {
  image       = image.base
  command     = ["x", "--token", var.token]
  env         = merge(local.both, { M = module.m.out, N = nonsensitive(var.token), P = "p" })
  working_dir = sensitive("/w")
  labels      = { secret = issensitive(var.token) }
  file "/a" { content = "plain" }
  file "/b" { content = "token = ${var.token}" }
  dynamic "file" {
    for_each = { c = var.token, d = "open" }
    labels   = ["/${file.key}"]
    content { content = file.value }
  }
}
sandbox "each" {
  for_each = { a = "x", b = var.token }
  image    = image.base
  command  = sensitive(["x", each.key])
  env      = { V = each.value, T = var.token }
}
output "o" {
  value     = var.token
  sensitive = true
}
output "plain" { value = nonsensitive(module.m.out) }
`,
		"m/main.hcl": "variable \"in\" {}\noutput \"out\" {\n  value = \"<${nonsensitive(var.in)}>\"\n  sensitive = true\n}\n",
	})
	s.Variables["token"] = Value{Text: "t0ken", Origin: "-var"}
	d := mustEvaluate(t, s, nil)
	want := map[string][]string{
		`sandbox.s`:         {"command[2]", "env.M", "env.T", `file["/b"].content`, `file["/c"].content`, "working_dir"},
		`sandbox.each["a"]`: {"command", "env.T"},
		`sandbox.each["b"]`: {"command", "env.T", "env.V"},
	}
	for _, r := range d.Sandboxes {
		if !slices.Equal(r.Sensitive, want[r.Address]) {
			t.Errorf("%s: %q, want %q", r.Address, r.Sensitive, want[r.Address])
		}
		if r.Address == "sandbox.s" && (r.Spec.Env["T"] != "t0ken" || r.Spec.Env["M"] != "<T0KEN>" || r.Spec.Labels["secret"] != "true") {
			t.Errorf("%+v", r.Spec)
		}
	}
	if o := d.Outputs[0]; !o.Sensitive || string(o.Value) != `"t0ken"` {
		t.Errorf("%+v", o)
	}
	if o := d.Outputs[1]; o.Sensitive || string(o.Value) != `"\u003cT0KEN\u003e"` {
		t.Errorf("%+v: %s", o, o.Value)
	}
}

// A file of values that is not understood may hold what is to stay hidden.
func TestMistakesInValuesKeepSecrets(t *testing.T) {
	t.Parallel()
	const secret = "hush-3141"
	for name, values := range map[string]string{
		"a name misspelt": "tokn = \"" + secret + "\"\n",
		"not closed":      "token = \"" + secret + "\n",
		"given twice":     "token = \"" + secret + "\"\ntoken = \"" + secret + "\"\n",
		"a block":         "token { is = \"" + secret + "\" }\n",
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"main.hcl": "variable \"token\" {\n  sensitive = true\n}\n", "pinfold.pfvars": values} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, diags := Load(dir, Inputs{})
		if s != nil && !diags.HasErrors() {
			diags = append(diags, s.Check(DefaultSettings())...)
		}
		if len(diags) == 0 {
			t.Errorf("%s: nothing is said", name)
		}
		if text := fmt.Sprintf("%+v", diags); strings.Contains(text, secret) {
			t.Errorf("%s: %s", name, text)
		}
	}
}
