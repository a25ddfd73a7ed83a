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

// Redact hides what is sensitive of the value at a path. Texts become Redacted, and
// what is no text null, so that a document keeps its shape.
func Redact(path string, doc json.RawMessage, sensitive []string) json.RawMessage {
	if len(doc) == 0 || len(sensitive) == 0 {
		return doc
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
	if e.Encode(redactValue(path, v, sensitive, Covered(path, sensitive))) != nil {
		return RedactedValue()
	}
	return bytes.TrimRight(out.Bytes(), "\n")
}

func redactValue(path string, v any, sensitive []string, hide bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, x := range v {
			p := Step(path, k)
			out[k] = redactValue(p, x, sensitive, hide || Covered(p, sensitive))
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			p := StepAt(path, i)
			out[i] = redactValue(p, x, sensitive, hide || Covered(p, sensitive))
		}
		return out
	case string:
		if hide {
			return Redacted
		}
	case nil:
	default:
		if hide {
			return nil
		}
	}
	return v
}
