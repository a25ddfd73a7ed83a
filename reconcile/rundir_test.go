package reconcile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/host"
	"pinfold/runtime/sim"
	"pinfold/state"
)

// Records outlive the run dir: the process goes on, and what is lost is made again.
func TestRunDirClearedWhileASandboxRuns(t *testing.T) {
	for _, by := range []string{byApply, byAgent} {
		t.Run(by, func(t *testing.T) {
			inTime(t, func(t *testing.T) {
				l := newLab(t, map[string]string{"main.hcl": sandboxA("")})
				e := l.open(byApply)
				l.apply(e, plan.Options{})
				id, pid := l.id(e, "sandbox.a"), *l.view(e, "sandbox.a").PID
				l.close(e)
				l.world.Break(id, "rundir")

				e = l.open(by)
				if v := l.phase(e, "sandbox.a", plan.Running); *v.PID != pid || v.Conditions[0].Reason != "Degraded" {
					t.Errorf("pid %d, was %d; %+v", *v.PID, pid, v.Conditions[0])
				}
				if by == byAgent {
					k := l.keep(e)
					sleep(time.Second)
					k.stop()
				} else {
					l.apply(e, plan.Options{})
				}
				l.nothingToDo(e)
				l.close(e)

				e = l.open(byApply)
				if v := l.phase(e, "sandbox.a", plan.Running); *v.PID != pid || l.id(e, "sandbox.a") != id || v.Conditions[0].Reason != "Running" {
					t.Errorf("pid %d, was %d; %+v", *v.PID, pid, v.Conditions[0])
				}
				l.end(e)
			})
		})
	}
}

// What a created one waits at cannot be given back; it has run nothing yet.
func TestRunDirClearedBeforeAStart(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": sandboxA("")})
		e := l.open(byApply)
		l.apply(e, plan.Options{NoStart: true})
		id, pid := l.id(e, "sandbox.a"), *l.view(e, "sandbox.a").PID
		l.close(e)
		l.world.Break(id, "rundir")

		e = l.open(byApply)
		l.phase(e, "sandbox.a", plan.Created)
		l.act(e, "start", "sandbox.a")
		if v := l.phase(e, "sandbox.a", plan.Running); *v.PID == pid || l.id(e, "sandbox.a") != id {
			t.Errorf("pid %d, was %d; instance %s, was %s", *v.PID, pid, l.id(e, "sandbox.a"), id)
		}
		l.apply(e, plan.Options{ReleaseHolds: true})
		l.nothingToDo(e)
		l.tidy(e)
		l.end(e)
	})
}

// A state keeps to the run dir in which its sandboxes live.
func TestAnotherRunDirIsRefusedWhileSandboxesLive(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	p := l.process(byApply, &mortal{})
	l.apply(p.Engine, plan.Options{})
	dir := t.TempDir()
	first, other, link := filepath.Join(dir, "first"), filepath.Join(dir, "other"), filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	bind := func(runDir string, readOnly bool) error {
		return bindRunDir(p.store, OpenOptions{StateDir: l.state, RunDir: runDir, ReadOnly: readOnly})
	}
	allowed := func(runDir string, readOnly bool) {
		t.Helper()
		if err := bind(runDir, readOnly); err != nil {
			t.Error(err)
		}
	}
	allowed(first, false)
	allowed(filepath.Join(link, "first"), false)

	boot, err := host.BootID()
	if err != nil {
		t.Fatal(err)
	}
	rec, _ := p.sandbox("sandbox.a")
	rec.Instance.BootID = boot
	if err := p.Engine.commit((&write{}).sandbox(rec)); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{true, false} {
		err := bind(other, readOnly)
		l.refused(err, Invalid, "sandbox.a")
		l.refused(err, Invalid, "give -run-dir "+first)
		if _, err := os.Lstat(other); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the refused run dir was made: %v", err)
		}
		allowed(first, readOnly)
	}

	// After a reboot, or a stop, nothing lives.
	rec, _ = p.sandbox("sandbox.a")
	rec.Instance.BootID = "another boot"
	if err := p.Engine.commit((&write{}).sandbox(rec)); err != nil {
		t.Fatal(err)
	}
	allowed(other, true)
	if have := p.meta(metaRunDir); have != first {
		t.Errorf("a look has bound the state to %s", have)
	}
	allowed(other, false)
	if have := p.meta(metaRunDir); have != other {
		t.Errorf("the state is bound to %s", have)
	}
	l.end(p.Engine)
}

