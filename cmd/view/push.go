package view

import (
	"io"

	"pinfold/reconcile"
)

// StateJSON writes `state pull`.
func StateJSON(w io.Writer, d *reconcile.StateDocument) error { return JSON(w, d) }

// PushJSON writes `state push -json`.
func PushJSON(w io.Writer, r *reconcile.PushResult) error {
	doc := *r
	doc.FormatVersion, doc.Unrecorded = FormatVersion, list(r.Unrecorded)
	return JSON(w, doc)
}

// WouldPush tells what a push would do.
func (s *Screen) WouldPush(r *reconcile.PushResult, name string) {
	s.Linef("%s would be what %s records: %s; lineage %s.\n", printable(r.Path), printable(name), records(r.Documents), printable(r.Lineage))
	s.unrecorded(r.Unrecorded)
}

// Pushed tells what a push did.
func (s *Screen) Pushed(r *reconcile.PushResult, name string) {
	s.Linef("Pushed %s to %s: lineage %s, serial %d, %s.\n", printable(name), printable(r.Path), printable(r.Lineage), r.Serial, records(r.Documents))
	if r.Aside != nil {
		s.Linef("What was there is now %s; 'pinfold state restore' of it puts it back.\n", printable(*r.Aside))
	}
	s.unrecorded(r.Unrecorded)
	s.Linef("'pinfold plan' shows what the files and the host are beyond it.\n")
}

func (s *Screen) unrecorded(ids []string) {
	if n := len(ids); n > 0 {
		s.Linef("%s without a record: 'pinfold gc -dry-run' tells, 'pinfold gc -adopt ID' takes it back.\n", plural(n, "instance on this host is", "instances on this host are"))
	}
}
