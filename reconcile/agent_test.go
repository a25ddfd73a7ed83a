package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
	"pinfold/state"
)

// one is a configuration of one sandbox "a" without a network.
func one(extra string) string {
	return "image \"base\" { source = \"host\" }\n" + box("a", extra)
}

func box(name, extra string) string {
	return fmt.Sprintf(`
sandbox %q {
  image   = image.base
  command = ["sim", "append=/log:x"]
  %s
}
`, name, extra)
}

// run applies a configuration and starts an agent on it, in virtual time.
func withAgent(t *testing.T, text string, f func(l *lab, e *Engine, k *keeper)) {
	t.Helper()
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": text})
		e := l.open("agent")
		l.apply(e, plan.Options{})
		k := l.keep(e)
		sleep(time.Second)
		f(l, e, k)
		k.stop()
		l.end(e)
	})
}

func TestDeadlineIsNeverEarlyAndEqualityExpires(t *testing.T) {
	withAgent(t, one(`lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		at := *l.view(e, "sandbox.a").ExpiresAt
		sleep(time.Until(at) - time.Nanosecond)
		if v := l.phase(e, "sandbox.a", plan.Running); v.EndedAt != nil {
			l.t.Error("ended before its deadline")
		}
		sleep(time.Nanosecond)
		v := l.phase(e, "sandbox.a", plan.Stopped)
		rec := e.current("sandbox.a")
		if rec.Expired == nil || !rec.Expired.At.Equal(at) || !rec.Expired.Done {
			l.t.Errorf("expired %+v, want at %s and done", rec.Expired, at)
		}
		if v.Outcome.Reason != "ttl_expiry" || v.ExpiresAt != nil || !v.EndedAt.Equal(at) {
			l.t.Errorf("view %+v, outcome %+v", v, v.Outcome)
		}
		if text, _ := l.world.LayerFile(rec.Instance.ID, "/log"); text != "x" {
			l.t.Errorf("its file is %q", text)
		}
		l.nothingToDo(e)
		l.tidy(e)
		if ev := l.events(e, "sandbox.a"); !hasPrefix(ev, "expired/ttl_expiry/agent") {
			l.t.Errorf("history %v", ev)
		}
	})
}

func TestEarlierOfTTLAndShutdownTime(t *testing.T) {
	// The bubble's clock begins at 2000-01-01.
	withAgent(t, one(`
  shutdown_time = "2000-01-01T00:30:00Z"
  lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		sleep(30 * time.Minute)
		l.phase(e, "sandbox.a", plan.Stopped)
		if r := e.current("sandbox.a").Expired; r == nil || r.Reason != plan.ShutdownTime {
			l.t.Errorf("expired %+v", r)
		}
	})
}

func TestThousandDeadlinesAtOnce(t *testing.T) {
	n := 300
	withAgent(t, fmt.Sprintf(`
image "base" { source = "host" }
sandbox "s" {
  count   = %d
  image   = image.base
  command = ["sim", "ignore=TERM"]
  shutdown_time = "2000-01-01T02:00:00Z"
}`, n), func(l *lab, e *Engine, k *keeper) {
		deadline := time.Date(2000, 1, 1, 2, 0, 0, 0, time.UTC)
		sleep(time.Until(deadline) - 1)
		for a, p := range l.phases(e) {
			if p != plan.Running {
				l.t.Errorf("%s is %s before its deadline", a, p)
			}
		}
		// Each takes its whole grace; side by side they take it once.
		sleep(defaultGrace + 100*time.Millisecond)
		for a, p := range l.phases(e) {
			if p != plan.Stopped {
				l.t.Errorf("%s is %s", a, p)
			}
			if x := e.current(a).Expired; x == nil || x.At.Before(deadline) || x.At.Sub(deadline) > 100*time.Millisecond {
				l.t.Errorf("%s expired at %v", a, x)
			}
		}
	})
}

