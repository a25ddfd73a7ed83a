package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
	"pinfold/runtime"
	"pinfold/runtime/host"
	"pinfold/state"
)

// RebuildRequest asks for a new state file where the old one is lost.
type RebuildRequest struct {
	DryRun bool `json:"dry_run,omitempty"` // say what would be, write nothing
}

// RebuildResult is `state rebuild -json`.
type RebuildResult struct {
	FormatVersion string    `json:"format_version"`
	Lineage       string    `json:"lineage"`
	Records       []Rebuilt `json:"records"`         // sorted by kind and address
	Unknown       []string  `json:"unknown"`         // what could not be known, in words
	Aside         string    `json:"aside,omitempty"` // where the damaged file is now
}

// Rebuilt is one record made anew.
type Rebuilt struct {
	Kind    string `json:"kind"` // sandbox, network, volume, image
	Address string `json:"address"`
	ID      string `json:"id,omitempty"` // instance, network or volume id
	Phase   string `json:"phase,omitempty"`
	From    string `json:"from"` // what tells of it
}

// Rebuild makes the state file anew from what lies beside the instances and from
// what the kernel says. It refuses where a state file is in order. The next plan
// shows what differs from the files.
func Rebuild(ctx context.Context, o OpenOptions, r RebuildRequest) (*RebuildResult, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	lineage, err := lostLineage(ctx, o)
	if err != nil {
		return nil, errorOf(err)
	}
	h, err := openHost(o, lineage)
	if err != nil {
		return nil, errorOf(err)
	}
	h = hostWithPoints(h)
	res, err := rebuild(ctx, h, lineage, real(o.RunDir), state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait}, r)
	if err := errors.Join(err, h.Close()); err != nil {
		return nil, errorOf(err)
	}
	return res, nil
}

func rebuild(ctx context.Context, h runtime.Host, lineage, runDir string, o state.Options, r RebuildRequest) (*RebuildResult, error) {
	found, err := salvage(ctx, h, seal.In(o.Dir), lineage, time.Now())
	if err != nil {
		return nil, err
	}
	if len(found.elsewhere) > 0 && !found.runDirs[runDir] {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("%s live with another run dir than %s; give -run-dir %s",
			some(found.elsewhere), runDir, sortedKeys(found.runDirs)[0])}
	}
	res := found.result()
	if r.DryRun {
		return res, nil
	}
	docs, err := found.documents()
	if err != nil {
		return nil, err
	}
	res.Aside, err = state.Rebuild(ctx, o, lineage, func(tx state.Tx) error {
		for _, d := range docs {
			if err := tx.Put(d.bucket, d.key, d.doc); err != nil {
				return err
			}
		}
		for _, ev := range found.events {
			doc, err := json.Marshal(ev)
			if err != nil {
				return err
			}
			if _, err := tx.Append(state.History, doc); err != nil {
				return err
			}
		}
		return tx.SetMeta(metaRunDir, runDir)
	})
	return res, err
}

// lostLineage tells whose state dir it is whose state file is lost. One that is in
// order, of another schema, or in use is not lost.
func lostLineage(ctx context.Context, o OpenOptions) (string, error) {
	if _, ok, err := dial(o.RunDir); err == nil && ok {
		return "", &Error{Kind: Locked, Message: "an agent serves " + o.RunDir + "; stop it before its state is made anew"}
	}
	rep, err := state.Verify(ctx, state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait}, nil)
	switch {
	case err == nil && rep.Sound():
		return "", &Error{Kind: Invalid, Message: statePath(o.StateDir) + " is in order, there is nothing to rebuild; nothing was changed"}
	case errors.Is(err, state.ErrLocked), errors.Is(err, state.ErrSchema):
		return "", err
	}
	left, err := host.LeftIn(o.StateDir)
	if err == nil && left.Lineage == "" {
		err = &Error{Kind: Invalid, Message: "nothing in " + o.StateDir + " tells whose it is (neither its file lineage nor an instance): no sandbox was ever kept there, or all of it is lost; nothing was changed"}
	}
	return left.Lineage, err
}

// salvaged is what could be found out.
type salvaged struct {
	records plan.Records
	from    map[string]string // by address
	at      map[string]time.Time
	unknown []string
	events  []Event

	elsewhere []string        // those of them that live, whose notes name a run dir
	runDirs   map[string]bool // these
	box       *seal.Box       // of what is sensitive
}

