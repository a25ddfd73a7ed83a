package view

import (
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// sandboxJSON is a sandbox as -json prints it: every member is there, what is
// absent is null, and lists and maps are never null. Records leave out what is
// empty, to stay small; their members are spelled out again here.
type sandboxJSON struct {
	reconcile.SandboxView
	Hold       *holdJSON       `json:"hold"`
	Conditions []conditionJSON `json:"conditions"`
	Outcome    *outcomeJSON    `json:"outcome"`
}

// holdJSON spells a hold out, with the one that lies under it.
type holdJSON struct {
	plan.Hold
	Reason *string   `json:"reason"`
	Under  *holdJSON `json:"under"`
}

func holdOf(h *plan.Hold) *holdJSON {
	if h == nil {
		return nil
	}
	return &holdJSON{*h, orNull(h.Reason), holdOf(h.Under)}
}

type conditionJSON struct {
	plan.Condition
	Message *string `json:"message"`
}

type outcomeJSON struct {
	plan.Outcome
	Signal  *int `json:"signal"`
	Outside *int `json:"outside"`
}

func sandboxOf(s reconcile.SandboxView) sandboxJSON {
	out := sandboxJSON{SandboxView: s, Hold: holdOf(s.Hold), Conditions: conditionsOf(s.Conditions), Outcome: outcomeJSONOf(s.Outcome)}
	out.Ports, out.Labels, out.Volumes, out.Deposed = dict(s.Ports), dict(s.Labels), dict(s.Volumes), list(s.Deposed)
	return out
}

func conditionsOf(all []plan.Condition) []conditionJSON {
	out := make([]conditionJSON, 0, len(all))
	for _, c := range all {
		out = append(out, conditionJSON{c, orNull(c.Message)})
	}
	return out
}

func outcomeJSONOf(o *plan.Outcome) *outcomeJSON {
	if o == nil {
		return nil
	}
	return &outcomeJSON{*o, orNull(o.Signal), orNull(o.Outside)}
}

type leaseJSON struct {
	plan.Lease
	Start *time.Time       `json:"start"`
	TTL   *config.Duration `json:"ttl"`
	Until *time.Time       `json:"until"`

	EndedAt         *time.Time `json:"ended_at"`
	ActedOn         *time.Time `json:"acted_on"`
	AccessRenewedAt *time.Time `json:"access_renewed_at"`
	// A lease that was never renewed says so.
	Renewed bool `json:"renewed"`
}

func leaseOf(l plan.Lease) leaseJSON {
	return leaseJSON{
		Lease: l, Start: orNull(l.Start), TTL: orNull(l.TTL), Until: orNull(l.Until),
		EndedAt: orNull(l.EndedAt), ActedOn: orNull(l.ActedOn), AccessRenewedAt: orNull(l.AccessRenewedAt), Renewed: l.Renewed,
	}
}

type retryJSON struct {
	Attempts int        `json:"attempts"`
	NextAt   *time.Time `json:"next_at"`
	Since    *time.Time `json:"since"`
}

func retryOf(r plan.Retry) retryJSON {
	return retryJSON{r.Attempts, orNull(r.NextAt), orNull(r.Since)}
}

type eventJSON struct {
	reconcile.Event
	Seq      uint64     `json:"seq"`
	EndedAt  *time.Time `json:"ended_at"` // of exited: when the process ended, which was noticed at `at`
	UID      *string    `json:"uid"`
	Instance *string    `json:"instance_id"`
	Message  *string    `json:"message"`
	By       *string    `json:"by"`
}

func eventsOf(events []reconcile.Event) []eventJSON {
	out := make([]eventJSON, 0, len(events))
	for _, e := range events {
		out = append(out, eventOf(e))
	}
	return out
}

func eventOf(e reconcile.Event) eventJSON {
	return eventJSON{e, e.Seq, orNull(e.EndedAt), orNull(e.UID), orNull(e.Instance), orNull(e.Message), orNull(e.By)}
}

// orNull is a pointer to v, or nil for a zero one.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// dict is m, or an empty map that JSON does not write as null.
func dict[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}
