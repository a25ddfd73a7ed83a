package view

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// SandboxHistory is what became of one sandbox, as far as events tell: those kept
// may begin in the middle. Of several with the same address each has its own.
type SandboxHistory struct {
	Address   string            `json:"address"`
	UID       string            `json:"uid"`
	CreatedAt *time.Time        `json:"created_at"` // its first instance
	EndedAt   *time.Time        `json:"ended_at"`   // it is no more since
	Reason    *string           `json:"reason"`     // ttl_expiry, shutdown_time, user_delete, config_removed, lost, …
	Instances []InstanceHistory `json:"instances"`
	Holds     []HoldHistory     `json:"holds"`
	Renewals  []Renewal         `json:"renewals"`
	Kills     []Kill            `json:"kills"`    // signals that were sent
	Restarts  int               `json:"restarts"` // starts that nobody asked for: by the restart block, after a kill, after a loss

	died bool // its process ended unasked, and nothing was asked of it since
}

// InstanceHistory is one incarnation.
type InstanceHistory struct {
	ID        string     `json:"instance_id"`
	CreatedAt *time.Time `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at"`
	Reason    *string    `json:"reason"` // replaced, lost, failed, provision_timeout, or why the sandbox went
	Runs      []Run      `json:"runs"`
}

// Run is one process of an instance, from start to end.
type Run struct {
	StartedAt *time.Time `json:"started_at"`
	EndedAt   *time.Time `json:"ended_at"`
	Reason    *string    `json:"reason"`    // exit, oom, killed, stopped, suspended, restarted, ttl_expiry, lost, …
	Message   *string    `json:"message"`   // exit code or signal, in words
	ExitCode  *int       `json:"exit_code"` // 128+n after signal n; null where the end tells none
	Signal    *int       `json:"signal"`
}

// HoldHistory is one hold.
type HoldHistory struct {
	At      time.Time  `json:"at"`
	EndedAt *time.Time `json:"ended_at"`
	Mode    string     `json:"mode"`
	By      *string    `json:"by"`
	Reason  *string    `json:"reason"`
}

// Renewal is one movement of the lease.
type Renewal struct {
	At    time.Time `json:"at"`
	Form  string    `json:"form"`  // until, at-least, in, resume, access
	Until *string   `json:"until"` // RFC 3339
	By    *string   `json:"by"`
}

// Kill is a signal that an operator sent.
type Kill struct {
	At     time.Time `json:"at"`
	Signal string    `json:"signal"` // its name
	By     *string   `json:"by"`
	Reason *string   `json:"reason"`
}

// HistoryOf sums events up, which stand in the order in which they happened, in
// the order in which the sandboxes first appear.
func HistoryOf(events []reconcile.Event) []SandboxHistory {
	var all []*SandboxHistory
	of := map[string]*SandboxHistory{} // by uid
	for _, e := range events {
		if e.UID == "" {
			continue // of something else than a sandbox
		}
		h := of[e.UID]
		if h == nil {
			h = &SandboxHistory{UID: e.UID, Instances: []InstanceHistory{}, Holds: []HoldHistory{}, Renewals: []Renewal{}, Kills: []Kill{}}
			of[e.UID] = h
			all = append(all, h)
		}
		h.Address = e.Address // it may have moved
		h.add(&e)
	}
	out := make([]SandboxHistory, len(all))
	for i, h := range all {
		out[i] = *h
	}
	return out
}

