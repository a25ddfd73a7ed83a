package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pinfold/config"
)

// A name that the files move away is answered with what it is now.
func TestTargetOfAnOldAddress(t *testing.T) {
	for _, edit := range []func(*Options){
		func(o *Options) { o.Targets = []string{"sandbox.a"} },
		func(o *Options) { o.Excludes = []string{"sandbox.a"} },
		func(o *Options) { o.Replace = []string{"sandbox.a"} },
	} {
		w := newWorld().record("sandbox.a", spec()).declare("sandbox.b", spec()).moved("sandbox.a -> sandbox.b").with(edit)
		p := Make(w.Input)
		if len(p.Diags) == 0 || !strings.Contains(p.Diags[0].Detail, "sandbox.b") {
			t.Errorf("%+v: %+v", w.Options, p.Diags)
		}
	}
}

// moved adds a moved block, "sandbox.a -> sandbox.b".
func (w *world) moved(text string) *world {
	from, to, _ := strings.Cut(text, " -> ")
	w.Desired.Moves = append(w.Desired.Moves, config.Move{From: from, To: to, Source: config.Position{File: "main.hcl", Line: len(w.Desired.Moves) + 1}})
	return w
}

// movesOf are a plan's moves, "old -> new" each.
func movesOf(p *Plan) []string {
	out := []string{}
	for _, c := range p.Changes {
		if c.Action == ActMove {
			out = append(out, c.From+" -> "+c.Address)
		}
	}
	slices.Sort(out)
	return out
}

