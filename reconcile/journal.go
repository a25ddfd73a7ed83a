package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/state"
)

// Op names what an intent is about to do to the host.
type Op string

const (
	opCreate  Op = "create"  // a new instance; its id is in the intent
	opStart   Op = "start"   // a process in the recorded instance, made ready first when it is stopped
	opStop    Op = "stop"    // take the process down; Why tells for what
	opPause   Op = "pause"   // freeze
	opResume  Op = "resume"  // thaw
	opUpdate  Op = "update"  // limits, ports
	opRepair  Op = "repair"  // re-make missing host objects
	opRemove  Op = "remove"  // instances of a sandbox that are doomed
	opRetire  Op = "retire"  // a deposed instance; its id is in the intent
	opDelete  Op = "delete"  // a whole sandbox, network or volume; the record goes last
	opNetwork Op = "network" // make or mend a network
	opVolume  Op = "volume"  // make a volume
	opKill    Op = "kill"    // a signal to the command; Why is its name
	opForget  Op = "forget"  // give a sandbox up: mark what is on the host, then drop the record
)

// Intent is what was begun: durable before the host is touched, gone with the
// transaction that records the outcome. One that is found at start belongs to a
// process that died in the middle.
type Intent struct {
	Seq      uint64    `json:"-"`
	Op       Op        `json:"op"`
	Kind     string    `json:"kind"` // sandbox, network, volume
	Address  string    `json:"address"`
	UID      string    `json:"uid,omitempty"`
	Instance string    `json:"instance,omitempty"`
	Why      string    `json:"why,omitempty"` // stop: becomes stopped_by; delete: the tombstone's reason
	By       string    `json:"by"`
	At       time.Time `json:"at"`
}

// intent is one of a sandbox, about its recorded instance if it has one.
func intent(op Op, rec *plan.Sandbox) Intent {
	in := Intent{Op: op, Kind: "sandbox", Address: rec.Address, UID: rec.UID}
	if rec.Instance != nil {
		in.Instance = rec.Instance.ID
	}
	return in
}

// begin makes the intent durable together with w, which may be nil.
func (e *actor) begin(in Intent, w *write) (*Intent, error) {
	if w == nil {
		w = &write{}
	}
	in.At, in.By = e.now(), e.by
	w.begin = &in
	left := e.leftOpen(in.UID)
	w.finish = append(w.finish, left...)
	if err := e.commit(w); err != nil {
		return nil, fmt.Errorf("cannot record the intent to %s %s: %w", in.Op, in.Address, err)
	}
	e.ended(in.UID, left...)
	e.openMu.Lock()
	e.latest[in.UID] = max(e.latest[in.UID], in.Seq)
	e.openMu.Unlock()
	return &in, nil
}

// end commits the outcome with the records that it changes.
func (e *actor) end(in *Intent, w *write) error {
	if w == nil {
		w = &write{}
	}
	w.finish = append(w.finish, in.Seq)
	if err := e.commit(w); err != nil {
		e.notEnded(in)
		return fmt.Errorf("%s of %s happened but cannot be recorded: %w; the next run will look at the host and continue", in.Op, in.Address, err)
	}
	return nil
}

// next is end and begin in one transaction.
func (e *actor) next(in *Intent, w *write, then Intent) (*Intent, error) {
	w.finish = append(w.finish, in.Seq)
	begun, err := e.begin(then, w)
	if err != nil {
		e.notEnded(in)
		return nil, fmt.Errorf("%s of %s happened but cannot be recorded: %w; the next run will look at the host and continue", in.Op, in.Address, err)
	}
	return begun, nil
}

func (e *Engine) leftOpen(uid string) []uint64 {
	e.openMu.Lock()
	defer e.openMu.Unlock()
	return slices.Clone(e.open[uid])
}

func (e *Engine) ended(uid string, seqs ...uint64) {
	e.openMu.Lock()
	defer e.openMu.Unlock()
	left := slices.DeleteFunc(e.open[uid], func(s uint64) bool { return slices.Contains(seqs, s) })
	if len(left) == 0 {
		delete(e.open, uid)
	} else {
		e.open[uid] = left
	}
}

// notEnded remembers an intent that stays in the journal though its work is
// over, so that it does not outlive the next one of the same sandbox: found
// after a crash much later, it would be carried out on what is no longer so.
func (e *Engine) notEnded(in *Intent) {
	e.openMu.Lock()
	defer e.openMu.Unlock()
	e.open[in.UID] = append(e.open[in.UID], in.Seq)
}

