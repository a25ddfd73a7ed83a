package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/reconcile/seal"
	"pinfold/runtime/sim"
)

// secretive is a configuration with a sensitive value nearly everywhere.
const secretive = `
image "base" { source = "host" }
variable "token" {
  type      = string
  sensitive = true
}
sandbox "a" {
  image   = image.base
  command = ["sim", "print=${var.token}"]
  env     = { TOKEN = var.token, PLAIN = "open" }
  file "/etc/token" { content = "token=${var.token}" }
}
sandbox "b" {
  image   = image.base
  command = ["sim"]
  env     = { PLAIN = "open" }
}
output "token" {
  value     = { it = var.token }
  sensitive = true
}
output "plain" { value = "open" }
`

func (l *lab) secretive(token string) *config.Source {
	l.t.Helper()
	l.main(secretive)
	s, diags := config.Load(l.dir, config.Inputs{Vars: []string{"token=" + token}})
	if diags.HasErrors() {
		l.t.Fatal(diags)
	}
	return s
}

// nowhere fails where a text is in a file below a directory.
func nowhere(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte(text)) {
			t.Errorf("%s has %q in clear", path, text)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// silent fails where a value's JSON has a text in it.
func silent(t *testing.T, what string, v any, text string) {
	t.Helper()
	doc, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(doc, []byte(text)) {
		t.Errorf("%s tells %q: %s", what, text, doc)
	}
}

// A sensitive value is in the sandbox and nowhere else.
func TestSensitiveValuesStayInside(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		e := l.open("apply")
		ctx := context.Background()
		apply := func(r ApplyRequest) *ApplyResult {
			t.Helper()
			res, err := e.Apply(ctx, r, func(p *PlanResult) (bool, error) {
				silent(t, "the plan that asks", p, secret)
				return true, nil
			}, func(p Progress) { silent(t, "progress", p, secret) })
			if err != nil {
				t.Fatal(err)
			}
			silent(t, "the result", res, secret)
			return res
		}
		request := PlanRequest{Source: l.secretive(secret), Save: true}
		p, err := e.Plan(ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		silent(t, "plan", p, secret)

		// What a file shows is not sealed, and yet cannot be another plan than the one in it.
		forged := *p
		shown := *p.Plan
		shown.Changes = slices.Clone(shown.Changes[:len(shown.Changes)-1])
		forged.Plan = &shown
		_, err = e.Apply(ctx, ApplyRequest{Saved: &PlanFile{FormatVersion: PlanFileVersion, Result: forged}, AutoApprove: true}, nil, nil)
		l.refused(err, Invalid, "what it shows is not what it would do")

		apply(ApplyRequest{Saved: &PlanFile{FormatVersion: PlanFileVersion, Result: *p}, AutoApprove: true})

		id := l.id(e, "sandbox.a")
		in := l.world.Spec(id)
		if in.Env["TOKEN"] != secret || in.Command[1] != "print="+secret || string(in.Files[0].Content) != "token="+secret {
			t.Errorf("inside are %v, %q, %v", in.Env, in.Command, in.Files)
		}
		list, err := e.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		silent(t, "list", list, secret)
		d, err := e.Describe(ctx, "sandbox.a")
		if err != nil {
			t.Fatal(err)
		}
		silent(t, "describe", d, secret)
		if d.Spec.Env["PLAIN"] != "open" && d.Spec.Env["PLAIN"] != config.Redacted || d.Spec.Env["TOKEN"] != config.Redacted {
			t.Errorf("described are %v", d.Spec.Env)
		}
		events, err := e.Events(ctx, EventsRequest{Last: 100})
		if err != nil {
			t.Fatal(err)
		}
		silent(t, "events", events, secret)
		outputs, err := e.Outputs(ctx)
		if err != nil {
			t.Fatal(err)
		}
		silent(t, "outputs", outputs, secret)
		if o, err := e.Output(ctx, "token"); err != nil || string(o.Value) != `{"it":"`+secret+`"}` {
			t.Errorf("the output by its name: %v, %v", o, err)
		}
		if o, err := e.Output(ctx, "plain"); err != nil || string(o.Value) != `"open"` {
			t.Errorf("the plain output: %v, %v", o, err)
		}
		e.background.Wait()
		noted, err := e.host.Notes(ctx)
		if err != nil || noted[id].Doc == nil {
			t.Fatal("no note: ", err)
		}
		if bytes.Contains(noted[id].Doc, []byte(secret)) {
			t.Errorf("the note tells: %s", noted[id].Doc)
		}

		// A plan of another value says that it differs, and neither of them.
		const other = "hush-other"
		request.Source, request.Save = l.secretive(other), false
		p, err = e.Plan(ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		silent(t, "plan of another", p, secret)
		silent(t, "plan of another", p, other)
		hidden := 0
		for _, c := range p.Plan.Changes {
			for _, x := range c.Diff {
				if x.Sensitive {
					hidden++
				}
			}
		}
		if hidden < 3 {
			t.Errorf("%d differences are hidden: %+v", hidden, p.Plan.Changes)
		}
		apply(ApplyRequest{PlanRequest: PlanRequest{Source: l.secretive(other)}})
		if in := l.world.Spec(l.id(e, "sandbox.a")); in.Env["TOKEN"] != other {
			t.Errorf("inside is %v", in.Env)
		}
		// What cannot be started says so without it.
		l.world.Fail(sim.OpCreate, "", errors.New("cannot execute "+secret+": no such program"), sim.Before, sim.Always)
		l.world.Fail(sim.OpStart, "", errors.New("cannot execute "+secret+": no such program"), sim.Before, sim.Always)
		res, err := e.Apply(ctx, ApplyRequest{PlanRequest: PlanRequest{Source: l.secretive(secret)}, AutoApprove: true}, nil, nil)
		if err == nil && len(res.Failures) == 0 {
			t.Error("it could be started")
		}
		silent(t, "the failure", res, secret)
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Error(err)
		}
		l.world.ClearFaults()
		apply(ApplyRequest{PlanRequest: PlanRequest{Source: l.secretive(secret)}, AutoApprove: true})
		events, err = e.Events(ctx, EventsRequest{Last: 100})
		if err != nil {
			t.Fatal(err)
		}
		silent(t, "events of the failure", events, secret)
		nowhere(t, l.state, secret)

		// What was recorded is read back as it was.
		l.sameLoaded(e)
		again, err := e.Plan(ctx, PlanRequest{Source: l.secretive(secret)})
		if err != nil || !again.Plan.Empty() {
			t.Errorf("a plan of the same: %+v, %v", again, err)
		}
		nowhere(t, l.state, other)
		l.main(`image "base" { source = "host" }`)
		l.end(e)
	})
}

