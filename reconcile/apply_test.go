package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/runtime/sim"
)

func TestBrokenLaneStopsOnlyItsDependants(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": `
image "base" { source = "host" }
network "n" {}
network "m" {}
sandbox "bad" {
  image   = image.base
  command = ["sim", "exec-fails"]
  network { name = network.n }
}
sandbox "needs" {
  image   = image.base
  command = ["sleep"]
  env     = { PEER = sandbox.bad.address }
  network { name = network.n }
}
sandbox "needs2" {
  image   = image.base
  command = ["sleep"]
  env     = { PEER = sandbox.needs.address }
  network { name = network.n }
}
sandbox "good" {
  image   = image.base
  command = ["sleep"]
  network { name = network.m }
}
`})
	e := l.open("apply")
	var progress []string
	res, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, func(p Progress) {
		progress = append(progress, p.Address+" "+p.State)
	})
	l.refused(err, Internal, "3 of the planned changes failed")
	var got []string
	for _, f := range res.Failures {
		got = append(got, fmt.Sprintf("%s %s %v", f.Address, f.Action, f.Skipped))
	}
	slices.Sort(got)
	if want := []string{"sandbox.bad create false", "sandbox.needs create true", "sandbox.needs2 create true"}; !slices.Equal(got, want) {
		t.Errorf("failures %v, want %v", got, want)
	}
	if res.Applied.Add != 4 {
		t.Errorf("applied %+v, want 4 added", res.Applied)
	}
	for _, want := range []string{"sandbox.bad started", "sandbox.bad failed", "sandbox.needs skipped", "sandbox.good done"} {
		if !slices.Contains(progress, want) {
			t.Errorf("progress %v lacks %q", progress, want)
		}
	}
	p := l.phases(e)
	if p["sandbox.good"] != plan.Running || p["sandbox.bad"] != plan.Pending {
		t.Errorf("phases %v", p)
	}
	v := l.view(e, "sandbox.bad")
	if c := v.Conditions[0]; c.Status != "False" || !strings.Contains(c.Message, "cannot be executed") {
		t.Errorf("Ready %+v", c)
	}
	l.tidy(e)
	l.end(e)
}

func TestFailedApplyIsNotTheLastApplied(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.world.Fail(sim.OpCreate, "", errors.New("no"), sim.Before, 1)
	l.applyFails(e, plan.Options{})
	if d := e.meta(metaDigest); d != "" {
		t.Errorf("digest %q is recorded as applied", d)
	}
	l.apply(e, plan.Options{})
	if d := e.meta(metaDigest); d != l.source().Digest() {
		t.Errorf("digest %q, want the source's", d)
	}
	l.end(e)
}

func TestInterruptedApply(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": `
image "base" { source = "host" }
sandbox "s" {
  count   = 8
  image   = image.base
  command = ["sleep"]
}`})
		e := l.open("apply")
		l.world.Delay(sim.OpCreate, time.Minute)
		ctx, cancel := context.WithCancel(context.Background())
		r := l.request(plan.Options{})
		r.Parallelism = 2
		var res *ApplyResult
		var err error
		var wg sync.WaitGroup
		wg.Go(func() { res, err = e.Apply(ctx, r, nil, nil) })
		sleep(90 * time.Second) // two are made, two are on their way
		cancel()
		wg.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if !res.Interrupted || res.Applied.Add != 5 { // image and four
			t.Errorf("interrupted %v, applied %+v", res.Interrupted, res.Applied)
		}
		running := 0
		for _, p := range l.phases(e) {
			if p == plan.Running {
				running++
			}
		}
		if running != 4 {
			t.Errorf("%d run, want 4: what was begun is finished, nothing else begins", running)
		}
		if len(res.Failures) != 4 || !res.Failures[0].Skipped {
			t.Errorf("failures %+v", res.Failures)
		}
		if e.meta(metaDigest) != "" {
			t.Error("an interrupted apply counts as applied")
		}
		l.tidy(e)
		l.world.ClearFaults()
		l.apply(e, plan.Options{})
		l.nothingToDo(e)
		l.end(e)
	})
}

func TestTwoAppliesAtOnce(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open("apply")
		l.world.Delay(sim.OpCreate, 30*time.Second)
		first := make(chan error, 1)
		go func() {
			_, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, nil)
			first <- err
		}()
		sleep(time.Second)
		_, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, nil)
		l.refused(err, Locked, "another apply has been running since")
		r := l.request(plan.Options{})
		r.LockWait = time.Minute
		res, err := e.Apply(context.Background(), r, nil, nil)
		if err != nil || res.Applied != (plan.Summary{}) {
			t.Errorf("the second finds %+v to do, %v", res, err)
		}
		if err := <-first; err != nil {
			t.Error(err)
		}
		l.world.ClearFaults()
		l.end(e)
	})
}

func TestConfirm(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	r := l.request(plan.Options{})
	r.AutoApprove = false
	l.world.ReadOnly(t)
	res, err := e.Apply(context.Background(), r, func(p *PlanResult) (bool, error) {
		if p.Plan.Summary.Add != 2 {
			t.Errorf("asked about %+v", p.Plan.Summary)
		}
		return false, nil
	}, nil)
	if err != nil || !res.Declined {
		t.Errorf("declined %+v, %v", res, err)
	}
	_, err = e.Apply(context.Background(), r, func(*PlanResult) (bool, error) {
		w := &write{bump: true} // somebody else changes the state meanwhile
		return true, e.commit(w.sandbox(&plan.Sandbox{Address: "sandbox.other", UID: "1"}))
	}, nil)
	l.refused(err, Stale, "changed while the plan waited")
	l.world.ReadWrite()
	res, err = e.Apply(context.Background(), r, func(*PlanResult) (bool, error) {
		return true, e.commit(&write{bump: true}) // but it is the same work still
	}, nil)
	if err != nil || res.Applied.Add != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	l.end(e)
}

func TestPlanTouchesNothing(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	m := &mortal{}
	p := l.process("apply", m)
	l.apply(p.Engine, plan.Options{})
	l.world.Kill(l.id(p.Engine, "sandbox.a"))
	l.world.ReadOnly(t)
	commits := m.countN
	if l.plan(p.Engine).Plan.Empty() {
		t.Error("a loss is not planned for")
	}
	l.view(p.Engine, "sandbox.a")
	if _, err := p.Describe(context.Background(), "a"); err != nil {
		t.Error(err)
	}
	if m.countN != commits {
		t.Errorf("plan, list and describe made %d transactions", m.countN-commits)
	}
	l.world.ReadWrite()
	l.end(p.Engine)
}

// saved is what a plan file of now would hold.
func saved(t *testing.T, l *lab, e *Engine) *SavedPlan {
	t.Helper()
	res, err := e.prepare(context.Background(), PlanRequest{Source: l.source()})
	if err != nil {
		t.Fatal(err)
	}
	return &SavedPlan{Source: l.source(), Result: res.PlanResult}
}

// planFile is a saved plan as its file would come back.
func planFile(t *testing.T, e *Engine, s *SavedPlan) *PlanFile {
	t.Helper()
	f := &PlanFile{FormatVersion: PlanFileVersion, Result: s.Result}
	f.Result.Plan = redactedPlan(s.Result.Plan)
	var err error
	if f.Result.Sealed, err = e.sealPlan(s); err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	f = new(PlanFile)
	if err := json.Unmarshal(b, f); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestSavedPlan(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": sandboxA("")})
	e := l.open("apply")
	s := saved(t, l, e)
	applyFile := func(f *PlanFile) error {
		_, err := e.Apply(context.Background(), ApplyRequest{Saved: f}, func(*PlanResult) (bool, error) {
			t.Error("asked for approval of a saved plan")
			return false, nil
		}, nil)
		return err
	}
	apply := func(s *SavedPlan) error { return applyFile(planFile(t, e, s)) }
	l.main("nonsense(") // the files at hand do not matter any more
	if err := apply(s); err != nil {
		t.Fatal(err)
	}
	l.refused(apply(s), Stale, "the state has changed since")
	l.main(sandboxA(`env = { X = "1" }`))
	s = saved(t, l, e)
	file := planFile(t, e, s)
	file.FormatVersion = "99"
	l.refused(applyFile(file), Stale, "format version")
	file = planFile(t, e, s)
	file.Result.Sealed = file.Result.Sealed[:len(file.Result.Sealed)-8] + "AAAAAAAA"
	l.refused(applyFile(file), Invalid, "cannot be read")
	other := *s
	other.Result.Lineage = "somebody"
	l.refused(apply(&other), Stale, "another state")
	other = *s
	src := *s.Source
	src.Files = map[string][]byte{"main.hcl": []byte(base)}
	other.Source = &src
	l.refused(apply(&other), Stale, "digest")
	// The host moved on: what was shown is not what would be done.
	l.world.Kill(l.id(e, "sandbox.a"))
	l.refused(apply(s), Stale, "the host has changed")
	l.apply(e, plan.Options{})
	l.end(e)
}

func TestPlanIsRunAgainWhenTheAgentCameBetween(t *testing.T) {
	withAgent(t, "image \"base\" { source = \"host\" }\n"+box("a", "")+box("b", ""), func(l *lab, e *Engine, k *keeper) {
		// While the apply is busy with the first, the second is killed and brought
		// back by the agent; the apply goes on with what it was to do there.
		l.main("image \"base\" { source = \"host\" }\n" + box("a", `env = { X = "1" }`) + box("b", `env = { X = "1" }`))
		r := l.request(plan.Options{})
		r.Parallelism = 1
		l.world.Delay(sim.OpStart, 20*time.Second)
		done := make(chan error, 1)
		go func() { _, err := e.Apply(context.Background(), r, nil, nil); done <- err }()
		sleep(time.Second)
		l.world.KillMain(l.id(e, "sandbox.b"), 9)
		if err := <-done; err != nil {
			l.t.Error(err)
		}
		l.world.ClearFaults()
		sleep(time.Minute)
		l.nothingToDo(e)
		for _, a := range []string{"sandbox.a", "sandbox.b"} {
			if x := l.world.Spec(l.id(e, a)).Env["X"]; x != "1" {
				l.t.Errorf("%s has X=%q", a, x)
			}
		}
		// What an operator did meanwhile is not undone without being shown.
		l.main("image \"base\" { source = \"host\" }\n" + box("a", `env = { X = "2" }`) + box("b", `env = { X = "2" }`))
		r = l.request(plan.Options{})
		r.Parallelism = 1
		l.world.Delay(sim.OpStart, 20*time.Second)
		go func() { _, err := e.Apply(context.Background(), r, nil, nil); done <- err }()
		sleep(time.Second)
		l.act(e, "stop", "b")
		err := <-done
		l.refused(err, Internal, "failed")
		if d := errorOf(err).(*Error).Diagnostics; len(d) != 1 || !strings.Contains(d[0].Detail, "changed since the plan was made") {
			l.t.Errorf("diagnostics %v", d)
		}
		l.world.ClearFaults()
		l.phase(e, "sandbox.b", plan.Stopped)
	})
}

func TestUpdatePortsOnALiveSandbox(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": sandboxA("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	id, pid := l.id(e, "sandbox.a"), *l.view(e, "sandbox.a").PID
	host, b := l.view(e, "sandbox.a").Ports["http"].Host, *l.view(e, "sandbox.b").PID
	l.main(strings.Replace(sandboxA(""), `port "http" { container = 80 }`, fmt.Sprintf(`
  port "web" {
    container = 80
    host      = %d
  }
  port "admin" { container = 81 }`, host), 1))
	l.apply(e, plan.Options{})
	if got := *l.view(e, "sandbox.b").PID; got != b {
		t.Error("sandbox.b, which refers to its address only, was restarted")
	}
	v := l.view(e, "sandbox.a")
	if *v.InstanceID != id || *v.PID != pid {
		t.Error("it was restarted")
	}
	if len(v.Ports) != 2 || v.Ports["web"].Host != host || v.Ports["admin"].Host == 0 {
		t.Errorf("ports %v", v.Ports)
	}
	var published []int
	for _, f := range l.world.Spec(id).Forwards {
		published = append(published, int(f.HostPort))
	}
	if !slices.Contains(published, host) || !slices.Contains(published, v.Ports["admin"].Host) || len(published) != 2 {
		t.Errorf("published %v", published)
	}
	l.nothingToDo(e)

	// Where all ports are known beforehand, nobody else has a change planned.
	l.main(strings.Replace(sandboxA(""), `port "http" { container = 80 }`, fmt.Sprintf(`
  port "web" {
    container = 82
    host      = %d
  }
  port "admin" { container = 81 }`, host), 1))
	if res := l.apply(e, plan.Options{}); res.Applied != (plan.Summary{Change: 1}) {
		t.Errorf("applied %+v", res.Applied)
	}

	// A port that is taken: refused, and all as it was.
	l.world.Listen(netip.MustParseAddrPort("127.0.0.1:9999"), "tcp")
	before := e.current("sandbox.a").Ports
	l.main(strings.Replace(sandboxA(""), `port "http" { container = 80 }`, `
  port "web" {
    container = 80
    host      = 9999
  }`, 1))
	_, err := l.applyFails(e, plan.Options{})
	if text := err.Diagnostics[0].Detail; !strings.Contains(text, "is taken by another program") || strings.Count(text, "choose") != 1 {
		t.Errorf("error %+v", err.Diagnostics)
	}
	if got := e.current("sandbox.a").Ports; len(got) != 2 || got["web"] != before["web"] {
		t.Errorf("ports %v, were %v", got, before)
	}
	if l.plan(e).Plan.Empty() {
		t.Error("the refused change is not shown again")
	}
	l.world.Unlisten(netip.MustParseAddrPort("127.0.0.1:9999"), "tcp")
	l.apply(e, plan.Options{})
	l.nothingToDo(e)
	l.end(e)
}

func TestRefusedUpdateIsShownAgain(t *testing.T) {
	for _, when := range []sim.When{sim.Before, sim.After} {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		id := l.id(e, "sandbox.a")
		l.main(one("resources { pids = 9 }"))
		l.world.Fail(sim.OpUpdate, "", errors.New("no such cgroup"), when, 1)
		l.applyFails(e, plan.Options{})
		if got := l.world.Spec(id).Limits.PIDs; got != 0 {
			t.Errorf("pids limit %d on the host, 0 on record", got)
		}
		l.apply(e, plan.Options{})
		if got := l.world.Spec(id).Limits.PIDs; got != 9 || l.id(e, "sandbox.a") != id {
			t.Errorf("pids limit %d, instance %s (was %s)", got, l.id(e, "sandbox.a"), id)
		}
		l.nothingToDo(e)
		l.phase(e, "sandbox.a", plan.Running)
		l.end(e)
	}
}

func TestTakenPortLeavesNothingHalfMade(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": strings.Replace(sandboxA(""), "container = 80", "container = 80\n host = 9999", 1)})
	l.main(strings.Replace(sandboxA(""), `{ container = 80 }`, "{\n container = 80\n host = 9999\n}", 1))
	l.world.Listen(netip.MustParseAddrPort("127.0.0.1:9999"), "tcp")
	e := l.open("apply")
	res, err := l.applyFails(e, plan.Options{})
	if !strings.Contains(err.Diagnostics[0].Detail, "9999/tcp is taken") && !strings.Contains(err.Diagnostics[1].Detail, "9999/tcp is taken") {
		t.Errorf("errors %+v", err.Diagnostics)
	}
	if len(res.Failures) != 2 {
		t.Errorf("failures %+v", res.Failures)
	}
	l.tidy(e)
	l.world.Unlisten(netip.MustParseAddrPort("127.0.0.1:9999"), "tcp")
	l.apply(e, plan.Options{})
	l.nothingToDo(e)
	if h := l.view(e, "sandbox.a").Ports["http"].Host; h != 9999 {
		t.Errorf("host port %d", h)
	}
	l.end(e)
}

func TestMoveBetweenNetworks(t *testing.T) {
	two := base + `
network "m" { cidr = "10.88.8.0/24" }
sandbox "a" {
  image   = image.base
  command = ["sleep"]
  network { name = network.%s }
}
sandbox "b" {
  image   = image.base
  command = ["sleep"]
  env     = { PEER = sandbox.a.address }
  network { name = network.m }
}`
	l := newLab(t, map[string]string{"main.hcl": fmt.Sprintf(two, "n")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	was := *l.view(e, "sandbox.a").AddressV4
	l.main(strings.Replace(fmt.Sprintf(two, "m"), `network "n" { cidr = "10.88.7.0/24" }`, "", 1))
	l.apply(e, plan.Options{})
	l.nothingToDo(e)
	got := *l.view(e, "sandbox.a").AddressV4
	if !strings.HasPrefix(got, "10.88.8.") || got == was {
		t.Errorf("address %s", got)
	}
	if peer := l.world.Spec(l.id(e, "sandbox.b")).Env["PEER"]; peer != got {
		t.Errorf("PEER is %s, the address %s", peer, got)
	}
	if _, ok := e.network("network.n"); ok {
		t.Error("network.n is still on record")
	}
	l.tidy(e)
	l.end(e)
}

func TestReservationsStay(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": sandboxA("")})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		v := l.view(e, "sandbox.a")
		rec := e.current("sandbox.a")
		same := func(after string) {
			t.Helper()
			w, r := l.view(e, "sandbox.a"), e.current("sandbox.a")
			if *w.AddressV4 != *v.AddressV4 || w.Ports["http"] != v.Ports["http"] || r.IDs != rec.IDs || r.UID != rec.UID || r.Claim["work"] != rec.Claim["work"] {
				t.Errorf("after %s: address %s, ports %v, ids %v, claims %v; were %s, %v, %v, %v", after, *w.AddressV4, w.Ports, r.IDs, r.Claim, *v.AddressV4, v.Ports, rec.IDs, rec.Claim)
			}
		}
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		same("replace")
		l.act(e, "stop", "a")
		same("stop")
		l.act(e, "start", "a")
		l.world.Reboot()
		l.apply(e, plan.Options{})
		same("reboot")
		l.close(e)
		e = l.open("apply")
		same("restart")
		l.end(e)
	})
}

func TestReplaceStartsANewLease(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one(`lifetime { ttl = "10h" }`)})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		first := e.current("sandbox.a").Lease
		sleep(time.Hour)
		l.main(one("lifetime { ttl = \"10h\" }\n env = { A = \"b\" }"))
		l.apply(e, plan.Options{})
		if got := e.current("sandbox.a").Lease; got != first {
			t.Errorf("a restart changes the lease: %+v, was %+v", got, first)
		}
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		if got := e.current("sandbox.a").Lease; !got.Start.Equal(first.Start.Add(time.Hour)) {
			t.Errorf("lease starts %s after the first, want an hour", got.Start.Sub(first.Start))
		}
		l.main(one(`lifetime { ttl = "1h30m" }`))
		l.apply(e, plan.Options{})
		got := e.current("sandbox.a").Lease
		if !got.Until.Equal(got.Start.Add(90 * time.Minute)) {
			t.Errorf("edited ttl gives %+v", got)
		}
		l.end(e)
	})
}

func TestTargetAndExclude(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": sandboxA("") + box("c", "")})
	e := l.open("apply")
	l.apply(e, plan.Options{Targets: []string{"sandbox.a"}})
	if p := l.phases(e); len(p) != 1 || p["sandbox.a"] != plan.Running {
		t.Errorf("phases %v", p)
	}
	if e.meta(metaDigest) != "" {
		t.Error("a part counts as the whole")
	}
	l.apply(e, plan.Options{Excludes: []string{"sandbox.b"}})
	if p := l.phases(e); len(p) != 2 {
		t.Errorf("phases %v", p)
	}
	l.apply(e, plan.Options{})
	l.apply(e, plan.Options{Destroy: true, Targets: []string{"sandbox.a"}})
	if p := l.phases(e); len(p) != 1 || p["sandbox.c"] != plan.Running {
		t.Errorf("after destroying a and what depends on it: %v", p)
	}
	l.tidy(e)
	l.end(e)
}

// What -exclude leaves out is not missed in the end: with its keys, without a for_each
// that is gone, and with what is kept for its sake.
func TestExcludeOfWhatIsRemoved(t *testing.T) {
	base := `image "base" { source = "host" }` + box("kept", "")
	for name, tc := range map[string]struct{ before, after, exclude string }{
		"each key":             {box("z", `for_each = toset(["x", "y"])`), "", "sandbox.z"},
		"each number":          {box("z", `count = 2`), "", "sandbox.z"},
		"one key":              {box("z", `for_each = toset(["x"])`), "", `sandbox.z["x"]`},
		"only for_each":        {box("z", `for_each = toset(["x"])`), box("z", ""), "sandbox.z"},
		"what it is made for":  {box("z", "") + box("y", "depends_on = [sandbox.z]"), "", "sandbox.y"},
		"a dependency of keys": {box("z", `count = 2`) + box("y", "depends_on = [sandbox.z]"), "", "sandbox.y"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, map[string]string{"main.hcl": base + tc.before})
			e := l.open("apply")
			l.apply(e, plan.Options{})
			was := l.phases(e)
			l.main(base + tc.after)
			l.apply(e, plan.Options{Excludes: []string{tc.exclude}})
			if now := l.phases(e); !maps.Equal(was, now) {
				t.Errorf("%v became %v", was, now)
			}
			l.apply(e, plan.Options{})
			if rec := e.current(`sandbox.z["x"]`); rec != nil {
				t.Errorf("%s is still there", rec.Address)
			}
			l.end(e)
		})
	}
}

// The event of an end that is noticed later has the time of the end itself.
func TestEndNoticedLater(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": `
image "base" { source = "host" }
sandbox "a" {
  image   = image.base
  command = ["sim", "after=1m", "exit=3"]
}
`})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		due := time.Now().Add(time.Minute)
		sleep(time.Hour)
		l.apply(e, plan.Options{})
		res, err := e.Events(context.Background(), EventsRequest{Address: "sandbox.a", Types: []string{"exited"}})
		if err != nil || len(res.Events) != 1 {
			t.Fatalf("%+v, %v", res, err)
		}
		if ev := res.Events[0]; !ev.EndedAt.Equal(due) || !ev.At.Equal(due.Add(59*time.Minute)) {
			t.Errorf("it ended at %s, noticed at %s; it was due at %s", ev.EndedAt, ev.At, due)
		}
		l.end(e)
	})
}

func TestDestroyWithoutFiles(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": sandboxA("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	res, err := e.Apply(context.Background(), ApplyRequest{PlanRequest: PlanRequest{Options: plan.Options{Destroy: true}}, AutoApprove: true}, nil, nil)
	if err != nil || res.Applied.Destroy != 5 {
		t.Errorf("%+v, %v", res, err)
	}
	_, err = e.Plan(context.Background(), PlanRequest{})
	l.refused(err, Invalid, "needs a configuration")
	l.close(e)
	l.clean()
}

func TestBoundToOneDirectory(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	first := l.source().Dir
	l.dir = t.TempDir()
	l.main(one(""))
	_, err := e.Plan(context.Background(), PlanRequest{Source: l.source()})
	l.refused(err, Invalid, "serves the configuration in "+first)
	_, err = e.Apply(context.Background(), l.request(plan.Options{Destroy: true}), nil, nil)
	l.refused(err, Invalid, "-take-over")
	r := l.request(plan.Options{})
	r.TakeOver = true
	if _, err := e.Apply(context.Background(), r, nil, nil); err != nil {
		t.Fatal(err)
	}
	l.nothingToDo(e)
	l.end(e)
	_ = first
}

func TestRefreshOnlyTakesOverAndReleases(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": strings.Replace(one(""), `"append=/log:x"`, `"after=1m", "exit=0"`, 1)})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		sleep(time.Hour)
		l.apply(e, plan.Options{RefreshOnly: true})
		if i := e.current("sandbox.a").Instance; i.Phase != plan.Stopped || i.StoppedBy != plan.ByExit {
			t.Errorf("instance %+v", i)
		}
		l.tidy(e)
		l.end(e)
	})
}

func TestOutputs(t *testing.T) {
	text := sandboxA("") + `
output "addr" { value = sandbox.a.address }
output "n"    { value = 1 }`
	l := newLab(t, map[string]string{"main.hcl": text})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	get := func() map[string]string {
		all, err := e.Outputs(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]string{}
		for _, o := range all {
			m[o.Name] = string(o.Value)
		}
		return m
	}
	if m := get(); m["addr"] != `"`+*l.view(e, "sandbox.a").AddressV4+`"` || m["n"] != "1" {
		t.Errorf("outputs %v", m)
	}
	l.main(strings.Replace(strings.Replace(text, "value = 1", "value = 2", 1), `output "addr" { value = sandbox.a.address }`, "", 1))
	if l.plan(e).Plan.Empty() {
		t.Error("a change of outputs only is no change")
	}
	l.apply(e, plan.Options{})
	if m := get(); len(m) != 1 || m["n"] != "2" {
		t.Errorf("outputs %v", m)
	}
	l.nothingToDo(e)
	l.destroy(e)
	if m := get(); len(m) != 0 {
		t.Errorf("outputs after destroy %v", m)
	}
	l.close(e)
	l.clean()
}

func TestTwoNetworksChooseDifferentRanges(t *testing.T) {
	text := "image \"base\" { source = \"host\" }\n"
	for i := range 8 {
		text += fmt.Sprintf("network \"n%d\" {}\n", i)
	}
	l := newLab(t, map[string]string{"main.hcl": text})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	seen := map[netip.Prefix]string{}
	for a, n := range e.snapshot().Networks {
		if other := seen[n.CIDR]; other != "" {
			t.Errorf("%s and %s both have %s", a, other, n.CIDR)
		}
		seen[n.CIDR] = a
	}
	l.tidy(e)
	l.end(e)
}

func TestFailedNetworkLeavesNothing(t *testing.T) {
	for _, when := range []sim.When{sim.Before, sim.After} {
		l := newLab(t, map[string]string{"main.hcl": sandboxA("")})
		l.world.Fail(sim.OpEnsureNetwork, "", fmt.Errorf("range in use: %w", runtime.ErrTaken), when, 1)
		l.world.Fail(sim.OpEnsureVolume, "", errors.New("disk full"), when, 1)
		e := l.open("apply")
		l.applyFails(e, plan.Options{})
		if r := e.snapshot(); len(r.Networks)+len(r.Volumes)+len(r.Sandboxes) != 0 {
			t.Errorf("on record: %v %v %v", r.Networks, r.Volumes, r.Sandboxes)
		}
		l.tidy(e)
		l.apply(e, plan.Options{})
		l.nothingToDo(e)
		l.end(e)
	}
}

func TestRefusedNetworkChangeIsShownAgain(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": sandboxA("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.main(strings.Replace(sandboxA(""), `cidr = "10.88.7.0/24"`, "cidr = \"10.88.7.0/24\"\n internet = true", 1))
	l.main(strings.Replace(sandboxA(""), `network "n" { cidr = "10.88.7.0/24" }`, "network \"n\" {\n cidr = \"10.88.7.0/24\"\n internet = true\n}", 1))
	l.world.Fail(sim.OpEnsureNetwork, "", errors.New("nft says no"), sim.Before, 1)
	l.applyFails(e, plan.Options{})
	if l.plan(e).Plan.Empty() {
		t.Error("the failed change is not shown again")
	}
	l.phase(e, "sandbox.a", plan.Running)
	l.apply(e, plan.Options{})
	l.nothingToDo(e)
	l.end(e)
}

func TestHistoryNamesWhoActs(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		l.act(e, "pause", "a")
		l.act(e, "resume", "a")
		l.world.KillMain(l.id(e, "sandbox.a"), 9)
		sleep(time.Minute)
		ev := l.events(e, "sandbox.a")
		for _, want := range []string{"create/created/apply", "held/paused/operator", "pause/paused/operator", "exited/killed/agent", "start/started/agent"} {
			if !slices.Contains(ev, want) {
				l.t.Errorf("history %v lacks %s", ev, want)
			}
		}
		d, err := e.Describe(context.Background(), "a")
		if err != nil {
			l.t.Fatal(err)
		}
		if len(d.Events) == 0 || len(d.Events) > 20 {
			l.t.Errorf("%d events", len(d.Events))
		}
	})
}

func TestDescribeForesees(t *testing.T) {
	withAgent(t, one(`lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		d, err := e.Describe(context.Background(), "a")
		if err != nil {
			l.t.Fatal(err)
		}
		if d.NextLook == nil || !d.NextLook.Equal(*d.Sandbox.ExpiresAt) || !strings.HasPrefix(d.NextAction, "expire:") {
			l.t.Errorf("next look %v, action %q", d.NextLook, d.NextAction)
		}
	})
}