// openIntents are those that no process finished, oldest first.
func (e *Engine) openIntents() ([]Intent, error) {
	var all []Intent
	err := e.store.View(func(tx state.Tx) error {
		return tx.Each(state.Journal, func(key string, doc []byte) error {
			var in Intent
			if err := json.Unmarshal(doc, &in); err != nil {
				return fmt.Errorf("journal entry cannot be read: %w", err)
			}
			for _, b := range []byte(key) {
				in.Seq = in.Seq<<8 | uint64(b)
			}
			all = append(all, in)
			return nil
		})
	})
	return all, err
}

// recover finishes or undoes what a crashed process left begun: a half-made
// create is undone, a stop and a delete are finished, for everything else the
// next look at the host tells how far it came and the planner goes on from there.
// Then it removes what earlier steps could not.
func (e *actor) recover(ctx context.Context) error {
	open, err := e.openIntents()
	if err != nil {
		return err
	}
	e.recoverAll(ctx, open)
	e.sweepAll(ctx)
	return nil
}

// recoverAgain is for what recover could not do at start.
func (e *actor) recoverAgain(ctx context.Context) {
	e.openMu.Lock()
	open := e.unrecovered
	e.unrecovered = nil
	e.openMu.Unlock()
	e.recoverAll(ctx, open)
}

func (e *actor) recoverAll(ctx context.Context, open []Intent) {
	for i := range open {
		in := &open[i]
		err := error(errBusyLane)
		address := in.Address
		if rec, ok := e.sandboxOf(in); ok && in.Kind == "sandbox" {
			address = rec.Address
		}
		if release, holder := e.lanes.try(address, "recover", e.by); holder == nil {
			e.log.Info("recovering", "op", in.Op, "address", in.Address, "begun", in.At)
			err = e.recoverOne(ctx, in)
			release()
		}
		if err != nil {
			// It stays in the journal and is tried again. One resource that cannot be
			// recovered must not keep all others from being served.
			e.log.Warn("recovery must wait", "op", in.Op, "address", in.Address, "error", err)
			e.openMu.Lock()
			e.unrecovered = append(e.unrecovered, *in)
			e.openMu.Unlock()
		}
	}
}

var errBusyLane = errors.New("something else is under way on it")

// superseded reports whether this process has begun something newer with the
// same sandbox: an older stop, say, must not end what was started since. A create
// stays to be undone, for only its intent knows the instance.
func (e *Engine) superseded(in *Intent) bool {
	e.openMu.Lock()
	defer e.openMu.Unlock()
	return in.Op != opCreate && e.latest[in.UID] > in.Seq
}

func (e *actor) recoverOne(ctx context.Context, in *Intent) error {
	if in.Kind == "sandbox" && e.superseded(in) {
		return e.end(in, nil)
	}
	if in.Kind != "sandbox" {
		// Networks and volumes: makes are repeated by the plan (their record says
		// Made false, or still holds the old spec), deletes are planned again while
		// the record stands.
		return e.end(in, nil)
	}
	rec, ok := e.sandboxOf(in)
	if !ok {
		// The record is gone or another: only the intent's own instance is ours.
		if in.Instance != "" && (in.Op == opCreate || in.Op == opRemove || in.Op == opRetire || in.Op == opDelete) {
			if err := e.host.Remove(ctx, in.Instance); err != nil {
				return err
			}
		}
		return e.end(in, nil)
	}
	same := rec.Instance != nil && rec.Instance.ID == in.Instance
	switch in.Op {
	case opCreate:
		if same {
			return e.end(in, nil) // it had finished
		}
		if rec.DeposedAt(in.Instance) >= 0 { // it was made beside the one that is there
			w := (&write{bump: true}).event(e.eventOf(rec, "error", "replace failed", "cut off before the new instance "+in.Instance+" was ready; it is taken away, the old one stays"))
			return recorded(e.retire(ctx, in, rec, in.Instance, 0, w))
		}
		return e.undoCreate(ctx, in, rec)
	case opStop:
		if !same {
			return e.end(in, nil)
		}
		return recorded(e.finishStop(ctx, in, rec, 0))
	case opDelete:
		return recorded(e.destroyAll(ctx, in, rec, 0))
	case opRetire:
		return recorded(e.retire(ctx, in, rec, in.Instance, 0, nil))
	case opRemove:
		return recorded(e.removeAll(ctx, in, rec, rec.CarryFrom, 0))
	case opUpdate:
		if !same {
			return e.end(in, nil)
		}
		return e.finishUpdate(ctx, in, rec)
	case opKill:
		// Sent or not: a second one could be one too many.
		ev := e.eventOf(rec, "kill", in.Why, "cut off in the middle: it may not have been sent")
		ev.By = in.By
		return e.end(in, (&write{}).event(ev))
	case opForget:
		return recorded(e.finishForget(ctx, in, rec))
	default:
		return e.end(in, nil)
	}
}

