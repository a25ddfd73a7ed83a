package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// StateMoveRequest is `state mv`: what is recorded at From, one thing, all instances of
// a block or all in a module, gets the address To.
type StateMoveRequest struct {
	From     string        `json:"from"`
	To       string        `json:"to"`
	DryRun   bool          `json:"dry_run,omitempty"`
	LockWait time.Duration `json:"lock_wait,omitempty"`
}

// StateMoveResult is `state mv -json`.
type StateMoveResult struct {
	FormatVersion string      `json:"format_version"`
	DryRun        bool        `json:"dry_run"`
	Moved         []Readdress `json:"moved"` // sorted by From
	Serial        uint64      `json:"serial"`
}

// Readdress is one record with a new address.
type Readdress struct {
	Kind string `json:"kind"` // sandbox, network, volume, image
	From string `json:"from"`
	To   string `json:"to"`
	ID   string `json:"id,omitempty"` // of its instance, network or volume
}

// StateRemoveRequest is `state rm`: what is recorded at these addresses is forgotten,
// and left on the host as it is.
type StateRemoveRequest struct {
	Addresses []string      `json:"addresses"`
	DryRun    bool          `json:"dry_run,omitempty"`
	LockWait  time.Duration `json:"lock_wait,omitempty"`
}

// StateRemoveResult is `state rm -json`.
type StateRemoveResult struct {
	FormatVersion string    `json:"format_version"`
	DryRun        bool      `json:"dry_run"`
	Removed       []Removed `json:"removed"` // sandboxes first, then by address
	Serial        uint64    `json:"serial"`
}

// Removed is one record that is no more.
type Removed struct {
	Kind    string `json:"kind"`
	Address string `json:"address"`
	ID      string `json:"id,omitempty"` // of its instance, network or volume, by which an import block takes it back
}

// StateMove renames records, with every reference to them. Nothing on the host is
// touched.
func (e *Engine) StateMove(ctx context.Context, r StateMoveRequest) (*StateMoveResult, error) {
	release, err := e.turnFor(ctx, r.DryRun, r.LockWait, "state mv")
	if err != nil {
		return nil, err
	}
	defer release()
	from, to, err := movePair(r.From, r.To)
	if err != nil {
		return nil, err
	}
	records := e.snapshot()
	res := &StateMoveResult{FormatVersion: "1", DryRun: r.DryRun, Moved: []Readdress{}, Serial: records.Serial}
	addresses := map[string]string{}
	for _, a := range records.Addresses() {
		b, concerned := config.Move{From: from, To: to}.Apply(a)
		if !concerned {
			continue
		}
		_, id := identify(&records, a)
		res.Moved = append(res.Moved, Readdress{Kind: plan.KindOf(a), From: a, To: b, ID: id})
		addresses[a] = b
	}
	if len(addresses) == 0 {
		return nil, notRecorded(r.From)
	}
	for _, a := range records.Addresses() {
		if _, moves := addresses[a]; !moves && (a == to || slices.ContainsFunc(res.Moved, func(m Readdress) bool { return m.To == a })) {
			return nil, &Error{Kind: Conflict, Message: fmt.Sprintf("cannot move %s to %s: %s is on record already; move that to another address first, or forget it (pinfold state rm); nothing was changed", r.From, r.To, a)}
		}
	}
	if r.DryRun {
		return res, nil
	}
	as := e.as(byOperator)
	w := &write{bump: true}
	for _, m := range res.Moved {
		w.event(Event{Address: m.To, Type: string(plan.ActMove), Reason: "moved from " + m.From, Message: "asked for"})
	}
	if _, err := as.rename(ctx, addresses, w, "state mv", lockWait(r.LockWait)); err != nil {
		return nil, errorOf(err)
	}
	for _, m := range res.Moved {
		e.wake(m.To)
	}
	res.Serial = e.snapshot().Serial
	return res, nil
}

// movePair reads two addresses, of resources of one type or of modules.
func movePair(from, to string) (string, string, error) {
	invalid := func(err error) (string, string, error) {
		return "", "", &Error{Kind: Invalid, Message: err.Error()}
	}
	a, amodule, err := target(from)
	if err != nil {
		return invalid(err)
	}
	b, bmodule, err := target(to)
	switch {
	case err != nil:
		return invalid(err)
	case amodule != bmodule:
		return invalid(fmt.Errorf("cannot move %s to %s: one is a module, the other a thing in one; give two of the same", from, to))
	case !amodule && plan.KindOf(a) != plan.KindOf(b):
		return invalid(fmt.Errorf("cannot move %s to %s: a %s cannot become a %s", from, to, plan.KindOf(a), plan.KindOf(b)))
	case a == b:
		return invalid(fmt.Errorf("cannot move %s to itself", from))
	}
	return a, b, nil
}

