package config

import "strings"

// Covers reports whether target names address or something that it lies in: target
// is the address of a resource instance, of a resource, which stands for all its
// instances, or of a module, which stands for all that is declared in it, at any
// depth. A module without a key on the way stands for all its instances, too. Both are
// in the form that String and ParseModule give.
func Covers(target, address string) bool {
	for target != "" {
		want, have := splitStep(target), splitStep(address)
		if want.text != have.text || want.key != "" && want.key != have.key {
			return false
		}
		if want.rest == "" {
			return have.rest == "" || strings.HasPrefix(want.text, "module.")
		}
		target, address = want.rest, have.rest
		if address == "" {
			return false
		}
	}
	return false
}

// ModulesOver are the names that stand for the modules an address lies in, from the
// outermost on: each as all its instances and, where it has a key, as the one.
func ModulesOver(address string) (names []string) {
	for over, rest := "", address; strings.HasPrefix(rest, "module."); {
		step := splitStep(rest)
		names = append(names, over+step.text)
		if step.key != "" {
			names = append(names, over+step.text+step.key)
		}
		over, rest = over+step.text+step.key+".", step.rest
	}
	return names
}

// addressStep is the beginning of an address.
type addressStep struct {
	text string // TYPE.NAME or module.NAME
	key  string // in brackets; empty for none
	rest string // what follows, without the dot
}

func splitStep(address string) (s addressStep) {
	dot := strings.IndexByte(address, '.') + 1
	end := strings.IndexAny(address[dot:], ".[")
	if end < 0 {
		return addressStep{text: address}
	}
	end += dot
	s.text, s.rest = address[:end], address[end:]
	if s.rest[0] == '[' {
		after := afterKey(s.rest)
		s.key, s.rest = s.rest[:len(s.rest)-len(after)], after
	}
	s.rest = strings.TrimPrefix(s.rest, ".")
	return s
}

// Moves are the moved blocks of a configuration, also of one that cannot be evaluated
// whole: a count may need to know by its new name what is recorded by the old one.
func (s *Source) Moves(set Settings) []Move {
	ev := newEvaluation(s, set, nil, &disk{source: s})
	return ev.run().Moves
}

// Covers reports whether the block is about an address: step by step what From names, or
// something in it. A step without a key stands for all instances, of modules on the way too.
func (r Removal) Covers(address string) bool { return Covers(r.From, address) }

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
	for address != "" {
		s := splitStep(address)
		if !strings.HasPrefix(s.text, "module.") {
			return false
		}
		address = s.rest
	}
	return true
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
