package reconcile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

// following runs an agent that follows the lab's directory, in virtual time.
func following(t *testing.T, text string, allow []string, f func(l *lab, e *Engine)) {
	t.Helper()
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": text})
		e := l.open("agent")
		stop := l.follow(e, allow)
		f(l, e)
		stop()
		l.end(e)
	})
}

func (l *lab) follow(e *Engine, allow []string) (stop func()) {
	l.t.Helper()
	k := l.keep(e)
	fol, err := newFollower(e, l.dir, config.Inputs{}, allow)
	if err != nil {
		l.t.Fatal(err)
	}
	e.following = fol
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() { defer close(over); fol.loop(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		<-over
		e.following = nil
		k.stop()
	})
	l.t.Cleanup(stop)
	return stop
}

func TestFollowAppliesOnceTwoLooksAgree(t *testing.T) {
	following(t, one(""), nil, func(l *lab, e *Engine) {
		began := time.Now()
		for e.current("sandbox.a") == nil && time.Since(began) < time.Minute {
			sleep(100 * time.Millisecond)
		}
		if d := time.Since(began); d < 2*time.Second || d > 5*time.Second {
			l.t.Errorf("applied after %s, want two looks 2 s apart", d)
		}
		sleep(time.Second)
		l.phase(e, "sandbox.a", plan.Running)
		l.world.ClearOps()
		serial := e.snapshot().Serial
		sleep(time.Hour)
		if ops := l.world.Ops(); len(ops) > 0 || e.snapshot().Serial != serial {
			l.t.Errorf("applied again: %v, serial %d (was %d)", ops, e.snapshot().Serial, serial)
		}
		// Files that keep moving are not applied until they rest.
		for i := range 10 {
			l.main(one("labels = { n = \"" + strings.Repeat("x", i+1) + "\" }"))
			sleep(time.Second)
			if n := e.current("sandbox.a").Spec.Labels["n"]; n != "" {
				l.t.Fatalf("applied %q while the files move", n)
			}
		}
		sleep(5 * time.Second)
		if n := e.current("sandbox.a").Spec.Labels["n"]; n != strings.Repeat("x", 10) {
			l.t.Errorf("labels %q", n)
		}
	})
}

func TestFollowReadsWhatFunctionsRead(t *testing.T) {
	following(t, one(`file "/x" { content = file("x.txt") }`), nil, func(l *lab, e *Engine) {
		write := func(s string) {
			if err := os.WriteFile(filepath.Join(l.dir, "x.txt"), []byte(s), 0o644); err != nil {
				l.t.Fatal(err)
			}
		}
		sleep(10 * time.Second)
		if e.current("sandbox.a") != nil {
			l.t.Error("applied though a file is missing")
		}
		for _, s := range []string{"one", "two"} {
			write(s)
			sleep(10 * time.Second)
			if rec := e.current("sandbox.a"); rec == nil || rec.Spec.Files["/x"].Content != s {
				l.t.Errorf("x.txt %q is not applied", s)
			}
		}
		l.phase(e, "sandbox.a", plan.Running)
	})
}

func TestFollowWaitsForGit(t *testing.T) {
	following(t, one(""), nil, func(l *lab, e *Engine) {
		git := filepath.Join(l.dir, ".git")
		if err := os.Mkdir(git, 0o755); err != nil {
			l.t.Fatal(err)
		}
		lock := filepath.Join(git, "index.lock")
		if err := os.WriteFile(lock, nil, 0o644); err != nil {
			l.t.Fatal(err)
		}
		sleep(time.Minute)
		if e.current("sandbox.a") != nil {
			l.t.Error("applied in the middle of a checkout")
		}
		if err := os.Remove(lock); err != nil {
			l.t.Fatal(err)
		}
		sleep(10 * time.Second)
		l.phase(e, "sandbox.a", plan.Running)
		if err := os.RemoveAll(git); err != nil {
			l.t.Fatal(err)
		}
	})
}

func TestBrokenConfigDeletesNothing(t *testing.T) {
	following(t, one(""), nil, func(l *lab, e *Engine) {
		sleep(10 * time.Second)
		for _, broken := range []string{`image "base" { source = "host"`, `sandbox "x" {}`, `sandbox "a" { imagee = 1 }`} {
			l.main(broken)
			sleep(time.Minute)
			l.phase(e, "sandbox.a", plan.Running)
		}
		l.files(nil) // no file is an error, not an empty configuration
		sleep(time.Minute)
		l.phase(e, "sandbox.a", plan.Running)
		l.main(one(""))
	})
}

const three = `
image "base" { source = "host" }
sandbox "s" {
  count   = 4
  image   = image.base
  command = ["sleep"]
}`

