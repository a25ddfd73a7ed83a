package view

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

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

// However narrow the screen, each sandbox can be told from the others.
func TestListTellsRowsApart(t *testing.T) {
	all := []string{`module.team["red"].module.worker.sandbox.w`, `module.team["blue"].module.worker.sandbox.w`, `module.team["green"].module.worker.sandbox.w`}
	r := &reconcile.ListResult{}
	for _, address := range all {
		r.Sandboxes = append(r.Sandboxes, reconcile.SandboxView{Address: address, Phase: plan.Running})
	}
	for _, width := range []int{40, 60, 80} {
		got := string(shown(false, width, func(s *Screen) { s.List(r, true, now) }))
		named := map[string]bool{}
		for line := range strings.Lines(got) {
			if strings.HasPrefix(line, "module.") {
				named[strings.Fields(line)[0]] = true
			}
		}
		if len(named) != len(all) {
			t.Errorf("%d columns: not told apart\n%s", width, got)
		}
	}
}

func TestList(t *testing.T) {
	for name, width := range map[string]int{"list.txt": 0, "list_120.txt": 120, "list_80.txt": 80, "list_40.txt": 40} {
		out := shown(false, width, func(s *Screen) { s.List(sandboxes(), true, now) })
		golden(t, name, out)
		for line := range strings.Lines(string(out)) {
			if n := columns(strings.TrimSuffix(line, "\n")); width > 0 && n > width {
				t.Errorf("%s: %d columns: %q", name, n, line)
			}
		}
	}
	golden(t, "list_color.txt", shown(true, 80, func(s *Screen) { s.List(sandboxes(), true, now) }))
	golden(t, "list_none.txt", shown(false, 80, func(s *Screen) { s.List(&reconcile.ListResult{}, true, now) }))
}

// The phase of what ended says how; of what was told to end it does not.
func TestHowItEnded(t *testing.T) {
	for want, o := range map[string]*plan.Outcome{
		"stopped (exit 3)":   {ExitCode: 3, Reason: "exited"},
		"stopped (exit 0)":   {Reason: "exited"},
		"stopped (signal 6)": {ExitCode: 134, Signal: 6, Reason: "signalled"},
		"stopped (signal 9)": {ExitCode: 137, Signal: 9, Reason: "killed"},
		"stopped (exit 1)":   {ExitCode: 1, Outside: 15, Reason: "killed"},
		"stopped (oom)":      {ExitCode: 137, Signal: 9, OOM: true, Reason: "oom"},
		"stopped":            {ExitCode: 143, Signal: 15, Reason: "stopped"},
	} {
		x := reconcile.SandboxView{Address: "sandbox.x", Phase: plan.Stopped, Mode: "running", DeclaredMode: "running", Outcome: o, Conditions: conditions("False", "Exited")}
		list := string(shown(false, 0, func(s *Screen) { s.List(&reconcile.ListResult{Sandboxes: []reconcile.SandboxView{x}}, false, now) }))
		if !strings.Contains(list, "\nsandbox.x  "+want+"  running  Exited ") || strings.Contains(list, "Note:") {
			t.Errorf("list of one %s:\n%s", want, list)
		}
		describe := string(shown(false, 0, func(s *Screen) { s.Describe(&reconcile.Description{Sandbox: x}, false, now) }))
		if !strings.Contains(describe, "\nPhase:       "+want+"\n") {
			t.Errorf("describe of one %s:\n%s", want, describe)
		}
	}
	// It speaks of the process there was, not of the one there is.
	again := reconcile.SandboxView{Address: "sandbox.x", Phase: plan.Running, Outcome: &plan.Outcome{ExitCode: 3, Reason: "exited"}, Conditions: conditions("True", "Running")}
	if got := phaseOf(&again); got != "running" {
		t.Errorf("%q", got)
	}
}

