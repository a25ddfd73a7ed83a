package plan

import (
	"net/netip"
	"slices"
	"strings"

	"pinfold/config"
)

// The kinds beside sandboxes: few rules each, all of them here.

func (w *walk) image(a string) {
	d, rec := w.images[a], w.in.Records.Images[a]
	switch {
	case rec == nil && w.in.Options.Destroy:
	case rec == nil:
		w.add(Change{Address: a, Kind: "image", Action: ActCreate, Origin: FromFiles, Cause: "declared",
			Consequence: "created", After: encode(d.Spec), Unknown: d.Unknown, Defaults: defaults(d.Spec, d.Sources)})
	case w.goes(a):
		w.delete(a, "image", "", lifecycle(d, rec.Lifecycle), d == nil, guard(d), "forgotten, its files stay", encode(rec.Spec))
	case d != nil:
		ds := diffOf(rec.Spec, d.Spec, d.Unknown, rec.Lifecycle, d.Lifecycle)
		if len(ds) == 0 {
			return
		}
		c := changed(a, "image", rec.Spec, d.Spec, d.Unknown, ds)
		c.Consequence = "updated in place"
		if worst(ds) == Replace {
			for i := range c.Diff {
				c.Diff[i].Replace = false // it is its sandboxes that are replaced
			}
			c.Consequence, c.ReplacePaths = "resolved anew, sandboxes made from another are replaced", nil
			w.remade[a] = "image changed"
		}
		w.add(c)
	}
}

func (w *walk) network(a string) {
	d, rec := w.networks[a], w.in.Records.Networks[a]
	if rec == nil {
		if !w.in.Options.Destroy {
			w.add(Change{Address: a, Kind: "network", Action: ActCreate, Origin: FromFiles, Cause: "declared",
				Consequence: "created", After: encode(d.Spec), Unknown: d.Unknown, Defaults: defaults(d.Spec, d.Sources)})
		}
		return
	}
	if w.goes(a) {
		w.delete(a, "network", rec.ID, lifecycle(d, rec.Lifecycle), d == nil, guard(d), "destroyed", encode(rec.Spec))
		return
	}
	var c *Change
	if d != nil {
		ds := diffOf(rec.Spec, d.Spec, d.Unknown, rec.Lifecycle, d.Lifecycle)
		for i := range ds {
			// A range that the network has already, or may have, costs nothing.
			if ds[i].Path == "cidr" && (d.Spec.CIDR == "" || d.Spec.CIDR == rec.CIDR.String()) && !ds[i].Unknown {
				ds[i].class = InPlace
				ds[i].Replace = false
			}
		}
		if len(ds) > 0 {
			ch := changed(a, "network", rec.Spec, d.Spec, d.Unknown, ds)
			ch.Consequence = "updated in place, its sandboxes keep running"
			if worst(ds) == Replace {
				if w.guarded(a, d.Lifecycle, "replaced", ch.Cause, guard(d)) {
					return
				}
				if !w.movable(a) {
					return
				}
				ch.Action, ch.Consequence = ActReplace, "replaced, with every sandbox on it"
				w.remade[a] = a + " replaced: " + ch.Cause
				w.early[a] = true
			}
			c = &ch
		}
	}
	seen, looked := w.in.Observed.Networks[rec.ID], w.in.Observed.Networks != nil && !w.in.Options.NoRefresh
	switch {
	case !rec.Made && (c == nil || c.Action != ActReplace):
		if c == nil {
			c = &Change{Address: a, Kind: "network", Origin: FromHost}
		}
		c.Action, c.Cause, c.Consequence = ActCreate, "its creation was not finished", "created"
	case looked && rec.Made && (c == nil || c.Action != ActReplace):
		missing := seen.Missing
		if !seen.Exists {
			missing = []string{"bridge"}
		}
		if len(missing) > 0 {
			what := strings.Join(missing, ", ") + " missing"
			w.drift(a, what)
			repair := Change{Address: a, Kind: "network", Action: ActRepair, Origin: FromHost, Cause: what,
				Consequence: "repaired in place, its sandboxes keep running", Missing: missing}
			if c != nil {
				w.add(*c)
			}
			c = &repair
		}
	}
	if c != nil {
		w.add(*c)
	}
}

