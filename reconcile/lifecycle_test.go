package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

// command makes a configuration of one sandbox "a" with its own command.
func command(script, extra string) string {
	return fmt.Sprintf("image \"base\" { source = \"host\" }\nsandbox \"a\" {\n  image = image.base\n  command = [%s]\n  %s\n}\n", script, extra)
}

func (l *lab) exec(e *Engine, args ...string) (ExecSession, error) {
	return e.Exec(context.Background(), ExecRequest{Address: "a", Args: args})
}

// ran runs a command to its end and fails the test where it cannot.
func (l *lab) ran(e *Engine, args ...string) {
	l.t.Helper()
	s, err := l.exec(e, args...)
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := s.Wait(); err != nil {
		l.t.Fatal(err)
	}
}

func condition(v SandboxView, typ string) string {
	for _, c := range v.Conditions {
		if c.Type == typ {
			return c.Status + "/" + c.Reason
		}
	}
	return "none"
}

func (l *lab) condition(e *Engine, typ, want string) {
	l.t.Helper()
	if got := condition(l.view(e, "sandbox.a"), typ); got != want {
		l.t.Errorf("condition %s is %s, want %s", typ, got, want)
	}
}

func (l *lab) hold(e *Engine, mode, by string) {
	l.t.Helper()
	h := e.current("sandbox.a").Hold
	switch {
	case mode == "" && h != nil:
		l.t.Errorf("held %s by %s, want no hold", h.Mode, h.By)
	case mode != "" && (h == nil || h.Mode != mode || h.By != by):
		l.t.Errorf("hold %+v, want %s by %s", h, mode, by)
	}
}

