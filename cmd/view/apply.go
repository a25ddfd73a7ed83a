package view

import (
	"fmt"

	"pinfold/config"
	"pinfold/reconcile"
)

// Applied writes what an apply (or destroy, with destroyed) came to.
func (s *Screen) Applied(r *reconcile.ApplyResult, destroyed bool) {
	word := "Apply"
	if destroyed {
		word = "Destroy"
	}
	n := r.Applied
	counts := fmt.Sprintf("Resources: %d added, %d changed, %d replaced, %d destroyed", n.Add, n.Change, n.Replace, n.Destroy)
	if destroyed {
		counts = fmt.Sprintf("Resources: %d destroyed", n.Destroy)
	}
	if n.Converge > 0 {
		counts += fmt.Sprintf("; %d converged", n.Converge)
	}
	switch {
	case r.Interrupted:
		s.Printf("\n%s %s.\n", s.paint(amber, s.paint(bold, word+" interrupted!")), counts)
	case len(r.Failures) > 0:
		s.Printf("\n%s %s.\n", s.paint(red, s.paint(bold, word+" incomplete!")), counts)
	default:
		s.Printf("\n%s %s.\n", s.paint(green, s.paint(bold, word+" complete!")), counts)
	}
	if len(r.Outputs) > 0 && !destroyed {
		s.Printf("\n%s\n\n", s.paint(bold, "Outputs:"))
		s.Outputs(r.Outputs)
	}
}

// FailureDiagnostics are the steps that failed, and those skipped for them, as
// errors.
func FailureDiagnostics(failures []reconcile.Failure) config.Diagnostics {
	var out config.Diagnostics
	for _, f := range failures {
		summary := fmt.Sprintf("cannot %s %s", f.Action, f.Address)
		if f.Skipped {
			summary = fmt.Sprintf("skipped: %s %s", f.Action, f.Address)
		}
		out = append(out, config.Diagnostic{Severity: "error", Summary: summary, Detail: f.Error, Address: f.Address})
	}
	return out
}
