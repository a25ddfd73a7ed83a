package reconcile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"pinfold/reconcile/plan"
	"pinfold/state"
)

// FuzzPush feeds whatever texts as the document of a `state push`: it is refused with
// words, or everything in it can be read again and planned with.
func FuzzPush(f *testing.F) {
	pulled, err := os.ReadFile(filepath.Join("testdata", "pulled.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pulled)
	f.Fuzz(func(t *testing.T, text []byte) {
		d := new(StateDocument)
		if json.Unmarshal(text, d) != nil {
			return
		}
		var told testimony
		counts, err := d.check(told.hear())
		if err != nil {
			if err.Error() == "" {
				t.Fatal("it is refused without a word")
			}
			return
		}
		if counts[state.Sandboxes] != len(told.sandboxes) {
			t.Fatalf("%d sandboxes are counted, %d were read", counts[state.Sandboxes], len(told.sandboxes))
		}
		records := &plan.Records{Sandboxes: map[string]*plan.Sandbox{}}
		for i := range told.sandboxes {
			rec := &told.sandboxes[i]
			if records.Sandboxes[rec.Address] != nil {
				t.Fatalf("there are two of %s", rec.Address)
			}
			records.Sandboxes[rec.Address] = rec
			if doc, err := (&blocks{}).encode(rec, new([]document)); err == nil && !json.Valid(doc) {
				t.Fatalf("%s becomes %s", rec.Address, doc)
			}
		}
		newAllocator(records)
		told.unrecorded(nil)
	})
}
