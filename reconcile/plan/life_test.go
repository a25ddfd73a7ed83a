package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/config"
)

// The cases of a sandbox's life, each by its name: a world is planned and carried
// out by the model, and what is asserted is the state of that world.

// live1 carries a world on: it plans, runs the plan, and plans again.
type live1 struct {
	*testing.T
	model
}

func begin(t *testing.T, w *world) *live1 {
	in := clone(w.Input)
	return &live1{T: t, model: model{Input: &in}}
}

// step plans, carries the plan out, and checks that each step was legal and that
// nothing is left to do.
func (l *live1) step() *Plan {
	l.Helper()
	p := Make(*l.Input)
	if p.Diags.HasErrors() {
		l.Fatalf("refused: %v", p.Diags)
	}
	l.run(p)
	if len(l.wrong) > 0 {
		l.Fatalf("%s\nin\n%s", strings.Join(l.wrong, "\n"), p)
	}
	if again := Make(*l.Input); len(again.Changes) > 0 {
		l.Fatalf("after\n%s\nthere is more to do:\n%s", p, again)
	}
	return p
}

func (l *live1) rec() *Sandbox { return l.Records.Sandboxes["sandbox.a"] }

// is checks phase, the end of the world's one sandbox and who holds it.
func (l *live1) is(phase Phase, expired bool, hold string) {
	l.Helper()
	r := l.rec()
	if r == nil {
		l.Fatal("there is no record")
	}
	have := ""
	for h := r.Hold; h != nil; h = h.Under {
		have += h.Mode + " by " + h.By + ";"
	}
	if r.phase() != phase || (r.Expired != nil) != expired || have != hold {
		l.Fatalf("it is %s, expired %v, held %q; want %s, %v, %q", r.phase(), r.Expired, have, phase, expired, hold)
	}
}

func (l *live1) files(edit ...func(*config.Sandbox)) {
	for _, e := range edit {
		e(&l.Desired.Sandboxes[0].Spec)
	}
	l.Trigger = Apply
}

func actions(p *Plan) string {
	var out []string
	for _, c := range p.Changes {
		out = append(out, string(c.Action))
	}
	return strings.Join(out, " ")
}

func TestDeadlineEqualToNow(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(shutdown(t0))).keep())
	l.step()
	l.is(Stopped, true, "")
	if ex := l.rec().Expired; ex.Deadline != t0 || ex.Reason != ShutdownTime {
		t.Error(ex)
	}
}

// 500 ms left is alive; it is looked at again at the deadline itself, neither
// before nor in a loop.
func TestHalfASecondLeftIsAlive(t *testing.T) {
	deadline := t0.Add(500 * time.Millisecond)
	l := begin(t, newWorld().both("sandbox.a", spec(shutdown(deadline))).keep())
	for _, at := range []time.Duration{0, 250 * time.Millisecond, 500*time.Millisecond - 1} {
		l.Now = t0.Add(at)
		if p := l.step(); len(p.Changes) > 0 || p.WakeAt != deadline {
			t.Errorf("after %s: %s", at, p)
		}
	}
	l.Now = deadline
	l.step()
	l.is(Stopped, true, "")
}

func TestCrashBetweenExpiredAndTeardown(t *testing.T) {
	for policy1, want := range map[string]Phase{"retain": Stopped, "pause": Paused} {
		l := begin(t, newWorld().both("sandbox.a", spec(ttl(time.Hour), policy(policy1)), expiredAt(t0, TTLExpiry, false)).keep())
		l.step()
		hold := ""
		if policy1 == "pause" {
			hold = "paused by expiry;"
		}
		l.is(want, true, hold)
		if !l.rec().Expired.Done {
			t.Error("its teardown is not finished")
		}
	}
}

func TestTTLAgainstShutdownTime(t *testing.T) {
	for _, c := range []struct {
		ttl, shutdown time.Duration // from the start, an hour ago
		reason        string
	}{
		{time.Hour, 2 * time.Hour, TTLExpiry},
		{2 * time.Hour, time.Hour, ShutdownTime},
		{time.Hour, time.Hour, ShutdownTime},
	} {
		l := begin(t, newWorld().both("sandbox.a", spec(ttl(c.ttl), shutdown(t0.Add(c.shutdown-time.Hour)))).keep())
		l.step()
		l.is(Stopped, true, "")
		if ex := l.rec().Expired; ex.Reason != c.reason || ex.Deadline != t0 {
			t.Errorf("%+v: %+v", c, ex)
		}
	}
}