func TestMaxLifetime(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one(`lifetime { ttl = "1h" }`)})
		l.settings.MaxLifetime = config.Duration(2 * time.Hour)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		d := config.Duration(3 * time.Hour)
		_, err := e.Renew(context.Background(), RenewRequest{Address: "a", In: &d})
		l.refused(err, Conflict, "max_lifetime")
		_, err = e.Act(context.Background(), ActRequest{Verb: "pause", Address: "a"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = e.Act(context.Background(), ActRequest{Verb: "resume", Address: "a", Timeout: &d})
		l.refused(err, Conflict, "max_lifetime")
		l.phase(e, "sandbox.a", plan.Paused)
		ok := config.Duration(90 * time.Minute)
		res, err := e.Act(context.Background(), ActRequest{Verb: "resume", Address: "a", Timeout: &ok})
		if err != nil || !res.Sandbox.ExpiresAt.Equal(e.now().Add(90*time.Minute)) {
			t.Errorf("%+v, %v", res, err)
		}
		l.nothingToDo(e) // renewing is no drift
		_, err = e.Renew(context.Background(), RenewRequest{Address: "a", In: &ok, AtLeast: &ok})
		l.refused(err, Invalid, "exactly one")
		l.end(e)
	})
}

func TestOneThatCannotBeClearedAwayStopsNoOther(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": "image \"base\" { source = \"host\" }\n" + box("a", "") + box("b", "")})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		l.world.KillMain(l.id(e, "sandbox.a"), 9)
		l.world.KillMain(l.id(e, "sandbox.b"), 9)
		l.world.Fail(sim.OpStop, l.id(e, "sandbox.a"), errors.New("busy"), sim.Before, sim.Always)
		res, err := l.applyFails(e, plan.Options{})
		if len(res.Failures) != 1 || res.Failures[0].Address != "sandbox.a" || !strings.Contains(err.Diagnostics[0].Detail, "busy") {
			t.Errorf("failures %+v", res.Failures)
		}
		l.phase(e, "sandbox.b", plan.Running)
		l.world.ClearFaults()
		l.apply(e, plan.Options{})
		l.nothingToDo(e)
		l.tidy(e)
		l.end(e)
	})
}

