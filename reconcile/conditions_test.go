package reconcile

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// conditioned declares sandbox.a with a condition of the given kind, sandbox.b which
// has its address, sandbox.c which has nothing to do with either, and what is more.
func conditioned(kind, condition, more string) string {
	block := ""
	if kind != "" {
		block = "lifecycle {\n" + kind + " {\ncondition = " + condition + "\nerror_message = \"words of the condition\"\n}\n}"
	}
	return `
image "base" { source = "host" }
network "n" {}
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
  ` + block + `
}
sandbox "b" {
  image   = image.base
  command = ["sleep", "inf"]
  env     = { PEER = sandbox.a.address }
}
sandbox "c" {
  image   = image.base
  command = ["sleep", "inf"]
}
` + more
}

// What a plan cannot tell is told at the step: before it or after it. What waits for the
// resource is skipped, and all else is done.
func TestConditionsDuringAnApply(t *testing.T) {
	for name, c := range map[string]struct {
		kind, condition string
		made            []string // of a, b, c
	}{
		"a precondition that fails":  {"precondition", `network.n.gateway == "10.0.0.1"`, []string{"c"}},
		"one that holds":             {"precondition", `startswith(network.n.gateway, "10.")`, []string{"a", "b", "c"}},
		"a postcondition that fails": {"postcondition", `self.address == "10.0.0.1"`, []string{"a", "c"}},
		"one that is kept":           {"postcondition", `startswith(self.address, "10.")`, []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, map[string]string{"main.hcl": conditioned(c.kind, c.condition, "")})
			e := l.open("apply")
			p := l.plan(e)
			if len(p.Checks) != 1 || p.Checks[0].Status != "unknown" || p.Checks[0].Kind != c.kind || p.Checks[0].Address != "sandbox.a" {
				t.Errorf("the plan has the checks %+v", p.Checks)
			}
			fails := len(c.made) < 3
			res, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, nil)
			if (err != nil) != fails || (len(res.Failures) > 0) != fails {
				t.Fatalf("%v, %+v", err, res.Failures)
			}
			if fails {
				f := res.Failures[0]
				if f.Address != "sandbox.a" || f.Skipped || !strings.Contains(f.Error, c.kind+" of sandbox.a failed: words of the condition (main.hcl:") {
					t.Errorf("%+v", f)
				}
				if len(res.Failures) != 2 || res.Failures[1].Address != "sandbox.b" || !res.Failures[1].Skipped {
					t.Errorf("what waits for it: %+v", res.Failures[1:])
				}
			} else if len(res.Checks) != 1 || res.Checks[0].Status != "pass" {
				t.Errorf("checks %+v", res.Checks)
			}
			for _, name := range []string{"a", "b", "c"} {
				if _, there := e.sandbox("sandbox." + name); there != slices.Contains(c.made, name) {
					t.Errorf("sandbox.%s is there: %v", name, there)
				}
			}
			l.tidy(e)
			// Known by now, it is told in the plan; a destroy is not kept from anything.
			_, err = e.Plan(context.Background(), PlanRequest{Source: l.source()})
			if fails && c.kind == "postcondition" {
				l.refused(err, Invalid, "not valid")
			}
			if _, err := e.Plan(context.Background(), PlanRequest{Source: l.source(), Options: plan.Options{RefreshOnly: true}}); err != nil {
				t.Error(err)
			}
			res, err = e.Apply(context.Background(), l.request(plan.Options{Destroy: true}), nil, nil)
			if err != nil {
				t.Errorf("%v, %+v", err, res)
			}
			l.close(e)
			l.clean()
		})
	}
}