func TestExpiryDeletesAndStaysEnded(t *testing.T) {
	withAgent(t, one(`
  lifetime { ttl = "1h" }
  shutdown_policy = "delete"
  volume "work" { path = "/work" }`), func(l *lab, e *Engine, k *keeper) {
		id := l.id(e, "sandbox.a")
		l.world.Fail(sim.OpRemoveVolume, "", errors.New("disk trouble"), sim.Before, 3)
		sleep(time.Hour)
		rec := e.current("sandbox.a")
		if rec == nil || rec.Expired == nil || !strings.Contains(rec.Retry.Error, "disk trouble") {
			l.t.Fatalf("while a step fails the record shows it: %+v", rec)
		}
		if o, _ := e.host.Observe(context.Background()); len(o.Instances) != 0 {
			l.t.Errorf("instance %s is still there", id)
		}
		sleep(time.Hour) // it heals, and the retries find that
		if rec := e.current("sandbox.a"); rec != nil {
			l.t.Fatalf("record is still there: %+v", rec)
		}
		l.tidy(e)
		end := e.snapshot().Ended["sandbox.a"]
		if end == nil || end.Reason != "ttl_expiry" || end.Instance != id {
			l.t.Errorf("ended %+v", end)
		}
		l.nothingToDo(e)
		l.apply(e, plan.Options{})
		if e.current("sandbox.a") != nil {
			l.t.Error("apply makes an ended sandbox again")
		}
		_, err := e.Act(context.Background(), ActRequest{Verb: "pause", Address: "a"})
		l.refused(err, NotFound, "ended at")
		// Only a later deadline in the files brings it back.
		l.main(one(`
  lifetime { ttl = "3h" }
  shutdown_policy = "delete"
  volume "work" { path = "/work" }`))
		l.apply(e, plan.Options{})
		l.phase(e, "sandbox.a", plan.Running)
		if e.snapshot().Ended["sandbox.a"] != nil {
			l.t.Error("its ending is remembered though it lives again")
		}
	})
}

func TestForgottenEnding(t *testing.T) {
	withAgent(t, one(`
  lifetime { ttl = "1h" }
  shutdown_policy = "delete"`), func(l *lab, e *Engine, k *keeper) {
		text := one("lifetime { ttl = \"1h\" }\n shutdown_policy = \"delete\"")
		sleep(2 * time.Hour)
		l.main("image \"base\" { source = \"host\" }")
		l.apply(e, plan.Options{}) // the block is gone: so is the ending
		l.main(text)
		l.apply(e, plan.Options{})
		l.phase(e, "sandbox.a", plan.Running)
		sleep(2 * time.Hour)
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		l.phase(e, "sandbox.a", plan.Running)
	})
}