// Without its key a sandbox with sensitive values runs on and is never started with
// others; its configuration heals it.
func TestLostKeyIsHealedByTheFiles(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		e := l.open("apply")
		ctx := context.Background()
		apply := func(token string) {
			t.Helper()
			res, err := e.Apply(ctx, ApplyRequest{PlanRequest: PlanRequest{Source: l.secretive(token)}, AutoApprove: true}, nil, nil)
			if err != nil || len(res.Failures) > 0 {
				t.Fatal(err, res.Failures)
			}
		}
		apply(secret)
		id := l.id(e, "sandbox.a")
		l.close(e)
		key := filepath.Join(l.state, seal.FileName)
		kept, err := os.ReadFile(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(key); err != nil {
			t.Fatal(err)
		}

		e = l.open("agent")
		k := l.keep(e)
		sleep(10 * time.Minute)
		if l.phase(e, "sandbox.a", plan.Running); l.id(e, "sandbox.a") != id {
			t.Error("it did not run on")
		}
		if _, err := e.Output(ctx, "token"); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("the output: %v", err)
		}
		l.world.ClearOps()
		l.world.KillMain(id, 9)
		l.world.KillMain(l.id(e, "sandbox.b"), 9)
		sleep(time.Minute)
		l.phase(e, "sandbox.b", plan.Running)
		if p := l.phases(e)["sandbox.a"]; p != plan.Stopped {
			t.Errorf("without its values it is %s", p)
		}
		rec, _ := e.sandbox("sandbox.a")
		if !strings.Contains(rec.Retry.Error, seal.FileName) || !strings.Contains(rec.Retry.Error, "command, env, file") {
			t.Errorf("it says %q", rec.Retry.Error)
		}
		// The key put back: nothing was lost by what was stored meanwhile.
		k.stop()
		l.close(e)
		if err := os.WriteFile(key, kept, 0o600); err != nil {
			t.Fatal(err)
		}
		e = l.open("agent")
		k = l.keep(e)
		sleep(10 * time.Minute)
		l.phase(e, "sandbox.a", plan.Running)
		if in := l.world.Spec(l.id(e, "sandbox.a")); in.Env["TOKEN"] != secret {
			t.Errorf("inside is %v", in.Env)
		}
		k.stop()
		l.close(e)
		// Lost for good: the files have the values.
		if err := os.Remove(key); err != nil {
			t.Fatal(err)
		}
		e = l.open("apply")
		apply(secret)
		if in := l.world.Spec(l.id(e, "sandbox.a")); in.Env["TOKEN"] != secret {
			t.Errorf("inside is %v", in.Env)
		}
		l.sameLoaded(e)
		if p, err := e.Plan(ctx, PlanRequest{Source: l.secretive(secret)}); err != nil || !p.Plan.Empty() {
			t.Errorf("healed, and yet %+v, %v", p, err)
		}
		nowhere(t, l.state, secret)
		l.main(`image "base" { source = "host" }`)
		l.end(e)
	})
}

// A probe that fails says nothing of what is sensitive in it.
func TestSensitiveProbeFailsDiscreetly(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		e := l.open("agent")
		k := l.keep(e)
		l.main(`
image "base" { source = "host" }
variable "token" { sensitive = true }
sandbox "a" {
  image   = image.base
  command = ["sim"]
  health {
    command  = ["sim", "no-such-step-${var.token}"]
    interval = "1s"
  }
}`)
		s, diags := config.Load(l.dir, config.Inputs{Vars: []string{"token=" + secret}})
		if diags.HasErrors() {
			t.Fatal(diags)
		}
		if _, err := e.Apply(context.Background(), ApplyRequest{PlanRequest: PlanRequest{Source: s}, AutoApprove: true}, nil, nil); err != nil {
			t.Fatal(err)
		}
		sleep(time.Minute)
		list, err := e.List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		ready := list.Sandboxes[0].Conditions[0]
		if ready.Status != "False" || !strings.Contains(ready.Message, config.Redacted) {
			t.Errorf("it says %+v", ready)
		}
		silent(t, "list", list, secret)
		k.stop()
		l.main(`image "base" { source = "host" }`)
		l.end(e)
	})
}
