package view

import (
	"fmt"
	"slices"
	"strings"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// actionWords say what will become of a resource: the participle of the
// headline, the planner's own word for the same (dropped from a consequence
// that repeats it) and the colour.
var actionWords = map[plan.Action]struct {
	done  string
	verbs []string
	color style
}{
	plan.ActCreate:   {"created", []string{"create"}, green},
	plan.ActUpdate:   {"updated in place", []string{"update in place", "update"}, amber},
	plan.ActRestart:  {"updated", []string{"update", "restart"}, amber},
	plan.ActReplace:  {"replaced", []string{"replace"}, red},
	plan.ActDelete:   {"destroyed", []string{"destroy", "delete"}, red},
	plan.ActStart:    {"started", []string{"start"}, cyan},
	plan.ActStop:     {"stopped", []string{"stop"}, cyan},
	plan.ActSuspend:  {"suspended", []string{"suspend"}, cyan},
	plan.ActPause:    {"paused", []string{"pause"}, cyan},
	plan.ActResume:   {"resumed", []string{"resume"}, cyan},
	plan.ActExpire:   {"expired", []string{"expire"}, amber},
	plan.ActRecreate: {"recreated", []string{"recreate"}, cyan},
	plan.ActRepair:   {"repaired in place", []string{"repair in place", "repair"}, cyan},
	plan.ActMove:     {"moved", []string{"move"}, cyan},
	plan.ActImport:   {"imported", []string{"import"}, cyan},
	plan.ActRelease:  {"released from its hold", []string{"release"}, cyan},
	plan.ActForget:   {"forgotten", []string{"forget"}, amber},
	plan.ActNoop:     {"brought up to date in the record", []string{"update the record"}, plain},
}

// headline is what will become of one resource, what it costs and why.
func (s *Screen) headline(c *plan.Change) string {
	words, known := actionWords[c.Action]
	if !known {
		words.done = string(c.Action)
	}
	done, rest := words.done, printable(c.Consequence)
	for _, verb := range append([]string{words.done}, words.verbs...) {
		if after, ok := strings.CutPrefix(rest, verb); ok && (after == "" || strings.ContainsAny(after[:1], ",:; ")) {
			rest = after
			break
		}
	}
	switch {
	case rest == "":
	case strings.ContainsAny(rest[:1], ",:; "):
	default:
		rest = ", " + rest
	}
	cause := ""
	if c.Cause != "" {
		cause = "      " + s.paint(dim, "("+printable(c.Cause)+")")
	}
	return "  " + s.paint(bold, "# "+printable(c.Address)) + " will be " + s.paint(words.color, done) + rest + cause
}

var symbolColors = map[string]style{"+": green, "-": red, "~": amber, "-/+": red, ">": cyan}

// symbol right-aligns a change's sign in three columns: "  ~", "-/+".
func (s *Screen) symbol(sign string) string {
	return spaces(3-columns(sign)) + s.paint(symbolColors[sign], sign)
}

// change writes one resource's part of the plan.
func (s *Screen) change(c *plan.Change) {
	s.Printf("%s\n", s.headline(c))
	for _, a := range attributes(c, 4) {
		remark := ""
		if a.remark != "" {
			remark = "   " + s.paint(red, "# "+a.remark)
		}
		s.Printf("%s %s = %s%s\n", s.symbol(a.symbol), a.path, s.colorEdits(a.value), remark)
	}
	for _, v := range c.Volumes {
		s.Printf("%s volume %s with its data\n", s.symbol("-"), quote(v))
	}
	if len(c.Missing) > 0 {
		s.Printf("%s missing: %s\n", s.symbol(">"), strings.Join(c.Missing, ", "))
	}
	for _, note := range c.Notes {
		s.Printf("%s %s\n", s.symbol(">"), printable(note))
	}
	s.Printf("\n")
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

// Plan writes a plan for people.
func (s *Screen) Plan(r *reconcile.PlanResult) {
	p := r.Plan
	if p == nil {
		return
	}
	if len(p.Drift) > 0 {
		s.Printf("%s\n\n", s.paint(bold, "Note: the host has changed outside of pinfold:"))
		for _, d := range p.Drift {
			s.Printf("  %s %s\n", s.paint(bold, "# "+printable(d.Address)+":"), printable(d.What))
		}
		s.Printf("\n")
	}
	var outputs []*plan.Change
	shown := 0
	for i := range p.Changes {
		c := &p.Changes[i]
		switch {
		case c.Kind == "output":
			outputs = append(outputs, c)
		case c.Action == plan.ActNoop && len(c.Diff) == 0 && c.Consequence == "" && len(c.Notes) == 0:
			// bookkeeping nobody has to read
		default:
			if shown == 0 {
				s.Printf("pinfold will do the following:\n\n")
			}
			shown++
			s.change(c)
		}
	}
	s.outputChanges(outputs)
	switch {
	case shown == 0 && len(outputs) == 0:
		s.Printf("%s The host is as declared.\n", s.paint(green, s.paint(bold, "No changes.")))
	case shown == 0:
		s.Printf("%s Only outputs change.\n", s.paint(bold, "Plan:"))
	default:
		s.Printf("%s %s\n", s.paint(bold, "Plan:"), summary(p.Summary))
	}
	for _, note := range p.Notes {
		s.Printf("%s %s\n", s.paint(bold, "Note:"), printable(note))
	}
}

// summary is the counts of a plan: contract 8's line without "Plan:".
func summary(n plan.Summary) string {
	return fmt.Sprintf("%d to add, %d to change, %d to replace, %d to destroy; %d to converge.",
		n.Add, n.Change, n.Replace, n.Destroy, n.Converge)
}

func (s *Screen) outputChanges(outputs []*plan.Change) {
	if len(outputs) == 0 {
		return
	}
	names := make([]string, len(outputs))
	width := 0
	for i, c := range outputs {
		names[i] = printable(strings.TrimPrefix(c.Address, "output."))
		width = max(width, columns(names[i]))
	}
	s.Printf("Changes to outputs:\n\n")
	for i, c := range outputs {
		d := plan.Diff{Path: names[i], Before: c.Before, After: c.After, Unknown: len(c.Unknown) > 0}
		if len(c.Diff) == 1 {
			d = c.Diff[0]
		}
		a := difference(d, false, 4)
		s.Printf("%s %s = %s\n", s.symbol(a.symbol), pad(names[i], width), s.colorEdits(a.value))
	}
	s.Printf("\n")
}

// Changes reports whether a plan would do anything, for -detailed-exitcode:
// computed from the list of actions. Taking over what was observed counts only
// where that alone was asked for.
func Changes(p *plan.Plan, refreshOnly bool) bool {
	return p != nil && slices.ContainsFunc(p.Changes, func(c plan.Change) bool {
		return c.Action != plan.ActNoop || refreshOnly
	})
}