func TestIdlePausesAndAccessWakes(t *testing.T) {
	withAgent(t, one(`lifetime {
    idle_timeout     = "5m"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		started := e.current("sandbox.a").Instance.StartedAt
		_, before := k.looks()
		sleep(time.Until(started.Add(5*time.Minute)) - time.Nanosecond)
		pid := *l.phase(e, "sandbox.a", plan.Running).PID
		if _, now := k.looks(); now-before > 5 {
			t.Errorf("%d looks while nothing happened", now-before)
		}
		sleep(time.Nanosecond)
		l.phase(e, "sandbox.a", plan.Paused)
		l.hold(e, "paused", "idle")
		l.condition(e, "Paused", "True/ByIdle")
		l.nothingToDo(e)

		l.ran(e, "sim", "exit=0")
		if v := l.phase(e, "sandbox.a", plan.Running); *v.PID != pid {
			t.Errorf("pid %d, want %d: another process", *v.PID, pid)
		}
		l.hold(e, "", "")
		woken := time.Now()
		sleep(time.Until(woken.Add(5*time.Minute)) - time.Second)
		l.phase(e, "sandbox.a", plan.Running)
		sleep(time.Second)
		l.phase(e, "sandbox.a", plan.Paused)
		if ev := l.events(e, "sandbox.a"); !hasPrefix(ev, "held/paused/idle") || !hasPrefix(ev, "release/idle/access") {
			t.Errorf("history %v", ev)
		}
	})
}

func TestALongExecKeepsItAwakeProbesDoNot(t *testing.T) {
	withAgent(t, one(`
  lifetime { idle_timeout = "5m" }
  health {
    command  = ["sim", "exit=0"]
    interval = "10s"
  }`), func(l *lab, e *Engine, k *keeper) {
		s, err := l.exec(e, "sim", "after=1h", "exit=0")
		if err != nil {
			t.Fatal(err)
		}
		w := waitFor(s)
		sleep(59 * time.Minute)
		l.phase(e, "sandbox.a", plan.Running)
		l.condition(e, "Ready", "True/Running")
		sleep(2 * time.Minute)
		if w := <-w; w.err != nil || w.code != 0 {
			t.Fatalf("the command ended with %d, %v", w.code, w.err)
		}
		l.phase(e, "sandbox.a", plan.Running)
		sleep(4 * time.Minute)
		l.phase(e, "sandbox.a", plan.Paused)
		l.hold(e, "paused", "idle")
		// Probes rest while it is paused.
		l.world.ClearOps()
		sleep(5 * time.Minute)
		if ops := l.writes(); slices.Contains(ops, "Exec") {
			t.Errorf("probed while paused: %v", ops)
		}
	})
}

func TestAccessDoesNotWakeAnOperatorsHold(t *testing.T) {
	withAgent(t, one(`lifetime {
    idle_timeout     = "5m"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		l.act(e, "pause", "a")
		_, err := l.exec(e, "sim", "exit=0")
		l.refused(err, Conflict, "is paused, cannot exec")
		l.hold(e, "paused", "operator")
		sleep(10 * time.Minute)
		l.hold(e, "paused", "operator")
	})
}

func TestOperatorTakesOverAnIdleHold(t *testing.T) {
	withAgent(t, one(`lifetime {
    idle_timeout     = "5m"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(6 * time.Minute)
		l.hold(e, "paused", "idle")
		if res := l.act(e, "pause", "a"); !strings.Contains(res.Note, "idle") {
			t.Errorf("note %q does not say whose hold it was", res.Note)
		}
		l.hold(e, "paused", "operator")
		_, err := l.exec(e, "sim", "exit=0")
		l.refused(err, Conflict, "is paused, cannot exec")
		l.act(e, "resume", "a")
		l.hold(e, "", "")
		l.phase(e, "sandbox.a", plan.Running)
	})
}

func TestIdleOverAnOperatorsRunningHoldBringsItBack(t *testing.T) {
	withAgent(t, one(`
  operating_mode = "suspended"
  lifetime {
    idle_timeout     = "5m"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		l.phase(e, "sandbox.a", plan.Stopped)
		l.act(e, "start", "a")
		l.hold(e, "running", "operator")
		sleep(6 * time.Minute)
		l.hold(e, "paused", "idle")
		l.ran(e, "sim", "exit=0")
		l.hold(e, "running", "operator")
		l.phase(e, "sandbox.a", plan.Running)
	})
}

func TestRemovingIdleTimeoutDropsAnIdleHold(t *testing.T) {
	withAgent(t, one(`lifetime { idle_timeout = "5m" }`), func(l *lab, e *Engine, k *keeper) {
		sleep(6 * time.Minute)
		l.hold(e, "paused", "idle")
		l.main(one(""))
		l.apply(e, plan.Options{})
		sleep(time.Second)
		l.hold(e, "", "")
		l.phase(e, "sandbox.a", plan.Running)
		l.nothingToDo(e)
	})
}

func TestActivityOutlivesTheAgent(t *testing.T) {
	withAgent(t, one(`lifetime { idle_timeout = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		sleep(30 * time.Minute)
		used := time.Now()
		if _, err := e.Touch(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
		sleep(time.Second)
		k.stop()
		l.close(e)
		e2 := l.open("agent")
		k2 := l.keep(e2)
		if v := l.view(e2, "sandbox.a"); v.LastActivity == nil || v.LastActivity.Before(used) {
			t.Errorf("last activity %v, want %s or later", v.LastActivity, used)
		}
		sleep(time.Until(used.Add(time.Hour)) - time.Second)
		l.phase(e2, "sandbox.a", plan.Running)
		sleep(2 * time.Second)
		l.phase(e2, "sandbox.a", plan.Paused)
		l.end(e2)
		k2.stop()
		l.close(e2)
		*e = *l.open("agent") // for the end of the test
	})
}

func TestActivityBetweenTheLookAndTheLockKeepsItAlive(t *testing.T) {
	var a activity
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	long := now.Add(-time.Hour)
	if done, idle := a.rest("x", long, now, time.Minute); !idle {
		t.Fatal("unused for an hour and not idle")
	} else {
		begun := make(chan func(bool))
		go func() { begun <- a.begin(context.Background(), "x", clock) }()
		select {
		case <-begun:
			t.Fatal("a use began while it was put to rest")
		case <-time.After(20 * time.Millisecond):
		}
		done()
		(<-begun)(false)
	}
	end := a.begin(context.Background(), "x", clock)
	if _, idle := a.rest("x", long, now.Add(time.Hour), time.Minute); idle {
		t.Error("idle while in use")
	}
	end(true)
	if _, idle := a.rest("x", long, now.Add(time.Minute-1), time.Minute); idle {
		t.Error("idle before its time")
	}
	if _, idle := a.rest("x", long, now.Add(time.Minute), time.Minute); !idle {
		t.Error("not idle at its time")
	}
}

const portConfig = `
  port "echo" {
    container = 7
    host      = 4007
  }
`

// speak sends a word over a connection and wants it back.
func speak(t *testing.T, c net.Conn, word string) {
	t.Helper()
	if _, err := io.WriteString(c, word); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(word))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != word {
		t.Fatalf("said %q, heard %q, %v", word, b, err)
	}
}

func TestAPausedSandboxAnswersTheFirstConnection(t *testing.T) {
	withAgent(t, command(`"sim", "serve=7"`, portConfig+`lifetime {
    idle_timeout     = "5m"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		at := netip.MustParseAddrPort("127.0.0.1:4007")
		sleep(6 * time.Minute)
		pid := e.current("sandbox.a").Instance.PID
		l.hold(e, "paused", "idle")
		c, err := l.world.Connect(at, "tcp")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		speak(t, c, "first")
		if v := l.phase(e, "sandbox.a", plan.Running); *v.PID != pid {
			t.Error("it answers with another process")
		}
		// Bytes are use; an open connection without any is none.
		for range 4 {
			sleep(4 * time.Minute)
			speak(t, c, "again")
		}
		l.phase(e, "sandbox.a", plan.Running)
		sleep(6 * time.Minute)
		l.phase(e, "sandbox.a", plan.Paused)
		// And bytes on a connection that lasted through its rest wake it too.
		speak(t, c, "once more")
		sleep(time.Second)
		l.phase(e, "sandbox.a", plan.Running)
	})
}

func TestASuspendedSandboxIsStartedByAConnection(t *testing.T) {
	withAgent(t, command(`"sim", "append=/log:x", "after=1s", "serve=7"`, portConfig+`lifetime {
    idle_timeout     = "5m"
    idle_action      = "suspend"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		at := netip.MustParseAddrPort("127.0.0.1:4007")
		for round := 1; round <= 2; round++ {
			sleep(6 * time.Minute)
			v := l.phase(e, "sandbox.a", plan.Stopped)
			l.hold(e, "suspended", "idle")
			if v.PID != nil {
				t.Error("it has a process")
			}
			l.condition(e, "Suspended", "True/Suspended")
			c, err := l.world.Connect(at, "tcp")
			if err != nil {
				t.Fatal(err)
			}
			speak(t, c, "hello") // though it takes a second to listen
			c.Close()
			l.phase(e, "sandbox.a", plan.Running)
			if text, _ := l.world.LayerFile(l.id(e, "sandbox.a"), "/log"); text != strings.Repeat("x", round+1) {
				t.Errorf("round %d: its file is %q: not the same files, or not a new process", round, text)
			}
		}
		l.act(e, "stop", "a")
		sleep(time.Second)
		if _, err := l.world.Connect(at, "tcp"); err == nil {
			t.Error("the port is served though an operator stopped it")
		}
	})
}

func TestPortsComeBackAfterAnAgentRestart(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": command(`"sim", "serve=7"`, portConfig+`lifetime { idle_timeout = "5m" }`)})
		at := netip.MustParseAddrPort("127.0.0.1:4007")
		e := l.open("agent")
		k := l.keep(e)
		l.apply(e, plan.Options{})
		c, err := l.world.Connect(at, "tcp") // at once: apply has returned
		if err != nil {
			t.Fatal(err)
		}
		speak(t, c, "hello")
		c.Close()
		k.stop()
		l.close(e)
		if _, err := l.world.Connect(at, "tcp"); err == nil {
			t.Fatal("served by nobody, and open")
		}
		e = l.open("agent")
		k = l.keep(e)
		if c, err = l.world.Connect(at, "tcp"); err != nil {
			t.Fatal(err)
		}
		speak(t, c, "hello")
		c.Close()
		l.destroy(e)
		if _, err := l.world.Connect(at, "tcp"); err == nil {
			t.Error("the port outlives the sandbox")
		}
		k.stop()
		l.end(e)
	})
}

func TestRenewOnAccess(t *testing.T) {
	withAgent(t, one(`
  shutdown_time = "2000-01-01T03:00:00Z"
  lifetime {
    ttl                = "1h"
    renew_on_access    = "1h"
    renew_min_interval = "5m"
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(30 * time.Minute)
		l.ran(e, "sim", "exit=0")
		sleep(0)
		first := time.Now().Add(time.Hour)
		if v := l.view(e, "sandbox.a"); !v.ExpiresAt.Equal(first) {
			t.Errorf("expires at %s, want %s", v.ExpiresAt, first)
		}
		sleep(4 * time.Minute)
		l.ran(e, "sim", "exit=0") // too soon for another renewal
		sleep(0)
		if v := l.view(e, "sandbox.a"); !v.ExpiresAt.Equal(first) {
			t.Errorf("renewed again after 4 minutes: %s", v.ExpiresAt)
		}
		for range 4 {
			sleep(30 * time.Minute)
			l.ran(e, "sim", "exit=0")
			sleep(0)
		}
		end := time.Date(2000, 1, 1, 3, 0, 0, 0, time.UTC)
		if v := l.view(e, "sandbox.a"); !v.ExpiresAt.Equal(end) {
			t.Errorf("expires at %s, want its shutdown_time %s", v.ExpiresAt, end)
		}
		l.nothingToDo(e)
		sleep(time.Until(end))
		l.phase(e, "sandbox.a", plan.Stopped)
	})
}

func TestExpiryByPause(t *testing.T) {
	withAgent(t, one(`
  shutdown_time   = "2000-01-01T01:00:00Z"
  shutdown_policy = "pause"`), func(l *lab, e *Engine, k *keeper) {
		ctx := context.Background()
		end := time.Date(2000, 1, 1, 1, 0, 0, 0, time.UTC)
		pid := *l.view(e, "sandbox.a").PID
		sleep(time.Until(end))
		v := l.phase(e, "sandbox.a", plan.Paused)
		l.hold(e, "paused", "expiry")
		l.condition(e, "Expired", "True/ShutdownTime")
		l.condition(e, "Paused", "True/ByExpiry")
		if v.EndedAt == nil || !v.EndedAt.Equal(end) || v.ExpiresAt != nil {
			t.Errorf("ended at %v, expires at %v", v.EndedAt, v.ExpiresAt)
		}
		l.nothingToDo(e)
		sleep(time.Hour)
		l.phase(e, "sandbox.a", plan.Paused)

		_, err := e.Act(ctx, ActRequest{Verb: "resume", Address: "a"})
		l.refused(err, Conflict, "-timeout")
		l.phase(e, "sandbox.a", plan.Paused)
		d := config.Duration(20 * time.Minute)
		if _, err := e.Act(ctx, ActRequest{Verb: "resume", Address: "a", Timeout: &d}); err != nil {
			t.Fatal(err)
		}
		v = l.phase(e, "sandbox.a", plan.Running)
		l.hold(e, "", "")
		l.condition(e, "Expired", "False/NotExpired")
		if *v.PID != pid || v.ExpiresAt == nil || time.Until(*v.ExpiresAt) != 20*time.Minute {
			t.Errorf("pid %d, expires at %v", *v.PID, v.ExpiresAt)
		}
		l.nothingToDo(e)
		sleep(20 * time.Minute)
		l.phase(e, "sandbox.a", plan.Paused)
		l.condition(e, "Expired", "True/TTLExpiry")
	})
}

func TestALaterDeadlineInTheFilesEndsAnExpiryByPause(t *testing.T) {
	with := func(at string) string {
		return one("shutdown_time = \"" + at + "\"\n shutdown_policy = \"pause\"")
	}
	withAgent(t, with("2000-01-01T01:00:00Z"), func(l *lab, e *Engine, k *keeper) {
		pid := *l.view(e, "sandbox.a").PID
		sleep(2 * time.Hour)
		l.hold(e, "paused", "expiry")
		l.main(with("2000-01-02T00:00:00Z"))
		l.apply(e, plan.Options{})
		sleep(time.Second)
		if v := l.phase(e, "sandbox.a", plan.Running); *v.PID != pid {
			t.Error("not the same process")
		}
		l.hold(e, "", "")
		l.condition(e, "Expired", "False/NotExpired")
		l.nothingToDo(e)
	})
}

func TestExpiryByPauseKeepsAnOperatorsHold(t *testing.T) {
	withAgent(t, one(`
  shutdown_policy = "pause"
  lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		l.act(e, "pause", "a")
		sleep(2 * time.Hour)
		l.phase(e, "sandbox.a", plan.Paused)
		l.hold(e, "paused", "operator")
		l.condition(e, "Expired", "True/TTLExpiry")
		l.act(e, "resume", "a")
		v := l.phase(e, "sandbox.a", plan.Running)
		if v.ExpiresAt == nil || time.Until(*v.ExpiresAt) != time.Hour {
			t.Errorf("expires at %v, want a new ttl from now", v.ExpiresAt)
		}
	})
}

func TestAccessResumesAfterExpiryByPause(t *testing.T) {
	withAgent(t, one(`
  shutdown_policy = "pause"
  lifetime {
    ttl              = "1h"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		l.hold(e, "paused", "expiry")
		l.ran(e, "sim", "exit=0")
		v := l.phase(e, "sandbox.a", plan.Running)
		if v.ExpiresAt == nil || time.Until(*v.ExpiresAt) != time.Hour {
			t.Errorf("expires at %v, want a ttl from now", v.ExpiresAt)
		}
	})
}

func TestClockRunsOnlyWhileTheSandboxDoes(t *testing.T) {
	withAgent(t, one(`lifetime {
    ttl   = "1h"
    clock = "running"
  }`), func(l *lab, e *Engine, k *keeper) {
		end := *l.view(e, "sandbox.a").ExpiresAt
		sleep(30 * time.Minute)
		l.act(e, "pause", "a")
		v := l.view(e, "sandbox.a")
		if v.ExpiresAt != nil || v.EndedAt == nil || !v.EndedAt.Equal(end) {
			t.Errorf("paused: expires at %v, ended at %v, want none and %s", v.ExpiresAt, v.EndedAt, end)
		}
		sleep(5 * time.Hour)
		l.phase(e, "sandbox.a", plan.Paused)
		l.act(e, "resume", "a")
		v = l.phase(e, "sandbox.a", plan.Running)
		if v.ExpiresAt == nil || time.Until(*v.ExpiresAt) != time.Hour || v.EndedAt != nil {
			t.Errorf("resumed: expires at %v, ended at %v", v.ExpiresAt, v.EndedAt)
		}
		l.nothingToDo(e)
	})
}

func TestRestartPolicy(t *testing.T) {
	withAgent(t, command(`"sim", "append=/log:x", "after=1m", "exit=3"`, `restart {
    mode         = "on-failure"
    max_attempts = 3
    backoff_min  = "10s"
    backoff_max  = "20s"
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(10 * time.Minute)
		v := l.phase(e, "sandbox.a", plan.Failed)
		if text, _ := l.world.LayerFile(*v.InstanceID, "/log"); text != "xxxx" {
			t.Errorf("ran %q, want once and three restarts", text)
		}
		l.condition(e, "Ready", "False/Failed")
		if r := e.current("sandbox.a").Instance.FailReason; !strings.Contains(r, "restarts used up") {
			t.Errorf("failed for %q", r)
		}
		// The agent leaves it alone; a user's apply makes it again, with a new series.
		id := *v.InstanceID
		sleep(time.Hour)
		l.phase(e, "sandbox.a", plan.Failed)
		if p := l.plan(e); !slices.ContainsFunc(p.Plan.Changes, func(c plan.Change) bool { return c.Action == plan.ActRecreate }) {
			t.Errorf("plan %+v, want a recreate", p.Plan.Changes)
		}
		l.apply(e, plan.Options{})
		if v := l.phase(e, "sandbox.a", plan.Running); *v.InstanceID == id {
			t.Error("the same instance")
		}
		sleep(90 * time.Second)
		l.phase(e, "sandbox.a", plan.Running) // restarted
	})
}

func TestRestartBackoffAndSuccess(t *testing.T) {
	withAgent(t, command(`"sim", "append=/log:x", "exit=0"`, `restart { mode = "on-failure" }`), func(l *lab, e *Engine, k *keeper) {
		sleep(time.Hour)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.condition(e, "Finished", "True/Succeeded")
	})
	withAgent(t, command(`"sim", "append=/log:x", "exit=0"`, `restart {
    mode        = "always"
    backoff_min = "1m"
    backoff_max = "1m"
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(10 * time.Minute)
		text, _ := l.world.LayerFile(l.id(e, "sandbox.a"), "/log")
		if n := len(text); n < 10 || n > 22 { // every 30 to 60 s
			t.Errorf("ran %d times in ten minutes", n)
		}
		_, before := k.looks()
		sleep(10 * time.Minute)
		if _, now := k.looks(); now-before > 120 {
			t.Errorf("%d looks in ten minutes", now-before)
		}
	})
}

func TestWarningBeforeTheDeadline(t *testing.T) {
	withAgent(t, one(`lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		warned := func() (n int) {
			for _, ev := range l.events(e, "sandbox.a") {
				if strings.HasPrefix(ev, "expiring/") {
					n++
				}
			}
			return n
		}
		end := *l.view(e, "sandbox.a").ExpiresAt
		sleep(time.Until(end.Add(-15*time.Minute)) - time.Second)
		if warned() != 0 {
			t.Error("warned too early")
		}
		sleep(2 * time.Second)
		if warned() != 1 {
			t.Errorf("%d warnings 15 minutes before, want 1", warned())
		}
		l.nothingToDo(e)
		sleep(10 * time.Minute)
		if warned() != 1 {
			t.Errorf("warned %d times of one deadline", warned())
		}
		in := config.Duration(time.Hour)
		if _, err := e.Renew(context.Background(), RenewRequest{Address: "a", In: &in}); err != nil {
			t.Fatal(err)
		}
		sleep(46 * time.Minute)
		if warned() != 2 {
			t.Errorf("%d warnings after a renewal, want one more", warned())
		}
	})
}

func TestHealthDrivesReady(t *testing.T) {
	withAgent(t, command(`"sim", "after=30s", "serve=80", "after=10m", "write=/x:y"`, `health {
    tcp      = 80
    interval = "5s"
    retries  = 2
  }`), func(l *lab, e *Engine, k *keeper) {
		l.condition(e, "Ready", "False/Starting")
		sleep(20 * time.Second)
		l.condition(e, "Ready", "False/Degraded")
		sleep(20 * time.Second)
		l.condition(e, "Ready", "True/Running")
		l.act(e, "pause", "a")
		l.condition(e, "Ready", "False/Paused")
		l.act(e, "resume", "a")
		l.condition(e, "Ready", "True/Running")
		k.stop()
		l.condition(e, "Ready", "True/Running") // what the last look knew
	})
}

func TestAttachEndsWithTheProcess(t *testing.T) {
	withAgent(t, command(`"sim", "after=1m", "exit=7"`, ""), func(l *lab, e *Engine, k *keeper) {
		s, err := e.Attach(context.Background(), "a")
		if err != nil {
			t.Fatal(err)
		}
		w := waitFor(s)
		sleep(2 * time.Minute)
		if w := <-w; w.err != nil || w.code != 7 {
			t.Errorf("attached process ended with %d, %v", w.code, w.err)
		}
		_, err = e.Attach(context.Background(), "a")
		l.refused(err, Conflict, "is stopped, cannot attach")
		l.act(e, "start", "a")
		if s, err = e.Attach(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
		w = waitFor(s)
		l.act(e, "pause", "a")
		sleep(0)
		select {
		case w := <-w:
			l.refused(w.err, Conflict, "was paused")
		default:
			t.Error("attached to a frozen process")
		}
		if a := e.activity.read("sandbox.a"); a.Busy {
			t.Error("it counts as used though nobody is attached")
		}
	})
}

func TestEventsAreFollowed(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		ctx := context.Background()
		all, err := e.Events(ctx, EventsRequest{Address: "a"})
		if err != nil || len(all.Events) == 0 || all.Next == 0 {
			t.Fatalf("%+v, %v", all, err)
		}
		for i, ev := range all.Events {
			if i > 0 && ev.Seq <= all.Events[i-1].Seq {
				t.Errorf("event %d has seq %d after %d", i, ev.Seq, all.Events[i-1].Seq)
			}
		}
		next := make(chan *EventsResult, 1)
		go func() {
			res, err := e.Events(ctx, EventsRequest{Address: "a", After: all.Next, Wait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			next <- res
		}()
		synctest.Wait()
		select {
		case r := <-next:
			t.Fatalf("did not wait: %+v", r)
		default:
		}
		l.act(e, "pause", "a")
		if r := <-next; len(r.Events) == 0 || r.Events[0].Type != "held" {
			t.Errorf("events %+v", r.Events)
		}
		begun := time.Now()
		r, err := e.Events(ctx, EventsRequest{Types: []string{"nothing"}, After: all.Next, Wait: 10 * time.Second})
		if err != nil || len(r.Events) != 0 || time.Since(begun) != 10*time.Second {
			t.Errorf("%+v, %v after %s", r, err, time.Since(begun))
		}
	})
}

// TestTwoHundredVerbsAtOnce: whatever wins, each verb is done or refused with
// words, no two overlap, and the end is one that the verbs done lead to.
func TestTwoHundredVerbsAtOnce(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		l.world.Delay(sim.OpPause, 3*time.Millisecond)
		l.world.Delay(sim.OpStop, 5*time.Millisecond)
		verbs := []string{"pause", "resume", "stop", "start"}
		var mu sync.Mutex
		done := map[string]int{}
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond / 4)
				_, err := e.Act(context.Background(), ActRequest{Verb: verbs[i%4], Address: "a"})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					done[verbs[i%4]]++
					return
				}
				if x, ok := err.(*Error); !ok || x.Kind != Conflict ||
					!strings.Contains(x.Message, "operation in progress") && !strings.Contains(x.Message, "invalid state transition") {
					t.Errorf("%s: %v", verbs[i%4], err)
				}
			})
		}
		all.Wait()
		sleep(time.Second)
		// Every step of the history is a legal transition from the one before.
		phase := plan.Running
		events, err := e.Events(context.Background(), EventsRequest{Address: "a", Types: []string{"pause", "resume", "stop", "start"}})
		if err != nil {
			t.Fatal(err)
		}
		legal := map[string]plan.Phase{"pause": plan.Running, "resume": plan.Paused, "stop": plan.Running, "start": plan.Stopped}
		to := map[string]plan.Phase{"pause": plan.Paused, "resume": plan.Running, "stop": plan.Stopped, "start": plan.Running}
		seen := map[string]int{}
		for i, ev := range events.Events {
			if i > 0 { // the first start is the apply's
				if phase != legal[ev.Type] {
					t.Errorf("event %d: %s from %s", i, ev.Type, phase)
				}
				seen[ev.Type]++
			}
			phase = to[ev.Type]
		}
		l.phase(e, "sandbox.a", phase)
		for _, v := range verbs {
			if done[v] != seen[v] {
				t.Errorf("%s: %d were told that it is done, the history has %d", v, done[v], seen[v])
			}
		}
		if len(events.Events) < 4 {
			t.Errorf("only %d steps happened", len(events.Events))
		}
		l.nothingToDo(e)
	})
}

func TestCopyWakesAndCounts(t *testing.T) {
	withAgent(t, one(`lifetime {
    idle_timeout     = "5m"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(6 * time.Minute)
		l.hold(e, "paused", "idle")
		err := e.copy(context.Background(), CopyRequest{Address: "a", Path: "/log", Archive: l.null()}, func(id string) error {
			l.phase(e, "sandbox.a", plan.Running)
			sleep(10 * time.Minute)
			l.phase(e, "sandbox.a", plan.Running) // a copy that goes on is use
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		sleep(6 * time.Minute)
		l.phase(e, "sandbox.a", plan.Paused)
	})
}

// A sandbox that expiry paused and whose process then goes is expired like one that
// was stopped: no new process is made for it, and a later deadline revives it.
func TestExpiryByPauseThenItsProcessIsGone(t *testing.T) {
	with := func(at, policy string) string {
		return one("shutdown_time = \"" + at + "\"\n shutdown_policy = \"" + policy + "\"")
	}
	withAgent(t, with("2000-01-01T01:00:00Z", "pause"), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		v := l.phase(e, "sandbox.a", plan.Paused)
		l.world.KillMain(*v.InstanceID, 9)
		sleep(time.Minute)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.hold(e, "", "")
		l.condition(e, "Expired", "True/ShutdownTime")
		l.nothingToDo(e)
		l.main(with("2000-01-02T00:00:00Z", "pause"))
		l.apply(e, plan.Options{})
		sleep(time.Minute)
		l.phase(e, "sandbox.a", plan.Running)
		l.condition(e, "Expired", "False/NotExpired")
	})
}

// Files that say delete, or retain, end what expiry had paused.
func TestExpiryByPauseThenAnotherPolicy(t *testing.T) {
	for policy, check := range map[string]func(l *lab, e *Engine){
		"retain": func(l *lab, e *Engine) {
			l.phase(e, "sandbox.a", plan.Stopped)
			l.hold(e, "", "")
			l.condition(e, "Expired", "True/TTLExpiry")
		},
		"delete": func(l *lab, e *Engine) {
			if _, known := e.sandbox("sandbox.a"); known {
				t.Error("its record is still there")
			}
		},
	} {
		with := func(policy string) string {
			return one("lifetime { ttl = \"1h\" }\n shutdown_policy = \"" + policy + "\"")
		}
		withAgent(t, with("pause"), func(l *lab, e *Engine, k *keeper) {
			sleep(2 * time.Hour)
			l.phase(e, "sandbox.a", plan.Paused)
			l.main(with(policy))
			l.apply(e, plan.Options{})
			sleep(time.Minute)
			check(l, e)
			l.nothingToDo(e)
		})
	}
}

// A replacement by the user starts a new ttl; the shutdown_time that paused the
// sandbox once, and out of which it was resumed, does not pause the new instance.
func TestReplaceAfterAnExpiryByPause(t *testing.T) {
	withAgent(t, one("shutdown_time = \"2000-01-01T01:00:00Z\"\n shutdown_policy = \"pause\"\n lifetime { ttl = \"8h\" }"), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		l.phase(e, "sandbox.a", plan.Paused)
		if _, err := e.Act(context.Background(), ActRequest{Verb: "resume", Address: "a"}); err != nil {
			t.Fatal(err)
		}
		l.phase(e, "sandbox.a", plan.Running)
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		sleep(time.Minute)
		v := l.phase(e, "sandbox.a", plan.Running)
		if v.ExpiresAt == nil || time.Until(*v.ExpiresAt) < 7*time.Hour {
			t.Errorf("expires at %v", v.ExpiresAt)
		}
		l.nothingToDo(e)
	})
}

// A hold's release by an operator takes what lies under it along.
func TestReleaseDropsWhatLiesUnder(t *testing.T) {
	withAgent(t, one(`
  operating_mode = "suspended"
  lifetime { idle_timeout = "5m" }`), func(l *lab, e *Engine, k *keeper) {
		l.act(e, "start", "a")
		sleep(6 * time.Minute)
		l.hold(e, "paused", "idle")
		l.act(e, "release", "a")
		l.hold(e, "", "")
		sleep(time.Second)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.nothingToDo(e)
	})
}

// What rests and then expires is not woken, and the refusal speaks of what was asked.
func TestAccessDoesNotWakeWhatExpired(t *testing.T) {
	withAgent(t, one(`lifetime {
    ttl              = "1h"
    idle_timeout     = "5m"
    idle_action      = "suspend"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		_, err := l.exec(e, "sim", "exit=0")
		l.refused(err, Conflict, "expired at")
		l.refused(err, Conflict, "cannot exec")
		l.phase(e, "sandbox.a", plan.Stopped)
	})
}

// An end of the agent in order forgets no use, however short ago.
func TestAnOrderlyEndStoresTheLastUse(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open("agent")
		l.apply(e, plan.Options{})
		k := l.keep(e)
		sleep(20 * time.Second)
		l.ran(e, "sim", "after=1s", "exit=0")
		used := *l.view(e, "sandbox.a").LastActivity
		k.stop()
		l.close(e)
		e = l.open("apply")
		if v := l.view(e, "sandbox.a"); v.LastActivity == nil || v.LastActivity.Before(used) {
			t.Errorf("last activity %v, was %s", v.LastActivity, used)
		}
		l.end(e)
	})
}

// Signals that somebody who is attached sends are the sandbox's own affair: what the
// process makes of them is its own end.
func TestSignalsOfAnAttachedAreItsOwn(t *testing.T) {
	withAgent(t, command(`"sim", "await=INT", "exit=9"`, ""), func(l *lab, e *Engine, k *keeper) {
		s, err := e.Attach(context.Background(), "a")
		if err != nil {
			t.Fatal(err)
		}
		w := waitFor(s)
		if err := s.Signal(2); err != nil {
			t.Fatal(err)
		}
		sleep(time.Minute)
		if w := <-w; w.err != nil || w.code != 9 {
			t.Errorf("ended with %d, %v", w.code, w.err)
		}
		l.phase(e, "sandbox.a", plan.Stopped)
		l.condition(e, "Finished", "True/Failed")
	})
}

func TestUnwatchedRulesInWords(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one(portConfig + `
  lifetime { idle_timeout = "5m" }
  restart { mode = "always" }
  health { tcp = 7 }`)})
		e := l.open("apply")
		var all string
		for _, w := range l.apply(e, plan.Options{}).Warnings {
			all += w.Summary + ": " + w.Detail
		}
		for _, words := range []string{"no agent is running", "an idle_timeout", "published ports", "a restart block", "a health block"} {
			if !strings.Contains(all, words) {
				t.Errorf("no %q in %q", words, all)
			}
		}
		l.end(e)
	})
}

// What an operator holds is not used by those who are refused: neither its lease nor
// its last activity moves.
func TestARefusedAccessIsNoUse(t *testing.T) {
	withAgent(t, command(`"sim", "serve=7"`, portConfig+`lifetime {
    ttl                = "1h"
    idle_timeout       = "30m"
    resume_on_access   = true
    renew_on_access    = "2h"
    renew_min_interval = "1s"
  }`), func(l *lab, e *Engine, k *keeper) {
		at := netip.MustParseAddrPort("127.0.0.1:4007")
		for _, verb := range []string{"pause", "stop"} {
			if verb == "stop" {
				l.act(e, "resume", "a")
			}
			l.act(e, verb, "a")
			before := l.view(e, "sandbox.a")
			sleep(time.Minute)
			if _, err := l.exec(e, "sim", "exit=0"); err == nil {
				t.Fatalf("exec after %s", verb)
			}
			if _, err := e.Attach(context.Background(), "a"); err == nil {
				t.Fatalf("attached after %s", verb)
			}
			if _, err := l.world.Connect(at, "tcp"); err == nil {
				t.Fatalf("connected after %s", verb)
			}
			sleep(time.Second)
			after := l.view(e, "sandbox.a")
			if !after.ExpiresAt.Equal(*before.ExpiresAt) || !after.LastActivity.Equal(*before.LastActivity) {
				t.Errorf("%s: expires %s and %s, used %s and %s", verb, before.ExpiresAt, after.ExpiresAt, before.LastActivity, after.LastActivity)
			}
		}
	})
}

// A verb that meets what goes on by itself waits for it.
func TestAVerbWaitsForAWake(t *testing.T) {
	withAgent(t, one(`lifetime {
    idle_timeout     = "5m"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(6 * time.Minute)
		l.hold(e, "paused", "idle")
		l.world.Delay(sim.OpResume, time.Second)
		woken := make(chan error, 1)
		go func() {
			s, err := l.exec(e, "sim", "exit=0")
			if err == nil {
				_, err = s.Wait()
			}
			woken <- err
		}()
		sleep(100 * time.Millisecond)
		if h := e.lanes.freezing("sandbox.a"); h == nil || h.who != byAccess {
			t.Fatalf("the lane is held by %+v", h)
		}
		l.act(e, "stop", "a") // fails the test when it is refused
		<-woken
		l.phase(e, "sandbox.a", plan.Stopped)
		l.hold(e, "suspended", "operator")
	})
}

// Touching takes no lock that anybody could trip over.
func TestTouchDisturbsNoVerb(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		ctx, stop := context.WithCancel(context.Background())
		var touching sync.WaitGroup
		for range 4 {
			touching.Go(func() {
				for ctx.Err() == nil {
					if _, err := e.Touch(ctx, "a"); err != nil && ctx.Err() == nil {
						t.Error(err)
						return
					}
					time.Sleep(100 * time.Microsecond)
				}
			})
		}
		for range 50 {
			l.act(e, "pause", "a")
			l.act(e, "resume", "a")
		}
		stop()
		touching.Wait()
	})
}

func TestReleaseHoldsWakesWhatExpiryPaused(t *testing.T) {
	withAgent(t, one("shutdown_policy = \"pause\"\n lifetime { ttl = \"1h\" }"), func(l *lab, e *Engine, k *keeper) {
		pid := *l.view(e, "sandbox.a").PID
		sleep(2 * time.Hour)
		l.hold(e, "paused", "expiry")
		l.apply(e, plan.Options{ReleaseHolds: true})
		v := l.phase(e, "sandbox.a", plan.Running)
		l.hold(e, "", "")
		l.condition(e, "Expired", "False/NotExpired")
		if *v.PID != pid || v.ExpiresAt == nil || time.Until(*v.ExpiresAt) != time.Hour {
			t.Errorf("pid %d, expires at %v", *v.PID, v.ExpiresAt)
		}
		l.nothingToDo(e)
	})
	withAgent(t, one("shutdown_policy = \"pause\"\n shutdown_time = \"2000-01-01T01:00:00Z\""), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		p, err := e.Plan(context.Background(), PlanRequest{Source: l.source(), Options: plan.Options{ReleaseHolds: true}})
		if err != nil || !p.Diagnostics.HasErrors() || !strings.Contains(fmt.Sprint(p.Diagnostics), "-timeout") {
			t.Errorf("plan %+v, %v, want an error that asks for -timeout", p.Diagnostics, err)
		}
		l.hold(e, "paused", "expiry")
	})
}

// twin makes another live instance of the sandbox's uid, as a crash at the wrong
// moment could have left one, and returns its id.
func (l *lab) twin(e *Engine, id string) string {
	l.t.Helper()
	l.twins = true
	h := l.world.Open(e.store.Lineage())
	spec := l.world.Spec(l.id(e, "sandbox.a"))
	spec.ID, spec.CarryFrom = id, ""
	ctx := context.Background()
	if _, err := h.Create(ctx, spec); err != nil {
		l.t.Fatal(err)
	}
	if err := h.Start(ctx, id); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = h.Remove(ctx, id) })
	return id
}

func TestOneSurvivorIsBound(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		old := l.id(e, "sandbox.a")
		other := l.twin(e, "0123456789ab")
		l.world.Kill(old)
		sleep(2 * time.Minute)
		v := l.phase(e, "sandbox.a", plan.Running)
		if *v.InstanceID != other {
			t.Errorf("instance %s, want the survivor %s", *v.InstanceID, other)
		}
		if ev := l.events(e, "sandbox.a"); !hasPrefix(ev, "rebound/survivor") {
			t.Errorf("history %v", ev)
		}
		l.nothingToDo(e)
	})
}

func TestTwoSurvivorsAreUntouchedAndReported(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		old := l.id(e, "sandbox.a")
		l.twin(e, "0123456789ab")
		l.twin(e, "ba9876543210")
		l.world.ClearOps()
		l.world.Kill(old)
		sleep(5 * time.Minute)
		for _, op := range l.writes() {
			if op == "Create" || op == "Start" || op == "Remove" {
				t.Errorf("%s with two survivors", op)
			}
		}
		p := l.plan(e)
		if notes := strings.Join(p.Plan.Notes, "\n"); !strings.Contains(notes, "0123456789ab") || !strings.Contains(notes, "nothing is touched") {
			t.Errorf("notes %q", notes)
		}
		// With one of them gone it is bound to the other.
		if err := e.host.Remove(context.Background(), "0123456789ab"); err != nil {
			t.Fatal(err)
		}
		sleep(2 * time.Minute)
		if v := l.phase(e, "sandbox.a", plan.Running); *v.InstanceID != "ba9876543210" {
			t.Errorf("instance %s", *v.InstanceID)
		}
	})
}