// READY and the notes tell whether anybody starts what does not run.
func TestWhoStartsIt(t *testing.T) {
	starting := func(name, message string, hold *plan.Hold) reconcile.SandboxView {
		x := reconcile.SandboxView{Address: "sandbox." + name, Phase: plan.Stopped, Mode: "running", DeclaredMode: "running", Hold: hold, Conditions: conditions("False", "Starting")}
		x.Conditions[0].Message = message
		return x
	}
	failed, killed := starting("failed", "no such\ncommand", nil), starting("killed", "", nil)
	created := starting("created", "", &plan.Hold{Mode: "created", By: "apply", At: now})
	created.Phase = plan.Created
	held := starting("held", "", &plan.Hold{Mode: "running", By: "operator", At: now})
	if got := [2]string{readyOf(&held, true), readyOf(&held, false)}; got != [2]string{"Starting", "NotStarted"} {
		t.Errorf("one that is held running is %q", got)
	}
	all := []reconcile.SandboxView{failed, killed, created}
	for _, c := range []struct {
		agent bool
		ready [3]string
		notes string
	}{
		{true, [3]string{"Retrying", "Starting", "NotStarted"}, "Note: sandbox.failed could not be started: no such command\nNote: the agent tries again\n"},
		{false, [3]string{"StartFailed", "NotStarted", "NotStarted"}, "Note: sandbox.failed could not be started: no such command\nNote: no agent runs, so nothing starts sandbox.failed, sandbox.killed before the next apply\n"},
	} {
		for i := range all {
			if got := readyOf(&all[i], c.agent); got != c.ready[i] {
				t.Errorf("agent %v: %s is %q, want %q", c.agent, all[i].Address, got, c.ready[i])
			}
		}
		got := string(shown(false, 0, func(s *Screen) { s.List(&reconcile.ListResult{Sandboxes: all}, c.agent, now) }))
		if _, notes, _ := strings.Cut(got, "Note:"); "Note:"+notes != c.notes {
			t.Errorf("agent %v:\n%s", c.agent, got)
		}
	}
	d := description()
	d.Sandbox = failed
	for agent, want := range map[bool][]string{
		true:  {"\nReady:       Retrying: no such command\n", "\nNext:        expire at 2026-12-01T19:59:00Z (in 7h59m): lifetime.ttl\n", "\nNote: the agent tries again\n"},
		false: {"\nReady:       StartFailed: no such command\n", "\nNext:        expire at 2026-12-01T19:59:00Z (in 7h59m): lifetime.ttl; no agent runs, so only an apply after that does it\n", "\nNote: no agent runs, so nothing starts sandbox.failed before the next apply\n"},
	} {
		got := string(shown(false, 0, func(s *Screen) { s.Describe(d, agent, now) }))
		for _, line := range want {
			if !strings.Contains(got, line) {
				t.Errorf("agent %v: no %q in\n%s", agent, line, got)
			}
		}
	}
	// Many are counted, not named.
	var many []reconcile.SandboxView
	for range 7 {
		many = append(many, failed)
	}
	if notes := standing(many, false, now); len(notes) != 7 || !strings.HasPrefix(notes[5], "2 more could not") || !strings.Contains(notes[6], "starts 7 sandboxes before") {
		t.Errorf("%q", notes)
	}
}

// A deadline that has passed is not "3s ago" of something that runs, and without
// an agent a note says that nobody acts on it.
func TestOverdue(t *testing.T) {
	x := reconcile.SandboxView{Address: "sandbox.late", Phase: plan.Running, Mode: "running", ExpiresAt: ptr(now.Add(-3 * time.Second)), Conditions: conditions("True", "Running")}
	for agent, want := range map[bool]string{
		true:  "  overdue 3s  -     -\n",
		false: "  overdue 3s  -     -\nNote: no agent runs, so nothing ends sandbox.late, whose deadline has passed, before the next apply\n",
	} {
		got := string(shown(false, 0, func(s *Screen) { s.List(&reconcile.ListResult{Sandboxes: []reconcile.SandboxView{x}}, agent, now) }))
		if !strings.HasSuffix(got, want) {
			t.Errorf("agent %v:\n%s", agent, got)
		}
	}
	if got := string(shown(false, 0, func(s *Screen) { s.Describe(&reconcile.Description{Sandbox: x}, true, now) })); !strings.Contains(got, "  Expires:  2026-12-01T11:59:57Z (3s ago), not acted on yet\n") {
		t.Errorf("described:\n%s", got)
	}
	x.ExpiresAt, x.EndedAt = nil, x.ExpiresAt
	if got := expiresOf(x, now); got != "set on resume" || isOverdue(&x, now) {
		t.Errorf("one whose deadline a pause took away: %q", got)
	}
	passed(x.Conditions, "TTLExpiry")
	if got := expiresOf(x, now); got != "3s ago" || isOverdue(&x, now) {
		t.Errorf("one that expired: %q", got)
	}
}

