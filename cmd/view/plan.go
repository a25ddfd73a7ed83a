package view

import (
	"fmt"
	"strings"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// actionWords are the participle of an action, for where the planner gives no
// consequence, and its colour.
var actionWords = map[plan.Action]struct {
	done  string
	color style
}{
	plan.ActCreate:   {"created", green},
	plan.ActUpdate:   {"updated", amber},
	plan.ActRestart:  {"restarted", amber},
	plan.ActReplace:  {"replaced", red},
	plan.ActDelete:   {"destroyed", red},
	plan.ActStart:    {"started", cyan},
	plan.ActStop:     {"stopped", cyan},
	plan.ActSuspend:  {"suspended", cyan},
	plan.ActPause:    {"paused", cyan},
	plan.ActResume:   {"resumed", cyan},
	plan.ActExpire:   {"expired", amber},
	plan.ActRecreate: {"recreated", cyan},
	plan.ActRepair:   {"repaired", cyan},
	plan.ActMove:     {"moved", cyan},
	plan.ActImport:   {"imported", cyan},
	plan.ActRelease:  {"released", cyan},
	plan.ActForget:   {"forgotten", amber},
	plan.ActNoop:     {"recorded", plain},
}

// headline is what will become of one resource, what it costs and why.
func (s *Screen) headline(c *plan.Change) string {
	words, known := actionWords[c.Action]
	if !known {
		words.done = string(c.Action)
	}
	done, rest := oneLine(c.Consequence), ""
	if done == "" {
		done = words.done
	}
	if i := strings.IndexAny(done, ",:"); i >= 0 {
		done, rest = done[:i], done[i:]
	}
	// Terraform's words, where it has the same.
	switch {
	case c.Action == plan.ActMove:
		return "  " + s.paint(bold, "# "+oneLine(c.From)) + " has " + s.paint(words.color, "moved") + " to " + s.paint(bold, oneLine(c.Address))
	case c.Action == plan.ActForget && c.Reason == plan.Released:
		return "  " + s.paint(bold, "# "+oneLine(c.Address)) + " will " + s.paint(words.color, "no longer be managed by pinfold") + ", but will not be destroyed" +
			rest + "      " + s.paint(dim, "("+oneLine(c.Cause)+")")
	}
	cause := ""
	if c.Cause != "" {
		cause = "      " + s.paint(dim, "("+oneLine(c.Cause)+")")
	}
	return "  " + s.paint(bold, "# "+oneLine(c.Name())) + " will be " + s.paint(words.color, done) + rest + cause
}

var symbolColors = map[string]style{"+": green, "-": red, "~": amber, "-/+": red, "+/-": red, ">": cyan}

// symbol right-aligns a change's sign in three columns: "  ~", "-/+".
func (s *Screen) symbol(sign string) string {
	return spaces(3-columns(sign)) + s.paint(symbolColors[sign], sign)
}

// change writes one resource's part of the plan.
func (s *Screen) change(c *plan.Change) {
	s.Linef("%s\n", s.headline(c))
	for _, a := range attributes(c, 4) {
		remark := ""
		if a.remark != "" {
			remark = "   " + s.paint(red, "# "+a.remark)
		}
		s.Linef("%s %s = %s%s\n", s.symbol(a.symbol), a.path, s.colorEdits(a.value), remark)
	}
	if c.Kind == "sandbox" {
		for _, v := range c.Volumes {
			s.Linef("%s volume %s with its data\n", s.symbol("-"), quote(v))
		}
	}
	for _, note := range c.Notes {
		s.Linef("%s %s\n", s.symbol(">"), oneLine(note))
	}
	s.Linef("\n")
}

// colorEdits paints the signs that begin the lines of a value's difference.
func (s *Screen) colorEdits(value string) string {
	if !s.Color || !strings.Contains(value, "\n") {
		return value
	}
	all := strings.Split(value, "\n")
	for i, line := range all[1:] {
		text := strings.TrimLeft(line, " ")
		for _, sign := range []string{"+", "-", "~"} {
			if strings.HasPrefix(text, sign+" ") {
				all[i+1] = line[:len(line)-len(text)] + s.paint(symbolColors[sign], sign) + text[1:]
			}
		}
	}
	return strings.Join(all, "\n")
}

// Plan writes a plan for people. Beside errors, which the caller shows, only
// what would be done without them is written. destroy tells that it is a plan to
// end things.
func (s *Screen) Plan(r *reconcile.PlanResult, destroy bool) {
	p := r.Plan
	if p == nil {
		return
	}
	wrong := PlanDiagnostics(r).HasErrors()
	if wrong && !Changes(p) {
		return
	}
	if len(p.Drift) > 0 {
		s.Linef("%s\n\n", s.paint(bold, "Note: the host has changed outside of pinfold:"))
		for _, d := range p.Drift {
			s.Linef("  %s %s\n", s.paint(bold, "# "+oneLine(d.Address)+":"), oneLine(d.What))
		}
		s.Linef("\n")
	}
	var outputs, shown []*plan.Change
	for i := range p.Changes {
		switch c := &p.Changes[i]; {
		case c.Kind == "output":
			outputs = append(outputs, c)
		case c.Deposed != "" && c.PartOfReplace(): // said with the replacement
		case c.Action != plan.ActNoop: // a noop is bookkeeping
			shown = append(shown, c)
		}
	}
	switch {
	case wrong:
		s.Linef("Were it not for what is wrong below, pinfold would do the following:\n\n")
	case len(shown) > 0:
		s.Linef("pinfold will do the following:\n\n")
	}
	for _, c := range shown {
		s.change(c)
	}
	s.outputChanges(outputs)
	switch {
	case p.RefreshOnly && len(p.Refresh) > 0:
		s.Linef("%s What is seen of %s is recorded by apply -refresh-only, which changes nothing on the host.\n", s.paint(bold, "Plan:"), oneLine(Some(p.Refresh)))
	case p.RefreshOnly:
		s.Linef("%s The records say what is on the host.\n", s.paint(green, s.paint(bold, "No changes.")))
	case len(shown) == 0 && len(outputs) == 0 && destroy:
		s.Linef("%s There is nothing to destroy.\n", s.paint(green, s.paint(bold, "No changes.")))
	case len(shown) == 0 && len(outputs) == 0:
		s.Linef("%s The host is as declared.\n", s.paint(green, s.paint(bold, "No changes.")))
	case len(shown) == 0:
		s.Linef("%s Only outputs change.\n", s.paint(bold, "Plan:"))
	default:
		s.Linef("%s %s\n", s.paint(bold, "Plan:"), summary(p.Summary, plan.NotedOf(p.Changes)))
	}
	for _, note := range p.Notes {
		s.Linef("%s %s\n", s.paint(bold, "Note:"), oneLine(note))
	}
}

// Some names the first few of many.
func Some(addresses []string) string {
	const few = 3
	if n := len(addresses); n > few {
		return strings.Join(addresses[:few], ", ") + fmt.Sprintf(" and %d more", n-few)
	}
	return strings.Join(addresses, ", ")
}

// summary is the counts of a plan, without "Plan:".
func summary(n plan.Summary, of plan.Noted) string {
	return fmt.Sprintf("%d to add, %d to change%s, %d to replace, %d to destroy%s; %d to converge.",
		n.Add, n.Change, moved(of), n.Replace, n.Destroy, givenUp(of), n.Converge)
}

// moved says how many of the changes beside it only give another address.
func moved(n plan.Noted) string {
	if n.Moved == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d moved)", n.Moved)
}