func TestFinishedKeepsItsOutcome(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(ttl(2*time.Hour)), foundEnded(Outcome{ExitCode: 3})).keep())
	l.step()
	l.Now = t0.Add(2 * time.Hour)
	l.step()
	l.is(Stopped, true, "")
	if o := l.rec().Instance.Outcome; o == nil || o.ExitCode != 3 || l.rec().Instance.StoppedBy != ByExit {
		t.Errorf("its outcome is %+v", o)
	}
}

// A teardown that fails keeps the record and is tried again when its back-off ends.
func TestDeleteWithAFailingStepHeals(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("delete")), expiredAt(t0, TTLExpiry, false),
		retry(Retry{Attempts: 1, NextAt: t0.Add(time.Second), Since: t0, Error: "device busy"})).keep())
	if p := l.step(); len(p.Changes) > 0 || p.WakeAt != t0.Add(time.Second) {
		t.Errorf("it does not wait: %s", p)
	}
	l.is(Running, true, "")
	l.Now = t0.Add(time.Second)
	l.step()
	if l.rec() != nil || l.Records.Ended["sandbox.a"].Reason != "ttl_expiry" {
		t.Error("it is still there")
	}
}

func TestRetainToDeleteAfterExpiry(t *testing.T) {
	for name, w := range map[string]*world{
		"retained": newWorld().both("sandbox.a", spec(ttl(time.Hour)), expiredAt(t0, TTLExpiry, true)),
		"paused":   newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), expiredPaused(t0, TTLExpiry)),
	} {
		l := begin(t, w)
		l.files(policy("delete"))
		l.step()
		if l.rec() != nil || l.Records.Ended["sandbox.a"] == nil {
			t.Errorf("%s: it is still there", name)
		}
	}
}

func TestRevivalOnTheSameFiles(t *testing.T) {
	for name, edit := range map[string]func(*config.Sandbox){"later": shutdown(t0.Add(time.Hour)), "removed": shutdown(time.Time{})} {
		l := begin(t, newWorld().both("sandbox.a", spec(shutdown(t0.Add(-time.Minute))), expiredAt(t0.Add(-time.Minute), ShutdownTime, true)))
		id := l.rec().Instance.ID
		l.files(edit)
		p := l.step()
		l.is(Running, false, "")
		if l.rec().Instance.ID != id || actions(p) != "update start" {
			t.Errorf("%s: %s", name, p)
		}
	}
}

// A revival of what expiry paused thaws the same processes, and the lease goes on
// as it was.
func TestRevivalThawsWhatExpiryPaused(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(ttl(3*time.Hour), shutdown(t0), policy("pause")), expiredPaused(t0, ShutdownTime)))
	if !l.rec().Lease.Until.IsZero() {
		t.Fatal("its lease was not cleared")
	}
	l.files(shutdown(t0.Add(5 * time.Hour)))
	if p := l.step(); actions(p) != "update resume" {
		t.Error(p)
	}
	l.is(Running, false, "")
	if le := l.rec().Lease; le.Until != t0.Add(2*time.Hour) || !le.EndedAt.IsZero() {
		t.Errorf("its lease is %+v", le)
	}
}

func TestRunningSetWhileExpiredDoesNothing(t *testing.T) {
	for name, w := range map[string]*world{
		"retained": newWorld().both("sandbox.a", spec(ttl(time.Hour), mode("suspended")), expiredAt(t0, TTLExpiry, true)),
		"paused":   newWorld().both("sandbox.a", spec(ttl(time.Hour), mode("paused"), policy("pause")), expiredPaused(t0, TTLExpiry)),
	} {
		l := begin(t, w)
		before := l.rec().phase()
		l.files(mode("running"))
		if p := l.step(); actions(p) != "update" {
			t.Errorf("%s: %s", name, p)
		}
		if l.rec().phase() != before || l.rec().Expired == nil {
			t.Errorf("%s: it is %s", name, l.rec().phase())
		}
	}
}

func TestDeadlineClearedWhileSuspended(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(mode("suspended"), shutdown(t0)), expiredAt(t0, ShutdownTime, true)))
	l.files(shutdown(time.Time{}))
	l.step()
	l.is(Stopped, false, "")
}

