package reconcile

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// agentWait bounds how long an operator's verb waits for the agent's own action
// on the same sandbox.
const agentWait = 10 * time.Second

// lanes are one lock per resource address, each knowing who holds it and why,
// so that a refusal can say so.
type lanes struct {
	mu   sync.Mutex
	held map[string]*lane
	now  func() time.Time
}

type lane struct {
	verb  string
	since time.Time
	who   string
	free  chan struct{} // closed at release

	step Op // what is done to the sandbox just now, "" between two steps; see lanes.step
}

// step notes what the holder of the lane is doing, until the returned function is
// called.
func (l *lanes) step(address string, op Op) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[address]
	if h == nil {
		return func() {}
	}
	was := h.step
	h.step = op
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		h.step = was
	}
}

// freezing tells who is pausing or resuming the sandbox, or about to, nil for
// nobody.
func (l *lanes) freezing(address string) *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.held[address]
	if h == nil || (h.verb != "pause" && h.verb != "resume" && h.step != opPause && h.step != opResume) {
		return nil
	}
	return h
}

// try takes the lane of address, or tells who has it.
func (l *lanes) try(address, verb, who string) (release func(), holder *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.held[address]; h != nil {
		return nil, h
	}
	if l.held == nil {
		l.held = map[string]*lane{}
	}
	h := &lane{verb: verb, since: l.now(), who: who, free: make(chan struct{})}
	l.held[address] = h
	return func() {
		l.mu.Lock()
		delete(l.held, address)
		l.mu.Unlock()
		close(h.free)
	}, nil
}

// verb takes the lane for an operator's verb: at once, or refused when another
// operator's verb or an apply has it, after a bounded wait when the agent has, or
// what goes on by itself.
func (l *lanes) verb(ctx context.Context, address, verb, who string) (func(), error) {
	timeout := time.NewTimer(agentWait)
	defer timeout.Stop()
	for {
		release, h := l.try(address, verb, who)
		if h == nil {
			return release, nil
		}
		if h.who == byOperator || h.who == byApply {
			return nil, inProgress(h)
		}
		select {
		case <-h.free:
		case <-timeout.C:
			return nil, inProgress(h)
		case <-ctx.Done():
			return nil, &Error{Kind: Interrupted, Message: "interrupted while waiting: " + inProgress(h).Message}
		}
	}
}

// wait takes the lane for an apply, which waits its turn, at most the given time.
func (l *lanes) wait(ctx context.Context, atMost time.Duration, address, verb, who string) (func(), error) {
	timeout := time.NewTimer(atMost)
	defer timeout.Stop()
	for {
		release, h := l.try(address, verb, who)
		if h == nil {
			return release, nil
		}
		select {
		case <-h.free:
		case <-timeout.C:
			return nil, inProgress(h)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// turn lets one apply of this process run at a time.
type turn struct {
	token chan struct{}
	now   func() time.Time
	mu    sync.Mutex
	since time.Time
	verb  string
}

func (t *turn) init(now func() time.Time) {
	t.now, t.token = now, make(chan struct{}, 1)
}

// take waits, at most the given time, for the apply that runs.
func (t *turn) take(ctx context.Context, atMost time.Duration, verb string) (release func(), err error) {
	select {
	case t.token <- struct{}{}:
		return t.taken(verb), nil
	default:
	}
	timeout := time.NewTimer(atMost)
	defer timeout.Stop()
	select {
	case t.token <- struct{}{}:
		return t.taken(verb), nil
	case <-timeout.C:
		t.mu.Lock()
		defer t.mu.Unlock()
		return nil, &Error{Kind: Locked, Message: fmt.Sprintf("another %s has been running since %s; wait for it, or raise -lock-timeout (%s)",
			t.verb, t.since.UTC().Format(time.RFC3339), atMost)}
	case <-ctx.Done():
		return nil, &Error{Kind: Interrupted, Message: "interrupted while waiting for another apply"}
	}
}

func (t *turn) taken(verb string) (release func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since, t.verb = t.now(), verb
	return func() { <-t.token }
}

// running says in words which apply goes on, "" when none does.
func (t *turn) running() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.token) == 0 {
		return ""
	}
	return fmt.Sprintf("another %s has been running since %s", t.verb, t.since.UTC().Format(time.RFC3339))
}

func inProgress(h *lane) *Error {
	return &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: operation in progress: %s since %s by %s",
		h.verb, h.since.UTC().Format(time.RFC3339), h.who)}
}
