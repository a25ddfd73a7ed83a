package view

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"pinfold/config"
)

// Outputs writes every output as HCL. A sensitive one is not told: whoever wants it asks
// for it by name.
func (s *Screen) Outputs(outputs []config.Output) {
	outputs = slices.SortedFunc(slices.Values(outputs), func(a, b config.Output) int { return strings.Compare(a.Name, b.Name) })
	width := 0
	for _, o := range outputs {
		width = max(width, columns(o.Name))
	}
	for _, o := range outputs {
		text := outputText(o)
		if o.Sensitive && !o.Unknown {
			text = config.Redacted
		}
		s.Linef("%s = %s\n", pad(printable(o.Name), width), text)
	}
}

// Output writes one output's value as HCL.
func (s *Screen) Output(o config.Output) { s.Linef("%s\n", outputText(o)) }

func outputText(o config.Output) string {
	if o.Unknown {
		return afterApply
	}
	return literal(decode(o.Value), 0)
}

// OutputRaw writes a string, number or bool with nothing around it.
func OutputRaw(w io.Writer, o config.Output) error {
	switch v := decode(o.Value).(type) {
	case string:
		_, err := io.WriteString(w, v)
		return err
	case json.Number, bool:
		_, err := fmt.Fprint(w, v)
		return err
	case nil:
		return fmt.Errorf("output %q is null and has no raw form; use -json", o.Name)
	default:
		return fmt.Errorf("output %q is a list or an object and has no raw form; use -json", o.Name)
	}
}

type outputJSON struct {
	Value       json.RawMessage `json:"value"`
	Type        json.RawMessage `json:"type"`
	Unknown     bool            `json:"unknown"`
	Sensitive   bool            `json:"sensitive"` // its value is null here, unless it was asked for by name
	Description *string         `json:"description"`
}

// outputsOf are outputs as JSON; named: they were asked for by name.
func outputsOf(outputs []config.Output, named bool) map[string]outputJSON {
	doc := make(map[string]outputJSON, len(outputs))
	for _, o := range outputs {
		one := outputJSON{Value: o.Value, Type: o.Type, Unknown: o.Unknown, Sensitive: o.Sensitive}
		if o.Sensitive && !named {
			one.Value = nil
		}
		if o.Description != "" {
			one.Description = &o.Description
		}
		doc[o.Name] = one
	}
	return doc
}

// outputsDocument is `output -json`.
type outputsDocument struct {
	FormatVersion string                `json:"format_version"`
	Outputs       map[string]outputJSON `json:"outputs"`
}

// OutputsJSON writes `output -json`; named: of one that was asked for by name.
func OutputsJSON(w io.Writer, outputs []config.Output, named bool) error {
	return JSON(w, outputsDocument{FormatVersion, outputsOf(outputs, named)})
}
