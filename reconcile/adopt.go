package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// adopt takes back an instance without a record: what lies beside it says what it
// was, and becomes its record again, with the network, volumes and image that it
// stands on. Its process is not touched. Nothing that is on record may be in its way.
func (e *actor) adopt(ctx context.Context, id string) (*plan.Sandbox, error) {
	refuse := func(format string, args ...any) (*plan.Sandbox, error) {
		return nil, &Error{Kind: Conflict, Message: "cannot take back instance " + id + ": " + fmt.Sprintf(format, args...) + "; nothing of it was changed"}
	}
	s, there, err := e.host.Inspect(ctx, id)
	switch {
	case err != nil:
		return nil, errorOf(err)
	case !there:
		return refuse("the host has nothing of it; pinfold gc -dry-run lists what can be taken back")
	case s.Released:
		return refuse("it was given up (removed, or state rm); an import block with its id takes it back")
	}
	noted, err := e.host.Notes(ctx)
	if err != nil {
		return nil, errorOf(err)
	}
	doc, ok := readNote(id, noted[id])
	if !ok {
		return refuse("nothing beside its files tells what was declared")
	}
	if err := doc.open(e.blocks.box); err != nil {
		return nil, errorOf(err)
	}
	rec := doc.Sandbox
	if rec.Instance.ID != id {
		return refuse("it was deposed: instance %s is the one of %s, and this one was to go; end its process, then pinfold gc -remove %s takes it away", rec.Instance.ID, rec.Address, id)
	}
	release, err := e.turn.take(ctx, DefaultLockWait, "gc -adopt")
	if err != nil {
		return nil, errorOf(err)
	}
	defer release()
	free, holder := e.lanes.try(rec.Address, "gc -adopt", e.by)
	if holder != nil {
		return refuse("something else is under way on %s", rec.Address)
	}
	defer free()
	known, err := e.knownIDs()
	if err != nil {
		return nil, errorOf(err)
	}
	if known.instances[id] {
		return refuse("it is on record")
	}
	if why := e.inTheWay(&doc); why != "" {
		return refuse("%s", why)
	}
	w := &write{bump: true}
	set(&w.ended, rec.Address, nil)
	if n := doc.Network; n != nil {
		set(&w.networks, n.Address, n)
	}
	for _, v := range doc.Volumes {
		set(&w.volumes, v.Address, v)
	}
	if i := doc.Image; i != nil {
		set(&w.images, i.Address, i)
	}
	if i := rec.Instance; i.PID != 0 {
		e.host.Recall(id, runtime.Process{PID: i.PID, StartTime: i.StartTime, BootID: i.BootID}, runtime.Mark{UID: rec.UID, Address: rec.Address})
	}
	e.recallDeposed(rec)
	rec.Conditions = implied(rec)
	w.sandbox(rec).event(e.eventOf(rec, "adopted", "asked for", "taken back from what lay beside it"))
	if err := e.commit(w); err != nil {
		return nil, errorOf(err)
	}
	return rec, nil
}

// readNote reads what was noted beside an instance, the recorded one of its sandbox or
// one of its deposed; false when that is no note of it.
func readNote(id string, n runtime.Noted) (note, bool) {
	var doc note
	if n.Doc == nil || json.Unmarshal(n.Doc, &doc) != nil || doc.Version != noteVersion || doc.Sandbox == nil {
		return doc, false
	}
	rec := doc.Sandbox
	mine := rec.Instance != nil && (rec.Instance.ID == id || rec.DeposedAt(id) >= 0)
	return doc, mine && n.Made != nil && n.Made.Mark.UID == rec.UID && doc.wellFormed()
}

// wellFormed reports whether all that a note names has the shape of what is recorded.
func (n *note) wellFormed() bool {
	rec := n.Sandbox
	ids := append(slices.Collect(maps.Values(rec.Claim)), rec.Past()...)
	for _, v := range n.Volumes {
		if v == nil || !named(v.Address, "volume") {
			return false
		}
		ids = append(ids, v.ID)
	}
	known := []plan.Phase{plan.Created, plan.Running, plan.Paused, plan.Stopped, plan.Failed, plan.Lost}
	switch {
	case !named(rec.Address, "sandbox"), rec.UID == "", !slices.Contains(known, rec.Instance.Phase),
		slices.ContainsFunc(ids, func(id string) bool { return !isID(id, 12) }),
		n.Network != nil && (!named(n.Network.Address, "network") || !isID(n.Network.ID, 8) || !n.Network.CIDR.IsValid()),
		n.Image != nil && !named(n.Image.Address, "image"):
		return false
	}
	return true
}

// named reports whether an address is of this kind.
func named(address, kind string) bool {
	return strings.HasPrefix(address, kind+".") || strings.Contains(address, "."+kind+".")
}

// inTheWay says which record is in the way of those that a note speaks of. What it
// stands on and is on record as the same thing is left out of the note.
func (e *Engine) inTheWay(doc *note) string {
	rec := doc.Sandbox
	records := e.snapshot()
	if records.Sandboxes[rec.Address] != nil {
		return rec.Address + " is on record with another instance; destroy that first, or move its block to another name"
	}
	for address, other := range records.Sandboxes {
		if other.UID == rec.UID {
			return "it is an incarnation of " + address + ", which is on record"
		}
	}
	if n := doc.Network; n != nil {
		have := records.Networks[n.Address]
		if have != nil && have.ID != n.ID {
			return n.Address + " is on record as another network (" + have.ID + ", not " + n.ID + ")"
		}
		for address, other := range records.Networks {
			if have == nil && other.CIDR.Overlaps(n.CIDR) {
				return "its network " + n.CIDR.String() + " overlaps that of " + address
			}
		}
		if have != nil {
			doc.Network = nil
		}
	}
	volumes := doc.Volumes
	doc.Volumes = nil
	for _, v := range volumes {
		switch have := records.Volumes[v.Address]; {
		case have == nil:
			doc.Volumes = append(doc.Volumes, v)
		case have.ID != v.ID:
			return v.Address + " is on record as another volume (" + have.ID + ", not " + v.ID + ")"
		}
	}
	if doc.Image != nil && records.Images[doc.Image.Address] != nil {
		doc.Image = nil
	}
	return e.alloc.clash(rec)
}