// sandboxOf is the record that an intent is about, wherever a move has brought it
// since.
func (e *Engine) sandboxOf(in *Intent) (*plan.Sandbox, bool) {
	if rec, ok := e.sandbox(in.Address); ok && rec.UID == in.UID {
		return rec, true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, rec := range e.records.Sandboxes {
		if rec.UID == in.UID && in.UID != "" {
			return copySandbox(rec), true
		}
	}
	return nil, false
}

// recorded is for steps that close their intent even when they fail, having
// recorded why: the plan meets the failure again.
func recorded(err error) error {
	var failed *stepError
	if errors.As(err, &failed) {
		return nil
	}
	return err
}

// finishUpdate tells the host once more of limits and ports. Where that fails the
// process counts as one of an older generation, which the plan restarts.
func (e *actor) finishUpdate(ctx context.Context, in *Intent, rec *plan.Sandbox) error {
	inst, err := e.instanceOf(rec, in.Instance)
	if err == nil {
		err = e.host.Update(ctx, inst)
	}
	if err == nil || !live(rec) {
		return e.end(in, nil)
	}
	rec.Instance.RunningSpec = rec.Generation - 1
	w := &write{}
	return e.end(in, w.sandbox(rec).event(e.eventOf(rec, "error", "update failed", err.Error())))
}

// undoCreate takes back a create that did not finish. A writable layer that was
// already carried over into the new instance is kept and becomes the one to
// carry from; a fresh one goes. A fresh instance that cannot be removed now is
// doomed: whoever comes next removes it first. Where a carried layer is could
// not be told leaves the intent open, and nothing is made until it can be.
func (e *actor) undoCreate(ctx context.Context, in *Intent, rec *plan.Sandbox) error {
	carried, err := e.carriedOver(ctx, in, rec)
	if err != nil {
		return err
	}
	if carried {
		if _, err := e.host.Stop(ctx, in.Instance, runtime.StopOptions{}); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
		rec.Doomed = appendOnce(rec.Doomed, rec.CarryFrom)
		rec.CarryFrom = in.Instance
	} else if err := e.host.Remove(ctx, in.Instance); err != nil {
		e.log.Warn("a half-made instance cannot be removed yet", "address", rec.Address, "instance", in.Instance, "error", err)
		rec.Doomed = appendOnce(rec.Doomed, in.Instance)
	}
	w := &write{}
	return e.end(in, w.sandbox(copySandbox(rec)))
}

// carriedOver tells whether the layer to be carried over has arrived already.
func (e *Engine) carriedOver(ctx context.Context, in *Intent, rec *plan.Sandbox) (bool, error) {
	if rec.CarryFrom == "" || rec.CarryFrom == in.Instance {
		return false, nil
	}
	made, there, err := e.host.Inspect(ctx, in.Instance)
	if err != nil || !there || !made.Layer {
		return false, err
	}
	old, there, err := e.host.Inspect(ctx, rec.CarryFrom)
	return err == nil && !(there && old.Layer), err
}

// recoverOwn recovers what is still open of one sandbox, whose lane the caller holds.
func (e *actor) recoverOwn(ctx context.Context, rec *plan.Sandbox) (*plan.Sandbox, error) {
	e.openMu.Lock()
	var mine []Intent
	e.unrecovered = slices.DeleteFunc(e.unrecovered, func(in Intent) bool {
		if in.UID == rec.UID {
			mine = append(mine, in)
		}
		return in.UID == rec.UID
	})
	e.openMu.Unlock()
	for i := range mine {
		if err := e.recoverOne(ctx, &mine[i]); err != nil {
			e.openMu.Lock()
			e.unrecovered = append(e.unrecovered, mine[i:]...)
			e.openMu.Unlock()
			return rec, fmt.Errorf("cannot take back what was begun with %s: %w", rec.Address, err)
		}
	}
	if len(mine) > 0 {
		if now, ok := e.sandbox(rec.Address); ok {
			return now, nil
		}
	}
	return rec, nil
}

func appendOnce(list []string, s string) []string {
	if s == "" || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
