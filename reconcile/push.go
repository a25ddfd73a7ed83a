package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"pinfold/state"
)

// StateDocument is everything a state holds, as `state pull` gives it and `state
// push` takes it. Documents are as they are stored: what is kept encrypted is here,
// too.
type StateDocument struct {
	FormatVersion string            `json:"format_version"`
	Version       string            `json:"pinfold_version"` // that pulled it
	Schema        int               `json:"schema"`
	Lineage       string            `json:"lineage"`
	Serial        uint64            `json:"serial"`
	Meta          map[string]string `json:"meta"` // what the state says of itself beside that
	// Documents are the records, by bucket and key.
	Documents map[string]map[string]json.RawMessage `json:"documents"`
	// Journal are the steps that were begun and not ended when it was pulled, History
	// what happened, both oldest first.
	Journal []json.RawMessage `json:"journal"`
	History []json.RawMessage `json:"history"`
}

// stateFormat is the version of StateDocument.
const stateFormat = "1"

// maxSerial is the greatest that tools which edit JSON leave as it is: they take numbers
// for IEEE 754 doubles. It is the microseconds of the year 2255.
const maxSerial = 1 << 53

// metaKeys are what a state says of itself that goes with it.
var metaKeys = []string{metaConfigDir, metaDigest, metaOverride, metaRunDir, metaCycles}

// recordBuckets are those whose documents have keys of their own.
var recordBuckets = []string{state.Blocks, state.Sandboxes, state.Networks, state.Volumes, state.Images, state.Outputs, state.Ended}

// Pull reads the whole state as of one moment.
func (e *Engine) Pull(context.Context) (*StateDocument, error) {
	var d *StateDocument
	err := e.store.View(func(tx state.Tx) (err error) {
		d, err = pulled(tx)
		return err
	})
	if err != nil {
		return nil, errorOf(err)
	}
	d.Version, d.Lineage = e.info.Version, e.store.Lineage()
	return d, nil
}

func pulled(tx state.Tx) (*StateDocument, error) {
	d := &StateDocument{
		FormatVersion: stateFormat, Schema: state.Schema, Serial: tx.Serial(), Meta: map[string]string{},
		Documents: map[string]map[string]json.RawMessage{}, Journal: []json.RawMessage{}, History: []json.RawMessage{},
	}
	for _, key := range metaKeys {
		if v := tx.Meta(key); v != "" {
			d.Meta[key] = v
		}
	}
	for _, bucket := range recordBuckets {
		all := map[string]json.RawMessage{}
		d.Documents[bucket] = all
		if err := tx.Each(bucket, func(key string, doc []byte) error { all[key] = doc; return nil }); err != nil {
			return nil, err
		}
	}
	for bucket, list := range map[string]*[]json.RawMessage{state.Journal: &d.Journal, state.History: &d.History} {
		if err := tx.Each(bucket, func(_ string, doc []byte) error { *list = append(*list, doc); return nil }); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// put writes what pulled read.
func (d *StateDocument) put(tx state.Tx) error {
	for key, value := range d.Meta {
		if err := tx.SetMeta(key, value); err != nil {
			return err
		}
	}
	for _, bucket := range recordBuckets {
		for _, key := range sortedKeys(d.Documents[bucket]) {
			if err := tx.Put(bucket, key, d.Documents[bucket][key]); err != nil {
				return err
			}
		}
	}
	for _, doc := range d.History {
		if _, err := tx.Append(state.History, doc); err != nil {
			return err
		}
	}
	return nil
}

// PushRequest asks to put a document in the place of the state.
type PushRequest struct {
	Name     string // of what the document was read from, for the words
	Document *StateDocument
	Force    bool // also one of another lineage, where nothing of this one is left, or an older one
	DryRun   bool // say what would be, change nothing
}

// PushResult is `state push -json`.
type PushResult struct {
	FormatVersion string         `json:"format_version"`
	Path          string         `json:"path"`
	Lineage       string         `json:"lineage"`
	Serial        uint64         `json:"serial"` // beyond the document's and the old one's
	Documents     map[string]int `json:"documents"`
	Aside         *string        `json:"aside"` // where the old file is now; null: there was none
	// Unrecorded are the instances on this host that it knows nothing of.
	Unrecorded []string `json:"unrecorded"`
}

// Push puts a document in the place of the state file, which is moved aside. It
// refuses while an agent or command has the state.
func Push(ctx context.Context, o OpenOptions, r PushRequest) (*PushResult, error) {
	if err := o.fill(); err != nil {
		return nil, errorOf(err)
	}
	if os.Geteuid() != 0 {
		return nil, &Error{Kind: Invalid, Message: "cannot push the state: it is root's; run it with sudo"}
	}
	if agentServes(o) {
		return nil, &Error{Kind: Locked, Message: fmt.Sprintf("an agent in %s has the state %s; stop it, push, and start it again; nothing was changed", o.RunDir, statePath(o.StateDir))}
	}
	var told testimony
	counts, err := r.Document.check(told.hear())
	if err != nil {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("cannot push %s: %v; nothing was changed", r.Name, err)}
	}
	if err := ownLineage(o.StateDir, r.Name, r.Document.Lineage); err != nil {
		return nil, errorOf(err)
	}
	here, err := instancesIn(o.StateDir)
	if err != nil {
		return nil, errorOf(err)
	}
	done, err := state.Replace(ctx, state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait}, state.Replacement{
		Name: r.Name, Lineage: r.Document.Lineage, Serial: r.Document.Serial, Force: r.Force, DryRun: r.DryRun,
		Fill: func(tx state.Tx) error {
			return errors.Join(r.Document.put(tx), told.restored(tx, r.Name, time.Now()))
		},
	})
	if err != nil {
		return nil, errorOf(servedElsewhere(err, o))
	}
	res := &PushResult{
		FormatVersion: "1", Path: statePath(o.StateDir), Lineage: r.Document.Lineage, Serial: done.Serial,
		Documents: counts, Unrecorded: told.unrecorded(here),
	}
	if done.Aside != "" {
		res.Aside = &done.Aside
	}
	return res, nil
}

