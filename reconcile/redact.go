package reconcile

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// What is sensitive leaves the engine only for where it is used: into sandboxes.
// Whoever asks gets plans, records and errors without it, so that neither the
// command line nor another client of the socket can show it by mistake.

// redactedPlan is a plan without its sensitive values; the one given stays as it is.
func redactedPlan(p *plan.Plan) *plan.Plan {
	if p == nil || !slices.ContainsFunc(p.Changes, func(c plan.Change) bool { return len(c.Sensitive) > 0 }) {
		return p
	}
	told := *p
	told.Changes = slices.Clone(p.Changes)
	for i := range told.Changes {
		redactChange(&told.Changes[i])
	}
	return &told
}

func redactChange(c *plan.Change) {
	if len(c.Sensitive) == 0 {
		return
	}
	if c.Kind == "output" {
		whole := func(doc json.RawMessage) json.RawMessage {
			if doc == nil {
				return nil
			}
			return config.RedactedValue()
		}
		c.Before, c.After = whole(c.Before), whole(c.After)
		return
	}
	c.Before, c.After = config.Redact("", c.Before, c.Sensitive), config.Redact("", c.After, c.Sensitive)
	c.Diff = slices.Clone(c.Diff)
	for i := range c.Diff {
		d := &c.Diff[i]
		if config.Covered(d.Path, c.Sensitive) {
			d.Before, d.After, d.Sensitive = nil, nil, true
			continue
		}
		d.Before, d.After = config.Redact(d.Path, d.Before, c.Sensitive), config.Redact(d.Path, d.After, c.Sensitive)
		if !d.Unknown && bytes.Equal(d.Before, d.After) { // it differs in what is hidden
			d.Before, d.After, d.Sensitive = nil, nil, true
		}
	}
}

// redactedSpec is a spec without what is sensitive: texts are config.Redacted, other values
// are zero.
func redactedSpec(spec *config.Sandbox, sensitive []string) config.Sandbox {
	if len(sensitive) == 0 {
		return *spec
	}
	told := *spec
	members := map[string]json.RawMessage{}
	doc, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(doc, &members)
	}
	fields := reflect.ValueOf(&told).Elem()
	for _, name := range sensitiveMembers(sensitive) {
		i, known := specFields[name]
		if !known {
			continue
		}
		f := fields.Field(i)
		f.SetZero()
		if err != nil {
			continue
		}
		// A text that is more than a text, as a duration, does not stand for another.
		if json.Unmarshal(config.Redact(name, members[name], sensitive), f.Addr().Interface()) != nil {
			f.SetZero()
		}
	}
	return told
}

// redactedOutputs are outputs without the values of sensitive ones.
func redactedOutputs(all []config.Output) []config.Output {
	told := slices.Clone(all)
	for i := range told {
		if told[i].Sensitive && told[i].Value != nil {
			told[i].Value = config.RedactedValue()
		}
	}
	return told
}

// secretsOf are the texts in a spec that are sensitive, the longest first.
func secretsOf(spec *config.Sandbox, sensitive []string) []string {
	if len(sensitive) == 0 {
		return nil
	}
	doc, err := json.Marshal(spec)
	var v any
	if err != nil || json.Unmarshal(doc, &v) != nil {
		return nil
	}
	found := map[string]bool{}
	var walk func(path string, v any, hide bool)
	walk = func(path string, v any, hide bool) {
		hide = hide || config.Covered(path, sensitive)
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				walk(config.Step(path, k), x, hide)
			}
		case []any:
			for i, x := range v {
				walk(config.StepAt(path, i), x, hide)
			}
		case string:
			if hide && v != "" {
				found[v] = true
			}
		}
	}
	walk("", v, false)
	return slices.SortedFunc(maps.Keys(found), func(a, b string) int { return len(b) - len(a) })
}

// discreet is an error whose words have none of a sandbox's sensitive texts.
func discreet(rec *plan.Sandbox, err error) error {
	if err == nil || len(rec.Sensitive) == 0 {
		return err
	}
	words := err.Error()
	for _, secret := range secretsOf(&rec.Spec, rec.Sensitive) {
		words = strings.ReplaceAll(words, secret, config.Redacted)
	}
	if words == err.Error() {
		return err
	}
	return &discreetError{words, err}
}

type discreetError struct {
	words string
	err   error
}

func (d *discreetError) Error() string { return d.words }
func (d *discreetError) Unwrap() error { return d.err }
