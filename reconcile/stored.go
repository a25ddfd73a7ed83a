package reconcile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
	"pinfold/state"
)

// A sandbox's document leaves out what can be told without it, because every
// command that runs without an agent reads all of them:
//
//   - what the instances of one block share stands once, in a document of its own
//     (storedBlock); a sandbox has only the members of its spec that differ;
//   - conditions follow from the record; only since when each holds is its own,
//     and not even that of one that came up and runs.

// storedBlock is what the sandboxes of one block share. It never changes, since
// sandboxes stand on it; an edited block is another one.
type storedBlock struct {
	Lifecycle config.Lifecycle           `json:"lifecycle,omitzero"`
	Sources   map[string]config.Position `json:"sources,omitempty"`
	DependsOn []string                   `json:"depends_on,omitempty"` // of the first sandbox, most likely of all
	Spec      json.RawMessage            `json:"spec"`                 // of the first; without what is sealed
	Sensitive []string                   `json:"sensitive,omitempty"`
	Sealed    map[string]string          `json:"sealed,omitempty"` // members of the spec that hold something sensitive, by name
}

// storedSandbox is the document of a plan.Sandbox: its fields, but those that are
// declared here again.
type storedSandbox struct {
	plan.Sandbox
	Block      string                     `json:"block"`
	Spec       map[string]json.RawMessage `json:"spec,omitempty"`    // members that differ from the block's
	Without    []string                   `json:"without,omitempty"` // members that only the block has
	Sealed     map[string]string          `json:"sealed,omitempty"`  // members that differ, and hold something sensitive
	Sensitive  *struct{}                  `json:"sensitive,omitempty"`
	Lifecycle  *struct{}                  `json:"lifecycle,omitempty"`
	Sources    *struct{}                  `json:"sources,omitempty"`
	DependsOn  *[]string                  `json:"depends_on,omitempty"` // where they differ from the block's
	Conditions []plan.Condition           `json:"conditions,omitempty"` // where they do not follow
	Since      []time.Time                `json:"since,omitempty"`      // of conditions that follow
}

// block is a storedBlock in memory.
type block struct {
	storedBlock
	spec    config.Sandbox
	members map[string]json.RawMessage
	lost    map[string]string // sealed members that cannot be opened
	stored  bool              // in the file for sure
	used    atomic.Bool
}

// blocks are the known ones, by key.
type blocks struct {
	mu    sync.Mutex
	known map[string]*block
	box   *seal.Box // of what is sensitive; nil: nothing sealed is opened
}

// keyOf names the block that a sandbox is of by what is the same for all its
// instances.
func keyOf(rec *plan.Sandbox) (string, error) {
	b, err := json.Marshal(storedBlock{Lifecycle: rec.Lifecycle, Sources: rec.Sources, Sensitive: rec.Sensitive, Spec: json.RawMessage("{}")})
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8]), nil
}

// encode makes a sandbox's document. The document of a block that is not in the
// file yet is added to docs: whoever commits first stores it.
func (x *blocks) encode(rec *plan.Sandbox, docs *[]document) ([]byte, error) {
	key, err := keyOf(rec)
	if err != nil {
		return nil, err
	}
	spec, err := json.Marshal(&rec.Spec)
	if err != nil {
		return nil, err
	}
	own := map[string]json.RawMessage{}
	if err := json.Unmarshal(spec, &own); err != nil {
		return nil, err
	}
	b, stored, err := x.of(key, rec, spec, own)
	if err != nil {
		return nil, err
	}
	if !stored && !slices.ContainsFunc(*docs, func(d document) bool { return d.bucket == state.Blocks && d.key == key }) {
		doc, err := b.document(x.box)
		if err != nil {
			return nil, err
		}
		*docs = append(*docs, document{bucket: state.Blocks, key: key, doc: doc})
	}
	s := storedSandbox{Sandbox: *rec, Block: key}
	for name := range b.members {
		if _, has := own[name]; !has {
			s.Without = append(s.Without, name)
		}
	}
	slices.Sort(s.Without)
	for name, value := range own {
		if bytes.Equal(value, b.members[name]) {
			delete(own, name)
		}
	}
	s.Spec = own
	if s.Sealed, err = sealMembers(x.box, own, rec.Sensitive); err != nil {
		return nil, err
	}
	for name, sealed := range rec.Unreadable {
		if s.Sealed == nil {
			s.Sealed = map[string]string{}
		}
		s.Sealed[name] = sealed // as it was
		delete(own, name)
	}
	if !slices.Equal(rec.DependsOn, b.DependsOn) {
		s.DependsOn = &rec.DependsOn
	}
	s.conditions(rec)
	return json.Marshal(&s)
}

// of finds a block, or makes it of its first sandbox.
func (x *blocks) of(key string, rec *plan.Sandbox, spec []byte, members map[string]json.RawMessage) (b *block, stored bool, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if b := x.known[key]; b != nil {
		return b, b.stored, nil
	}
	b, err = blockOf(storedBlock{Lifecycle: rec.Lifecycle, Sources: rec.Sources, Sensitive: rec.Sensitive, DependsOn: rec.DependsOn, Spec: spec}, nil)
	if err != nil {
		return nil, false, err
	}
	if x.known == nil {
		x.known = map[string]*block{}
	}
	x.known[key] = b
	return b, false, nil
}

