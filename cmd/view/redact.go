package view

import (
	"encoding/json"

	"pinfold/config"
)

// redactedSpec is a spec as JSON, without what is sensitive.
func redactedSpec(spec any, paths []string) json.RawMessage {
	raw, err := json.Marshal(spec)
	if err != nil {
		return json.RawMessage("null")
	}
	return config.Redact("", raw, paths)
}
