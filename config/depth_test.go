package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDeepNestingIsAnError: texts that would use up the parser's stack, and with
// it the whole program, are ordinary errors with a place.
func TestDeepNestingIsAnError(t *testing.T) {
	const n = 300_000
	for name, text := range map[string]string{
		"parentheses":  "locals {\n  a = " + strings.Repeat("(", n) + "1" + strings.Repeat(")", n) + "\n}\n",
		"lists":        "locals {\n  a = " + strings.Repeat("[", n) + strings.Repeat("]", n) + "\n}\n",
		"blocks":       strings.Repeat("b {\n", n) + strings.Repeat("}\n", n),
		"not":          "locals {\n  a = " + strings.Repeat("!", n) + "true\n}\n",
		"minus":        "locals {\n  a = " + strings.Repeat("- ", n) + "1\n}\n",
		"conditionals": "locals {\n  a = " + strings.Repeat("true ? 1 : ", n) + "1\n}\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "main.hcl"), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			_, diags := Load(dir, Inputs{})
			if len(diags) != 1 || diags[0].Summary != "Nested too deeply" || diags[0].Range == nil || diags[0].Range.File != "main.hcl" {
				t.Errorf("diagnostics %.300v", diags)
			}
			if _, diags := Format("main.hcl", []byte(text)); !diags.HasErrors() {
				t.Error("fmt takes it")
			}
		})
	}
	// As deep as the limits allow is read.
	ok := "locals {\n  a = " + strings.Repeat("(", maxNesting-10) + "1" + strings.Repeat(")", maxNesting-10) + "\n  b = " + strings.Repeat("true ? 1 : ", maxChoices-10) + "1\n}\n"
	if _, diags := parseConfig([]byte(ok), "main.hcl"); diags.HasErrors() {
		t.Errorf("within the limits: %v", diags)
	}
}
