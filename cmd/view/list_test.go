package view

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func conditions(ready, reason string) []plan.Condition {
	var out []plan.Condition
	for _, kind := range []string{"Ready", "Suspended", "Paused", "Expired", "Finished", "Drifted"} {
		c := plan.Condition{Type: kind, Status: "False", Reason: "Not" + kind, Since: now.Add(-time.Hour), Generation: 1}
		if kind == "Ready" {
			c.Status, c.Reason = ready, reason
		}
		out = append(out, c)
	}
	return out
}

// passed are the conditions of an expired sandbox.
func passed(conditions []plan.Condition, reason string) []plan.Condition {
	for i := range conditions {
		if conditions[i].Type == "Expired" {
			conditions[i].Status, conditions[i].Reason = "True", reason
		}
	}
	return conditions
}

func sandboxes() *reconcile.ListResult {
	return &reconcile.ListResult{Sandboxes: []reconcile.SandboxView{
		{
			Address: `sandbox.worker["a"]`, InstanceID: ptr("0123456789ab"), Generation: 3, Phase: plan.Running, Mode: "running", DeclaredMode: "running",
			PID: ptr(4242), AddressV4: ptr("10.88.0.2"), Ports: map[string]plan.Port{"http": {Container: 8080, Host: 32768, Address: "127.0.0.1", Protocol: "tcp"}, "dns": {Container: 53, Host: 53, Address: "0.0.0.0", Protocol: "udp"}},
			CreatedAt: ptr(now.Add(-90 * time.Minute)), StartedAt: ptr(now.Add(-90 * time.Minute)), ExpiresAt: ptr(now.Add(7*time.Hour + 59*time.Minute)),
			Conditions: conditions("True", "Running"), Labels: map[string]string{"team": "agents"}, Volumes: map[string]string{"work": "/work"},
		},
		{
			Address: "sandbox.db", InstanceID: ptr("ba9876543210"), Generation: 1, Phase: plan.Paused, Mode: "paused", DeclaredMode: "running",
			Hold: &plan.Hold{Mode: "paused", By: "operator", At: now.Add(-3 * time.Minute), Reason: "lunch\x1b"}, PID: ptr(999),
			CreatedAt: ptr(now.Add(-50 * time.Hour)), Conditions: conditions("False", "Paused"),
		},
		{
			Address: "sandbox.a_rather_long_name_for_a_sandbox", InstanceID: ptr("aaaaaaaaaaaa"), Generation: 1, Phase: plan.Stopped, Mode: "suspended", DeclaredMode: "running",
			CreatedAt: ptr(now.Add(-5 * time.Second)), EndedAt: ptr(now.Add(-42 * time.Second)),
			Outcome: &plan.Outcome{ExitCode: 143, Signal: 15, Reason: "shutdown_time", At: now.Add(-42 * time.Second)}, Conditions: passed(conditions("False", "Expired"), "ShutdownTime"),
		},
		{Address: "sandbox.new", Phase: plan.Pending, Mode: "running", DeclaredMode: "running", Conditions: conditions("False", "Starting")},
	}}
}

func TestList(t *testing.T) {
	for name, width := range map[string]int{"list.txt": 0, "list_120.txt": 120, "list_80.txt": 80, "list_40.txt": 40} {
		out := shown(false, width, func(s *Screen) { s.List(sandboxes(), now) })
		golden(t, name, out)
		for line := range strings.Lines(string(out)) {
			if n := columns(strings.TrimSuffix(line, "\n")); width > 0 && n > width {
				t.Errorf("%s: %d columns: %q", name, n, line)
			}
		}
	}
	golden(t, "list_color.txt", shown(true, 80, func(s *Screen) { s.List(sandboxes(), now) }))
	golden(t, "list_none.txt", shown(false, 80, func(s *Screen) { s.List(&reconcile.ListResult{}, now) }))
}

