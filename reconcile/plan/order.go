package plan

import (
	"slices"

	"pinfold/config"
)

// portKey is a port on the host.
type portKey struct {
	address, protocol string
	port              int
}

// order puts the decided changes into an order in which they can be executed,
// and fills in what each waits for:
//
//  1. sandboxes that go, those that depend on others first
//  2. sandboxes on networks that go or are replaced, taken down
//  3. networks that make room for others
//  4. everything made or changed, what is referred to first
//  5. old instances whose replacements came first, once all that refers to them
//     has turned to these
//  6. networks, volumes and images that go
//  7. outputs
//
// Instances that were deposed before go with what else is done to their sandbox.
//
// A cycle, which a configuration cannot have, is cut at an arbitrary but fixed place.
func (w *walk) order() []Change {
	w.addRetired()
	if len(w.steps) == 0 {
		return []Change{}
	}
	var going, made, late, outs []string
	for a, cs := range w.steps {
		switch kind := cs[0].Kind; {
		case kind == "output":
			outs = append(outs, a)
		case kind == "sandbox" && w.leaves(a):
			going = append(going, a)
		case kind != "sandbox" && cs[len(cs)-1].Action == ActDelete, cs[len(cs)-1].Action == ActForget:
			late = append(late, a)
		default:
			made = append(made, a)
		}
	}
	for _, l := range [][]string{going, made, late, outs} {
		slices.Sort(l)
	}

	var early []string
	late = slices.DeleteFunc(late, func(a string) bool {
		if w.inTheWay(a, made) {
			early = append(early, a)
			w.early[a] = true
			return true
		}
		return false
	})
	w.takeDown(made)
	w.findReleased()
	retiring, dependants := w.successors(made)

	placed := map[string]bool{}
	out := make([]Change, 0, len(w.steps)+8)
	emit := func(a string, waits []string) {
		var deps []string
		for _, d := range waits {
			if d != a && placed[d] {
				deps = append(deps, d)
			}
		}
		slices.Sort(deps)
		deps = slices.Compact(deps)
		for _, c := range w.steps[a] {
			c.DependsOn = deps
			out = append(out, c)
		}
	}
	users := w.recordedUsers()
	for _, a := range topological(going, func(a string) []string { return users[a] }) {
		emit(a, users[a])
		placed[a] = true
	}
	// The first half of those whose network is taken away under them.
	for _, a := range made {
		if front := w.inFront(a); len(front) > 0 {
			out = append(out, front...)
			placed[a] = true
		}
	}
	wanted := map[portKey][]string{}
	if len(retiring) > 0 {
		wanted = w.portsWanted(made)
	}
	retire := func(a string) {
		c := retiring[a]
		c.DependsOn = slices.DeleteFunc(dependants[a], func(d string) bool { return !placed[d] })
		out = append(out, c)
		delete(retiring, a)
	}
	for _, a := range early {
		emit(a, users[a])
		placed[a] = true
	}
	for _, a := range topological(made, w.needs) {
		waits := w.needs(a)
		if len(w.steps[a]) > 0 && w.steps[a][0].Kind == "network" {
			waits = append(waits, early...)
		}
		// What is only repaired or changed in place need not wait for those that leave.
		if slices.ContainsFunc(w.steps[a], func(c Change) bool { return c.Kind == "network" && c.Action == ActReplace }) {
			waits = append(waits, users[a]...)
		}
		emit(a, waits)
		placed[a] = true
		if _, first := retiring[a]; first && w.hands(a, wanted) {
			retire(a)
		}
	}
	for _, a := range slices.Sorted(mapKeys(retiring)) {
		retire(a)
	}
	for _, a := range topological(late, func(a string) []string { return users[a] }) {
		emit(a, users[a])
		placed[a] = true
	}
	for _, a := range outs {
		emit(a, nil)
	}
	return out
}

// takenDown is the Reason of a suspend that frees a network for its replacement.
const takenDown = "network_replaced"

// inTheWay reports whether network a, which goes, has a range that one to be
// made claims.
func (w *walk) inTheWay(a string, made []string) bool {
	old := w.in.Records.Networks[a]
	if old == nil || !old.CIDR.IsValid() {
		return false
	}
	for _, m := range made {
		if d := w.networks[m]; d != nil && unsettles(&w.steps[m][len(w.steps[m])-1]) && overlaps(old, d) {
			return true
		}
	}
	return false
}