func TestMoves(t *testing.T) {
	tests := []struct {
		name     string
		recorded string
		declared string
		moved    string
		want     string // the moves, sorted
		rest     string // actions of the other changes, by address
	}{
		{"one", "a", "b", "a -> b", "a -> b", ""},
		{"nothing is recorded there", "b", "b", "a -> b", "", ""},
		{"a chain", "a", "c", "a -> b; b -> c", "a -> c", ""},
		{"a chain entered later", "b", "c", "a -> b; b -> c", "b -> c", ""},
		{"a chain whatever the order of its blocks", "a", "c", "b -> c; a -> b", "a -> c", ""},
		{"nothing is declared there", "a", "", "a -> b", "a -> b", "delete b"},
		{"a key", `a["x"], a["z"]`, `a["y"], a["z"]`, `a["x"] -> a["y"]`, `a["x"] -> a["y"]`, ""},
		{"all keys", `a["x"], a["y"]`, `b["x"], b["y"]`, "a -> b", `a["x"] -> b["x"], a["y"] -> b["y"]`, ""},
		{"into a key", "a", `a["x"]`, `a -> a["x"]`, `a -> a["x"]`, ""},
		{"a count is added", "a", "a[0], a[1]", "", "a -> a[0]", "create a[1]"},
		{"a count is removed", "a[0], a[1]", "a", "", "a[0] -> a", "delete a[1]"},
		{"a count is added after a move", "a", "b[0]", "a -> b", "a -> b[0]", ""},
		{"a count becomes keys", "a[0], a[1]", `a["x"], a["y"]`, `a[0] -> a["x"]; a[1] -> a["y"]`, `a[0] -> a["x"], a[1] -> a["y"]`, ""},
		{"a count is added where one is recorded", "a, a[0]", "a[0]", "", "", "delete a"},
		{"a count of none", "a", "", "", "", "delete a"},
		{"fewer of a count", "a[0], a[1], a[2]", "a[0]", "", "", "delete a[1], delete a[2]"},
		{"a module", "module.m.sandbox.a, module.m.sandbox.b", "module.n.sandbox.a, module.n.sandbox.b", "module.m -> module.n", "module.m.sandbox.a -> module.n.sandbox.a, module.m.sandbox.b -> module.n.sandbox.b", ""},
		{"a module and what is in it", "module.m.sandbox.a", "module.n.sandbox.b", "module.m -> module.n; module.m.sandbox.a -> module.m.sandbox.b", "module.m.sandbox.a -> module.n.sandbox.b", ""},
		{"into a module", "a", "module.m.sandbox.a", "a -> module.m.sandbox.a", "a -> module.m.sandbox.a", ""},
		{"a module gets keys", "module.m.sandbox.a", `module.m["x"].sandbox.a`, `module.m -> module.m["x"]`, `module.m.sandbox.a -> module.m["x"].sandbox.a`, ""},
		{"the target is recorded", "a, b", "b", "a -> b", "", "delete a"},
		{"the nearer one gets the address", "a, b", "c", "a -> b; b -> c", "b -> c", "delete a"},
		{"one that is blocked blocks another", "a, b, c", "b, c", "a -> b; b -> c", "", "delete a"},
		{"swapped", "a, b", "a, b", "a -> b; b -> a", "a -> b, b -> a", ""},
		{"swapped over a third", "a, b", "a, b", "a -> tmp; tmp -> b; b -> a", "a -> b, b -> a", ""},
		{"half of a swap", "a", "a, b", "a -> b; b -> a", "a -> b", "create a"},
		{"three go round", "a, b, c", "a, b, c", "a -> b; b -> c; c -> a", "a -> b, b -> c, c -> a", ""},
		{"two keys swapped", `a["x"], a["y"]`, `a["x"], a["y"]`, `a["x"] -> a["y"]; a["y"] -> a["x"]`, `a["x"] -> a["y"], a["y"] -> a["x"]`, ""},
		{"two modules swapped", "module.m.sandbox.a, module.n.sandbox.a", "module.m.sandbox.a, module.n.sandbox.a", "module.m -> module.n; module.n -> module.m", "module.m.sandbox.a -> module.n.sandbox.a, module.n.sandbox.a -> module.m.sandbox.a", ""},
		{"into a cycle", "c", "a, b", "c -> a; a -> b; b -> a", "c -> a", "create b"},
		{"a cycle of which nothing is declared", "a", "", "a -> b; b -> a", "", "delete a"},
	}
	long := func(text, sep string) []string {
		var out []string
		for _, part := range strings.Split(text, sep) {
			if part != "" {
				ends := strings.Split(part, " -> ")
				for i, a := range ends {
					if !strings.HasPrefix(a, "module.") && a != "" {
						ends[i] = "sandbox." + a
					}
				}
				out = append(out, strings.Join(ends, " -> "))
			}
		}
		return out
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			for _, a := range long(tt.recorded, ", ") {
				w.record(a, spec())
			}
			for _, a := range long(tt.declared, ", ") {
				w.declare(a, spec())
			}
			for _, m := range long(tt.moved, "; ") {
				w.moved(m)
			}
			p := Make(w.Input)
			want := long(tt.want, ", ")
			if got := movesOf(p); !slices.Equal(got, append([]string{}, want...)) {
				t.Errorf("moves %q, want %q", got, want)
			}
			var rest []string
			for _, c := range p.Changes {
				if c.Action != ActMove {
					rest = append(rest, string(c.Action)+" "+strings.TrimPrefix(c.Address, "sandbox."))
				}
			}
			slices.Sort(rest)
			if got := strings.Join(rest, ", "); got != tt.rest {
				t.Errorf("beside them %q, want %q", got, tt.rest)
			}
			// Done once, it is done.
			w.Records, w.Activity = p.Records, nil
			w.Records.Cycles = p.Cycles
			if again := movesOf(Make(w.Input)); len(again) > 0 {
				t.Errorf("the next plan moves %q", again)
			}
		})
	}
}

