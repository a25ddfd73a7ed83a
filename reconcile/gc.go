package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// GCRequest asks what bears this state's mark without a record, or the other way
// round.
type GCRequest struct {
	DryRun bool `json:"dry_run,omitempty"`
	// Remove names, by id, reported instances without a process, networks and
	// volumes that are to go.
	Remove []string `json:"remove,omitempty"`
	// Adopt names reported instances that are to be on record again.
	Adopt []string `json:"adopt,omitempty"`
}

// GCResult is `gc -json`.
type GCResult struct {
	FormatVersion string   `json:"format_version"`
	Orphans       []Orphan `json:"orphans"` // sorted by kind, address, id
}

// Orphan is a host object without a record, or a record without its host object.
type Orphan struct {
	Kind     string `json:"kind"` // instance, network, volume, record
	ID       string `json:"id"`
	Address  string `json:"address,omitempty"` // as its mark says; of a record its own
	Live     bool   `json:"live,omitempty"`    // it has a process
	Released bool   `json:"released,omitempty"`
	Unknown  bool   `json:"unknown,omitempty"` // it could not be looked at, and may be live
	Found    string `json:"found"`             // what and why, in words
	Action   string `json:"action"`            // removed, would_remove, adopted, reported, kept
	Hint     string `json:"hint,omitempty"`    // what can be done about it
}

// Actions of an Orphan.
const (
	OrphanRemoved     = "removed"
	OrphanWouldRemove = "would_remove"
	OrphanAdopted     = "adopted" // on record again
	OrphanReported    = "reported"
	OrphanKept        = "kept" // released: not ours to touch any more
)

// GC removes what the journal proves half-made, and reports everything else that
// has a mark and no record, or a record and no host object. What has no mark is
// never touched, whatever its name.
func (e *Engine) GC(ctx context.Context, r GCRequest) (*GCResult, error) {
	if r.DryRun && len(r.Adopt) > 0 {
		return nil, &Error{Kind: Invalid, Message: "-adopt cannot be tried with -dry-run: pinfold gc -dry-run says which instances can be taken back"}
	}
	if e.readOnly && !r.DryRun {
		return nil, &Error{Kind: Invalid, Message: "cannot remove anything: the state is open for looking only"}
	}
	res := &GCResult{FormatVersion: "1", Orphans: []Orphan{}}
	half, err := e.halfMade(ctx)
	if err != nil {
		return nil, errorOf(err)
	}
	if !r.DryRun {
		as := e.as(byOperator)
		as.recoverAgain(ctx)
		as.sweepAll(ctx)
		as.retireAll(ctx)
		e.mu.Lock()
		half, e.found = append(e.found, half...), nil
		e.mu.Unlock()
		if half, err = e.gone(ctx, half); err != nil {
			return nil, errorOf(err)
		}
	}
	res.Orphans = append(res.Orphans, half...)
	for _, id := range r.Adopt {
		rec, err := e.as(byOperator).adopt(ctx, id)
		if err != nil {
			return nil, err
		}
		e.wake(rec.Address)
		res.Orphans = append(res.Orphans, Orphan{
			Kind: "instance", ID: id, Address: rec.Address, Live: alive(rec.Instance.Phase), Found: "it is on record again", Action: OrphanAdopted,
			Hint: "plan shows what differs from the files",
		})
	}
	found, err := e.orphans(ctx)
	if err != nil {
		return nil, errorOf(err)
	}
	if err := e.removeOrphans(ctx, found, r); err != nil {
		return nil, err
	}
	res.Orphans = append(res.Orphans, found...)
	hollow, err := e.hollow(ctx)
	if err != nil {
		return nil, errorOf(err)
	}
	res.Orphans = append(res.Orphans, hollow...)
	slices.SortStableFunc(res.Orphans, func(a, b Orphan) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Address, b.Address), cmp.Compare(a.ID, b.ID))
	})
	return res, nil
}