func TestSlowToDieShowsTerminating(t *testing.T) {
	for name, edit := range map[string][]func(*Sandbox, *Seen){
		"alive, ignoring SIGTERM": {held("suspended")},
		"its children still die":  {held("suspended"), gone, func(_ *Sandbox, s *Seen) { s.Dying = true }},
	} {
		w := newWorld().record("sandbox.a", spec(), edit...)
		st := StatusOf(w.Records.Sandboxes["sandbox.a"], w.Observed.Instances["i-a"], true, boot, t0)
		if c := st.Conditions[1]; c.Type != "Suspended" || c.Status != "False" || c.Reason != "Terminating" {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// Killed from outside it comes back whatever the restart block says, and is never
// shown suspended meanwhile.
func TestKilledFromOutsideComesBackWhateverTheMode(t *testing.T) {
	for _, m := range []string{"", "never", "on-failure", "always"} {
		w := newWorld().both("sandbox.a", spec(restartMode(m, 1)), foundEnded(Outcome{ExitCode: 137, Signal: 9}), restarted(1, t0.Add(time.Hour))).keep()
		if st := Make(w.Input).Status["sandbox.a"]; st.Conditions[1].Status != "False" || st.StoppedBy != ByKilled {
			t.Errorf("%s: it is shown %+v", m, st)
		}
		l := begin(t, w)
		if p := l.step(); actions(p) != "start" || p.Changes[0].Reason == Restarted {
			t.Errorf("%s: %s", m, p)
		}
		l.is(Running, false, "")
	}
}

func TestOwnCrashDoesNotComeBackUnderNever(t *testing.T) {
	for _, m := range []string{"", "never"} {
		l := begin(t, newWorld().both("sandbox.a", spec(restartMode(m, 0)), foundEnded(Outcome{ExitCode: 139, Signal: 11})).keep())
		if p := l.step(); actions(p) != "noop" || !p.WakeAt.IsZero() {
			t.Errorf("%q: %s", m, p)
		}
		l.is(Stopped, false, "")
	}
}

// A crash loop under a restart block: at once, then after a growing wait, never
// earlier, until the restarts are used up; the agent then leaves it alone.
func TestRestartsBackOffUntilTheyAreUsedUp(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(restartMode("on-failure", 3)), startedAt(t0)).keep())
	var waits []time.Duration
	for range 4 {
		l.Now = l.Now.Add(time.Millisecond)
		id := l.rec().Instance.ID
		l.Observed.Instances[id] = Seen{UID: l.rec().UID, Layer: true, Outcome: &Outcome{ExitCode: 1, At: l.Now}}
		died := l.Now
		for n := 0; l.rec().phase() != Running || l.Observed.Instances[id].Outcome != nil; n++ {
			p := l.step()
			if l.rec().phase() == Failed {
				break
			}
			if !p.WakeAt.IsZero() {
				l.Now = p.WakeAt
			}
			if n > 3 {
				t.Fatalf("it does not come back: %s", p)
			}
		}
		waits = append(waits, l.Now.Sub(died))
	}
	ms := time.Millisecond
	if want := []time.Duration{0, time.Second - ms, 2*time.Second - ms, 0}; !slices.Equal(waits, want) {
		t.Errorf("it waited %v, want %v", waits, want)
	}
	l.is(Failed, false, "")
	if r := l.rec().Instance.FailReason; r != "restarts used up" {
		t.Errorf("it failed for %q", r)
	}
}

func TestFailedIsRecreatedByApplyNotByTheAgent(t *testing.T) {
	w := newWorld().both("sandbox.a", spec(restartMode("always", 1)), in(Failed), restarted(1, t0.Add(time.Hour)))
	l := begin(t, w.keep())
	if p := l.step(); len(p.Changes) > 0 || !p.WakeAt.IsZero() {
		t.Errorf("the agent: %s", p)
	}
	l.Trigger = Apply
	if p := l.step(); actions(p) != "recreate" {
		t.Errorf("a user: %s", p)
	}
	l.is(Running, false, "")
	if r := l.rec().Restarts; r != (Retry{}) {
		t.Errorf("its series goes on: %+v", r)
	}
}

func TestLookUpFailureIsUnknown(t *testing.T) {
	w := newWorld().both("sandbox.a", spec(idle(time.Minute), ttl(time.Hour), restartMode("always", 0)), unknown).watched().keep()
	p := Make(w.Input)
	if st := p.Status["sandbox.a"]; len(p.Changes) > 0 || st.Phase != Running || st.Conditions[0].Status != "Unknown" {
		t.Errorf("%s, %+v", p, st)
	}
}

func TestOneSurvivorIsBoundTwoAreUntouched(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(), gone).survivor("i-b", "uid-a").keep())
	l.step()
	if id := l.rec().Instance.ID; id != "i-b" {
		t.Errorf("bound to %s", id)
	}
	p := Make(newWorld().both("sandbox.a", spec(), gone).survivor("i-b", "uid-a").survivor("i-c", "uid-a").keep().Input)
	if len(p.Changes) > 0 || !strings.Contains(p.String(), "i-b, i-c") {
		t.Errorf("two: %s", p)
	}
}

