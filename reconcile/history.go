package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"pinfold/config"
	"pinfold/state"
)

// EventsRequest asks for what happened.
type EventsRequest struct {
	Address string    `json:"address,omitempty"` // of one sandbox only, also one that is no more; with what it was called before
	Types   []string  `json:"types,omitempty"`   // of these types only
	Since   time.Time `json:"since,omitzero"`
	After   uint64    `json:"after,omitempty"` // with a greater Seq
	Last    int       `json:"last,omitempty"`  // the newest so many; 0: all that are kept
	// Wait is how long to wait for the first one when there is none; without an
	// agent nothing can come meanwhile, and the answer is at once.
	Wait time.Duration `json:"wait,omitempty"`
}

// EventsResult is `events -json`. Events are in the order in which they happened.
type EventsResult struct {
	FormatVersion string  `json:"format_version"`
	Events        []Event `json:"events"`
	// Next is the After that asks for what comes later.
	Next uint64 `json:"next"`
}

// Events tells what happened, from a store that keeps the newest 10,000.
func (e *Engine) Events(ctx context.Context, r EventsRequest) (*EventsResult, error) {
	if r.Address != "" {
		address, err := e.resolve(r.Address)
		var failed *Error
		_, bare := config.ParseAddress(r.Address)
		switch {
		case err == nil:
			r.Address = address
		case errors.As(err, &failed) && failed.Kind == Invalid: // several have that name
			return nil, err
		case bare != nil: // the short name of what is no more
			r.Address = "sandbox." + r.Address
		}
	}
	var timeout <-chan time.Time
	if r.Wait > 0 && e.nudge != nil {
		t := time.NewTimer(min(r.Wait, time.Minute))
		defer t.Stop()
		timeout = t.C
	}
	for {
		news := e.news.wait()
		res, err := e.events(r)
		if err != nil {
			return nil, errorOf(err)
		}
		if len(res.Events) > 0 || timeout == nil {
			return res, nil
		}
		select {
		case <-news:
		case <-timeout:
			return res, nil
		case <-ctx.Done():
			return nil, &Error{Kind: Interrupted, Message: "interrupted while waiting for events"}
		}
	}
}

func (e *Engine) events(r EventsRequest) (*EventsResult, error) {
	res := &EventsResult{FormatVersion: "1", Events: []Event{}, Next: r.After}
	var mark, own []byte // every event of the address contains one of them
	var uid string
	if r.Address != "" {
		mark, _ = json.Marshal(r.Address)
		own = mark
		if rec := e.current(r.Address); rec != nil { // also what was before it came to this address
			uid = rec.UID
			own, _ = json.Marshal(uid)
		}
	}
	err := e.store.View(func(tx state.Tx) error {
		return tx.Each(state.History, func(key string, doc []byte) error {
			seq := state.SeqOf(key)
			if seq <= r.After {
				return nil
			}
			res.Next = seq
			if !bytes.Contains(doc, mark) && !bytes.Contains(doc, own) {
				return nil
			}
			var ev Event
			if err := json.Unmarshal(doc, &ev); err != nil {
				return err
			}
			if (r.Address != "" && ev.Address != r.Address && (uid == "" || ev.UID != uid)) || (len(r.Types) > 0 && !slices.Contains(r.Types, ev.Type)) || ev.At.Before(r.Since) {
				return nil
			}
			ev.Seq = seq
			res.Events = append(res.Events, ev)
			return nil
		})
	})
	if r.Last > 0 && len(res.Events) > r.Last {
		res.Events = res.Events[len(res.Events)-r.Last:]
	}
	return res, err
}

// news wakes those who wait for events. The zero value is ready to use.
type news struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that is closed at the next event.
func (n *news) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *news) spread() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}
