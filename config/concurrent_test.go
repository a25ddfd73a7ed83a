package config

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEvaluateConcurrently evaluates one loaded Source from several goroutines,
// as an agent with several clients may.
func TestEvaluateConcurrently(t *testing.T) {
	s := mustLoad(t, directory(t, map[string]string{"main.hcl": readingConfig + `output "all" { value = sandbox.py }`, "names/a": "A", "names/b": "B", "t.tmpl": "<${a}>"}), Inputs{})
	want := mustEvaluate(t, s, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got, diags := s.Evaluate(DefaultSettings(), nil)
			if diags.HasErrors() || !cmp.Equal(want, got) {
				t.Errorf("another result: %v", diags)
			}
		})
	}
	wg.Wait()
}
