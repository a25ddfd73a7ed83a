package view

import (
	"io"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// Drift writes how the host differs from what is recorded, and what apply would do
// about it.
func (s *Screen) Drift(r *reconcile.DriftResult) {
	if len(r.Drift) > 0 {
		s.Linef("%s\n\n", s.paint(bold, "The host differs from what is recorded:"))
		for _, d := range r.Drift {
			s.Linef("  %s %s\n", s.paint(bold, "# "+oneLine(d.Address)+":"), oneLine(d.What))
		}
		s.Linef("\n")
	}
	if len(r.Changes) > 0 {
		s.Linef("'pinfold apply' would do the following about it, with the files as they were applied:\n\n")
		for i := range r.Changes {
			s.change(&r.Changes[i])
		}
	}
	converging := map[string]bool{}
	for _, c := range r.Changes {
		converging[c.Address] = true
	}
	switch {
	case !r.Drifted():
		s.Linef("%s The host is as recorded.\n", s.paint(green, s.paint(bold, "No drift.")))
	case len(r.Changes) == 0:
		s.Linef("%s %s, and apply does nothing about it.\n", s.paint(bold, "Drift:"), plural(len(r.Drift), "difference", "differences"))
	default:
		s.Linef("%s %s; %d to converge.\n", s.paint(bold, "Drift:"), plural(len(r.Drift), "difference", "differences"), len(converging))
	}
	if r.Ignored > 0 {
		s.Linef("%s %s not told of (-ignore).\n", s.paint(bold, "Note:"), plural(r.Ignored, "more differs and is", "more differ and are"))
	}
	for _, note := range r.Notes {
		s.Linef("%s %s\n", s.paint(bold, "Note:"), oneLine(note))
	}
}

// DriftDocument is `drift -json`.
type DriftDocument struct {
	FormatVersion string       `json:"format_version"`
	Drifted       bool         `json:"drifted"`
	Drift         []plan.Drift `json:"drift"`
	Changes       []planChange `json:"changes"`
	Notes         []string     `json:"notes"`
	Ignored       int          `json:"ignored"`
	Lineage       string       `json:"lineage"`
	Serial        uint64       `json:"serial"`
}

// DriftJSON writes `drift -json`.
func DriftJSON(w io.Writer, r *reconcile.DriftResult) error {
	return JSON(w, DriftDocument{FormatVersion, r.Drifted(), list(r.Drift), changesOf(r.Changes), list(r.Notes), r.Ignored, r.Lineage, r.Serial})
}
