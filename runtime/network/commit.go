package network

import (
	"errors"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

// change is elements to remove from and to add to the sets, in this order. Adding
// what is there and removing what is not are no errors; adding a key that has
// another value is EBUSY.
type change struct {
	remove []member
	add    []member
}

// member is an element of a set.
type member struct {
	set *nftables.Set
	nftables.SetElement
}

// maxBatch bounds how many changes share a transaction. Beyond about a hundred a
// transaction's time grows faster than its size.
const maxBatch = 100

// commits gathers changes that are asked for at the same time into one transaction
// each: a transaction costs milliseconds, an element in it microseconds.
type commits struct {
	write func(change) error // one transaction

	mu      sync.Mutex
	waiting []pending
	working bool
}

type pending struct {
	change change
	done   chan<- error
}

// apply returns when c is in the kernel, or with the error that c itself met.
func (q *commits) apply(c change) error {
	if len(c.add) == 0 && len(c.remove) == 0 {
		return nil
	}
	done := make(chan error, 1)
	q.mu.Lock()
	q.waiting = append(q.waiting, pending{c, done})
	if !q.working {
		q.working = true
		go q.work()
	}
	q.mu.Unlock()
	return <-done
}

// work writes what waits until nothing does.
func (q *commits) work() {
	for {
		q.mu.Lock()
		batch := q.waiting[:min(len(q.waiting), maxBatch)]
		q.waiting = q.waiting[len(batch):]
		if len(batch) == 0 {
			q.waiting, q.working = nil, false
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		q.settle(batch)
	}
}

func (q *commits) settle(batch []pending) {
	var whole change
	for _, p := range batch {
		whole.remove = append(whole.remove, p.change.remove...)
		whole.add = append(whole.add, p.change.add...)
	}
	if len(batch) > 1 {
		if q.write(whole) == nil {
			for _, p := range batch {
				p.done <- nil
			}
			return
		}
		// Nothing was written. One of them is at fault; let each meet its own error.
	}
	for _, p := range batch {
		p.done <- q.alone(p.change)
	}
}

// alone writes one change, whatever of it is already gone.
func (q *commits) alone(c change) error {
	err := q.write(c)
	if !errors.Is(err, unix.ENOENT) || len(c.remove) == 0 {
		return err
	}
	for _, m := range c.remove {
		if err := q.write(change{remove: []member{m}}); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		failpoint.Hit("network.elements.part")
	}
	if len(c.add) == 0 {
		return nil
	}
	return q.write(change{add: c.add})
}

// write sends a change in one transaction.
func (r *rules) write(c change) error {
	return r.nf.transaction(func(conn *nftables.Conn) error {
		for _, s := range r.sets.all() {
			if e := of(s, c.remove); len(e) > 0 {
				if err := conn.SetDeleteElements(s, e); err != nil {
					return err
				}
			}
		}
		for _, s := range r.sets.all() {
			if e := of(s, c.add); len(e) > 0 {
				if err := conn.SetAddElements(s, e); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// of returns the elements of ms that belong to s.
func of(s *nftables.Set, ms []member) []nftables.SetElement {
	var out []nftables.SetElement
	for _, m := range ms {
		if m.set == s {
			out = append(out, m.SetElement)
		}
	}
	return out
}