// What is moved keeps what it is: all of the record but its address, under which
// everything else refers to it.
func TestMoveKeepsTheRecord(t *testing.T) {
	w := newWorld().network("network.n", "10.88.0.0/24").volume("volume.v").
		record("sandbox.a", spec(on("network.n"), mount("volume.v"), claim("work")), func(s *Sandbox, _ *Seen) {
			s.Hold = &Hold{Mode: "paused", By: "operator", At: t0}
			s.DependsOn = []string{"image.base", "network.n", "sandbox.z", "volume.v"}
		}).
		record("sandbox.z", spec())
	w.Records.Sandboxes["sandbox.z"].DependsOn = []string{"sandbox.a"}
	w.Records.Sandboxes["sandbox.z"].Lifecycle.ReplaceTriggeredBy = []config.Trigger{{Address: "network.n", Path: "cidr"}, {Address: "sandbox.a"}}
	w.Records.Sandboxes["sandbox.x"] = &Sandbox{Address: "sandbox.x", UID: "uid-x", Spec: spec()}
	before := encode(w.Records)
	after := w.Records.Rename(map[string]string{"sandbox.a": "sandbox.b", "network.n": "network.m", "volume.v": "module.data.volume.v", "image.base": "image.other"})
	if string(encode(w.Records)) != string(before) {
		t.Error("the records themselves were changed")
	}
	text := string(encode(after))
	for _, old := range []string{`"sandbox.a"`, `"network.n"`, `"volume.v"`, `"image.base"`} {
		if strings.Contains(text, old) {
			t.Errorf("%s is still named in %s", old, text)
		}
	}
	// Renamed back it is what it was.
	back := after.Rename(map[string]string{"sandbox.b": "sandbox.a", "network.m": "network.n", "module.data.volume.v": "volume.v", "image.other": "image.base"})
	if got := encode(back); string(got) != string(before) {
		t.Errorf("there and back makes\n%s\nof\n%s", got, before)
	}
	if w.Records.Rename(map[string]string{"network.other": "network.more"}).Sandboxes["sandbox.a"] != w.Records.Sandboxes["sandbox.a"] {
		t.Error("a record of which nothing changes is copied")
	}
}

// A whole resource that moved is what others depend on as a whole.
func TestReferenceToAWholeResource(t *testing.T) {
	w := newWorld().record(`sandbox.a["x"]`, spec()).record(`sandbox.a["y"]`, spec()).record("sandbox.z", spec())
	trigger := []config.Trigger{{Address: "sandbox.a"}}
	w.Records.Sandboxes["sandbox.z"].Lifecycle.ReplaceTriggeredBy = trigger
	all := w.Records.Rename(map[string]string{`sandbox.a["x"]`: `sandbox.b["x"]`, `sandbox.a["y"]`: `sandbox.b["y"]`})
	if got := all.Sandboxes["sandbox.z"].Lifecycle.ReplaceTriggeredBy[0].Address; got != "sandbox.b" {
		t.Errorf("all moved: refers to %s", got)
	}
	for _, some := range []map[string]string{{`sandbox.a["x"]`: `sandbox.b["x"]`}, {`sandbox.a["x"]`: `sandbox.b["x"]`, `sandbox.a["y"]`: `sandbox.c["y"]`}} {
		part := w.Records.Rename(some)
		if got := part.Sandboxes["sandbox.z"].Lifecycle.ReplaceTriggeredBy[0].Address; got != "sandbox.a" {
			t.Errorf("%v: refers to %s", some, got)
		}
	}
	if trigger[0].Address != "sandbox.a" {
		t.Error("the record itself was changed")
	}
}

// A cycle is gone through once, is remembered for as long as the files have it, also
// where nothing was there to move, and again after it was written anew.
func TestCycleOnce(t *testing.T) {
	w := newWorld().both("sandbox.a", spec()).both("sandbox.b", spec()).moved("sandbox.a -> sandbox.b").moved("sandbox.b -> sandbox.a")
	for round, want := range []int{2, 0, 0} {
		p := Make(w.Input)
		if got := movesOf(p); len(got) != want || len(p.Cycles) != 1 {
			t.Fatalf("round %d: moves %q, remembers %q", round, got, p.Cycles)
		}
		w.Records, w.Records.Cycles = p.Records, p.Cycles
	}
	if got := w.Records.Sandboxes["sandbox.a"].UID; got != "uid-b" {
		t.Errorf("sandbox.a is %s", got)
	}
	moves := w.Desired.Moves
	w.Desired.Moves = nil
	p := Make(w.Input)
	if len(p.Cycles) > 0 || !p.Empty() {
		t.Fatalf("without the blocks: %s, remembers %q", p, p.Cycles)
	}
	w.Records.Cycles, w.Desired.Moves = p.Cycles, moves
	if got := movesOf(Make(w.Input)); len(got) != 2 {
		t.Errorf("written anew: moves %q", got)
	}
	fresh := newWorld().declare("sandbox.a", spec()).declare("sandbox.b", spec()).moved("sandbox.a -> sandbox.b").moved("sandbox.b -> sandbox.a")
	if p := Make(fresh.Input); len(p.Cycles) != 1 || len(movesOf(p)) > 0 {
		t.Errorf("with nothing recorded: moves %q, remembers %q", movesOf(p), p.Cycles)
	}
}

