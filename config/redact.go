package config

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Redacted stands for a sensitive value wherever values are shown.
const Redacted = "(sensitive value)"

// RedactedValue is Redacted as a JSON document.
func RedactedValue() json.RawMessage { return json.RawMessage(`"` + Redacted + `"`) }

// Covered reports whether an attribute path is, or lies below, one of those.
func Covered(path string, roots []string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		rest, below := strings.CutPrefix(path, root)
		return below && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// Redact is the value at a path with the text Redacted in the place of what lies at the
// sensitive paths, whatever it is: of a list or map that is sensitive as a whole not
// even its length or keys are told.
func Redact(path string, doc json.RawMessage, sensitive []string) json.RawMessage {
	if len(doc) == 0 || len(sensitive) == 0 {
		return doc
	}
	if Covered(path, sensitive) {
		return RedactedValue()
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return RedactedValue()
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if e.Encode(redactValue(path, v, sensitive)) != nil {
		return RedactedValue()
	}
	return bytes.TrimRight(out.Bytes(), "\n")
}

func redactValue(path string, v any, sensitive []string) any {
	if slices.Contains(sensitive, path) {
		return Redacted
	}
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = redactValue(Step(path, k), x, sensitive)
		}
	case []any:
		for i, x := range v {
			v[i] = redactValue(StepAt(path, i), x, sensitive)
		}
	}
	return v
}
