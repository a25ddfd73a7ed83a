package view

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func raw(text string) json.RawMessage { return json.RawMessage(text) }

// everyAction is a plan with each action once, as the planner words them.
func everyAction() *reconcile.PlanResult {
	return &reconcile.PlanResult{Digest: "sha256:abc", Lineage: "k3x9", Serial: 7, Plan: &plan.Plan{
		Drift: []plan.Drift{
			{Address: "sandbox.ci", What: "process gone: killed from outside"},
			{Address: "network.agents", What: "bridge missing"},
		},
		Changes: []plan.Change{
			{Address: "network.agents", Kind: "network", Action: plan.ActRepair, Origin: plan.FromHost, Cause: "bridge missing", Consequence: "repaired in place, its sandboxes keep running", Missing: []string{"bridge", "rules"}},
			{
				Address: "sandbox.new", Kind: "sandbox", Action: plan.ActCreate, Origin: plan.FromFiles, Cause: "declared", Consequence: "created and started",
				After:   raw(`{"image":"image.base","command":["sleep","1d"],"env":{"A":"1"},"operating_mode":"running","stop_grace":"10s","args":["a",null,"c"],"labels":{},"resources":{"memory":268435456},"file":{"/etc/app.toml":{"content":"a = 1\nb = 2\n","mode":"0644"}}}`),
				Unknown: []string{"args[1]", "env.NET", "labels.net"}, Defaults: []string{"operating_mode", "stop_grace", `file["/etc/app.toml"].mode`},
			},
			{
				Address: `sandbox.py["a"]`, Kind: "sandbox", Action: plan.ActUpdate, Origin: plan.FromFiles, Cause: "shutdown_time changed", Consequence: "updated in place, keeps running",
				Diff: []plan.Diff{
					{Path: "labels", Before: raw(`{"team":"agents","tier":"1","old":"x"}`), After: raw(`{"team":"agents","tier":"2","new":"y"}`)},
					{Path: "lifetime.ttl", Before: raw(`"8h"`)},
					{Path: "resources.memory", Before: raw(`268435456`), After: raw(`536870912`)},
					{Path: "shutdown_time", Before: raw(`"2026-12-01T00:00:00Z"`), After: raw(`"2026-12-02T00:00:00Z"`)},
				},
			},
			{
				Address: "sandbox.web", Kind: "sandbox", Action: plan.ActRestart, Origin: plan.FromFiles, Cause: "command, env and a file changed", Consequence: "restarted, files kept",
				Diff: []plan.Diff{
					{Path: "command", Before: raw(`["python3","-m","http.server","8080"]`), After: raw(`["python3","-u","-m","http.server","8081"]`)},
					{Path: "env.NET", Before: raw(`"10.0.0.1"`), Unknown: true},
					{Path: "env.WHO", After: raw(`"a\u001b[31m"`)},
					{Path: `file["/etc/app.toml"].content`, Before: raw(`"1\n2\n3\n4\n5\n6\n7\n8\n9\n"`), After: raw(`"1\n2\n3\n4\n5\n6\n7\nacht\n9\n"`)},
				},
				Notes: []string{"memory is lost: it is held paused"},
			},
			{
				Address: "sandbox.db", Kind: "sandbox", Action: plan.ActReplace, Origin: plan.FromFiles, Cause: "image changed", Consequence: `replaced: writable layer lost, volume "work" kept`,
				Diff:         []plan.Diff{{Path: "image", Before: raw(`"sha256:1f2e"`), After: raw(`"sha256:9ab0"`), Replace: true}, {Path: "labels.a", After: raw(`"b"`)}},
				ReplacePaths: []string{"image"}, Notes: []string{"deadline 2026-12-01T18:00:00Z becomes 2026-12-01T20:00:00Z"},
			},
			{Address: "sandbox.gone", Kind: "sandbox", Action: plan.ActDelete, Origin: plan.FromFiles, Cause: "no longer declared", Consequence: `destroyed: writable layer and volume "work" lost`, Volumes: []string{"work"}},
			{Address: "sandbox.s1", Kind: "sandbox", Action: plan.ActStart, Origin: plan.FromHost, Cause: "killed from outside", Consequence: "started on the same files"},
			{Address: "sandbox.s2", Kind: "sandbox", Action: plan.ActStop, Origin: plan.FromFiles, Cause: "operating_mode changed"},
			{Address: "sandbox.s3", Kind: "sandbox", Action: plan.ActSuspend, Origin: plan.FromFiles, Cause: "operating_mode changed", Consequence: "suspended: stopped, files kept"},
			{Address: "sandbox.s4", Kind: "sandbox", Action: plan.ActPause, Origin: plan.FromFiles, Cause: "operating_mode changed"},
			{Address: "sandbox.s5", Kind: "sandbox", Action: plan.ActResume, Origin: plan.FromFiles, Cause: "operating_mode changed"},
			{Address: "sandbox.s6", Kind: "sandbox", Action: plan.ActExpire, Origin: plan.FromHost, Cause: "shutdown_time passed", Consequence: "expired: stopped, files and volumes kept"},
			{Address: "sandbox.ci", Kind: "sandbox", Action: plan.ActRecreate, Origin: plan.FromHost, Cause: "lost: process gone without an outcome", Consequence: "recreated, files kept"},
			{Address: "sandbox.s7", Kind: "sandbox", Action: plan.ActMove, Origin: plan.FromFiles, From: "sandbox.s0", Cause: "moved from sandbox.s0", Consequence: "moved from sandbox.s0, nothing of it is touched"},
			{Address: "sandbox.s8", Kind: "sandbox", Action: plan.ActImport, Origin: plan.FromFiles, Instance: "8b2e41f0a7c3", Cause: "import of 8b2e41f0a7c3", Consequence: "imported, its process is not touched"},
			{Address: "sandbox.old", Kind: "sandbox", Action: plan.ActForget, Reason: plan.Released, Origin: plan.FromFiles, Cause: "a removed block says so", Consequence: "forgotten: left on the host as it is, its process goes on"},
			{Address: "sandbox.s9", Kind: "sandbox", Action: plan.ActRelease, Origin: plan.FromFiles, Cause: "-release-holds"},
			{Address: "volume.old", Kind: "volume", Action: plan.ActForget, Origin: plan.FromHost, Cause: "its directory is gone"},
			{Address: "sandbox.quiet", Kind: "sandbox", Action: plan.ActNoop, Origin: plan.FromHost, Cause: "exited with code 3", Consequence: "what its process held is released, files kept"},
			{Address: "output.urls", Kind: "output", Action: plan.ActUpdate, Origin: plan.FromFiles, Before: raw(`{"a":"http://10.0.0.2:8080"}`), After: raw(`{"a":"http://10.0.0.2:8080","b":"http://10.0.0.3:8080"}`)},
			{Address: "output.id", Kind: "output", Action: plan.ActCreate, Origin: plan.FromFiles, Unknown: []string{"value"}},
		},
		Notes:   []string{"sandbox.idle is held paused by operator since 08:12; apply keeps it."},
		Summary: plan.Summary{Add: 1, Change: 9, Replace: 1, Destroy: 2, Converge: 4},
	}}
}