func TestDeletedByExpiryStaysEnded(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(shutdown(t0), policy("delete"))).keep())
	l.step()
	for _, trigger := range []Trigger{Apply, Keep} {
		l.Trigger = trigger
		if p := l.step(); len(p.Changes) > 0 || l.rec() != nil {
			t.Errorf("%s: %s", trigger, p)
		}
	}
	l.files(shutdown(t0.Add(time.Hour)))
	l.step()
	l.is(Running, false, "")
}

func TestLostRecreateKeepsDeadlineAndLayer(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(ttl(2*time.Hour)), gone).keep())
	was := l.rec().Lease
	p := l.step()
	if actions(p) != "recreate" || p.Changes[0].Fresh || p.Changes[0].NewLease || l.rec().Lease != was {
		t.Errorf("%s, lease %+v", p, l.rec().Lease)
	}
}

func TestReplaceByTheUserStartsANewTTL(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(ttl(2*time.Hour))))
	l.files(userns(false))
	p := l.step()
	if want := "deadline: 2026-12-01T09:30:00Z -> 2026-12-01T10:30:00Z (a new ttl of 2h starts)"; !slices.Contains(p.Changes[0].Notes, want) {
		t.Errorf("the plan says %q", p.Changes[0].Notes)
	}
	if le := l.rec().Lease; le.Until != t0.Add(2*time.Hour) || le.Start != t0 {
		t.Errorf("its lease is %+v", le)
	}
}

func TestEditingTTLDropsRenewals(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(ttl(2*time.Hour)), renewed(t0.Add(24*time.Hour))))
	l.files(ttl(3 * time.Hour))
	p := l.step()
	if le := l.rec().Lease; le.Until != t0.Add(2*time.Hour) || le.Renewed {
		t.Errorf("its lease is %+v", le)
	}
	if !strings.Contains(p.String(), "its renewal is dropped") {
		t.Errorf("the plan does not say so: %s", p)
	}
}

func TestExpiredStaysLatchedWhenTheClockStepsBack(t *testing.T) {
	for name, w := range map[string]*world{
		"retained": newWorld().both("sandbox.a", spec(ttl(time.Hour)), expiredAt(t0, TTLExpiry, true)),
		"paused":   newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), expiredPaused(t0, TTLExpiry)),
	} {
		for _, trigger := range []Trigger{Apply, Keep} {
			l := begin(t, w.at(t0.Add(-30*time.Minute)))
			l.Trigger = trigger
			if p := l.step(); len(p.Changes) > 0 || l.rec().Expired == nil {
				t.Errorf("%s, %s: %s", name, trigger, p)
			}
		}
	}
}

func TestIdleIsPausedAndNeverEarly(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(idle(2*time.Hour))).watched().keep())
	due := t0.Add(time.Hour)
	if p := l.step(); len(p.Changes) > 0 || p.WakeAt != due {
		t.Errorf("before its time: %s", p)
	}
	l.Now = due.Add(-1)
	if p := l.step(); len(p.Changes) > 0 {
		t.Errorf("a nanosecond early: %s", p)
	}
	l.Now = due
	l.step()
	l.is(Paused, false, "paused by idle;")
	if p := l.step(); !p.WakeAt.IsZero() {
		t.Errorf("an idle one wakes the planner: %s", p)
	}
}

