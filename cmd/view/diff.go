package view

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// attribute is one line (or several) under a change's headline.
type attribute struct {
	symbol string // "+", "-", "~", "-/+", "+/-" (create replacement and then destroy)
	path   string
	value  string // may span lines
	remark string // "forces replacement"
}

// attributes are the lines of one change: its differences, or for a new
// resource all that somebody chose.
func attributes(c *plan.Change, indent int) []attribute {
	var out []attribute
	if len(c.Diff) == 0 && c.Action == plan.ActCreate {
		chosen := slices.DeleteFunc(leaves(c.After, c.Unknown), func(l leaf) bool { return slices.Contains(c.Defaults, l.path) })
		out = folded(chosen, indent)
	}
	for _, d := range c.Diff {
		out = append(out, difference(d, slices.Contains(c.ReplacePaths, d.Path), indent))
	}
	width := 0
	for i, a := range out {
		width = max(width, columns(a.path))
		if c.CreateFirst && a.symbol == "-/+" {
			out[i].symbol = "+/-"
		}
	}
	for i := range out {
		out[i].path = pad(out[i].path, width)
	}
	return out
}

// added is a value where there was none.
func added(path string, value any, indent int) attribute {
	value = sized(path, value)
	a := attribute{symbol: "+", path: printable(path), value: literal(value, indent)}
	if text, ok := value.(string); ok && strings.Contains(strings.TrimSuffix(text, "\n"), "\n") {
		a.value = block(nil, lines(text), indent)
	}
	return a
}

func difference(d plan.Diff, forces bool, indent int) attribute {
	a := attribute{path: printable(d.Path)}
	before, after := sized(d.Path, decode(d.Before)), sized(d.Path, decode(d.After))
	switch {
	case d.Sensitive, before == any(config.Redacted) && after == any(config.Redacted):
		a.symbol, a.value = "~", config.Redacted
	case d.Unknown && len(d.Before) == 0:
		a = added(d.Path, unknown{}, indent)
	case d.Unknown:
		a.symbol, a.value = "~", literal(before, indent)+" -> "+afterApply
	case len(d.Before) == 0:
		a = added(d.Path, decode(d.After), indent)
	case len(d.After) == 0:
		a.symbol, a.value = "-", literal(before, indent)
	default:
		a.symbol, a.value = "~", changed(before, after, indent)
	}
	if d.Replace || forces {
		a.remark = "forces replacement"
		a.symbol = "-/+"
	}
	return a
}

// changed writes a value that becomes another: lists by element, maps by key,
// long texts by line, all else as "old -> new".
func changed(before, after any, indent int) string {
	switch b := before.(type) {
	case []any:
		if a, ok := after.([]any); ok {
			return changedList(b, a, indent)
		}
	case map[string]any:
		if a, ok := after.(map[string]any); ok {
			return changedMap(b, a, indent)
		}
	case string:
		if a, ok := after.(string); ok && (strings.Contains(b, "\n") || strings.Contains(a, "\n")) {
			return block(lines(b), lines(a), indent)
		}
	}
	return literal(before, indent) + " -> " + literal(after, indent)
}

func changedList(before, after []any, indent int) string {
	show := func(items []any) []string {
		out := make([]string, len(items))
		for i, item := range items {
			out[i] = literal(item, indent+6) + ","
		}
		return out
	}
	return "[\n" + edits(show(before), show(after), indent) + spaces(indent) + "]"
}

