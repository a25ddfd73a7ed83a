package config

import (
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// WithSnippets gives diagnostics that only name a line of the configuration what
// Evaluate's have: the source lines, the columns of what is meant, and the block
// around it. Who compares with records knows lines, not texts. Diagnostics that
// have a snippet, or speak of no file of s, stay as they are; s may be nil.
func (s *Source) WithSnippets(d Diagnostics) Diagnostics {
	bare := func(x Diagnostic) bool {
		return x.Range != nil && x.Snippet == "" && s.Files[x.Range.File] != nil
	}
	if s == nil || !slices.ContainsFunc(d, bare) {
		return d
	}
	k := newSink()
	parseFiles(k, s.Files)
	out := slices.Clone(d)
	for i := range out {
		x := &out[i]
		if !bare(*x) {
			continue
		}
		t, r := k.texts[x.Range.File], *x.Range
		if t.body == nil {
			continue
		}
		meant, found := beginning(t.body, r.Start.Line)
		if found && r.Start == r.End {
			r.Start = Pos{meant.Start.Line, meant.Start.Column}
			r.End = Pos{meant.End.Line, meant.End.Column}
		}
		x.Range, x.Snippet = &r, snippet(t, &r)
		if found {
			x.Context = enclosing(t.body, meant.Start)
		}
	}
	return out
}

// beginning is the outermost thing that begins on a line: an argument, a block
// that ends there too, or else the header of a block.
func beginning(body *hclsyntax.Body, line int) (hcl.Range, bool) {
	for _, attr := range body.Attributes {
		if attr.SrcRange.Start.Line == line {
			return attr.SrcRange, true
		}
	}
	for _, b := range body.Blocks {
		first, last := b.TypeRange.Start.Line, b.CloseBraceRange.End.Line
		switch {
		case first == line && last == line:
			return hcl.RangeBetween(b.TypeRange, b.CloseBraceRange), true
		case first == line:
			return hcl.RangeBetween(b.TypeRange, b.OpenBraceRange), true
		case first < line && line <= last:
			return beginning(b.Body, line)
		}
	}
	return hcl.Range{}, false
}
