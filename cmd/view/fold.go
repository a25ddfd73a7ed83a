package view

import (
	"slices"
	"strings"
)

// folded writes leaves of the same block or map as one line where they fit:
// resources = { cpu = 0.5, pids = 128 }. Each leaf has one of its own otherwise.
func folded(all []leaf, indent int) []attribute {
	var out []attribute
	for len(all) > 0 {
		group, _ := member(all[0].path)
		n := 1
		for group != "" && n < len(all) {
			if next, _ := member(all[n].path); next != group {
				break
			}
			n++
		}
		if line, fits := foldedLine(all[:n]); n > 1 && fits {
			out = append(out, attribute{symbol: "+", path: printable(group), value: line})
		} else {
			for _, l := range all[:n] {
				out = append(out, added(l.path, l.value, indent))
			}
		}
		all = all[n:]
	}
	return out
}

func foldedLine(group []leaf) (string, bool) {
	parts := make([]string, len(group))
	for i, l := range group {
		if text, ok := l.value.(string); ok && strings.Contains(text, "\n") {
			return "", false
		}
		_, name := member(l.path)
		parts[i] = printable(name) + " = " + flat(sized(l.path, l.value))
	}
	line := "{ " + strings.Join(parts, ", ") + " }"
	return line, columns(line) <= lineWidth
}

// labelled are the blocks of which there may be several, told apart by a label.
var labelled = []string{"file", "port", "volume"}

// member cuts a path into the block (or map) and what is in it: resources and cpu,
// port.http and host, env and "odd key". group is empty for what is in none.
func member(path string) (group, name string) {
	at := stepEnd(path, 0)
	if slices.Contains(labelled, path[:at]) {
		at = stepEnd(path, at)
	}
	if at == len(path) || stepEnd(path, at) != len(path) {
		return "", path
	}
	name = strings.TrimPrefix(path[at:], ".")
	return path[:at], strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
}

// stepEnd is where the step of a path that begins at from ends.
func stepEnd(path string, from int) int {
	if strings.HasPrefix(path[from:], `["`) {
		if end := strings.Index(path[from:], `"]`); end >= 0 {
			return from + end + 2
		}
	}
	rest := strings.TrimPrefix(path[from:], ".")
	if end := strings.IndexAny(rest, ".["); end >= 0 {
		return len(path) - len(rest) + end
	}
	return len(path)
}