func (w *walk) volume(a string) {
	d, rec := w.volumes[a], w.in.Records.Volumes[a]
	switch {
	case rec == nil && w.in.Options.Destroy:
	case rec == nil:
		w.add(Change{Address: a, Kind: "volume", Action: ActCreate, Origin: FromFiles, Cause: "declared",
			Consequence: "created", After: encode(d.Spec), Unknown: d.Unknown})
	case w.goes(a):
		w.delete(a, "volume", rec.ID, lifecycle(d, rec.Lifecycle), d == nil, guard(d), "destroyed: its data is lost", encode(rec.Spec))
		if n := len(w.steps[a]); n > 0 && w.steps[a][n-1].Action == ActDelete {
			w.steps[a][n-1].Volumes = []string{a}
		}
	default:
		if d != nil {
			if ds := diffOf(rec.Spec, d.Spec, d.Unknown, rec.Lifecycle, d.Lifecycle); len(ds) > 0 {
				c := changed(a, "volume", rec.Spec, d.Spec, d.Unknown, ds)
				c.Consequence = "updated in place"
				w.add(c)
			}
		}
		switch {
		case !rec.Made:
			w.add(Change{Address: a, Kind: "volume", Action: ActCreate, Origin: FromHost,
				Cause: "its creation was not finished", Consequence: "created"})
		case w.volumeGone(rec.ID):
			w.drift(a, "directory gone: its data is lost")
			w.add(Change{Address: a, Kind: "volume", Action: ActRepair, Origin: FromHost,
				Cause: "directory gone", Consequence: "made again, empty: its data is lost", Missing: []string{"directory"}})
			w.remade[a] = a + " was made again"
		}
	}
}

// movable reports whether every sandbox on network a can be replaced in this
// plan, and says why not.
func (w *walk) movable(a string) bool {
	if user := w.loner("network", a, w.in.Records.Networks[a].ID); user != "" {
		w.fail(a, a+" cannot be replaced", user+" is on it and is left alone. Declare another network for the others.", config.Position{})
		return false
	}
	if user := w.staysUp(a); user != "" {
		w.refuseUnder(a, user, "replaced", source(w.networks[a], "cidr"))
		return false
	}
	for _, user := range slices.Sorted(mapKeys(w.in.Records.Sandboxes)) {
		rec := w.in.Records.Sandboxes[user]
		if !rec.uses(a) && !rec.deposedOn(a) {
			continue
		}
		switch o := w.looks[user]; {
		case o == nil:
			w.fail(a, a+" cannot be replaced", user+" is on it and is not part of this plan. Take both in.", config.Position{})
			return false
		case rec.uses(a) && (o.stuck != "" || o.dying()):
			why := o.stuck
			if why == "" {
				why = "is still dying"
			}
			w.note(a + " is not replaced yet: " + user + " is on it and " + why)
			return false
		}
	}
	return true
}

// volumeGone reports whether the directory of a made volume was looked for and not found.
func (w *walk) volumeGone(id string) bool {
	return id != "" && w.in.Observed.Volumes != nil && !w.in.Options.NoRefresh && !w.in.Observed.Volumes[id]
}

// delete plans the end of an image, network or volume. What an instance needs that is
// left alone for ever stays on the host with it.
func (w *walk) delete(a, kind, id string, l config.Lifecycle, blockGone bool, at config.Position, consequence string, before []byte) {
	if w.givenUp(a) {
		w.add(forgotten(a, kind, removedBlock, "left on the host as it is"))
		return
	}
	reason, cause := w.endReason(blockGone)
	if user := w.loner(kind, a, id); kind != "image" && user != "" {
		w.add(forgotten(a, kind, cause+"; "+user+" needs it and is left alone", "left on the host as it is"))
		return
	}
	if w.guarded(a, l, "destroyed", cause, at) {
		return
	}
	w.add(Change{Address: a, Kind: kind, Action: ActDelete, Origin: FromFiles, Cause: cause,
		Consequence: consequence, Before: before, Reason: reason})
}

// endReason is why something declared no more goes: tombstone reason and cause.
func (w *walk) endReason(blockGone bool) (reason, cause string) {
	if w.in.Options.Destroy {
		return "user_delete", "destroy"
	}
	return "config_removed", "no longer declared"
}

func position[T any](d *config.Resource[T]) config.Position {
	if d == nil {
		return config.Position{}
	}
	return d.Source
}

// source is where an attribute is written, or else its block.
func source[T any](d *config.Resource[T], attribute string) config.Position {
	if d == nil {
		return config.Position{}
	}
	if p, ok := d.Sources[attribute]; ok {
		return p
	}
	return d.Source
}

// guard is where the declaration says prevent_destroy.
func guard[T any](d *config.Resource[T]) config.Position {
	return source(d, "lifecycle.prevent_destroy")
}

