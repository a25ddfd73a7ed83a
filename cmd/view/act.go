package view

import (
	"time"

	"pinfold/reconcile"
)

// Acted says in a line what a sandbox is after an operator's verb.
func (s *Screen) Acted(r *reconcile.ActResult, now time.Time) {
	x := &r.Sandbox
	text := phaseOf(x)
	if h := x.Hold; h != nil {
		text += ", held " + oneLine(h.Mode)
		if h.By != "operator" {
			text += " by " + oneLine(h.By)
		}
	}
	switch {
	case x.EndedAt != nil && hasExpired(x):
		text += ", expired " + expired(x, now)
	case x.ExpiresAt != nil:
		text += ", expires " + instant(*x.ExpiresAt, now)
	}
	s.Linef("%s %s\n", s.paint(bold, printable(x.Address)+":"), text)
	if r.Note != "" {
		s.Linef("%s %s\n", s.paint(bold, "Note:"), oneLine(r.Note))
	}
}
