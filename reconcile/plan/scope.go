package plan

import (
	"cmp"
	"slices"

	"pinfold/config"
)

// scope says which addresses the plan speaks of; nil: all.
func (w *walk) scope() func(address string) bool {
	o := w.in.Options
	if len(o.Targets) == 0 && len(o.Excludes) == 0 {
		return nil
	}
	all := w.addresses()
	down := func(a string) []string { return w.refersTo(a) }
	var up func(a string) []string
	{
		users := map[string][]string{}
		for _, a := range all {
			for _, d := range w.refersTo(a) {
				users[d] = append(users[d], a)
			}
		}
		up = func(a string) []string { return users[a] }
	}
	pick := func(wanted []string, what string, follow ...func(string) []string) map[string]bool {
		set := map[string]bool{}
		for _, t := range wanted {
			found := false
			for _, a := range all {
				if config.Covers(t, a) {
					found = true
					for _, f := range follow {
						reach(a, f, set)
					}
				}
			}
			if !found {
				w.fail("", "there is no "+t, cmp.Or(w.readdressed(t), "-"+what+" names nothing that is declared or recorded."), config.Position{})
			}
		}
		return set
	}

	in := map[string]bool{}
	if len(o.Targets) > 0 {
		if o.Destroy {
			in = pick(o.Targets, "target", up)
		} else {
			in = pick(o.Targets, "target", down)
		}
	} else {
		for _, a := range all {
			in[a] = true
		}
	}
	if len(o.Excludes) > 0 {
		// What is to go stays while something kept refers to it; what is to stay
		// or come cannot do without what it refers to.
		going := func(a string) []string {
			return slices.DeleteFunc(slices.Clone(w.refersTo(a)), func(d string) bool { return !w.goes(d) })
		}
		staying := func(a string) []string {
			return slices.DeleteFunc(slices.Clone(up(a)), w.goes)
		}
		w.excluded = pick(o.Excludes, "exclude", going, staying)
		for a := range w.excluded {
			delete(in, a)
		}
	}
	return func(a string) bool { return in[a] }
}

// readdressed says what became of a name that things had until the files moved them;
// empty if none had it.
func (w *walk) readdressed(name string) string {
	var to []string
	for old, address := range w.first.to {
		if config.Covers(name, old) {
			to = append(to, address)
		}
	}
	if len(to) == 0 {
		return ""
	}
	slices.Sort(to)
	return "The files give it another address, which this plan goes by: " + listed(to) + "."
}

// reach adds start and everything that follow leads to.
func reach(start string, follow func(string) []string, set map[string]bool) {
	todo := []string{start}
	visited := map[string]bool{start: true}
	for len(todo) > 0 {
		a := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		set[a] = true
		for _, n := range follow(a) {
			if !visited[n] {
				visited[n] = true
				todo = append(todo, n)
			}
		}
	}
}

// goes reports whether a recorded address is no longer wanted.
func (w *walk) goes(a string) bool {
	if w.in.Options.Destroy {
		return true
	}
	return w.in.Desired != nil && !w.declared(a)
}

// refersTo lists what an address refers to, as declared and as recorded, sorted.
func (w *walk) refersTo(a string) []string {
	var out []string
	add := func(deps []string, spec *config.Sandbox) {
		out = append(out, deps...)
		if spec != nil {
			out = append(out, references(spec)...)
		}
	}
	if r := w.sandboxes[a]; r != nil {
		add(r.DependsOn, &r.Spec)
		for _, t := range r.Lifecycle.ReplaceTriggeredBy {
			out = append(out, w.instances(t.Address)...)
		}
	}
	if r := w.in.Records.Sandboxes[a]; r != nil {
		add(r.DependsOn, &r.Spec)
	}
	if r := w.networks[a]; r != nil {
		add(r.DependsOn, nil)
	}
	if r := w.in.Records.Networks[a]; r != nil {
		add(r.DependsOn, nil)
	}
	if r := w.volumes[a]; r != nil {
		add(r.DependsOn, nil)
	}
	if r := w.in.Records.Volumes[a]; r != nil {
		add(r.DependsOn, nil)
	}
	if r := w.images[a]; r != nil {
		add(r.DependsOn, nil)
	}
	if r := w.in.Records.Images[a]; r != nil {
		add(r.DependsOn, nil)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// references lists the resources a sandbox's spec names.
func references(s *config.Sandbox) []string {
	var out []string
	if s.Image != "" {
		out = append(out, s.Image)
	}
	if s.Network != nil && s.Network.Name != "" {
		out = append(out, s.Network.Name)
	}
	for _, m := range s.Mounts {
		if m.Volume != "" {
			out = append(out, m.Volume)
		}
	}
	return out
}
