package config

import "strings"

// Covers reports whether target names address or something that it lies in: target
// is the address of a resource instance, of a resource, which stands for all its
// instances, or of a module with or without a key, which stands for all that is
// declared in it, at any depth. Both are in the form that String and ParseModule
// give.
func Covers(target, address string) bool {
	rest, found := strings.CutPrefix(address, target)
	if !found || target == "" {
		return false
	}
	switch {
	case rest == "":
		return true
	case strings.HasSuffix(target, "]"): // one instance
		return rest[0] == '.'
	case rest[0] == '.':
		return namesModule(target)
	}
	return rest[0] == '['
}

// Apply gives the address that the move makes of one, and whether it is concerned at
// all. A move between resources or modules without keys takes all their instances
// along; once one side has a key, the other without one is the single instance of a
// block that has neither for_each nor count. What lies in a module moves with it.
func (m Move) Apply(address string) (string, bool) {
	rest, found := strings.CutPrefix(address, m.From)
	if !found || m.From == "" {
		return address, false
	}
	keyed := strings.HasSuffix(m.From, "]") || strings.HasSuffix(m.To, "]")
	switch {
	case rest == "",
		rest[0] == '[' && !keyed,
		rest[0] == '.' && namesModule(m.From):
		return m.To + rest, true
	}
	return address, false
}

// namesModule reports whether an address is that of a module: no type follows its
// last module.
func namesModule(address string) bool {
	for {
		rest, found := strings.CutPrefix(address, "module.")
		if !found {
			return false
		}
		end := strings.IndexAny(rest, ".[")
		if end < 0 {
			return true
		}
		if rest = rest[end:]; rest[0] == '[' {
			rest = afterKey(rest)
		}
		if rest == "" {
			return true
		}
		address = strings.TrimPrefix(rest, ".")
	}
}

// afterKey is what follows a key in brackets at the beginning of text, whatever
// brackets and escaped quotes the key has in it.
func afterKey(text string) string {
	quoted := false
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == ']' && !quoted:
			return text[i+1:]
		}
	}
	return ""
}
