package reconcile

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

func (l *lab) mv(e Service, from, to string) *StateMoveResult {
	l.t.Helper()
	res, err := e.StateMove(context.Background(), StateMoveRequest{From: from, To: to})
	if err != nil {
		l.t.Fatalf("state mv %s %s: %v", from, to, err)
	}
	return res
}

func (l *lab) rm(e Service, addresses ...string) *StateRemoveResult {
	l.t.Helper()
	res, err := e.StateRemove(context.Background(), StateRemoveRequest{Addresses: addresses})
	if err != nil {
		l.t.Fatalf("state rm %v: %v", addresses, err)
	}
	return res
}

// rename is a configuration with other names in it.
func rename(text string, pairs ...string) string { return strings.NewReplacer(pairs...).Replace(text) }

var otherNames = []string{
	`sandbox "a"`, `sandbox "one"`, `sandbox.a`, `sandbox.one`, `network "n"`, `network "net"`, `network.n`, `network.net`,
	`volume "data"`, `volume "store"`, `volume.data`, `volume.store`, `image "base"`, `image "root"`, `image.base`, `image.root`,
}

// Renamed records are the same sandboxes: with files that call them so there is nothing
// to do, the host is not touched, and what the next process reads is what this one has.
func TestStateMove(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.act(e, "pause", "sandbox.a")
	before, uid, serial := l.view(e, "sandbox.a"), e.current("sandbox.a").UID, e.snapshot().Serial
	generation := before.Generation
	l.world.ClearOps()
	for from, to := range map[string]string{"sandbox.a": "sandbox.one", "network.n": "network.net", "volume.data": "volume.store", "image.base": "image.root"} {
		res := l.mv(e, from, to)
		if len(res.Moved) != 1 || res.Moved[0].From != from || res.Moved[0].To != to || res.Serial <= serial {
			t.Errorf("%s: %+v", from, res)
		}
		serial = res.Serial
	}
	e.background.Wait() // notes are no work on the host, but are written
	if ops := l.writes(); len(ops) > 0 {
		t.Errorf("moving records touched the host: %v", ops)
	}
	l.main(rename(twoSandboxes, otherNames...))
	l.nothingToDo(e)
	l.tidy(e)
	after := l.view(e, "sandbox.one")
	if *after.PID != *before.PID || *after.InstanceID != *before.InstanceID || *after.AddressV4 != *before.AddressV4 ||
		after.Ports["http"] != before.Ports["http"] || after.Hold == nil || after.Generation != generation || e.current("sandbox.one").UID != uid {
		t.Errorf("it is %+v, was %+v", after, before)
	}
	got := l.events(e, "sandbox.one")
	if !slices.Contains(got, "move/moved from sandbox.a/operator") || !hasPrefix(got, "create") && !hasPrefix(got, "created") && len(got) < 3 {
		t.Errorf("its history is %v", got)
	}
	if got[0] == "move/moved from sandbox.a/operator" {
		t.Errorf("its history begins with the move: %v", got)
	}
	l.close(e)

	e = l.open("apply")
	l.nothingToDo(e)
	l.act(e, "resume", "sandbox.one")
	l.act(e, "stop", "sandbox.one")
	l.act(e, "start", "sandbox.one")
	if got := l.world.Spec(l.id(e, "sandbox.one")); got.Mark.Address != "sandbox.one" || got.Mark.UID != uid {
		t.Errorf("started anew it bears %+v", got.Mark)
	}
	l.nothingToDo(e)
	l.end(e)
}