// halfMade are the instances that the journal or a record says are to go: of a
// create that did not finish, or doomed by a step that could not remove them.
func (e *Engine) halfMade(ctx context.Context) ([]Orphan, error) {
	var all []Orphan
	add := func(id, address, found string) error {
		if id == "" || slices.ContainsFunc(all, func(o Orphan) bool { return o.ID == id }) {
			return nil
		}
		s, there, err := e.host.Inspect(ctx, id)
		if err != nil || !there {
			return err
		}
		all = append(all, Orphan{Kind: "instance", ID: id, Address: address, Live: s.Alive, Found: found, Action: OrphanWouldRemove})
		return nil
	}
	e.openMu.Lock()
	open := slices.Clone(e.unrecovered)
	e.openMu.Unlock()
	if !e.recovered {
		var err error
		if open, err = e.openIntents(); err != nil {
			return nil, err
		}
	}
	records := e.snapshot()
	for _, in := range open {
		rec, _ := e.sandboxOf(&in)
		if done := rec != nil && rec.Instance != nil && rec.Instance.ID == in.Instance; in.Op == opCreate && !done {
			if err := add(in.Instance, in.Address, "half-made: its create did not finish"); err != nil {
				return nil, err
			}
		}
	}
	for _, address := range sortedKeys(records.Sandboxes) {
		for _, id := range records.Sandboxes[address].Doomed {
			if err := add(id, address, "of an earlier incarnation: its removal did not finish"); err != nil {
				return nil, err
			}
		}
		for _, d := range records.Sandboxes[address].Deposed {
			if err := add(d.Instance.ID, address, "deposed: it is not the sandbox's instance, and is to go"); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// gone says of half-made instances whether they are gone by now.
func (e *Engine) gone(ctx context.Context, half []Orphan) ([]Orphan, error) {
	told := map[string]bool{}
	var all []Orphan
	for _, o := range half {
		if told[o.ID] {
			continue
		}
		told[o.ID] = true
		_, there, err := e.host.Inspect(ctx, o.ID)
		if err != nil {
			return nil, err
		}
		if o.Action = OrphanRemoved; there {
			o.Action, o.Hint = OrphanReported, "it could not be removed yet; the agent and the next gc try again"
		}
		all = append(all, o)
	}
	return all, nil
}

// orphans are what bears our mark and is on no record, nor in the journal. Steps
// may be under way meanwhile: what the first look found is looked at again, after
// the records were read.
func (e *Engine) orphans(ctx context.Context) ([]Orphan, error) {
	seen, err := e.observe(ctx)
	if err != nil {
		return nil, err
	}
	known, err := e.knownIDs()
	if err != nil {
		return nil, err
	}
	var all []Orphan
	var noted map[string]runtime.Noted
	for _, id := range slices.Sorted(maps.Keys(seen.Instances)) {
		if known.instances[id] {
			continue
		}
		s, there, err := e.host.Inspect(ctx, id)
		if err != nil {
			return nil, err
		}
		if there {
			o := orphanInstance(s)
			if noted == nil {
				if noted, err = e.host.Notes(ctx); err != nil {
					return nil, err
				}
			}
			if doc, ok := readNote(id, noted[id]); ok {
				o.Address = doc.Sandbox.Address // it may have been moved since its mark was made
			}
			all = append(all, o)
		}
	}
	var again runtime.Observation
	for _, list := range []struct {
		ids   []string
		known map[string]bool
	}{{sortedKeys(seen.Networks), known.networks}, {sortedKeys(seen.Volumes), known.volumes}} {
		if again.Instances == nil && slices.ContainsFunc(list.ids, func(id string) bool { return !list.known[id] }) {
			if again, err = e.observe(ctx); err != nil {
				return nil, err
			}
		}
	}
	if again.Instances != nil && noted == nil {
		if noted, err = e.host.Notes(ctx); err != nil {
			return nil, err
		}
	}
	for _, id := range sortedKeys(again.Networks) {
		if _, before := seen.Networks[id]; before && !known.networks[id] {
			whose, users := whoseNetwork(id, noted)
			o := Orphan{Kind: "network", ID: id, Address: whose, Found: "a bridge or rules of a network that is on no record", Action: OrphanReported}
			o.used(users, again, "takes it away; it holds no data")
			all = append(all, o)
		}
	}
	for _, id := range sortedKeys(again.Volumes) {
		if seen.Volumes[id] && !known.volumes[id] && isID(id, 12) {
			whose, users := whoseVolume(id, noted)
			o := Orphan{Kind: "volume", ID: id, Address: whose, Found: "the data of a volume that is on no record; it lies in volumes/" + id + " of the state dir", Action: OrphanReported}
			o.used(users, again, "deletes it")
			all = append(all, o)
		}
	}
	return all, nil
}

// used says what can be done about a network or volume that these instances use.
func (o *Orphan) used(users []string, seen runtime.Observation, removal string) {
	for _, id := range users {
		switch s := seen.Instances[id]; {
		case s.Released && (s.Alive || o.Kind == "volume"):
			o.Released, o.Action = true, OrphanKept
			o.Found += "; instance " + id + " of " + s.Mark.Address + ", which was released, uses it"
			return
		case s.Alive:
			o.Live = true
			o.Found += "; instance " + id + " of " + s.Mark.Address + " uses it"
			o.Hint = "it comes back with that instance (pinfold gc -adopt " + id + ")"
			return
		}
	}
	o.Hint = "pinfold gc -remove " + o.ID + " " + removal
}

// whoseNetwork tells by the notes which network it was, and the instances on it.
func whoseNetwork(id string, noted map[string]runtime.Noted) (address string, users []string) {
	for _, user := range sortedKeys(noted) {
		if doc, ok := readNote(user, noted[user]); ok && doc.Network != nil && doc.Network.ID == id {
			address, users = doc.Network.Address, append(users, user)
		}
	}
	return address, users
}

// whoseVolume tells by the notes which volume or claim it was, and the instances
// that mount it.
func whoseVolume(id string, noted map[string]runtime.Noted) (address string, users []string) {
	for _, user := range sortedKeys(noted) {
		doc, ok := readNote(user, noted[user])
		if !ok {
			continue
		}
		for _, v := range doc.Volumes {
			if v.ID == id {
				address, users = v.Address, append(users, user)
			}
		}
		for name, claim := range doc.Sandbox.Claim {
			if claim == id {
				address, users = ClaimAddress(doc.Sandbox.Address, name), append(users, user)
			}
		}
	}
	return address, users
}

func orphanInstance(s runtime.InstanceState) Orphan {
	o := Orphan{Kind: "instance", ID: s.ID, Address: s.Mark.Address, Live: s.Alive, Released: s.Released, Unknown: s.Unknown != "", Action: OrphanReported}
	switch {
	case s.Released:
		o.Found, o.Action = "it was released from this state", OrphanKept
	case s.Unknown != "":
		o.Found = "it is on no record, and could not be looked at: " + s.Unknown
	case s.Alive:
		o.Found = fmt.Sprintf("it lives (pid %d) and is on no record", s.Process.PID)
		o.Hint = "pinfold gc -adopt " + s.ID + " takes it back on record; pinfold never ends it by itself"
	default:
		o.Found = "it has no process and is on no record"
		if o.Hint = "pinfold gc -remove " + s.ID + " takes it away"; s.Layer {
			o.Hint = "pinfold gc -adopt " + s.ID + " takes it back on record; " + o.Hint[len("pinfold "):] + ", its files included; they lie in instances/" + s.ID + "/upper of the state dir"
		}
	}
	return o
}

// ids are what records and journal speak of.
type ids struct {
	instances, networks, volumes map[string]bool
}

func (e *Engine) knownIDs() (ids, error) {
	known := ids{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	// The journal first: a step that ends meanwhile moves an id from here into the records.
	open, err := e.openIntents()
	if err != nil {
		return known, err
	}
	for _, in := range open {
		known.instances[in.Instance] = true
	}
	maps.Copy(known.instances, e.instancesOnRecord())
	records := e.snapshot()
	for _, rec := range records.Sandboxes {
		for _, id := range rec.Claim {
			known.volumes[id] = true
		}
	}
	maps.Copy(known.networks, e.networksOnRecord())
	for _, v := range records.Volumes {
		known.volumes[v.ID] = true
	}
	return known, nil
}

// instancesOnRecord are those that the records of sandboxes speak of.
func (e *Engine) instancesOnRecord() map[string]bool {
	known := map[string]bool{}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, rec := range e.records.Sandboxes {
		for _, id := range rec.Past() {
			known[id] = true
		}
		if rec.Instance != nil {
			known[rec.Instance.ID] = true
		}
	}
	return known
}

func (e *Engine) networksOnRecord() map[string]bool {
	known := map[string]bool{}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.records.Networks {
		known[n.ID] = true
	}
	return known
}

// removeOrphans takes away what was asked for by name. Nothing goes before all
// names are known to be of something that may.
func (e *Engine) removeOrphans(ctx context.Context, found []Orphan, r GCRequest) error {
	var chosen []*Orphan
	for _, id := range r.Remove {
		i := slices.IndexFunc(found, func(o Orphan) bool { return o.ID == id })
		refuse := func(why string) error {
			return &Error{Kind: Invalid, Message: "cannot remove " + id + ": " + why + "; nothing was removed by name"}
		}
		switch {
		case i < 0:
			return refuse("it is not the id of an orphan of this state; pinfold gc -dry-run lists them")
		case found[i].Released:
			return refuse("it was released and is not pinfold's to touch any more")
		case found[i].Unknown:
			return refuse(found[i].Found + "; it may be alive")
		case found[i].Live:
			return refuse(found[i].Found + "; end that process first, or take the instance back (gc -adopt)")
		}
		chosen = append(chosen, &found[i])
	}
	// What is used goes after those that use it: instances, networks, volumes.
	slices.SortStableFunc(chosen, func(a, b *Orphan) int { return cmp.Compare(a.Kind, b.Kind) })
	for _, o := range chosen {
		if o.Action, o.Hint = OrphanWouldRemove, ""; r.DryRun {
			continue
		}
		var err error
		switch o.Kind {
		case "instance":
			err = e.host.Remove(ctx, o.ID)
		case "network":
			err = e.host.RemoveNetwork(ctx, runtime.Network{ID: o.ID})
		case "volume":
			err = e.host.RemoveVolume(ctx, o.ID)
		}
		if err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return errorOf(err) // it names what it is about
		}
		o.Action = OrphanRemoved
		w := &write{}
		ev := Event{Type: "gc", Address: cmp.Or(o.Address, o.Kind+" "+o.ID), Reason: "asked for", Message: o.Kind + " " + o.ID + " removed: " + o.Found}
		if o.Kind == "instance" {
			ev.Instance = o.ID
		}
		if err := e.as(byOperator).commit(w.event(ev)); err != nil {
			return errorOf(err)
		}
	}
	return nil
}

// hollow are records of which the host has nothing. Plan and agent mend them by
// the rules; here it is only said.
func (e *Engine) hollow(ctx context.Context) ([]Orphan, error) {
	seen, err := e.observe(ctx)
	if err != nil {
		return nil, err
	}
	records := e.snapshot()
	var all []Orphan
	add := func(address, id, found, hint string) {
		all = append(all, Orphan{Kind: "record", ID: id, Address: address, Found: found, Action: OrphanReported, Hint: hint})
	}
	for _, address := range sortedKeys(records.Sandboxes) {
		i := records.Sandboxes[address].Instance
		if i == nil {
			continue
		}
		if _, there := seen.Instances[i.ID]; there || i.Phase == plan.Failed {
			continue
		}
		_, there, err := e.host.Inspect(ctx, i.ID) // it may have been made since
		if err != nil {
			return nil, err
		}
		if e.current(address) == records.Sandboxes[address] && !there {
			add(address, i.ID, "recorded as "+string(i.Phase)+", but the host has nothing of it, not even its files", "plan shows what an apply, or the agent, makes of it")
		}
	}
	for _, address := range sortedKeys(records.Networks) {
		if n := records.Networks[address]; n.Made && !seen.Networks[n.ID].Exists {
			add(address, n.ID, "its bridge is gone", "an apply, or the agent, makes it again")
		}
	}
	for _, address := range sortedKeys(records.Volumes) {
		if v := records.Volumes[address]; v.Made && !seen.Volumes[v.ID] {
			add(address, v.ID, "its directory is gone, and its data with it", "put volumes/"+v.ID+" of the state dir back from a backup; an apply makes an empty one")
		}
	}
	return all, nil
}

// tellOrphans makes an event of each orphan that a full look shows, once. The look
// only raises the suspicion; what is under way meanwhile is not taken for one.
func (a *agent) tellOrphans(ctx context.Context, seen *sight) {
	known, err := a.knownIDs()
	if err != nil {
		a.complain("", "cannot tell what has no record", err)
		return
	}
	if !a.strange(maps.Keys(seen.Instances), known.instances) && !a.strange(maps.Keys(seen.Networks), known.networks) && !a.strange(maps.Keys(seen.Volumes), known.volumes) {
		return
	}
	found, err := a.orphans(ctx)
	if err != nil {
		a.complain("", "cannot tell what has no record", err)
		return
	}
	w := &write{}
	for _, o := range found {
		if a.told[o.ID] || o.Released {
			continue
		}
		ev := Event{Type: "orphan", Address: cmp.Or(o.Address, o.Kind+" "+o.ID), Reason: "no record", Message: o.Kind + " " + o.ID + ": " + o.Found + "; " + o.Hint}
		if o.Kind == "instance" {
			ev.Instance = o.ID
		}
		w.event(ev)
	}
	if len(w.events) == 0 {
		return
	}
	if err := a.commit(w); err != nil {
		a.complain("", "cannot record what has no record", err)
		return
	}
	if a.told == nil {
		a.told = map[string]bool{}
	}
	for _, o := range found {
		a.told[o.ID] = true
	}
	a.noticed(w.events)
}

// strange tells whether something seen is neither known nor told of.
func (a *agent) strange(seen iter.Seq[string], known map[string]bool) bool {
	for id := range seen {
		if !known[id] && !a.told[id] {
			return true
		}
	}
	return false
}

// isID reports whether an id has the shape of those that newID makes of n/2 bytes. What
// has another is none of ours, wherever it lies.
func isID(id string, n int) bool {
	return len(id) == n && strings.Trim(id, "0123456789abcdef") == ""
}