func TestRetainedExpiryIsRevivedOnTheSameFiles(t *testing.T) {
	withAgent(t, one(`lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		sleep(2 * time.Hour)
		id := l.id(e, "sandbox.a")
		l.phase(e, "sandbox.a", plan.Stopped)
		for _, verb := range []string{"start", "resume"} {
			_, err := e.Act(context.Background(), ActRequest{Verb: verb, Address: "sandbox.a"})
			l.refused(err, Conflict, "expired")
		}
		d := config.Duration(time.Hour)
		_, err := e.Renew(context.Background(), RenewRequest{Address: "sandbox.a", In: &d})
		l.refused(err, Conflict, "expired")
		l.main(one(`lifetime { ttl = "5h" }`))
		l.apply(e, plan.Options{})
		l.phase(e, "sandbox.a", plan.Running)
		rec := e.current("sandbox.a")
		if rec.Instance.ID != id || rec.Expired != nil {
			l.t.Errorf("instance %s, was %s; expired %+v", rec.Instance.ID, id, rec.Expired)
		}
		if want := rec.Lease.Start.Add(5 * time.Hour); !rec.Lease.Until.Equal(want) {
			l.t.Errorf("lease ends %s, want %s", rec.Lease.Until, want)
		}
		if text, _ := l.world.LayerFile(id, "/log"); text != "xx" {
			l.t.Errorf("log %q: not the same files", text)
		}
		sleep(3 * time.Hour) // the new deadline acts too
		l.phase(e, "sandbox.a", plan.Stopped)
		l.main(one(`
  lifetime { ttl = "5h" }
  shutdown_policy = "delete"`))
		l.apply(e, plan.Options{})
		if e.current("sandbox.a") != nil {
			l.t.Error("flipping to delete does not remove what has expired")
		}
	})
}

func TestRenewIsDurable(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one(`lifetime { ttl = "1h" }`)})
		e := l.open("agent")
		l.apply(e, plan.Options{})
		k := l.keep(e)
		sleep(50 * time.Minute)
		d := config.Duration(time.Hour)
		res, err := e.Renew(context.Background(), RenewRequest{Address: "a", AtLeast: &d})
		if err != nil {
			t.Fatal(err)
		}
		until := *res.Sandbox.ExpiresAt
		k.stop()
		l.close(e)

		e = l.open("agent")
		k = l.keep(e)
		if got := *l.view(e, "sandbox.a").ExpiresAt; !got.Equal(until) {
			t.Errorf("after a restart it expires %s, was renewed to %s", got, until)
		}
		l.nothingToDo(e)
		sleep(time.Until(until) - 1)
		l.phase(e, "sandbox.a", plan.Running)
		sleep(1)
		l.phase(e, "sandbox.a", plan.Stopped)
		k.stop()
		l.end(e)
	})
}

func TestShortenedLeaseActsAtOnce(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		d := config.Duration(time.Minute)
		if _, err := e.Renew(context.Background(), RenewRequest{Address: "a", In: &d}); err != nil {
			l.t.Fatal(err)
		}
		sleep(time.Minute - 1)
		l.phase(e, "sandbox.a", plan.Running)
		sleep(1)
		l.phase(e, "sandbox.a", plan.Stopped)
	})
}

func TestKilledFromOutsideComesBackWithBackoff(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		id := l.id(e, "sandbox.a")
		var ups []time.Duration
		for range 6 {
			died := time.Now()
			l.world.KillMain(id, 9)
			for e.current("sandbox.a").Instance.Phase != plan.Stopped {
				sleep(time.Millisecond)
				if time.Since(died) > time.Second {
					break
				}
				if e.current("sandbox.a").Instance.StartedAt.After(died) {
					break
				}
			}
			for !e.current("sandbox.a").Instance.StartedAt.After(died) {
				sleep(10 * time.Millisecond)
				if time.Since(died) > time.Hour {
					l.t.Fatal("it does not come back")
				}
			}
			ups = append(ups, time.Since(died))
		}
		if ups[0] > 100*time.Millisecond {
			l.t.Errorf("the first restart comes after %s", ups[0])
		}
		if ups[5] < 4*time.Second || ups[5] > 5*time.Minute {
			l.t.Errorf("restarts come after %v: no back-off", ups)
		}
		if got := l.id(e, "sandbox.a"); got != id {
			l.t.Errorf("instance %s, was %s", got, id)
		}
		l.nothingToDo(e)
	})
}

func TestLostIsRecreatedWithItsFiles(t *testing.T) {
	withAgent(t, one(`
  lifetime { ttl = "10h" }
  volume "work" { path = "/work" }`), func(l *lab, e *Engine, k *keeper) {
		was := e.current("sandbox.a")
		l.world.Kill(was.Instance.ID)
		sleep(time.Minute)
		v := l.phase(e, "sandbox.a", plan.Running)
		rec := e.current("sandbox.a")
		if rec.Instance.ID == was.Instance.ID {
			l.t.Error("same instance id")
		}
		if rec.UID != was.UID || !rec.Lease.Until.Equal(was.Lease.Until) || rec.Claim["work"] != was.Claim["work"] || rec.IDs != was.IDs {
			l.t.Errorf("uid, lease, claims or ids changed: %+v, was %+v", rec, was)
		}
		if text, _ := l.world.LayerFile(*v.InstanceID, "/log"); text != "xx" {
			l.t.Errorf("log %q: its files are lost", text)
		}
		l.tidy(e)
		l.nothingToDo(e)
	})
}

func TestLostIsNoticedAtOnce(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		id := l.id(e, "sandbox.a")
		l.world.Kill(id)
		sleep(100 * time.Millisecond)
		if hasPrefix(l.events(e, "sandbox.a"), "lost/") {
			return
		}
		l.t.Errorf("100 ms after the loss the history is %v", l.events(e, "sandbox.a"))
	})
}

func TestOnLost(t *testing.T) {
	for on, want := range map[string]plan.Phase{"recreate-fresh": plan.Running, "retain": plan.Lost, "delete": ""} {
		t.Run(on, func(t *testing.T) {
			withAgent(t, one(`lifetime { on_lost = "`+on+`" }`), func(l *lab, e *Engine, k *keeper) {
				l.world.Kill(l.id(e, "sandbox.a"))
				sleep(time.Hour)
				if p := l.phases(e)["sandbox.a"]; p != want {
					l.t.Errorf("phase %q, want %q", p, want)
				}
				if on == "recreate-fresh" {
					if text, _ := l.world.LayerFile(l.id(e, "sandbox.a"), "/log"); text != "x" {
						l.t.Errorf("log %q", text)
					}
				}
				l.nothingToDo(e)
				if on != "recreate-fresh" {
					l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
					l.phase(e, "sandbox.a", plan.Running)
				}
				l.tidy(e)
			})
		})
	}
}

func TestOwnExitStaysFinished(t *testing.T) {
	withAgent(t, strings.Replace(one(""), `"append=/log:x"`, `"after=1m", "exit=3"`, 1), func(l *lab, e *Engine, k *keeper) {
		sleep(time.Hour)
		v := l.phase(e, "sandbox.a", plan.Stopped)
		if v.Outcome == nil || v.Outcome.ExitCode != 3 || v.Outcome.Reason != "exited" {
			l.t.Errorf("outcome %+v", v.Outcome)
		}
		l.nothingToDo(e)
		l.tidy(e) // nothing of the ended process is held
		k.stop()
		*k = *l.keep(e)
		sleep(time.Hour)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.act(e, "start", "a")
		l.phase(e, "sandbox.a", plan.Running)
	})
}

func TestOOMIsTheEndNotALoss(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		l.world.OOMInit(l.id(e, "sandbox.a"))
		sleep(time.Minute)
		v := l.phase(e, "sandbox.a", plan.Stopped)
		if v.Outcome == nil || !v.Outcome.OOM {
			l.t.Errorf("outcome %+v", v.Outcome)
		}
		l.tidy(e)
	})
}

func TestVerbsHoldThroughPasses(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		for _, step := range []struct {
			verb string
			want plan.Phase
			hold string
		}{
			{"pause", plan.Paused, "paused"}, {"resume", plan.Running, ""}, {"stop", plan.Stopped, "suspended"},
			{"start", plan.Running, ""}, {"pause", plan.Paused, "paused"}, {"release", plan.Running, ""},
			{"stop", plan.Stopped, "suspended"}, {"release", plan.Running, ""},
		} {
			pid := l.view(e, "sandbox.a").PID
			res := l.act(e, step.verb, "a")
			if res.Sandbox.Phase != step.want {
				l.t.Errorf("%s answers %s", step.verb, res.Sandbox.Phase)
			}
			sleep(10 * time.Minute)
			v := l.phase(e, "sandbox.a", step.want)
			hold := ""
			if v.Hold != nil {
				hold = v.Hold.Mode
				if v.Hold.By != byOperator {
					l.t.Errorf("held by %s", v.Hold.By)
				}
			}
			if hold != step.hold {
				l.t.Errorf("after %s held %q, want %q", step.verb, hold, step.hold)
			}
			if (step.verb == "pause" || step.verb == "resume") && *v.PID != *pid {
				l.t.Errorf("%s: pid %d, was %d", step.verb, *v.PID, *pid)
			}
			l.nothingToDo(e)
			l.apply(e, plan.Options{})
			l.phase(e, "sandbox.a", step.want)
		}
	})
}

func TestHoldsEndAsTheFilesSay(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		l.act(e, "stop", "a")
		l.apply(e, plan.Options{ReleaseHolds: true})
		l.phase(e, "sandbox.a", plan.Running)
		l.act(e, "pause", "a")
		l.main(one(`operating_mode = "suspended"`))
		l.apply(e, plan.Options{})
		v := l.phase(e, "sandbox.a", plan.Stopped)
		if v.Hold != nil {
			l.t.Errorf("held %+v", v.Hold)
		}
		l.act(e, "start", "a") // running is a hold now
		sleep(time.Hour)
		if v := l.phase(e, "sandbox.a", plan.Running); v.Hold == nil || v.Hold.Mode != "running" {
			l.t.Errorf("hold %+v", v.Hold)
		}
	})
}

func TestHoldsOutliveReplaceAndLoss(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		l.act(e, "pause", "a")
		l.world.Kill(l.id(e, "sandbox.a"))
		sleep(time.Minute)
		l.phase(e, "sandbox.a", plan.Paused)
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		l.phase(e, "sandbox.a", plan.Paused)
		l.act(e, "release", "a")
		l.act(e, "stop", "a")
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		sleep(time.Minute)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.tidy(e)
	})
}

func TestNoStartHolds(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one(`lifetime { ttl = "10h" }`)})
		e := l.open("agent")
		k := l.keep(e)
		l.apply(e, plan.Options{NoStart: true})
		sleep(time.Hour)
		v := l.phase(e, "sandbox.a", plan.Created)
		if v.Hold == nil || v.Hold.Mode != "created" || v.PID == nil {
			t.Errorf("hold %+v, pid %v", v.Hold, v.PID)
		}
		l.nothingToDo(e)
		_, err := e.Act(context.Background(), ActRequest{Verb: "stop", Address: "a"})
		l.refused(err, Conflict, "is created, cannot stop")
		l.act(e, "start", "a")
		if v := l.phase(e, "sandbox.a", plan.Running); v.Hold != nil {
			t.Errorf("hold %+v", v.Hold)
		}
		k.stop()
		l.end(e)
	})
}

func TestIllegalVerbs(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		for _, c := range []struct{ before, verb, words string }{
			{"", "start", "is running, cannot start"}, {"", "resume", "is running, cannot resume"},
			{"pause", "stop", "is paused, cannot stop"}, {"", "pause", "is paused, cannot pause"},
			{"resume", "resume", "is running, cannot resume"}, {"stop", "pause", "is stopped, cannot pause"},
		} {
			if c.before != "" {
				l.act(e, c.before, "a")
			}
			_, err := e.Act(context.Background(), ActRequest{Verb: c.verb, Address: "a"})
			l.refused(err, Conflict, "sandbox: invalid state transition: sandbox.a "+c.words)
		}
		_, err := e.Act(context.Background(), ActRequest{Verb: "stop", Address: "nobody"})
		l.refused(err, NotFound, "not found")
		_, err = e.Act(context.Background(), ActRequest{Verb: "dance", Address: "a"})
		l.refused(err, Invalid, "dance")
	})
}

func TestOperationInProgress(t *testing.T) {
	withAgent(t, strings.Replace(one(""), `"append=/log:x"`, `"ignore=TERM"`, 1), func(l *lab, e *Engine, k *keeper) {
		// An operator's stop takes its grace; a second verb is refused at once.
		done := make(chan error, 1)
		go func() {
			_, err := e.Act(context.Background(), ActRequest{Verb: "stop", Address: "a"})
			done <- err
		}()
		sleep(time.Second)
		began := time.Now()
		_, err := e.Act(context.Background(), ActRequest{Verb: "pause", Address: "a"})
		l.refused(err, Conflict, "sandbox: operation in progress: stop since")
		if !strings.HasSuffix(err.Error(), "by operator") || time.Since(began) != 0 {
			l.t.Errorf("refused after %s: %v", time.Since(began), err)
		}
		if err := <-done; err != nil {
			l.t.Error(err)
		}
		// An apply that stops it holds it as well.
		l.act(e, "start", "a")
		l.main(strings.Replace(one(`operating_mode = "suspended"`), `"append=/log:x"`, `"ignore=TERM"`, 1))
		go func() {
			_, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, nil)
			done <- err
		}()
		sleep(time.Second)
		_, err = e.Act(context.Background(), ActRequest{Verb: "pause", Address: "a"})
		l.refused(err, Conflict, "by apply")
		if err := <-done; err != nil {
			l.t.Error(err)
		}
	})
}

func TestVerbWaitsForTheAgent(t *testing.T) {
	text := strings.Replace(one(`
  lifetime { ttl = "1h" }
  stop_grace = "GRACE"`), `"append=/log:x"`, `"ignore=TERM"`, 1)
	for grace, refused := range map[string]bool{"5s": false, "1m": true} {
		t.Run(grace, func(t *testing.T) {
			withAgent(t, strings.Replace(text, "GRACE", grace, 1), func(l *lab, e *Engine, k *keeper) {
				deadline := *l.view(e, "sandbox.a").ExpiresAt
				sleep(time.Until(deadline) + time.Millisecond)
				began := time.Now()
				_, err := e.Act(context.Background(), ActRequest{Verb: "pause", Address: "a"})
				if refused {
					l.refused(err, Conflict, "by agent")
					if time.Since(began) != agentWait {
						l.t.Errorf("refused after %s, want %s", time.Since(began), agentWait)
					}
				} else {
					l.refused(err, Conflict, "is stopped, cannot pause") // it waited for the expiry's end
				}
				sleep(time.Minute)
			})
		})
	}
}

func TestAgentRestartTouchesNothing(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": sandboxA("") + box("p", `operating_mode = "paused"`) + box("s", `operating_mode = "suspended"`)})
		e := l.open("agent")
		l.apply(e, plan.Options{})
		before, err := e.List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		l.close(e)
		l.world.ClearOps()
		l.world.ReadOnly(t)
		e = l.open("agent")
		serial := e.snapshot().Serial
		k := l.keep(e)
		sleep(time.Hour)
		k.stop()
		after, err := e.List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for i := range before.Sandboxes {
			b, a := before.Sandboxes[i], after.Sandboxes[i]
			if *a.InstanceID != *b.InstanceID || a.Phase != b.Phase || (a.PID == nil) != (b.PID == nil) || (a.PID != nil && *a.PID != *b.PID) {
				t.Errorf("%s: %+v, was %+v", a.Address, a, b)
			}
		}
		if s := e.snapshot().Serial; s != serial {
			t.Errorf("serial %d, was %d", s, serial)
		}
		l.world.ReadWrite()
		l.end(e)
	})
}

func TestQuietAgentDoesNothing(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": sandboxA(`lifetime { ttl = "100d" }`)})
		m := &mortal{}
		p := l.process("agent", m)
		l.apply(p.Engine, plan.Options{})
		k := l.keep(p.Engine)
		sleep(time.Minute)
		commits := m.commits()
		passes, glances := k.looks()
		sleep(time.Hour)
		if n := m.commits(); n != commits {
			t.Errorf("%d transactions in an hour without events", n-commits)
		}
		nowPasses, nowGlances := k.looks()
		if n := nowPasses - passes; n < int(time.Hour/soonLook)-1 || n > int(time.Hour/soonLook)+1 {
			t.Errorf("%d full looks in an hour, want one every %s", n, soonLook)
		}
		if nowGlances != glances {
			t.Errorf("%d looks at single sandboxes in an hour without events", nowGlances-glances)
		}
		k.stop()
		l.end(p.Engine)
	})
}

// Whatever fails, and for however long, the agent tries with pauses.
func TestFailingStepsArePaced(t *testing.T) {
	for _, c := range []struct {
		op     sim.Op
		text   string
		break_ func(l *lab, e *Engine)
	}{
		{sim.OpStop, one(`lifetime { ttl = "1h" }`), func(*lab, *Engine) { sleep(time.Hour) }},
		{sim.OpRemove, one("lifetime { ttl = \"1h\" }\n shutdown_policy = \"delete\""), func(*lab, *Engine) { sleep(time.Hour) }},
		{sim.OpCreate, one(""), func(l *lab, e *Engine) { l.world.Kill(l.id(e, "sandbox.a")) }},
		{sim.OpStart, one(""), func(l *lab, e *Engine) { l.world.KillMain(l.id(e, "sandbox.a"), 9) }},
		{sim.OpStop, one(""), func(l *lab, e *Engine) { l.world.KillMain(l.id(e, "sandbox.a"), 9) }},
		{sim.OpInspect, one(""), func(l *lab, e *Engine) { l.world.KillMain(l.id(e, "sandbox.a"), 9) }},
		{sim.OpObserve, one(""), func(l *lab, e *Engine) { l.world.KillMain(l.id(e, "sandbox.a"), 9) }},
		{sim.OpRepair, sandboxA(""), func(l *lab, e *Engine) { l.world.Break(l.id(e, "sandbox.a"), "link") }},
		{sim.OpEnsureNetwork, sandboxA(""), func(l *lab, e *Engine) {
			n, _ := e.network("network.n")
			l.world.BreakNetwork(n.ID, "bridge")
		}},
	} {
		t.Run(string(c.op)+" "+fmt.Sprint(len(c.text)), func(t *testing.T) {
			withAgent(t, c.text, func(l *lab, e *Engine, k *keeper) {
				l.world.Fail(c.op, "", errors.New("broken"), sim.Before, sim.Always)
				c.break_(l, e)
				sleep(10 * time.Second)
				passes, glances := k.looks()
				l.world.ClearOps()
				sleep(4 * time.Minute)
				nowPasses, nowGlances := k.looks()
				if n := nowPasses - passes; n > int(4*time.Minute/soonLook)+1 {
					t.Errorf("%d full looks in 4 minutes", n)
				}
				if n := nowGlances - glances; n > 40 {
					t.Errorf("%d looks in 4 minutes", n)
				}
				if n := len(l.world.Ops()); n > 60 {
					t.Errorf("%d calls of the host in 4 minutes", n)
				}
				l.world.ClearFaults()
				sleep(30 * time.Minute)
				switch c.op {
				case sim.OpRemove:
					if e.current("sandbox.a") != nil {
						t.Error("it is still there after the trouble ended")
					}
				default:
					l.nothingToDo(e)
				}
				l.tidy(e)
			})
		})
	}
}

// A state that cannot be written must not make the agent spin either.
func TestUnwritableStateIsPaced(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		m := &mortal{}
		p := l.process("agent", m)
		l.apply(p.Engine, plan.Options{})
		k := l.keep(p.Engine)
		sleep(time.Second)
		l.world.KillMain(l.id(p.Engine, "sandbox.a"), 9)
		m.dead.Store(true)
		sleep(10 * time.Minute)
		if passes, glances := k.looks(); passes > int(10*time.Minute/soonLook)+10 || glances > 40 {
			t.Errorf("%d full looks, %d single looks in ten minutes", passes, glances)
		}
		m.dead.Store(false)
		sleep(10 * time.Minute)
		l.phase(p.Engine, "sandbox.a", plan.Running)
		l.tidy(p.Engine)
		k.stop()
		l.end(p.Engine)
	})
}

// uncertain is a store whose last commit may or may not be on the disk: from then on
// it has one answer.
type uncertain struct{ state.Store }

func (uncertain) Update(func(state.Tx) error) error {
	return fmt.Errorf("cannot go on: %w", state.ErrOutcome)
}
func (uncertain) View(func(state.Tx) error) error {
	return fmt.Errorf("cannot go on: %w", state.ErrOutcome)
}

// An agent whose state is in doubt ends: only the next one, which opens the state
// anew, knows what is in it. What runs goes on.
func TestAgentEndsWhereTheStateIsInDoubt(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		p := l.process("agent", &mortal{})
		l.apply(p.Engine, plan.Options{})
		id := l.id(p.Engine, "sandbox.a")
		store := p.Engine.store
		a := newAgent(p.Engine)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ready, over := make(chan struct{}), make(chan error, 1)
		go func() { over <- a.loop(ctx, func() { close(ready) }) }()
		<-ready
		p.Engine.store = uncertain{store}
		l.world.KillMain(id, 9)
		sleep(time.Minute)
		select {
		case err := <-over:
			if !errors.Is(err, state.ErrOutcome) {
				t.Errorf("it ended with %v", err)
			}
		default:
			t.Fatal("it goes on")
		}
		p.Engine.nudge = nil
		p.Engine.store = store
		l.end(p.Engine)
	})
}

func TestStartTimeoutEndsInFailed(t *testing.T) {
	withAgent(t, one(`lifetime { start_timeout = "2m" }`), func(l *lab, e *Engine, k *keeper) {
		l.world.Fail(sim.OpCreate, "", errors.New("no room"), sim.Before, sim.Always)
		l.world.Kill(l.id(e, "sandbox.a"))
		sleep(time.Minute)
		if p := l.phases(e)["sandbox.a"]; p != plan.Pending {
			t := l.t
			t.Errorf("while it is tried again it is %s", p)
		}
		sleep(10 * time.Minute)
		l.phase(e, "sandbox.a", plan.Failed)
		l.world.ClearOps()
		sleep(time.Hour)
		if ops := l.world.Ops(); len(ops) > 0 {
			l.t.Errorf("the agent does not leave it alone: %v", ops)
		}
		l.world.ClearFaults()
		l.apply(e, plan.Options{})
		l.phase(e, "sandbox.a", plan.Running)
		l.tidy(e)
	})
}

func TestOneStuckSandboxDelaysNobody(t *testing.T) {
	withAgent(t, "image \"base\" { source = \"host\" }\n"+box("a", `lifetime { ttl = "1h" }`)+box("b", `lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		l.world.Stick(l.id(e, "sandbox.a"))
		sleep(time.Hour + 100*time.Millisecond)
		l.phase(e, "sandbox.b", plan.Stopped)
		if rec := e.current("sandbox.a"); rec.Expired == nil || rec.Expired.Done {
			l.t.Errorf("expired %+v", rec.Expired)
		}
		sleep(time.Minute)
		l.world.Unstick(l.id(e, "sandbox.a"))
		sleep(10 * time.Minute)
		l.phase(e, "sandbox.a", plan.Stopped)
		l.tidy(e)
	})
}

