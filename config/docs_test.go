package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fenced finds the HCL examples of a page.
var fenced = regexp.MustCompile("(?s)```hcl\n(.*?)```")

func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// common are blocks that examples refer to without repeating them.
var common = map[string]string{
	"image.base":       `image "base" { source = "host" }`,
	"network.agents":   `network "agents" { cidr = "10.88.0.0/24" }`,
	"volume.models":    `volume "models" {}`,
	"policy.untrusted": `policy "untrusted" {}`,
}

func TestLanguagePageExamples(t *testing.T) {
	examples := fenced.FindAllStringSubmatch(page(t, "language.md"), -1)
	if len(examples) < 10 {
		t.Fatalf("%d examples found", len(examples))
	}
	// An example that begins with a file's name is that file of a module, for all.
	modules := map[string]string{}
	for _, example := range examples {
		if name, text, ok := moduleFile(example[1]); ok {
			modules[name] = text
		}
	}
	for i, example := range examples {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			text := example[1]
			if formatted, _ := Format("main.hcl", []byte(text)); string(formatted) != text {
				t.Errorf("not in canonical style:\n%s", text)
			}
			if _, _, ok := moduleFile(text); ok {
				return // evaluated with what calls it
			}
			files := map[string]string{"main.hcl": text, "app.toml": "who = ${who}\n"}
			maps.Copy(files, modules)
			for address, block := range common {
				kind, name, _ := strings.Cut(address, ".")
				if strings.Contains(text, address) && !strings.Contains(text, kind+" \""+name+"\"") {
					files["common.hcl"] += block + "\n"
				}
			}
			mustEvaluate(t, mustLoad(t, directory(t, files), Inputs{}), nil)
		})
	}
}

// moduleFile tells which file of a module an example is.
func moduleFile(text string) (name, content string, ok bool) {
	first, _, _ := strings.Cut(text, "\n")
	name = strings.TrimPrefix(first, "# ")
	return name, text, strings.HasPrefix(name, "modules/") && strings.HasSuffix(name, ".hcl")
}

func TestHostSettingsPageExamples(t *testing.T) {
	examples := fenced.FindAllStringSubmatch(page(t, "host-settings.md"), -1)
	if len(examples) == 0 {
		t.Fatal("no examples")
	}
	for _, example := range examples {
		_, diags := LoadSettings(filepath.Join(directory(t, map[string]string{"host.hcl": example[1]}), "host.hcl"))
		if diags.HasErrors() {
			t.Errorf("%s\n%s", example[1], show(t, diags))
		}
	}
}

// TestPagesNameEverything finds every argument, block and function in the pages.
func TestPagesNameEverything(t *testing.T) {
	language, settings := page(t, "language.md"), page(t, "host-settings.md")
	var walk func(text string, s *schema)
	walk = func(text string, s *schema) {
		for _, name := range s.names() {
			if !regexp.MustCompile("`"+name+"\\b").MatchString(text) && !regexp.MustCompile("\n### "+name+"\n").MatchString(text) {
				t.Errorf("%q is not described", name)
			}
			if b, ok := s.blocks[name]; ok && b.schema != nil {
				walk(text, b.schema)
			}
		}
	}
	walk(language, rootSchema)
	walk(settings, &schema{attrs: settingsSchema.attrs})
	for name := range functionNames {
		if !strings.Contains(language, "`"+name+"`") {
			t.Errorf("function %q is not listed", name)
		}
	}
	for name := range refused {
		if !strings.Contains(language, "`"+name+"`") {
			t.Errorf("refused function %q is not listed", name)
		}
	}
}

// TestExamplesAreValid evaluates every example directory with its defaults.
func TestExamplesAreValid(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "examples", "*", "*.hcl"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	seen := map[string]bool{}
	for _, path := range paths {
		dir := filepath.Dir(path)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		t.Run(filepath.Base(dir), func(t *testing.T) {
			s := mustLoad(t, dir, Inputs{})
			if _, diags := s.Evaluate(DefaultSettings(), nil); diags.HasErrors() {
				t.Error(show(t, diags))
			}
			for name, text := range s.Files {
				if formatted, _ := Format(name, text); string(formatted) != string(text) {
					t.Errorf("%s is not in canonical style", name)
				}
			}
		})
	}
}