// Nothing that a user or a workload wrote changes what the terminal shows around
// it: neither control characters nor those that turn its direction or are not seen.
func TestNothingThatHides(t *testing.T) {
	const evil = "a\x1b[31m\u202eb\u2066c\u200bd\ufeff\u2028e\u009bf\U000e0041\rg\x00\x7f"
	x := sandboxes().Sandboxes[1]
	x.Address, x.Hold.By, x.Hold.Reason, x.Phase = "sandbox."+evil, evil, evil, plan.Stopped
	x.Hold.Under = &plan.Hold{Mode: evil, By: evil, Reason: evil, At: now}
	x.Labels, x.Volumes = map[string]string{evil: evil}, map[string]string{evil: evil}
	x.Ports = map[string]plan.Port{evil: {Host: 1, Container: 2}}
	x.Outcome = &plan.Outcome{Reason: evil, At: now}
	for i := range x.Conditions {
		x.Conditions[i].Message, x.Conditions[i].Reason = evil, evil
	}
	down := x
	down.Hold, down.Conditions = nil, conditions("False", "Starting")
	down.Conditions[0].Message = evil
	d := description()
	d.Sandbox, d.NextAction = x, evil
	d.Spec.Env = map[string]string{evil: evil}
	d.Spec.Command = []string{evil}
	d.Events[0] = reconcile.Event{At: now, Type: evil, Reason: evil, Message: evil, By: evil}
	p := &reconcile.PlanResult{Plan: &plan.Plan{
		Drift: []plan.Drift{{Address: evil, What: evil}}, Notes: []string{evil},
		Changes: []plan.Change{
			{Address: evil, Kind: "sandbox", Action: plan.ActUpdate, Cause: evil, Consequence: evil, Notes: []string{evil}, Volumes: []string{evil}, Diff: []plan.Diff{
				{Path: evil, Before: json.RawMessage(`"old"`), After: quoted(t, evil)}, {Path: "file.content", Before: json.RawMessage(`"1\n2\n"`), After: quoted(t, "1\n"+evil+"\n")},
			}},
			{Address: evil, Kind: "sandbox", Action: plan.ActCreate, After: json.RawMessage(`{"labels":{` + string(quoted(t, evil)) + `:` + string(quoted(t, evil)) + `}}`)},
			{Address: "output." + evil, Kind: "output", Action: plan.ActCreate, After: quoted(t, evil)},
		},
	}}
	outputs := []config.Output{{Name: "o", Value: quoted(t, evil)}}
	effective := &config.Resource[config.Sandbox]{Address: evil, Spec: d.Spec, Sources: map[string]config.Position{"command": {File: evil, Line: 1, Policy: evil}}}
	for name, show := range map[string]func(*Screen){
		"events":  func(s *Screen) { s.Events(d.Events) },
		"follow":  func(s *Screen) { s.EventLines(d.Events) },
		"history": func(s *Screen) { s.History(HistoryOf(evilLife(evil)), now) },
		"list": func(s *Screen) {
			s.List(&reconcile.ListResult{Sandboxes: []reconcile.SandboxView{x, down}}, false, now)
		},
		"describe": func(s *Screen) { s.Describe(d, false, now) },
		"acted":    func(s *Screen) { s.Acted(&reconcile.ActResult{Sandbox: x, Note: evil}, now) },
		"plan":     func(s *Screen) { s.Plan(p, false) },
		"progress": func(s *Screen) {
			progress := NewProgress(s, 1, false, func() time.Time { return now })
			for _, state := range []string{"started", "running", "done", "failed", "skipped"} {
				progress.Step(reconcile.Progress{Address: evil, Action: plan.ActCreate, State: state, Message: evil, At: now})
			}
		},
		"outputs":   func(s *Screen) { s.Outputs(outputs) },
		"effective": func(s *Screen) { s.Effective(effective) },
		"unified":   func(s *Screen) { s.Unified(evil, []byte("a\n"), []byte(evil+"\n")) },
		"diagnostics": func(s *Screen) {
			d := config.Diagnostics{{Severity: "error", Summary: evil, Detail: evil, Address: `s["` + evil + `"]`, Context: evil, Snippet: "x = " + evil, Range: &config.Range{File: evil, Start: config.Pos{Line: 1, Column: 1}, End: config.Pos{Line: 1, Column: 5}}}}
			if err := config.Fprint(s, PrintableDiagnostics(d), false, 0); err != nil {
				t.Error(err)
			}
		},
	} {
		out := string(shown(false, 0, show))
		if !strings.Contains(out, "b") {
			t.Errorf("%s does not show it:\n%s", name, out)
		}
		for _, r := range out {
			if !unicode.IsGraphic(r) && r != '\n' {
				t.Errorf("%s writes %U:\n%q", name, r, out)
				break
			}
		}
	}
}

func quoted(t *testing.T, text string) json.RawMessage {
	t.Helper()
	out, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	return out
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
		NextLook: ptr(now.Add(7*time.Hour + 59*time.Minute)), NextAction: "expire: lifetime.ttl passed",
		Events: []reconcile.Event{
			{At: now.Add(-90 * time.Minute), Type: "create", Reason: "declared", By: "apply"},
			{At: now.Add(-30 * time.Minute), Type: "renewed", Reason: "renew -in 8h", Message: "until later\nand on", By: "operator"},
		},
	}
}