func TestALongExecKeepsItAwakeProbesDoNot(t *testing.T) {
	w := newWorld().both("sandbox.a", spec(idle(time.Minute), probed), func(_ *Sandbox, s *Seen) { s.Health = &Health{Status: "passing"} }).keep()
	l := begin(t, w.used("sandbox.a", Activity{Last: t0.Add(-time.Hour), Busy: true}))
	for range 5 {
		p := l.step()
		if l.is(Running, false, ""); p.WakeAt.IsZero() || p.WakeAt.Sub(l.Now) != time.Minute {
			t.Fatalf("looks again at %s: %s", p.WakeAt, p)
		}
		l.Now = p.WakeAt
	}
	l.Activity["sandbox.a"] = Activity{Last: l.Now}
	l.Now = l.Now.Add(time.Minute)
	l.step()
	l.is(Paused, false, "paused by idle;")
}

// The second look, with use that came after the first, finds nothing to do.
func TestActivityBetweenTheLooksKeepsItAlive(t *testing.T) {
	w := newWorld().both("sandbox.a", spec(idle(time.Minute))).watched().keep()
	if p := Make(w.Input); actions(p) != "pause" {
		t.Fatal(p)
	}
	if p := Make(w.used("sandbox.a", Activity{Last: t0}).Input); len(p.Changes) > 0 || p.WakeAt != t0.Add(time.Minute) {
		t.Errorf("%s", p)
	}
}

// Taken over by an operator the hold is theirs: no rule's end lifts it.
func TestOperatorTakesOverAnIdleHold(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(idle(time.Hour))).watched().keep())
	l.step()
	l.is(Paused, false, "paused by idle;")
	l.rec().Hold = &Hold{Mode: "paused", By: "operator", At: t0} // what the verb pause makes of it
	l.files(idle(0))
	if p := l.step(); actions(p) != "update" {
		t.Errorf("%s", p)
	}
	l.is(Paused, false, "paused by operator;")
}

// What the idle rule lies over comes back with the end of the rule.
func TestAnIdleHoldLiesOverAnOperators(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(mode("suspended"), idle(time.Hour)), held("running")).watched().keep())
	l.step()
	l.is(Paused, false, "paused by idle;running by operator;")
	l.files(idle(0))
	l.step()
	l.is(Running, false, "running by operator;")
}

func TestExpiryByPauseKeepsAnOperatorsHold(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(ttl(time.Hour), policy("pause")), in(Paused), held("paused")).keep())
	l.step()
	l.is(Paused, true, "paused by operator;")
	if le := l.rec().Lease; !le.Until.IsZero() || le.EndedAt != t0 {
		t.Errorf("its lease is %+v", le)
	}
	l.files(ttl(0))
	l.step()
	l.is(Paused, false, "paused by operator;")
}

// Paused by its shutdown_time and resumed, it is not ended by the same one again.
func TestAShutdownTimePausesOnce(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(shutdown(t0), policy("pause"), renewOnAccess(time.Hour))).keep())
	l.step()
	l.is(Paused, true, "paused by expiry;")
	r := l.rec()
	lease, err := r.Lease.OnResume(r, nil, t0.Add(time.Minute), 0)
	if err != nil || lease.Until != t0.Add(61*time.Minute) {
		t.Fatalf("%+v, %v", lease, err)
	}
	r.Lease, r.Expired, r.Hold = lease, nil, nil
	l.Now = t0.Add(time.Minute)
	if p := l.step(); actions(p) != "resume" || p.WakeAt != lease.Until {
		t.Errorf("%s", p)
	}
	l.Now = lease.Until
	l.step()
	l.is(Paused, true, "paused by expiry;")
}

func TestWarnedOnceOfEachDeadline(t *testing.T) {
	l := begin(t, newWorld().both("sandbox.a", spec(ttl(2*time.Hour))).warns(15*time.Minute).keep())
	near := t0.Add(45 * time.Minute)
	if p := l.step(); len(p.Changes) > 0 || p.WakeAt != near {
		t.Errorf("before: %s", p)
	}
	l.Now = near
	if p := l.step(); actions(p) != "noop" || p.Changes[0].Warn != t0.Add(time.Hour) || p.WakeAt != t0.Add(time.Hour) {
		t.Errorf("near: %s", p)
	}
	if p := l.step(); len(p.Changes) > 0 {
		t.Errorf("a second time: %s", p)
	}
	l.rec().Lease.Until = t0.Add(50 * time.Minute) // shortened
	if p := l.step(); actions(p) != "noop" {
		t.Errorf("another deadline: %s", p)
	}
}

