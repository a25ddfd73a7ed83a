package reconcile

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
	"pinfold/state"
)

// documents are a bucket's, by key.
func (l *lab) documents(e *Engine, bucket string) map[string][]byte {
	l.t.Helper()
	all := map[string][]byte{}
	err := e.store.View(func(tx state.Tx) error {
		return tx.Each(bucket, func(key string, doc []byte) error {
			all[key] = doc
			return nil
		})
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return all
}

// sameLoaded wants the file to say what memory says.
func (l *lab) sameLoaded(e *Engine) {
	l.t.Helper()
	before := e.snapshot()
	if err := e.load(); err != nil {
		l.t.Fatal(err)
	}
	if diff := cmp.Diff(before, e.snapshot(), cmpopts.EquateEmpty(), cmpopts.EquateComparable()); diff != "" {
		l.t.Errorf("the file says something else than memory (- memory, + file):\n%s", diff)
	}
}

const twoBlocks = `
image "base" { source = "host" }
sandbox "s" {
  count   = 3
  image   = image.base
  command = ["sim", "append=/log:${count.index}"]
  env     = { N = "${count.index}" }
  labels  = count.index == 1 ? { odd = "yes" } : {}
}
sandbox "one" {
  image   = image.base
  command = ["sim"]
  volume "v" { path = "/v" }
  lifecycle { prevent_destroy = false }
}
`

func TestDocumentsShareTheirBlock(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": twoBlocks})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		l.sameLoaded(e)
		if n := len(l.documents(e, state.Blocks)); n != 2 {
			t.Errorf("%d blocks, want 2", n)
		}
		for address, doc := range l.documents(e, state.Sandboxes) {
			for _, word := range []string{`"sources"`, `"conditions"`, `"since"`, `"image":"image.base"`} {
				if bytes.Contains(doc, []byte(word)) {
					t.Errorf("%s has %s in its document: %s", address, word, doc)
				}
			}
		}
		l.act(e, "pause", "s[0]")
		l.act(e, "stop", "s[1]")
		l.sameLoaded(e)
		time.Sleep(time.Hour)
		l.act(e, "resume", "s[0]")
		l.act(e, "start", "s[1]")
		l.world.KillMain(l.id(e, "sandbox.s[2]"), 9)
		l.apply(e, plan.Options{RefreshOnly: true})
		l.sameLoaded(e)
		// An edited block is another; the old one goes when nobody stands on it.
		l.main(twoBlocks + "\n")
		l.files(map[string]string{"moved.hcl": "\n\n" + twoBlocks})
		l.apply(e, plan.Options{})
		l.sameLoaded(e)
		l.nothingToDo(e)
		l.close(e)
		e = l.open("apply")
		l.sameLoaded(e)
		l.nothingToDo(e)
		if n := len(l.documents(e, state.Blocks)); n != 2 {
			t.Errorf("%d blocks after an edit, want 2", n)
		}
		l.destroy(e)
		l.close(e)
		e = l.open("apply")
		if n := len(l.documents(e, state.Blocks)); n != 0 {
			t.Errorf("%d blocks without a sandbox", n)
		}
		l.close(e)
		l.clean()
	})
}

// Two lanes that store the first sandboxes of a new block must not each put their
// own spec beneath the other's.
func TestFirstOfABlockSideBySide(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": "image \"base\" { source = \"host\" }"})
	e := l.open("apply")
	sources := map[string]config.Position{"command": {File: "main.hcl", Line: 7}}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			name := "sandbox.s" + string(rune('a'+i))
			rec := &plan.Sandbox{Address: name, UID: name, Sources: sources, Spec: config.Sandbox{Command: []string{name}}}
			rec.Conditions = plan.Conditions(rec, plan.Seen{}, true, time.Unix(1, 0).UTC())
			if err := e.as("test").commit((&write{}).sandbox(rec)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	l.sameLoaded(e)
	if n := len(l.documents(e, state.Blocks)); n != 1 {
		t.Errorf("%d blocks, want 1", n)
	}
	l.close(e)
}

