package config

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// directory writes files to a new directory.
func directory(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mustLoad(t testing.TB, dir string, in Inputs) *Source {
	t.Helper()
	s, diags := Load(dir, in)
	if diags.HasErrors() {
		t.Fatalf("unexpected errors:\n%s", show(t, diags))
	}
	return s
}

const printV = `
variable "v" { default = "default" }
output "v" { value = var.v }
`

// value is the output v.
func value(t *testing.T, s *Source) string {
	t.Helper()
	return string(mustEvaluate(t, s, nil).Outputs[0].Value)
}

func TestVariablePrecedence(t *testing.T) {
	extra := filepath.Join(directory(t, map[string]string{"x.pfvars": `v = "file"`}), "x.pfvars")
	files := map[string]string{"main.hcl": printV}
	in := Inputs{}
	want := func(text string) {
		t.Helper()
		if got := value(t, mustLoad(t, directory(t, files), in)); got != `"`+text+`"` {
			t.Errorf("the value is %s, want %q", got, text)
		}
	}
	want("default")
	in.Environ = []string{"PINFOLD_VAR_v=environment", "PINFOLD_VAR_other=1", "PATH=/bin"}
	want("environment")
	files["pinfold.pfvars"] = `v = "pinfold.pfvars"`
	want("pinfold.pfvars")
	files["b.auto.pfvars"] = `v = "b"`
	files["a.auto.pfvars"] = `v = "a"`
	want("b")
	files["zz.pfvars"] = `v = "not read"`
	want("b")
	in.VarFiles = []string{extra}
	want("file")
	in.Vars = []string{"v=first", "v=a=b"}
	want("a=b")
	in.Order = []string{"var:0", "var:1", "file:0"}
	want("file")
	in.Order = []string{"file:0", "var:1", "var:0"}
	want("first")
}

func TestLoadErrors(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		in    Inputs
		want  string
	}{
		"no hcl files":         {map[string]string{"readme.md": "x", ".hidden.hcl": "x", "sub/main.hcl": "x"}, Inputs{}, "run pinfold init"},
		"broken -var":          {map[string]string{"main.hcl": ""}, Inputs{Vars: []string{"novalue"}}, "NAME=VALUE"},
		"name of -var":         {map[string]string{"main.hcl": ""}, Inputs{Vars: []string{"a b=1"}}, "NAME=VALUE"},
		"missing -var-file":    {map[string]string{"main.hcl": ""}, Inputs{VarFiles: []string{"/nonexistent/x.pfvars"}}, "/nonexistent/x.pfvars cannot be read: it does not exist"},
		"broken -var-file":     {map[string]string{"main.hcl": "", "pinfold.pfvars": "v = "}, Inputs{}, "Missing expression"},
		"block in a pfvars":    {map[string]string{"main.hcl": "", "pinfold.pfvars": "v {}"}, Inputs{}, "NAME = VALUE lines only"},
		"order of what is not": {map[string]string{"main.hcl": ""}, Inputs{Order: []string{"var:0"}}, "names nothing that was given"},
		"syntax":               {map[string]string{"main.hcl": "sandbox {"}, Inputs{}, "Unclosed configuration block"},
	} {
		t.Run(name, func(t *testing.T) {
			s, diags := Load(directory(t, c.files), c.in)
			if s != nil || !diags.HasErrors() || !strings.Contains(show(t, diags), c.want) {
				t.Errorf("source: %t, want an error with %q:\n%s", s != nil, c.want, show(t, diags))
			}
		})
	}
	if _, diags := Load("/nonexistent/dir", Inputs{}); !strings.Contains(show(t, diags), "it does not exist") {
		t.Errorf("missing directory: %s", show(t, diags))
	}
}

const readingConfig = `
image "base" { source = "host" }
sandbox "py" {
  for_each = fileset("names", "*")
  image    = image.base
  command  = ["x", file("names/${each.key}"), templatefile("t.tmpl", { a = each.key }), fileexists("no") ? "yes" : "no", try(file("never"), "none")]
}
`

