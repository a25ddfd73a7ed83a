package view

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// section collects aligned "Name: value" lines under a title, made printable.
type section struct {
	title string
	rows  [][2]string
}

func (x *section) add(name, value string) {
	if value != "" {
		x.rows = append(x.rows, [2]string{oneLine(name), oneLine(value)})
	}
}

func (s *Screen) section(x section) {
	if len(x.rows) == 0 {
		return
	}
	indent := 0
	if x.title != "" {
		s.Linef("\n%s\n", s.paint(bold, x.title))
		indent = 2
	}
	width := 0
	for _, r := range x.rows {
		width = max(width, columns(r[0]))
	}
	for _, r := range x.rows {
		s.Linef("%s%s  %s\n", spaces(indent), pad(r[0]+":", width+1), r[1])
	}
}

// Describe writes everything about one sandbox. agent tells whether one runs, which
// would do what is due next.
func (s *Screen) Describe(d *reconcile.Description, agent bool, now time.Time) {
	x := &d.Sandbox
	s.Linef("%s\n", s.paint(bold, printable(x.Address)))

	head := section{title: ""}
	phase := phaseOf(x)
	if x.PID != nil {
		phase += fmt.Sprintf(" (pid %d)", *x.PID)
	}
	head.add("Phase", phase)
	head.add("Mode", inForce(x)+declaredOf(x))
	if down(x) {
		text := readyOf(x, agent)
		if why := ready(x).Message; why != "" {
			text += ": " + why
		}
		head.add("Ready", text)
	}
	for name, h := "Hold", x.Hold; h != nil; name, h = "Over", h.Under {
		text := fmt.Sprintf("%s by %s since %s", h.Mode, h.By, instant(h.At, now))
		if h.Reason != "" {
			text += ": " + h.Reason
		}
		head.add(name, text)
	}
	if x.InstanceID != nil {
		head.add("Instance", *x.InstanceID)
	}
	head.add("Deposed", strings.Join(x.Deposed, ", "))
	head.add("UID", d.UID)
	head.add("Generation", fmt.Sprint(x.Generation))
	head.add("Created", at(x.CreatedAt, now))
	head.add("Started", at(x.StartedAt, now))
	head.add("Last activity", at(x.LastActivity, now))
	if o := x.Outcome; o != nil {
		head.add("Outcome", outcomeOf(o, now))
	}
	if d.NextLook != nil && d.NextAction != "" {
		text := nextOf(d.NextAction, *d.NextLook, now)
		if !agent {
			text += "; no agent runs, so only an apply after that does it"
		}
		head.add("Next", text)
	}
	s.section(head)

	life := section{title: "Lifetime"}
	switch {
	case x.EndedAt != nil && hasExpired(x):
		life.add("Expired", expired(x, now))
	case isOverdue(x, now):
		life.add("Expires", instant(*x.ExpiresAt, now)+", not acted on yet")
	case x.ExpiresAt != nil:
		life.add("Expires", instant(*x.ExpiresAt, now))
	case x.EndedAt != nil:
		life.add("Expires", "set anew on resume; pausing took "+instant(*x.EndedAt, now)+" away")
	default:
		life.add("Expires", "never")
	}
	life.add("Then", d.Spec.ShutdownPolicy)
	if !d.Spec.ShutdownTime.IsZero() {
		life.add("Shutdown time", instant(d.Spec.ShutdownTime, now))
	}
	if d.Spec.Lifetime.TTL != 0 {
		life.add("TTL", d.Spec.Lifetime.TTL.String())
	}
	if !d.Lease.Until.IsZero() {
		text := instant(d.Lease.Until, now)
		if d.Lease.Renewed {
			text += ", renewed"
		}
		life.add("Lease until", text)
	}
	if t := d.Lease.AccessRenewedAt; !t.IsZero() {
		life.add("Renewed by access", instant(t, now))
	}
	if t := d.Lease.ActedOn; !t.IsZero() {
		life.add("Shutdown time acted on", instant(t, now))
	}
	if l := d.Spec.Lifetime; l.IdleTimeout > 0 {
		text := "after " + l.IdleTimeout.String()
		if x.LastActivity != nil && x.Phase == plan.Running && x.Hold == nil {
			text += ", not before " + instant(x.LastActivity.Add(time.Duration(l.IdleTimeout)), now)
		}
		life.add("Idle", text)
	}
	s.section(life)

	again := section{title: "Restarts"}
	if n := d.Restarts.Attempts; n > 0 || d.Spec.Restart.Mode != "" && d.Spec.Restart.Mode != "never" {
		text := fmt.Sprint(n)
		if most := d.Spec.Restart.MaxAttempts; most > 0 {
			text += fmt.Sprintf(" of %d", most)
		}
		again.add("Policy", d.Spec.Restart.Mode)
		again.add("In a row", text)
		if x.Phase == plan.Stopped && !d.Restarts.NextAt.IsZero() {
			again.add("Next", instant(d.Restarts.NextAt, now))
		}
	}
	s.section(again)

	if d.Spec.Health != nil {
		c, health := ready(x), section{title: "Health"}
		switch {
		case x.Phase != plan.Running:
			health.add("Probe", "rests")
		case c.Status == "True":
			health.add("Probe", "passes")
		default:
			health.add("Probe", c.Reason+": "+c.Message)
		}
		s.section(health)
	}

	net := section{title: "Network"}
	if d.Spec.Network != nil {
		net.add("Network", d.Spec.Network.Name)
	}
	if x.AddressV4 != nil {
		net.add("Address", *x.AddressV4)
	}
	for _, name := range slices.Sorted(maps.Keys(x.Ports)) {
		net.add("Port "+name, portOf(x.Ports[name]))
	}
	s.section(net)

	vol := section{title: "Volumes"}
	for _, name := range slices.Sorted(maps.Keys(x.Volumes)) {
		vol.add(name, x.Volumes[name])
	}
	s.section(vol)

	labels := section{title: "Labels"}
	for _, name := range slices.Sorted(maps.Keys(x.Labels)) {
		labels.add(name, x.Labels[name])
	}
	s.section(labels)

	s.Linef("\n%s\n", s.paint(bold, "Conditions"))
	var rows [][]string
	for _, c := range x.Conditions {
		rows = append(rows, []string{c.Type, c.Status, c.Reason, ago(c.Since, now), c.Message})
	}
	s.table(2, []column{{"TYPE", 0}, {"STATUS", 0}, {"REASON", 0}, {"SINCE", 1}, {"MESSAGE", 2}}, rows)

	s.Linef("\n%s\n", s.paint(bold, "Spec"))
	for _, line := range s.specLines(d.Spec, d.Sources) {
		s.Linef("  %s\n", line)
	}

	s.eventTable(d.Events)
	if notes := standing([]reconcile.SandboxView{*x}, agent, now); len(notes) > 0 {
		s.Linef("\n%s %s\n", s.paint(bold, "Note:"), oneLine(notes[len(notes)-1])) // the reason stands above
	}
}

