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
	opDelete  Op = "delete"  // a whole sandbox, network or volume; the record goes last
	opNetwork Op = "network" // make or mend a network
	opVolume  Op = "volume"  // make a volume
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

// begin makes the intent durable together with w, which may be nil.
func (e *Engine) begin(in Intent, w *write) (*Intent, error) {
	if w == nil {
		w = &write{}
	}
	in.At, in.By = e.now(), e.by
	w.begin = &in
	if err := e.commit(w); err != nil {
		return nil, fmt.Errorf("cannot record the intent to %s %s: %w", in.Op, in.Address, err)
	}
	failpoint("journal." + string(in.Op) + ".begun")
	return &in, nil
}

// end commits the outcome with the records that it changes.
func (e *Engine) end(in *Intent, w *write) error {
	failpoint("journal." + string(in.Op) + ".ending")
	if w == nil {
		w = &write{}
	}
	w.finish = append(w.finish, in.Seq)
	if err := e.commit(w); err != nil {
		return fmt.Errorf("%s of %s happened but cannot be recorded: %w; the next run will look at the host and continue", in.Op, in.Address, err)
	}
	failpoint("journal." + string(in.Op) + ".ended")
	return nil
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
func (e *Engine) recover(ctx context.Context) error {
	open, err := e.openIntents()
	if err != nil {
		return err
	}
	for i := range open {
		in := &open[i]
		e.log.Info("recovering", "op", in.Op, "address", in.Address, "begun", in.At)
		if err := e.recoverOne(ctx, in); err != nil {
			// It stays in the journal; the next pass tries again. One resource that
			// cannot be recovered must not keep all others from being served.
			e.log.Warn("recovery must wait", "op", in.Op, "address", in.Address, "error", err)
		}
	}
	return nil
}

func (e *Engine) recoverOne(ctx context.Context, in *Intent) error {
	if in.Kind != "sandbox" {
		// Networks and volumes: makes are repeated by the plan (their record says
		// Made false), deletes are planned again while the record stands.
		return e.end(in, nil)
	}
	rec, ok := e.sandbox(in.Address)
	if !ok || rec.UID != in.UID {
		// The record is gone or another: only the intent's own instance is ours.
		if in.Instance != "" && (in.Op == opCreate || in.Op == opRemove || in.Op == opDelete) {
			if err := e.host.Remove(ctx, in.Instance); err != nil {
				return err
			}
		}
		return e.end(in, nil)
	}
	switch in.Op {
	case opCreate:
		return e.undoCreate(ctx, in, rec)
	case opStop:
		if rec.Instance == nil || rec.Instance.ID != in.Instance {
			return e.end(in, nil)
		}
		return e.finishStop(ctx, in, rec, 0)
	case opDelete:
		return e.finishDelete(ctx, in, rec)
	case opRemove:
		return e.finishRemove(ctx, in, rec)
	default:
		return e.end(in, nil)
	}
}

// undoCreate takes back a create that did not finish. A writable layer that was
// already carried over into the new instance is kept and becomes the one to
// carry from; a fresh one goes.
func (e *Engine) undoCreate(ctx context.Context, in *Intent, rec *plan.Sandbox) error {
	if rec.Instance != nil && rec.Instance.ID == in.Instance {
		return e.end(in, nil) // it had finished
	}
	if rec.CarryFrom != "" && rec.CarryFrom != in.Instance {
		seen, there, err := e.host.Inspect(ctx, in.Instance)
		if err != nil {
			return err
		}
		if there && seen.Layer {
			if _, err := e.host.Stop(ctx, in.Instance, runtime.StopOptions{}); err != nil && !errors.Is(err, runtime.ErrNotFound) {
				return err
			}
			rec.Doomed = appendOnce(rec.Doomed, rec.CarryFrom)
			rec.CarryFrom = in.Instance
			return e.end(in, (&write{}).sandbox(rec))
		}
	}
	if err := e.host.Remove(ctx, in.Instance); err != nil {
		return err
	}
	return e.end(in, nil)
}

func appendOnce(list []string, s string) []string {
	if s == "" || slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}
