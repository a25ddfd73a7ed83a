package view

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// life is what happens to a sandbox with two instances and one of another uid
// that follows it.
func life() []reconcile.Event {
	var out []reconcile.Event
	add := func(minutes int, uid, instance, kind, reason, message, by string) {
		out = append(out, reconcile.Event{
			Seq: uint64(len(out) + 1), At: now.Add(time.Duration(minutes-120) * time.Minute),
			Address: "sandbox.py", UID: uid, Instance: instance, Type: kind, Reason: reason, Message: message, By: by,
		})
	}
	out = append(out, reconcile.Event{Seq: 1, At: now.Add(-121 * time.Minute), Address: "network.agents", Type: "create", Reason: "create", Instance: "n1", By: "apply"})
	add(0, "u1", "i1", "create", "created", "", "apply")
	add(0, "u1", "i1", "start", "started", "", "apply")
	add(10, "u1", "i1", "held", "paused", "idle since 11:00", "agent")
	add(10, "u1", "i1", "pause", "paused", "", "agent")
	add(15, "u1", "i1", "release", "idle", "used", "access")
	add(15, "u1", "i1", "resume", "running", "", "access")
	add(15, "u1", "i1", "renewed", "access", "2026-12-01T12:30:00Z", "access")
	add(20, "u1", "i1", "exited", "exit", "exit code 3", "agent")
	add(20, "u1", "i1", "start", "started", "", "agent")
	add(30, "u1", "i1", "lost", "", "", "agent")
	add(30, "u1", "i1", "recreate", "process gone", "", "agent")
	add(31, "u1", "i2", "create", "created", "", "agent")
	add(31, "u1", "i2", "start", "started", "", "agent")
	add(40, "u1", "i2", "held", "suspended", "night", "operator")
	add(40, "u1", "i2", "stop", "stopped", "", "operator")
	add(50, "u1", "i2", "expired", "ttl_expiry", "deadline …", "agent")
	add(50, "u1", "i2", "destroyed", "ttl_expiry", "", "agent")
	add(90, "u2", "i3", "create", "created", "", "apply")
	add(90, "u2", "i3", "start", "started", "", "apply")
	add(95, "u2", "i3", "stop", "restarted", "", "apply")
	add(95, "u2", "i3", "start", "started", "", "apply")
	add(99, "u2", "i3", "exited", "killed", "signal 9", "agent")
	add(99, "u2", "i3", "start", "started", "", "agent")
	return out
}

// evilLife has the text everywhere.
func evilLife(text string) []reconcile.Event {
	var out []reconcile.Event
	for i, kind := range []string{"create", "start", "held", "renewed", "exited", "destroyed"} {
		out = append(out, reconcile.Event{
			At: now.Add(time.Duration(i) * time.Minute), Address: "sandbox." + text, UID: text, Instance: text,
			Type: kind, Reason: text, Message: text, By: text,
		})
	}
	return out
}

func TestHistory(t *testing.T) {
	all := HistoryOf(life())
	golden(t, "history.txt", shown(false, 0, func(s *Screen) { s.History(all, now) }))
	golden(t, "history.json", shown(false, 0, func(s *Screen) {
		if err := HistoryJSON(s, all); err != nil {
			t.Error(err)
		}
	}))
	if got := string(shown(false, 0, func(s *Screen) { s.History(nil, now) })); got != "No sandboxes so far.\n" {
		t.Errorf("%q", got)
	}
}

