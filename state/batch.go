package state

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// Group commit. A commit costs two syncs of the disk, whatever its size. So one
// goroutine, the writer, commits at once what is waiting, and whoever arrives
// while it does so is in the next commit. A lone caller waits for nobody.
//
// The writer owns the transaction and hands it to the callers in the order of
// their arrival; each runs its own function in its own goroutine, where its panics
// and its runtime.Goexit belong.

// maxBatch bounds what one commit keeps in memory.
const maxBatch = 256

// call is one Update.
type call struct {
	turn chan *tx   // the writer hands the transaction over; closed with the answer
	ran  chan error // the caller hands it back
	err  error      // the answer
}

// errVanished stands for a function that panicked or left by runtime.Goexit: its
// caller is unwinding and waits for no answer.
var errVanished = errors.New("the function did not return")

func (s *store) Update(fn func(Tx) error) error {
	if s.readOnly {
		return fmt.Errorf("cannot change state %s: %w", s.path, ErrReadOnly)
	}
	c := &call{turn: make(chan *tx), ran: make(chan error)}
	if !s.queue.put(c) {
		return fmt.Errorf("cannot change state %s: %w", s.path, ErrClosed)
	}
	for t := range c.turn {
		c.take(t, fn)
	}
	return c.err
}

// take runs fn and hands the transaction back, even when fn does not return.
func (c *call) take(t *tx, fn func(Tx) error) {
	err := errVanished
	defer func() { c.ran <- err }()
	err = t.run(fn)
}

func (c *call) answer(err error) {
	c.err = err
	close(c.turn)
}

func (s *store) startWriter() {
	s.queue.cond.L = &s.queue.mu
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		for batch := s.queue.take(); batch != nil; batch = s.queue.take() {
			s.commit(batch)
		}
	}()
}

// commit runs the calls and answers each, with as few commits as it can. The
// effect is that of running them one by one in their order.
func (s *store) commit(batch []*call) {
	for len(batch) > 0 {
		ok := 0 // how many ran well before one failed
		var failed error
		err := s.transact(func(b *bolt.Tx) error {
			for _, c := range batch {
				c.turn <- &tx{store: s, bolt: b}
				if failed = <-c.ran; failed != nil {
					return failed
				}
				ok++
			}
			return nil
		})
		switch {
		case failed == nil:
			for _, c := range batch {
				c.answer(err)
			}
			return
		case failed == errVanished:
			batch = slices.Delete(slices.Clone(batch), ok, ok+1)
		case ok == 0: // it saw nothing but committed state: its error is true
			batch[0].answer(failed)
			batch = batch[1:]
		default: // it may have failed for what the ones before it had not committed yet
			s.commit(batch[:ok])
			batch = batch[ok:]
		}
	}
}

// queue holds calls until the writer takes them.
type queue struct {
	mu     sync.Mutex
	cond   sync.Cond
	calls  []*call
	closed bool
}

func (q *queue) put(c *call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.calls = append(q.calls, c)
	q.cond.Signal()
	return true
}

// take waits for calls and returns them; nil when the queue is closed and empty.
func (q *queue) take() []*call {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.calls) == 0 && !q.closed {
		q.cond.Wait()
	}
	// Those whose calls were just answered may be about to call again: let them
	// run as long as calls keep coming. It takes microseconds.
	for n := 0; n < len(q.calls) && len(q.calls) < maxBatch; {
		n = len(q.calls)
		q.mu.Unlock()
		runtime.Gosched()
		q.mu.Lock()
	}
	n := min(len(q.calls), maxBatch)
	batch := q.calls[:n:n]
	q.calls = slices.Clone(q.calls[n:])
	if n == 0 {
		return nil
	}
	return batch
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.cond.Signal()
}