// A part of the files cannot be planned without what they move.
func TestMovesUnderTarget(t *testing.T) {
	build := func(edit func(*Options)) *Plan {
		return Make(newWorld().record("sandbox.a", spec()).declare("sandbox.b", spec()).both("sandbox.c", spec()).moved("sandbox.a -> sandbox.b").with(edit).Input)
	}
	p := build(func(o *Options) { o.Targets = []string{"sandbox.c"} })
	if !p.Diags.HasErrors() || !strings.Contains(p.Diags[0].Detail, "-target='sandbox.b'") {
		t.Errorf("targeting another: %+v", p.Diags)
	}
	if p := build(func(o *Options) { o.Excludes = []string{"sandbox.b"} }); !p.Diags.HasErrors() {
		t.Errorf("excluding it: %s", p)
	}
	for _, o := range []func(*Options){
		func(o *Options) { o.Targets = []string{"sandbox.b"} },
		func(o *Options) { o.Excludes = []string{"sandbox.c"} },
	} {
		if p := build(o); p.Diags.HasErrors() || len(movesOf(p)) != 1 {
			t.Errorf("%s", p)
		}
	}
	p = build(func(o *Options) { o.Destroy = true })
	if got := movesOf(p); len(got) != 1 || !slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Action == ActDelete && c.Address == "sandbox.b" }) {
		t.Errorf("destroy: %s", p)
	}
	for name, p := range map[string]*Plan{
		"refresh-only": build(func(o *Options) { o.RefreshOnly = true }),
		"keep":         Make(newWorld().record("sandbox.a", spec()).declare("sandbox.b", spec()).moved("sandbox.a -> sandbox.b").keep().Input),
	} {
		if len(p.Changes) > 0 || p.Records.Sandboxes["sandbox.a"] == nil {
			t.Errorf("%s: %s", name, p)
		}
	}
}

// What was moved in files is, but for the moves, what it would be had it been called
// so from the beginning.
func TestMovedIsAsIfNamedSo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawWorld(t)
		in.Trigger = Apply
		in.Options.Destroy = pick(t, "destroy", false, false, false, true)
		in.Options.NoRefresh = pick(t, "no refresh", false, false, true)
		in.Options.ReleaseHolds = pick(t, "release", false, false, true)
		in.Options.Replace = pick(t, "replace", nil, nil, []string{"sandbox.s0"})
		want := Make(clone(in))

		old := map[string]string{} // what it was called, by what it is called now
		var moves []config.Move
		for _, a := range in.Records.Addresses() {
			if rapid.Bool().Draw(t, "was called otherwise") {
				kind, name, _ := strings.Cut(a, ".")
				old[a] = kind + ".old_" + name
				if pick(t, "in a module", false, true) {
					old[a] = "module.old." + old[a]
				}
				step := old[a]
				if pick(t, "by a chain", false, true) {
					step = kind + ".between_" + name
					moves = append(moves, config.Move{From: old[a], To: step})
				}
				moves = append(moves, config.Move{From: step, To: a})
			}
		}
		d := *in.Desired
		d.Moves = rapid.Permutation(moves).Draw(t, "moves")
		in.Desired, in.Records, in.Activity = &d, in.Records.Rename(old), renameKeys(in.Activity, old)
		before := encode(in)
		got := Make(in)
		if string(encode(in)) != string(before) {
			t.Fatal("Make changed its input")
		}
		if len(movesOf(got)) != len(old) {
			t.Fatalf("moves %q, want %v", movesOf(got), old)
		}
		got.Changes = got.Changes[len(old):]
		got.Summary = Summarize(got.Changes)
		if want.Summary = Summarize(want.Changes); string(encode(got)) != string(encode(want)) {
			t.Fatalf("by new names\n%s\nby the old ones\n%s", want, got)
		}
		if a, b := encode(got.Status), encode(want.Status); string(a) != string(b) {
			t.Fatalf("status %s, want %s", a, b)
		}
		if a, b := encode(got.Records), encode(want.Records); string(a) != string(b) {
			t.Fatalf("records %s, want %s", a, b)
		}
	})
}