func TestRetainToDeleteAfterExpiry(t *testing.T) {
	with := func(policy string) string {
		return one("lifetime { ttl = \"1h\" }\n shutdown_policy = \"" + policy + "\"")
	}
	withAgent(t, with("retain"), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.main(with("delete"))
		l.apply(e, plan.Options{})
		if e.current("sandbox.a") != nil {
			t.Error("its record is still there")
		}
		sleep(time.Hour)
		l.nothingToDo(e) // it stays ended while its block stands
		if e.current("sandbox.a") != nil {
			t.Error("it is back")
		}
	})
}

func TestRunningSetWhileExpiredDoesNothing(t *testing.T) {
	with := func(mode string) string {
		return one("lifetime { ttl = \"1h\" }\n operating_mode = \"" + mode + "\"")
	}
	withAgent(t, with("paused"), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.main(with("running"))
		l.apply(e, plan.Options{})
		sleep(time.Hour)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.condition(e, "Expired", "True/TTLExpiry")
		_, err := e.Act(context.Background(), ActRequest{Verb: "resume", Address: "a"})
		l.refused(err, Conflict, "expired")
		l.nothingToDo(e)
	})
}

func TestDeadlineClearedWhileSuspended(t *testing.T) {
	withAgent(t, one("lifetime { ttl = \"1h\" }\n operating_mode = \"suspended\""), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		l.condition(e, "Expired", "True/TTLExpiry")
		l.main(one("operating_mode = \"suspended\""))
		l.apply(e, plan.Options{})
		l.phase(e, "sandbox.a", plan.Stopped)
		l.condition(e, "Expired", "False/NotExpired")
		l.condition(e, "Suspended", "True/Suspended")
		l.nothingToDo(e)
	})
}