// Without its state.db a state dir is refused, with words, by whoever comes, while
// anything of it is there; nothing is made in it.
func TestStateFileMissingBesideInstances(t *testing.T) {
	l := &lab{t: t}
	dir, runDir := t.TempDir(), filepath.Join(t.TempDir(), "run")
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("lineage", "0123-4567\n")
	if err := bereft(dir); err != nil {
		t.Errorf("an empty state dir: %v", err)
	}
	put("instances/0123456789ab/instance.json", `{"instance":{"mark":{"address":"sandbox.a"}}}`)
	put("instances/ba9876543210/instance.json", `damaged`)
	for _, readOnly := range []bool{true, false} {
		_, err := Open(context.Background(), OpenOptions{StateDir: dir, RunDir: runDir, ReadOnly: readOnly, Verb: "list"})
		for _, words := range []string{filepath.Join(dir, "state.db") + " is missing", "ba9876543210, sandbox.a", "0123-4567", "\n'pinfold state rebuild' makes", "there is no sound backup in "} {
			l.refused(err, Invalid, words)
		}
	}
	l.refused(RunAgent(context.Background(), AgentOptions{OpenOptions: OpenOptions{StateDir: dir, RunDir: runDir}}), Invalid, "is missing")
	for _, path := range []string{filepath.Join(dir, "state.db"), runDir} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made: %v", path, err)
		}
	}
	v, err := Verify(context.Background(), OpenOptions{StateDir: dir, RunDir: runDir, Verb: "state verify"}, "")
	if err != nil || v.Sound || v.Backup != nil || v.Path != filepath.Join(dir, "state.db") || len(v.Problems) != 1 || !strings.HasPrefix(v.Problems[0], "it is missing, but instances of ") || !strings.HasPrefix(v.Advice, "'pinfold state rebuild' ") {
		t.Errorf("verify: %+v, %v", v, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "instances")); err != nil {
		t.Fatal(err)
	}
	put("volumes/0123456789ab/file", "data")
	l.refused(bereft(dir), Invalid, "volumes")
}

// The file lineage says whose the instances are: where it and state.db disagree,
// nothing is done, and verify tells.
func TestLineageAtOdds(t *testing.T) {
	l := &lab{t: t}
	ctx := context.Background()
	dir, runDir := t.TempDir(), filepath.Join(t.TempDir(), "run")
	s, err := state.Open(ctx, state.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	own := s.Lineage()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	instance := filepath.Join(dir, "instances", "0123456789ab")
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "lineage"), []byte("another\n"), 0o600), os.MkdirAll(instance, 0o700)); err != nil {
		t.Fatal(err)
	}
	o := OpenOptions{StateDir: dir, RunDir: runDir, Verb: "list"}
	for _, readOnly := range []bool{true, false} {
		o.ReadOnly = readOnly
		_, err := Open(ctx, o)
		for _, words := range []string{
			dir + "/lineage and " + dir + `/state.db disagree: the one says "another", the other is lineage ` + own + "; nothing was changed\n",
			"echo " + own + " >" + dir + "/lineage\n", "'pinfold state restore FILE'",
		} {
			l.refused(err, Invalid, words)
		}
	}
	if v, err := Verify(ctx, o, ""); err != nil || v.Sound || len(v.Problems) != 1 || !strings.Contains(v.Problems[0], "disagree") || !strings.Contains(v.Advice, "echo "+own) {
		t.Errorf("%+v, %v", v, err)
	}
	if err := os.Remove(instance); err != nil { // nothing is at stake
		t.Fatal(err)
	}
	if v, err := Verify(ctx, o, ""); err != nil || !v.Sound || v.Advice != "" {
		t.Errorf("%+v, %v", v, err)
	}
}

// An agent whose state.db somebody took away serves nobody and looks after nothing,
// and says so, until the file is back.
func TestStateFileTakenFromAnAgent(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	c, e, runDir, stop := l.serve()
	l.apply(e, plan.Options{})
	path, aside := filepath.Join(l.state, "state.db"), filepath.Join(l.state, "aside")
	if err := os.Rename(path, aside); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	_, err := c.List(ctx)
	l.refused(err, Internal, path)
	_, err = c.Act(ctx, ActRequest{Verb: "stop", Address: "sandbox.a"})
	l.refused(err, Internal, state.ErrGone.Error())
	again, err := Open(ctx, OpenOptions{RunDir: runDir, StateDir: l.state}) // it tells who it is, and verifies
	if err != nil {
		t.Fatal(err)
	}
	_, err = again.List(ctx)
	l.refused(errors.Join(err, again.Close()), Internal, state.ErrGone.Error())
	if err := newAgent(e).pass(ctx); !errors.Is(err, state.ErrGone) {
		t.Errorf("a look of the agent: %v", err)
	}
	if err := os.Rename(aside, path); err != nil {
		t.Fatal(err)
	}
	if list, err := c.List(ctx); err != nil || list.Sandboxes[0].Phase != plan.Running || list.Sandboxes[0].Hold != nil {
		t.Errorf("the file is back: %+v, %v", list, err)
	}
	stop()
	l.end(e)
}