// check tells why this pinfold cannot take the document, and counts what is in it.
func (d *StateDocument) check(read func(bucket, key string, doc []byte) (any, error)) (map[string]int, error) {
	switch {
	case d.FormatVersion != stateFormat:
		return nil, fmt.Errorf("it is of format %q, this pinfold reads format %q: pull it again", d.FormatVersion, stateFormat)
	case d.Schema != state.Schema:
		return nil, fmt.Errorf("it is of a state with schema %d, this pinfold has schema %d: pull it with this one", d.Schema, state.Schema)
	case len(d.Journal) > 0:
		return nil, errors.New("it was pulled in the middle of a step; pull it again when nothing is under way")
	case d.Serial > maxSerial:
		return nil, fmt.Errorf("serial %d is none that a state has", d.Serial)
	}
	counts := map[string]int{}
	for bucket := range d.Documents {
		if !slices.Contains(recordBuckets, bucket) {
			return nil, fmt.Errorf("it has documents of a kind that is not known, %q", bucket)
		}
	}
	for key := range d.Meta {
		if !slices.Contains(metaKeys, key) {
			return nil, fmt.Errorf("its meta has a key that is not known, %q", key)
		}
	}
	if _, err := cyclesOf(d.Meta[metaCycles]); err != nil {
		return nil, err
	}
	fitting := newCoherent()
	for _, bucket := range recordBuckets { // blocks come before what stands on them
		for _, key := range sortedKeys(d.Documents[bucket]) {
			v, err := read(bucket, key, d.Documents[bucket][key])
			if err != nil {
				return nil, fmt.Errorf("%s %q cannot be read: %w", bucket, key, err)
			}
			if err := fitting.add(bucket, key, v); err != nil {
				return nil, fmt.Errorf("%s %q does not fit with the rest: %w", bucket, key, err)
			}
		}
		counts[bucket] = len(d.Documents[bucket])
	}
	for i, doc := range d.History {
		if _, err := read(state.History, "", doc); err != nil {
			return nil, fmt.Errorf("event %d of its history cannot be read: %w", i+1, err)
		}
	}
	counts[state.History] = len(d.History)
	return counts, nil
}

// Pull asks the agent for the whole state.
func (c *Client) Pull(ctx context.Context) (*StateDocument, error) {
	return ask[StateDocument](ctx, c, "pull", nil)
}
