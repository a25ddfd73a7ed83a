package view

import (
	"io"

	"pinfold/reconcile"
)

// StateMoveJSON writes `state mv -json`.
func StateMoveJSON(w io.Writer, r *reconcile.StateMoveResult) error {
	doc := *r
	doc.FormatVersion, doc.Moved = FormatVersion, list(r.Moved)
	return JSON(w, doc)
}

// StateRemoveJSON writes `state rm -json`.
func StateRemoveJSON(w io.Writer, r *reconcile.StateRemoveResult) error {
	doc := *r
	doc.FormatVersion, doc.Removed = FormatVersion, list(r.Removed)
	return JSON(w, doc)
}

// Moved tells which records have other addresses now.
func (s *Screen) Moved(r *reconcile.StateMoveResult) {
	verb := "Moved"
	if r.DryRun {
		verb = "Would move"
	}
	for _, m := range r.Moved {
		s.Linef("%s %s to %s%s\n", verb, s.paint(bold, oneLine(m.From)), s.paint(bold, oneLine(m.To)), bracketed(m.ID))
	}
	if r.DryRun {
		s.Linef("\n%s would be moved. Nothing was changed.\n", plural(len(r.Moved), "record", "records"))
		return
	}
	s.Linef("\n%s moved. Nothing on the host was touched.\n", plural(len(r.Moved), "record", "records"))
}

// Forgotten tells what is on record no more, and how it comes back.
func (s *Screen) Forgotten(r *reconcile.StateRemoveResult) {
	verb := "Forgot"
	if r.DryRun {
		verb = "Would forget"
	}
	for _, x := range r.Removed {
		s.Linef("%s %s%s\n", verb, s.paint(bold, oneLine(x.Address)), bracketed(x.ID))
	}
	if r.DryRun {
		s.Linef("\n%s would be forgotten, and left on the host as it is. Nothing was changed.\n", plural(len(r.Removed), "record", "records"))
		return
	}
	s.Linef("\n%s forgotten, and left on the host as it is.\n", plural(len(r.Removed), "record", "records"))
	for _, x := range r.Removed {
		if x.ID != "" && x.Kind == "sandbox" {
			s.Linef("An import block with its id takes a sandbox back.\n")
			return
		}
	}
}