// A note that was rewritten tells a rebuild of the new name, though the instance's mark
// still has the old one.
func TestRebuildAfterAMove(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		l.mv(e, "sandbox.a", "sandbox.one")
		l.mv(e, "network.n", "network.net")
		id, lineage := l.id(e, "sandbox.one"), e.store.Lineage()
		l.close(e)
		l.lose(nil)
		l.rebuild(lineage, false)
		e = l.open("apply")
		if got := l.id(e, "sandbox.one"); got != id {
			t.Errorf("sandbox.one is %s, was %s", got, id)
		}
		if _, ok := e.network("network.net"); !ok {
			t.Errorf("networks are %v", sortedKeys(e.snapshot().Networks))
		}
		l.main(rename(twoSandboxes, `sandbox "a"`, `sandbox "one"`, `sandbox.a`, `sandbox.one`, `network "n"`, `network "net"`, `network.n`, `network.net`))
		l.apply(e, plan.Options{})
		if got := l.id(e, "sandbox.one"); got != id {
			t.Errorf("after apply sandbox.one is %s, was %s", got, id)
		}
		l.end(e)
	})
}

func TestStateMoveRefusals(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	serial := e.snapshot().Serial
	for _, tt := range []struct {
		from, to string
		kind     ErrorKind
		words    string
	}{
		{"sandbox.a", "sandbox.b", Conflict, "sandbox.b is on record already"},
		{"sandbox.x", "sandbox.y", NotFound, "nothing is recorded at sandbox.x"},
		{"module.m", "module.n", NotFound, "nothing is recorded at module.m"},
		{"sandbox.a", "network.a", Invalid, "a sandbox cannot become a network"},
		{"sandbox.a", "module.m", Invalid, "one is a module"},
		{"sandbox.a", "sandbox.a", Invalid, "to itself"},
		{"a", "sandbox.b", Invalid, `"a" is not an address`},
		{"sandbox.a", "sandbox.b[", Invalid, "is not an address"},
	} {
		_, err := e.StateMove(context.Background(), StateMoveRequest{From: tt.from, To: tt.to})
		l.refused(err, tt.kind, tt.words)
	}
	res, err := e.StateMove(context.Background(), StateMoveRequest{From: "sandbox.a", To: "module.m.sandbox.a", DryRun: true})
	if err != nil || len(res.Moved) != 1 || !res.DryRun || res.Moved[0].ID != l.id(e, "sandbox.a") {
		t.Errorf("%+v, %v", res, err)
	}
	// Whoever is at it is waited for, and no longer than was said.
	release, _ := e.lanes.try("sandbox.a", "stop", byOperator)
	_, err = e.StateMove(context.Background(), StateMoveRequest{From: "sandbox.a", To: "sandbox.x", LockWait: NoLockWait})
	l.refused(err, Conflict, "operation in progress: stop")
	release()
	if got := e.snapshot().Serial; got != serial || e.current("sandbox.a") == nil {
		t.Errorf("serial %d, was %d", got, serial)
	}

	// A whole block is not put beside what has the address of a whole block already.
	l.mv(e, "sandbox.a", `sandbox.w["x"]`)
	_, err = e.StateMove(context.Background(), StateMoveRequest{From: "sandbox.w", To: "sandbox.b"})
	l.refused(err, Conflict, "sandbox.b is on record already")
	if e.current(`sandbox.w["x"]`) == nil {
		t.Error("it was moved")
	}
	l.end(e)
}

// A commit that fails leaves everything where it was.
func TestStateMoveThatCannotBeRecorded(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	m := &mortal{}
	p := l.process("apply", m)
	l.apply(p.Engine, plan.Options{})
	m.mu.Lock()
	m.dieAt = m.countN + 1
	m.mu.Unlock()
	if _, err := p.StateMove(context.Background(), StateMoveRequest{From: "sandbox.a", To: "sandbox.x"}); err == nil {
		t.Error("it succeeds")
	}
	if p.current("sandbox.a") == nil || p.current("sandbox.x") != nil {
		t.Error("memory is ahead of the file")
	}
	p.bury(t)
	e := l.open("apply")
	l.nothingToDo(e)
	l.end(e)
}