// Whatever blocks say, no record is lost, none comes to be where another is, and the
// order of the blocks does not matter.
func TestMovesLoseNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addresses := []string{"sandbox.a", "sandbox.b", "sandbox.c", `sandbox.a["x"]`, "sandbox.a[0]", "sandbox.b[0]", "module.m.sandbox.a", "module.n.sandbox.a", "module.m.sandbox.b"}
		ends := append([]string{"module.m", "module.n", "module.m[0]", "network.a", "network.b"}, addresses...)
		w := newWorld()
		for _, a := range rapid.SliceOfDistinct(rapid.SampledFrom(addresses), rapid.ID).Draw(t, "recorded") {
			w.record(a, spec(), func(s *Sandbox, _ *Seen) { s.UID = "uid of " + a })
		}
		for _, a := range rapid.SliceOfDistinct(rapid.SampledFrom(addresses), rapid.ID).Draw(t, "declared") {
			w.declare(a, spec())
		}
		for range rapid.IntRange(0, 6).Draw(t, "moves") {
			w.moved(pick(t, "from", ends...) + " -> " + pick(t, "to", ends...))
		}
		p := Make(w.Input)
		uids := map[string]bool{}
		for a, s := range p.Records.Sandboxes {
			if s.Address != a || uids[s.UID] {
				t.Fatalf("%s is recorded at %s", encode(s), a)
			}
			uids[s.UID] = true
		}
		if len(uids) != len(w.Records.Sandboxes) {
			t.Fatalf("of %d records %d are left after %q", len(w.Records.Sandboxes), len(uids), movesOf(p))
		}
		d := *w.Desired
		d.Moves = rapid.Permutation(d.Moves).Draw(t, "order")
		next := w.Input
		next.Desired = &d
		if !distinctSources(d.Moves) {
			return // which of two blocks for the same thing counts is the first: config refuses such
		}
		if a, b := movesOf(p), movesOf(Make(next)); !slices.Equal(a, b) {
			t.Fatalf("in another order %q become %q", a, b)
		}
		w.Records, w.Records.Cycles = p.Records, p.Cycles
		if again := movesOf(Make(w.Input)); len(again) > 0 && len(p.Diags) == 0 && !partly(d.Moves) {
			t.Fatalf("after %q the next plan moves %q", movesOf(p), again)
		}
	})
}

// partly reports whether a block leads to a part of what another is about, or the other
// way round: then where a way ends depends on where it begins.
func partly(moves []config.Move) bool {
	for _, a := range moves {
		for _, b := range moves {
			if a.To != b.From && (config.Covers(b.From, a.To) || config.Covers(a.To, b.From)) {
				return true
			}
		}
	}
	return false
}

func distinctSources(moves []config.Move) bool {
	from := map[string]bool{}
	for _, m := range moves {
		if from[m.From] {
			return false
		}
		from[m.From] = true
	}
	return true
}

// A thousand moves of ten thousand records are no work worth naming; what counts is
// that their number multiplied is not either.
func TestManyMoves(t *testing.T) {
	w := newWorld()
	for i := range 2000 {
		w.record(fmt.Sprintf(`sandbox.a["%d"]`, i), spec())
		w.declare(fmt.Sprintf(`sandbox.b["%d"]`, i), spec())
	}
	w.moved("sandbox.a -> sandbox.b")
	p := Make(w.Input)
	if got := len(movesOf(p)); got != 2000 || len(p.Changes) != 2000 {
		t.Errorf("%d moves of %d changes", got, len(p.Changes))
	}
}

func TestMoveIsInJSON(t *testing.T) {
	p := Make(newWorld().record("sandbox.a", spec()).declare("sandbox.b", spec()).moved("sandbox.a -> sandbox.b").Input)
	var doc map[string]any
	if err := json.Unmarshal(encode(p.Changes[0]), &doc); err != nil {
		t.Fatal(err)
	}
	if doc["action"] != "move" || doc["address"] != "sandbox.b" || doc["previous_address"] != "sandbox.a" {
		t.Errorf("%v", doc)
	}
	if p.Summary != (Summary{Change: 1}) {
		t.Errorf("counted as %+v", p.Summary)
	}
	if !p.Readdresses() || p.Losses() != 0 {
		t.Errorf("%s", p)
	}
}
