package view

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func steps(p *Progress) {
	for _, x := range []reconcile.Progress{
		{At: now, Address: "network.agents", Action: plan.ActCreate, State: "started"},
		{At: now, Address: "network.agents", Action: plan.ActCreate, State: "done", Elapsed: 300 * time.Millisecond},
		{At: now, Address: "sandbox.py", Action: plan.ActCreate, State: "started"},
		{At: now, Address: "sandbox.db", Action: plan.ActReplace, State: "started"},
		{At: now, Address: "sandbox.py", Action: plan.ActCreate, State: "running", Elapsed: 10 * time.Second},
		{At: now, Address: "sandbox.py", Action: plan.ActCreate, State: "done", Elapsed: 11 * time.Second, Message: "0123456789ab"},
		{At: now, Address: "sandbox.db", Action: plan.ActReplace, State: "failed", Elapsed: 2 * time.Second, Message: "image \"base\" has no /bin/x"},
		{At: now, Address: "sandbox.on_db", Action: plan.ActCreate, State: "skipped", Message: "skipped: sandbox.db failed"},
	} {
		p.Step(x)
	}
	p.Close()
}

func TestProgress(t *testing.T) {
	clock := func() time.Time { return now.Add(4 * time.Second) }
	golden(t, "progress.txt", shown(false, 0, func(s *Screen) { steps(NewProgress(s, 4, false, clock)) }))
	golden(t, "progress_live.txt", shown(false, 40, func(s *Screen) { steps(NewProgress(s, 4, true, clock)) }))
}

// What failed or was skipped is not done.
func TestProgressCountsWhatIsDone(t *testing.T) {
	got := string(shown(false, 100, func(s *Screen) {
		p := NewProgress(s, 5, true, func() time.Time { return now })
		for _, x := range []reconcile.Progress{
			{Address: "sandbox.a", State: "started"}, {Address: "sandbox.a", State: "done"},
			{Address: "sandbox.b", State: "started"}, {Address: "sandbox.b", State: "failed"},
			{Address: "sandbox.c", State: "skipped"}, {Address: "sandbox.d", State: "skipped"},
			{At: now, Address: "sandbox.e", State: "started"},
		} {
			x.Action = plan.ActCreate
			p.Step(x)
		}
	}))
	if want := "1 of 5 done, 1 failed, 2 skipped · sandbox.e 0s"; !strings.HasSuffix(got, want) {
		t.Errorf("it ends %q, not %q", got, want)
	}
}

