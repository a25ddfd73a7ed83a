package plan

import (
	"slices"
	"strings"

	"pinfold/config"
)

// Rename gives the records with addresses changed: those of what is recorded, by
// their old ones, and with them each reference of one record to another. A record
// of which nothing changes is shared with r; any other is a copy.
func (r *Records) Rename(to map[string]string) Records {
	out := *r
	if len(to) == 0 {
		return out
	}
	ref := r.newNames(to)
	out.Sandboxes = renameAll(r.Sandboxes, to, func(s *Sandbox, address string) *Sandbox { return s.renamed(address, ref) })
	out.Networks = renameAll(r.Networks, to, func(n *Network, address string) *Network {
		c := *n
		c.Address, c.DependsOn, c.Lifecycle = address, ref.list(n.DependsOn), ref.lifecycle(n.Lifecycle)
		return &c
	})
	out.Volumes = renameAll(r.Volumes, to, func(v *Volume, address string) *Volume {
		c := *v
		c.Address, c.DependsOn, c.Lifecycle = address, ref.list(v.DependsOn), ref.lifecycle(v.Lifecycle)
		return &c
	})
	out.Images = renameAll(r.Images, to, func(i *Image, address string) *Image {
		c := *i
		c.Address, c.DependsOn, c.Lifecycle = address, ref.list(i.DependsOn), ref.lifecycle(i.Lifecycle)
		return &c
	})
	out.Ended = renameAll(r.Ended, to, func(e *Ended, address string) *Ended {
		c := *e
		c.Address = address
		return &c
	})
	return out
}

// renameAll renames the records of one kind. What edit leaves as it was stays shared.
func renameAll[T any](m map[string]*T, to map[string]string, edit func(record *T, address string) *T) map[string]*T {
	out := make(map[string]*T, len(m))
	for a, rec := range m {
		address, moved := to[a]
		if !moved {
			address = a
		}
		c := edit(rec, address)
		if !moved && same(rec, c) {
			c = rec
		}
		out[address] = c
	}
	return out
}

// same reports whether an edit has changed nothing.
func same[T any](a, b *T) bool { return a == b || string(encode(a)) == string(encode(b)) }

// renamed is the sandbox at another address, referring to what was renamed with it.
func (s *Sandbox) renamed(address string, ref newNames) *Sandbox {
	if s.Address == address && !slices.ContainsFunc(s.mentions(), ref.changes) {
		return s
	}
	c := *s
	c.Address = address
	c.Spec = ref.spec(&s.Spec)
	c.DependsOn, c.Lifecycle = ref.list(s.DependsOn), ref.lifecycle(s.Lifecycle)
	if s.Net != nil {
		n := *s.Net
		n.Network = ref.one(n.Network)
		c.Net = &n
	}
	c.Deposed = slices.Clone(s.Deposed)
	for i := range c.Deposed {
		if c.Deposed[i].Net != nil {
			n := *c.Deposed[i].Net
			n.Network = ref.one(n.Network)
			c.Deposed[i].Net = &n
		}
	}
	return &c
}

// mentions lists every address that the record has of others.
func (s *Sandbox) mentions() []string {
	out := append(references(&s.Spec), s.DependsOn...)
	for _, t := range s.Lifecycle.ReplaceTriggeredBy {
		out = append(out, t.Address)
	}
	if s.Net != nil {
		out = append(out, s.Net.Network)
	}
	for _, d := range s.Deposed {
		if d.Net != nil {
			out = append(out, d.Net.Network)
		}
	}
	return out
}

// newNames are new addresses by old ones: of instances, and of whole resources
// whose recorded instances have all moved to one other.
type newNames map[string]string

func (r *Records) newNames(to map[string]string) newNames {
	ref := make(newNames, len(to))
	whole := map[string]string{} // "" where it is not the same for all
	for a, b := range to {
		ref[a] = b
		if from, into := withoutKey(a), withoutKey(b); from != a {
			if other, seen := whole[from]; seen && other != into {
				into = ""
			}
			whole[from] = into
		}
	}
	for _, a := range r.Addresses() {
		if _, moved := to[a]; !moved {
			delete(whole, withoutKey(a))
		}
	}
	for from, into := range whole {
		if _, itself := ref[from]; into != "" && !itself {
			ref[from] = into
		}
	}
	return ref
}

// Addresses lists those of everything that is recorded, outputs apart, sorted.
func (r *Records) Addresses() []string {
	n := len(r.Sandboxes) + len(r.Ended) + len(r.Networks) + len(r.Volumes) + len(r.Images)
	all := make([]string, 0, n)
	add := func(a string) { all = append(all, a) }
	each(r.Sandboxes, add)
	each(r.Ended, add)
	each(r.Networks, add)
	each(r.Volumes, add)
	each(r.Images, add)
	slices.Sort(all)
	return slices.Compact(all)
}

func each[T any](m map[string]T, do func(string)) {
	for a := range m {
		do(a)
	}
}

func (r newNames) changes(address string) bool { return r.one(address) != address }

func (r newNames) one(address string) string {
	if to, ok := r[address]; ok {
		return to
	}
	return address
}

// list renames addresses and keeps them sorted.
func (r newNames) list(addresses []string) []string {
	if !slices.ContainsFunc(addresses, r.changes) {
		return addresses
	}
	out := make([]string, len(addresses))
	for i, a := range addresses {
		out[i] = r.one(a)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r newNames) lifecycle(l config.Lifecycle) config.Lifecycle {
	if !slices.ContainsFunc(l.ReplaceTriggeredBy, func(t config.Trigger) bool { return r.changes(t.Address) }) {
		return l
	}
	l.ReplaceTriggeredBy = slices.Clone(l.ReplaceTriggeredBy)
	for i := range l.ReplaceTriggeredBy {
		l.ReplaceTriggeredBy[i].Address = r.one(l.ReplaceTriggeredBy[i].Address)
	}
	return l
}

func (r newNames) spec(s *config.Sandbox) config.Sandbox {
	c := *s
	c.Image = r.one(c.Image)
	if c.Network != nil {
		n := *c.Network
		n.Name = r.one(n.Name)
		c.Network = &n
	}
	if slices.ContainsFunc(c.Mounts, func(m config.Mount) bool { return r.changes(m.Volume) }) {
		c.Mounts = slices.Clone(c.Mounts)
		for i := range c.Mounts {
			c.Mounts[i].Volume = r.one(c.Mounts[i].Volume)
		}
	}
	return c
}

// withoutKey is the address of the whole resource, or the address itself where it
// ends in no key.
func withoutKey(address string) string {
	if !strings.HasSuffix(address, "]") {
		return address
	}
	open, quoted := -1, false
	for i := 0; i < len(address); i++ {
		switch c := address[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '[' && !quoted:
			open = i
		}
	}
	if open < 0 {
		return address
	}
	return address[:open]
}