func TestRepairsWithoutRestart(t *testing.T) {
	withAgent(t, sandboxA(""), func(l *lab, e *Engine, k *keeper) {
		id, pid := l.id(e, "sandbox.a"), *l.view(e, "sandbox.a").PID
		n, _ := e.network("network.n")
		for _, break_ := range []func(){
			func() { l.world.Break(id, "link") }, func() { l.world.Break(id, "rules") },
			func() { l.world.BreakNetwork(n.ID, "bridge") }, func() { l.world.BreakNetwork(n.ID, "rules") },
		} {
			break_()
			sleep(2 * fullLook)
			v := l.phase(e, "sandbox.a", plan.Running)
			if *v.PID != pid {
				l.t.Errorf("pid %d, was %d", *v.PID, pid)
			}
			l.nothingToDo(e)
		}
	})
}

func TestRebootBringsEverythingBack(t *testing.T) {
	withAgent(t, sandboxA("")+box("p", `operating_mode = "paused"`)+box("s", `operating_mode = "suspended"`), func(l *lab, e *Engine, k *keeper) {
		k.stop()
		addr := *l.view(e, "sandbox.a").AddressV4
		l.world.Reboot()
		*k = *l.keep(e)
		sleep(5 * time.Minute)
		want := map[string]plan.Phase{"sandbox.a": plan.Running, "sandbox.b": plan.Running, "sandbox.p": plan.Paused, "sandbox.s": plan.Stopped}
		for a, p := range l.phases(e) {
			if p != want[a] {
				l.t.Errorf("%s is %s, want %s", a, p, want[a])
			}
		}
		if got := *l.view(e, "sandbox.a").AddressV4; got != addr {
			l.t.Errorf("address %s, was %s", got, addr)
		}
		l.nothingToDo(e)
		l.tidy(e)
	})
}

