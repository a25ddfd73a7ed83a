package view

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// List writes sandboxes as a table and below it why some of them did not come up.
// agent tells whether one runs, which would bring them up.
func (s *Screen) List(r *reconcile.ListResult, agent bool, now time.Time) {
	if len(r.Sandboxes) == 0 {
		s.Linef("No sandboxes.\n")
		return
	}
	cols := []column{
		{"SANDBOX", 0}, {"PHASE", 0}, {"MODE", 5}, {"READY", 2}, {"PID", 6}, {"ADDRESS", 4}, {"PORTS", 3}, {"EXPIRES", 1}, {"USED", 8}, {"AGE", 7},
	}
	var rows [][]string
	for _, x := range slices.SortedStableFunc(slices.Values(r.Sandboxes), byAddress) {
		rows = append(rows, []string{
			x.Address, phaseOf(&x), modeOf(x, now), readyOf(&x, agent),
			orDash(x.PID, strconv.Itoa), orDash(x.AddressV4, func(a string) string { return a }), portsOf(x.Ports), expiresOf(x, now),
			orDash(x.LastActivity, func(t time.Time) string { return ago(t, now) }),
			orDash(x.CreatedAt, func(t time.Time) string { return span(now.Sub(t)) }),
		})
	}
	s.table(0, cols, rows)
	for _, note := range standing(r.Sandboxes, agent, now) {
		s.Linef("%s %s\n", s.paint(bold, "Note:"), oneLine(note))
	}
}

// byAddress orders by address, the instances of a count by number.
func byAddress(a, b reconcile.SandboxView) int { return addresses(a.Address, b.Address) }

func addresses(a, b string) int {
	aName, aKey, _ := strings.Cut(a, "[")
	bName, bKey, _ := strings.Cut(b, "[")
	aNumber, aErr := strconv.Atoi(strings.TrimSuffix(aKey, "]"))
	bNumber, bErr := strconv.Atoi(strings.TrimSuffix(bKey, "]"))
	if aErr != nil || bErr != nil {
		return cmp.Or(strings.Compare(aName, bName), strings.Compare(aKey, bKey))
	}
	return cmp.Or(strings.Compare(aName, bName), aNumber-bNumber)
}

// mostNotes is how many sandboxes the notes below a table name one by one.
const mostNotes = 5

// standing says in a note each what could not be started and why, and what nobody
// starts or ends before the next apply.
func standing(all []reconcile.SandboxView, agent bool, now time.Time) (notes []string) {
	var failed, waiting, overdue []string
	for i := range all {
		switch x := &all[i]; {
		case !agent && isOverdue(x, now):
			overdue = append(overdue, x.Address)
		case !down(x):
		case ready(x).Message != "":
			failed = append(failed, whyDown(x))
			waiting = append(waiting, x.Address)
		case !agent:
			waiting = append(waiting, x.Address)
		}
	}
	notes = failed
	if len(failed) > mostNotes {
		notes = append(failed[:mostNotes], fmt.Sprintf("%d more could not be started; pinfold describe tells why", len(failed)-mostNotes))
	}
	for i := range all {
		if x := &all[i]; len(x.Deposed) > 0 {
			who := "the next apply"
			if agent {
				who = "the agent"
			}
			notes = append(notes, fmt.Sprintf("of %s there is still what was replaced (%s); %s takes it away", x.Address, strings.Join(x.Deposed, ", "), who))
		}
	}
	if len(waiting) > 0 && agent {
		notes = append(notes, "the agent tries again")
	} else if len(waiting) > 0 {
		notes = append(notes, "no agent runs, so nothing starts "+these(waiting)+" before the next apply")
	}
	if len(overdue) > 0 {
		notes = append(notes, "no agent runs, so nothing ends "+these(overdue)+", whose deadline has passed, before the next apply")
	}
	return notes
}

// these names sandboxes, or counts them where they are many.
func these(addresses []string) string {
	if n := len(addresses); n > mostNotes {
		return fmt.Sprintf("%d sandboxes", n)
	}
	return strings.Join(addresses, ", ")
}

// whyDown is why a sandbox could not be started; the engine's words often name it.
func whyDown(x *reconcile.SandboxView) string {
	why := ready(x).Message
	if strings.HasPrefix(why, "cannot ") && strings.Contains(why, x.Address) {
		return why
	}
	return x.Address + " could not be started: " + why
}

