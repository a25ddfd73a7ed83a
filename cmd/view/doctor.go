package view

import (
	"pinfold/reconcile"
)

// Doctor writes what a look at host, state and agent found, a check a line, what to do
// below it.
func (s *Screen) Doctor(r *reconcile.DoctorResult) {
	about := ""
	for _, c := range r.Checks {
		if c.About != about {
			if about != "" {
				s.Printf("\n")
			}
			about = c.About
			s.Printf("%s\n", s.paint(bold, printable(about)))
		}
		style := map[string]style{"ok": green, "warn": amber, "fail": red}[c.Status]
		s.Linef("  %s %s: %s\n", s.paint(style, pad(oneLine(c.Status), 4)), printable(c.Name), oneLine(c.Found))
		if c.Advice != nil {
			s.Linef("       %s\n", oneLine(*c.Advice))
		}
	}
	s.Printf("\n")
	switch {
	case r.Failed > 0:
		s.Linef("%s failed, %s.\n", plural(r.Failed, "check", "checks"), plural(r.Warned, "warning", "warnings"))
	case r.Warned > 0:
		s.Linef("Nothing failed; %s.\n", plural(r.Warned, "warning", "warnings"))
	default:
		s.Printf("Everything is in order.\n")
	}
}