func (h *SandboxHistory) add(e *reconcile.Event) {
	h.countRestart(e)
	at := e.At
	switch e.Type {
	case "create":
		x := h.instance(e.Instance)
		x.CreatedAt = &at
		if h.CreatedAt == nil && len(h.Instances) == 1 {
			h.CreatedAt = &at
		}
	case "rebuilt", "restored", "adopted": // what was before is not known
		h.instance(e.Instance)
	case "start":
		x := h.instance(e.Instance)
		x.endRun(at, "", "")
		x.Runs = append(x.Runs, Run{StartedAt: &at})
	case "stop", "exited":
		if !e.EndedAt.IsZero() {
			at = e.EndedAt
		}
		h.instance(e.Instance).endRun(at, e.Reason, e.Message)
	case "lost", "failed":
		x := h.instance(e.Instance)
		reason := e.Type
		if e.Type == "failed" {
			reason = cmp.Or(e.Reason, reason)
		}
		x.endRun(at, reason, "")
		x.EndedAt, x.Reason = &at, &reason
	case "destroyed":
		if e.Instance != "" {
			x := h.instance(e.Instance)
			x.endRun(at, e.Reason, "")
			if x.EndedAt == nil {
				x.EndedAt, x.Reason = &at, orNull(e.Reason)
			}
		}
		if e.Reason != "replaced" {
			h.EndedAt, h.Reason = &at, orNull(e.Reason)
			h.endHold(at)
		}
	case "held":
		h.endHold(at)
		h.Holds = append(h.Holds, HoldHistory{At: at, Mode: e.Reason, By: orNull(e.By), Reason: orNull(e.Message)})
	case "release", "undone":
		h.endHold(at)
	case "renewed":
		h.Renewals = append(h.Renewals, Renewal{At: at, Form: e.Reason, Until: orNull(e.Message), By: orNull(e.By)})
	case "kill":
		h.Kills = append(h.Kills, Kill{At: at, Signal: e.Reason, By: orNull(e.By), Reason: orNull(e.Message)})
	}
}

// countRestart tells the starts that follow an end by itself from those that were
// asked for: by a verb, access, or files that revive, replace or recreate it.
func (h *SandboxHistory) countRestart(e *reconcile.Event) {
	switch e.Type {
	case "lost":
		h.died = true
	case "exited":
		h.died = e.Reason == plan.ByExit || e.Reason == plan.ByOOM || e.Reason == plan.ByKilled
	case "start":
		if h.died && e.By != "operator" && e.By != "access" {
			h.Restarts++
		}
		h.died = false
	case "stop", "held", "release", "expired", "failed", "destroyed":
		h.died = false
	}
}

func (h *SandboxHistory) instance(id string) *InstanceHistory {
	for i := range h.Instances {
		if h.Instances[i].ID == id {
			return &h.Instances[i]
		}
	}
	h.Instances = append(h.Instances, InstanceHistory{ID: id, Runs: []Run{}})
	return &h.Instances[len(h.Instances)-1]
}

// endRun ends the run that goes on, if one does; how it ended may be told twice,
// the first time being the time it was seen.
func (x *InstanceHistory) endRun(at time.Time, reason, message string) {
	if n := len(x.Runs); n > 0 && x.Runs[n-1].EndedAt == nil {
		r := &x.Runs[n-1]
		if r.StartedAt != nil && at.Before(*r.StartedAt) {
			at = *r.StartedAt // it ended before its start was on record
		}
		r.EndedAt, r.Reason, r.Message = &at, orNull(reason), orNull(message)
		r.ExitCode, r.Signal = outcomeIn(message)
	}
}

// Observe ends the runs of processes that are seen to have ended and of whose end no
// event tells yet. Of one that was lost nobody knows when.
func Observe(all []SandboxHistory, seen []reconcile.SandboxView) {
	for _, v := range seen {
		if v.InstanceID == nil {
			continue
		}
		for i := range all {
			for j := range all[i].Instances {
				if x := &all[i].Instances[j]; x.ID == *v.InstanceID {
					x.observe(&v)
				}
			}
		}
	}
}

func (x *InstanceHistory) observe(v *reconcile.SandboxView) {
	n := len(x.Runs)
	switch {
	case n == 0 || x.Runs[n-1].EndedAt != nil:
	case v.Phase == plan.Lost:
		x.Runs[n-1].Reason = orNull("lost")
	case v.Phase == plan.Stopped && v.Outcome != nil:
		reason := v.Outcome.Reason
		if reason == "exited" || reason == "signalled" {
			reason = plan.ByExit
		}
		x.endRun(v.Outcome.At, reason, reconcile.DescribeOutcome(v.Outcome))
		if r := &x.Runs[n-1]; v.Outcome.At.IsZero() {
			r.EndedAt = nil // nobody knows
		}
	}
}

// outcomeIn reads the numbers out of an event's words for an outcome.
func outcomeIn(message string) (code, signal *int) {
	var n int
	if _, err := fmt.Sscanf(message, "exit code %d", &n); err == nil {
		return &n, nil
	}
	if _, err := fmt.Sscanf(message, "signal %d", &n); err == nil {
		sum := 128 + n
		return &sum, &n
	}
	return nil, nil
}