func TestNewInstanceIsForetold(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": "network \"n\" {}\n" + one("network { name = network.n }\nport \"p\" { container = 80 }") + box("web", "env = { ID = sandbox.a.instance_id }") +
			box("near", "env = { P = tostring(sandbox.a.ports.p.host) }") + "\noutput \"id\" { value = sandbox.a.instance_id }"})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		old := l.id(e, "sandbox.near")
		follows := func(how string, o plan.Options) {
			t.Helper()
			res := l.apply(e, o)
			id := l.id(e, "sandbox.a")
			if got := l.world.Spec(l.id(e, "sandbox.web")).Env["ID"]; got != id {
				t.Errorf("%s: web has %s, the instance is %s", how, got, id)
			}
			if got := string(res.Outputs[0].Value); got != `"`+id+`"` {
				t.Errorf("%s: output %s, the instance is %s", how, got, id)
			}
			l.nothingToDo(e)
		}
		follows("replaced", plan.Options{Replace: []string{"sandbox.a"}})
		l.world.Kill(l.id(e, "sandbox.a"))
		follows("lost", plan.Options{})
		if l.id(e, "sandbox.near") != old || hasPrefix(l.events(e, "sandbox.near"), "restart/") {
			t.Error("one that only refers to what stays is touched")
		}
		l.end(e)
	})
}