// Asserts warn, at plan where they can be told and in the end where not; the
// precondition of an output keeps it from being recorded.
func TestChecksInTheEnd(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": conditioned("", "", `
check "early" {
  assert {
    condition     = 1 == 2
    error_message = "early words"
  }
}
check "late" {
  assert {
    condition     = sandbox.a.address == "10.0.0.1"
    error_message = "late words about ${sandbox.a.address}"
  }
  assert {
    condition     = startswith(sandbox.a.address, "10.")
    error_message = "never"
  }
}
output "good" { value = sandbox.a.address }
`)})
	e := l.open("apply")
	res := l.apply(e, plan.Options{})
	count := func(list config.Diagnostics, words string) (n int) {
		for _, d := range list {
			if strings.Contains(d.Detail, words) && d.Severity == "warning" {
				n++
			}
		}
		return n
	}
	if count(res.Diagnostics, "early words") != 1 || count(res.Warnings, "early words") != 0 {
		t.Errorf("of what the plan told: %v, then %v", res.Diagnostics, res.Warnings)
	}
	if count(res.Warnings, "late words about 10.") != 1 || count(res.Diagnostics, "late words") != 0 || count(res.Warnings, "never") != 0 {
		t.Errorf("of what it could not tell: %v, then %v", res.Diagnostics, res.Warnings)
	}
	if len(res.Checks) != 3 || e.records.Outputs["good"] == nil {
		t.Errorf("checks %+v", res.Checks)
	}
	l.nothingToDo(e)

	l.main(conditioned("", "", `
sandbox "d" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
}
output "good" {
  value = sandbox.d.address
  precondition {
    condition     = sandbox.d.address == "10.0.0.1"
    error_message = "not this one"
  }
}
output "new" {
  value = sandbox.d.address
  precondition {
    condition     = sandbox.d.address == "10.0.0.1"
    error_message = "nor this"
  }
}
`))
	was := string(e.records.Outputs["good"].Value)
	res, _ = l.applyFails(e, plan.Options{})
	if len(res.Failures) != 2 || res.Failures[0].Address != "output.good" || !strings.Contains(res.Failures[0].Error, "not this one") {
		t.Errorf("failures %+v", res.Failures)
	}
	if len(res.Outputs) != 1 || res.Outputs[0].Name != "good" || string(res.Outputs[0].Value) != was || e.records.Outputs["new"] != nil {
		t.Errorf("told of %+v, while what is kept is %s", res.Outputs, was)
	}
	if now := string(e.records.Outputs["good"].Value); now != was {
		t.Errorf("the output is %s, was %s", now, was)
	}
	l.phase(e, "sandbox.d", plan.Running)
	l.main(conditioned("", "", ""))
	l.end(e)
}

// The agent, which has no files, is kept from nothing by a condition.
func TestTheAgentEvaluatesNoConditions(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": conditioned("postcondition", `self.address == "10.0.0.1"`, "")})
		e := l.open("agent")
		l.applyFails(e, plan.Options{})
		k := l.keep(e)
		l.world.Kill(l.id(e, "sandbox.a"))
		sleep(fullLook)
		l.phase(e, "sandbox.a", plan.Running)
		k.stop()
		l.end(e)
	})
}

// A change of what replace_triggered_by names replaces the sandbox, by files.
func TestTriggeredByFiles(t *testing.T) {
	text := func(internet, label string) string {
		return `
image "base" { source = "host" }
network "n" {
  cidr     = "10.88.7.0/24"
  internet = ` + internet + `
}
sandbox "w" {
  for_each = toset(["x", "y"])
  image    = image.base
  command  = ["sleep", "inf"]
  labels   = { l = each.key == "y" ? "` + label + `" : "" }
}
sandbox "net" {
  image   = image.base
  command = ["sleep", "inf"]
  lifecycle { replace_triggered_by = [network.n.internet] }
}
sandbox "any" {
  image   = image.base
  command = ["sleep", "inf"]
  lifecycle { replace_triggered_by = [sandbox.w] }
}
sandbox "follows" {
  image   = image.base
  command = ["sleep", "inf"]
  lifecycle { replace_triggered_by = [sandbox.any] }
}
`
	}
	l := newLab(t, map[string]string{"main.hcl": text("false", "1")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	ids := func() map[string]string {
		m := map[string]string{}
		for a, s := range e.snapshot().Sandboxes {
			m[a] = s.Instance.ID
		}
		return m
	}
	before := ids()
	changed := func(want ...string) {
		t.Helper()
		var got []string
		now := ids()
		for a, id := range now {
			if before[a] != id {
				got = append(got, a)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("replaced are %v, want %v", got, want)
		}
		before = now
		l.nothingToDo(e)
	}
	l.main(text("true", "1"))
	l.apply(e, plan.Options{})
	changed("sandbox.net")
	l.main(text("true", "2"))
	l.apply(e, plan.Options{})
	changed("sandbox.any", "sandbox.follows")
	// Planned, and meanwhile changed by an operator: it is still replaced.
	l.main(text("true", "3"))
	r := l.request(plan.Options{})
	r.AutoApprove = true
	r.Show = true
	if _, err := e.Apply(context.Background(), r, func(*PlanResult) (bool, error) {
		w := &write{bump: true}
		rec, _ := e.sandbox("sandbox.any")
		return true, e.commit(w.sandbox(rec))
	}, nil); err != nil {
		t.Fatal(err)
	}
	changed("sandbox.any", "sandbox.follows")
	l.end(e)
}
