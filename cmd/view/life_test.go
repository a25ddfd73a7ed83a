package view

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// resting is a sandbox paused by the idle rule over an operator's hold, with every
// rule there is.
func resting() *reconcile.Description {
	conditions := conditions("False", "Paused")
	return &reconcile.Description{
		Sandbox: reconcile.SandboxView{
			Address: "sandbox.nap", Phase: plan.Paused, Mode: "paused", DeclaredMode: "suspended", Conditions: conditions,
			Hold:    &plan.Hold{Mode: "paused", By: "idle", At: now.Add(-time.Minute), Under: &plan.Hold{Mode: "running", By: "operator", At: now.Add(-time.Hour), Reason: "demo"}},
			EndedAt: ptr(now.Add(time.Hour)), LastActivity: ptr(now.Add(-6 * time.Minute)),
		},
		Spec: config.Sandbox{
			ShutdownPolicy: "pause", Lifetime: config.Lifetime{TTL: config.Duration(8 * time.Hour), IdleTimeout: config.Duration(5 * time.Minute)},
			Restart: config.Restart{Mode: "on-failure", MaxAttempts: 5}, Health: &config.Health{TCP: 8080},
		},
		Lease:    plan.Lease{EndedAt: now.Add(time.Hour), ActedOn: now.Add(-2 * time.Hour), AccessRenewedAt: now.Add(-6 * time.Minute)},
		Restarts: plan.Retry{Attempts: 2, NextAt: now.Add(4 * time.Second)},
	}
}

func TestDescribeLife(t *testing.T) {
	has := func(d *reconcile.Description, lines ...string) {
		t.Helper()
		got := string(shown(false, 0, func(s *Screen) { s.Describe(d, true, now) }))
		for _, want := range lines {
			if !strings.Contains(got, "\n"+want+"\n") {
				t.Errorf("lacks %q:\n%s", want, got)
			}
		}
	}
	d := resting()
	has(d,
		"Hold:           paused by idle since 2026-12-01T11:59:00Z (1m ago)",
		"Over:           running by operator since 2026-12-01T11:00:00Z (1h ago): demo",
		"Last activity:  2026-12-01T11:54:00Z (6m ago)",
		"  Expires:                 set anew on resume; pausing took 2026-12-01T13:00:00Z (in 1h) away",
		"  Then:                    pause",
		"  Renewed by access:       2026-12-01T11:54:00Z (6m ago)",
		"  Shutdown time acted on:  2026-12-01T10:00:00Z (2h ago)",
		"  Idle:                    after 5m",
		"  Policy:    on-failure", "  In a row:  2 of 5", "  Probe:  rests",
	)
	d.Sandbox.Phase, d.Sandbox.Hold, d.Sandbox.Mode = plan.Running, nil, "running"
	d.Sandbox.LastActivity = ptr(now.Add(-time.Minute))
	d.Sandbox.Conditions[0] = plan.Condition{Type: "Ready", Status: "False", Reason: "Degraded", Message: "connection refused"}
	has(d, "  Idle:                    after 5m, not before 2026-12-01T12:04:00Z (in 4m)", "  Probe:  Degraded: connection refused")
	d.Sandbox.Conditions[0] = plan.Condition{Type: "Ready", Status: "True", Reason: "Running"}
	has(d, "  Probe:  passes")
	d.Sandbox.Phase = plan.Stopped
	has(d, "  Next:      2026-12-01T12:00:04Z (in 4s)")
}

// Every hold has all its members, also the one that lies under another.
func TestHoldJSON(t *testing.T) {
	out := shown(false, 0, func(s *Screen) {
		if err := DescribeJSON(s, resting()); err != nil {
			t.Error(err)
		}
	})
	var doc struct {
		Sandbox struct{ Hold map[string]any }
		Lease   map[string]any
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	under, _ := doc.Sandbox.Hold["under"].(map[string]any)
	if reason, there := doc.Sandbox.Hold["reason"]; !there || reason != nil || under["reason"] != "demo" {
		t.Errorf("hold %v", doc.Sandbox.Hold)
	}
	if inner, there := under["under"]; !there || inner != nil {
		t.Errorf("under %v", under)
	}
	if until, there := doc.Lease["until"]; !there || until != nil || doc.Lease["ended_at"] != "2026-12-01T13:00:00Z" {
		t.Errorf("lease %v", doc.Lease)
	}
}

func TestListLife(t *testing.T) {
	got := string(shown(false, 0, func(s *Screen) {
		s.List(&reconcile.ListResult{Sandboxes: []reconcile.SandboxView{resting().Sandbox}}, true, now)
	}))
	if !strings.Contains(got, "  paused (by idle, 1m ago)  Paused  -    -        -      set on resume  6m ago  -\n") {
		t.Errorf("%s", got)
	}
	if got := string(shown(false, 0, func(s *Screen) { s.Acted(&reconcile.ActResult{Sandbox: resting().Sandbox}, now) })); got != "sandbox.nap: paused, held paused by idle\n" {
		t.Errorf("%q", got)
	}
}

// What rules ask for is shown with what it costs and why; a warning alone is nothing
// to do.
func TestPlanOfRules(t *testing.T) {
	r := &reconcile.PlanResult{Plan: &plan.Plan{Changes: []plan.Change{
		{Address: "sandbox.a", Kind: "sandbox", Action: plan.ActPause, Origin: plan.FromHost, Cause: "idle since 2026-12-01T11:00:00Z", Consequence: "paused, processes and memory kept", Hold: &plan.Hold{Mode: "paused", By: "idle"}},
		{Address: "sandbox.b", Kind: "sandbox", Action: plan.ActExpire, Origin: plan.FromHost, Cause: "lifetime.ttl passed", Consequence: "expired: paused, processes and memory kept", Then: "paused"},
		{Address: "sandbox.c", Kind: "sandbox", Action: plan.ActRelease, Origin: plan.FromFiles, Cause: "idle_timeout removed"},
		{Address: "sandbox.d", Kind: "sandbox", Action: plan.ActNoop, Warn: now},
	}, Summary: plan.Summary{Change: 1, Converge: 2}}}
	got := string(shown(false, 0, func(s *Screen) { s.Plan(r, false) }))
	for _, want := range []string{
		"  # sandbox.a will be paused, processes and memory kept      (idle since 2026-12-01T11:00:00Z)\n",
		"  # sandbox.b will be expired: paused, processes and memory kept      (lifetime.ttl passed)\n",
		"  # sandbox.c will be released      (idle_timeout removed)\n",
		"Plan: 0 to add, 1 to change, 0 to replace, 0 to destroy; 2 to converge.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "sandbox.d") {
		t.Errorf("a warning is shown as a change:\n%s", got)
	}
}
