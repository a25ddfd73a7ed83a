// Package reconcile is the engine: it makes the host match what was declared.
//
// Data flows one way. A configuration and the records become, with one look at
// the host, a plan (package plan, pure); the executor runs the plan's changes in
// lanes, one per resource, each step journalled before the host is touched and
// recorded with its outcome in one transaction. Operator verbs and the agent use
// the same steps. The command line reaches it through Service, in its own
// process or through the agent's socket.
package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
	"pinfold/runtime"
	"pinfold/state"
)

// Engine owns one state file and one host. It implements Service.
type Engine struct {
	store    state.Store
	host     runtime.Host
	settings config.Settings
	log      hclog.Logger
	now      func() time.Time
	by       string // who acts: "apply", "agent": the journal and history name it
	readOnly bool   // opened for looking: nothing may be stored

	info ServiceStatus

	mu      sync.Mutex // guards records and alloc
	records plan.Records
	alloc   *allocator

	lanes lanes
	turn  turn // one apply at a time

	choosing sync.Mutex // held while a network chooses its range
	execs    execs      // open sessions
	activity activity   // uses that no record says yet
	news     news
	renewing sync.Map // sandbox addresses whose lease access is just renewing
	waking   sync.Map // and those that bytes on a connection are just waking

	background sync.WaitGroup // what goes on beside calls
	blocks     blocks         // what sandboxes' documents leave out
	notes      notes          // what lies beside instances, for a rebuild

	complaints complaints

	// open are intents of this process whose end could not be recorded, by the
	// sandbox's uid: the next intent of the same sandbox ends them. unrecovered
	// are those of dead processes that could not be finished or undone yet.
	openMu      sync.Mutex
	open        map[string][]uint64
	latest      map[string]uint64 // the newest intent that this process began, by sandbox uid
	unrecovered []Intent
	recovered   bool     // what dead processes left was looked at
	found       []Orphan // half-made by them, until a gc tells of it; guarded by mu

	// nudge makes the agent look again at these addresses, or at everything when
	// none is named; nil without an agent.
	nudge func(addresses ...string)
	// relay serves published ports and probes asks processes how they are; nil
	// without an agent.
	relay  *ports
	probes *probes
	// following is the directory an agent follows; see follow.go.
	following *follower
}

// EngineOptions assemble an Engine from its parts.
type EngineOptions struct {
	Store    state.Store
	Host     runtime.Host
	Settings config.Settings
	Log      hclog.Logger     // nil: discarded
	Now      func() time.Time // nil: time.Now
	By       string
	ReadOnly bool
	Status   ServiceStatus
}

// NewEngine loads the records, finishes or undoes what a crashed process left
// begun (unless read-only), and is then ready.
func NewEngine(ctx context.Context, o EngineOptions) (*Engine, error) {
	e := &Engine{
		store: storeWithPoints(o.Store), host: hostWithPoints(o.Host), settings: o.Settings, log: o.Log, now: o.Now,
		by: o.By, readOnly: o.ReadOnly, info: o.Status,
		open: map[string][]uint64{}, latest: map[string]uint64{},
	}
	if e.log == nil {
		e.log = hclog.NewNullLogger()
	}
	if e.now == nil {
		e.now = time.Now
	}
	if e.by == "" {
		e.by = byApply
	}
	e.blocks.box = seal.In(filepath.Dir(o.Store.Path()))
	e.info.Lineage = e.store.Lineage()
	e.lanes.now = e.now
	err := e.load()
	if err != nil {
		return nil, err
	}
	for _, rec := range e.records.Sandboxes {
		if i := rec.Instance; live(rec) && i.PID != 0 {
			e.host.Recall(i.ID, runtime.Process{PID: i.PID, StartTime: i.StartTime, BootID: i.BootID}, runtime.Mark{UID: rec.UID, Address: rec.Address})
		}
		e.recallDeposed(rec)
	}
	e.turn.init(e.now)
	if !e.readOnly {
		if err := e.sweepBlocks(); err != nil {
			e.log.Warn("what no sandbox stands on any more stays in the state", "error", err)
		}
		if e.found, err = e.halfMade(ctx); err != nil {
			e.log.Warn("cannot tell what was left half-made", "error", err)
		}
		if err := e.as(e.by).recover(ctx); err != nil {
			return nil, err
		}
		e.recovered = true
	}
	return e, nil
}

// actor is the engine on behalf of one who acts: apply, agent or operator. All
// that changes host and records is a method of it, so that journal and history
// name who it was.
type actor struct {
	*Engine
	by string
}

func (e *Engine) as(by string) *actor { return &actor{Engine: e, by: by} }

// Close lets go of store and host; sandboxes live on.
func (e *Engine) Close() error {
	var errs []error
	e.background.Wait()
	if e.host != nil {
		errs = append(errs, e.host.Close())
	}
	return errors.Join(append(errs, e.store.Close())...)
}

// Status tells who serves.
func (e *Engine) Status(context.Context) (*ServiceStatus, error) {
	st := e.info
	if e.following != nil {
		st.Following = e.following.dir
	}
	return &st, nil
}