func TestSocketRemovedUnderAnAgent(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	c, e, runDir, stop := l.serve()
	for range 2 {
		if err := os.RemoveAll(runDir); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the socket is back", func() bool { _, err := c.Status(context.Background()); return err == nil })
		if st, err := os.Stat(filepath.Join(runDir, SocketName)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("socket %v, %v", st, err)
		}
	}
	stop()
	if left, err := filepath.Glob(filepath.Join(runDir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left in the run dir: %v, %v", left, err)
	}
	l.end(e)
}

// A command, or a second agent, that waits for the state of an agent which is just
// starting goes through its socket as soon as there is one.
func TestOpenWhileAnAgentStarts(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	runDir := t.TempDir()
	e := l.open("agent")
	e.info.StateDir = l.state
	waiting, opened := make(chan string, 2), make(chan error, 2)
	options := func() OpenOptions {
		return OpenOptions{RunDir: runDir, StateDir: l.state, LockWait: 20 * time.Second, Verb: "list", ReadOnly: true, Waiting: func(text string) { waiting <- text }}
	}
	go func() {
		s, err := Open(context.Background(), options())
		if err == nil {
			if _, ok := s.(*Client); !ok {
				err = errors.New("it is not the agent's")
			}
			err = errors.Join(err, s.Close())
		}
		opened <- err
	}()
	second := make(chan error, 1)
	go func() {
		o := options()
		o.ReadOnly = false
		second <- RunAgent(context.Background(), AgentOptions{OpenOptions: o})
	}()
	for range 2 {
		if text := <-waiting; !strings.Contains(text, "waiting for test (pid ") {
			t.Errorf("says %q", text)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() {
		over <- e.serveAgent(ctx, AgentOptions{OpenOptions: OpenOptions{RunDir: runDir, StateDir: l.state}})
	}()
	if err := <-opened; err != nil {
		t.Error(err)
	}
	l.refused(<-second, Locked, "another agent already serves "+runDir)
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
	e.nudge = nil
	l.end(e)
}

// A verb that fails leaves hold and lease as they were.
func TestAVerbThatFailsLeavesNoHold(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open(byApply)
		l.apply(e, plan.Options{})
		act := func(verb string) error {
			_, err := e.Act(context.Background(), ActRequest{Verb: verb, Address: "sandbox.a"})
			return err
		}
		for verb, op := range map[string]sim.Op{"stop": sim.OpStop, "pause": sim.OpPause} {
			l.world.Fail(op, "", errors.New("no luck"), sim.Before, sim.Always)
			l.refused(act(verb), Internal, "no luck")
			l.world.ClearFaults()
			if v := l.phase(e, "sandbox.a", plan.Running); v.Hold != nil {
				t.Errorf("after a failed %s held %+v", verb, v.Hold)
			}
			if !slices.Contains(l.events(e, "sandbox.a"), "undone/"+verb+" failed/operator") {
				t.Errorf("events %v", l.events(e, "sandbox.a"))
			}
		}
		l.act(e, "pause", "sandbox.a")
		l.world.Fail(sim.OpResume, "", errors.New("no luck"), sim.Before, sim.Always)
		l.refused(act("resume"), Internal, "no luck")
		l.world.ClearFaults()
		if v := l.phase(e, "sandbox.a", plan.Paused); v.Hold == nil || v.Hold.Mode != "paused" {
			t.Errorf("after a failed resume held %+v", v.Hold)
		}
		l.act(e, "resume", "sandbox.a")
		l.act(e, "stop", "sandbox.a")
		l.world.Fail(sim.OpCreate, "", errors.New("no luck"), sim.Before, sim.Always)
		l.refused(act("start"), Internal, "no luck")
		l.world.ClearFaults()
		if v := l.phase(e, "sandbox.a", plan.Stopped); v.Hold == nil || v.Hold.Mode != "suspended" {
			t.Errorf("after a failed start held %+v", v.Hold)
		}
		l.end(e)
	})
}

// A verb that asks for what is declared releases the hold; it sets none.
func TestReleasingAHoldIsToldAsThat(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open(byApply)
		l.apply(e, plan.Options{})
		for _, verb := range []string{"stop", "start", "pause", "resume"} {
			l.act(e, verb, "sandbox.a")
		}
		var told []string
		for _, ev := range l.events(e, "sandbox.a") {
			if strings.HasPrefix(ev, "held/") || strings.HasPrefix(ev, "release/") {
				told = append(told, ev)
			}
		}
		if want := []string{"held/suspended/operator", "release/operator/operator", "held/paused/operator", "release/operator/operator"}; !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
		l.end(e)
	})
}