// An agent goes on with what it does for a sandbox that gets another name: connections
// that stand go on, its port is served, its uses are known, its end is noticed, its
// deadline acts; the sandbox that had traded names with it is not mistaken for it.
func TestAgentFollowsAMove(t *testing.T) {
	text := command(`"sim", "serve=7"`, portConfig+`lifetime {
    idle_timeout     = "5m"
    resume_on_access = true
  }
  health {
    tcp      = 7
    interval = "5s"
    retries  = 2
  }`) + "sandbox \"other\" {\n  image = image.base\n  command = [\"sleep\", \"inf\"]\n}\n"
	withAgent(t, text, func(l *lab, e *Engine, k *keeper) {
		at := netip.MustParseAddrPort("127.0.0.1:4007")
		c, err := l.world.Connect(at, "tcp")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		speak(t, c, "before")
		sleep(4 * time.Minute)
		speak(t, c, "used")
		pid := *l.view(e, "sandbox.a").PID
		l.mv(e, "sandbox.a", "sandbox.tmp")
		l.mv(e, "sandbox.other", "sandbox.a")
		l.mv(e, "sandbox.tmp", "sandbox.other")
		sleep(2 * time.Minute)
		v := l.phase(e, "sandbox.other", plan.Running) // used four minutes after its start, two ago
		if *v.PID != pid || condition(v, "Ready") != "True/Running" {
			t.Errorf("it is %+v", v)
		}
		speak(t, c, "after")
		again, err := l.world.Connect(at, "tcp")
		if err != nil {
			t.Fatal(err)
		}
		speak(t, again, "and a new one")
		again.Close()
		sleep(6 * time.Minute)
		v = l.phase(e, "sandbox.other", plan.Paused)
		if v.Hold == nil || v.Hold.By != byIdle {
			t.Errorf("held %+v", v.Hold)
		}
		l.phase(e, "sandbox.a", plan.Running)
		speak(t, c, "wakes")
		sleep(time.Second)
		l.phase(e, "sandbox.other", plan.Running)
		all, _ := k.looks()
		l.world.KillMain(l.id(e, "sandbox.other"), 9)
		sleep(200 * time.Millisecond)
		if now, _ := k.looks(); now != all {
			t.Error("its end was found by a look at everything")
		}
		if rec := e.current("sandbox.other"); rec.Instance.StoppedBy != plan.ByKilled && rec.Instance.PID == pid {
			t.Errorf("its end was not noticed: %+v", rec.Instance)
		}
		sleep(time.Minute)
		l.phase(e, "sandbox.other", plan.Running)
		l.mv(e, "sandbox.a", "sandbox.x")
		l.mv(e, "sandbox.other", "sandbox.a")
		l.mv(e, "sandbox.x", "sandbox.other")
	})
}

// A session lives on over a move, and a pause by the new name closes it.
func TestSessionOverAMove(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		l.world.Answer(l.id(e, "sandbox.a"), "after=1h")
		s, err := l.exec(e, "wait")
		if err != nil {
			t.Fatal(err)
		}
		l.mv(e, "sandbox.a", "sandbox.b")
		done := waitFor(s)
		l.act(e, "pause", "sandbox.b")
		l.refused((<-done).err, Conflict, "sandbox.b was paused")
		l.act(e, "resume", "sandbox.b")
		if e.activity.read("sandbox.b").Busy {
			t.Error("the closed session still counts as a use")
		}
		l.mv(e, "sandbox.b", "sandbox.a")
	})
}

