package view

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"pinfold/config"
)

// Outputs writes every output as HCL, or with a name only that one's value.
func (s *Screen) Outputs(outputs []config.Output) {
	outputs = slices.SortedFunc(slices.Values(outputs), func(a, b config.Output) int { return strings.Compare(a.Name, b.Name) })
	width := 0
	for _, o := range outputs {
		width = max(width, columns(o.Name))
	}
	for _, o := range outputs {
		s.Printf("%s = %s\n", pad(printable(o.Name), width), outputText(o))
	}
}

// Output writes one output's value as HCL.
func (s *Screen) Output(o config.Output) { s.Printf("%s\n", outputText(o)) }

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
	Description *string         `json:"description"`
}

func outputsOf(outputs []config.Output) map[string]outputJSON {
	doc := make(map[string]outputJSON, len(outputs))
	for _, o := range outputs {
		one := outputJSON{Value: o.Value, Type: o.Type, Unknown: o.Unknown}
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

// OutputsJSON writes `output -json`.
func OutputsJSON(w io.Writer, outputs []config.Output) error {
	return JSON(w, outputsDocument{FormatVersion, outputsOf(outputs)})
}