func (h *SandboxHistory) endHold(at time.Time) {
	if n := len(h.Holds); n > 0 && h.Holds[n-1].EndedAt == nil {
		h.Holds[n-1].EndedAt = &at
	}
}

// mostLines is how many holds, renewals and signals of a sandbox are told for people.
const mostLines = 5

// History writes what became of sandboxes, each with a table of its runs.
func (s *Screen) History(all []SandboxHistory, now time.Time) {
	if len(all) == 0 {
		s.Linef("No sandboxes so far.\n")
		return
	}
	for i := range all {
		if i > 0 {
			s.Linef("\n")
		}
		s.history(&all[i], now)
	}
}

func (s *Screen) history(h *SandboxHistory, now time.Time) {
	s.Linef("%s\n", s.paint(bold, printable(h.Address)))
	head := section{}
	head.add("UID", h.UID)
	head.add("Created", at(h.CreatedAt, now))
	if h.EndedAt != nil {
		head.add("Ended", instant(*h.EndedAt, now)+": "+deref(h.Reason))
	}
	head.add("Restarts", counted(h.Restarts))
	for i, x := range tail(h.Holds) {
		text := x.Mode + " by " + deref(x.By) + " since " + x.At.UTC().Format(time.RFC3339)
		if x.EndedAt != nil {
			text += " for " + span(x.EndedAt.Sub(x.At))
		}
		if x.Reason != nil {
			text += ": " + *x.Reason
		}
		head.add(first(i, "Held", len(h.Holds)), text)
	}
	for i, x := range tail(h.Renewals) {
		head.add(first(i, "Renewed", len(h.Renewals)), x.At.UTC().Format(time.RFC3339)+" by "+deref(x.By)+" ("+x.Form+"): until "+deref(x.Until))
	}
	for i, x := range tail(h.Kills) {
		text := x.At.UTC().Format(time.RFC3339) + " " + x.Signal + " by " + deref(x.By)
		if x.Reason != nil {
			text += ": " + *x.Reason
		}
		head.add(first(i, "Killed", len(h.Kills)), text)
	}
	s.section(head)
	var rows [][]string
	for _, x := range h.Instances {
		for _, r := range x.Runs {
			how := deref(r.Reason)
			if r.Message != nil && *r.Message != how {
				how += " (" + *r.Message + ")"
			}
			goesOn := r.EndedAt == nil && r.Reason == nil
			if goesOn {
				how = "goes on"
			}
			lived := "-"
			if r.StartedAt != nil && r.EndedAt != nil {
				lived = span(r.EndedAt.Sub(*r.StartedAt))
			} else if r.StartedAt != nil && goesOn {
				lived = span(now.Sub(*r.StartedAt))
			}
			rows = append(rows, []string{x.ID, stamp(r.StartedAt), stamp(r.EndedAt), lived, how})
		}
		if len(x.Runs) == 0 || x.EndedAt != nil && deref(x.Reason) != deref(x.Runs[len(x.Runs)-1].Reason) {
			how := deref(x.Reason)
			if x.EndedAt == nil {
				how = "never started"
			}
			rows = append(rows, []string{x.ID, "-", stamp(x.EndedAt), "-", how})
		}
	}
	if len(rows) > 0 {
		s.table(2, []column{{"INSTANCE", 0}, {"STARTED", 0}, {"ENDED", 0}, {"RAN", 1}, {"HOW", 0}}, rows)
	}
}

// historyDocument is `history -json`.
type historyDocument struct {
	FormatVersion string           `json:"format_version"`
	Sandboxes     []SandboxHistory `json:"sandboxes"`
}

// HistoryJSON writes `history -json`.
func HistoryJSON(w io.Writer, all []SandboxHistory) error {
	return JSON(w, historyDocument{FormatVersion, list(all)})
}

func deref(text *string) string {
	if text == nil {
		return "unknown"
	}
	return *text
}

func stamp(t *time.Time) string {
	return orDash(t, func(t time.Time) string { return t.UTC().Format(time.RFC3339) })
}

func counted(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func tail[S ~[]E, E any](all S) S { return all[max(0, len(all)-mostLines):] }

// first is a name for several lines; the first of them says how many are not told.
func first(i int, name string, all int) string {
	if i == 0 && all > mostLines {
		return fmt.Sprintf("%s (last %d of %d)", name, mostLines, all)
	}
	return name
}
