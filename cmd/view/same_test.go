package view

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

var (
	headlineOf = regexp.MustCompile(`(?m)^  # (\S+) will (?:be|no longer be) (.*?)(?:      \((.*)\))?$`)
	movedOf    = regexp.MustCompile(`(?m)^  # (\S+) has moved to (\S+)$`)
	driftOf    = regexp.MustCompile(`(?m)^  # (\S+): (.*)$`)
	outputOf   = regexp.MustCompile(`(?m)^  [-+~] (\w+) +=`)
	summaryOf  = regexp.MustCompile(`(?m)^Plan: (\d+) to add, (\d+) to change(?: \([^)]*\))?, (\d+) to replace, (\d+) to destroy(?: \([^)]*\))?; (\d+) to converge\.$`)
	noteOf     = regexp.MustCompile(`(?m)^Note: (.*)$`)
	errorOf    = regexp.MustCompile(`(?m)^│ (Error|Warning): (.*)$`)
)

// People and programs are told the same: each step with its cause, each drift, note,
// count and diagnostic of a plan's JSON is in its text, and nothing else is. Only a noop,
// which is bookkeeping and never counted, stands in the JSON alone.
func TestPlanSaysTheSameToPeopleAndPrograms(t *testing.T) {
	actions := []plan.Action{
		plan.ActCreate, plan.ActUpdate, plan.ActRestart, plan.ActReplace, plan.ActDelete, plan.ActStart, plan.ActStop, plan.ActSuspend, plan.ActPause,
		plan.ActResume, plan.ActExpire, plan.ActRecreate, plan.ActRepair, plan.ActMove, plan.ActImport, plan.ActRelease, plan.ActForget, plan.ActNoop,
	}
	rapid.Check(t, func(t *rapid.T) {
		p := &plan.Plan{}
		words := rapid.StringMatching(`[a-z]+( [a-z]+){0,3}`)
		for i := range rapid.IntRange(0, 8).Draw(t, "changes") {
			action := rapid.SampledFrom(actions).Draw(t, "action")
			c := plan.Change{
				Address: fmt.Sprintf("sandbox.s%d", i), Kind: "sandbox", Action: action, Cause: words.Draw(t, "cause"),
				Origin: rapid.SampledFrom([]plan.Origin{plan.FromFiles, plan.FromHost}).Draw(t, "origin"),
			}
			if action == plan.ActMove {
				c.From = fmt.Sprintf("sandbox.old%d", i)
			} else if rapid.Bool().Draw(t, "worded") {
				c.Consequence = words.Draw(t, "consequence")
			}
			p.Changes = append(p.Changes, c)
		}
		for i := range rapid.IntRange(0, 2).Draw(t, "outputs") {
			p.Changes = append(p.Changes, plan.Change{Address: fmt.Sprintf("output.o%d", i), Kind: "output", Action: plan.ActUpdate, Before: raw(`1`), After: raw(`2`)})
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "drift") {
			p.Drift = append(p.Drift, plan.Drift{Address: fmt.Sprintf("network.n%d", i), What: words.Draw(t, "what")})
		}
		p.Notes = rapid.SliceOfN(words, 0, 3).Draw(t, "notes")
		p.Summary = plan.Summarize(p.Changes)
		var diags config.Diagnostics
		for i := range rapid.IntRange(0, 3).Draw(t, "diagnostics") {
			severity := rapid.SampledFrom([]string{"error", "warning"}).Draw(t, "severity")
			diags = append(diags, config.Diagnostic{Severity: severity, Summary: fmt.Sprintf("%s %d", words.Draw(t, "summary"), i)})
		}
		same(t, &reconcile.PlanResult{Plan: p, Diagnostics: diags})
	})
	for _, r := range []*reconcile.PlanResult{everyAction(), {Plan: &plan.Plan{}}} {
		rapid.Check(t, func(t *rapid.T) { same(t, r) })
	}
}

func same(t *rapid.T, r *reconcile.PlanResult) {
	text := string(shown(false, 0, func(s *Screen) {
		s.Plan(r, false)
		if err := config.Fprint(s, PlanDiagnostics(r), false, 0); err != nil {
			t.Fatal(err)
		}
	}))
	var out bytes.Buffer
	if err := PlanJSON(&out, r, nil); err != nil {
		t.Fatal(err)
	}
	var doc planDocument
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	var told, written []string // by people's text, by JSON
	add := func(to *[]string, format string, args ...any) { *to = append(*to, fmt.Sprintf(format, args...)) }
	for _, m := range headlineOf.FindAllStringSubmatch(text, -1) {
		add(&told, "step %s (%s)", m[1], m[3])
	}
	for _, m := range movedOf.FindAllStringSubmatch(text, -1) {
		add(&told, "step %s from %s", m[2], m[1])
	}
	for _, m := range driftOf.FindAllStringSubmatch(text, -1) {
		add(&told, "drift %s %s", m[1], m[2])
	}
	_, outputs, _ := strings.Cut(text, "Changes to outputs:\n")
	outputs, _, _ = strings.Cut(outputs, "\nPlan:")
	for _, m := range outputOf.FindAllStringSubmatch(outputs, -1) {
		add(&told, "output %s", m[1])
	}
	for _, m := range noteOf.FindAllStringSubmatch(text, -1) {
		if m[1] != "the host has changed outside of pinfold:" {
			add(&told, "note %s", m[1])
		}
	}
	for _, m := range errorOf.FindAllStringSubmatch(text, -1) {
		add(&told, "%s %s", strings.ToLower(m[1]), m[2])
	}
	steps := 0
	for _, c := range doc.Changes {
		switch {
		case c.Kind == "output":
			add(&written, "output %s", strings.TrimPrefix(c.Address, "output."))
		case c.Action == plan.ActMove && c.PreviousAddress != nil:
			add(&written, "step %s from %s", c.Address, *c.PreviousAddress)
			steps++
		case c.Action != plan.ActNoop:
			add(&written, "step %s (%s)", c.Address, c.Cause)
			steps++
			if words := c.Consequence; words != "" && c.Action != plan.ActForget && !strings.Contains(text, "# "+c.Address+" will be "+words) {
				t.Errorf("what becomes of %s is not told: %s", c.Address, words)
			}
		}
	}
	// Beside an error of a plan that would do nothing there is only the error.
	if !doc.Diagnostics.HasErrors() || steps > 0 || slices.ContainsFunc(doc.Changes, func(c planChange) bool { return c.Action != plan.ActNoop }) {
		for _, d := range doc.Drift {
			add(&written, "drift %s %s", d.Address, d.What)
		}
		for _, n := range doc.Notes {
			add(&written, "note %s", n)
		}
	}
	for _, d := range doc.Diagnostics {
		add(&written, "%s %s", d.Severity, d.Summary)
	}
	slices.Sort(told)
	slices.Sort(written)
	if !slices.Equal(told, written) {
		t.Errorf("people are told\n%s\nand programs\n%s\nof\n%s", strings.Join(told, "\n"), strings.Join(written, "\n"), text)
	}
	m := summaryOf.FindStringSubmatch(text)
	if (m != nil) != (steps > 0) {
		t.Errorf("%d steps, and the counts %q", steps, m)
	}
	if n := doc.Summary; m != nil && strings.Join(m[1:], " ") != fmt.Sprint(n.Add, n.Change, n.Replace, n.Destroy, n.Converge) {
		t.Errorf("people are told %s and programs %+v", m[0], n)
	}
}