func TestNoLockWait(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open("apply")
		r := l.request(plan.Options{})
		r.LockWait = NoLockWait
		for range 20 { // free: it gets its turn, though there is no time to wait
			if _, err := e.Apply(context.Background(), r, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		release, err := e.turn.take(context.Background(), 0, "apply")
		if err != nil {
			t.Fatal(err)
		}
		began := e.now()
		_, err = e.Apply(context.Background(), r, nil, nil)
		l.refused(err, Locked, "another apply has been running")
		if d := e.now().Sub(began); d != 0 {
			t.Errorf("it waited %s", d)
		}
		r.LockWait = 0
		_, err = e.Apply(context.Background(), r, nil, nil)
		l.refused(err, Locked, "another apply has been running")
		if d := e.now().Sub(began); d != DefaultLockWait {
			t.Errorf("by default it waits %s", d)
		}
		release()
		o := OpenOptions{LockWait: NoLockWait}
		if err := o.fill(); err != nil || o.LockWait != 0 {
			t.Errorf("options: %s, %v", o.LockWait, err)
		}
		l.end(e)
	})
}

func TestHistoryTellsWhatFailedAndThatItIsUndone(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open("apply")
		for _, c := range []struct {
			op   sim.Op
			want []string
		}{
			{sim.OpStart, []string{"create/created/apply", "error/start failed/apply", "undone/start failed/apply"}},
			{sim.OpCreate, []string{"error/create failed/apply", "undone/create failed/apply"}},
		} {
			before := len(l.events(e, "sandbox.a"))
			l.world.Fail(c.op, "", errors.New("no luck"), sim.Before, 1)
			l.applyFails(e, plan.Options{})
			if got := l.events(e, "sandbox.a")[before:]; !slices.Equal(got, c.want) {
				t.Errorf("%s fails: %v, want %v", c.op, got, c.want)
			}
			all, err := e.history("sandbox.a", 2)
			if err != nil || all[0].Instance == "" || all[0].Instance != all[1].Instance || !strings.Contains(all[0].Message, "no luck") {
				t.Errorf("%s fails: %+v, %v", c.op, all, err)
			}
		}
		l.end(e)
	})
}

