package reconcile

import (
	"cmp"
	"encoding/json"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/state"
)

// historyKeep bounds the history: events beyond it are dropped, oldest first.
const historyKeep = 10_000

// write collects what one transaction stores. A nil record deletes. The zero
// value is ready to use.
type write struct {
	sandboxes map[string]*plan.Sandbox
	networks  map[string]*plan.Network
	volumes   map[string]*plan.Volume
	images    map[string]*plan.Image
	outputs   map[string]*config.Output
	ended     map[string]*plan.Ended
	meta      map[string]string
	cycles    *[]string         // plan.Records.Cycles from now on; nil: as they are
	renamed   map[string]string // new addresses of records, by the old ones: what is kept by address follows
	events    []Event
	begin     *Intent  // becomes durable with the records; its Seq is set
	finish    []uint64 // intents that are over
	bump      bool     // spec, instance or hold changed
	by        string   // who acts, for events that do not say
}

func (w *write) sandbox(r *plan.Sandbox) *write {
	set(&w.sandboxes, r.Address, r)
	return w
}

func (w *write) event(ev Event) *write {
	w.events = append(w.events, ev)
	return w
}

func set[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[k] = v
}

// commit is Engine.commit in the actor's name.
func (e *actor) commit(w *write) error {
	w.by = e.by
	return e.Engine.commit(w)
}

// commit makes w durable and then true in memory. When it fails nothing has
// changed. Records handed over belong to the engine from then on.
func (e *Engine) commit(w *write) error {
	for _, rec := range w.sandboxes {
		if rec != nil && w.renamed == nil { // by what address it was used, a renaming knows
			rec.LastActivity = e.lastUse(rec)
		}
	}
	docs := make([]document, 0, 4)
	for _, err := range []error{
		encodeSandboxes(&docs, &e.blocks, w.sandboxes),
		encode(&docs, state.Networks, w.networks),
		encode(&docs, state.Volumes, w.volumes),
		encode(&docs, state.Images, w.images),
		encodeOutputs(&docs, e.blocks.box, w.outputs),
		encode(&docs, state.Ended, w.ended),
	} {
		if err != nil {
			return err
		}
	}
	events := make([][]byte, len(w.events))
	for i := range w.events {
		if w.events[i].At.IsZero() {
			w.events[i].At = e.now()
		}
		if w.events[i].By == "" {
			w.events[i].By = cmp.Or(w.by, e.by)
		}
		b, err := json.Marshal(w.events[i])
		if err != nil {
			return err
		}
		events[i] = b
	}
	var intent []byte
	if w.begin != nil {
		b, err := json.Marshal(w.begin)
		if err != nil {
			return err
		}
		intent = b
	}
	if w.cycles != nil {
		list, err := json.Marshal(*w.cycles)
		if err != nil {
			return err
		}
		set(&w.meta, metaCycles, string(list))
	}
	var serial uint64
	err := e.store.Update(func(tx state.Tx) error {
		for _, d := range docs {
			if d.doc == nil {
				if err := tx.Delete(d.bucket, d.key); err != nil {
					return err
				}
			} else if err := tx.Put(d.bucket, d.key, d.doc); err != nil {
				return err
			}
		}
		for k, v := range w.meta {
			if err := tx.SetMeta(k, v); err != nil {
				return err
			}
		}
		for _, seq := range w.finish {
			if err := tx.Delete(state.Journal, state.SeqKey(seq)); err != nil {
				return err
			}
		}
		if intent != nil {
			seq, err := tx.Append(state.Journal, intent)
			if err != nil {
				return err
			}
			w.begin.Seq = seq
		}
		for _, ev := range events {
			seq, err := tx.Append(state.History, ev)
			if err != nil {
				return err
			}
			if seq%256 == 0 {
				if err := tx.Trim(state.History, historyKeep); err != nil {
					return err
				}
			}
		}
		if w.bump {
			if err := tx.Bump(); err != nil {
				return err
			}
		}
		serial = tx.Serial()
		return nil
	})
	if err != nil {
		return err
	}
	e.blocks.committed(docs)
	e.remembered(w, serial)
	if w.renamed != nil {
		e.followRenaming(w.renamed)
	}
	e.note(w.sandboxes)
	if len(events) > 0 {
		e.news.spread()
	}
	if e.relay != nil {
		for address, rec := range w.sandboxes {
			e.relay.follow(address, rec)
		}
	}
	return nil
}

// remembered makes w true in memory.
func (e *Engine) remembered(w *write, serial uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.records.Serial = max(e.records.Serial, serial)
	remember(e.records.Sandboxes, w.sandboxes)
	remember(e.records.Networks, w.networks)
	remember(e.records.Volumes, w.volumes)
	remember(e.records.Images, w.images)
	remember(e.records.Outputs, w.outputs)
	remember(e.records.Ended, w.ended)
	if w.cycles != nil {
		e.records.Cycles = *w.cycles
	}
	e.alloc.took(w)
}

type document struct {
	bucket, key string
	doc         []byte
}

func encodeSandboxes(docs *[]document, x *blocks, m map[string]*plan.Sandbox) error {
	for k, v := range m {
		d := document{bucket: state.Sandboxes, key: k}
		if v != nil {
			var err error
			if d.doc, err = x.encode(v, docs); err != nil {
				return err
			}
		}
		*docs = append(*docs, d)
	}
	return nil
}

func encode[T any](docs *[]document, bucket string, m map[string]*T) error {
	for k, v := range m {
		d := document{bucket: bucket, key: k}
		if v != nil {
			b, err := json.Marshal(v)
			if err != nil {
				return err
			}
			d.doc = b
		}
		*docs = append(*docs, d)
	}
	return nil
}

func remember[T any](into map[string]*T, from map[string]*T) {
	for k, v := range from {
		if v == nil {
			delete(into, k)
		} else {
			into[k] = v
		}
	}
}

// history returns the last n events, oldest first, those of one address only
// when it is not empty.
func (e *Engine) history(address string, n int) ([]Event, error) {
	res, err := e.events(EventsRequest{Address: address, Last: n})
	return res.Events, err
}