func TestPlan(t *testing.T) {
	golden(t, "plan.txt", shown(false, 0, func(s *Screen) { s.Plan(everyAction(), false) }))
	golden(t, "plan_color.txt", shown(true, 0, func(s *Screen) { s.Plan(everyAction(), false) }))
}

func TestPlanWithoutChanges(t *testing.T) {
	r := &reconcile.PlanResult{Plan: &plan.Plan{Notes: []string{"sandbox.old stays ended: shutdown_time passed."}}}
	golden(t, "plan_none.txt", shown(false, 0, func(s *Screen) { s.Plan(r, false) }))
}

// Bookkeeping is no change.
func TestPlanOfNoopsOnly(t *testing.T) {
	r := &reconcile.PlanResult{Plan: &plan.Plan{Changes: []plan.Change{
		{Address: "sandbox.a", Kind: "sandbox", Action: plan.ActNoop, Cause: "exited with code 3", Consequence: "what its process held is released, files kept"},
	}}}
	if got, want := string(shown(false, 0, func(s *Screen) { s.Plan(r, false) })), "No changes. The host is as declared.\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A plan that only records says so, and never that the host is as declared.
func TestPlanOfRefreshOnly(t *testing.T) {
	r := &reconcile.PlanResult{Plan: &plan.Plan{RefreshOnly: true, Refresh: []string{"sandbox.a"}, Drift: []plan.Drift{{Address: "sandbox.a", What: "exited with code 3"}}}}
	golden(t, "plan_refresh_only.txt", shown(false, 0, func(s *Screen) { s.Plan(r, false) }))
	r.Plan.Drift, r.Plan.Refresh = nil, nil
	if got, want := string(shown(false, 0, func(s *Screen) { s.Plan(r, false) })), "No changes. The records say what is on the host.\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A refused change is the caller's to show; the plan says no word against it.
func TestPlanBesideAnError(t *testing.T) {
	r := &reconcile.PlanResult{Plan: &plan.Plan{
		Diags: config.Diagnostics{{Severity: "error", Summary: "volume claim \"work\" of sandbox.a cannot be added", Address: "sandbox.a"}},
		Drift: []plan.Drift{{Address: "sandbox.a", What: "could not be looked at"}},
		Notes: []string{"sandbox.b is held paused by operator since 08:12; apply keeps it"},
	}}
	if got := shown(false, 0, func(s *Screen) { s.Plan(r, false) }); len(got) > 0 {
		t.Errorf("beside an error and nothing else: %q", got)
	}
	r.Plan.Drift = nil
	r.Plan.Changes = []plan.Change{{Address: "sandbox.b", Kind: "sandbox", Action: plan.ActUpdate, Cause: "labels changed", Consequence: "updated in place, keeps running"}}
	r.Plan.Summary.Change = 1
	golden(t, "plan_beside_error.txt", shown(false, 0, func(s *Screen) { s.Plan(r, false) }))
}

// What a configuration or a workload can name must not reach the terminal raw.
func TestPlanHasNoRawControlCharacters(t *testing.T) {
	r := &reconcile.PlanResult{Plan: &plan.Plan{
		Notes: []string{"a\x1b[2Jb"},
		Changes: []plan.Change{{
			Address: "sandbox.a\x1b", Kind: "sandbox", Action: plan.ActUpdate, Cause: "c\x07", Consequence: "d\x9b",
			Diff:  []plan.Diff{{Path: "x\x1b", Before: raw(`"\u001b\n\u009b"`), After: raw(`["\u001b"]`)}, {Path: "text", Before: raw(`"a\n\u001b"`), After: raw(`"b\n\u001bc"`)}},
			Notes: []string{"n\x1b"}, Volumes: []string{"v\x1b"},
		}},
	}}
	out := shown(false, 0, func(s *Screen) { s.Plan(r, false) })
	if i := bytes.IndexFunc(out, func(r rune) bool { return r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 }); i >= 0 {
		t.Errorf("control character at %d of %q", i, out)
	}
}

func TestPlanJSON(t *testing.T) {
	r := everyAction()
	r.Plan.Diags = config.Diagnostics{{Severity: "warning", Summary: "deadline already past", Address: "sandbox.x"}}
	r.Diagnostics = r.Plan.Diags // the engine may report them in both places
	var out bytes.Buffer
	if err := PlanJSON(&out, r, config.Diagnostics{{Severity: "warning", Summary: "first"}}); err != nil {
		t.Fatal(err)
	}
	golden(t, "plan.json", out.Bytes())
	var doc struct {
		Changes     []map[string]any
		Diagnostics []map[string]any
		WakeAt      any `json:"wake_at"`
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if len(doc.Changes) != len(r.Plan.Changes) {
		t.Errorf("%d of %d changes", len(doc.Changes), len(r.Plan.Changes))
	}
	if len(doc.Diagnostics) != 2 {
		t.Errorf("diagnostics = %v, want each once", doc.Diagnostics)
	}
	if doc.WakeAt != nil {
		t.Errorf("wake_at = %v, want null", doc.WakeAt)
	}
}

func TestEveryActionHasWords(t *testing.T) {
	for _, c := range everyAction().Plan.Changes {
		if _, ok := actionWords[c.Action]; !ok {
			t.Errorf("no headline words for %s", c.Action)
		}
		if _, ok := doing[c.Action]; !ok {
			t.Errorf("no progress words for %s", c.Action)
		}
	}
	if len(actionWords) != len(doing) {
		t.Errorf("%d headline words, %d progress words", len(actionWords), len(doing))
	}
}

func TestChanges(t *testing.T) {
	only := func(a plan.Action) *plan.Plan { return &plan.Plan{Changes: []plan.Change{{Action: a}}} }
	for _, c := range []struct {
		name string
		plan *plan.Plan
		want bool
	}{
		{"nothing", &plan.Plan{}, false},
		{"bookkeeping", only(plan.ActNoop), false},
		{"update", only(plan.ActUpdate), true},
		{"repair", only(plan.ActRepair), true},
		{"output only", &plan.Plan{Changes: []plan.Change{{Kind: "output", Action: plan.ActUpdate}}}, true},
		{"drift alone explains", &plan.Plan{Drift: []plan.Drift{{Address: "sandbox.a"}}}, false},
		{"drift that is on record", &plan.Plan{RefreshOnly: true, Drift: []plan.Drift{{Address: "sandbox.a"}}}, false},
		{"something to be recorded", &plan.Plan{RefreshOnly: true, Refresh: []string{"sandbox.a"}}, true},
		{"nothing to be recorded", &plan.Plan{RefreshOnly: true}, false},
	} {
		if got := Changes(c.plan); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestSteps(t *testing.T) {
	p := everyAction().Plan
	if got, want := Steps(p), len(p.Changes)-3; got != want { // two outputs and a noop
		t.Errorf("%d steps, want %d", got, want)
	}
}

func TestScriptTurnsOneIntoTheOther(t *testing.T) {
	for _, c := range [][2]string{{"", ""}, {"a", ""}, {"", "a"}, {"abcd", "acbd"}, {"abcabba", "cbabac"}, {"xaxbxc", "abc"}} {
		var before, after []string
		for _, r := range c[0] {
			before = append(before, string(r))
		}
		for _, r := range c[1] {
			after = append(after, string(r))
		}
		var was, is strings.Builder
		for _, s := range script(before, after) {
			if s.symbol != "+" {
				was.WriteString(s.text)
			}
			if s.symbol != "-" {
				is.WriteString(s.text)
			}
		}
		if was.String() != c[0] || is.String() != c[1] {
			t.Errorf("%q -> %q: script gives %q -> %q", c[0], c[1], was.String(), is.String())
		}
	}
}
