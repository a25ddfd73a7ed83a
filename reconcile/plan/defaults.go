package plan

import (
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclsyntax"

	"pinfold/config"
)

// defaults lists the attribute paths of a spec, as its JSON has them, whose
// values come from nobody: not from the files, a policy or the host settings.
// sources are those of config.Resource. A list is one path: written in part, it
// was written.
func defaults(spec any, sources map[string]config.Position) []string {
	touches := func(path string) bool {
		for s := range sources {
			if covers(s, path) || covers(path, s) {
				return true
			}
		}
		return false
	}
	var out []string
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				walk(path, v.Elem())
			}
			return
		case reflect.Struct:
			if v.Type() == reflect.TypeFor[time.Time]() {
				break
			}
			for i := range v.NumField() {
				name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
				if f := v.Field(i); !strings.HasPrefix(options, "omit") || !f.IsZero() {
					walk(step(path, name), f)
				}
			}
			return
		case reflect.Map:
			if v.Type().Elem().Kind() != reflect.Struct {
				break
			}
			for _, k := range v.MapKeys() {
				// A labelled block is always written; one whose name is not
				// recognized here hides nothing.
				if block := step(path, k.String()); touches(block) {
					walk(block, v.MapIndex(k))
				}
			}
			return
		}
		if !touches(path) {
			out = append(out, path)
		}
	}
	walk("", reflect.ValueOf(spec))
	slices.Sort(out)
	return out
}

// step extends an attribute path by a key: port.http, file["/etc/app.toml"].
func step(path, key string) string {
	switch {
	case path == "":
		return key
	case hclsyntax.ValidIdentifier(key):
		return path + "." + key
	}
	return path + "[" + strconv.Quote(key) + "]"
}