// A run ends when its process did, not when that was noticed; what is seen to have ended
// does not go on, though no event tells of it.
func TestHistoryTellsTheEndItself(t *testing.T) {
	at := func(minutes int) time.Time { return now.Add(time.Duration(minutes-120) * time.Minute) }
	event := func(minutes int, kind string) reconcile.Event {
		return reconcile.Event{At: at(minutes), Address: "sandbox.py", UID: "u", Instance: "i", Type: kind, Reason: "exit", Message: "exit code 3"}
	}
	noticed := event(60, "exited")
	noticed.EndedAt = at(2)
	early := noticed
	early.EndedAt = at(0)
	outcome := &plan.Outcome{ExitCode: 3, Reason: "exited", At: at(2)}
	seen := func(phase plan.Phase, outcome *plan.Outcome) reconcile.SandboxView {
		return reconcile.SandboxView{Address: "sandbox.py", InstanceID: orNull("i"), Phase: phase, Outcome: outcome}
	}
	two := at(2)
	start := at(1)
	for name, c := range map[string]struct {
		events []reconcile.Event
		seen   reconcile.SandboxView
		ended  *time.Time
		how    string
	}{
		"noticed later":                    {[]reconcile.Event{event(1, "start"), noticed}, seen(plan.Stopped, outcome), &two, "1m exit (exit code 3)"},
		"noticed and started again":        {[]reconcile.Event{event(1, "start"), noticed, event(60, "start")}, seen(plan.Running, nil), &two, "1m exit (exit code 3)"},
		"not noticed":                      {[]reconcile.Event{event(1, "start")}, seen(plan.Stopped, outcome), &two, "1m exit (exit code 3)"},
		"goes on":                          {[]reconcile.Event{event(1, "start")}, seen(plan.Running, nil), nil, "goes on"},
		"ended before its start was told":  {[]reconcile.Event{event(1, "start"), early}, seen(plan.Stopped, outcome), &start, "0s exit (exit code 3)"},
		"lost, and nobody knows when":      {[]reconcile.Event{event(1, "start")}, seen(plan.Lost, nil), nil, "- lost"},
		"ended, and nobody knows when":     {[]reconcile.Event{event(1, "start")}, seen(plan.Stopped, &plan.Outcome{OOM: true, Reason: "oom"}), nil, "- oom (out of memory)"},
		"another instance is seen by then": {[]reconcile.Event{event(1, "start")}, reconcile.SandboxView{InstanceID: orNull("j"), Phase: plan.Stopped, Outcome: outcome}, nil, "goes on"},
	} {
		all := HistoryOf(c.events)
		Observe(all, []reconcile.SandboxView{c.seen})
		r := all[0].Instances[0].Runs[0]
		if !reflect.DeepEqual(r.EndedAt, c.ended) {
			t.Errorf("%s: it ended %v, not %v", name, r.EndedAt, c.ended)
		}
		text := strings.Join(strings.Fields(string(shown(false, 0, func(s *Screen) { s.History(all, now) }))), " ")
		if !strings.Contains(text, c.how) {
			t.Errorf("%s: %q is not in\n%s", name, c.how, text)
		}
	}
}

