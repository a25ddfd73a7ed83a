package view

import (
	"fmt"
	"strings"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// dotColors are fill colours of X11's names, by what a plan does.
var dotColors = map[plan.Action]string{
	plan.ActCreate: "palegreen", plan.ActDelete: "lightcoral", plan.ActReplace: "lightcoral", plan.ActForget: "wheat", plan.ActExpire: "wheat",
	plan.ActUpdate: "khaki", plan.ActRestart: "khaki",
}

// dotShapes are shapes by kind.
var dotShapes = map[string]string{"sandbox": "box", "network": "hexagon", "volume": "cylinder", "image": "folder"}

// DOT writes the graph in the language of Graphviz: a node for each block, an arrow to
// each that it needs, a cluster for each module.
// https://graphviz.org/doc/info/lang.html
func (s *Screen) DOT(g *Graph) {
	s.Printf("digraph pinfold {\n  rankdir = \"LR\"\n  node [fontname = \"sans-serif\", style = \"filled\", fillcolor = \"white\"]\n")
	modules := moduleTree(g)
	s.dotModule(g, modules, "", 1)
	for i := range g.Blocks {
		for _, j := range g.Blocks[i].Needs {
			s.Printf("  %s -> %s\n", dotQuote(g.Blocks[i].Address), dotQuote(g.Blocks[j].Address))
		}
	}
	s.Printf("}\n")
}

// moduleTree lists the modules directly in each module that has any, by its address.
func moduleTree(g *Graph) map[string][]string {
	tree, known := map[string][]string{}, map[string]bool{"": true}
	var add func(module string)
	add = func(module string) {
		if known[module] {
			return
		}
		known[module] = true
		parent := parentModule(module)
		add(parent)
		tree[parent] = append(tree[parent], module)
	}
	for i := range g.Blocks {
		add(g.Blocks[i].Module)
	}
	return tree
}

// parentModule is the module that a module is called in; empty: the root.
func parentModule(module string) string {
	for at := len(module) - 1; at > 0; at-- {
		if module[at] != '.' {
			continue
		}
		if parent, err := config.ParseModule(module[:at]); err == nil && parent == module[:at] && strings.HasPrefix(module[at:], ".module.") {
			return parent
		}
	}
	return ""
}

func (s *Screen) dotModule(g *Graph, tree map[string][]string, module string, depth int) {
	margin := strings.Repeat("  ", depth)
	for i := range g.Blocks {
		if x := &g.Blocks[i]; x.Module == module {
			s.Printf("%s%s [%s]\n", margin, dotQuote(x.Address), strings.Join(dotAttributes(g, x), ", "))
		}
	}
	for _, under := range tree[module] {
		s.Printf("%ssubgraph %s {\n%s  label = %s\n", margin, dotQuote("cluster_"+under), margin, dotQuote(under))
		s.dotModule(g, tree, under, depth+1)
		s.Printf("%s}\n", margin)
	}
}

func dotAttributes(g *Graph, x *GraphBlock) []string {
	label := x.Kind + "." + x.Name
	if n := len(x.Nodes); n > 1 {
		label += fmt.Sprintf("\n%d instances", n)
	}
	word := func(n *GraphNode) string { return n.State }
	if g.Plan {
		word = func(n *GraphNode) string { return string(n.Action) }
	}
	if words := x.tally(word); len(words) > 0 {
		label += "\n" + strings.Join(words, ", ")
	}
	out := []string{"label = " + dotQuote(label), "shape = " + dotQuote(dotShapes[x.Kind])}
	if action := x.action(); action != "" {
		color := dotColors[action]
		if color == "" {
			color = "lightcyan" // it converges
		}
		out = append(out, "fillcolor = "+dotQuote(color))
	}
	return out
}

// dotQuote is a quoted string of the language: a quote is escaped, a line break is
// "\n", and a backslash doubled, since it begins an escape in labels.
func dotQuote(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(printable(text)) + `"`
}
