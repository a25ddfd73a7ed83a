package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"pinfold/config"
)

// Make decides: it compares what is declared, recorded and seen, and gives the
// plan. It is total: any input has a plan.
//
// With trigger Keep the declaration and the flags that only a user can give
// (Destroy, Replace, ReleaseHolds, NoStart) are not looked at; without a
// declaration the recorded specs are kept.
func Make(in Input) *Plan {
	if in.Trigger == Keep {
		in.Desired = nil
		in.Options.Destroy, in.Options.Replace, in.Options.ReleaseHolds, in.Options.NoStart = false, nil, false, false
	}
	if in.Options.RefreshOnly {
		in.Desired, in.Options = nil, Options{RefreshOnly: true, Targets: in.Options.Targets, Excludes: in.Options.Excludes}
	}
	first := readdress(&in)
	w := newWalk(in)
	w.first, w.plan.Records, w.plan.Cycles, w.plan.Diags = first, in.Records, first.cycles, append(w.plan.Diags, first.diags...)
	w.plan.Notes = append(w.plan.Notes, first.notes...)
	w.plan.RefreshOnly = in.Options.RefreshOnly
	w.inScope = w.scope()
	w.checkMoves()
	w.dropImports()
	in = w.in
	w.checkReplace()
	w.findSurvivors()
	ones := make([]one, 0, len(in.Records.Sandboxes))
	for a, rec := range in.Records.Sandboxes {
		if w.covered(a) {
			ones = append(ones, one{w: w, rec: rec, d: w.sandboxes[a], spec: &rec.Spec, lease: rec.Lease, hold: rec.Hold, origin: FromHost})
			o := &ones[len(ones)-1]
			o.look()
			w.looks[a] = o
		}
	}

	w.onlyOfSandboxes()
	for _, a := range union(w.images, in.Records.Images) {
		if w.covered(a) {
			w.image(a)
		}
	}
	for _, a := range union(w.networks, in.Records.Networks) {
		if w.covered(a) {
			w.network(a)
		}
	}
	for _, a := range union(w.volumes, in.Records.Volumes) {
		if w.covered(a) {
			w.volume(a)
		}
	}
	w.sandboxAddresses = union(w.sandboxes, in.Records.Sandboxes, in.Records.Ended)
	for _, a := range w.sandboxAddresses {
		if w.covered(a) {
			w.sandbox(a)
		}
	}
	if in.Options.RefreshOnly {
		clear(w.steps)
		w.refresh()
	} else {
		w.keepUsed()
		w.outputs()
		w.retire()
	}
	w.plan.Changes = append(slices.Clip(w.first.changes), w.order()...)
	w.plan.Summary = Summarize(w.plan.Changes)
	slices.SortFunc(w.plan.Drift, func(a, b Drift) int {
		if c := strings.Compare(a.Address, b.Address); c != 0 {
			return c
		}
		return strings.Compare(a.What, b.What)
	})
	slices.Sort(w.plan.Notes)
	slices.SortStableFunc(w.plan.Diags, func(a, b config.Diagnostic) int { return strings.Compare(a.Address, b.Address) })
	return w.plan
}

// refresh lists what there is to record of what was seen.
func (w *walk) refresh() {
	for _, a := range sortedKeys(w.plan.Status) {
		if st := w.plan.Status[a]; Differs(w.in.Records.Sandboxes[a], &st) {
			w.plan.Refresh = append(w.plan.Refresh, a)
		}
	}
}

// walk is one Make under way.
type walk struct {
	in    Input
	plan  *Plan
	first readdressed // moves and imports, done in `in` already

	images    map[string]*config.Resource[config.Image] // declared, by address
	networks  map[string]*config.Resource[config.Network]
	volumes   map[string]*config.Resource[config.Volume]
	sandboxes map[string]*config.Resource[config.Sandbox]

	sandboxAddresses []string
	inScope          func(string) bool   // nil: everything
	excluded         map[string]bool     // by -exclude, with what it takes along
	survivors        map[string][]string // other live instances, by sandbox uid, sorted
	looks            map[string]*one     // recorded sandboxes in scope, looked at
	visited          map[string]bool     // sandboxes decided
	steps            map[string][]Change // decided changes, by address
	retired          map[string][]Change // removals of deposed instances, by sandbox address
	fired            map[config.Trigger]bool
	keyed            map[string][]string  // instances of resources with count or for_each; see instances
	stays            map[string]string    // things that cannot go in this plan, and why
	remade           map[string]string    // networks, images and volumes under sandboxes that must follow, and why
	early            map[string]bool      // networks taken down before others are made
	released         map[portKey][]string // fixed host ports given up in this plan, by who does
}