// takeDown lets sandboxes that are replaced because of their network first give
// up the old one.
func (w *walk) takeDown(made []string) {
	if len(w.early) == 0 {
		return
	}
	for _, a := range made {
		rec := w.in.Records.Sandboxes[a]
		if rec == nil || rec.Spec.Network == nil || !w.early[rec.Spec.Network.Name] {
			continue
		}
		i := slices.IndexFunc(w.steps[a], func(c Change) bool { return c.Action == ActReplace })
		if i < 0 || !w.phaseNow(a).live() {
			continue
		}
		c := w.steps[a][i]
		if c.CreateFirst {
			w.refuseUnder(rec.Spec.Network.Name, a, "destroyed before another takes its range", position(w.sandboxes[a]))
			continue
		}
		down := Change{Address: a, Kind: "sandbox", Action: ActSuspend, Origin: c.Origin, Cause: c.Cause, Instance: c.Instance,
			Consequence: "taken down, so that its network can go", Reason: takenDown}
		w.steps[a] = append([]Change{down}, w.steps[a]...)
	}
}

// phaseNow is a sandbox's phase as observed, or as recorded without a look.
func (w *walk) phaseNow(a string) Phase {
	if st, ok := w.plan.Status[a]; ok {
		return st.Phase
	}
	return w.in.Records.Sandboxes[a].phase()
}

// recordedUsers lists for each changing address the changing sandboxes that
// refer to it by record, sorted.
func (w *walk) recordedUsers() map[string][]string {
	users := map[string][]string{}
	for a := range w.steps {
		rec := w.in.Records.Sandboxes[a]
		if rec == nil {
			continue
		}
		deps := append(references(&rec.Spec), rec.DependsOn...)
		for _, d := range rec.Deposed {
			if d.Net != nil {
				deps = append(deps, d.Net.Network)
			}
		}
		slices.Sort(deps)
		for _, d := range slices.Compact(deps) {
			if _, changes := w.steps[d]; changes && d != a {
				users[d] = append(users[d], a)
			}
		}
	}
	for d := range users {
		slices.Sort(users[d])
	}
	return users
}

// findReleased notes which fixed host ports sandboxes give up in this plan, so
// that whoever takes one waits for it.
func (w *walk) findReleased() {
	w.released = map[portKey][]string{}
	for a, cs := range w.steps {
		rec := w.in.Records.Sandboxes[a]
		if rec == nil || cs[0].Kind != "sandbox" {
			continue
		}
		var kept map[string]config.Port
		if d := w.sandboxes[a]; d != nil && !w.leaves(a) {
			kept = d.Spec.Ports
		}
		for name, p := range rec.Spec.Ports {
			if p.Host != 0 && kept[name] != p {
				k := portKey{p.Address, p.Protocol, p.Host}
				w.released[k] = append(w.released[k], a)
			}
		}
	}
	for k := range w.released {
		slices.Sort(w.released[k])
	}
}

// needs lists what must be there before a is made or changed: what it refers
// to, and who gives up the host ports it wants.
func (w *walk) needs(a string) []string {
	needs := w.refersTo(a)
	d := w.sandboxes[a]
	if d == nil || len(w.released) == 0 {
		return needs
	}
	for _, p := range d.Spec.Ports {
		if p.Host != 0 {
			needs = append(needs, w.released[portKey{p.Address, p.Protocol, p.Host}]...)
		}
	}
	slices.Sort(needs)
	return slices.Compact(needs)
}

// topological sorts addresses so that each comes after those of the list that
// before names, and otherwise alphabetically.
func topological(list []string, before func(string) []string) []string {
	in := make(map[string]bool, len(list))
	for _, a := range list {
		in[a] = true
	}
	type frame struct {
		a    string
		deps []string
	}
	visited := make(map[string]bool, len(list))
	out := make([]string, 0, len(list))
	for _, start := range list {
		if visited[start] {
			continue
		}
		visited[start] = true
		stack := []frame{{start, before(start)}}
		for len(stack) > 0 {
			f := &stack[len(stack)-1]
			if len(f.deps) == 0 {
				out = append(out, f.a)
				stack = stack[:len(stack)-1]
				continue
			}
			d := f.deps[0]
			f.deps = f.deps[1:]
			if in[d] && !visited[d] {
				visited[d] = true
				stack = append(stack, frame{d, before(d)})
			}
		}
	}
	return out
}