// Whatever a record says, its document says the same; but what is sensitive in it is
// not to be found there. Without the key that is missing, and not lost when the
// record is stored again.
func TestDocumentsRoundTrip(t *testing.T) {
	box := seal.In(t.TempDir())
	word := rapid.SampledFrom([]string{"", "a", "b"})
	words := rapid.MapOf(rapid.SampledFrom([]string{"x", "y", "z"}), word)
	at := rapid.Custom(func(t *rapid.T) time.Time { return time.Unix(rapid.Int64Range(1, 4).Draw(t, "at"), 0).UTC() })
	phases := rapid.SampledFrom([]plan.Phase{plan.Created, plan.Running, plan.Paused, plan.Stopped, plan.Failed, plan.Lost})
	record := rapid.Custom(func(t *rapid.T) *plan.Sandbox {
		rec := &plan.Sandbox{
			Address: "sandbox.s", UID: "u", Generation: rapid.Int64Range(1, 3).Draw(t, "generation"), CreatedAt: at.Draw(t, "made"),
			Spec: config.Sandbox{
				Image: word.Draw(t, "image"), Command: rapid.SliceOf(word).Draw(t, "command"), Env: words.Draw(t, "env"), Labels: words.Draw(t, "labels"),
				User: word.Draw(t, "user"), OperatingMode: "running", Resources: config.Resources{CPU: float64(rapid.IntRange(0, 2).Draw(t, "cpu"))},
				Files: map[string]config.File{"/f": {Content: word.Draw(t, "content")}},
			},
			Lifecycle: config.Lifecycle{PreventDestroy: rapid.Bool().Draw(t, "prevent")},
			DependsOn: rapid.SliceOfN(word, 0, 2).Draw(t, "depends"),
			Sources:   map[string]config.Position{"env": {Line: rapid.IntRange(1, 2).Draw(t, "line")}},
		}
		if rapid.Bool().Draw(t, "sensitive") {
			rec.Sensitive = []string{"env.x", `file["/f"].content`}
			rec.Spec.Files["/f"] = config.File{Content: secret + word.Draw(t, "secret")}
			rec.Spec.Env = map[string]string{"x": secret, "y": word.Draw(t, "y")}
		}
		if rapid.Bool().Draw(t, "network") {
			rec.Spec.Network = &config.Attachment{Name: word.Draw(t, "name")}
		}
		if rapid.Bool().Draw(t, "instance") {
			rec.Instance = &plan.Instance{ID: "i", Phase: phases.Draw(t, "phase"), CreatedAt: at.Draw(t, "created"), StartedAt: at.Draw(t, "started")}
		}
		seen := plan.Seen{UID: "u", Alive: rapid.Bool().Draw(t, "alive"), Frozen: rapid.Bool().Draw(t, "frozen")}
		for range rapid.IntRange(0, 2).Draw(t, "looks") {
			rec.Conditions = plan.Conditions(rec, seen, rapid.Bool().Draw(t, "known"), at.Draw(t, "looked"))
		}
		return rec
	})
	rapid.Check(t, func(t *rapid.T) {
		writer, reader := blocks{box: box}, blocks{known: map[string]*block{}, box: box}
		var docs []document
		want := rapid.SliceOfN(record, 1, 4).Draw(t, "records")
		var encoded [][]byte
		for _, rec := range want {
			doc, err := writer.encode(rec, &docs)
			if err != nil {
				t.Fatal(err)
			}
			encoded = append(encoded, doc)
		}
		for _, d := range docs {
			var s storedBlock
			if err := json.Unmarshal(d.doc, &s); err != nil {
				t.Fatal(err)
			}
			b, err := blockOf(s, box)
			if err != nil {
				t.Fatal(err)
			}
			reader.known[d.key] = b
		}
		// Decoding one must not change another that shares its block.
		got := make([]*plan.Sandbox, len(want))
		for i, doc := range encoded {
			got[i] = new(plan.Sandbox)
			if err := reader.decode(doc, got[i]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range want {
			if len(want[i].Conditions) == 0 {
				want[i].Conditions = got[i].Conditions // never looked at: told from the record
			}
			if diff := cmp.Diff(want[i], got[i], cmpopts.EquateEmpty(), cmpopts.EquateComparable()); diff != "" {
				t.Fatalf("%s\nof %s", diff, encoded[i])
			}
			if bytes.Contains(encoded[i], []byte(secret)) {
				t.Fatalf("a secret in %s", encoded[i])
			}
		}
		if keys := slices.Sorted(maps.Keys(reader.known)); len(keys) > 8 {
			t.Fatalf("blocks %v of 2 lines, 2 lifecycles, sensitive or not", keys)
		}
		blind := blocks{known: map[string]*block{}}
		for _, d := range docs {
			if bytes.Contains(d.doc, []byte(secret)) {
				t.Fatalf("a secret in %s", d.doc)
			}
			var s storedBlock
			if err := json.Unmarshal(d.doc, &s); err != nil {
				t.Fatal(err)
			}
			var err error
			if blind.known[d.key], err = blockOf(s, nil); err != nil {
				t.Fatal(err)
			}
			blind.known[d.key].stored = true
		}
		for i, doc := range encoded {
			without := new(plan.Sandbox)
			if err := blind.decode(doc, without); err != nil {
				t.Fatal(err)
			}
			if (len(without.Unreadable) > 0) != (len(want[i].Sensitive) > 0) || len(without.Spec.Env) > 0 && len(want[i].Sensitive) > 0 {
				t.Fatalf("without the key: %+v of %s", without, doc)
			}
			var more []document
			again, err := blind.encode(without, &more)
			if err != nil || len(more) > 0 {
				t.Fatal(err, more)
			}
			back := new(plan.Sandbox)
			if err := reader.decode(again, back); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got[i], back, cmpopts.EquateEmpty(), cmpopts.EquateComparable()); diff != "" {
				t.Fatalf("stored again without the key: %s\nof %s", diff, again)
			}
		}
	})
}

func TestMissingBlockIsAnError(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	docs := l.documents(e, state.Blocks)
	if err := e.store.Update(func(tx state.Tx) error {
		for key := range docs {
			if err := tx.Delete(state.Blocks, key); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l.refused(errorOf(e.load()), Internal, "pinfold state restore")
	if err := e.store.Update(func(tx state.Tx) error {
		for key, doc := range docs {
			if err := tx.Put(state.Blocks, key, doc); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := e.load(); err != nil {
		t.Fatal(err)
	}
	l.end(e)
}

const secret = "hush-8d1f"