func TestUnwatchedDeadlinesInWords(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("lifetime { ttl = \"1h\" }")})
	e := l.open("apply")
	if w := l.apply(e, plan.Options{}).Warnings; len(w) != 1 || !strings.HasPrefix(w[0].Detail, "sandbox.a has a deadline,") {
		t.Errorf("one: %+v", w)
	}
	l.main(one("lifetime { ttl = \"1h\" }") + box("b", "lifetime { ttl = \"1h\" }"))
	if w := l.apply(e, plan.Options{}).Warnings; len(w) != 1 || !strings.HasPrefix(w[0].Detail, "sandbox.a, sandbox.b have a deadline,") {
		t.Errorf("two: %+v", w)
	}
	l.end(e)
}

// TestTakenRangeIsRefusedAtPlan: a range that the host uses is an error of the
// plan, so that nothing was taken down for it.
func TestTakenRangeIsRefusedAtPlan(t *testing.T) {
	const conf = `
image "base" { source = "host" }
network "n" { cidr = %q }
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
}
`
	l := newLab(t, map[string]string{"main.hcl": fmt.Sprintf(conf, "10.99.1.0/24")})
	e := l.open("apply")
	defer l.close(e)
	l.apply(e, plan.Options{})
	before, _ := e.sandbox("sandbox.a")
	l.world.UsePrefix(netip.MustParsePrefix("10.99.2.128/25"))
	l.files(map[string]string{"main.hcl": fmt.Sprintf(conf, "10.99.2.0/24")})
	_, err := e.Apply(context.Background(), ApplyRequest{PlanRequest: PlanRequest{Source: l.source()}, AutoApprove: true}, nil, nil)
	x, ok := err.(*Error)
	if !ok || len(x.Diagnostics) != 1 || x.Diagnostics[0].Address != "network.n" || x.Diagnostics[0].Range == nil {
		t.Fatalf("apply: %v; want one diagnostic about network.n with its place", err)
	}
	after, _ := e.sandbox("sandbox.a")
	if after.Instance == nil || after.Instance.PID != before.Instance.PID || after.Instance.Phase != plan.Running {
		t.Errorf("sandbox.a was touched: %+v, before %+v", after.Instance, before.Instance)
	}
}