// blockOf reads a block with what of it is sealed.
func blockOf(s storedBlock, box *seal.Box) (*block, error) {
	b := &block{storedBlock: s}
	if err := json.Unmarshal(s.Spec, &b.members); err != nil {
		return b, err
	}
	var err error
	if b.lost, err = openMembers(box, s.Sealed, b.members); err != nil {
		return b, err
	}
	b.Sealed = nil
	if len(s.Sealed) > 0 {
		if b.Spec, err = json.Marshal(b.members); err != nil {
			return b, err
		}
	}
	return b, json.Unmarshal(b.Spec, &b.spec)
}

// document is what is stored of a block.
func (b *block) document(box *seal.Box) ([]byte, error) {
	s := b.storedBlock
	if len(s.Sensitive) > 0 || len(b.lost) > 0 {
		members := maps.Clone(b.members)
		var err error
		if s.Sealed, err = sealMembers(box, members, s.Sensitive); err != nil {
			return nil, err
		}
		if s.Spec, err = json.Marshal(members); err != nil {
			return nil, err
		}
	}
	return json.Marshal(&s)
}

// committed notes that the blocks among docs are in the file.
func (x *blocks) committed(docs []document) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, d := range docs {
		if d.bucket == state.Blocks && d.doc != nil {
			x.known[d.key].stored = true
		}
	}
}

// decode fills rec from its document. What rec gets from its block it shares with
// others; specs and sources are replaced, never changed.
func (x *blocks) decode(doc []byte, rec *plan.Sandbox) error {
	var s storedSandbox
	if err := json.Unmarshal(doc, &s); err != nil {
		return err
	}
	b := x.known[s.Block]
	if b == nil {
		return fmt.Errorf("there is no block %q", s.Block)
	}
	b.used.Store(true)
	*rec = s.Sandbox
	rec.Spec, rec.Lifecycle, rec.Sources, rec.DependsOn, rec.Sensitive = b.spec, b.Lifecycle, b.Sources, b.DependsOn, b.Sensitive
	if s.DependsOn != nil {
		rec.DependsOn = *s.DependsOn
	}
	lost, err := openMembers(x.box, s.Sealed, membersOf(&s))
	if err != nil {
		return err
	}
	for name, sealed := range b.lost {
		if _, own := s.Spec[name]; !own && lost[name] == "" && !slices.Contains(s.Without, name) {
			setLost(&lost, name, sealed)
		}
	}
	rec.Unreadable = lost
	spec := reflect.ValueOf(&rec.Spec).Elem()
	for name := range lost {
		if i, ok := specFields[name]; ok {
			spec.Field(i).SetZero()
		}
	}
	for _, name := range s.Without {
		if i, ok := specFields[name]; ok {
			spec.Field(i).SetZero()
		}
	}
	for name, value := range s.Spec {
		i, ok := specFields[name]
		if !ok {
			continue // as of any JSON document, of a later release
		}
		f := spec.Field(i)
		f.SetZero() // what it has is the block's and must not be written into
		if err := json.Unmarshal(value, f.Addr().Interface()); err != nil {
			return err
		}
	}
	s.restoreConditions(rec)
	return nil
}

// specFields are the fields of a sandbox's spec by their JSON names.
var specFields = func() map[string]int {
	fields := map[string]int{}
	t := reflect.TypeFor[config.Sandbox]()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = i
	}
	return fields
}()

// conditions keeps what of the record's conditions does not follow from the rest.
// One that was never looked at has none, and is read back with those that follow.
func (s *storedSandbox) conditions(rec *plan.Sandbox) {
	follow := implied(rec)
	if len(follow) != len(rec.Conditions) {
		s.Conditions = rec.Conditions
		return
	}
	usual := true
	since := make([]time.Time, len(follow))
	for i, c := range rec.Conditions {
		since[i] = c.Since
		usual = usual && c.Since.Equal(follow[i].Since)
		follow[i].Since = c.Since
	}
	switch {
	case !slices.Equal(follow, rec.Conditions):
		s.Conditions = rec.Conditions
	case !usual:
		s.Since = since
	}
}

func (s *storedSandbox) restoreConditions(rec *plan.Sandbox) {
	if len(s.Conditions) > 0 {
		rec.Conditions = s.Conditions
		return
	}
	rec.Conditions = implied(rec)
	for i := range min(len(s.Since), len(rec.Conditions)) {
		rec.Conditions[i].Since = s.Since[i]
	}
}

// implied are the conditions of a sandbox of which nothing special was seen,
// since it was made or, where that made a difference, since its start.
func implied(rec *plan.Sandbox) []plan.Condition {
	bare := *rec
	bare.Conditions = nil
	if rec.Instance == nil {
		return plan.Conditions(&bare, plan.Seen{}, true, rec.CreatedAt)
	}
	seen := plan.Seen{UID: rec.UID, Layer: true}
	if live(rec) {
		seen = aliveSeen(rec, rec.Instance.Phase == plan.Paused)
		seen.Started = rec.Instance.Phase != plan.Created
	}
	all := plan.Conditions(&bare, seen, true, rec.Instance.CreatedAt)
	if rec.Instance.Phase == plan.Running && len(all) > 0 {
		all[0].Since = rec.Instance.StartedAt // Ready
	}
	return all
}

// sweepBlocks deletes blocks of which no sandbox was loaded. Nothing was committed
// yet since then, so none has become one's again.
func (e *Engine) sweepBlocks() error {
	var unused []string
	for key, b := range e.blocks.known {
		if !b.used.Load() {
			unused = append(unused, key)
			delete(e.blocks.known, key)
		}
	}
	if len(unused) == 0 {
		return nil
	}
	return e.store.Update(func(tx state.Tx) error {
		for _, key := range unused {
			if err := tx.Delete(state.Blocks, key); err != nil {
				return err
			}
		}
		return nil
	})
}
