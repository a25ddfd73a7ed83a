package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pinfold/config"
)

// words1 is a status in one line: phase, why stopped, outcome, and the
// conditions that are not at rest.
func words1(st Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", st.Phase, st.StoppedBy)
	if o := st.Outcome; o != nil {
		fmt.Fprintf(&b, " %s/%d", o.Reason, o.ExitCode)
	}
	for _, c := range st.Conditions {
		switch c.Reason {
		case "NotSuspended", "NotPaused", "NotExpired", "NotFinished", "InSync":
			if c.Status != "False" {
				fmt.Fprintf(&b, " WRONG:%v", c)
			}
		default:
			fmt.Fprintf(&b, " %s=%s:%s", c.Type, c.Status, c.Reason)
		}
	}
	return b.String()
}

func TestStatusOf(t *testing.T) {
	slow := func(_ *Sandbox, s *Seen) { s.Dying = true }
	outcome := func(o Outcome) func(*Sandbox, *Seen) { return foundEnded(o) }
	type edits = []func(*Sandbox, *Seen)
	for _, c := range []struct {
		name   string
		spec   config.Sandbox
		edit   edits
		absent bool
		want   string
	}{
		{"running", spec(), nil, false, "running  Ready=True:Running"},
		{"pending", spec(), edits{pending}, true, "pending  Ready=False:Starting"},
		{"created", spec(), edits{in(Created)}, false, "created  Ready=False:Starting"},
		{"started behind our back", spec(), edits{in(Created), func(_ *Sandbox, s *Seen) { s.Started = true }}, false, "running  Ready=True:Running"},
		{"declared paused", spec(mode("paused")), edits{in(Paused)}, false, "paused  Ready=False:Paused Paused=True:Declared"},
		{"paused by the operator", spec(), edits{in(Paused), held("paused")}, false, "paused  Ready=False:Paused Paused=True:ByOperator"},
		{"paused by idle", spec(), edits{in(Paused), held("paused"), func(s *Sandbox, _ *Seen) { s.Hold.By = "idle" }}, false, "paused  Ready=False:Paused Paused=True:ByIdle"},
		{"frozen from outside", spec(), edits{in(Paused)}, false, "paused  Ready=False:Paused Paused=True:Outside Drifted=True:PausedOutside"},
		{"thawed from outside", spec(mode("paused")), nil, false, "running  Ready=False:Degraded Drifted=True:NotFrozen"},
		{"held suspended", spec(), edits{stoppedBy(ByStop), held("suspended")}, false, "stopped stop Ready=False:Suspended Suspended=True:Suspended"},
		{"slow to die shows Terminating, not Suspended", spec(mode("suspended")), edits{gone, slow}, false, "running  Ready=False:Degraded Suspended=False:Terminating"},
		{"expired is never Suspended", spec(mode("suspended")), edits{expiredAt(t0, TTLExpiry, true)}, false, "stopped expiry Ready=False:Expired Expired=True:TTLExpiry"},
		{"exited is never Suspended", spec(mode("suspended")), edits{exited(0)}, false, "stopped exit exited/0 Ready=False:Exited Finished=True:Succeeded"},
		{"exited while nobody watched", spec(), edits{outcome(Outcome{ExitCode: 3})}, false, "stopped exit exited/3 Ready=False:Exited Finished=True:Failed"},
		{"ended by its own signal", spec(), edits{outcome(Outcome{ExitCode: 139, Signal: 11})}, false, "stopped exit signalled/139 Ready=False:Exited Finished=True:Failed"},
		{"finished survives expiry", spec(), edits{exited(0), func(s *Sandbox, _ *Seen) { s.Expired = &Expired{Deadline: t0, Reason: ShutdownTime, Done: true} }}, false, "stopped exit exited/0 Ready=False:Expired Expired=True:ShutdownTime Finished=True:Succeeded"},
		{"killed is not finished nor suspended", spec(), edits{outcome(Outcome{ExitCode: 137, Signal: 9})}, false, "stopped killed killed/137 Ready=False:Starting Drifted=True:Killed"},
		{"ended in order by the host", spec(), edits{outcome(Outcome{ExitCode: 0, Outside: 15})}, false, "stopped killed killed/0 Ready=False:Starting Drifted=True:Killed"},
		{"out of memory", spec(), edits{outcome(Outcome{ExitCode: 137, Signal: 9, OOM: true})}, false, "stopped oom oom/137 Ready=False:Exited Finished=True:OOMKilled"},
		{"out of memory, by the counter", spec(), edits{gone, func(_ *Sandbox, s *Seen) { s.OOMKills = 1 }}, false, "stopped oom oom/137 Ready=False:Exited Finished=True:OOMKilled"},
		{"a child died of memory, the main process did not", spec(), edits{outcome(Outcome{ExitCode: 0, OOM: true})}, false, "stopped exit exited/0 Ready=False:Exited Finished=True:Succeeded"},
		{"lost", spec(), edits{gone}, false, "lost  Ready=False:Lost Drifted=True:Lost"},
		{"lost with everything", spec(), nil, true, "lost  Ready=False:Lost Drifted=True:Lost"},
		{"lost, retained", spec(onLost("retain")), edits{gone}, false, "lost  Ready=False:Lost"},
		{"gone while it was being stopped", spec(), edits{held("suspended"), gone}, false, "stopped stop Ready=False:Suspended Suspended=True:Suspended"},
		{"gone while it was being suspended", spec(mode("suspended")), edits{gone}, true, "stopped suspend Ready=False:Suspended Suspended=True:Suspended"},
		{"gone while its expiry was acted on", spec(), edits{expiredAt(t0, TTLExpiry, false), gone}, true, "stopped expiry Ready=False:Expired Expired=True:TTLExpiry"},
		{"failed", spec(), edits{in(Failed)}, false, "failed  Ready=False:Failed"},
		{"unknown keeps the phase", spec(), edits{unknown}, false, "running  Ready=Unknown:Unknown Suspended=Unknown:Unobservable Paused=Unknown:Unobservable Drifted=Unknown:Unobservable"},
		{"link missing", spec(), edits{missing("link")}, false, "running  Ready=False:Degraded Drifted=True:LinkMissing"},
		{"limits missing", spec(), edits{missing("limits")}, false, "running  Ready=True:Running Drifted=True:LimitsMissing"},
		{"stopped needs no host object", spec(mode("suspended")), edits{stoppedBy(BySuspend)}, true, "stopped suspend Ready=False:Suspended Suspended=True:Suspended"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld().record("sandbox.a", c.spec, c.edit...)
			rec := w.Records.Sandboxes["sandbox.a"]
			seen, present := w.Observed.Instances["i-a"]
			if c.absent {
				seen, present = Seen{}, false
			}
			st := StatusOf(rec, seen, present, boot, t0)
			if got := words1(st); got != c.want {
				t.Errorf("\n%s, want\n%s", got, c.want)
			}
			for i, cond := range st.Conditions {
				if cond.Type != Types[i] || !cond.Since.Equal(t0) || cond.Generation != 1 {
					t.Errorf("condition %d is %v", i, cond)
				}
			}
		})
	}
}

// Since moves when the status flips, and only then.
func TestConditionsKeepSince(t *testing.T) {
	w := newWorld().record("sandbox.a", spec(mode("suspended")), stoppedBy(BySuspend))
	rec := w.Records.Sandboxes["sandbox.a"]
	seen := w.Observed.Instances["i-a"]
	rec.Conditions = Conditions(rec, seen, true, t0)
	later := t0.Add(time.Minute)
	if again := Conditions(rec, seen, true, later); words1(Status{Conditions: again}) != words1(Status{Conditions: rec.Conditions}) || again[1].Since != t0 {
		t.Errorf("%v becomes %v", rec.Conditions, again)
	}
	rec.Generation = 2
	rec.Expired = &Expired{Deadline: later, Reason: ShutdownTime, Done: true}
	rec.Instance.StoppedBy = ByExpiry
	for _, c := range Conditions(rec, seen, true, later) {
		since := t0
		if c.Type == "Suspended" || c.Type == "Expired" {
			since = later
		}
		if !c.Since.Equal(since) || c.Generation != 2 {
			t.Errorf("%s is %s since %s, generation %d", c.Type, c.Status, stamp(c.Since), c.Generation)
		}
	}
}