func TestMaxLifetimeNamesTheCap(t *testing.T) {
	for name, w := range map[string]*world{
		"too long":  newWorld().declare("sandbox.a", spec(ttl(48*time.Hour))).cap(24 * time.Hour),
		"undated":   newWorld().declare("sandbox.a", spec()).cap(24 * time.Hour),
		"idle only": newWorld().declare("sandbox.a", spec(idle(time.Hour))).cap(24 * time.Hour),
	} {
		p := Make(w.Input)
		if !p.Diags.HasErrors() || !strings.Contains(p.Diags[0].Summary, "max_lifetime") || !strings.Contains(p.Diags[0].Summary, "24h") {
			t.Errorf("%s: %v", name, p.Diags)
		}
	}
}

// A thousand due at one instant are decided in one plan, none before it.
func TestThousandDueAtOneInstant(t *testing.T) {
	w := newWorld().keep()
	for i := range 1000 {
		w.record(fmt.Sprint("sandbox.s", i), spec(shutdown(t0)))
	}
	if p := Make(w.at(t0.Add(-1)).Input); len(p.Changes) > 0 || p.WakeAt != t0 {
		t.Errorf("a nanosecond early: %d changes, wake at %s", len(p.Changes), p.WakeAt)
	}
	if p := Make(w.at(t0).Input); len(p.Changes) != 1000 {
		t.Errorf("%d changes", len(p.Changes))
	}
}

func TestResumeRefusals(t *testing.T) {
	hour, none := time.Hour, time.Duration(0)
	at := func(s *Sandbox, _ *Seen) {
		s.Sources = map[string]config.Position{"shutdown_time": {File: "main.hcl", Line: 12}}
	}
	for _, c := range []struct {
		name    string
		spec    config.Sandbox
		edit    []func(*Sandbox, *Seen)
		timeout *time.Duration
		max     time.Duration
		want    string
	}{
		{"after a retained expiry", spec(ttl(time.Hour)), []func(*Sandbox, *Seen){expiredAt(t0, TTLExpiry, true)}, &hour, 0, "only a later or removed deadline in the files revives it"},
		{"after expiry by pause without any time", spec(shutdown(t0), policy("pause")), []func(*Sandbox, *Seen){expiredPaused(t0, ShutdownTime)}, nil, 0, "resume with -timeout D"},
		{"for no time", spec(), []func(*Sandbox, *Seen){in(Paused)}, &none, 0, "is no time ahead"},
		{"past shutdown_time", spec(shutdown(t0.Add(time.Minute))), []func(*Sandbox, *Seen){in(Paused), at}, &hour, 0, "(main.hcl:12)"},
		{"beyond the cap", spec(ttl(time.Hour), policy("pause")), []func(*Sandbox, *Seen){expiredPaused(t0, TTLExpiry)}, &hour, time.Minute, "max_lifetime (1m)"},
		{"due", spec(ttl(time.Hour)), []func(*Sandbox, *Seen){in(Paused)}, &hour, 0, "has passed"},
	} {
		rec := newWorld().record("sandbox.a", c.spec, c.edit...).Records.Sandboxes["sandbox.a"]
		before := rec.Lease
		l, err := rec.Lease.OnResume(rec, c.timeout, t0, c.max)
		var r *Refusal
		if !errors.As(err, &r) || !strings.Contains(err.Error(), c.want) || l != before || rec.Lease != before {
			t.Errorf("%s: %v, %+v", c.name, err, l)
		}
	}
}

