package view

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"pinfold/config"
	"pinfold/reconcile"
)

func TestBroken(t *testing.T) {
	for _, tc := range []struct {
		line  string
		width int
		want  []string
	}{
		{"short", 10, []string{"short"}},
		{"one two three", 8, []string{"one two", "    three"}},
		{"  # sandbox.a will be created", 20, []string{"  # sandbox.a will", "      be created"}},
		{"  averyverylongwordthatstays here", 12, []string{"  averyverylongwordthatstays", "      here"}},
		{"a      (why)", 8, []string{"a", "    (why)"}},
		{"\x1b[1mone two\x1b[0m three", 8, []string{"\x1b[1mone two\x1b[0m", "    three"}},
		{"x \x1b[2mfour\x1b[0m", 4, []string{"x", "  \x1b[2mfour\x1b[0m"}},
	} {
		if got := broken(tc.line, tc.width); !slices.Equal(got, tc.want) {
			t.Errorf("%q at %d is %q, not %q", tc.line, tc.width, got, tc.want)
		}
	}
}

// narrow is how wide the narrowest terminal is that is thought of.
const narrow = 40

// fitsNarrow fails for a line that is wider than the screen though it has a space to
// break it at.
func fitsNarrow(t *testing.T, name string, text []byte) {
	t.Helper()
	for _, line := range strings.Split(string(text), "\n") {
		if room(line) > narrow && strings.Contains(strings.TrimLeft(line, " "), " ") {
			t.Errorf("%s has a line of %d columns: %s", name, room(line), line)
		}
	}
}

// On a narrow screen everything that people look at each day stays inside, and loses no
// word.
func TestNarrowScreens(t *testing.T) {
	list := sandboxes()
	recorded := recordedResult()
	p := everyAction().Plan
	wrong := config.Diagnostics{{
		Severity: "error", Summary: "there is no sandbox sandbox.pie; did you mean sandbox.py?", Detail: "'pinfold list' shows those that exist, with their phase and address.\n\nMore.",
		Range: &config.Range{File: "main.hcl", Start: config.Pos{Line: 3, Column: 1}, End: config.Pos{Line: 3, Column: 4}}, Context: `sandbox "a_long_name_of_a_sandbox"`, Snippet: "foo = 1",
	}}
	for name, show := range map[string]func(*Screen){
		"plan": func(s *Screen) { s.Plan(everyAction(), false) },
		"list": func(s *Screen) { s.List(list, false, now) },
		"drift": func(s *Screen) {
			s.Drift(&reconcile.DriftResult{Drift: p.Drift, Changes: p.Changes[:1], Ignored: 2, Notes: []string{"instance 0123456789ab is alive, but no record knows it"}})
		},
		"state_list": func(s *Screen) { s.Resources(ResourcesOf(&recorded.Records)) },
		"state_show": func(s *Screen) {
			d, _ := RecordOf(recorded, `sandbox.w["a"]`)
			s.Record(d)
		},
		"describe": func(s *Screen) { s.Describe(description(), false, now) },
		"errors": func(s *Screen) {
			if err := config.Fprint(s, wrong, s.Color, s.Width); err != nil {
				t.Fatal(err)
			}
		},
	} {
		thin := shown(false, narrow, show)
		golden(t, "narrow_"+name+".txt", thin)
		fitsNarrow(t, name, thin)
		// With colour it is broken at the same places.
		if colored := sgr.ReplaceAllString(string(shown(true, narrow, show)), ""); colored != string(thin) {
			t.Errorf("%s is another text with colour:\n%s", name, colored)
		}
		wide := shown(false, 0, show)
		if lost := lostWords(string(wide), string(thin)); len(lost) > 0 {
			t.Errorf("%s lost %q:\n%s", name, lost, thin)
		}
	}
}

// lostWords are those of wide that narrow lacks. A table's titles are in small letters
// where they stand below a row, or none where a column is empty.
func lostWords(wide, narrow string) (lost []string) {
	title := regexp.MustCompile(`^([A-Z]+|[^\pL\pN]*)$`)
	count := func(text string) map[string]int {
		all := map[string]int{}
		for _, w := range strings.Fields(text) {
			if w = strings.Trim(w, ","); !title.MatchString(w) {
				all[w]++
			}
		}
		return all
	}
	have := count(narrow)
	for w, n := range count(wide) {
		if have[w] < n {
			lost = append(lost, w)
		}
	}
	return lost
}
