package plan

import (
	"reflect"
	"slices"
	"strings"
	"time"

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
					walk(config.Step(path, name), f)
				}
			}
			return
		case reflect.Map:
			if v.Type().Elem().Kind() != reflect.Struct {
				break
			}
			for _, k := range v.MapKeys() {
				walk(config.Step(path, k.String()), v.MapIndex(k))
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