// TestOutputsOfWhatFailedStay: outputs speak of what exists, not of what an
// apply tried in vain.
func TestOutputsOfWhatFailedStay(t *testing.T) {
	const conf = `
image "base" { source = "host" }
network "n" {}
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
  port "http" {
    container = 80
    host      = %d
  }
}
output "port" { value = sandbox.a.ports.http.host }
`
	l := newLab(t, map[string]string{"main.hcl": fmt.Sprintf(conf, 18080)})
	e := l.open("apply")
	defer l.close(e)
	l.apply(e, plan.Options{})
	l.world.Listen(netip.MustParseAddrPort("127.0.0.1:18081"), "tcp")
	l.files(map[string]string{"main.hcl": fmt.Sprintf(conf, 18081)})
	res, err := e.Apply(context.Background(), ApplyRequest{PlanRequest: PlanRequest{Source: l.source()}, AutoApprove: true}, nil, nil)
	if err == nil || len(res.Failures) == 0 {
		t.Fatalf("apply onto a taken port: %v, %+v", err, res)
	}
	kept, err := e.Outputs(context.Background())
	if err != nil || len(kept) != 1 || string(kept[0].Value) != "18080" {
		t.Errorf("outputs %s, %v; want 18080", kept[0].Value, err)
	}
	l.world.Unlisten(netip.MustParseAddrPort("127.0.0.1:18081"), "tcp")
	l.apply(e, plan.Options{})
	if kept, _ = e.Outputs(context.Background()); string(kept[0].Value) != "18081" {
		t.Errorf("outputs %s after the apply that worked; want 18081", kept[0].Value)
	}
}