// What is dying is waited for within a bound; then it is an error, and it is tried
// again.
func TestDyingIsBounded(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open(byApply)
		l.apply(e, plan.Options{})
		id := l.id(e, "sandbox.a")
		l.world.Stick(id)
		l.world.Kill(id)
		if !l.plan(e).Plan.Empty() {
			t.Error("a plan does not wait for what is dying")
		}
		for range 2 {
			res, err := l.applyFails(e, plan.Options{})
			if len(res.Failures) != 1 || res.Failures[0].Address != "sandbox.a" || !strings.Contains(err.Diagnostics[0].Detail, "processes of sandbox.a do not end") {
				t.Errorf("failures %+v, %v", res.Failures, err.Diagnostics)
			}
		}
		l.world.Unstick(id)
		l.apply(e, plan.Options{})
		l.phase(e, "sandbox.a", plan.Running)
		l.tidy(e)
		l.end(e)
	})
}

func TestAnAgentComplainsOfWhatDoesNotDie(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		id := l.id(e, "sandbox.a")
		l.world.Stick(id)
		l.world.Kill(id)
		sleep(time.Minute)
		rec := e.current("sandbox.a")
		if !strings.Contains(rec.Retry.Error, "processes of sandbox.a do not end") {
			l.t.Errorf("retry %+v", rec.Retry)
		}
		_, before := k.looks()
		sleep(time.Hour)
		if _, after := k.looks(); after-before > int(time.Hour/soonLook)+60 {
			l.t.Errorf("%d looks in an hour at one that does not die", after-before)
		}
		l.world.Unstick(id)
		sleep(10 * time.Minute)
		l.phase(e, "sandbox.a", plan.Running)
		l.tidy(e)
	})
}

// A sandbox that was to go and is still there is a failure, whatever kept it.
func TestADestroyThatLeavesSomethingFails(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open(byApply)
		l.apply(e, plan.Options{})
		id := l.id(e, "sandbox.a")
		l.world.Unknown(id, "its record cannot be read")
		want := "it is still there: it could not be looked at (its record cannot be read); nothing is done to it"
		_, err := l.applyFails(e, plan.Options{Destroy: true})
		if err.Diagnostics[0].Detail != want || err.Diagnostics[0].Address != "sandbox.a" {
			t.Errorf("destroy: %+v", err.Diagnostics)
		}
		l.main("image \"base\" { source = \"host\" }\n")
		if _, err = l.applyFails(e, plan.Options{}); err.Diagnostics[0].Detail != want {
			t.Errorf("its block removed: %+v", err.Diagnostics)
		}
		// What was asked for is done all the same, and what is no part of it is none of its failures.
		l.main(one("") + box("b", ""))
		l.apply(e, plan.Options{})
		l.apply(e, plan.Options{Destroy: true, Targets: []string{"sandbox.b"}})
		l.world.Unknown(id, "")
		l.end(e)
	})
}

func TestAFailedResumeIsStillExpired(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("lifetime { ttl = \"1h\" }")})
		e := l.open(byApply)
		l.apply(e, plan.Options{})
		l.act(e, "pause", "sandbox.a")
		rec, _ := e.sandbox("sandbox.a")
		rec.Expired = &plan.Expired{Deadline: e.now(), Reason: "TTLExpiry", At: e.now(), Done: true, Paused: true}
		rec.Hold.By, rec.Lease.Until = "expiry", time.Time{}
		if err := e.commit((&write{}).sandbox(rec)); err != nil {
			t.Fatal(err)
		}
		before := e.current("sandbox.a")
		l.world.Fail(sim.OpResume, "", errors.New("no luck"), sim.Before, sim.Always)
		timeout := config.Duration(time.Hour)
		resume := ActRequest{Verb: "resume", Address: "sandbox.a", Timeout: &timeout}
		_, err := e.Act(context.Background(), resume)
		l.refused(err, Internal, "no luck")
		now := e.current("sandbox.a")
		if now.Expired == nil || now.Hold == nil || now.Hold.By != "expiry" || now.Lease != before.Lease {
			t.Errorf("expired %+v, hold %+v, lease %+v; it was %+v", now.Expired, now.Hold, now.Lease, before.Lease)
		}
		l.world.ClearFaults()
		if _, err := e.Act(context.Background(), resume); err != nil {
			t.Error(err)
		}
		if now := e.current("sandbox.a"); now.Expired != nil || now.Hold != nil || now.Lease.Until.IsZero() {
			t.Errorf("resumed: expired %+v, hold %+v, lease %+v", now.Expired, now.Hold, now.Lease)
		}
		l.end(e)
	})
}