func TestDescribe(t *testing.T) {
	golden(t, "describe.txt", shown(false, 0, func(s *Screen) { s.Describe(description(), true, now) }))
	golden(t, "describe_60.txt", shown(false, 60, func(s *Screen) { s.Describe(description(), true, now) }))
	held := description()
	held.Sandbox = sandboxes().Sandboxes[1]
	held.Sandbox.Outcome = sandboxes().Sandboxes[2].Outcome
	golden(t, "describe_held.txt", shown(false, 0, func(s *Screen) { s.Describe(held, true, now) }))
	gone := description()
	gone.Sandbox = sandboxes().Sandboxes[2]
	golden(t, "describe_expired.txt", shown(false, 0, func(s *Screen) { s.Describe(gone, true, now) }))
}

// What is due is told with its time before its cause, which may name a time, too;
// a look without anything to do is not told.
func TestDescribeNext(t *testing.T) {
	for action, want := range map[string]string{
		"expire: shutdown_time passed":        "Next:        expire at 2026-12-01T12:00:03Z (in 3s): shutdown_time\n",
		"pause: idle since 2026-12-01T11:00Z": "Next:        pause at 2026-12-01T12:00:03Z (in 3s): idle since 2026-12-01T11:00Z\n",
		"start":                               "Next:        start at 2026-12-01T12:00:03Z (in 3s)\n",
		"":                                    "",
	} {
		d := description()
		d.NextLook, d.NextAction = ptr(now.Add(3*time.Second)), action
		got := string(shown(false, 0, func(s *Screen) { s.Describe(d, true, now) }))
		if want == "" && strings.Contains(got, "Next:") || !strings.Contains(got, want) {
			t.Errorf("%q: want %q\n%s", action, want, got)
		}
	}
}

// Instances of a count stand in the order of their numbers.
func TestListOrder(t *testing.T) {
	var r reconcile.ListResult
	for _, a := range []string{"sandbox.a", "sandbox.slow[0]", "sandbox.slow[10]", "sandbox.slow[2]", `sandbox.w["b"]`, `sandbox.w["a"]`, "sandbox.slower"} {
		r.Sandboxes = append(r.Sandboxes, reconcile.SandboxView{Address: a, Phase: plan.Pending})
	}
	var got []string
	for line := range strings.Lines(string(shown(false, 0, func(s *Screen) { s.List(&r, true, now) }))) {
		got = append(got, strings.Fields(line)[0])
	}
	want := []string{"SANDBOX", "sandbox.a", "sandbox.slow[0]", "sandbox.slow[2]", "sandbox.slow[10]", "sandbox.slower", `sandbox.w["a"]`, `sandbox.w["b"]`}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
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

// Each value of the spec says where it was written, and through which policy.
func TestDescribeTellsSources(t *testing.T) {
	d := description()
	d.Spec.Env = map[string]string{"WHO": "you"}
	d.Sources = map[string]config.Position{
		"command": {File: "main.hcl", Line: 12}, "env": {File: "main.hcl", Line: 13},
		"resources.memory": {File: "policy.hcl", Line: 3, Policy: "policy.small"}, "shutdown_policy": {Policy: "policy.host"},
	}
	text := string(shown(false, 0, func(s *Screen) { s.Describe(d, true, now) }))
	for _, want := range []string{`"http.server"]  # main.hcl:12`, `"you"  # main.hcl:13`, `"256MiB"  # policy.hcl:3 (policy.small)`, `"retain"  # default (policy.host)`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("it lacks %s:\n%s", want, text)
		}
	}
}

// What was replaced and is still there is told of, and by whom it goes.
func TestDeposedIsShown(t *testing.T) {
	all := &reconcile.ListResult{Sandboxes: []reconcile.SandboxView{{Address: "sandbox.py", Phase: plan.Running, Deposed: []string{"0123456789ab"}}}}
	for agent, who := range map[bool]string{true: "the agent", false: "the next apply"} {
		want := "Note: of sandbox.py there is still what was replaced (0123456789ab); " + who + " takes it away\n"
		if out := string(shown(false, 0, func(s *Screen) { s.List(all, agent, now) })); !strings.Contains(out, want) {
			t.Errorf("list lacks %q:\n%s", want, out)
		}
		d := &reconcile.Description{Sandbox: all.Sandboxes[0]}
		out := string(shown(false, 0, func(s *Screen) { s.Describe(d, agent, now) }))
		if !strings.Contains(out, want) || !strings.Contains(out, "\nDeposed:     0123456789ab\n") {
			t.Errorf("describe lacks the instance or %q:\n%s", want, out)
		}
	}
}