// TestAutoApproveTakesWhatComes: with everything approved, a plan that is only
// shown does not go stale when the agent changes the state meanwhile; one that
// waits for an answer does.
func TestAutoApproveTakesWhatComes(t *testing.T) {
	const conf = `
image "base" { source = "host" }
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
  labels  = { n = "%d" }
}
`
	l := newLab(t, map[string]string{"main.hcl": fmt.Sprintf(conf, 1)})
	e := l.open("apply")
	defer l.close(e)
	l.apply(e, plan.Options{})
	for i, auto := range []bool{true, false} {
		l.files(map[string]string{"main.hcl": fmt.Sprintf(conf, 2+i)})
		meanwhile := func(*PlanResult) (bool, error) {
			_, err := e.Act(context.Background(), ActRequest{Verb: "pause", Address: "sandbox.a"})
			return true, err
		}
		r := ApplyRequest{PlanRequest: PlanRequest{Source: l.source(), Options: plan.Options{ReleaseHolds: true}}, AutoApprove: auto, Show: true}
		_, err := e.Apply(context.Background(), r, meanwhile, nil)
		switch x, _ := err.(*Error); {
		case auto && err != nil:
			t.Fatalf("auto-approved: %v", err)
		case !auto && (x == nil || x.Kind != Stale):
			t.Fatalf("approved what was shown: %v, want stale", err)
		}
	}
}

