package config

import (
	"math"
	"regexp"
	"strings"
)

var yamlMention = regexp.MustCompile(`[&*][^\s\[\]{},]+`)

// yamlNodes bounds how many nodes a YAML text stands for once its aliases are
// written out, which can be far more than it is long. It goes by indentation: an
// anchor's node is on its line and the deeper ones that follow.
func yamlNodes(text string) int64 {
	type anchor struct {
		name   string
		indent int
		start  float64
	}
	var open []anchor
	size := map[string]float64{}
	total := 0.0
	closeTo := func(indent int, item bool) {
		kept := open[:0]
		for _, a := range open {
			if indent > a.indent || indent == a.indent && item {
				kept = append(kept, a)
			} else {
				size[a.name] = total - a.start
			}
		}
		open = kept
	}
	for line := range strings.Lines(text) {
		trimmed := strings.TrimLeft(line, " ")
		indent := len(line) - len(trimmed)
		trimmed = strings.TrimSpace(trimmed)
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		// The items of a list may stand as deep as the key above it.
		closeTo(indent, strings.HasPrefix(trimmed, "-"))
		before := total
		total += 1 + float64(len(trimmed))/2
		for _, mention := range yamlMention.FindAllString(trimmed, -1) {
			name := mention[1:]
			if mention[0] == '*' {
				for _, a := range open { // it may have ended on this line
					if a.name == name {
						size[name] = total - a.start
					}
				}
				total += size[name]
				continue
			}
			at := anchor{name, indent, before}
			if strings.HasPrefix(trimmed, "&") || strings.HasPrefix(trimmed, "---") {
				at.indent-- // of what follows at the same depth
			}
			open = append(open, at)
			size[name] = 0
		}
	}
	return int64(min(total, math.MaxInt32))
}