func TestDeleteWithAFailingStepKeepsTheRecordAndHeals(t *testing.T) {
	withAgent(t, one("lifetime { ttl = \"1h\" }\n shutdown_policy = \"delete\""), func(l *lab, e *Engine, k *keeper) {
		id := l.id(e, "sandbox.a")
		l.world.Fail(sim.OpRemove, id, errors.New("device busy"), sim.Before, 3)
		sleep(time.Until(*l.view(e, "sandbox.a").ExpiresAt))
		rec := e.current("sandbox.a")
		if rec == nil || rec.Expired == nil {
			t.Fatalf("record %+v", rec)
		}
		if !strings.Contains(rec.Retry.Error, "device busy") {
			t.Errorf("its error is %q", rec.Retry.Error)
		}
		sleep(time.Hour)
		if e.current("sandbox.a") != nil {
			t.Error("it is not healed")
		}
		l.tidy(e)
	})
}

// The history keeps the newest events and no more, however many come.
func TestHistoryIsBounded(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	w := &write{}
	for i := range historyKeep + 700 {
		w.event(Event{Address: "sandbox.x", Type: "note", Message: fmt.Sprint(i)})
	}
	if err := e.commit(w); err != nil {
		t.Fatal(err)
	}
	res, err := e.Events(context.Background(), EventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(res.Events); n > historyKeep+256 || n < historyKeep {
		t.Errorf("%d events are kept", n)
	}
	if last := res.Events[len(res.Events)-1]; last.Message != fmt.Sprint(historyKeep+699) {
		t.Errorf("the newest is %+v", last)
	}
	l.end(e)
}

// A stop takes over a suspended hold of the idle rule, as a pause takes over a paused one.
func TestAStopTakesOverAnIdleSuspension(t *testing.T) {
	withAgent(t, one(`lifetime {
    idle_timeout     = "5m"
    idle_action      = "suspend"
    resume_on_access = true
  }`), func(l *lab, e *Engine, k *keeper) {
		sleep(6 * time.Minute)
		l.hold(e, "suspended", "idle")
		if res := l.act(e, "stop", "a"); !strings.Contains(res.Note, "idle") {
			t.Errorf("note %q", res.Note)
		}
		l.hold(e, "suspended", "operator")
		_, err := l.exec(e, "sim", "exit=0")
		l.refused(err, Conflict, "start it first")
	})
}

// Whoever connects while a process that was just started does not listen yet waits
// for it, whoever had it started.
func TestConnectionsWaitForAProcessToListen(t *testing.T) {
	withAgent(t, command(`"sim", "after=5s", "serve=7"`, portConfig+`lifetime { idle_timeout = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		c, err := l.world.Connect(netip.MustParseAddrPort("127.0.0.1:4007"), "tcp") // a second after its start
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		speak(t, c, "hello")
	})
}

// An operator's hold over an expiry by pause is released as expiry's own is.
func TestReleaseOfAnOperatorsHoldAfterExpiryByPause(t *testing.T) {
	for _, how := range []string{"release", "-release-holds"} {
		withAgent(t, one("shutdown_policy = \"pause\"\n lifetime { ttl = \"1h\" }"), func(l *lab, e *Engine, k *keeper) {
			l.act(e, "pause", "a")
			sleep(2 * time.Hour)
			l.hold(e, "paused", "operator")
			if how == "release" {
				l.act(e, "release", "a")
			} else {
				l.apply(e, plan.Options{ReleaseHolds: true})
			}
			sleep(time.Second)
			v := l.phase(e, "sandbox.a", plan.Running)
			l.hold(e, "", "")
			l.condition(e, "Expired", "False/NotExpired")
			if v.ExpiresAt == nil || time.Until(*v.ExpiresAt) < 59*time.Minute {
				t.Errorf("%s: expires at %v", how, v.ExpiresAt)
			}
			l.nothingToDo(e)
		})
	}
}

// A shell that a pause parted from its caller goes on inside, and is no use: nobody
// can reach it.
func TestASessionWithoutItsCallerIsNoUse(t *testing.T) {
	withAgent(t, one(`lifetime { idle_timeout = "5m" }`), func(l *lab, e *Engine, k *keeper) {
		s, err := l.exec(e, "sim", "after=5h", "exit=0")
		if err != nil {
			t.Fatal(err)
		}
		w := waitFor(s)
		l.act(e, "pause", "a")
		l.refused((<-w).err, Conflict, "was paused")
		l.act(e, "resume", "a")
		sleep(6 * time.Minute)
		l.hold(e, "paused", "idle")
	})
}

// A saved plan holds whatever its values are written with.
func TestSavedPlanWithMarkup(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": command(`"sim", "print=<b>&</b>"`, `labels = { q = "a<b && c>d" }`)})
	e := l.open("apply")
	if _, err := e.Apply(context.Background(), ApplyRequest{Saved: planFile(t, e, saved(t, l, e)), AutoApprove: true}, nil, nil); err != nil {
		t.Fatal(err)
	}
	l.nothingToDo(e)
	l.end(e)
}

// Following a directory that is not the one the state serves is refused at once.
func TestFollowingAnotherDirectoryIsRefused(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	_, err := newFollower(e, t.TempDir(), config.Inputs{}, nil)
	l.refused(err, Invalid, "serves the configuration in "+l.dir)
	if _, err := newFollower(e, l.dir, config.Inputs{}, nil); err != nil {
		t.Error(err)
	}
	l.end(e)
}

func TestProbesDialWhatTheirURLNames(t *testing.T) {
	for text, want := range map[string]string{
		"http://localhost/":            "127.0.0.1:80",
		"http://127.0.0.1:8080/x":      "127.0.0.1:8080",
		"http://127.0.0.2:8080/":       "127.0.0.2:8080",
		"http://[::1]:8080/health?a=b": "[::1]:8080",
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := asWritten(u); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
}

// A connection to what expiry froze wakes the sandbox, or is refused with the
// reason where nothing says how long it is to live then.
func TestAConnectionThatMeetsAnExpiry(t *testing.T) {
	for ttl, answered := range map[string]bool{`ttl = "1h"`: true, "": false} {
		withAgent(t, command(`"sim", "serve=7"`, portConfig+"shutdown_time = \"2000-01-01T01:00:00Z\"\n shutdown_policy = \"pause\"\n lifetime {\n resume_on_access = true\n "+ttl+"\n }"), func(l *lab, e *Engine, k *keeper) {
			sleep(2 * time.Hour)
			l.hold(e, "paused", "expiry")
			port := e.current("sandbox.a").Ports["echo"]
			c, err := k.connect(context.Background(), "sandbox.a", port)
			if (err == nil) != answered {
				t.Fatalf("%s: %v", ttl, err)
			}
			if err == nil {
				c.Close()
			}
		})
	}
}