// An intent that a dead process left open finds its sandbox wherever it is now.
func TestIntentFollowsAMove(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	id := l.id(e, "sandbox.a")
	in, err := e.as(byApply).begin(intent(opCreate, e.current("sandbox.a")), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = in
	l.mv(e, "sandbox.a", "sandbox.b")
	l.close(e)
	e = l.open("apply")
	if got := l.phase(e, "sandbox.b", plan.Running); *got.InstanceID != id {
		t.Errorf("it is %s, was %s", *got.InstanceID, id)
	}
	l.mv(e, "sandbox.b", "sandbox.a")
	l.tidy(e)
	l.end(e)
}

// What is forgotten stays on the host as it is, for ever: no look, no deadline, no gc and
// no destroy of others touches it; what it has is given to nobody else.
func TestStateRemove(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(several)
		e := l.open("agent")
		l.apply(e, plan.Options{})
		k := l.keep(e)
		rec := e.current("sandbox.up")
		id := rec.Instance.ID
		n, _ := e.network("network.n")
		data, _ := e.volume("volume.data")
		ctx := context.Background()
		_, err := e.StateRemove(ctx, StateRemoveRequest{Addresses: []string{"network.n"}})
		l.refused(err, Conflict, "sandbox.up, which stays on record, uses it")
		_, err = e.StateRemove(ctx, StateRemoveRequest{Addresses: []string{"sandbox.nobody"}})
		l.refused(err, NotFound, "nothing is recorded at sandbox.nobody")
		_, err = e.StateRemove(ctx, StateRemoveRequest{Addresses: []string{"sandbox.up", "up"}})
		l.refused(err, Invalid, "is not an address")
		l.world.ClearOps()
		would, err := e.StateRemove(ctx, StateRemoveRequest{Addresses: []string{"sandbox.up"}, DryRun: true})
		if err != nil || len(would.Removed) != 1 || would.Removed[0].ID != id || len(l.writes()) > 0 || e.current("sandbox.up") == nil {
			t.Errorf("dry run: %+v, %v, %v", would, err, l.writes())
		}
		res := l.rm(e, "sandbox.up")
		if len(res.Removed) != 1 || res.Serial <= would.Serial {
			t.Errorf("%+v after %+v", res, would)
		}
		// Its ttl passes, its process ends, and nobody does anything.
		untouched := func(when string) {
			t.Helper()
			s, there, err := e.host.Inspect(ctx, id)
			if err != nil || !there || !s.Alive || !s.Released || len(s.Missing) > 0 {
				t.Errorf("%s it is %+v, %v, %v", when, s, there, err)
			}
		}
		sleep(24 * time.Hour)
		untouched("a day later")
		if len(l.events(e, "sandbox.up")) == 0 || !slices.Contains(l.events(e, "sandbox.up"), "forget/state rm/operator") {
			t.Errorf("its history is %v", l.events(e, "sandbox.up"))
		}
		for _, o := range l.gc(e, GCRequest{}) {
			if o.Action != OrphanKept {
				t.Errorf("gc tells of %+v", o)
			}
			_, err := e.GC(ctx, GCRequest{Remove: []string{o.ID}})
			l.refused(err, Invalid, "released")
			_, err = e.GC(ctx, GCRequest{Adopt: []string{id}})
			l.refused(err, Conflict, "given up")
		}
		// Declared still, it is made anew, beside it.
		l.apply(e, plan.Options{})
		now := e.current("sandbox.up")
		if now.Instance.ID == id || now.UID == rec.UID || now.IDs == rec.IDs || now.Net.Address == rec.Net.Address || now.Ports["http"].Host == rec.Ports["http"].Host || now.Claim["work"] == rec.Claim["work"] {
			t.Errorf("the new one has %+v %+v %+v", now.IDs, now.Net, now.Ports)
		}
		untouched("beside a new one")
		// Everything else is destroyed; what it stands on stays.
		l.destroy(e)
		untouched("after destroy")
		o, err := e.host.Observe(ctx)
		if err != nil || !o.Networks[n.ID].Exists || !o.Volumes[data.ID] || !o.Volumes[rec.Claim["work"]] || o.Volumes[now.Claim["work"]] {
			t.Errorf("left are %+v, %v", o, err)
		}
		for _, x := range l.gc(e, GCRequest{}) {
			if x.Action != OrphanKept || !x.Released {
				t.Errorf("gc tells of %+v", x)
			}
		}
		// A new network does not get its range.
		l.main("network \"m\" { }\n")
		l.apply(e, plan.Options{})
		if m, _ := e.network("network.m"); m.CIDR.Overlaps(n.CIDR) {
			t.Errorf("another network has %s too", m.CIDR)
		}
		untouched("beside a new network")
		l.destroy(e)
		k.stop()
		l.world.Kill(id)
		l.discard(e, id)
		l.close(e)
		l.clean()
	})
}

