package config

import (
	"bytes"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// The parser descends once for each nesting, and a program that has used up its
// stack cannot be saved: what nests deeper than anybody writes is refused before.
const (
	maxNesting = 5000
	maxPrefix  = 500     // ! and - in a row
	maxChoices = 100_000 // conditionals, each of which may stand in another's last part
)

// parseConfig is hclsyntax.ParseConfig for texts from anywhere.
func parseConfig(src []byte, name string) (*hcl.File, hcl.Diagnostics) {
	if at, deep := tooDeep(src); deep {
		line := 1 + bytes.Count(src[:at], []byte("\n"))
		pos := hcl.Pos{Line: line, Column: 1, Byte: bytes.LastIndexByte(src[:at], '\n') + 1}
		return nil, hcl.Diagnostics{{
			Severity: hcl.DiagError, Summary: "Nested too deeply",
			Detail:  "Brackets, operators and conditionals nest deeper here than this program reads. Take it apart with locals.",
			Subject: &hcl.Range{Filename: name, Start: pos, End: pos},
		}}
	}
	file, diags := hclsyntax.ParseConfig(src, name, hcl.InitialPos)
	if file != nil {
		if body, ok := file.Body.(*hclsyntax.Body); ok {
			boundBody(body)
		}
	}
	return file, diags
}

// tooDeep counts brackets, prefix operators and question marks wherever they
// stand, in strings and comments too: that errs only for texts nobody writes.
func tooDeep(src []byte) (at int, deep bool) {
	depth, prefix, choices := 0, 0, 0
	for i, c := range src {
		switch c {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth = max(0, depth-1)
		case '?':
			choices++
		}
		switch c {
		case '!', '-':
			prefix++
		case ' ', '\t', '\r':
		default:
			prefix = 0
		}
		if depth > maxNesting || prefix > maxPrefix || choices > maxChoices {
			return i, true
		}
	}
	return 0, false
}