// TestEvaluateReadsNoDisk stores a Source, removes its directory, and gets the
// same from it.
func TestEvaluateReadsNoDisk(t *testing.T) {
	dir := directory(t, map[string]string{"main.hcl": readingConfig, "names/a": "A", "names/b": "B", "t.tmpl": "<${a}>"})
	s := mustLoad(t, dir, Inputs{})
	first := mustEvaluate(t, s, nil)
	if got := first.Sandboxes[1].Spec.Command; !cmp.Equal(got, []string{"x", "B", "<b>", "no", "none"}) {
		t.Errorf("command: %q", got)
	}
	stored, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	var restored Source
	if err := json.Unmarshal(stored, &restored); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, mustEvaluate(t, &restored, nil)); diff != "" {
		t.Errorf("the stored source evaluates to something else:\n%s", diff)
	}
	if s.Digest() != restored.Digest() {
		t.Error("the stored source has another digest")
	}
}

func TestDigest(t *testing.T) {
	files := map[string]string{"main.hcl": readingConfig + printV, "names/a": "A", "t.tmpl": "<${a}>", "ignored.txt": "1"}
	base := mustLoad(t, directory(t, files), Inputs{}).Digest()
	if again := mustLoad(t, directory(t, files), Inputs{}).Digest(); again != base || len(base) != 64 {
		t.Errorf("the same files in another directory: %s, %s", base, again)
	}
	change := func(name, text string, in Inputs) string {
		changed := maps.Clone(files)
		changed[name] = text
		return mustLoad(t, directory(t, changed), in).Digest()
	}
	for what, got := range map[string]string{
		"a comment":        change("main.hcl", readingConfig+printV+"# more\n", Inputs{}),
		"another file":     change("more.hcl", "", Inputs{}),
		"a file read":      change("names/a", "AA", Inputs{}),
		"a file in a set":  change("names/b", "B", Inputs{}),
		"a template":       change("t.tmpl", "", Inputs{}),
		"a file now there": change("no", "", Inputs{}),
		"a value":          change("main.hcl", readingConfig+printV, Inputs{Vars: []string{"v=1"}}),
	} {
		if got == base {
			t.Errorf("%s leaves the digest as it was", what)
		}
	}
	if got := change("ignored.txt", "2", Inputs{}); got != base {
		t.Error("a file that nothing reads changes the digest")
	}
	env := change("ignored.txt", "1", Inputs{Environ: []string{"PINFOLD_VAR_v=1"}})
	if other := change("ignored.txt", "1", Inputs{Environ: []string{"PINFOLD_VAR_other=1"}}); other != base {
		t.Error("another configuration's value in the environment changes the digest")
	}
	if flag := change("ignored.txt", "1", Inputs{Vars: []string{"v=1"}}); env != flag {
		t.Error("the same value by another way changes the digest")
	}
}

func TestLoadSettings(t *testing.T) {
	s, diags := LoadSettings(filepath.Join(t.TempDir(), "host.hcl"))
	if diags != nil || !cmp.Equal(s, DefaultSettings()) {
		t.Errorf("absent file: %+v\n%s", s, show(t, diags))
	}
	text := `
max_lifetime     = "1w"
expiry_warning   = "never"
max_destroy      = 0
allow_host_paths = ["/srv", "/data/x"]
address_pools    = ["10.1.0.0/16", "192.168.4.0/24"]
cgroup_parent    = "machines.pinfold"
default_policies = [policy.base]
policy "base" {
  resources { memory = format("%dMiB", 100 + 28) }
}
`
	file := filepath.Join(directory(t, map[string]string{"host.hcl": text}), "host.hcl")
	s, diags = LoadSettings(file)
	want := Settings{
		File: file, Raw: []byte(text), MaxLifetime: Duration(week), MaxDestroy: 0,
		AllowHostPaths: []string{"/srv", "/data/x"}, AddressPools: []string{"10.1.0.0/16", "192.168.4.0/24"}, CgroupParent: "machines.pinfold",
	}
	if diff := cmp.Diff(want, s); diff != "" || diags != nil {
		t.Errorf("%s\n%s", diff, show(t, diags))
	}
	d, more := source(t, "image \"b\" { source = \"host\" }\nsandbox \"a\" {\n image = image.b\n command = [\"x\"]\n}\n").Evaluate(s, nil)
	if more.HasErrors() || d.Sandboxes[0].Spec.Resources.Memory != 128<<20 {
		t.Errorf("the default policy does not hold: %s", show(t, more))
	}
	if at := d.Sandboxes[0].Sources["resources.memory"]; at != (Position{file, 10, "policy.base"}) {
		t.Errorf("its place is %+v", at)
	}
	if _, diags := LoadSettings(t.TempDir()); !diags.HasErrors() {
		t.Error("a directory is read as settings")
	}
}