// load reads all records into memory. The Engine is the file's only writer, so
// memory stays true.
func (e *Engine) load() error {
	r := plan.Records{
		Lineage:   e.store.Lineage(),
		Sandboxes: map[string]*plan.Sandbox{},
		Networks:  map[string]*plan.Network{},
		Volumes:   map[string]*plan.Volume{},
		Images:    map[string]*plan.Image{},
		Outputs:   map[string]*config.Output{},
		Ended:     map[string]*plan.Ended{},
	}
	var decode []func() error
	e.blocks.known = map[string]*block{}
	err := e.store.View(func(tx state.Tx) error {
		r.Serial = tx.Serial()
		var err error
		if r.Cycles, err = loadCycles(tx); err != nil {
			return err
		}
		return errors.Join(
			loadBlocks(tx, &e.blocks),
			loadSandboxes(tx, r.Sandboxes, &e.blocks, &decode),
			loadBucket(tx, state.Networks, r.Networks, &decode),
			loadBucket(tx, state.Volumes, r.Volumes, &decode),
			loadBucket(tx, state.Images, r.Images, &decode),
			loadOutputs(tx, r.Outputs, e.blocks.box, &decode),
			loadBucket(tx, state.Ended, r.Ended, &decode),
		)
	})
	if err != nil {
		return err
	}
	if err := side(decode); err != nil {
		return err
	}
	e.records = r
	e.alloc = newAllocator(&r)
	return nil
}

// loadBucket reads a bucket's documents into new records, which decode fills.
func loadBucket[T any](tx state.Tx, bucket string, into map[string]*T, decode *[]func() error) error {
	return tx.Each(bucket, func(key string, doc []byte) error {
		v := new(T)
		into[key] = v
		*decode = append(*decode, func() error { return unreadable(bucket, key, json.Unmarshal(doc, v)) })
		return nil
	})
}

// loadSandboxes is loadBucket for sandboxes, whose blocks are known by the time
// that decode runs.
func loadSandboxes(tx state.Tx, into map[string]*plan.Sandbox, x *blocks, decode *[]func() error) error {
	return tx.Each(state.Sandboxes, func(key string, doc []byte) error {
		v := new(plan.Sandbox)
		into[key] = v
		*decode = append(*decode, func() error { return unreadable(state.Sandboxes, key, x.decode(doc, v)) })
		return nil
	})
}

func loadOutputs(tx state.Tx, into map[string]*config.Output, box *seal.Box, decode *[]func() error) error {
	return tx.Each(state.Outputs, func(key string, doc []byte) error {
		v := new(config.Output)
		into[key] = v
		*decode = append(*decode, func() error { return unreadable(state.Outputs, key, decodeOutput(box, doc, v)) })
		return nil
	})
}

func loadBlocks(tx state.Tx, x *blocks) error {
	return tx.Each(state.Blocks, func(key string, doc []byte) error {
		var s storedBlock
		err := json.Unmarshal(doc, &s)
		if err == nil {
			x.known[key], err = blockOf(s, x.box)
			x.known[key].stored = true
		}
		return unreadable(state.Blocks, key, err)
	})
}

func unreadable(bucket, key string, err error) error {
	if err != nil && !errors.Is(err, seal.ErrKeyFile) { // that one says what is to be done
		err = fmt.Errorf("state %s: document %q cannot be read: %w; pinfold state verify tells all that is wrong, pinfold state restore puts a backup back", bucket, key, err)
	}
	return err
}

// side runs the list on all processors, cut into even parts, and returns the
// errors.
func side(list []func() error) error {
	parts := goruntime.GOMAXPROCS(0)
	errs := make([]error, parts)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			for _, do := range list[i*len(list)/parts : (i+1)*len(list)/parts] {
				errs[i] = errors.Join(errs[i], do())
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// snapshot is the records as they are now, safe to read while lanes go on:
// records are replaced, never changed in place.
func (e *Engine) snapshot() plan.Records {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.records
	r.Sandboxes = clone(r.Sandboxes)
	r.Networks = clone(r.Networks)
	r.Volumes = clone(r.Volumes)
	r.Images = clone(r.Images)
	r.Outputs = clone(r.Outputs)
	r.Ended = clone(r.Ended)
	return r
}

func clone[K comparable, V any](m map[K]V) map[K]V {
	c := make(map[K]V, len(m))
	for k, v := range m {
		c[k] = v
	}
	return c
}

// sandbox is the record of one address, a copy the caller may change and commit.
func (e *Engine) sandbox(address string) (*plan.Sandbox, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, ok := e.records.Sandboxes[address]
	if !ok {
		return nil, false
	}
	return copySandbox(r), true
}

// current is the record itself. Records are replaced and never changed, so the
// same pointer later means that nothing was recorded in between. nil: none.
func (e *Engine) current(address string) *plan.Sandbox {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.records.Sandboxes[address]
}

// copySandbox copies everything a step may change; specs are replaced whole and
// stay shared.
func copySandbox(r *plan.Sandbox) *plan.Sandbox {
	c := *r
	if r.Instance != nil {
		i := *r.Instance
		c.Instance = &i
	}
	if r.Hold != nil {
		h := *r.Hold
		c.Hold = &h
	}
	if r.Expired != nil {
		x := *r.Expired
		c.Expired = &x
	}
	if r.Net != nil {
		n := *r.Net
		c.Net = &n
	}
	c.Ports = clone(r.Ports)
	c.Claim = clone(r.Claim)
	c.Doomed = append([]string(nil), r.Doomed...)
	c.Deposed = slices.Clone(r.Deposed) // what they hold is never changed
	c.Conditions = append([]plan.Condition(nil), r.Conditions...)
	return &c
}
