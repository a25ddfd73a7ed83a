package config

import (
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// Console evaluates expressions one by one where the root module's own are, with
// its variables, locals and resources.
type Console struct{ ev *evaluation }

// consoleFile is the name that diagnostics about an expression carry.
const consoleFile = "<console>"

// Console prepares a configuration for expressions about it. ex is as in Evaluate.
// A variable without a value is unknown, and so is everything that the errors among
// the diagnostics are about. Unlike those of files, expressions read the disk.
func (s *Source) Console(set Settings, ex Exports) (*Console, Diagnostics) {
	open := *s
	open.Reads, open.Globs, open.unread = orEmpty(s.Reads), orEmpty(s.Globs), maps.Clone(s.unread)
	ev := newEvaluation(&open, set, ex, &disk{source: &open, live: true, valueless: true})
	ev.valueless, ev.console = true, true
	ev.functions["type"] = typeFunc
	ev.run()
	return &Console{ev}, ev.sorted()
}

func orEmpty[V any](m map[string]V) map[string]V {
	out := make(map[string]V, len(m))
	maps.Copy(out, m)
	return out
}

// Evaluate works out one expression. The value may be unknown or marked, whole or in
// parts, and means nothing when there are errors among the diagnostics.
func (c *Console) Evaluate(text string) (cty.Value, Diagnostics) {
	ev := c.ev
	ev.sink = newSink()
	*ev.budget = *newBudget()
	ev.source(consoleFile, []byte(text), nil)
	if _, deep := tooDeep([]byte(text)); deep {
		ev.fail("", nil, "Nested too deeply", "Brackets, operators and conditionals nest deeper here than this program reads.")
		return cty.DynamicVal, ev.sorted()
	}
	expr, diags := hclsyntax.ParseExpression([]byte(text+"\n"), consoleFile, hcl.InitialPos)
	if ev.addAll("", atEnd(text, diags)); diags.HasErrors() {
		return cty.DynamicVal, ev.sorted()
	}
	attr := &hclsyntax.Attribute{Name: "expression", Expr: bound(expr), SrcRange: expr.Range()}
	d := &declaration{kind: "console", name: "expression", m: ev.root.m, local: attr, rng: expr.Range(), exprs: map[*hclsyntax.Attribute]*expression{}}
	ev.root.m.resolveAttr(ev.sink, d, attr, nil)
	d.dependOn()
	n := &node{declaration: d, home: ev.root}
	ev.scopeOf(n)
	v, _ := ev.value(n, attr, n.scope, "")
	return v, ev.sorted()
}

// atEnd moves what is said of the line behind the text, which nobody wrote, to the end
// of its last line.
func atEnd(text string, diags hcl.Diagnostics) hcl.Diagnostics {
	text = strings.TrimRight(text, "\n")
	lines := strings.Split(text, "\n")
	last := lines[len(lines)-1]
	end := hcl.Pos{Line: len(lines), Column: utf8.RuneCountInString(last) + 1, Byte: len(text)}
	for _, d := range diags {
		if d.Subject != nil && d.Subject.Start.Line > end.Line {
			d.Subject = &hcl.Range{Filename: d.Subject.Filename, Start: end, End: end}
		}
	}
	return diags
}