// eventTable writes what happened to one thing.
func (s *Screen) eventTable(events []reconcile.Event) {
	if len(events) == 0 {
		return
	}
	s.Linef("\n%s\n", s.paint(bold, "Events"))
	var rows [][]string
	for _, e := range events {
		rows = append(rows, []string{e.At.UTC().Format(time.RFC3339), e.Type, e.Reason, e.By, e.Message})
	}
	s.table(2, []column{{"AT", 0}, {"TYPE", 0}, {"REASON", 1}, {"BY", 3}, {"MESSAGE", 2}}, rows)
}

// nextOf tells what is due, when and why. The cause of an expiry is worded for the
// time after it.
func nextOf(action string, at, now time.Time) string {
	action, cause, _ := strings.Cut(action, ": ")
	text := action + " at " + instant(at, now)
	if cause != "" {
		text += ": " + strings.TrimSuffix(cause, " passed")
	}
	return text
}

// expired tells which deadline passed and when. EndedAt must be set.
func expired(x *reconcile.SandboxView, now time.Time) string {
	text := x.EndedAt.UTC().Format(time.RFC3339)
	for _, c := range x.Conditions {
		if c.Type == "Expired" && c.Status == "True" {
			text += " (" + c.Reason + ")"
		}
	}
	return text + ", " + ago(*x.EndedAt, now)
}

func declaredOf(x *reconcile.SandboxView) string {
	if x.DeclaredMode == "" || x.DeclaredMode == x.Mode {
		return ""
	}
	return " (declared " + x.DeclaredMode + ")"
}

func at(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return instant(*t, now)
}

// outcomeOf tells how the main process ended.
func outcomeOf(o *plan.Outcome, now time.Time) string {
	text := outcomeWords(o)
	if o.Reason != "" {
		text += ", " + o.Reason
	}
	return text + ", " + instant(o.At, now)
}

func outcomeWords(o *plan.Outcome) string {
	text := fmt.Sprintf("exit code %d", o.ExitCode)
	if o.Signal != 0 {
		text = fmt.Sprintf("signal %d", o.Signal)
	}
	if o.OOM {
		text += ", out of memory"
	}
	return text
}

// specLines are the attributes of a spec that are set, aligned, each with the place
// where it was written; one without is the language's default.
func (s *Screen) specLines(spec config.Sandbox, sources map[string]config.Position) []string {
	raw, err := json.Marshal(spec)
	if err != nil {
		return []string{"cannot be shown: " + err.Error()}
	}
	all := leaves(raw, nil)
	width := 0
	for _, l := range all {
		width = max(width, columns(l.path))
	}
	of := &config.Resource[config.Sandbox]{Sources: sources}
	var out []string
	for _, l := range all {
		text := strings.Split(pad(printable(l.path), width)+" = "+literal(sized(l.path, l.value), 0), "\n")
		if p, written := sourceOf(of, l.path); written {
			text[0] += "  " + s.paint(dim, "# "+placeOf(p))
		}
		out = append(out, text...)
	}
	return out
}

// placeOf says where a value was written, and through which policy.
func placeOf(p config.Position) string {
	text := "default"
	if p.File != "" {
		text = fmt.Sprintf("%s:%d", printable(p.File), p.Line)
	}
	if p.Policy != "" {
		text += " (" + printable(p.Policy) + ")"
	}
	return text
}