// ignore_changes is about changes: a sandbox is made as it is declared, also where
// an attempt has failed.
func TestIgnoredChangesAreNotIgnoredAtCreation(t *testing.T) {
	const text = `
image "base" { source = "host" }
network "n" { cidr = "10.88.7.0/24" }
sandbox "a" {
  image     = image.base
  command   = ["sleep", "inf"]
  env       = { A = "1" }
  labels    = { a = "1" }
  network { name = network.n }
  resources { memory = "100MiB" }
  lifetime { ttl = "2h" }
  file "/etc/a" { content = "a" }
  lifecycle { ignore_changes = WHICH }
}
`
	for _, which := range []string{"all", "[image, command, env, network, resources, lifetime, file, labels]"} {
		inTime(t, func(t *testing.T) {
			text := strings.Replace(text, "WHICH", which, 1)
			l := newLab(t, map[string]string{"main.hcl": strings.Replace(text, `"a" }`, `"never made" }`, 1)})
			e := l.open("apply")
			l.world.Fail(sim.OpCreate, "", errors.New("no"), sim.Before, 1)
			l.applyFails(e, plan.Options{})
			l.main(text)
			l.apply(e, plan.Options{})
			is := e.current("sandbox.a")
			if s := is.Spec; s.Env["A"] != "1" || s.Network == nil || s.Resources.Memory != 100<<20 || time.Duration(s.Lifetime.TTL) != 2*time.Hour ||
				s.Files["/etc/a"].Content != "a" || s.Labels["a"] != "1" || !is.Net.Address.IsValid() || is.Lease.Until.IsZero() {
				t.Errorf("%s: made of %+v", which, s)
			}
			l.nothingToDo(e)
			l.main(strings.NewReplacer(`A = "1"`, `A = "2"`, `"2h"`, `"3h"`, "inf", "100").Replace(text))
			l.nothingToDo(e)
			l.end(e)
		})
	}
}
