package plan

import (
	"bytes"
	"iter"
	"maps"
	"slices"

	"pinfold/config"
)

func mapKeys[T any](m map[string]T) iter.Seq[string] { return maps.Keys(m) }

func (w *walk) outputNames() []string {
	var names []string
	if w.in.Desired != nil {
		for i := range w.in.Desired.Outputs {
			names = append(names, w.in.Desired.Outputs[i].Name)
		}
	}
	for n := range w.in.Records.Outputs {
		names = append(names, n)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// sensitiveOutput tells whether a value of this output is or was sensitive.
func (w *walk) sensitiveOutput(name string) bool {
	if rec := w.in.Records.Outputs[name]; rec != nil && rec.Sensitive {
		return true
	}
	return w.in.Desired != nil && slices.ContainsFunc(w.in.Desired.Outputs, func(o config.Output) bool { return o.Name == name && o.Sensitive })
}

// outputs compares output values. Those not known yet change when something in
// this plan will make them known. With -target or -exclude only outputs named
// there are looked at.
func (w *walk) outputs() {
	if w.in.Desired == nil && !w.in.Options.Destroy {
		return
	}
	declared := map[string]*config.Output{}
	if w.in.Desired != nil && !w.in.Options.Destroy {
		for i := range w.in.Desired.Outputs {
			declared[w.in.Desired.Outputs[i].Name] = &w.in.Desired.Outputs[i]
		}
	}
	settles := false
	for _, cs := range w.steps {
		settles = settles || slices.ContainsFunc(cs, func(c Change) bool { return c.Action != ActNoop })
	}
	for _, name := range w.outputNames() {
		a := "output." + name
		if !w.covered(a) {
			continue
		}
		want, rec := declared[name], w.in.Records.Outputs[name]
		c := Change{Address: a, Kind: "output", Origin: FromFiles, Consequence: "kept in state"}
		switch {
		case want == nil && rec != nil:
			c.Action, c.Cause, c.Consequence, c.Before = ActDelete, "no longer declared", "forgotten", rec.Value
			if w.in.Options.Destroy {
				c.Cause = "destroy"
			}
		case want == nil:
			continue
		case want.Unknown && !settles:
			if rec == nil {
				w.note(a + " has no value: it refers to something that does not exist")
			}
			continue
		case rec == nil:
			c.Action, c.Cause = ActCreate, "declared"
		case want.Unknown, !bytes.Equal(rec.Value, want.Value), !bytes.Equal(rec.Type, want.Type):
			c.Action, c.Cause, c.Before = ActUpdate, "value changed", rec.Value
			if want.Unknown {
				c.Cause = "value known after apply"
			}
		case rec.Description != want.Description:
			c.Action, c.Cause, c.Before = ActUpdate, "description changed", rec.Value
		case rec.Sensitive != want.Sensitive:
			c.Action, c.Cause, c.Before = ActUpdate, "sensitive changed", rec.Value
		default:
			continue
		}
		if want != nil {
			if want.Unknown {
				c.Unknown = []string{"value"}
			} else {
				c.After = want.Value
			}
		}
		w.add(c)
	}
}
