package reconcile

import (
	"context"
	"slices"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// DriftRequest says of what drift is not asked.
type DriftRequest struct {
	// Ignore are addresses, of one thing, of all instances of a block or of a module,
	// and kinds: sandbox, network, volume, image.
	Ignore []string `json:"ignore,omitempty"`
}

// DriftResult is what the host is beside what is recorded.
type DriftResult struct {
	Drift   []plan.Drift  `json:"drift"`   // what differs
	Changes []plan.Change `json:"changes"` // what an apply of unchanged files would do about it
	Notes   []string      `json:"notes"`
	Ignored int           `json:"ignored"` // addresses that differ and were not asked for
	Lineage string        `json:"lineage"`
	Serial  uint64        `json:"serial"`
}

// Drifted tells whether anything that was asked for differs.
func (d *DriftResult) Drifted() bool { return len(d.Drift)+len(d.Changes) > 0 }

// Drift looks at the host and tells how it differs from what is recorded: what the
// planner finds different, and every step, other than taking a status over, that it
// plans for the host's sake where the files are as they were applied last. Nothing is
// changed, neither on the host nor in the state.
func (e *Engine) Drift(ctx context.Context, r DriftRequest) (*DriftResult, error) {
	records := e.snapshot()
	seen, err := e.look(ctx)
	if err != nil {
		return nil, errorOf(err)
	}
	seen.hide(records.Sandboxes)
	p := plan.Make(plan.Input{
		Records: records, Observed: seen.Observed, Activity: e.activity.all(), Now: e.now(), Trigger: plan.Apply, Limits: e.limits(),
	})
	res := &DriftResult{Drift: []plan.Drift{}, Changes: []plan.Change{}, Notes: p.Notes, Lineage: e.store.Lineage(), Serial: records.Serial}
	ignored := map[string]bool{}
	asked := func(address string) bool {
		if !slices.ContainsFunc(r.Ignore, func(word string) bool { return ignores(word, address) }) {
			return true
		}
		ignored[address] = true
		return false
	}
	for _, d := range p.Drift {
		if asked(d.Address) {
			res.Drift = append(res.Drift, d)
		}
	}
	for _, c := range p.Changes {
		if c.Origin == plan.FromHost && c.Action != plan.ActNoop && c.Kind != "output" && asked(c.Address) {
			res.Changes = append(res.Changes, c)
		}
	}
	res.Ignored = len(ignored)
	return res, nil
}

// ignores tells whether a word of DriftRequest.Ignore covers an address.
func ignores(word, address string) bool {
	at, err := config.ParseAddress(address)
	return err == nil && word == at.Type || config.Covers(word, address)
}

// Drift asks the agent.
func (c *Client) Drift(ctx context.Context, r DriftRequest) (*DriftResult, error) {
	return ask[DriftResult](ctx, c, "drift", r)
}
