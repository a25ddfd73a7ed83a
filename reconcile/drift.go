package reconcile

import (
	"context"
	"slices"
	"strings"

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
func (d *DriftResult) Drifted() bool { return len(d.Drift) > 0 }

// Drift looks at the host and tells how it differs from what is recorded: what the
// planner finds different, and every step, other than taking a status over, that it
// plans for the host's sake where the files are as they were applied last. What is due
// though nothing else is told of its address, as a deadline that has passed, differs by
// the cause of its step. What an earlier apply left undone is no drift: the records say
// so, and the host is like them. Nothing is changed, neither on the host nor in the state.
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
	differs := map[string]bool{}
	for _, d := range p.Drift {
		differs[d.Address] = true
		if asked(d.Address) {
			res.Drift = append(res.Drift, d)
		}
	}
	told := map[string]bool{}
	for _, c := range p.Changes {
		if c.Origin != plan.FromHost || c.Action == plan.ActNoop || c.Kind == "output" {
			continue
		}
		if !differs[c.Address] {
			if why := undone(&records, &c); why != "" {
				if !told[c.Address] {
					res.Notes = append(res.Notes, c.Address+" "+why+"; that is no drift, and 'pinfold apply' tries again")
				}
				told[c.Address] = true
				continue
			}
		}
		if !asked(c.Address) {
			continue
		}
		if !differs[c.Address] {
			differs[c.Address] = true
			res.Drift = append(res.Drift, plan.Drift{Address: c.Address, What: c.Cause})
		}
		res.Changes = append(res.Changes, c)
	}
	slices.SortStableFunc(res.Drift, func(a, b plan.Drift) int { return strings.Compare(a.Address, b.Address) })
	slices.Sort(res.Notes)
	res.Ignored = len(ignored)
	return res, nil
}

// undone says what the records have of an address that an earlier apply did not finish;
// empty if they have nothing of the kind.
func undone(r *plan.Records, c *plan.Change) string {
	if c.Deposed != "" {
		return "was replaced, and its former instance is still there"
	}
	if s := r.Sandboxes[c.Address]; s != nil && s.Retry.Error != "" {
		return "could not be started (" + s.Retry.Error + ")"
	}
	n, v := r.Networks[c.Address], r.Volumes[c.Address]
	if n != nil && !n.Made || v != nil && !v.Made {
		return "could not be made"
	}
	return ""
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