func TestLeaseOnResume(t *testing.T) {
	d := 20 * time.Minute
	stopped := func(s *Sandbox, _ *Seen) { s.Lease = s.Lease.OnPause(&s.Spec) }
	type edits = []func(*Sandbox, *Seen)
	for _, c := range []struct {
		name    string
		spec    config.Sandbox
		edit    edits
		timeout *time.Duration
		max     time.Duration
		want    time.Duration // from t0; 0: none
	}{
		{"plain", spec(ttl(2 * time.Hour)), edits{in(Paused)}, nil, 0, time.Hour},
		{"with a timeout", spec(ttl(2 * time.Hour)), edits{in(Paused)}, &d, 0, d},
		{"expired, timeout first", spec(ttl(time.Hour), renewOnAccess(2*time.Hour), policy("pause")), edits{expiredPaused(t0, TTLExpiry)}, &d, 0, d},
		{"expired, then renew_on_access", spec(ttl(time.Hour), renewOnAccess(2*time.Hour), policy("pause")), edits{expiredPaused(t0, TTLExpiry)}, nil, 0, 2 * time.Hour},
		{"expired, then ttl", spec(ttl(time.Hour), policy("pause")), edits{expiredPaused(t0, TTLExpiry)}, nil, 0, time.Hour},
		{"expired, clipped", spec(ttl(time.Hour), renewOnAccess(5*time.Hour), policy("pause")), edits{expiredPaused(t0, TTLExpiry)}, nil, 3 * time.Hour, 3 * time.Hour},
		{"the clock runs again", spec(ttl(2*time.Hour), clockRuns), edits{in(Paused), stopped}, nil, 0, 2 * time.Hour},
		{"the clock of a renewed one without ttl", spec(clockRuns), edits{in(Paused), renewed(t0.Add(time.Hour)), stopped}, nil, 0, 0},
		{"undated", spec(), edits{in(Paused)}, nil, 0, 0},
	} {
		rec := newWorld().record("sandbox.a", c.spec, c.edit...).Records.Sandboxes["sandbox.a"]
		l, err := rec.Lease.OnResume(rec, c.timeout, t0, c.max)
		want := time.Time{}
		if c.want > 0 {
			want = t0.Add(c.want)
		}
		if err != nil || !l.Until.Equal(want) || !l.EndedAt.IsZero() || l.ActedOn != rec.Lease.ActedOn {
			t.Errorf("%s: %+v, %v; want %s", c.name, l, err, want)
		}
	}
}

func TestClockRunning(t *testing.T) {
	s := spec(ttl(2*time.Hour), clockRuns)
	l := StartLease(&s, t0)
	p := l.OnPause(&s)
	if !p.Until.IsZero() || p.EndedAt != l.Until || p.OnPause(&s) != p {
		t.Errorf("paused: %+v", p)
	}
	if _, _, dated := Deadline(&s, p); dated {
		t.Error("it ends while it is paused")
	}
	// An edited ttl does not make it run.
	if e := p.WithTTL(config.Duration(time.Minute)); !e.Until.IsZero() || e.EndedAt != t0.Add(time.Minute) {
		t.Errorf("edited: %+v", e)
	}
	always := spec(ttl(2 * time.Hour))
	if p := l.OnPause(&always); p != l {
		t.Errorf("always: %+v", p)
	}
}

