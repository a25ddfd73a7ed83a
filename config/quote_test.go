package config

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A place that is only a line gets what an error of Evaluate has, also in a
// Source that was sent or stored.
func TestWithSnippets(t *testing.T) {
	text := `image "base" { source = "host" }

sandbox "py" {
  image   = image.base # the host's
  command = [
    "sleep",
    "1d",
  ]
	volume "work" {
    path = "/work"
  }
  lifetime { ttl = "8h" }
}
`
	loaded := mustLoad(t, directory(t, map[string]string{"main.hcl": text}), Inputs{})
	stored, err := json.Marshal(loaded)
	if err != nil {
		t.Fatal(err)
	}
	var s Source
	if err := json.Unmarshal(stored, &s); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[int]string{
		1: `
│   on main.hcl line 1, in image "base":
│   1: image "base" { source = "host" }
│      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
`,
		2: `
│   on main.hcl line 2:
`,
		3: `
│   on main.hcl line 3, in sandbox "py":
│   3: sandbox "py" {
│      ^^^^^^^^^^^^^^
`,
		4: `
│   on main.hcl line 4, in sandbox "py":
│   4:   image   = image.base # the host's
│        ^^^^^^^^^^^^^^^^^^^^
`,
		9: `
│   on main.hcl line 9, in sandbox "py":
│   9:     volume "work" {
│          ^^^^^^^^^^^^^^^
`,
		10: `
│   on main.hcl line 10, in sandbox "py":
│   10:     path = "/work"
│           ^^^^^^^^^^^^^^
`,
		12: `
│   on main.hcl line 12, in sandbox "py":
│   12:   lifetime { ttl = "8h" }
│         ^^^^^^^^^^^^^^^^^^^^^^^
`,
	} {
		at := Pos{Line: line, Column: 1}
		given := Diagnostics{{Severity: "error", Summary: "S", Range: &Range{File: "main.hcl", Start: at, End: at}}}
		got := s.WithSnippets(given)
		var out bytes.Buffer
		if err := Fprint(&out, got, false, 0); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("╷\n│ Error: S\n│"+want+"╵\n", out.String()); diff != "" {
			t.Errorf("line %d (-want +got):\n%s", line, diff)
		}
		if given[0].Snippet != "" || given[0].Range.Start != at {
			t.Errorf("line %d: the argument was changed: %+v", line, given[0])
		}
	}
	list := s.WithSnippets(Diagnostics{{Range: &Range{File: "main.hcl", Start: Pos{5, 1}, End: Pos{5, 1}}}})
	if list[0].Snippet != "  command = [\n    \"sleep\",\n    \"1d\",\n  ]" {
		t.Errorf("an argument of several lines: %q", list[0].Snippet)
	}
}

// What has its lines already, or is elsewhere, stays.
func TestWithSnippetsLeavesOthers(t *testing.T) {
	s := mustLoad(t, directory(t, map[string]string{"main.hcl": "image \"base\" { source = \"host\" }\n"}), Inputs{})
	at := Range{Start: Pos{1, 1}, End: Pos{1, 1}}
	in, elsewhere := at, at
	in.File, elsewhere.File = "main.hcl", "/etc/pinfold/host.hcl"
	given := Diagnostics{
		{Summary: "no place"},
		{Summary: "elsewhere", Range: &elsewhere},
		{Summary: "complete", Range: &in, Snippet: "given"},
	}
	if diff := cmp.Diff(given, s.WithSnippets(given)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(given, (*Source)(nil).WithSnippets(given)); diff != "" {
		t.Error(diff)
	}
	beyond := Diagnostics{{Range: &Range{File: "main.hcl", Start: Pos{99, 1}, End: Pos{99, 1}}}}
	if got := s.WithSnippets(beyond); got[0].Snippet != "" || got[0].Range.Start.Line != 99 {
		t.Errorf("beyond the end: %+v", got[0])
	}
}

// Labelled blocks tell where they begin, the same for all instances.
func TestBlocks(t *testing.T) {
	d := mustEvaluate(t, mustLoad(t, directory(t, map[string]string{"main.hcl": `image "base" { source = "host" }
sandbox "py" {
  count   = 2
  image   = image.base
  command = ["x"]
  volume "work" {
    path = "/work"
  }
  file "/etc/a.b" { content = count.index }
}
`}), Inputs{}), nil)
	for _, s := range d.Sandboxes {
		want := map[string]Position{"volume.work": {File: "main.hcl", Line: 6}, `file["/etc/a.b"]`: {File: "main.hcl", Line: 9}}
		if diff := cmp.Diff(want, s.Blocks); diff != "" {
			t.Errorf("%s: %s", s.Address, diff)
		}
	}
}