func newWalk(in Input) *walk {
	w := &walk{
		in:        in,
		plan:      &Plan{Changes: []Change{}, Drift: []Drift{}, Notes: []string{}, Diags: config.Diagnostics{}, Status: make(map[string]Status, len(in.Records.Sandboxes))},
		survivors: map[string][]string{},
		looks:     make(map[string]*one, len(in.Records.Sandboxes)),
		visited:   map[string]bool{},
		steps:     map[string][]Change{},
		retired:   map[string][]Change{},
		fired:     map[config.Trigger]bool{},
		stays:     map[string]string{},
		remade:    map[string]string{},
		early:     map[string]bool{},
	}
	if d := in.Desired; d != nil {
		w.images, w.networks, w.volumes, w.sandboxes = index(d.Images), index(d.Networks), index(d.Volumes), index(d.Sandboxes)
	}
	return w
}

func index[T any](rs []config.Resource[T]) map[string]*config.Resource[T] {
	m := make(map[string]*config.Resource[T], len(rs))
	for i := range rs {
		m[rs[i].Address] = &rs[i]
	}
	return m
}

// union lists the keys of maps, sorted.
func union[A, B any](a map[string]A, b map[string]B, more ...map[string]*Ended) []string {
	keys := make([]string, 0, max(len(a), len(b)))
	for k := range a {
		keys = append(keys, k)
	}
	for k := range b {
		if _, both := a[k]; !both {
			keys = append(keys, k)
		}
	}
	for _, m := range more {
		for k := range m {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// addresses lists everything declared or recorded, sorted.
func (w *walk) addresses() []string {
	r := w.in.Records
	all := union(w.images, r.Images)
	all = append(all, union(w.networks, r.Networks)...)
	all = append(all, union(w.volumes, r.Volumes)...)
	all = append(all, union(w.sandboxes, r.Sandboxes, r.Ended)...)
	for _, name := range w.outputNames() {
		all = append(all, "output."+name)
	}
	slices.Sort(all)
	return all
}

func (w *walk) declared(a string) bool {
	return w.images[a] != nil || w.networks[a] != nil || w.volumes[a] != nil || w.sandboxes[a] != nil
}

func (w *walk) covered(a string) bool { return w.inScope == nil || w.inScope(a) }

func (w *walk) add(c Change) {
	if c.Before != nil || c.After != nil {
		c.Sensitive = w.sensitive(&c)
	}
	w.steps[c.Address] = append(w.steps[c.Address], c)
}

// sensitive are the paths that are sensitive in what is recorded or declared.
func (w *walk) sensitive(c *Change) []string {
	var paths []string
	switch c.Kind {
	case "sandbox":
		if rec := w.in.Records.Sandboxes[c.Address]; rec != nil {
			paths = append(paths, rec.Sensitive...)
		}
		if d := w.sandboxes[c.Address]; d != nil {
			paths = append(paths, d.Sensitive...)
		}
	case "image":
		paths = declaredSensitive(w.images[c.Address])
	case "network":
		paths = declaredSensitive(w.networks[c.Address])
	case "output":
		if w.sensitiveOutput(strings.TrimPrefix(c.Address, "output.")) {
			paths = []string{"value"}
		}
	}
	paths = slices.Clone(paths)
	slices.Sort(paths)
	return slices.Compact(paths)
}

func declaredSensitive[T any](r *config.Resource[T]) []string {
	if r == nil {
		return nil
	}
	return r.Sensitive
}

func (w *walk) note(text string) { w.plan.Notes = append(w.plan.Notes, text) }

func (w *walk) drift(address, what string) {
	w.plan.Drift = append(w.plan.Drift, Drift{Address: address, What: what})
}

// wake asks to be called again at t, which must lie ahead.
func (w *walk) wake(t time.Time) {
	if t.After(w.in.Now) && (w.plan.WakeAt.IsZero() || t.Before(w.plan.WakeAt)) {
		w.plan.WakeAt = t
	}
}

// checkReplace refuses -replace of what is no sandbox, and of what -target or -exclude
// leave out.
func (w *walk) checkReplace() {
	for _, name := range w.in.Options.Replace {
		var found []string
		for _, a := range union(w.sandboxes, w.in.Records.Sandboxes, w.in.Records.Ended) {
			if config.Covers(name, a) {
				found = append(found, a)
			}
		}
		switch {
		case len(found) == 0:
			w.fail(name, "there is no sandbox "+name, cmp.Or(w.readdressed(name), "-replace takes the address of a declared sandbox."), config.Position{})
		case !slices.ContainsFunc(found, w.covered):
			flag, named, way := "-target", w.in.Options.Targets, "Add -target='"+name+"'"
			if slices.ContainsFunc(found, func(a string) bool { return w.excluded[a] }) {
				flag, named, way = "-exclude", w.in.Options.Excludes, "Leave -exclude out"
			}
			w.fail(name, "-replace="+name+" contradicts "+flag+"="+strings.Join(named, " "+flag+"="),
				"A plan with this "+flag+" does nothing to "+name+". "+way+", or leave -replace out.", config.Position{})
		}
	}
}

// findSurvivors indexes the live instances that bear a recorded sandbox's uid
// without being its recorded instance, and reports those of nobody.
func (w *walk) findSurvivors() {
	if w.in.Options.NoRefresh {
		return
	}
	recorded := make(map[string]*Sandbox, len(w.in.Records.Sandboxes)) // by uid
	for _, s := range w.in.Records.Sandboxes {
		if s.UID != "" {
			recorded[s.UID] = s
		}
	}
	var strangers []string
	for id, seen := range w.in.Observed.Instances {
		if !seen.Alive || seen.Released {
			continue
		}
		if s := recorded[seen.UID]; s != nil && (instanceOf(s) == id || s.CarryFrom == id || slices.Contains(s.Doomed, id) || s.DeposedAt(id) >= 0) {
			continue // its own, or one it is done with
		} else if s != nil {
			w.survivors[seen.UID] = append(w.survivors[seen.UID], id)
		} else if w.covered(seen.Address) {
			strangers = append(strangers, id)
		}
	}
	for uid := range w.survivors {
		slices.Sort(w.survivors[uid])
	}
	slices.Sort(strangers)
	for _, id := range strangers {
		who := "instance " + id
		if address := w.in.Observed.Instances[id].Address; address != "" {
			who += " of " + address
		}
		w.note(who + " is alive, but no record knows it; it is left alone; pinfold gc -dry-run tells more")
	}
}

// instanceOf is the id of the recorded instance, empty when there is none.
func instanceOf(s *Sandbox) string {
	if s.Instance == nil {
		return ""
	}
	return s.Instance.ID
}

// Summarize counts changes, planned or carried out, as Summary says.
func Summarize(changes []Change) Summary {
	var s Summary
	counted := map[string]bool{}
	for _, c := range changes {
		if c.Kind == "output" || c.Action == ActNoop || c.PartOfReplace() {
			continue
		}
		column, name := &s.Converge, "converge"
		switch {
		case c.Action == ActCreate:
			column, name = &s.Add, "add"
		case c.Action == ActDelete || c.Action == ActForget:
			column, name = &s.Destroy, "destroy"
		case c.Action == ActReplace:
			column, name = &s.Replace, "replace"
		case c.Origin == FromFiles:
			column, name = &s.Change, "change"
		}
		if key := name + " " + c.Address; !counted[key] {
			counted[key] = true
			*column++
		}
	}
	return s
}

// NotedOf counts changes, planned or carried out, as Noted says.
func NotedOf(changes []Change) Noted {
	moved, givenUp := map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		switch {
		case c.Action == ActMove:
			moved[c.Address] = true
		case c.Action == ActForget && c.Reason == Released:
			givenUp[c.Address] = true
		}
	}
	return Noted{len(moved), len(givenUp)}
}

// Empty reports whether the plan has nothing to do; a noop is nothing.
func (p *Plan) Empty() bool {
	return !slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Action != ActNoop })
}