func changedMap(before, after map[string]any, indent int) string {
	keys := slices.Collect(maps.Keys(before))
	for k := range after {
		if _, both := before[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	width := 0
	for _, k := range keys {
		width = max(width, columns(key(k)))
	}
	var out strings.Builder
	out.WriteString("{\n")
	same := 0
	for _, k := range keys {
		b, had := before[k]
		a, has := after[k]
		if had && has && reflect.DeepEqual(a, b) {
			same++
			continue
		}
		symbol, value := "~", ""
		switch {
		case !had:
			symbol, value = "+", literal(a, indent+6)
		case !has:
			symbol, value = "-", literal(b, indent+6)
		default:
			value = changed(b, a, indent+6)
		}
		out.WriteString(spaces(indent+2) + symbol + " " + pad(key(k), width) + " = " + value + "\n")
	}
	if same > 0 {
		out.WriteString(spaces(indent+4) + hidden(same, "key", "keys") + "\n")
	}
	return out.String() + spaces(indent) + "}"
}

// block writes the difference of two texts as a heredoc; before nil: all new.
func block(before, after []string, indent int) string {
	if before == nil {
		var out strings.Builder
		for i, line := range after {
			if i == 4 && len(after) > 5 {
				out.WriteString(spaces(indent+4) + "# (" + plural(len(after)-i, "more line", "more lines") + ")\n")
				break
			}
			out.WriteString(spaces(indent+4) + printable(line) + "\n")
		}
		return "<<EOT\n" + out.String() + spaces(indent) + "EOT"
	}
	return "<<EOT\n" + edits(before, after, indent) + spaces(indent) + "EOT"
}

func lines(text string) []string {
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := range all {
		all[i] = printable(all[i])
	}
	return all
}

func hidden(n int, one, many string) string {
	return "# (" + plural(n, "unchanged "+one, "unchanged "+many) + " hidden)"
}

// edits writes two sequences as one, with "-" and "+" before what goes and
// comes. Of long stretches without a change only the ends are shown.
func edits(before, after []string, indent int) string {
	const around = 2
	type edit struct {
		symbol string
		text   string
	}
	var all []edit
	for _, step := range script(before, after) {
		all = append(all, edit{step.symbol, step.text})
	}
	var out strings.Builder
	near := func(i int) bool {
		for j := max(0, i-around); j <= min(len(all)-1, i+around); j++ {
			if all[j].symbol != " " {
				return true
			}
		}
		return false
	}
	for i := 0; i < len(all); i++ {
		run := i
		for run < len(all) && all[run].symbol == " " && !near(run) {
			run++
		}
		if run-i > 1 {
			out.WriteString(spaces(indent+4) + hidden(run-i, "line", "lines") + "\n")
			i = run - 1
			continue
		}
		out.WriteString(strings.TrimRight(spaces(indent+2)+all[i].symbol+" "+all[i].text, " ") + "\n")
	}
	return out.String()
}

type step struct{ symbol, text string }

// script is a shortest edit script by longest common subsequence. Sequences
// too long for its table are shown as removed and added whole.
func script(before, after []string) []step {
	head := 0
	for head < len(before) && head < len(after) && before[head] == after[head] {
		head++
	}
	tail := 0
	for tail < len(before)-head && tail < len(after)-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	var out []step
	for _, line := range before[:head] {
		out = append(out, step{" ", line})
	}
	b, a := before[head:len(before)-tail], after[head:len(after)-tail]
	if len(b)*len(a) > 1<<20 {
		for _, line := range b {
			out = append(out, step{"-", line})
		}
		for _, line := range a {
			out = append(out, step{"+", line})
		}
	} else {
		out = append(out, common(b, a)...)
	}
	for _, line := range before[len(before)-tail:] {
		out = append(out, step{" ", line})
	}
	return out
}

// common is the edit script of two sequences by dynamic programming.
func common(b, a []string) []step {
	length := make([][]int, len(b)+1)
	for i := range length {
		length[i] = make([]int, len(a)+1)
	}
	for i := len(b) - 1; i >= 0; i-- {
		for j := len(a) - 1; j >= 0; j-- {
			if b[i] == a[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var out []step
	i, j := 0, 0
	for i < len(b) || j < len(a) {
		switch {
		case i < len(b) && j < len(a) && b[i] == a[j]:
			out = append(out, step{" ", b[i]})
			i, j = i+1, j+1
		case j == len(a) || i < len(b) && length[i+1][j] >= length[i][j+1]:
			out = append(out, step{"-", b[i]})
			i++
		default:
			out = append(out, step{"+", a[j]})
			j++
		}
	}
	return out
}

// leaf is an attribute of a resource.
type leaf struct {
	path  string
	value any // as decode gives it, with unknown{} for what is not known yet
}

// leaves are the attributes of a resource in their paths' order.
func leaves(after json.RawMessage, unknowns []string) []leaf {
	var out []leaf
	inside := map[string]bool{} // unknown elements shown in their list
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch x := v.(type) {
		case map[string]any:
			if len(x) > 0 {
				for _, k := range slices.Sorted(maps.Keys(x)) {
					walk(config.Step(path, k), x[k])
				}
				return
			}
			if slices.ContainsFunc(unknowns, func(u string) bool { return strings.HasPrefix(u, path+".") || strings.HasPrefix(u, path+"[") }) {
				return // its only parts are unknown
			}
		case []any:
			for i := range x {
				if element := fmt.Sprintf("%s[%d]", path, i); slices.Contains(unknowns, element) {
					x[i], inside[element] = unknown{}, true
				}
			}
		}
		if path != "" && !slices.Contains(unknowns, path) {
			out = append(out, leaf{path, v})
		}
	}
	walk("", decode(after))
	for _, path := range unknowns {
		if !inside[path] {
			out = append(out, leaf{path, unknown{}})
		}
	}
	slices.SortStableFunc(out, func(a, b leaf) int { return strings.Compare(a.path, b.path) })
	return out
}