// What only moves, and what is given up and stays, is said beside the column that has it.
func TestSummaryOfWhatStays(t *testing.T) {
	p := &plan.Plan{Changes: []plan.Change{
		{Address: "sandbox.b", From: "sandbox.a", Kind: "sandbox", Action: plan.ActMove, Origin: plan.FromFiles},
		{Address: "sandbox.b", Kind: "sandbox", Action: plan.ActUpdate, Origin: plan.FromFiles},
		{Address: "sandbox.c", Kind: "sandbox", Action: plan.ActUpdate, Origin: plan.FromFiles},
		{Address: "sandbox.d", Kind: "sandbox", Action: plan.ActForget, Origin: plan.FromFiles, Reason: plan.Released},
		{Address: "volume.v", Kind: "volume", Action: plan.ActForget, Origin: plan.FromFiles, Cause: "its directory is gone"},
		{Address: "sandbox.e", Kind: "sandbox", Action: plan.ActDelete, Origin: plan.FromFiles},
	}}
	p.Summary = plan.Summarize(p.Changes)
	want := "Plan: 0 to add, 2 to change (1 moved), 0 to replace, 3 to destroy (1 of them only given up, left on the host); 0 to converge.\n"
	if got := string(shown(false, 0, func(s *Screen) { s.Plan(&reconcile.PlanResult{Plan: p}, false) })); !strings.HasSuffix(got, want) {
		t.Errorf("the plan ends\n%s\nnot\n%s", got, want)
	}
	r := &reconcile.ApplyResult{Applied: p.Summary, Noted: plan.NotedOf(p.Changes)}
	for destroyed, want := range map[bool]string{
		false: "Resources: 0 added, 2 changed (1 moved), 0 replaced, 3 destroyed (1 of them only given up, left on the host).",
		true:  "Resources: 3 destroyed (1 of them only given up, left on the host).",
	} {
		if got := string(shown(false, 0, func(s *Screen) { s.Applied(r, destroyed) })); !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
}

func applied() *reconcile.ApplyResult {
	return &reconcile.ApplyResult{
		PlanResult: reconcile.PlanResult{Plan: &plan.Plan{Summary: plan.Summary{Add: 2}}},
		Applied:    plan.Summary{Add: 2, Change: 1, Converge: 1},
		Outputs: []config.Output{
			{Name: "urls", Value: []byte(`{"b":"http://10.0.0.3:8080/a/long/path/on/the/server","a":"http://10.0.0.2:8080/<x>"}`), Type: []byte(`["object",{"a":"string","b":"string"}]`)},
			{Name: "n", Value: []byte(`9007199254740993`), Type: []byte(`"number"`), Description: "a number"},
			{Name: "later", Unknown: true},
		},
	}
}

func TestApplied(t *testing.T) {
	golden(t, "applied.txt", shown(false, 0, func(s *Screen) { s.Applied(applied(), false) }))
	failed := applied()
	failed.Failures = []reconcile.Failure{{Address: "sandbox.db", Action: plan.ActReplace, Error: "cannot replace sandbox.db: no space left"}, {Address: "sandbox.x", Action: plan.ActCreate, Skipped: true, Error: "skipped: sandbox.db failed"}, {Address: "sandbox.y", Action: plan.ActCreate, Skipped: true, Error: "skipped: sandbox.x failed"}}
	others := config.Diagnostics{ // as the engine tells them, and one more
		{Severity: "error", Summary: "sandbox.db: replace failed", Detail: "cannot replace sandbox.db: no space left", Address: "sandbox.db"},
		{Severity: "error", Summary: "sandbox.x: create failed", Detail: "skipped: sandbox.db failed", Address: "sandbox.x"},
		{Severity: "error", Summary: "outputs cannot be kept", Detail: "no space left"},
	}
	golden(t, "applied_failed.txt", shown(false, 0, func(s *Screen) {
		s.Applied(failed, false)
		if err := config.Fprint(s, FailureDiagnostics(failed.Failures, others), false, 0); err != nil {
			t.Error(err)
		}
	}))
	golden(t, "applied_destroy.txt", shown(false, 0, func(s *Screen) { s.Applied(&reconcile.ApplyResult{Applied: plan.Summary{Destroy: 3}}, true) }))
}

func TestApplyJSON(t *testing.T) {
	var out bytes.Buffer
	r := applied()
	r.Warnings = config.Diagnostics{{Severity: "warning", Summary: "nobody watches"}}
	if err := ApplyJSON(&out, r, nil); err != nil {
		t.Fatal(err)
	}
	golden(t, "apply.json", out.Bytes())
}

func TestOutputRaw(t *testing.T) {
	for _, c := range []struct{ value, want, err string }{
		{`"a\nb"`, "a\nb", ""},
		{`9007199254740993`, "9007199254740993", ""},
		{`true`, "true", ""},
		{`null`, "", `output "x" is null and has no raw form; use -json`},
		{`["a"]`, "", `output "x" is a list or an object and has no raw form; use -json`},
	} {
		var out bytes.Buffer
		err := OutputRaw(&out, config.Output{Name: "x", Value: []byte(c.value)})
		if message(err) != c.err || out.String() != c.want {
			t.Errorf("%s: %q, %v", c.value, out.String(), err)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestEffective(t *testing.T) {
	r := &config.Resource[config.Sandbox]{
		Address: "sandbox.py",
		Spec: config.Sandbox{
			Image: "image.base", Command: []string{"sleep", "1d"}, Env: map[string]string{"WHO": "me"}, OperatingMode: "running", ShutdownPolicy: "retain",
			StopSignal: "SIGTERM", StopGrace: config.Duration(10 * time.Second), Resources: config.Resources{CPU: 0.5, Memory: 256 << 20}, Security: config.Security{UserNamespace: true},
			Mounts: []config.Mount{{Tmpfs: true, Size: 1 << 20, Path: "/tmp"}},
		},
		Unknown: []string{"env.NET"},
		Sources: map[string]config.Position{
			"image": {File: "main.hcl", Line: 3}, "command": {File: "main.hcl", Line: 4}, "env": {File: "main.hcl", Line: 5},
			"resources.cpu":    {File: "policies.hcl", Line: 9, Policy: "policy.untrusted"},
			"resources.memory": {File: "/etc/pinfold/host.hcl", Line: 2, Policy: "policy.host"},
			"mount[0].path":    {File: "main.hcl", Line: 8},
		},
	}
	golden(t, "effective.txt", shown(false, 0, func(s *Screen) { s.Effective(r) }))
	var out bytes.Buffer
	if err := EffectiveJSON(&out, r); err != nil {
		t.Fatal(err)
	}
	golden(t, "effective.json", out.Bytes())
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 900 * time.Millisecond: "0s", 9 * time.Second: "9s", 12*time.Minute + 30*time.Second: "12m30s", time.Hour: "1h",
		7*time.Hour + 59*time.Minute + 59*time.Second: "7h59m", 76 * time.Hour: "3d4h", 24 * 400 * time.Hour: "400d", -time.Minute: "1m",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{256 << 20: "256MiB", 2e9: "2GB", 1 << 40: "1TiB", 1536: "1536", 100: "100"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
}