// givenUp says how many of the destroyed beside it are not: they stay on the host.
func givenUp(n plan.Noted) string {
	if n.GivenUp == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d of them only given up, left on the host)", n.GivenUp)
}

func (s *Screen) outputChanges(outputs []*plan.Change) {
	if len(outputs) == 0 {
		return
	}
	names := make([]string, len(outputs))
	width := 0
	for i, c := range outputs {
		names[i] = oneLine(strings.TrimPrefix(c.Address, "output."))
		width = max(width, columns(names[i]))
	}
	s.Linef("Changes to outputs:\n\n")
	for i, c := range outputs {
		d := plan.Diff{Path: names[i], Before: c.Before, After: c.After, Unknown: len(c.Unknown) > 0}
		if len(c.Diff) == 1 {
			d = c.Diff[0]
		}
		a := difference(d, false, 4)
		s.Linef("%s %s = %s\n", s.symbol(a.symbol), pad(names[i], width), s.colorEdits(a.value))
	}
	s.Linef("\n")
}

// Changes reports whether a plan would do anything, for -detailed-exitcode:
// computed from the list of actions or, where recording what is seen is all that was
// asked for, from what there is to record.
func Changes(p *plan.Plan) bool {
	return p != nil && (!p.Empty() || p.RefreshOnly && len(p.Refresh) > 0)
}

// Steps counts what an apply of the plan reports the progress of.
func Steps(p *plan.Plan) int {
	n := 0
	for _, c := range p.Changes {
		if c.Kind != "output" && c.Action != plan.ActNoop {
			n++
		}
	}
	return n
}
