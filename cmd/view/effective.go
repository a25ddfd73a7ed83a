package view

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"pinfold/config"
)

// effectiveValue is one attribute with where its value comes from.
type effectiveValue struct {
	Path   string          `json:"path"`
	Value  json.RawMessage `json:"value"` // null: not set
	File   *string         `json:"file"`  // null: the language's default
	Line   *int            `json:"line"`
	Policy *string         `json:"policy"`
}

// effective lists every attribute of a sandbox, set or not, in the language's order.
func effective(r *config.Resource[config.Sandbox]) []effectiveValue {
	var out []effectiveValue
	add := func(path string, v any, set bool) {
		one := effectiveValue{Path: path}
		switch {
		case slices.Contains(r.Unknown, path):
			one.Value, _ = json.Marshal(afterApply)
		case set:
			raw, err := json.Marshal(v)
			if err != nil {
				raw, _ = json.Marshal(fmt.Sprint(v))
			}
			one.Value = config.Redact(path, raw, r.Sensitive)
		}
		if p, ok := sourceOf(r, path); ok {
			if p.File != "" {
				one.File, one.Line = &p.File, &p.Line
			}
			if p.Policy != "" {
				one.Policy = &p.Policy
			}
		}
		out = append(out, one)
	}
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				walk(path, v.Elem())
				return
			}
		case reflect.Struct:
			if _, instant := v.Interface().(time.Time); !instant {
				for i := range v.NumField() {
					name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
					walk(config.Step(path, name), v.Field(i))
				}
				return
			}
		case reflect.Map:
			if v.Len() > 0 {
				keys := v.MapKeys()
				slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
				for _, k := range keys {
					walk(config.Step(path, k.String()), v.MapIndex(k))
				}
				return
			}
		case reflect.Slice:
			if v.Type().Elem().Kind() == reflect.Struct && v.Len() > 0 {
				for i := range v.Len() {
					walk(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
				}
				return
			}
		case reflect.Bool:
			add(path, v.Interface(), true)
			return
		}
		add(path, v.Interface(), !v.IsZero())
	}
	walk("", reflect.ValueOf(r.Spec))
	// What is unknown as a whole has no place in the spec yet.
	for _, path := range r.Unknown {
		if !slices.ContainsFunc(out, func(v effectiveValue) bool { return v.Path == path }) {
			add(path, nil, false)
		}
	}
	return out
}

// sourceOf finds where a path's value was written: at the path itself or at
// the nearest thing around it, such as env for env.WHO.
func sourceOf(r *config.Resource[config.Sandbox], path string) (config.Position, bool) {
	for {
		if p, ok := r.Sources[path]; ok {
			return p, true
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return config.Position{}, false
		}
		path = path[:i]
	}
}

// Effective writes every effective value of a sandbox with the file and line
// it came from.
func (s *Screen) Effective(r *config.Resource[config.Sandbox]) {
	s.Linef("%s\n", s.paint(bold, "# "+printable(r.Address)))
	values := effective(r)
	width, wide := 0, 0
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = flat(sized(v.Path, decode(v.Value))) // one line each, for grep
		if slices.Contains(r.Unknown, v.Path) {
			texts[i] = afterApply
		}
		width = max(width, columns(v.Path))
		if !strings.Contains(texts[i], "\n") && columns(texts[i]) <= 30 {
			wide = max(wide, columns(texts[i]))
		}
	}
	for i, v := range values {
		from := "default"
		if v.File != nil {
			from = fmt.Sprintf("%s:%d", printable(*v.File), *v.Line)
		}
		if v.Policy != nil {
			from += " (" + printable(*v.Policy) + ")"
		}
		s.Linef("%s = %s  %s\n", pad(printable(v.Path), width), pad(texts[i], wide), s.paint(dim, "# "+from))
	}
}

// effectiveDocument is `show -effective -json`.
type effectiveDocument struct {
	FormatVersion string           `json:"format_version"`
	Address       string           `json:"address"`
	Attributes    []effectiveValue `json:"attributes"`
	Unknown       []string         `json:"unknown"` // paths known only after apply
}

// EffectiveJSON writes `show -effective -json`.
func EffectiveJSON(w io.Writer, r *config.Resource[config.Sandbox]) error {
	return JSON(w, effectiveDocument{FormatVersion, r.Address, effective(r), list(r.Unknown)})
}
