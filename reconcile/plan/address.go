package plan

import (
	"slices"
	"strings"
)

// Names reports whether address is what a word of the command line names: itself,
// every instance of it, or everything in the module.
func Names(word, address string) bool { return names(word, address) }

// SplitModule cuts an address into the module it is in and what it is there:
// module.ci["a"] and sandbox.runner. The module is empty for the root.
func SplitModule(address string) (module, local string) {
	at := 0
	for strings.HasPrefix(address[at:], "module.") {
		next := stepPast(address, stepPast(address, at))
		if next >= len(address) {
			break // a module itself
		}
		at = next
	}
	return strings.TrimSuffix(address[:at], "."), address[at:]
}

// stepPast is where the part of an address behind the one that begins at from does.
func stepPast(address string, from int) int {
	quoted, escaped := false, false
	for i := from; i < len(address); i++ {
		switch c := address[i]; {
		case escaped:
			escaped = false
		case quoted && c == '\\':
			escaped = true
		case c == '"':
			quoted = !quoted
		case c == '.' && !quoted:
			return i + 1
		}
	}
	return len(address)
}

// KindOf is the kind of what an address names: sandbox, network, volume, image or
// output; empty for none of these.
func KindOf(address string) string {
	_, local := SplitModule(address)
	kind, _, _ := strings.Cut(local, ".")
	if slices.Contains([]string{"sandbox", "network", "volume", "image", "output"}, kind) {
		return kind
	}
	return ""
}
