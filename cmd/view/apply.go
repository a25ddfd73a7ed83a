package view

import (
	"fmt"
	"slices"
	"strings"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// Applied writes what an apply (or destroy, with destroyed) came to.
func (s *Screen) Applied(r *reconcile.ApplyResult, destroyed bool) {
	word := "Apply"
	if destroyed {
		word = "Destroy"
	}
	n := r.Applied
	counts := fmt.Sprintf("Resources: %d added, %d changed%s, %d replaced, %d destroyed%s", n.Add, n.Change, moved(r.Noted), n.Replace, n.Destroy, givenUp(r.Noted))
	if destroyed {
		counts = fmt.Sprintf("Resources: %d destroyed%s", n.Destroy, givenUp(r.Noted))
	}
	if n.Converge > 0 {
		counts += fmt.Sprintf("; %d converged", n.Converge)
	}
	switch {
	case r.Interrupted:
		s.Linef("\n%s %s.\n", s.paint(amber, s.paint(bold, word+" interrupted!")), counts)
	case len(r.Failures) > 0:
		s.Linef("\n%s %s.\n", s.paint(red, s.paint(bold, word+" incomplete!")), counts)
	default:
		s.Linef("\n%s %s.\n", s.paint(green, s.paint(bold, word+" complete!")), counts)
	}
	if len(r.Outputs) > 0 && !destroyed {
		s.Linef("\n%s\n\n", s.paint(bold, "Outputs:"))
		s.Outputs(r.Outputs)
	}
}

// FailureDiagnostics are the steps that failed as an error each, and those
// skipped for them as one. Of others, the errors beside them, those that speak of
// such a step are left out.
func FailureDiagnostics(failures []reconcile.Failure, others config.Diagnostics) config.Diagnostics {
	var out config.Diagnostics
	var skipped []string
	for _, f := range failures {
		if f.Skipped {
			skipped = append(skipped, plan.NameOf(f.Address, f.Deposed)+": "+skippedFor(f.Error))
			continue
		}
		what := fmt.Sprintf("cannot %s %s", f.Action, plan.NameOf(f.Address, f.Deposed))
		// Most errors begin with what failed, which the title says already.
		out = append(out, config.Diagnostic{Severity: "error", Summary: what, Detail: strings.TrimPrefix(f.Error, what+": "), Address: f.Address})
	}
	for _, d := range others {
		if !slices.ContainsFunc(failures, func(f reconcile.Failure) bool { return f.Address == d.Address && f.Error == d.Detail }) {
			out = append(out, d)
		}
	}
	if len(skipped) > 0 {
		out = append(out, config.Diagnostic{Severity: "error", Summary: plural(len(skipped), "step was", "steps were") + " skipped", Detail: strings.Join(skipped, "\n")})
	}
	return out
}

// skippedFor is the engine's reason for a skipped step without the word itself.
func skippedFor(reason string) string { return strings.TrimPrefix(reason, "skipped: ") }