func TestRenewOnAccess(t *testing.T) {
	every := func(d time.Duration) func(*config.Sandbox) {
		return func(s *config.Sandbox) { s.Lifetime.RenewMinInterval = config.Duration(d) }
	}
	type edits = []func(*Sandbox, *Seen)
	last := func(at time.Time) func(*Sandbox, *Seen) {
		return func(s *Sandbox, _ *Seen) { s.Lease.AccessRenewedAt = at }
	}
	for _, c := range []struct {
		name string
		spec config.Sandbox
		edit edits
		max  time.Duration
		want time.Duration // from t0; 0: unchanged
	}{
		{"lengthens", spec(ttl(2*time.Hour), renewOnAccess(3*time.Hour)), nil, 0, 3 * time.Hour},
		{"never shortens", spec(ttl(2*time.Hour), renewOnAccess(time.Minute)), nil, 0, 0},
		{"the same is nothing", spec(ttl(2*time.Hour), renewOnAccess(time.Hour)), nil, 0, 0},
		{"no such rule", spec(ttl(2 * time.Hour)), nil, 0, 0},
		{"undated", spec(renewOnAccess(time.Hour)), nil, 0, 0},
		{"expired", spec(ttl(time.Hour), renewOnAccess(2*time.Hour)), edits{expiredAt(t0, TTLExpiry, true)}, 0, 0},
		{"due", spec(ttl(time.Hour), renewOnAccess(2*time.Hour)), nil, 0, 0},
		{"too soon after the last", spec(ttl(2*time.Hour), renewOnAccess(3*time.Hour)), edits{last(t0.Add(-time.Minute + 1))}, 0, 0},
		{"the interval has passed", spec(ttl(2*time.Hour), renewOnAccess(3*time.Hour)), edits{last(t0.Add(-time.Minute))}, 0, 3 * time.Hour},
		{"a longer interval", spec(ttl(2*time.Hour), renewOnAccess(3*time.Hour), every(time.Hour)), edits{last(t0.Add(-time.Minute))}, 0, 0},
		{"the clock stepped back", spec(ttl(2*time.Hour), renewOnAccess(3*time.Hour)), edits{last(t0.Add(time.Hour))}, 0, 3 * time.Hour},
		{"clipped to shutdown_time", spec(ttl(2*time.Hour), renewOnAccess(5*time.Hour), shutdown(t0.Add(2*time.Hour))), nil, 0, 2 * time.Hour},
		{"clipped to max_lifetime", spec(ttl(2*time.Hour), renewOnAccess(5*time.Hour)), nil, 4 * time.Hour, 4 * time.Hour},
		{"a shutdown_time acted on clips nothing", spec(ttl(2*time.Hour), renewOnAccess(5*time.Hour), shutdown(t0.Add(-time.Hour))), edits{func(s *Sandbox, _ *Seen) { s.Lease.ActedOn = s.Spec.ShutdownTime }}, 0, 5 * time.Hour},
	} {
		rec := newWorld().record("sandbox.a", c.spec, c.edit...).Records.Sandboxes["sandbox.a"]
		l, renewed := rec.Lease.OnAccess(rec, t0, c.max)
		switch {
		case renewed != (c.want > 0), !renewed && l != rec.Lease:
			t.Errorf("%s: %+v, %v", c.name, l, renewed)
		case renewed && (l.Until != t0.Add(c.want) || l.AccessRenewedAt != t0 || !l.Renewed):
			t.Errorf("%s: %+v", c.name, l)
		}
	}
}

func TestRestartBackoff(t *testing.T) {
	s := spec(restartMode("always", 0))
	s.Restart.BackoffMin, s.Restart.BackoffMax, s.Restart.Window = config.Duration(2*time.Second), config.Duration(9*time.Second), config.Duration(time.Minute)
	r := Retry{}
	for i, want := range []time.Duration{2, 4, 8, 9, 9} {
		r = RestartBackoff(r, &s, time.Second, t0, 0)
		if got := r.NextAt.Sub(t0); got != want*time.Second || r.Attempts != i+1 || r.Error != "" {
			t.Errorf("attempt %d waits %s: %+v", i+1, got, r)
		}
	}
	if j := RestartBackoff(Retry{Attempts: 10}, &s, 0, t0, 0.999); j.NextAt.Sub(t0) < 4500*time.Millisecond || j.NextAt.Sub(t0) >= 9*time.Second {
		t.Errorf("jitter gives %s", j.NextAt.Sub(t0))
	}
	if f := RestartBackoff(r, &s, time.Minute, t0, 0); f.Attempts != 1 {
		t.Errorf("after a stable window: %+v", f)
	}
	plain := spec()
	if f := RestartBackoff(Retry{Attempts: 1 << 30, Since: t0}, &plain, 0, t0, 0); f.NextAt.Sub(t0) != 5*time.Minute {
		t.Errorf("many attempts wait %s", f.NextAt.Sub(t0))
	}
}

func TestHealthDrivesReady(t *testing.T) {
	for name, c := range map[string]struct {
		health *Health
		want   string
	}{
		"nobody probes": {nil, "Unknown:Unknown nobody probes it: no agent runs"},
		"starting":      {&Health{Status: "starting"}, "False:Starting its health probe has not passed yet"},
		"passing":       {&Health{Status: "passing"}, "True:Running "},
		"failing":       {&Health{Status: "failing", Message: "connection refused"}, "False:Degraded connection refused"},
	} {
		w := newWorld().record("sandbox.a", spec(probed), func(_ *Sandbox, s *Seen) { s.Health = c.health })
		r := StatusOf(w.Records.Sandboxes["sandbox.a"], w.Observed.Instances["i-a"], true, boot, t0).Conditions[0]
		if got := r.Status + ":" + r.Reason + " " + r.Message; got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
