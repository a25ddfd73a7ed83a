package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// documents are what -json prints, by the name of their schema in docs/schema.
var documents = map[string]struct {
	of    any
	about string
}{
	"plan":          {planDocument{}, "pinfold plan -json, and pinfold show -json PLANFILE"},
	"apply":         {applyDocument{}, "pinfold apply -json and pinfold destroy -json"},
	"drift":         {DriftDocument{}, "pinfold drift -json"},
	"validate":      {validateDocument{}, "pinfold validate -json"},
	"diagnostics":   {diagnosticsDocument{}, "any command with -json that failed"},
	"effective":     {effectiveDocument{}, "pinfold show -effective -json"},
	"list":          {listDocument{}, "pinfold list -json, pinfold wait -json, pinfold touch -json and pinfold kill -json"},
	"top":           {reconcile.TopResult{}, "pinfold top -once -json, and each line of pinfold top -json"},
	"describe":      {describeDocument{}, "pinfold describe -json"},
	"act":           {actDocument{}, "pinfold start, stop, pause, resume, release and renew with -json"},
	"events":        {eventsDocument{}, "pinfold events -json"},
	"event":         {eventJSON{}, "each line of pinfold events -f -json"},
	"history":       {historyDocument{}, "pinfold history -json"},
	"output":        {outputsDocument{}, "pinfold output -json"},
	"doctor":        {reconcile.DoctorResult{}, "pinfold doctor -json"},
	"gc":            {reconcile.GCResult{}, "pinfold gc -json"},
	"state-list":    {ResourcesDocument{}, "pinfold state list -json"},
	"state-show":    {RecordDocument{}, "pinfold state show -json"},
	"state-pull":    {reconcile.StateDocument{}, "pinfold state pull"},
	"state-push":    {reconcile.PushResult{}, "pinfold state push -json"},
	"state-mv":      {reconcile.StateMoveResult{}, "pinfold state mv -json"},
	"state-rm":      {reconcile.StateRemoveResult{}, "pinfold state rm -json"},
	"state-verify":  {reconcile.VerifyResult{}, "pinfold state verify -json"},
	"state-backup":  {reconcile.BackupResult{}, "pinfold state backup -json"},
	"state-restore": {reconcile.RestoreResult{}, "pinfold state restore -json"},
	"state-rebuild": {reconcile.RebuildResult{}, "pinfold state rebuild -json"},
	"volume-list":   {reconcile.VolumesResult{}, "pinfold volume list -json"},
	"volume-show":   {volumeDocument{}, "pinfold volume show -json"},
	"image-list":    {reconcile.ImagesResult{}, "pinfold image list -json"},
	"image-show":    {imageDocument{}, "pinfold image show -json"},
	"force-unlock":  {reconcile.UnlockResult{}, "pinfold force-unlock -json"},
	"version":       {versionDocument{}, "pinfold version -json"},
}

// The schemas in docs/schema are those of the documents as they are printed: run this
// test with -update after changing one.
func TestSchemas(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "schema")
	comments := fieldComments(t)
	for name, doc := range documents {
		g := &schemaWriter{defs: map[string]any{}, comments: comments}
		root := g.object(reflect.TypeOf(doc.of))
		root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
		root["title"] = doc.about
		if len(g.defs) > 0 {
			root["$defs"] = g.defs
		}
		var got bytes.Buffer
		if err := JSON(&got, root); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name+".json")
		if *update {
			if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(want, got.Bytes()) {
			t.Errorf("docs/schema/%s.json is not the schema of what is printed (%v); run go test ./cmd/view -run TestSchemas -update", name, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".json"); documents[name].of == nil {
			t.Errorf("%s is the schema of nothing", f)
		}
	}
}

// schemaWriter makes JSON Schemas of Go types by the rules of encoding/json.
type schemaWriter struct {
	defs     map[string]any
	comments map[string]string // of fields, by package.Type.Field
}

// words are the values of types that have few.
var words = map[reflect.Type][]any{
	reflect.TypeFor[plan.Action](): {
		plan.ActCreate, plan.ActUpdate, plan.ActRestart, plan.ActReplace, plan.ActDelete, plan.ActStart, plan.ActStop, plan.ActSuspend, plan.ActPause,
		plan.ActResume, plan.ActExpire, plan.ActRecreate, plan.ActRepair, plan.ActMove, plan.ActImport, plan.ActRelease, plan.ActForget, plan.ActNoop,
	},
	reflect.TypeFor[plan.Origin](): {plan.FromFiles, plan.FromHost},
	reflect.TypeFor[plan.Phase]():  {plan.Pending, plan.Created, plan.Running, plan.Paused, plan.Stopped, plan.Failed, plan.Lost, plan.Destroyed},
}

func (g *schemaWriter) of(t reflect.Type) map[string]any {
	if values := words[t]; values != nil {
		return map[string]any{"enum": values}
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[config.Duration]():
		return map[string]any{"type": "string", "pattern": "^-?([0-9.]+(ns|us|µs|ms|s|m|h|d|w))+$|^0s?$"}
	case reflect.TypeFor[json.RawMessage]():
		return map[string]any{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return map[string]any{"anyOf": []any{g.of(t.Elem()), map[string]any{"type": "null"}}}
	case reflect.Struct:
		if t.Name() == "" {
			return g.object(t)
		}
		if _, known := g.defs[t.String()]; !known {
			g.defs[t.String()] = nil // it may hold itself
			g.defs[t.String()] = g.object(t)
		}
		return map[string]any{"$ref": "#/$defs/" + t.String()}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": g.of(t.Elem())}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": g.of(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Uint32, reflect.Uint64:
		return map[string]any{"type": "integer", "minimum": 0}
	}
	panic(fmt.Sprintf("no schema for %s", t))
}

// object is the schema of a struct: nothing that is not in it, and all of it but
// what is left out when it is empty.
func (g *schemaWriter) object(t reflect.Type) map[string]any {
	properties, required := map[string]any{}, []string{}
	depth := map[string]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" || name == "-" || !f.IsExported() {
			continue
		}
		if d, again := depth[name]; again && d <= len(f.Index) {
			continue // the outer one counts
		}
		depth[name] = len(f.Index)
		schema := g.of(f.Type)
		if f.Type.Kind() == reflect.Slice && f.Type != reflect.TypeFor[json.RawMessage]() && nullable[name] {
			schema = map[string]any{"anyOf": []any{schema, map[string]any{"type": "null"}}}
		}
		if name == "format_version" {
			schema = map[string]any{"const": FormatVersion}
		}
		if text := g.comments[owner(t, f.Index)+"."+f.Name]; text != "" {
			schema["description"] = text
		}
		properties[name] = schema
		required = slices.DeleteFunc(required, func(n string) bool { return n == name })
		if !strings.Contains(rest, "omitempty") && !strings.Contains(rest, "omitzero") {
			required = append(required, name)
		}
	}
	slices.Sort(required)
	return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// nullable are lists that a record without them has as null.
var nullable = map[string]bool{"command": true}

// owner is the type that a field is declared in.
func owner(t reflect.Type, index []int) string {
	for _, i := range index[:len(index)-1] {
		if t = t.Field(i).Type; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
	}
	return t.String()
}

// fieldComments are what the sources say of fields.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{".", "../../reconcile", "../../reconcile/plan", "../../config"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if of, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range of.Fields.List {
						text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
						for _, name := range f.Names {
							out[file.Name.Name+"."+spec.Name.Name+"."+name.Name] = text
						}
					}
				}
				return true
			})
		}
	}
	return out
}