func TestUnknownIsLeftAlone(t *testing.T) {
	withAgent(t, one(`lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		id := l.id(e, "sandbox.a")
		l.world.Unknown(id, "cannot read /proc")
		l.world.ClearOps()
		sleep(30 * time.Minute)
		v := l.view(e, "sandbox.a")
		if v.Phase != plan.Running || v.Conditions[0].Status != "Unknown" {
			l.t.Errorf("phase %s, Ready %+v", v.Phase, v.Conditions[0])
		}
		if ops := l.world.Ops(); len(ops) > 0 {
			l.t.Errorf("touched: %v", ops)
		}
		l.world.Unknown(id, "")
		sleep(2 * time.Minute)
		l.nothingToDo(e)
	})
}

// A stepped clock is noticed within seconds, although no timer rings.
func TestSteppedClock(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one(`lifetime { ttl = "10h" }`)})
		e := l.open("agent")
		var step atomic.Int64
		e.now = func() time.Time { return time.Now().Add(time.Duration(step.Load())) }
		l.apply(e, plan.Options{})
		k := l.keep(e)
		sleep(time.Minute)
		step.Store(int64(11 * time.Hour))
		sleep(2 * time.Second)
		l.phase(e, "sandbox.a", plan.Stopped)
		step.Store(0)
		sleep(time.Minute)
		if e.current("sandbox.a").Expired == nil {
			t.Error("a clock stepped back clears an expiry")
		}
		l.phase(e, "sandbox.a", plan.Stopped)
		k.stop()
		l.end(e)
	})
}

func TestDoomedInstanceIsRemovedLater(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		old := l.id(e, "sandbox.a")
		l.world.Fail(sim.OpRemove, old, errors.New("busy"), sim.Before, 3)
		l.main(one("security { user_namespace = false }"))
		_, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, nil)
		l.refused(err, Internal, "failed")
		if rec := e.current("sandbox.a"); !slices.Contains(rec.Doomed, old) || rec.Instance != nil {
			l.t.Errorf("doomed %v, instance %+v", rec.Doomed, rec.Instance)
		}
		sleep(10 * time.Minute)
		l.phase(e, "sandbox.a", plan.Running)
		l.nothingToDo(e)
		l.tidy(e)
	})
}

func TestAgentNoticesEventsWhileBusy(t *testing.T) {
	withAgent(t, "image \"base\" { source = \"host\" }\n"+box("a", "")+box("b", ""), func(l *lab, e *Engine, k *keeper) {
		l.world.Delay(sim.OpInspect, 20*time.Millisecond)
		for range 3 {
			l.world.KillMain(l.id(e, "sandbox.a"), 9)
			synctest.Wait()
			sleep(10 * time.Minute)
			l.phase(e, "sandbox.a", plan.Running)
		}
	})
}
