package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// FuzzEvaluate feeds whatever text as a configuration: it must give either a
// result or errors, the same twice, and plain data that JSON can carry.
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
		var main, values string
		for _, file := range archive.Files {
			switch {
			case strings.HasSuffix(file.Name, ".hcl"):
				main += string(file.Data)
			case strings.HasSuffix(file.Name, ".pfvars"):
				values += string(file.Data)
			}
		}
		f.Add(main, values)
	}
	f.Add(string(Starter()["main.hcl"]), "greeting = 1")
	f.Fuzz(func(t *testing.T, main, values string) {
		if len(main) > 4<<10 || tooMuch(main) {
			return // it may ask for more than there is time for
		}
		dir := t.TempDir()
		for name, text := range map[string]string{"main.hcl": main, "pinfold.pfvars": values} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
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