// Only a start that nobody asked for is a restart.
func TestHistoryCountsRestarts(t *testing.T) {
	type event struct{ kind, reason, by string }
	create, start := event{"create", "created", "apply"}, event{"start", "started", "agent"}
	by := func(who string) event { return event{"start", "started", who} }
	exited := func(reason string) event { return event{"exited", reason, "agent"} }
	expired := event{"expired", "ttl_expiry", "agent"}
	for name, c := range map[string]struct {
		after []event
		want  int
	}{
		"by the restart block":                 {[]event{exited("exit"), start}, 1},
		"after out of memory, by apply":        {[]event{exited("oom"), by("apply")}, 1},
		"after a kill":                         {[]event{exited("killed"), start}, 1},
		"after a kill, with changed files":     {[]event{exited("killed"), {"update", "env changed", "apply"}, by("apply")}, 1},
		"tried again until it came up":         {[]event{exited("exit"), {"error", "start failed", "agent"}, {"error", "start failed", "agent"}, start}, 1},
		"after a loss":                         {[]event{{"lost", "", "agent"}, {"recreate", "process gone", "agent"}, create, start}, 1},
		"each":                                 {[]event{exited("exit"), start, exited("killed"), start, {"lost", "", "agent"}, create, start}, 3},
		"not by hand":                          {[]event{{"stop", "stopped", "operator"}, by("operator")}, 0},
		"not by hand after its end":            {[]event{exited("exit"), by("operator")}, 0},
		"not by a release after its end":       {[]event{exited("exit"), {"release", "operator", "operator"}, start}, 0},
		"not out of idleness":                  {[]event{{"stop", "suspended", "agent"}, {"release", "idle", "access"}, by("access")}, 0},
		"not by revival":                       {[]event{{"stop", "ttl_expiry", "agent"}, by("apply")}, 0},
		"not by revival of one that ended":     {[]event{exited("exit"), expired, by("apply")}, 0},
		"not when it was told to end":          {[]event{exited("suspended"), by("apply")}, 0},
		"not by changed files":                 {[]event{{"restart", "env changed", "apply"}, {"stop", "restarted", "apply"}, by("apply")}, 0},
		"not by replacement of one that ended": {[]event{exited("exit"), {"destroyed", "replaced", "apply"}, create, by("apply")}, 0},
		"not by an apply of a failed one":      {[]event{exited("exit"), {"failed", "restarts used up", "agent"}, {"recreate", "failed", "apply"}, create, by("apply")}, 0},
	} {
		var events []reconcile.Event
		for i, x := range append([]event{create, by("apply")}, c.after...) {
			events = append(events, reconcile.Event{At: now.Add(time.Duration(i) * time.Second), Address: "sandbox.py", UID: "u", Instance: "i", Type: x.kind, Reason: x.reason, By: x.by})
		}
		if got := HistoryOf(events)[0].Restarts; got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// What is kept may begin in the middle of a life, anywhere.
func TestHistoryOfAPart(t *testing.T) {
	whole := life()
	for from := range whole {
		part := HistoryOf(whole[from:])
		for _, h := range part {
			if h.UID == "u1" && (h.EndedAt == nil || *h.Reason != "ttl_expiry") {
				t.Errorf("from event %d on the first has not ended: %+v", from, h)
			}
			if h.UID == "u2" && h.EndedAt != nil {
				t.Errorf("from event %d on the second has ended: %+v", from, h)
			}
			for _, x := range h.Instances {
				for _, r := range x.Runs {
					if x.EndedAt != nil && r.EndedAt == nil {
						t.Errorf("from event %d on a run of %s goes on", from, x.ID)
					}
				}
			}
		}
		shown(false, 80, func(s *Screen) { s.History(part, now) })
	}
}

func TestManyHoldsAndRenewals(t *testing.T) {
	var events []reconcile.Event
	for i := range 12 {
		events = append(events, reconcile.Event{At: now.Add(time.Duration(i) * time.Second), Address: "sandbox.py", UID: "u", Type: "held", Reason: "paused", By: "agent"})
		events = append(events, reconcile.Event{At: now.Add(time.Duration(i) * time.Second), Address: "sandbox.py", UID: "u", Type: "renewed", Reason: "in", By: "operator", Message: "later"})
	}
	got := string(shown(false, 0, func(s *Screen) { s.History(HistoryOf(events), now) }))
	if strings.Count(got, "\nHeld") != 5 || strings.Count(got, "\nRenewed") != 5 || !strings.Contains(got, "Renewed (last 5 of 12):") {
		t.Errorf("%s", got)
	}
}

func TestEvents(t *testing.T) {
	golden(t, "events.txt", shown(false, 0, func(s *Screen) { s.Events(life()) }))
	golden(t, "events_follow.txt", shown(false, 0, func(s *Screen) { s.EventLines(life()) }))
	if got := string(shown(false, 0, func(s *Screen) { s.Events(nil) })); got != "No events.\n" {
		t.Errorf("%q", got)
	}
	// One a line, with nothing left out.
	out := string(shown(false, 0, func(s *Screen) {
		for _, e := range life() {
			if err := EventJSON(s, e); err != nil {
				t.Error(err)
			}
		}
	}))
	var first map[string]any
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != len(life()) {
		t.Errorf("%d lines for %d events", len(lines), len(life()))
	} else if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Error(err)
	}
	want := map[string]any{"seq": 1.0, "at": "2026-12-01T09:59:00Z", "address": "network.agents", "uid": nil, "instance_id": "n1", "type": "create", "reason": "create", "message": nil, "by": "apply", "ended_at": nil}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