// discard takes from the host what a test left there on purpose.
func (l *lab) discard(e *Engine, instances ...string) {
	l.t.Helper()
	ctx := context.Background()
	for _, id := range instances {
		if err := e.host.Remove(ctx, id); err != nil {
			l.t.Error(err)
		}
	}
	var found []string
	for _, o := range l.gc(e, GCRequest{}) {
		if o.Action == OrphanReported {
			found = append(found, o.ID)
		}
	}
	l.gc(e, GCRequest{Remove: found})
}

// A mark that cannot be made leaves the record; of what failed nothing stays.
func TestStateRemoveThatFails(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		id := l.id(e, "sandbox.a")
		for _, when := range []sim.When{sim.Before, sim.After} {
			l.world.Fail(sim.OpRelease, id, errors.New("the disk is full"), when, 1)
			_, err := e.StateRemove(context.Background(), StateRemoveRequest{Addresses: []string{"sandbox.a"}})
			l.refused(err, Internal, "the disk is full")
			if s, _, err := e.host.Inspect(context.Background(), id); err != nil || s.Released || e.current("sandbox.a") == nil {
				t.Errorf("it is %+v, %v", s, err)
			}
			l.tidy(e)
		}
		l.world.ClearFaults()
		sleep(time.Hour)
		l.apply(e, plan.Options{})
		l.end(e)
	})
}

// Through the agent's socket the same is said and done.
func TestStateCommandsThroughTheSocket(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	c, e, _, stop := l.serve()
	if _, err := c.Apply(context.Background(), l.request(plan.Options{}), nil, nil); err != nil {
		t.Fatal(err)
	}
	id := l.id(e, "sandbox.a")
	if res := l.mv(c, "sandbox.a", "sandbox.x"); len(res.Moved) != 1 || res.Moved[0].ID != id || l.id(e, "sandbox.x") != id {
		t.Errorf("%+v", res)
	}
	_, err := c.StateMove(context.Background(), StateMoveRequest{From: "sandbox.x", To: "sandbox.b"})
	l.refused(err, Conflict, "sandbox.b is on record already")
	if res := l.rm(c, "sandbox.x"); len(res.Removed) != 1 || e.current("sandbox.x") != nil {
		t.Errorf("%+v", res)
	}
	l.destroy(e)
	l.discard(e, id)
	stop()
	l.end(e)
}

// What refresh-only finds is told, with its exit code, for as long as it is not on
// record; what was recorded is no news, though it has still to be mended.
func TestRefreshOnlyIsDoneOnce(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		refresh := func() *plan.Plan {
			t.Helper()
			res, err := e.Plan(context.Background(), PlanRequest{Source: l.source(), Options: plan.Options{RefreshOnly: true}})
			if err != nil {
				t.Fatal(err)
			}
			return res.Plan
		}
		if p := refresh(); len(p.Refresh) > 0 || len(p.Drift) > 0 {
			t.Errorf("in order: %q, %v", p.Refresh, p.Drift)
		}
		n, _ := e.network("network.n")
		l.world.KillMain(l.id(e, "sandbox.a"), 9)
		l.world.Break(l.id(e, "sandbox.b"), "link")
		l.world.BreakNetwork(n.ID, "rules")
		for round, want := range [][]string{{"sandbox.a", "sandbox.b"}, nil} {
			p := refresh()
			if !slices.Equal(p.Refresh, want) || len(p.Drift) != 3 || len(p.Changes) > 0 {
				t.Errorf("round %d: to be recorded %q, want %q; drift %v", round, p.Refresh, want, p.Drift)
			}
			l.apply(e, plan.Options{RefreshOnly: true})
		}
		l.apply(e, plan.Options{})
		l.nothingToDo(e)
		// What was repaired is recorded as it is now.
		if p := refresh(); len(p.Refresh) > 0 || len(p.Drift) > 0 {
			t.Errorf("mended: %q, %v", p.Refresh, p.Drift)
		}
		l.end(e)
	})
}
