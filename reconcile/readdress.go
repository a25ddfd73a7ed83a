package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
	"pinfold/runtime"
	"pinfold/state"
)

// What changes the addresses of records: moved blocks and `state mv`, and import
// blocks, which make records of what the host has. All of it is done in one
// transaction, before anything else of a run.

// metaCycles holds, as a JSON list, plan.Records.Cycles.
const metaCycles = "moved_cycles"

// loadCycles reads which groups of moved blocks were gone through.
func loadCycles(tx state.Tx) ([]string, error) {
	all, err := cyclesOf(tx.Meta(metaCycles))
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return all, nil
}

func cyclesOf(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	var all []string
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, fmt.Errorf("what it says of moved blocks cannot be read: %w", err)
	}
	return all, nil
}

// readdress carries out what a plan begins with: its moves and imports. p.records are
// then those of the plan that are still as it saw them, and what became of the others.
func (r *run) readdress(ctx context.Context, p *prepared) error {
	to := map[string]string{}
	var moves, imports []plan.Change
	for _, c := range p.Plan.Changes {
		switch c.Action {
		case plan.ActMove:
			to[c.From] = c.Address
			moves = append(moves, c)
		case plan.ActImport:
			imports = append(imports, c)
		}
	}
	if len(to) > 0 || (p.source != nil && !p.options.RefreshOnly && !slices.Equal(p.Plan.Cycles, p.before.Cycles)) {
		w := &write{bump: true, cycles: &p.Plan.Cycles}
		for _, c := range moves {
			w.event(Event{Address: c.Address, Type: string(plan.ActMove), Reason: c.Cause})
		}
		taken, err := r.rename(ctx, to, w, r.verb, r.lockWait)
		if err != nil {
			return err
		}
		r.wake(sortedKeys(to)...)
		for address, x := range taken {
			if p.before.Sandboxes[x.from] == x.old {
				p.records.Sandboxes[address] = x.now
			}
		}
	}
	if len(imports) > 0 {
		if err := r.takeBack(ctx, p, imports); err != nil {
			return err
		}
	}
	for _, c := range append(moves, imports...) {
		r.mu.Lock()
		r.done = append(r.done, c)
		r.tell(Progress{Address: c.Address, Action: c.Action, State: "done", Message: r.identity(c.Address)})
		r.mu.Unlock()
		r.changed(&c)
	}
	return nil
}

// renamed is a sandbox's record before and after a renaming that changed it.
type renamed struct {
	from     string
	old, now *plan.Sandbox
}

// rename gives records new addresses, by their old ones, in the transaction w, and
// what this process keeps by address follows. It takes the lanes of all that it
// changes, waiting for each, and returns the sandboxes among that by their new
// addresses. Nothing on the host is touched but the notes.
func (e *actor) rename(ctx context.Context, to map[string]string, w *write, verb string, wait time.Duration) (map[string]renamed, error) {
	release, err := e.lanesFor(ctx, to, verb, wait)
	if err != nil {
		return nil, err
	}
	defer release()
	now := e.snapshot()
	after := now.Rename(to)
	from := make(map[string]string, len(to))
	for a, b := range to {
		from[b] = a
	}
	taken := map[string]renamed{}
	w.sandboxes = differences(now.Sandboxes, after.Sandboxes)
	w.networks = differences(now.Networks, after.Networks)
	w.volumes = differences(now.Volumes, after.Volumes)
	w.images = differences(now.Images, after.Images)
	w.ended = differences(now.Ended, after.Ended)
	for address, rec := range w.sandboxes {
		if rec == nil {
			continue
		}
		x := renamed{from: address, now: rec}
		if old, moved := from[address]; moved {
			x.from = old
		}
		x.old = now.Sandboxes[x.from]
		rec.LastActivity = e.lastUse(x.old)
		taken[address] = x
	}
	for i := range w.events {
		w.events[i].UID, w.events[i].Instance = identify(&after, w.events[i].Address)
	}
	w.renamed = to
	if err := e.commit(w); err != nil {
		return nil, fmt.Errorf("cannot record the new addresses: %w", err)
	}
	return taken, nil
}

// identify is what an event says of a record beside its address.
func identify(r *plan.Records, address string) (uid, instance string) {
	switch s := r.Sandboxes[address]; {
	case s != nil && s.Instance != nil:
		return s.UID, s.Instance.ID
	case s != nil:
		return s.UID, ""
	case r.Networks[address] != nil:
		return "", r.Networks[address].ID
	case r.Volumes[address] != nil:
		return "", r.Volumes[address].ID
	}
	return "", ""
}

// differences are the records to be written and, as nil, deleted, so that before
// becomes after.
func differences[T any](before, after map[string]*T) map[string]*T {
	var w map[string]*T
	for a := range before {
		if after[a] == nil {
			set(&w, a, nil)
		}
	}
	for a, rec := range after {
		if before[a] != rec {
			set(&w, a, rec)
		}
	}
	return w
}

