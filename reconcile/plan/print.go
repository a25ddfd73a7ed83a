package plan

import (
	"fmt"
	"strings"
)

// String is the change in one line, all that decides included.
func (c Change) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s (%s: %s): %s", c.Action, c.Address, c.Origin, c.Cause, c.Consequence)
	add := func(format string, args ...any) { fmt.Fprintf(&b, "; "+format, args...) }
	if c.Then != "" {
		add("then %s", c.Then)
	}
	if c.Fresh {
		add("fresh")
	}
	if c.CreateFirst {
		add("create first")
	}
	if c.Deposed != "" {
		add("deposed %s", c.Deposed)
	}
	if c.NewLease {
		add("new lease")
	}
	if c.Revive {
		add("revived")
	}
	if !c.Deadline.IsZero() {
		add("deadline %s", exact(c.Deadline))
	}
	if !c.Warn.IsZero() {
		add("warns of %s", exact(c.Warn))
	}
	for h := c.Hold; h != nil; h = h.Under {
		add("held %s by %s", h.Mode, h.By)
	}
	if c.Reason != "" {
		add("reason %s", c.Reason)
	}
	if len(c.Missing) > 0 {
		add("missing %s", strings.Join(c.Missing, ","))
	}
	if len(c.Volumes) > 0 {
		add("loses %s", strings.Join(c.Volumes, ","))
	}
	if len(c.Diff) > 0 {
		paths := make([]string, len(c.Diff))
		for i, d := range c.Diff {
			paths[i] = d.Path
			if d.Unknown {
				paths[i] += "?"
			}
			if d.Replace {
				paths[i] += "!"
			}
		}
		add("diff %s", strings.Join(paths, ","))
	}
	if len(c.DependsOn) > 0 {
		add("after %s", strings.Join(c.DependsOn, ","))
	}
	for _, n := range c.Notes {
		add("note: %s", n)
	}
	return b.String()
}

// String is the plan, a line each for changes, drift, notes, diagnostics, the
// summary and the moment to look again; Status is left out.
func (p *Plan) String() string {
	var b strings.Builder
	for _, c := range p.Changes {
		b.WriteString(c.String() + "\n")
	}
	for _, d := range p.Drift {
		b.WriteString("drift " + d.Address + ": " + d.What + "\n")
	}
	for _, n := range p.Notes {
		b.WriteString("note: " + n + "\n")
	}
	for _, d := range p.Diags {
		b.WriteString(d.Severity + ": " + d.Summary + "\n")
	}
	if s := p.Summary; s != (Summary{}) {
		fmt.Fprintf(&b, "%d to add, %d to change, %d to replace, %d to destroy; %d to converge\n", s.Add, s.Change, s.Replace, s.Destroy, s.Converge)
	}
	if !p.WakeAt.IsZero() {
		b.WriteString("wake at " + exact(p.WakeAt) + "\n")
	}
	return b.String()
}
