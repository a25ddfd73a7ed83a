package reconcile

import (
	"fmt"
	"slices"
	"strings"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// Conditions during an apply. What a plan could not tell yet is told once what it
// speaks of exists: a precondition before the first step of its resource, a
// postcondition after the last one, an assert and the precondition of an output in the
// end. The agent, which has no files, evaluates none.

// The kinds and statuses of config.Check.
const (
	assertion     = "assert"
	precondition  = "precondition"
	postcondition = "postcondition"
	failed        = "fail"
	undecided     = "unknown"
)

// judged names the conditions of one kind of one thing.
type judged struct{ address, kind string }

// byThing indexes conditions.
func byThing(checks []config.Check) map[judged][]config.Check {
	m := map[judged][]config.Check{}
	for _, c := range checks {
		k := judged{c.Address, c.Kind}
		m[k] = append(m[k], c)
	}
	return m
}

// refused are the diagnostics of a plan whose configuration has conditions that fail.
// They stop only what is to make something of it: not what ends everything, or changes
// nothing but records.
func refused(src *config.Source, settings config.Settings, exports config.Exports, desired *config.Desired, o plan.Options) config.Diagnostics {
	if o.Destroy || o.RefreshOnly || !slices.ContainsFunc(desired.Checks, func(c config.Check) bool { return c.Status == failed }) {
		return nil
	}
	_, diags := src.Evaluate(settings, exports)
	return diags
}

// judge evaluates the conditions of one kind of a resource that were unknown at plan. One
// that still cannot be told is no obstacle.
func (r *run) judge(address, kind string) error {
	if !r.undecided[judged{address, kind}] {
		return nil
	}
	v := &r.again
	v.mu.Lock()
	defer v.mu.Unlock()
	for pass := range 2 {
		now, err := v.evaluated(r, pass > 0)
		if err != nil {
			return err
		}
		open := false
		var wrong []string
		for _, c := range now.checks[judged{address, kind}] {
			open = open || c.Status == undecided
			if c.Status == failed {
				wrong = append(wrong, told(c))
			}
		}
		switch {
		case len(wrong) > 0:
			return fmt.Errorf("%s of %s failed: %s", kind, address, strings.Join(wrong, "; "))
		case !open:
			return nil
		}
	}
	return nil
}

// told words a condition that failed.
func told(c config.Check) string {
	text := c.Message
	if text == "" {
		text = "the condition is false"
	}
	if c.Source.File != "" {
		text += fmt.Sprintf(" (%s:%d)", c.Source.File, c.Source.Line)
	}
	return text
}

// concludes takes over what conditions come to when everything is done: asserts that
// fail only now are warnings, preconditions of outputs failures.
func (p *prepared) concludes(final *config.Desired, res *ApplyResult) (withheld map[string]bool) {
	if p.options.Destroy || p.options.RefreshOnly {
		return nil
	}
	before := map[config.Check]bool{}
	for _, c := range p.desired.Checks {
		c.Message = ""
		before[c] = true
	}
	withheld = map[string]bool{}
	for _, c := range final.Checks {
		known := c
		known.Message = ""
		if c.Status != failed || before[known] {
			continue
		}
		switch name, isOutput := strings.CutPrefix(c.Address, "output."); {
		case c.Kind == assertion:
			res.Warnings = append(res.Warnings, config.Diagnostic{Severity: "warning", Summary: "Check failed", Address: c.Address, Detail: told(c)})
		case isOutput && c.Kind == precondition:
			withheld[name] = true
			res.Failures = append(res.Failures, Failure{Address: c.Address, Action: plan.ActUpdate, Error: "precondition failed: " + told(c)})
		}
	}
	res.Checks = final.Checks
	return withheld
}