// lanesFor takes the lanes of all sandboxes, networks and volumes whose records a
// renaming changes, of the new addresses too. It does so again where records came or
// went while it waited.
func (e *actor) lanesFor(ctx context.Context, to map[string]string, verb string, wait time.Duration) (release func(), err error) {
	held := map[string]func(){}
	release = func() {
		for _, free := range held {
			free()
		}
	}
	for {
		now := e.snapshot()
		after := now.Rename(to)
		wanted := map[string]bool{}
		for _, address := range slices.Concat(
			sortedKeys(differences(now.Sandboxes, after.Sandboxes)), sortedKeys(differences(now.Networks, after.Networks)),
			sortedKeys(differences(now.Volumes, after.Volumes)), sortedKeys(differences(now.Images, after.Images)),
		) {
			wanted[address] = true
		}
		more := false
		for _, address := range slices.Sorted(maps.Keys(wanted)) {
			if held[address] != nil {
				continue
			}
			free, err := e.lanes.wait(ctx, wait, address, verb, e.by)
			if err != nil {
				release()
				return nil, err
			}
			held[address], more = free, true
		}
		if !more {
			return release, nil
		}
	}
}

// followRenaming makes true of what this process keeps by sandbox address what a renaming
// made true of the records: uses that go on, served ports, probes, and when to
// look again.
func (e *Engine) followRenaming(to map[string]string) {
	e.activity.rename(to)
	for a := range to {
		e.content(a)
	}
	if e.relay != nil {
		e.relay.rename(to)
		e.relay.a.readdressed(to)
	}
	if e.probes != nil {
		e.probes.rename(to)
	}
}

// renameKeys moves entries of m, all at once.
func renameKeys[V any](m map[string]V, to map[string]string) {
	if len(m) == 0 {
		return
	}
	moved := map[string]V{}
	for a, b := range to {
		if v, ok := m[a]; ok {
			moved[b] = v
			delete(m, a)
		}
	}
	maps.Copy(m, moved)
}

// candidates finds what import blocks name that is not on record.
func (e *Engine) candidates(ctx context.Context, d *config.Desired, r *plan.Records, seen *sight, believed bool) (map[string]plan.Candidate, error) {
	var wanted []string
	for i := range d.Imports {
		if r.Holder(d.Imports[i].ID) == "" {
			wanted = append(wanted, d.Imports[i].ID)
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	noted, err := e.host.Notes(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot tell what can be imported: %w", err)
	}
	volumes := seen.Volumes
	if believed { // what was not looked at
		o, err := e.host.Observe(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot tell what can be imported: %w", err)
		}
		volumes = o.Volumes
	}
	found := map[string]plan.Candidate{}
	for _, id := range wanted {
		if !isID(id, 12) {
			continue // nothing of ours has such an id
		}
		s, there, err := e.host.Inspect(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("cannot tell whether %s can be imported: %w", id, err)
		}
		switch {
		case there:
			found[id] = candidate(e.blocks.box, s, noted[id])
		case volumes[id]:
			found[id] = plan.Candidate{Kind: "volume"}
		}
	}
	return found, nil
}

// candidate is an instance without a record, with what lies beside its files.
func candidate(box *seal.Box, s runtime.InstanceState, n runtime.Noted) plan.Candidate {
	c := plan.Candidate{Kind: "sandbox", Released: s.Released}
	doc, ok := readNote(s.ID, n)
	switch {
	case s.Unknown != "":
		c.Refused = "It could not be looked at: " + s.Unknown + "."
	case !ok:
		c.Refused = "Nothing beside its files tells what was declared."
	case doc.Sandbox.Instance.ID != s.ID:
		c.Refused = "It was deposed: instance " + doc.Sandbox.Instance.ID + " took its place."
	default:
		if err := doc.open(box); err != nil {
			c.Refused = "What lies beside its files cannot be read: " + err.Error() + "."
			break
		}
		c.Sandbox, c.Network, c.Volumes, c.Image = doc.Sandbox, doc.Network, doc.Volumes, doc.Image
	}
	return c
}

// takeBack puts on record what the imports of a plan name. A mark that gave it up goes
// first: without one and without a record it is left alone as well.
func (r *run) takeBack(ctx context.Context, p *prepared, imports []plan.Change) error {
	w := &write{bump: true}
	for _, c := range imports {
		release, err := r.lanes.wait(ctx, r.lockWait, c.Address, r.verb, r.by)
		if err != nil {
			return err
		}
		defer release()
		ev := Event{Address: c.Address, Type: string(plan.ActImport), Reason: c.Cause, Instance: c.Instance}
		switch c.Kind {
		case "sandbox":
			rec := copySandbox(p.records.Sandboxes[c.Address])
			if why := r.alloc.clash(rec); why != "" && r.current(c.Address) == nil {
				return &Error{Kind: Stale, Message: fmt.Sprintf("cannot import %s into %s: %s; plan again", c.Instance, c.Address, why)}
			}
			if p.imports[c.Instance].Released || p.seen.Instances[c.Instance].Released {
				if err := r.host.Reclaim(ctx, c.Instance); err != nil {
					return fmt.Errorf("cannot import %s into %s: %w", c.Instance, c.Address, err)
				}
			}
			if i := rec.Instance; i.PID != 0 {
				r.host.Recall(i.ID, runtime.Process{PID: i.PID, StartTime: i.StartTime, BootID: i.BootID}, runtime.Mark{UID: rec.UID, Address: rec.Address})
			}
			r.recallDeposed(rec)
			rec.Conditions = implied(rec)
			ev.UID = rec.UID
			set(&w.ended, c.Address, nil)
			w.sandbox(rec)
			p.records.Sandboxes[c.Address] = rec
		case "network":
			set(&w.networks, c.Address, p.records.Networks[c.Address])
		case "volume":
			set(&w.volumes, c.Address, p.records.Volumes[c.Address])
		case "image":
			set(&w.images, c.Address, p.records.Images[c.Address])
		}
		w.event(ev)
	}
	return r.commit(w)
}