func TestPruneGuard(t *testing.T) {
	following(t, three, nil, func(l *lab, e *Engine) {
		sleep(10 * time.Second)
		l.main(strings.Replace(three, "= 4", "= 2", 1)) // half of four: allowed
		sleep(10 * time.Second)
		if n := len(l.phases(e)); n != 2 {
			l.t.Errorf("%d sandboxes, want 2", n)
		}
		for _, text := range []string{
			strings.Replace(three, "= 4", "= 0", 1),
			strings.Replace(three, `command = ["sleep"]`, "command = [\"sleep\"]\n security { user_namespace = false }", 1),
			strings.Replace(three, `command = ["sleep"]`, "command = [\"sleep\"]\n shutdown_policy = \"delete\"\n shutdown_time = \"1999-01-01T00:00:00Z\"", 1),
		} {
			l.main(text)
			before := e.snapshot()
			sleep(10 * time.Minute)
			after := e.snapshot()
			if len(after.Sandboxes) != 2 || after.Serial != before.Serial {
				l.t.Errorf("the guard lets this pass: %s", text)
			}
		}
		hist, err := e.history(l.source().Dir, 10)
		if err != nil || len(hist) != 3 || !strings.Contains(hist[0].Message, "max_destroy") {
			l.t.Errorf("history %v, %v", hist, err)
		}
		// pinfold apply from the directory is the way past it.
		l.main(strings.Replace(three, "= 4", "= 0", 1))
		sleep(time.Minute)
		l.apply(e, plan.Options{})
		if n := len(l.phases(e)); n != 0 {
			l.t.Errorf("%d sandboxes, want none", n)
		}
		l.main(three)
		sleep(10 * time.Second)
		if n := len(l.phases(e)); n != 4 {
			l.t.Errorf("%d sandboxes, want 4", n)
		}
	})
}

func TestAllowDestroy(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": three})
		e := l.open("agent")
		l.apply(e, plan.Options{})
		l.main(strings.Replace(three, "= 4", "= 0", 1))
		stop := l.follow(e, []string{l.source().Digest()})
		sleep(10 * time.Second)
		if n := len(l.phases(e)); n != 0 {
			t.Errorf("%d sandboxes, want none", n)
		}
		stop()
		l.end(e)
	})
}

func TestFollowRefusesOtherApplies(t *testing.T) {
	following(t, one(""), nil, func(l *lab, e *Engine) {
		sleep(10 * time.Second)
		l.apply(e, plan.Options{}) // the same files and values
		_, err := e.Apply(context.Background(), l.request(plan.Options{Destroy: true}), nil, nil)
		l.refused(err, Conflict, "follows "+l.source().Dir)
		other := l.request(plan.Options{})
		src := *other.Source
		src.Variables = map[string]config.Value{"x": {Text: "1"}}
		other.Source = &src
		_, err = e.Apply(context.Background(), other, nil, nil)
		l.refused(err, Conflict, "-override")
		if p, err := e.Plan(context.Background(), PlanRequest{Source: l.source(), Options: plan.Options{Destroy: true}}); err != nil || p.Plan.Empty() {
			l.t.Errorf("plan does not show: %v", err)
		}
		// -override holds until the directory says something else.
		r := l.request(plan.Options{Destroy: true})
		r.Override = true
		if _, err := e.Apply(context.Background(), r, nil, nil); err != nil {
			l.t.Fatal(err)
		}
		sleep(time.Hour)
		if n := len(l.phases(e)); n != 0 {
			l.t.Errorf("%d sandboxes although overridden", n)
		}
		l.main(one("labels = { a = \"b\" }"))
		sleep(10 * time.Second)
		l.phase(e, "sandbox.a", plan.Running)
		l.main(one(""))
		sleep(10 * time.Second)
		if v := l.phase(e, "sandbox.a", plan.Running); len(v.Labels) != 0 {
			l.t.Errorf("labels %v: what was overridden once is followed again", v.Labels)
		}
	})
}

func TestOverrideOutlivesTheAgent(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open("agent")
		stop := l.follow(e, nil)
		sleep(10 * time.Second)
		r := l.request(plan.Options{Destroy: true})
		r.Override = true
		if _, err := e.Apply(context.Background(), r, nil, nil); err != nil {
			t.Fatal(err)
		}
		stop()
		l.close(e)
		e = l.open("agent")
		stop = l.follow(e, nil)
		sleep(time.Hour)
		if n := len(l.phases(e)); n != 0 {
			t.Errorf("%d sandboxes after a restart of the agent", n)
		}
		stop()
		l.end(e)
	})
}

func TestFollowTriesAgainWithPauses(t *testing.T) {
	following(t, one(""), nil, func(l *lab, e *Engine) {
		l.world.Fail(sim.OpPrepareImage, "", errors.New("no such disk"), sim.Before, sim.Always)
		sleep(time.Hour)
		if n := len(l.world.Ops()); n < 5 || n > 40 {
			l.t.Errorf("%d tries in an hour", n)
		}
		l.world.ClearFaults()
		sleep(10 * time.Minute)
		l.phase(e, "sandbox.a", plan.Running)
		l.nothingToDo(e)
	})
}