// salvage makes records from notes. Of several incarnations of one sandbox, or
// sandboxes of one address, that counts which lives, else which was noted last.
func salvage(ctx context.Context, h runtime.Host, box *seal.Box, lineage string, now time.Time) (*salvaged, error) {
	noted, err := h.Notes(ctx)
	if err != nil {
		return nil, err
	}
	s := &salvaged{
		records: plan.Records{
			Lineage: lineage, Sandboxes: map[string]*plan.Sandbox{}, Networks: map[string]*plan.Network{},
			Volumes: map[string]*plan.Volume{}, Images: map[string]*plan.Image{},
		},
		from: map[string]string{}, at: map[string]time.Time{}, runDirs: map[string]bool{}, box: box,
	}
	read, deposed := map[string]note{}, map[string]bool{}
	for id, n := range noted {
		doc, ok := readNote(id, n)
		if !ok {
			continue
		}
		if err := doc.open(box); err != nil {
			return nil, err
		}
		read[id] = doc
		i := doc.Sandbox.Instance
		if at := doc.Sandbox.DeposedAt(id); at >= 0 {
			i, deposed[id] = &doc.Sandbox.Deposed[at].Instance, true
		}
		if i.PID != 0 {
			h.Recall(id, runtime.Process{PID: i.PID, StartTime: i.StartTime, BootID: i.BootID}, runtime.Mark{UID: doc.Sandbox.UID, Address: doc.Sandbox.Address})
		}
	}
	seen, err := h.Observe(ctx)
	if err != nil {
		return nil, err
	}
	order := slices.Sorted(maps.Keys(seen.Instances))
	slices.SortStableFunc(order, func(a, b string) int {
		if deposed[a] != deposed[b] { // what was to go counts last
			return map[bool]int{true: 1, false: -1}[deposed[a]]
		}
		if la, lb := mayLive(seen.Instances[a]), mayLive(seen.Instances[b]); la != lb {
			return map[bool]int{true: -1, false: 1}[la]
		}
		return noted[b].At.Compare(noted[a].At)
	})
	for _, id := range order {
		doc, ok := read[id]
		s.take(seen.Instances[id], noted[id], doc, ok)
	}
	s.things(read, noted, seen)
	if len(s.records.Sandboxes) > 0 {
		s.unknown = append(s.unknown, "what was renewed, held or changed in the last moment before the loss, if its note was not written yet")
	}
	s.unknown = append(s.unknown, "outputs, history, and which sandboxes had ended for good: the next apply evaluates outputs anew, and makes again what is declared and not listed here",
		"whether moved blocks that trade names were followed before: take them out of the files before the next apply",
		"which directory the state belongs to: the next apply binds it to its own")
	for _, address := range sortedKeys(s.records.Sandboxes) {
		rec := s.records.Sandboxes[address]
		if len(rec.Unreadable) > 0 {
			s.unknown = append(s.unknown, "the "+strings.Join(slices.Sorted(maps.Keys(rec.Unreadable)), ", ")+" of "+address+": sealed with a key that is not in "+seal.FileName+"; the next apply has the values")
		}
		s.events = append(s.events, Event{At: now, Type: "rebuilt", Address: address, UID: rec.UID, Instance: rec.Instance.ID, By: byOperator, Reason: "state lost", Message: s.from[address]})
	}
	return s, nil
}

// mayLive: one that could not be looked at counts as one that lives.
func mayLive(s runtime.InstanceState) bool { return s.Alive || s.Unknown != "" }

