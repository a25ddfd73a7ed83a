package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// through is a Source of files by path.
func through(files map[string]string) *Source {
	s := &Source{Dir: "/config", Files: map[string][]byte{}, Variables: map[string]Value{}}
	for name, text := range files {
		s.Files[name] = []byte(text)
	}
	return s
}

// A Source carries the files of all modules that are called, however deep and also
// beside the configuration, and evaluates to the same after a journey.
func TestModulesTravel(t *testing.T) {
	dir := directory(t, map[string]string{
		"root/main.hcl": `
module "a" { source = "./modules/a" }
output "o" { value = [module.a.text, module.a.below] }
`,
		"root/modules/a/main.hcl":    `module "b" { source = "../../../beside" }`,
		"root/modules/a/outputs.hcl": "output \"text\" { value = file(\"${path.module}/text\") }\noutput \"below\" { value = module.b.text }\n",
		"root/modules/a/text":        "in a",
		"root/modules/unused/x.hcl":  `broken {`,
		"beside/main.hcl":            `output "text" { value = "${path.module} ${path.root} ${file("${path.module}/text")}" }`,
		"beside/text":                "beside",
		"beside/values.auto.pfvars":  "x = 1",
	})
	s := mustLoad(t, filepath.Join(dir, "root"), Inputs{})
	names := []string{"../beside/main.hcl", "main.hcl", "modules/a/main.hcl", "modules/a/outputs.hcl"}
	if got := sortedNames(s.Files); !slices.Equal(got, names) {
		t.Errorf("files %q, want %q", got, names)
	}
	want := `["in a","../beside . beside"]`
	if got := string(mustEvaluate(t, s, nil).Outputs[0].Value); got != want {
		t.Errorf("output %s, want %s", got, want)
	}
	digest := s.Digest()
	stored, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	var again Source
	if err := json.Unmarshal(stored, &again); err != nil {
		t.Fatal(err)
	}
	if got := string(mustEvaluate(t, &again, nil).Outputs[0].Value); got != want {
		t.Errorf("after a journey %s, want %s", got, want)
	}
	if again.Digest() != digest {
		t.Error("the digest changed on the way")
	}
	again.Files["../beside/main.hcl"] = append(again.Files["../beside/main.hcl"], '\n')
	if again.Digest() == digest {
		t.Error("a module's file does not count in the digest")
	}
}

func sortedNames(files map[string][]byte) []string {
	var out []string
	for name := range files {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// A module's syntax errors are found when it is loaded, like the root module's.
func TestModuleSyntaxErrors(t *testing.T) {
	dir := directory(t, map[string]string{"main.hcl": `module "m" { source = "./m" }`, "m/main.hcl": "sandbox \"x\" {\n"})
	s, diags := Load(dir, Inputs{})
	if s != nil || !diags.HasErrors() || diags[0].Range == nil || diags[0].Range.File != "m/main.hcl" {
		t.Error(show(t, diags))
	}
}

// What a configuration declares does not depend on whether it is the root module:
// only its addresses do.
func TestModuleIsTransparent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(blocks(t), "\n")
		plain, diags := through(map[string]string{"main.hcl": text}).Evaluate(DefaultSettings(), nil)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		wrapped, diags := through(map[string]string{"main.hcl": `module "m" { source = "./m" }`, "m/main.hcl": text}).Evaluate(DefaultSettings(), nil)
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		plain.Outputs = nil
		want, err := json.Marshal(plain)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(wrapped)
		if err != nil {
			t.Fatal(err)
		}
		bare := strings.NewReplacer("module.m.", "", "m/main.hcl", "main.hcl").Replace(string(got))
		if diff := cmp.Diff(string(want), bare); diff != "" {
			t.Fatalf("in a module something else is declared:\n%s", diff)
		}
	})
}

// manyModules is n sandboxes in as many instances of a module, which take values from
// a resource and from each other's kind, and are read again.
const manyModules = `
variable "n" { type = number }
image "base" { source = "host" }
network "agents" { cidr = "10.88.0.0/16" }
policy "rules" {
  lifetime { ttl = "8h" }
}
module "w" {
  source   = "./worker"
  for_each = { for i in range(var.n) : format("w%05d", i) => i }
  image    = image.base
  network  = network.agents
  policies = [policy.rules]
  name     = each.key
  gateway  = network.agents.gateway
}
module "front" {
  source   = "./worker"
  for_each = module.w
  image    = image.base
  network  = network.agents
  name     = "front-${each.key}"
  gateway  = module.w[each.key].address
}
output "addresses" { value = { for k, m in module.w : k => m.address } }
`

