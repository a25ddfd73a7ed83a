package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

func (l *lab) kill(e *Engine, signal int) *ActResult {
	l.t.Helper()
	res, err := e.Act(context.Background(), ActRequest{Verb: "kill", Address: "a", Signal: signal, Reason: "test"})
	if err != nil {
		l.t.Fatal(err)
	}
	return res
}

// kills are the events of signals, each with who sent what and why.
func (l *lab) kills(e *Engine) (all []string) {
	l.t.Helper()
	res, err := e.Events(context.Background(), EventsRequest{Address: "a", Types: []string{"kill"}})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, ev := range res.Events {
		if ev.Instance == "" || ev.UID == "" {
			l.t.Errorf("event %+v", ev)
		}
		all = append(all, ev.By+" "+ev.Reason+" "+ev.Message)
	}
	return all
}

// TestKillIsAnExit: the end by a kill is the process's own, and is told at once, with
// an agent as without: no hold, no drift, nothing that starts it again.
func TestKillIsAnExit(t *testing.T) {
	ended := func(l *lab, e *Engine, v *SandboxView) {
		l.t.Helper()
		if v.Phase != plan.Stopped || v.Hold != nil || v.Outcome == nil || v.Outcome.Signal != 9 || v.Outcome.Reason != "signalled" || v.Outcome.OOM {
			l.t.Errorf("%s, hold %+v, outcome %+v", v.Phase, v.Hold, v.Outcome)
		}
		if got := condition(*v, "Finished") + " " + condition(*v, "Drifted"); got != "True/Failed False/InSync" {
			l.t.Errorf("conditions %s", got)
		}
		if got := l.kills(e); len(got) != 1 || got[0] != "operator SIGKILL test" {
			l.t.Errorf("events %q", got)
		}
		l.nothingToDo(e)
	}
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		res := l.kill(e, 0)
		ended(l, e, &res.Sandbox)
		sleep(24 * time.Hour)
		v := l.phase(e, "sandbox.a", plan.Stopped)
		ended(l, e, &v)
	})
	t.Run("alone", func(t *testing.T) {
		inTime(t, func(t *testing.T) {
			l := newLab(t, map[string]string{"main.hcl": one("")})
			e := l.open("apply")
			l.apply(e, plan.Options{})
			res := l.kill(e, 9)
			ended(l, e, &res.Sandbox)
			l.close(e)
			e = l.open("apply")
			v := l.view(e, "sandbox.a")
			ended(l, e, &v)
			l.end(e)
		})
	})
}

// TestKillFollowsTheRestartBlock: what comes after it is what comes after any exit.
func TestKillFollowsTheRestartBlock(t *testing.T) {
	for block, want := range map[string]plan.Phase{
		`restart { mode = "always" }`:     plan.Running,
		`restart { mode = "on-failure" }`: plan.Running,
		`restart { mode = "never" }`:      plan.Stopped,
	} {
		for _, signal := range []int{9, 15} {
			withAgent(t, one(block), func(l *lab, e *Engine, k *keeper) {
				was := *l.view(e, "sandbox.a").PID
				l.kill(e, signal)
				sleep(time.Minute)
				v := l.phase(e, "sandbox.a", want)
				if v.Hold != nil || v.PID != nil && *v.PID == was {
					l.t.Errorf("%s, signal %d: hold %+v, pid %v, was %d", block, signal, v.Hold, v.PID, was)
				}
			})
		}
	}
}

// TestSignalThatEndsNothing: the command has it, and goes on.
func TestSignalThatEndsNothing(t *testing.T) {
	text := strings.Replace(one(""), `["sim", "append=/log:x"]`, `["sim", "await=10", "append=/log:usr1"]`, 1)
	withAgent(t, text, func(l *lab, e *Engine, k *keeper) {
		was := l.view(e, "sandbox.a")
		res := l.kill(e, 10)
		if v := res.Sandbox; v.Phase != plan.Running || *v.PID != *was.PID || v.Hold != nil || *v.LastActivity != *was.LastActivity {
			l.t.Errorf("%+v, was %+v", v, was)
		}
		if got, ok := l.world.LayerFile(l.id(e, "sandbox.a"), "/log"); !ok || !strings.Contains(got, "usr1") {
			l.t.Errorf("/log: %q", got)
		}
		if got := l.kills(e); len(got) != 1 || got[0] != "operator SIGUSR1 test" {
			l.t.Errorf("events %q", got)
		}
		l.nothingToDo(e)
	})
}

func TestKillIsRefused(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		refused := func(signal int, address string, kind ErrorKind, words string) {
			l.t.Helper()
			_, err := e.Act(context.Background(), ActRequest{Verb: "kill", Address: address, Signal: signal})
			l.refused(err, kind, words)
		}
		refused(0, "nobody", NotFound, "not found")
		refused(19, "a", Invalid, "'pinfold pause' freezes all of it")
		refused(64, "a", Invalid, "PID 1 keeps it for itself")
		refused(65, "a", Invalid, "no signal 65")
		refused(-1, "a", Invalid, "no signal -1")
		l.act(e, "pause", "a")
		refused(9, "a", Conflict, "sandbox: invalid state transition: sandbox.a is paused, cannot kill; resume it first")
		if v := l.phase(e, "sandbox.a", plan.Paused); v.Hold == nil || v.Hold.Mode != "paused" {
			l.t.Errorf("hold %+v", v.Hold)
		}
		l.act(e, "resume", "a")
		l.act(e, "stop", "a")
		refused(15, "a", Conflict, "sandbox: invalid state transition: sandbox.a is stopped, cannot kill")
		l.act(e, "start", "a")
		l.world.Fail(sim.OpSignal, l.id(e, "sandbox.a"), errors.New("no signals today"), sim.Before, 1)
		refused(9, "a", Internal, "cannot send SIGKILL to sandbox.a")
		if got := l.kills(e); len(got) != 0 {
			l.t.Errorf("events %q", got)
		}
		if open, err := e.openIntents(); err != nil || len(open) != 0 {
			l.t.Errorf("left in the journal: %+v, %v", open, err)
		}
		l.phase(e, "sandbox.a", plan.Running)
	})
}

// TestKillCutOff: who finds it in the journal sends nothing a second time, and says
// that somebody was about to.
func TestKillCutOff(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		m := &mortal{}
		p := l.process("apply", m)
		l.apply(p.Engine, plan.Options{})
		l.world.Crash(1, sim.Before)
		if _, err := p.Act(context.Background(), ActRequest{Verb: "kill", Address: "a", Signal: 9}); err == nil {
			t.Fatal("it did not die")
		}
		p.bury(t)
		e := l.open("apply")
		l.phase(e, "sandbox.a", plan.Running)
		if got := l.kills(e); len(got) != 1 || got[0] != "operator "+config.SignalName(9)+" cut off in the middle: it may not have been sent" {
			t.Errorf("events %q", got)
		}
		l.end(e)
	})
}
