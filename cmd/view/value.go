package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"pinfold/config"
)

// afterApply stands for a value that depends on something not yet made.
const afterApply = "(known after apply)"

// unknown is a value that is known only after apply.
type unknown struct{}

// lineWidth is how long a list or object may be to stay on one line.
const lineWidth = 90

// decode reads JSON into nil, bool, json.Number, string, []any and
// map[string]any. Text that is not JSON is shown as it is.
func decode(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return string(raw)
	}
	return v
}

// literal writes a value as HCL does. Continued lines are indented by indent
// spaces; a list or object that fits stays on one line.
func literal(v any, indent int) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case unknown:
		return afterApply
	case string:
		if v == config.Redacted {
			return v
		}
		return quote(v)
	case []any:
		if short, ok := inline(v); ok {
			return short
		}
		var out strings.Builder
		out.WriteString("[\n")
		for _, item := range v {
			fmt.Fprintf(&out, "%s%s,\n", spaces(indent+2), literal(item, indent+2))
		}
		return out.String() + spaces(indent) + "]"
	case map[string]any:
		if short, ok := inline(v); ok {
			return short
		}
		keys := slices.Sorted(maps.Keys(v))
		width := 0
		for _, k := range keys {
			width = max(width, columns(key(k)))
		}
		var out strings.Builder
		out.WriteString("{\n")
		for _, k := range keys {
			fmt.Fprintf(&out, "%s%s = %s\n", spaces(indent+2), pad(key(k), width), literal(v[k], indent+2))
		}
		return out.String() + spaces(indent) + "}"
	}
	return fmt.Sprint(v) // json.Number, bool
}

// inline writes a value on one line if it is short enough.
func inline(v any) (string, bool) {
	text := flat(v)
	return text, columns(text) <= lineWidth
}

func flat(v any) string {
	switch v := v.(type) {
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			parts[i] = flat(item)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		if len(v) == 0 {
			return "{}"
		}
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, key(k)+" = "+flat(v[k]))
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	}
	return literal(v, 0)
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// key writes a map key, quoted where HCL needs it.
func key(k string) string {
	if identifier.MatchString(k) {
		return k
	}
	return quote(k)
}

// quote writes a string as an HCL literal, what does not print escaped.
func quote(s string) string {
	var out strings.Builder
	out.WriteByte('"')
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			out.WriteRune('\\')
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\r':
			out.WriteString(`\r`)
		case r == '\t':
			out.WriteString(`\t`)
		case (r == '$' || r == '%') && strings.HasPrefix(s[i+1:], "{"):
			out.WriteRune(r)
			out.WriteRune(r)
		case hides(r) && r > 0xffff:
			fmt.Fprintf(&out, `\U%08x`, r)
		case hides(r):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// size writes bytes in the largest unit that divides them: 256MiB, 2GB, 1536.
func size(n int64) string {
	for _, u := range []struct {
		name string
		unit int64
	}{{"TiB", 1 << 40}, {"TB", 1e12}, {"GiB", 1 << 30}, {"GB", 1e9}, {"MiB", 1 << 20}, {"MB", 1e6}, {"KiB", 1 << 10}, {"KB", 1e3}} {
		if n >= u.unit && n%u.unit == 0 {
			return fmt.Sprintf("%d%s", n/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d", n)
}

// sized turns the byte counts of a path into the text a file would have.
func sized(path string, v any) any {
	number, ok := v.(json.Number)
	if !ok || path != "resources.memory" && !(strings.HasPrefix(path, "mount") && strings.HasSuffix(path, ".size")) {
		return v
	}
	n, err := number.Int64()
	if err != nil || n < 1000 {
		return v
	}
	return size(n)
}

func spaces(n int) string { return strings.Repeat(" ", n) }