const manyModulesWorker = `
variable "image" {}
variable "network" {}
variable "policies" {
  type    = any
  default = []
}
variable "name" { type = string }
variable "gateway" { type = string }
locals { labels = { name = var.name } }
sandbox "this" {
  image    = var.image
  command  = ["worker", "--name", var.name]
  env      = { WHO = var.name, GATEWAY = var.gateway }
  labels   = local.labels
  policies = var.policies
  network { name = var.network }
}
output "address" { value = sandbox.this.address }
`

func sandboxesInModules(n int) *Source {
	s := through(map[string]string{"main.hcl": manyModules, "worker/main.hcl": manyModulesWorker})
	s.Variables["n"] = Value{Text: fmt.Sprint(n), Origin: "-var"}
	return s
}

// Ten thousand sandboxes are evaluated through modules, each with what is its own.
func TestManyModules(t *testing.T) {
	d := mustEvaluate(t, sandboxesInModules(5_000), nil)
	if len(d.Sandboxes) != 10_000 {
		t.Fatalf("%d sandboxes", len(d.Sandboxes))
	}
	got := d.Sandboxes[0]
	if got.Address != `module.front["w00000"].sandbox.this` || got.Spec.Env["WHO"] != "front-w00000" || !slices.Equal(got.Unknown, []string{"env.GATEWAY"}) {
		t.Errorf("%+v", got)
	}
	// It waits for the one sandbox whose address it takes, and for no other.
	needs := []string{"image.base", `module.w["w00000"].sandbox.this`, "network.agents"}
	if !slices.Equal(got.DependsOn, needs) {
		t.Errorf("depends on %q, want %q", got.DependsOn, needs)
	}
}

// The work of an evaluation grows with the number of module instances and not
// faster: it is counted, not timed.
func TestModuleWorkIsLinear(t *testing.T) {
	work := func(n int) (visits int, steps int64) {
		s := sandboxesInModules(n)
		ev := newEvaluation(s, DefaultSettings(), nil, &disk{source: s})
		ev.run()
		if ev.failed() {
			t.Fatal(show(t, ev.sorted()))
		}
		return ev.work, maxSteps + int64(n)*instanceSteps*4 - ev.budget.left
	}
	v1, s1 := work(500)
	v2, s2 := work(1000)
	v4, s4 := work(2000)
	if float64(v4-v2) > 2.1*float64(v2-v1) {
		t.Errorf("visits: %d, %d, %d", v1, v2, v4)
	}
	if float64(s4-s2) > 2.1*float64(s2-s1) {
		t.Errorf("steps of expressions: %d, %d, %d", s1, s2, s4)
	}
}

// Checked without values, a module is found wrong where it is wrong in all its
// instances, and not where a value would decide.
func TestCheckModules(t *testing.T) {
	files := map[string]string{
		"main.hcl": `
variable "names" { type = set(string) }
variable "size" {}
image "base" { source = "host" }
module "m" {
  source   = "./m"
  for_each = var.names
  image    = image.base
  name     = each.key
  size     = var.size
}
module "zero" {
  source   = "./m"
  count    = 0
  image    = image.base
  name     = "x${count.index}"
  size     = "8MiB"
}
output "o" { value = [for m in module.m : m.id] }
`,
		"m/main.hcl": `
variable "image" {}
variable "name" { type = string }
variable "size" {}
sandbox "s" {
  for_each = toset([var.name])
  image    = var.image
  command  = ["x", each.key]
  resources { memory = var.size }
}
output "id" { value = values(sandbox.s)[0].id }
`}
	if diags := through(files).Check(DefaultSettings()); diags.HasErrors() {
		t.Error(show(t, diags))
	}
	for want, change := range map[string][2]string{
		"is not a size":           {`size     = "8MiB"`, `size     = "1 apple"`},
		"A reference to an image": {`image    = image.base`, `image    = "x"`},
		"List of string required": {`command  = ["x", each.key]`, `command  = 1`},
	} {
		bad := map[string]string{}
		for name, text := range files {
			bad[name] = strings.ReplaceAll(text, change[0], change[1])
		}
		if diags := through(bad).Check(DefaultSettings()); !strings.Contains(strings.Join(strings.Fields(strings.ReplaceAll(show(t, diags), "│", "")), " "), want) {
			t.Errorf("%s: %s", want, show(t, diags))
		}
	}
}
