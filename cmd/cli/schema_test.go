package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/urfave/cli/v3"
)

// shape is what a command writes with -json: a document, or with lines one a line.
type shape struct {
	schema string // docs/schema/NAME.json
	flag   string // only with this flag; the shape without one is that of the command without any of them
	lines  bool
}

func one(schema string) []shape { return []shape{{schema: schema}} }

// schemas are those of each command with -json. A command that fails may answer with
// diagnostics instead.
var schemas = map[string][]shape{
	"validate": one("validate"), "show": {{schema: "plan"}, {schema: "effective", flag: "effective"}},
	"plan": one("plan"), "apply": one("apply"), "destroy": one("apply"), "drift": one("drift"),
	"list": one("list"), "top": {{schema: "top", flag: "once"}, {schema: "top", lines: true}}, "describe": one("describe"), "events": {{schema: "events"}, {schema: "event", flag: "follow", lines: true}},
	"history": one("history"), "wait": one("list"), "output": one("output"),
	"start": one("act"), "stop": one("act"), "pause": one("act"), "resume": one("act"), "release": one("act"), "renew": one("act"), "touch": one("list"), "kill": one("list"),
	"state list": one("state-list"), "state show": one("state-show"), "state pull": one("state-pull"), "state push": one("state-push"),
	"state mv": one("state-mv"), "state rm": one("state-rm"),
	"state verify": one("state-verify"), "state backup": one("state-backup"), "state restore": one("state-restore"), "state rebuild": one("state-rebuild"),
	"volume list": one("volume-list"), "volume show": one("volume-show"), "image list": one("image-list"), "image show": one("image-show"),
	"doctor": one("doctor"), "gc": one("gc"), "force-unlock": one("force-unlock"), "version": one("version"),
}

// schemaDir is docs/schema, whatever directory a test, or pinfold in a script, is in by now.
var schemaDir = func() string {
	if dir := os.Getenv(schemasAt); dir != "" {
		return dir
	}
	dir, err := filepath.Abs(filepath.Join("..", "..", "docs", "schema"))
	if err != nil {
		panic(err)
	}
	return dir
}()

// No command with -json is without a schema, and no schema without a command.
func TestCommandsHaveSchemas(t *testing.T) {
	used := map[string]bool{"diagnostics": true}
	seen := map[string]bool{}
	var walk func(name string, of *cli.Command)
	walk = func(name string, of *cli.Command) {
		for _, c := range of.Commands {
			full := strings.TrimSpace(name + " " + c.Name)
			walk(full, c)
			if !slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), "json") }) {
				continue
			}
			seen[full] = true
			if len(schemas[full]) == 0 {
				t.Errorf("pinfold %s has -json and no schema", full)
			}
			for _, s := range schemas[full] {
				used[s.schema] = true
			}
		}
	}
	walk("", (&run{App: New()}).root())
	for name := range schemas {
		if !seen[name] {
			t.Errorf("pinfold %s has a schema and no -json", name)
		}
	}
	files, err := filepath.Glob(filepath.Join(schemaDir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		if !used[name] {
			t.Errorf("no command has the schema %s", name)
		}
		if _, err := compiled(name); err != nil {
			t.Error(err)
		}
		delete(used, name)
	}
	for name := range used {
		t.Errorf("there is no docs/schema/%s.json", name)
	}
}

func compiled(name string) (*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	return c.Compile(filepath.Join(schemaDir, name+".json"))
}

// fits tells why a document is not as the schema says.
func fits(name string, document []byte) error {
	s, err := compiled(name)
	if err != nil {
		return err
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		return fmt.Errorf("it is no JSON: %w", err)
	}
	return s.Validate(v)
}

// schema NAME: what the last command wrote is as docs/schema/NAME.json says.
func schemaCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: schema NAME")
	}
	if err := fits(args[0], []byte(ts.ReadFile("stdout"))); err != nil {
		ts.Fatalf("%v", err)
	}
}

// A schema that lets anything through proves nothing.
func TestSchemasRefuse(t *testing.T) {
	for name, document := range map[string]string{
		"version": `{"format_version":"1","version":"0.1.0","go":"go1","platform":"linux/amd64","more":1}`,
		"list":    `{"format_version":"1"}`,
		"act":     `{"format_version":"1","sandbox":{},"note":null}`,
		"output":  `{"format_version":"2","outputs":{}}`,
		"event":   `{"seq":1,"at":"yesterday","address":"a","type":"t","reason":"r","uid":null,"instance_id":null,"message":null,"by":null}`,
	} {
		if fits(name, []byte(document)) == nil {
			t.Errorf("%s accepts %s", name, document)
		}
	}
	whole := `{"format_version":"1","version":"0.1.0","go":"go1","platform":"linux/amd64"}`
	if err := fits("version", []byte(whole)); err != nil {
		t.Error(err)
	}
}

// What the views are tested with is as the schemas say, too.
func TestGoldenDocumentsFit(t *testing.T) {
	for _, name := range []string{"plan", "apply", "list", "describe", "history", "effective"} {
		document, err := os.ReadFile(filepath.Join("..", "view", "testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := fits(name, document); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