// target reads the address of a resource, with or without a key, or of a module.
func target(text string) (address string, module bool, err error) {
	if m, err := config.ParseModule(text); err == nil {
		return m, true, nil
	}
	a, err := config.ParseAddress(text)
	return a.String(), false, err
}

func notRecorded(what string) error {
	return &Error{Kind: NotFound, Message: "nothing is recorded at " + what + "; pinfold state list tells what is"}
}

// turnFor waits for an apply that runs, where something is to be changed.
func (e *Engine) turnFor(ctx context.Context, dry bool, wait time.Duration, verb string) (release func(), err error) {
	if dry {
		return func() {}, nil
	}
	if e.readOnly {
		return nil, &Error{Kind: Invalid, Message: "cannot change the records: the state is open for looking only"}
	}
	return e.turn.take(ctx, lockWait(wait), verb)
}

// StateRemove forgets what is recorded at the addresses and leaves it on the host as it
// is, marked so that nothing of it is touched again.
func (e *Engine) StateRemove(ctx context.Context, r StateRemoveRequest) (*StateRemoveResult, error) {
	release, err := e.turnFor(ctx, r.DryRun, r.LockWait, "state rm")
	if err != nil {
		return nil, err
	}
	defer release()
	records := e.snapshot()
	res := &StateRemoveResult{FormatVersion: "1", DryRun: r.DryRun, Removed: []Removed{}, Serial: records.Serial}
	goes := map[string]bool{}
	for _, text := range r.Addresses {
		t, _, err := target(text)
		if err != nil {
			return nil, &Error{Kind: Invalid, Message: err.Error()}
		}
		found := false
		for _, a := range records.Addresses() {
			if config.Covers(t, a) {
				found, goes[a] = true, true
			}
		}
		if !found {
			return nil, notRecorded(text)
		}
	}
	for _, a := range sortedKeys(goes) {
		if user := records.User(a, goes); user != "" {
			return nil, &Error{Kind: Conflict, Message: fmt.Sprintf("cannot forget %s: %s, which stays on record, uses it; forget both, or move %s away from it first; nothing was changed", a, user, user)}
		}
		_, id := identify(&records, a)
		res.Removed = append(res.Removed, Removed{Kind: plan.KindOf(a), Address: a, ID: id})
	}
	// What is used goes after those that use it.
	slices.SortStableFunc(res.Removed, func(a, b Removed) int {
		return boolRank(a.Kind != "sandbox") - boolRank(b.Kind != "sandbox")
	})
	if r.DryRun {
		return res, nil
	}
	for i, x := range res.Removed {
		if err := e.as(byOperator).removeRecord(ctx, x, lockWait(r.LockWait)); err != nil {
			err = fmt.Errorf("cannot forget %s: %w", x.Address, err)
			if i > 0 {
				done := make([]string, i)
				for j := range done {
					done[j] = res.Removed[j].Address
				}
				err = fmt.Errorf("%w; forgotten before that: %s", err, strings.Join(done, ", "))
			}
			return nil, errorOf(err)
		}
		e.wake(x.Address)
	}
	res.Serial = e.snapshot().Serial
	return res, nil
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// removeRecord forgets one, under its lane.
func (e *actor) removeRecord(ctx context.Context, x Removed, wait time.Duration) error {
	release, err := e.lanes.wait(ctx, wait, x.Address, "state rm", e.by)
	if err != nil {
		return err
	}
	defer release()
	w := &write{bump: true}
	switch x.Kind {
	case "sandbox":
		rec, ok := e.sandbox(x.Address)
		if !ok {
			set(&w.ended, x.Address, nil)
			break
		}
		if rec, err = e.recoverOwn(ctx, rec); err != nil {
			return err
		}
		err := e.giveUp(ctx, rec, "state rm")
		var step *stepError
		if errors.As(err, &step) {
			return step.err
		}
		return err
	case "network":
		if n, ok := e.network(x.Address); ok {
			e.alloc.leaveNetwork(n)
		}
		set(&w.networks, x.Address, nil)
	case "volume":
		set(&w.volumes, x.Address, nil)
	case "image":
		set(&w.images, x.Address, nil)
	}
	return e.commit(w.event(Event{Address: x.Address, Type: string(plan.ActForget), Reason: "state rm", Message: "left on the host as it is", Instance: x.ID}))
}
