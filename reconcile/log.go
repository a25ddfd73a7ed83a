package reconcile

import (
	"cmp"
	"regexp"
	"sync"

	"pinfold/reconcile/plan"
)

// The log tells who looks after this host, in one line each: what was changed and
// why (info), what was noticed (info), what does not work (error when it is new,
// warning while it goes on), and what was looked at (debug).

// changed logs a change that was carried out.
func (e *actor) changed(c *plan.Change) {
	e.content(c.Address)
	e.log.Info("changed", "address", c.Address, "action", c.Action, "cause", c.Cause, "by", e.by, "result", e.result(c.Address))
}

// acted logs an operator's verb.
func (e *Engine) acted(address, verb, reason, note string) {
	e.content(address)
	args := []any{"address", address, "action", verb, "cause", cmp.Or(reason, "asked for"), "by", byOperator, "result", e.result(address)}
	if note != "" {
		args = append(args, "note", note)
	}
	e.log.Info("changed", args...)
}

// noticed logs what a look found to have happened.
func (e *Engine) noticed(events []Event) {
	for _, ev := range events {
		e.log.Info("noticed", "address", ev.Address, "what", ev.Type, "cause", ev.Reason, "instance", ev.Instance, "message", ev.Message)
	}
}

// result is what a change left: phase and instance of a sandbox, the id of
// something else, "gone".
func (e *Engine) result(address string) string {
	if rec := e.current(address); rec != nil {
		if rec.Instance == nil {
			return string(plan.Pending)
		}
		return string(rec.Instance.Phase) + " " + rec.Instance.ID
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.records.Networks[address] != nil:
		return "made " + e.records.Networks[address].ID
	case e.records.Volumes[address] != nil:
		return "made " + e.records.Volumes[address].ID
	case e.records.Images[address] != nil:
		return "pinned " + e.records.Images[address].Digest
	}
	return "gone"
}

// complaints remember what was said last about each address, so that the same
// failure is an error once and a warning from then on.
type complaints struct {
	mu   sync.Mutex
	last map[string]complaint
}

type complaint struct {
	text  string
	times int
}

// instanceID is what differs between two tries that fail alike.
var instanceID = regexp.MustCompile(`\b[0-9a-f]{12}\b`)

// again counts a complaint and tells how often it came in a row.
func (c *complaints) again(about, text string) int {
	text = instanceID.ReplaceAllString(text, "")
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = map[string]complaint{}
	}
	last := c.last[about]
	if last.text != text {
		last = complaint{text: text}
	}
	last.times++
	c.last[about] = last
	return last.times
}

// complain logs what does not work about an address, or about everything (""). It
// tells whether that is new.
func (e *Engine) complain(about, what string, err error, args ...any) bool {
	n := e.complaints.again(about, err.Error()) // whoever meets it, an apply or the agent
	args = append([]any{"address", about, "error", err}, args...)
	if n == 1 {
		e.log.Error(what, args...)
	} else {
		e.log.Warn(what, append(args, "attempt", n)...)
	}
	return n == 1
}

// content forgets complaints about an address: the next is new.
func (e *Engine) content(about string) {
	e.complaints.mu.Lock()
	defer e.complaints.mu.Unlock()
	delete(e.complaints.last, about)
}