func worst(ds []difference) Class {
	c := Unclassed
	for _, d := range ds {
		c = max(c, d.class)
	}
	return c
}

func diffOf[T comparable](rec, want T, unknown []string, recLife, wantLife config.Lifecycle) []difference {
	var ds []difference
	if rec != want {
		ds = compare(encode(rec), encode(want))
	}
	ds = markUnknown(ds, unknown, true)
	return append(ds, diffLifecycle(recLife, wantLife)...)
}

// changed is the update that adopts a differing spec.
func changed[T any](a, kind string, rec, want T, unknown []string, ds []difference) Change {
	c := Change{Address: a, Kind: kind, Action: ActUpdate, Origin: FromFiles, Cause: changedNames(ds),
		Before: encode(rec), After: withoutUnknown(encode(want), unknown), Unknown: unknown}
	c.Diff, c.ReplacePaths = printed(ds)
	return c
}

func printed(ds []difference) (out []Diff, replace []string) {
	for _, d := range ds {
		d.Diff.Replace = d.class == Replace
		out = append(out, d.Diff)
		if d.Diff.Replace {
			replace = append(replace, d.Path)
		}
	}
	return out, replace
}

// keepUsed takes back the end of what a sandbox that stays still refers to.
func (w *walk) keepUsed() {
	deleted := w.addressesDeleted()
	if len(deleted) == 0 {
		return
	}
	users := map[string][]string{}
	for _, a := range slices.Sorted(mapKeys(w.in.Records.Sandboxes)) {
		if w.leaves(a) {
			continue
		}
		rec := w.in.Records.Sandboxes[a]
		refs := references(&rec.Spec)
		if rec.Net != nil && !slices.Contains(refs, rec.Net.Network) {
			refs = append(refs, rec.Net.Network)
		}
		for _, d := range rec.Deposed {
			// What is deposed goes in this plan, whatever becomes of its sandbox.
			if d.Net != nil && !w.covered(a) && !slices.Contains(refs, d.Net.Network) {
				refs = append(refs, d.Net.Network)
			}
		}
		for _, ref := range refs {
			users[ref] = append(users[ref], a)
		}
	}
	for _, a := range deleted {
		for _, user := range users[a] {
			o := w.looks[user]
			dying := o != nil && o.dying()
			if o != nil && o.stuck == "" && !dying && !slices.Contains(references(o.spec), a) {
				continue // it has moved away or does so in this plan
			}
			forgets := w.steps[a][0].Action == ActForget
			delete(w.steps, a)
			what := "destroyed"
			if forgets {
				what = "forgotten"
			}
			if dying {
				w.note(a + " is kept: " + user + " is on it and still dying")
			} else if why, blocked := w.stays[user]; blocked {
				w.note(a + " is kept: " + user + " still uses it and " + why)
			} else {
				w.fail(a, a+" cannot be "+what, user+" still uses it and is not part of this plan. Take both in, or move "+user+" away first.", config.Position{})
			}
			break
		}
	}
}

// uses reports whether the record refers to a, or has its place there.
func (s *Sandbox) uses(a string) bool {
	return (s.Net != nil && s.Net.Network == a) || slices.Contains(references(&s.Spec), a)
}

// User is a sandbox that refers to a and does not go; empty: none.
func (r *Records) User(a string, goes map[string]bool) string {
	for _, user := range sortedKeys(r.Sandboxes) {
		if !goes[user] && r.Sandboxes[user].uses(a) {
			return user
		}
	}
	return ""
}

func (w *walk) addressesDeleted() []string {
	var out []string
	for a, cs := range w.steps {
		if last := cs[len(cs)-1].Action; cs[0].Kind != "sandbox" && cs[0].Kind != "output" && (last == ActDelete || last == ActForget) {
			out = append(out, a)
		}
	}
	slices.Sort(out)
	return out
}

// leaves reports whether the sandbox's record goes in this plan.
func (w *walk) leaves(a string) bool {
	return slices.ContainsFunc(w.steps[a], func(c Change) bool { return c.endsRecord() })
}

// endsRecord reports whether the record goes with the change.
func (c *Change) endsRecord() bool {
	return c.Deposed == "" && (c.Action == ActDelete || c.Action == ActForget || (c.Action == ActExpire && c.Then == "destroyed"))
}

// overlaps reports whether a declared network claims a part of a recorded one's range.
func overlaps(old *Network, d *config.Resource[config.Network]) bool {
	p, err := netip.ParsePrefix(d.Spec.CIDR)
	return err == nil && p.Overlaps(old.CIDR)
}
