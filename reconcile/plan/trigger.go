package plan

import (
	"encoding/json"
	"slices"
	"strings"

	"pinfold/config"
)

// triggered is the entry of replace_triggered_by that has the sandbox replaced; empty
// when none has. What the entries name is decided first.
func (o *one) triggered() string {
	if o.d == nil {
		return ""
	}
	for _, t := range o.d.Lifecycle.ReplaceTriggeredBy {
		if o.w.fires(t) {
			return triggerName(t)
		}
	}
	return o.w.in.Triggered[o.rec.Address]
}

// triggerPath is the path of what stands for a trigger among a change's differences.
const triggerPath = "replace_triggered_by"

// TriggeredBy is the entry of replace_triggered_by that a replace is for, empty when
// it is for something else.
func (c *Change) TriggeredBy() (entry string) {
	for _, d := range c.Diff {
		if d.Path == triggerPath && json.Unmarshal(d.After, &entry) == nil {
			return entry
		}
	}
	return ""
}

// triggerName is the trigger as it is written in the files.
func triggerName(t config.Trigger) string {
	if t.Path == "" {
		return t.Address
	}
	if strings.HasPrefix(t.Path, "[") {
		return t.Address + t.Path
	}
	return t.Address + "." + t.Path
}

// fires reports whether what a trigger names is updated or replaced in this plan, or
// the attribute that it names differs.
func (w *walk) fires(t config.Trigger) bool {
	if known, asked := w.fired[t]; asked {
		return known
	}
	w.fired[t] = false // one that leads back to itself fires no second time
	fires := false
	for _, a := range w.instances(t.Address) {
		if w.sandboxes[a] != nil && w.covered(a) {
			w.sandbox(a)
		}
		fires = fires || slices.ContainsFunc(w.steps[a], func(c Change) bool { return touches(&c, t.Path) })
	}
	w.fired[t] = fires
	return fires
}

// instances are the declared things that an address names: itself, or all keys of
// a resource with count or for_each, sorted.
func (w *walk) instances(address string) []string {
	if w.declared(address) {
		return []string{address}
	}
	if w.keyed == nil {
		w.keyed = map[string][]string{}
		add := func(a string) {
			if of := withoutKey(a); of != a {
				w.keyed[of] = append(w.keyed[of], a)
			}
		}
		for a := range w.images {
			add(a)
		}
		for a := range w.networks {
			add(a)
		}
		for a := range w.volumes {
			add(a)
		}
		for a := range w.sandboxes {
			add(a)
		}
		for _, list := range w.keyed {
			slices.Sort(list)
		}
	}
	return w.keyed[address]
}

// touches reports whether a change updates or replaces something, or the attribute
// at path of it, its exports included. What only converges, and what the lifecycle
// block says, changes nothing of the thing itself.
func touches(c *Change, path string) bool {
	if c.Action == ActDelete || c.Action == ActForget || c.Action == ActCreate {
		return false
	}
	differs := slices.ContainsFunc(c.Diff, func(d Diff) bool {
		return !covers("lifecycle", d.Path) && (path == "" || covers(path, d.Path) || covers(d.Path, path))
	})
	return differs || c.Action == ActReplace && path == "" || exportMoves(c, path)
}

// exportMoves reports whether a change gives something another value of an exported
// attribute.
func exportMoves(c *Change, path string) bool {
	first, _, _ := strings.Cut(path, ".")
	first, _, _ = strings.Cut(first, "[")
	switch c.Kind {
	case "sandbox":
		switch first {
		case "instance_id":
			return c.Action == ActReplace || c.Action == ActRecreate
		case "address":
			return c.CreateFirst || slices.ContainsFunc(c.Diff, func(d Diff) bool { return covers("network", d.Path) })
		case "ports":
			return c.CreateFirst || slices.ContainsFunc(c.Diff, func(d Diff) bool { return covers("port", d.Path) })
		}
	case "network":
		return c.Action == ActReplace && (first == "cidr" || first == "gateway")
	case "image":
		return c.Action == ActUpdate && first == "digest"
	}
	return false
}
