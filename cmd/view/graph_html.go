package view

import (
	_ "embed"
	"fmt"
	"html"
	"strings"
	"time"

	"pinfold/reconcile/plan"
)

//go:embed graph.css
var graphStyle string

//go:embed graph.js
var graphScript string

// foldedFrom is from how many instances on a block is shown folded.
const foldedFrom = 6

// HTML writes the graph as one page that asks nothing of anybody: style and script are
// in it, and its policy forbids to load anything. It can be used without the script,
// which draws the lines, filters and folds. Every instance stands in it once, with
// what is known of it.
func (s *Screen) HTML(g *Graph, title string, now time.Time) {
	p := &page{g: g, layers: layers(needsOf(g))}
	s.Printf(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>%s</title>
<style>
%s</style>
</head>
<body>
`, escaped(title), graphStyle)
	p.header(s, title, now)
	p.graph(s)
	s.Printf("<script>\n%s</script>\n</body>\n</html>\n", graphScript)
}

func needsOf(g *Graph) [][]int {
	needs := make([][]int, len(g.Blocks))
	for i := range g.Blocks {
		needs[i] = g.Blocks[i].Needs
	}
	return needs
}

// escaped is text that means itself in HTML, in attributes too, with what does not
// print replaced.
func escaped(text string) string { return html.EscapeString(printable(text)) }

type page struct {
	g      *Graph
	layers [][]int
}

// stateClass is the style of a state or action, which has a colour there.
func (p *page) stateClass(n *GraphNode) string {
	switch {
	case p.g.Plan && n.Action != "":
		return "a-" + actionClass(n.Action)
	case p.g.Plan:
		return "a-none"
	case n.State == "":
		return "s-declared"
	}
	return "s-" + n.State
}

// actionClass joins actions of one colour.
func actionClass(a plan.Action) string {
	switch a {
	case plan.ActCreate:
		return "create"
	case plan.ActDelete, plan.ActForget:
		return "delete"
	case plan.ActReplace:
		return "replace"
	case plan.ActUpdate, plan.ActRestart:
		return "change"
	}
	return "converge"
}

// stateWord is what the legend and each instance call it.
func (p *page) stateWord(n *GraphNode) string {
	switch {
	case p.g.Plan && n.Action != "":
		return string(n.Action)
	case p.g.Plan:
		return "no change"
	case n.State == "":
		return "declared"
	}
	return n.State
}

func (p *page) header(s *Screen, title string, now time.Time) {
	total, classes, counts := 0, []string{}, map[string]int{}
	words := map[string][]string{}
	for i := range p.g.Blocks {
		for j := range p.g.Blocks[i].Nodes {
			n := &p.g.Blocks[i].Nodes[j]
			c, w := p.stateClass(n), p.stateWord(n)
			if counts[c] == 0 {
				classes = append(classes, c)
			}
			counts[c]++
			total++
			if !containsText(words[c], w) {
				words[c] = append(words[c], w)
			}
		}
	}
	what := "What the files declare"
	switch {
	case p.g.Plan:
		what = "What the plan would do"
	case p.g.Seen:
		what = "What exists, as seen"
	}
	s.Printf("<header>\n<h1>%s</h1>\n<p>%s %s: %s in %s.</p>\n", escaped(title), what, now.UTC().Format("at 2006-01-02 15:04:05 UTC"), plural(total, "instance", "instances"), plural(len(p.g.Blocks), "block", "blocks"))
	s.Printf("<div class=\"bar\">\n<label>Filter <input id=\"filter\" type=\"search\" placeholder=\"address, phase, value\" autocomplete=\"off\"></label>\n<button id=\"open\" type=\"button\">Unfold all</button>\n<button id=\"close\" type=\"button\">Fold all</button>\n<span id=\"count\" role=\"status\"></span>\n</div>\n")
	s.Printf("<ul class=\"legend\" aria-label=\"Colours\">\n")
	for _, c := range classes {
		s.Printf("<li><span class=\"dot %s\"></span>%s <b>%d</b></li>\n", escaped(c), escaped(strings.Join(words[c], ", ")), counts[c])
	}
	s.Printf("</ul>\n</header>\n")
}

func containsText(all []string, text string) bool {
	for _, x := range all {
		if x == text {
			return true
		}
	}
	return false
}

// graph writes the layers, those that need nothing first.
func (p *page) graph(s *Screen) {
	s.Printf("<main id=\"graph\">\n<svg id=\"lines\" aria-hidden=\"true\"></svg>\n")
	if len(p.layers) == 0 {
		s.Printf("<p>Nothing is declared or recorded here.</p>\n")
	}
	for l, layer := range p.layers {
		s.Printf("<section class=\"layer\" aria-label=\"Layer %d\">\n", l+1)
		for _, b := range layer {
			p.block(s, b)
		}
		s.Printf("</section>\n")
	}
	s.Printf("</main>\n")
}

func (p *page) block(s *Screen, b int) {
	x := &p.g.Blocks[b]
	needs := make([]string, len(x.Needs))
	for i, j := range x.Needs {
		needs[i] = fmt.Sprint(j)
	}
	s.Printf("<article class=\"block k-%s\" id=\"b%d\" data-needs=\"%s\">\n", escaped(x.Kind), b, strings.Join(needs, " "))
	if len(x.Nodes) == 1 {
		p.node(s, &x.Nodes[0], x)
	} else {
		open := ""
		if len(x.Nodes) < foldedFrom {
			open = " open"
		}
		s.Printf("<details class=\"fold\"%s>\n<summary>%s<span class=\"name\">%s</span> <span class=\"of\">%s</span>\n<span class=\"tally\">%s</span></summary>\n<div class=\"list\">\n",
			open, p.module(x), escaped(x.Kind+" "+x.Name), plural(len(x.Nodes), "instance", "instances"), escaped(strings.Join(x.tally(p.stateWord), ", ")))
		for i := range x.Nodes {
			p.node(s, &x.Nodes[i], x)
		}
		s.Printf("</div>\n</details>\n")
	}
	s.Printf("</article>\n")
}

// module says which module a block is in; nothing for the root.
func (p *page) module(x *GraphBlock) string {
	if x.Module == "" {
		return ""
	}
	return "<span class=\"module\">" + escaped(x.Module) + "</span> "
}

// node writes one instance, which unfolds to what is known of it.
func (p *page) node(s *Screen, n *GraphNode, x *GraphBlock) {
	class, word := p.stateClass(n), p.stateWord(n)
	s.Printf("<details class=\"node\"><summary><span class=\"dot %s\"></span><span class=\"address\">%s</span> <span class=\"word\">%s</span></summary>\n<dl>\n", escaped(class), escaped(n.Address), escaped(word))
	if !n.Declared && p.g.Seen {
		s.Printf("<dt>note</dt><dd>recorded, and not in the files</dd>\n")
	}
	for _, f := range n.Facts {
		s.Printf("<dt>%s</dt><dd>%s</dd>\n", escaped(f[0]), escaped(f[1]))
	}
	s.Printf("</dl></details>\n")
}
