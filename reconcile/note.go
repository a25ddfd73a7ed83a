package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"hash/maphash"
	"reflect"
	"slices"
	"sync"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
	"pinfold/runtime"
)

// A note lies beside each instance's files: the sandbox's record and what it
// stands on, as they were when something of them last changed. Nothing reads it
// but Rebuild, which makes records of it where the state is lost. So it is written
// beside the work, and work does not fail by it.

// note is the document.
type note struct {
	Version int           `json:"version"`
	Sandbox *plan.Sandbox `json:"sandbox"`
	// Sealed are the members of the sandbox's spec that hold something sensitive.
	Sealed  map[string]string `json:"sealed,omitempty"`
	Network *plan.Network     `json:"network,omitempty"`
	Volumes []*plan.Volume    `json:"volumes,omitempty"`
	Image   *plan.Image       `json:"image,omitempty"`
	RunDir  string            `json:"run_dir,omitempty"` // where what lives of it is found
}

const noteVersion = 1

// notes writes them, one after the other.
type notes struct {
	mu      sync.Mutex
	waiting map[string]*plan.Sandbox // by instance
	writing bool
	last    map[string]uint64 // of what was written, by instance
	seed    maphash.Seed
	pen     sync.Mutex // held while one is written
}

// note has the records' notes written soon. Close waits for it.
func (e *Engine) note(records map[string]*plan.Sandbox) {
	n := &e.notes
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, rec := range records {
		if rec == nil || rec.Instance == nil {
			continue
		}
		if n.waiting == nil {
			n.waiting, n.last, n.seed = map[string]*plan.Sandbox{}, map[string]uint64{}, maphash.MakeSeed()
		}
		n.waiting[rec.Instance.ID] = rec
		for _, d := range rec.Deposed {
			n.waiting[d.Instance.ID] = rec
		}
	}
	if len(n.waiting) > 0 && !n.writing {
		n.writing = true
		e.background.Go(e.writeNotes)
	}
}

// noteMissing has notes written that a crash prevented.
func (e *Engine) noteMissing(o runtime.Observation) {
	if e.readOnly {
		return
	}
	missing := map[string]*plan.Sandbox{}
	e.mu.Lock()
	for address, rec := range e.records.Sandboxes {
		if rec.Instance == nil {
			continue
		}
		lacks := func(id string) bool {
			in, there := o.Instances[id]
			return there && !in.Noted && in.Unknown == ""
		}
		if lacks(rec.Instance.ID) || slices.ContainsFunc(rec.Deposed, func(d plan.Deposed) bool { return lacks(d.Instance.ID) }) {
			missing[address] = rec
		}
	}
	e.mu.Unlock()
	e.note(missing)
}

func (e *Engine) writeNotes() {
	n := &e.notes
	for {
		n.pen.Lock()
		n.mu.Lock()
		var rec *plan.Sandbox
		var of string
		for id, waiting := range n.waiting {
			of, rec = id, waiting
			delete(n.waiting, id)
			break
		}
		n.writing = rec != nil
		n.mu.Unlock()
		if rec == nil {
			n.pen.Unlock()
			return
		}
		err := e.writeNote(of, rec)
		n.pen.Unlock()
		if err != nil && !errors.Is(err, runtime.ErrNotFound) {
			e.log.Debug("a note cannot be written", "address", rec.Address, "error", err)
		}
	}
}

// noteNow writes the note of what is about to leave the records, and with them what it
// stands on: none is written later.
func (e *Engine) noteNow(rec *plan.Sandbox) error {
	n := &e.notes
	n.pen.Lock()
	defer n.pen.Unlock()
	n.mu.Lock()
	delete(n.waiting, rec.Instance.ID)
	if n.last == nil {
		n.waiting, n.last, n.seed = map[string]*plan.Sandbox{}, map[string]uint64{}, maphash.MakeSeed()
	}
	n.mu.Unlock()
	return e.writeNote(rec.Instance.ID, rec)
}

// writeNote writes the note beside one of rec's instances, its own or a deposed one.
func (e *Engine) writeNote(id string, rec *plan.Sandbox) error {
	n := e.noteOf(rec)
	doc, err := json.Marshal(n)
	if err != nil {
		return err
	}
	sum := maphash.Bytes(e.notes.seed, doc)
	e.notes.mu.Lock()
	same := e.notes.last[id] == sum
	e.notes.mu.Unlock()
	if same {
		return nil // written already; a look may have begun before
	}
	if len(rec.Sensitive) > 0 || len(rec.Unreadable) > 0 {
		if err := n.seal(e.blocks.box); err != nil {
			return err
		}
		if doc, err = json.Marshal(n); err != nil {
			return err
		}
	}
	if err := e.host.Note(context.Background(), id, doc); err != nil {
		return err
	}
	e.notes.mu.Lock()
	defer e.notes.mu.Unlock()
	e.notes.last[id] = sum
	return nil
}

// noteOf leaves out what the next look at the host tells anyway.
func (e *Engine) noteOf(rec *plan.Sandbox) note {
	c := *rec
	c.Conditions, c.LastActivity, c.Warned, c.Retry, c.Restarts = nil, time.Time{}, time.Time{}, plan.Retry{}, plan.Retry{}
	n := note{Version: noteVersion, Sandbox: &c, RunDir: e.meta(metaRunDir)}
	if rec.Net != nil {
		n.Network, _ = e.network(rec.Net.Network)
	}
	for _, m := range rec.Spec.Mounts {
		if v, ok := e.volume(m.Volume); ok {
			n.Volumes = append(n.Volumes, v)
		}
	}
	n.Image, _ = e.image(rec.Spec.Image)
	return n
}

// seal takes what is sensitive out of the spec.
func (n *note) seal(box *seal.Box) error {
	spec, err := json.Marshal(&n.Sandbox.Spec)
	if err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(spec, &members); err != nil {
		return err
	}
	if n.Sealed, err = sealMembers(box, members, n.Sandbox.Sensitive); err != nil {
		return err
	}
	for name, sealed := range n.Sandbox.Unreadable {
		setLost(&n.Sealed, name, sealed)
	}
	fields := reflect.ValueOf(&n.Sandbox.Spec).Elem() // of a copy
	for name := range n.Sealed {
		fields.Field(specFields[name]).SetZero()
	}
	return nil
}

// open puts it back, as far as the key is there.
func (n *note) open(box *seal.Box) error {
	members := map[string]json.RawMessage{}
	lost, err := openMembers(box, n.Sealed, members)
	if err != nil {
		return err
	}
	n.Sandbox.Unreadable = lost
	fields := reflect.ValueOf(&n.Sandbox.Spec).Elem()
	for name, value := range members {
		i, ok := specFields[name]
		if !ok {
			continue
		}
		if err := json.Unmarshal(value, fields.Field(i).Addr().Interface()); err != nil {
			return err
		}
	}
	return nil
}

// forgetNote is for an instance that is about to be removed: nothing may appear
// among its files from then on.
func (e *Engine) forgetNote(id string) {
	e.notes.pen.Lock()
	defer e.notes.pen.Unlock()
	e.notes.mu.Lock()
	defer e.notes.mu.Unlock()
	delete(e.notes.last, id)
	delete(e.notes.waiting, id)
}
