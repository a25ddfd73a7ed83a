package config

import (
	"encoding/json"
	"testing"
)

// source makes a Source of one file without touching the disk.
func source(t testing.TB, main string) *Source {
	t.Helper()
	return &Source{Dir: "/config", Files: map[string][]byte{"main.hcl": []byte(main)}, Variables: map[string]Value{}}
}

func show(t testing.TB, d Diagnostics) string {
	t.Helper()
	var b []byte
	for _, x := range d {
		b = append(b, box(x, false, 100)...)
	}
	return string(b)
}

// mustEvaluate evaluates a valid configuration.
func mustEvaluate(t testing.TB, s *Source, ex Exports) *Desired {
	t.Helper()
	d, diags := s.Evaluate(DefaultSettings(), ex)
	if diags.HasErrors() {
		t.Fatalf("unexpected errors:\n%s", show(t, diags))
	}
	return d
}

func TestStarterIsValid(t *testing.T) {
	d := mustEvaluate(t, source(t, string(Starter()["main.hcl"])), nil)
	out, _ := json.MarshalIndent(d, "", "  ")
	t.Log(string(out))
	if len(d.Sandboxes) != 2 {
		t.Fatalf("%d sandboxes, want 2", len(d.Sandboxes))
	}
}