// Every member is there, absent things null.
func TestListJSON(t *testing.T) {
	all := sandboxes()
	all.Sandboxes = append(all.Sandboxes, reconcile.SandboxView{
		Address: "sandbox.done", Phase: plan.Stopped, Mode: "suspended", DeclaredMode: "running", Hold: &plan.Hold{Mode: "suspended", By: "operator", At: now},
		Outcome: &plan.Outcome{ExitCode: 3, Reason: "exited", At: now}, Conditions: conditions("False", "Exited"),
	})
	var out bytes.Buffer
	if err := ListJSON(&out, all); err != nil {
		t.Fatal(err)
	}
	golden(t, "list.json", out.Bytes())
	var doc struct {
		FormatVersion string `json:"format_version"`
		Sandboxes     []map[string]any
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.FormatVersion != "1" || len(doc.Sandboxes) != 5 {
		t.Fatalf("format_version %q, %d sandboxes", doc.FormatVersion, len(doc.Sandboxes))
	}
	for _, name := range []string{"address", "instance_id", "generation", "phase", "mode", "declared_mode", "hold", "pid", "address_v4", "ports", "created_at", "started_at", "expires_at", "ended_at", "last_activity", "conditions", "outcome", "labels", "volumes"} {
		for _, s := range doc.Sandboxes {
			if _, ok := s[name]; !ok {
				t.Errorf("%v has no %q", s["address"], name)
			}
		}
	}
	// In what is there, too.
	for _, s := range doc.Sandboxes {
		members := func(what string, v any, names ...string) {
			m, ok := v.(map[string]any)
			if v == nil {
				return
			}
			for _, name := range names {
				if _, has := m[name]; !ok || !has {
					t.Errorf("%s of %v has no %q: %v", what, s["address"], name, v)
				}
			}
		}
		members("outcome", s["outcome"], "exit_code", "signal", "outside", "oom", "reason", "at")
		members("hold", s["hold"], "mode", "by", "at", "reason")
		for _, c := range s["conditions"].([]any) {
			members("a condition", c, "type", "status", "reason", "message", "since", "generation")
		}
	}
	if pid := doc.Sandboxes[3]["pid"]; pid != nil {
		t.Errorf("pid of a pending sandbox = %v, want null", pid)
	}
	out.Reset()
	if err := ListJSON(&out, &reconcile.ListResult{}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"sandboxes": []`) {
		t.Errorf("an empty list is %s", out.String())
	}
}

func description() *reconcile.Description {
	x := sandboxes().Sandboxes
	return &reconcile.Description{
		Sandbox: x[0], UID: "u7k2", Lease: plan.Lease{Start: now.Add(-90 * time.Minute), Until: now.Add(7*time.Hour + 59*time.Minute), Renewed: true},
		Spec: config.Sandbox{
			Image: "image.base", Command: []string{"python3", "-m", "http.server"}, OperatingMode: "running", ShutdownPolicy: "retain",
			ShutdownTime: now.Add(24 * time.Hour), Lifetime: config.Lifetime{TTL: config.Duration(8 * time.Hour)}, Resources: config.Resources{Memory: 256 << 20},
			Network: &config.Attachment{Name: "network.agents"}, Security: config.Security{UserNamespace: true},
		},
		NextLook: ptr(now.Add(7*time.Hour + 59*time.Minute)), NextAction: "expire",
		Events: []reconcile.Event{
			{At: now.Add(-90 * time.Minute), Type: "create", Reason: "declared", By: "apply"},
			{At: now.Add(-30 * time.Minute), Type: "renewed", Reason: "renew -in 8h", Message: "until later\nand on", By: "operator"},
		},
	}
}

func TestDescribe(t *testing.T) {
	golden(t, "describe.txt", shown(false, 0, func(s *Screen) { s.Describe(description(), now) }))
	golden(t, "describe_60.txt", shown(false, 60, func(s *Screen) { s.Describe(description(), now) }))
	held := description()
	held.Sandbox = sandboxes().Sandboxes[1]
	held.Sandbox.Outcome = sandboxes().Sandboxes[2].Outcome
	golden(t, "describe_held.txt", shown(false, 0, func(s *Screen) { s.Describe(held, now) }))
	gone := description()
	gone.Sandbox = sandboxes().Sandboxes[2]
	golden(t, "describe_expired.txt", shown(false, 0, func(s *Screen) { s.Describe(gone, now) }))
}

func TestActed(t *testing.T) {
	for i, want := range []string{
		`sandbox.worker["a"]: running, expires 2026-12-01T19:59:00Z (in 7h59m)`,
		"sandbox.db: paused, held paused",
		"sandbox.a_rather_long_name_for_a_sandbox: stopped, expired 2026-12-01T11:59:18Z (ShutdownTime), 42s ago",
	} {
		r := &reconcile.ActResult{Sandbox: sandboxes().Sandboxes[i]}
		if got := string(shown(false, 0, func(s *Screen) { s.Acted(r, now) })); got != want+"\n" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestDescribeJSON(t *testing.T) {
	var out bytes.Buffer
	if err := DescribeJSON(&out, description()); err != nil {
		t.Fatal(err)
	}
	golden(t, "describe.json", out.Bytes())
}
