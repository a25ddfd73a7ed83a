package view

import (
	"encoding/json"
	"fmt"
	"slices"
)

// redacted is a resource's JSON with the text "(sensitive value)" in the place of what
// lies at the paths, attribute paths as in config.Resource. A path covers what is below
// it, and none of it is left where it cannot be told apart.
func redacted(raw json.RawMessage, paths []string) json.RawMessage {
	if len(paths) == 0 || len(raw) == 0 {
		return raw
	}
	var walk func(path string, v any) any
	walk = func(path string, v any) any {
		if path != "" && slices.Contains(paths, path) {
			return sensitiveValue
		}
		switch x := v.(type) {
		case map[string]any:
			for k := range x {
				x[k] = walk(join(path, k), x[k])
			}
		case []any:
			for i := range x {
				x[i] = walk(fmt.Sprintf("%s[%d]", path, i), x[i])
			}
		}
		return v
	}
	out, err := json.Marshal(walk("", decode(raw)))
	if err != nil {
		return json.RawMessage(`"` + sensitiveValue + `"`)
	}
	return out
}

// redactedSpec is a spec as JSON, without what is sensitive.
func redactedSpec(spec any, paths []string) json.RawMessage {
	raw, err := json.Marshal(spec)
	if err != nil {
		return json.RawMessage("null")
	}
	return redacted(raw, paths)
}
