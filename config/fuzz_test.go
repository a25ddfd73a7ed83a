package config

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// calledDirectory is the source of a module block.
var calledDirectory = regexp.MustCompile(`source\s*=\s*"\.\.?/[^"]*"`)

// FuzzEvaluate feeds whatever texts as a configuration, with a module in directory m
// that it may call: it must give either a result or errors, the same twice, and plain
// data that JSON can carry.
func FuzzEvaluate(f *testing.F) {
	paths, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(paths) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		var main, module, values string
		for _, file := range archive.Files {
			switch {
			case strings.HasSuffix(file.Name, ".hcl") && strings.Contains(file.Name, "/"):
				module += string(file.Data)
			case strings.HasSuffix(file.Name, ".hcl"):
				main += string(file.Data)
			case strings.HasSuffix(file.Name, ".pfvars"):
				values += string(file.Data)
			}
		}
		f.Add(calledDirectory.ReplaceAllString(main, `source = "./m"`), module, values)
	}
	f.Add(string(Starter()["main.hcl"]), "", "greeting = 1")
	f.Add(strings.Replace(manyModules, "./worker", "./m", -1), manyModulesWorker, "n = 3")
	f.Fuzz(func(t *testing.T, main, module, values string) {
		if len(main)+len(module) > 6<<10 || tooMuch(main) || tooMuch(module) {
			return // it may ask for more than there is time for
		}
		dir := directory(t, map[string]string{"main.hcl": main, "m/main.hcl": module, "pinfold.pfvars": values})
		s, diags := Load(dir, Inputs{})
		if (s == nil) != diags.HasErrors() {
			t.Fatalf("source %t, errors %t", s != nil, diags.HasErrors())
		}
		if s == nil {
			return
		}
		check := func(ex Exports) (*Desired, []byte) {
			d, diags := s.Evaluate(DefaultSettings(), ex)
			if (d == nil) != diags.HasErrors() {
				t.Fatalf("desired %t, errors %t", d != nil, diags.HasErrors())
			}
			b, err := json.Marshal([]any{d, diags})
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range diags {
				if box(x, false, 80) == "" {
					t.Fatal("nothing is printed")
				}
			}
			return d, b
		}
		d, first := check(nil)
		if _, second := check(nil); string(first) != string(second) {
			t.Fatalf("two evaluations differ:\n%s\n%s", first, second)
		}
		if d != nil {
			check(exportsOf(d))
		}
	})
}

// tooMuch reports texts that can ask for huge numbers: widths of format, ranges
// and counts.
func tooMuch(text string) bool {
	digits := 0
	for _, r := range text {
		if r >= '0' && r <= '9' {
			if digits++; digits > 5 {
				return true
			}
		} else {
			digits = 0
		}
	}
	return false
}

// FuzzAddress feeds whatever texts as addresses: what is taken for one has a single form
// that is read as the same address, is covered by itself, and moves to where a move leads.
func FuzzAddress(f *testing.F) {
	for _, text := range []string{
		"sandbox.py", `sandbox.worker["a"]`, "sandbox.worker[0]", `module.ci["a"].sandbox.runner[0]`, "module.ci", "module.ci.module.db",
		`sandbox.w["a\"b\\${x}\u001b"]`, "sandbox.w[1e3]", "sandbox.w[-1]", "sandbox.w[*]", "sandbox.w.0", "sandbox", "", ".", `sandbox.w["a"]["b"]`, "sandbox.\x1b[31m",
		`sandbox.w["$${a}"]`, "sandbox.w[0x10]", "sandbox.w [0]", "sandbox.w/*c*/[0]", "policy.p", `module.m[".sandbox.x"].volume.v`,
	} {
		f.Add(text, "sandbox.other")
	}
	f.Fuzz(func(t *testing.T, text, other string) {
		if m, err := ParseModule(text); err == nil {
			if again, err := ParseModule(m); err != nil || again != m {
				t.Fatalf("%q is module %q, which is %q: %v", text, m, again, err)
			}
		}
		a, err := ParseAddress(text)
		if err != nil {
			return
		}
		form := a.String()
		b, err := ParseAddress(form)
		if err != nil || b != a || b.String() != form {
			t.Fatalf("%q is %#v, written %q, which is %#v: %v", text, a, form, b, err)
		}
		if !Covers(form, form) || !Covers(a.Whole(), form) || a.Module != "" && !Covers(a.Module, form) {
			t.Fatalf("%s is not covered by what it is in", form)
		}
		to, err := ParseAddress(other)
		if err != nil || to.Type != a.Type {
			return
		}
		if got, moved := (Move{From: form, To: to.String()}).Apply(form); !moved || got != to.String() && to.Key != nil {
			t.Fatalf("from %s to %s it moves to %s, %t", form, to, got, moved)
		}
	})
}