// Readdresses reports whether the plan begins with moves or imports, so that what it
// speaks of has another address than on record so far.
func (p *Plan) Readdresses() bool {
	return slices.ContainsFunc(p.Changes, func(c Change) bool { return c.Action == ActMove || c.Action == ActImport })
}

// Losses counts the sandboxes and volumes that a change of the files deletes or
// replaces, for the host's max_destroy. What expires at once because of the files
// counts as well.
func (p *Plan) Losses() int {
	lost, fromFiles := map[string]bool{}, map[string]bool{}
	for _, c := range p.Changes {
		if (c.Kind != "sandbox" && c.Kind != "volume") || c.Deposed != "" {
			continue
		}
		fromFiles[c.Address] = fromFiles[c.Address] || c.Origin == FromFiles
		ends := c.Action == ActDelete || c.Action == ActReplace || (c.Action == ActExpire && c.Then == "destroyed")
		if ends && fromFiles[c.Address] {
			lost[c.Address] = true
		}
	}
	return len(lost)
}

// PartOfReplace reports whether the change is a half of a replacement that another
// change of the plan speaks of: the taking down before, the removal after.
func (c *Change) PartOfReplace() bool {
	return c.Reason == takenDown || c.Deposed != "" && c.Reason == replacedBy
}

// Unsettled lists the addresses whose exports (config.Export) will change when
// the plan is applied: what is created, what is there before its predecessor goes,
// and networks and images that are made anew. To see in a plan what follows from that, evaluate the configuration
// without their exports and call Make again.
func (p *Plan) Unsettled() []string {
	set := map[string]bool{}
	for i := range p.Changes {
		if c := &p.Changes[i]; unsettles(c) {
			set[c.Address] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

func unsettles(c *Change) bool {
	switch c.Kind {
	case "network":
		return c.Action == ActCreate || c.Action == ActReplace
	case "image":
		return c.Action == ActCreate || c.Action == ActUpdate
	case "sandbox", "volume":
		return c.Action == ActCreate || c.CreateFirst
	}
	return false
}