// take makes the record of one instance, or says why there is none.
func (s *salvaged) take(in runtime.InstanceState, n runtime.Noted, doc note, ok bool) {
	who := "instance " + in.ID
	if in.Mark.Address != "" {
		who += " of " + in.Mark.Address
	}
	lives := ""
	if in.Alive {
		lives = fmt.Sprintf("; it lives (pid %d) and is left alone", in.Process.PID)
	}
	switch {
	case in.Released:
		return
	case !ok && n.Made == nil && !in.Layer && !in.Alive:
		s.unknown = append(s.unknown, who+": only traces of it are left, gc lists them")
		return
	case !ok:
		s.unknown = append(s.unknown, who+": nothing beside its files tells what was declared"+lives)
		return
	}
	rec := doc.Sandbox
	if other := s.records.Sandboxes[rec.Address]; other != nil {
		if !slices.Contains(other.Past(), in.ID) {
			s.unknown = append(s.unknown, who+": "+other.Instance.ID+" counts as the one of that address"+lives)
		}
		return
	}
	rec.Conditions = implied(rec)
	s.records.Sandboxes[rec.Address] = rec
	s.at[rec.Address] = n.At
	s.from[rec.Address] = "noted at " + n.At.UTC().Format(time.RFC3339)
	if doc.RunDir != "" && mayLive(in) {
		s.elsewhere = append(s.elsewhere, rec.Address)
		s.runDirs[doc.RunDir] = true
	}
	if in.Alive {
		s.from[rec.Address] += fmt.Sprintf(", lives as pid %d", in.Process.PID)
	}
}

// things makes the records of what the sandboxes stand on, each as it was noted last.
func (s *salvaged) things(read map[string]note, noted map[string]runtime.Noted, seen runtime.Observation) {
	kept := slices.Collect(maps.Values(s.records.Sandboxes))
	slices.SortFunc(kept, func(a, b *plan.Sandbox) int {
		return cmp.Or(s.at[b.Address].Compare(s.at[a.Address]), strings.Compare(a.Address, b.Address))
	})
	for _, rec := range kept {
		doc := read[rec.Instance.ID]
		from := "noted beside " + rec.Address
		if n := doc.Network; n != nil && s.records.Networks[n.Address] == nil {
			s.records.Networks[n.Address], s.from[n.Address] = n, from
		}
		if i := doc.Image; i != nil && s.records.Images[i.Address] == nil {
			s.records.Images[i.Address], s.from[i.Address] = i, from
		}
		for _, v := range doc.Volumes {
			if s.records.Volumes[v.Address] == nil {
				s.records.Volumes[v.Address], s.from[v.Address] = v, from
			}
		}
	}
	known := map[string]bool{}
	for address, v := range s.records.Volumes {
		known[v.ID] = true
		if !seen.Volumes[v.ID] {
			s.unknown = append(s.unknown, address+": its directory volumes/"+v.ID+" is gone")
		}
	}
	for _, rec := range s.records.Sandboxes {
		for _, id := range rec.Claim {
			known[id] = true
		}
	}
	for _, id := range sortedKeys(seen.Volumes) {
		if !known[id] {
			s.unknown = append(s.unknown, "whose volume volumes/"+id+" is: no sandbox that was found mounts it; its data stays where it is")
		}
	}
	networks := map[string]bool{}
	for _, n := range s.records.Networks {
		networks[n.ID] = true
	}
	for _, id := range sortedKeys(seen.Networks) {
		if !networks[id] {
			s.unknown = append(s.unknown, "which network "+id+" is: no sandbox that was found is on it; gc -remove "+id+" takes its bridge away")
		}
	}
}

// documents are the records as the state holds them.
func (s *salvaged) documents() ([]document, error) {
	var docs []document
	err := errors.Join(
		encodeSandboxes(&docs, &blocks{box: s.box}, s.records.Sandboxes),
		encode(&docs, state.Networks, s.records.Networks),
		encode(&docs, state.Volumes, s.records.Volumes),
		encode(&docs, state.Images, s.records.Images),
	)
	return docs, err
}

func (s *salvaged) result() *RebuildResult {
	res := &RebuildResult{FormatVersion: "1", Lineage: s.records.Lineage, Records: []Rebuilt{}, Unknown: s.unknown}
	for a, r := range s.records.Sandboxes {
		res.Records = append(res.Records, Rebuilt{Kind: "sandbox", Address: a, ID: r.Instance.ID, Phase: string(r.Instance.Phase), From: s.from[a]})
	}
	for a, r := range s.records.Networks {
		res.Records = append(res.Records, Rebuilt{Kind: "network", Address: a, ID: r.ID, From: s.from[a]})
	}
	for a, r := range s.records.Volumes {
		res.Records = append(res.Records, Rebuilt{Kind: "volume", Address: a, ID: r.ID, From: s.from[a]})
	}
	for a := range s.records.Images {
		res.Records = append(res.Records, Rebuilt{Kind: "image", Address: a, From: s.from[a]})
	}
	slices.SortFunc(res.Records, func(a, b Rebuilt) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Address, b.Address))
	})
	return res
}
