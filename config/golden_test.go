package config

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// scenario is a configuration in a txtar file: its *.hcl and *.pfvars files,
// others that it reads, and these of special meaning:
//
//	host-settings   the host settings
//	exports         Exports in JSON
//	vars            one -var each line
//	want            what must come out
type scenario struct {
	path     string
	archive  *txtar.Archive
	dir      string
	settings Settings
	early    Diagnostics // of the settings
	inputs   Inputs
	exports  Exports
	want     string
}

func scenarios(t *testing.T, dir string) []*scenario {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", dir, "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios in testdata/%s: %v", dir, err)
	}
	var out []*scenario
	for _, path := range paths {
		out = append(out, readScenario(t, path))
	}
	return out
}

func readScenario(t *testing.T, path string) *scenario {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &scenario{path: path, archive: archive, dir: t.TempDir(), settings: DefaultSettings()}
	for _, f := range archive.Files {
		switch f.Name {
		case "want":
			s.want = string(f.Data)
			continue
		case "vars":
			s.inputs.Vars = strings.Fields(string(f.Data))
			continue
		case "exports":
			if err := json.Unmarshal(f.Data, &s.exports); err != nil {
				t.Fatalf("%s: exports: %v", path, err)
			}
			continue
		case "host-settings":
			file := filepath.Join(t.TempDir(), "host.hcl")
			writeFile(t, file, f.Data)
			s.settings, s.early = LoadSettings(file)
			continue
		}
		writeFile(t, filepath.Join(s.dir, f.Name), f.Data)
	}
	return s
}

func writeFile(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// run evaluates the scenario as a command would.
func (s *scenario) run() (*Desired, Diagnostics) {
	if s.early.HasErrors() {
		return nil, s.early
	}
	src, diags := Load(s.dir, s.inputs)
	if diags.HasErrors() {
		return nil, diags
	}
	d, more := src.Evaluate(s.settings, s.exports)
	return d, append(diags, more...)
}

// compare checks what came out against the want file, or writes it.
func (s *scenario) compare(t *testing.T, got string) {
	t.Helper()
	if *update {
		s.archive.Files = append(withoutWant(s.archive.Files), txtar.File{Name: "want", Data: []byte(got)})
		if err := os.WriteFile(s.path, txtar.Format(s.archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(s.want, got); diff != "" {
		t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", s.path, diff)
	}
}

// anywhere replaces the temporary directories in a text.
func (s *scenario) anywhere(t *testing.T, text string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	pairs := []string{real, "/DIR", s.dir, "/DIR"}
	if s.settings.File != "" {
		pairs = append(pairs, s.settings.File, "/HOST/host.hcl")
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

func withoutWant(files []txtar.File) []txtar.File {
	var out []txtar.File
	for _, f := range files {
		if f.Name != "want" {
			out = append(out, f)
		}
	}
	return out
}

// TestDiagnostics holds every error text, as people see it.
func TestDiagnostics(t *testing.T) {
	for _, s := range scenarios(t, "diagnostics") {
		t.Run(strings.TrimSuffix(filepath.Base(s.path), ".txtar"), func(t *testing.T) {
			d, diags := s.run()
			if !diags.HasErrors() || d != nil {
				t.Fatalf("no errors; desired is there: %t", d != nil)
			}
			// The machine form must survive its own JSON.
			b, err := json.Marshal(diags)
			if err != nil {
				t.Fatal(err)
			}
			var again Diagnostics
			if err := json.Unmarshal(b, &again); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(diags, again); diff != "" {
				t.Errorf("diagnostics change in JSON:\n%s", diff)
			}
			// Before they are wrapped, so that the length of paths does not matter.
			if err := json.Unmarshal([]byte(s.anywhere(t, string(b))), &diags); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := Fprint(&out, diags, false, 90); err != nil {
				t.Fatal(err)
			}
			s.compare(t, out.String())
		})
	}
}

// TestDesired holds what valid configurations evaluate to.
func TestDesired(t *testing.T) {
	for _, s := range scenarios(t, "evaluate") {
		t.Run(strings.TrimSuffix(filepath.Base(s.path), ".txtar"), func(t *testing.T) {
			d, diags := s.run()
			if diags.HasErrors() {
				t.Fatalf("unexpected errors:\n%s", show(t, diags))
			}
			s.compare(t, s.anywhere(t, readable(t, d)+show(t, diags)))
		})
	}
}

// readable is a Desired as JSON, with the outputs' values as text.
func readable(t *testing.T, d *Desired) string {
	t.Helper()
	type output struct {
		Name, Value, Type, Description string
		Unknown                        bool
	}
	view := struct {
		Images    []Resource[Image]   `json:"images,omitempty"`
		Networks  []Resource[Network] `json:"networks,omitempty"`
		Volumes   []Resource[Volume]  `json:"volumes,omitempty"`
		Sandboxes []Resource[Sandbox] `json:"sandboxes,omitempty"`
		Outputs   []output            `json:"outputs,omitempty"`
		Moves     []Move              `json:"moves,omitempty"`
		Imports   []Import            `json:"imports,omitempty"`
		Removals  []Removal           `json:"removals,omitempty"`
		Checks    []Check             `json:"checks,omitempty"`
	}{d.Images, d.Networks, d.Volumes, d.Sandboxes, nil, d.Moves, d.Imports, d.Removals, d.Checks}
	for _, o := range d.Outputs {
		view.Outputs = append(view.Outputs, output{o.Name, string(o.Value), string(o.Type), o.Description, o.Unknown})
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(view); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
