package view

import (
	"bytes"
	"strings"
	"testing"

	"pinfold/config"
	"pinfold/reconcile"
)

// A sensitive output is told to whoever names it, and to nobody else.
func TestSensitiveOutputs(t *testing.T) {
	secret := config.Output{Name: "token", Value: []byte(`"s3cret"`), Type: []byte(`"string"`), Sensitive: true}
	all := []config.Output{{Name: "url", Value: []byte(`"http://x"`), Type: []byte(`"string"`)}, secret}
	written := func(write func(*bytes.Buffer) error) string {
		t.Helper()
		var out bytes.Buffer
		if err := write(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for name, text := range map[string]string{
		"output":       string(shown(false, 0, func(s *Screen) { s.Outputs(all) })),
		"apply":        string(shown(false, 0, func(s *Screen) { s.Applied(&reconcile.ApplyResult{Outputs: all}, false) })),
		"output -json": written(func(b *bytes.Buffer) error { return OutputsJSON(b, all, false) }),
		"apply -json":  written(func(b *bytes.Buffer) error { return ApplyJSON(b, &reconcile.ApplyResult{Outputs: all}, nil) }),
	} {
		if strings.Contains(text, "s3cret") || !strings.Contains(text, "token") || !strings.Contains(text, "http://x") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
	for name, text := range map[string]string{
		"output token":       string(shown(false, 0, func(s *Screen) { s.Output(secret) })),
		"output -raw token":  written(func(b *bytes.Buffer) error { return OutputRaw(b, secret) }),
		"output -json token": written(func(b *bytes.Buffer) error { return OutputsJSON(b, []config.Output{secret}, true) }),
	} {
		if !strings.Contains(text, "s3cret") {
			t.Errorf("%s:\n%s", name, text)
		}
	}
}
