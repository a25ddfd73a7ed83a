package config

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// sink collects what one run finds. The same finding at the same place, as a
// block with for_each repeats it for each instance, is kept once with a count.
type sink struct {
	found []*finding
	index map[findingKey][]*finding
	texts map[string]text
}

// text is a source file as far as diagnostics need it.
type text struct {
	src  []byte
	body *hclsyntax.Body // nil for a bare expression
	line int             // of the first line of src, for an expression taken out of a file
}

type finding struct {
	Diagnostic
	others int    // further instances with the same finding
	last   string // the last of them
}

type findingKey struct {
	rng     hcl.Range
	summary string
}

func newSink() *sink {
	return &sink{index: map[findingKey][]*finding{}, texts: map[string]text{}}
}

// source makes a file's text known for snippets.
func (k *sink) source(name string, src []byte, body *hclsyntax.Body) {
	k.texts[name] = text{src: src, body: body, line: 1}
}

// fail adds an error about address (may be empty) at rng (nil: at no place).
func (k *sink) fail(address string, rng *hcl.Range, summary, format string, args ...any) {
	k.add(address, &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: rng})
}

// warn adds a warning.
func (k *sink) warn(rng *hcl.Range, summary, format string, args ...any) {
	k.add("", &hcl.Diagnostic{Severity: hcl.DiagWarning, Summary: summary, Detail: fmt.Sprintf(format, args...), Subject: rng})
}

func (k *sink) addAll(address string, diags hcl.Diagnostics) {
	for _, d := range diags {
		k.add(address, d)
	}
}

func (k *sink) add(address string, d *hcl.Diagnostic) {
	if d.Subject != nil {
		key := findingKey{*d.Subject, d.Summary}
		for _, f := range k.index[key] {
			if f.Address != address {
				// Another instance: count it with the first's finding.
				if f.last != address {
					f.last = address
					f.others++
				}
				return
			}
			if f.Detail == d.Detail {
				return
			}
		}
		k.index[key] = append(k.index[key], k.append(address, d))
		return
	}
	k.append(address, d)
}

func (k *sink) append(address string, given *hcl.Diagnostic) *finding {
	copied := *given
	d := &copied
	for _, double := range []string{"?.", ".."} { // HCL ends sentences that have an end
		if strings.HasSuffix(d.Detail, double) && !strings.HasSuffix(d.Detail, "...") {
			d.Detail = strings.TrimSuffix(d.Detail, ".")
		}
	}
	f := &finding{Diagnostic: Diagnostic{Severity: "error", Summary: d.Summary, Detail: d.Detail, Address: address}}
	if d.Severity == hcl.DiagWarning {
		f.Severity = "warning"
	}
	if d.Subject != nil {
		f.Range = &Range{
			File:  d.Subject.Filename,
			Start: Pos{d.Subject.Start.Line, d.Subject.Start.Column},
			End:   Pos{d.Subject.End.Line, d.Subject.End.Column},
		}
		if t, known := k.texts[d.Subject.Filename]; known {
			f.Snippet = snippet(t, f.Range)
			f.Context = enclosing(t.body, d.Subject.Start)
		}
	}
	k.found = append(k.found, f)
	return f
}

// failed reports whether an error was added.
func (k *sink) failed() bool {
	return slices.ContainsFunc(k.found, func(f *finding) bool { return f.Severity == "error" })
}

// sorted is everything found, in file order; what has no place comes first.
func (k *sink) sorted() Diagnostics {
	if len(k.found) == 0 {
		return nil
	}
	out := make(Diagnostics, 0, len(k.found))
	for _, f := range k.found {
		d := f.Diagnostic
		if f.others > 0 && d.Address != "" {
			d.Detail += fmt.Sprintf("\n\nThis was found for %s; %d more of its block have the same.", d.Address, f.others)
		}
		out = append(out, d)
	}
	slices.SortStableFunc(out, func(a, b Diagnostic) int {
		switch {
		case a.Range == nil && b.Range == nil:
			return cmp.Or(cmp.Compare(a.Summary, b.Summary), cmp.Compare(a.Detail, b.Detail))
		case a.Range == nil:
			return -1
		case b.Range == nil:
			return 1
		}
		return cmp.Or(
			cmp.Compare(a.Range.File, b.Range.File),
			cmp.Compare(a.Range.Start.Line, b.Range.Start.Line),
			cmp.Compare(a.Range.Start.Column, b.Range.Start.Column),
			cmp.Compare(a.Summary, b.Summary),
			cmp.Compare(a.Detail, b.Detail),
		)
	})
	return out
}

// maxSnippetLines bounds what is shown of a range that spans a whole block.
const maxSnippetLines = 4

// snippet cuts the lines of a range out of its file.
func snippet(t text, r *Range) string {
	lines := bytes.Split(t.src, []byte("\n"))
	first := r.Start.Line - t.line
	last := r.End.Line - t.line
	if r.End.Column == 1 && last > first { // the range ends with the line break
		last--
	}
	last = min(last, first+maxSnippetLines-1, len(lines)-1)
	if first < 0 || first > last {
		return ""
	}
	out := make([]string, 0, last-first+1)
	for _, line := range lines[first : last+1] {
		out = append(out, strings.ToValidUTF8(strings.TrimRight(string(line), "\r"), "\uFFFD"))
	}
	return strings.Join(out, "\n")
}

// enclosing is the header of the top-level block around a position.
func enclosing(body *hclsyntax.Body, at hcl.Pos) string {
	if body == nil {
		return ""
	}
	// Blocks are in file order: the last that starts at or before the place.
	i, exact := slices.BinarySearchFunc(body.Blocks, at, func(b *hclsyntax.Block, p hcl.Pos) int {
		return cmp.Compare(b.TypeRange.Start.Byte, p.Byte)
	})
	if !exact {
		i--
	}
	if i < 0 || at.Byte > body.Blocks[i].CloseBraceRange.End.Byte {
		return ""
	}
	return header(body.Blocks[i])
}

// header is a block's type and labels as they are written.
func header(b *hclsyntax.Block) string {
	out := b.Type
	for _, label := range b.Labels {
		out += " " + quote(label)
	}
	return out
}
