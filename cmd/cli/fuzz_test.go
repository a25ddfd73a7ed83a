package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"pinfold/cmd/view"
	"pinfold/config"
)

// FuzzSavedPlan feeds whatever texts as a saved plan: it is refused with words, or it can
// be shown, to people and to programs.
func FuzzSavedPlan(f *testing.F) {
	saved, err := os.ReadFile(filepath.Join("testdata", "saved.plan"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(saved)
	f.Add(saved[:len(saved)/2])
	f.Add(append(bytes.Clone(saved), saved...))
	f.Add([]byte(`{"format_version": "1", "result": {"plan": {"changes": [{"address": "\u001b[2J", "action": "zz", "diff": [{"path": "a["}]}]}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		plan, err := decodePlan("f.plan", bytes.NewReader(text))
		if err != nil {
			if plan != nil || err.Error() == "" {
				t.Fatalf("%v, %v", plan, err)
			}
			return
		}
		var people, programs bytes.Buffer
		screen := &view.Screen{W: &people}
		screen.Plan(&plan.Result, plan.Destroy)
		harmless(t, people.String())
		if err := view.PlanJSON(&programs, &plan.Result, nil); err == nil && !json.Valid(programs.Bytes()) {
			t.Fatalf("no JSON: %s", programs.Bytes())
		}
		view.Steps(plan.Result.Plan)
	})
}

// FuzzConsole feeds whatever texts as expressions: each has a value or errors, the same
// when it comes again, and what is printed of either does nothing to a terminal.
func FuzzConsole(f *testing.F) {
	dir := f.TempDir()
	const files = `
variable "given" { default = "x" }
variable "open" { type = string }
variable "secret" {
  default   = "hush-hush-secret"
  sensitive = true
}
locals { words = ["a", var.given] }
image "base" { source = "host" }
sandbox "w" {
  for_each = toset(local.words)
  image    = image.base
  command  = ["sleep", var.open]
}
`
	if err := os.WriteFile(filepath.Join(dir, "main.hcl"), []byte(files), 0o600); err != nil {
		f.Fatal(err)
	}
	source, diags := config.Load(dir, config.Inputs{})
	if diags.HasErrors() {
		f.Fatal(diags)
	}
	console, diags := source.Console(config.DefaultSettings(), nil)
	if diags.HasErrors() {
		f.Fatal(diags)
	}
	for _, text := range []string{
		"1 + 1", "local.words", "var.open", `sandbox.w["a"].id`, "var.secret", `"x${var.secret}"`, `{for k, v in sandbox.w : k => v}`, "<<EOT\none\nEOT",
		`try(var.secret.x, 1)`, `templatestring("$${a}", {a = var.secret})`, `"\u001b[2J"`, "\x1b]0;t\x07", `regex("(", "a")`, `jsondecode("[")`, strings.Repeat("[", 300),
		`type(var.secret)`, `nonsensitive(var.secret)`, `tonumber(var.secret)`, `var.secret["a"]`, `[for x in [var.secret] : x...]`, `{(var.secret) = 1}`, `format("%d", var.secret)`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 2<<10 || strings.Contains(text, "file") { // which reads the disk
			return
		}
		unfinished(text)
		say := func() string {
			v, diags := console.Evaluate(text)
			var out bytes.Buffer
			if err := config.Fprint(&out, view.PrintableDiagnostics(diags), false, 80); err != nil {
				t.Fatal(err)
			}
			if !diags.HasErrors() {
				out.WriteString(view.Expression(v))
			}
			return out.String()
		}
		first := say()
		if again := say(); again != first {
			t.Fatalf("%q\nis once\n%s\nand then\n%s", text, first, again)
		}
		harmless(t, first)
		if strings.Contains(first, "hush-hush-secret") && !strings.Contains(text, "nonsensitive") && !strings.Contains(text, "hush") {
			t.Fatalf("%q tells what is sensitive: %s", text, first)
		}
	})
}

// harmless refuses what a terminal would take for a command.
func harmless(t *testing.T, text string) {
	t.Helper()
	for _, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			t.Fatalf("%q has the control character %U", text, r)
		}
	}
}