// isOverdue tells whether the deadline has passed and was not acted on.
func isOverdue(x *reconcile.SandboxView, now time.Time) bool {
	return x.ExpiresAt != nil && !hasExpired(x) && !now.Before(*x.ExpiresAt)
}

// hasExpired tells whether its deadline passed and was acted on. One with an
// ended_at that has not expired lost its deadline to a pause.
func hasExpired(x *reconcile.SandboxView) bool {
	return slices.ContainsFunc(x.Conditions, func(c plan.Condition) bool { return c.Type == "Expired" && c.Status == "True" })
}

// down tells whether a sandbox is to run, has no running process, and does not wait
// for an operator's start.
func down(x *reconcile.SandboxView) bool {
	return ready(x).Reason == "Starting" && x.Phase != plan.Running && !unstarted(x)
}

// unstarted tells whether apply -no-start left it to be started.
func unstarted(x *reconcile.SandboxView) bool { return x.Hold != nil && x.Hold.Mode == "created" }

// ready is the sandbox's condition of that name.
func ready(x *reconcile.SandboxView) plan.Condition {
	for _, c := range x.Conditions {
		if c.Type == "Ready" {
			return c
		}
	}
	return plan.Condition{}
}

func orDash[T any](v *T, text func(T) string) string {
	if v == nil {
		return "-"
	}
	return text(*v)
}

// phaseOf is the phase, behind it how the process ended if that was its own doing
// or somebody else's: of what was stopped or expired nobody asks.
func phaseOf(x *reconcile.SandboxView) string {
	text := string(x.Phase)
	o := x.Outcome
	if o == nil || x.Phase != plan.Stopped && x.Phase != plan.Failed {
		return text
	}
	switch o.Reason {
	case "oom":
		return text + " (oom)"
	case "exited", "signalled", "killed":
		if o.Signal != 0 {
			return fmt.Sprintf("%s (signal %d)", text, o.Signal)
		}
		return fmt.Sprintf("%s (exit %d)", text, o.ExitCode)
	}
	return text
}

// inForce is the effective mode. What an expiry keeps without a process is not
// suspended: nothing but a later deadline starts it.
func inForce(x *reconcile.SandboxView) string {
	if x.Mode == "suspended" && hasExpired(x) {
		return "expired"
	}
	return x.Mode
}

// modeOf is the effective mode, with whose hold makes it so and since when.
func modeOf(x reconcile.SandboxView, now time.Time) string {
	if mode := inForce(&x); x.Hold == nil || mode != x.Mode {
		return mode
	}
	return fmt.Sprintf("%s (by %s, %s)", x.Mode, x.Hold.By, ago(x.Hold.At, now))
}

// readyOf is "yes", or why not. The condition says Starting of everything that is
// to run and does not; here it says whether anybody starts it.
func readyOf(x *reconcile.SandboxView, agent bool) string {
	c := ready(x)
	switch {
	case c.Type == "":
		return "-"
	case c.Status == "True":
		return "yes"
	case c.Reason == "Starting" && unstarted(x):
		return "NotStarted"
	case !down(x), agent && c.Message == "":
		return c.Reason
	case agent:
		return "Retrying"
	case c.Message != "":
		return "StartFailed"
	}
	return "NotStarted"
}

// portsOf lists published ports as host->container; the host's address only
// where it is not the usual 127.0.0.1.
func portsOf(ports map[string]plan.Port) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		out = append(out, portOf(ports[name]))
	}
	if len(out) == 0 {
		return "-"
	}
	return strings.Join(out, ",")
}

func portOf(p plan.Port) string {
	text := fmt.Sprintf("%d->%d", p.Host, p.Container)
	if p.Address != "" && p.Address != "127.0.0.1" {
		text = p.Address + ":" + text
	}
	if p.Protocol != "" && p.Protocol != "tcp" {
		text += "/" + p.Protocol
	}
	return text
}

func expiresOf(x reconcile.SandboxView, now time.Time) string {
	switch {
	case isOverdue(&x, now):
		return "overdue " + span(now.Sub(*x.ExpiresAt))
	case x.ExpiresAt != nil:
		return ago(*x.ExpiresAt, now)
	case x.EndedAt != nil && hasExpired(&x):
		return ago(*x.EndedAt, now)
	case x.EndedAt != nil:
		return "set on resume"
	}
	return "never"
}
