package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

// create_before_destroy over a simulated host.

// firsts declares sandbox.a with create_before_destroy, and sandbox.b which has a's
// address.
func firsts(extra string) string {
	return `
image "base" { source = "host" }
network "n" { cidr = "10.88.7.0/24" }
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
  port "http" { container = 80 }
  lifecycle { create_before_destroy = true }
` + extra + `
}
sandbox "b" {
  image   = image.base
  command = ["sleep", "inf"]
  env     = { PEER = sandbox.a.address }
  network { name = network.n }
}
output "port" { value = sandbox.a.ports.http.host }
`
}

// withFirst runs f over an applied configuration, in virtual time, and wants
// everything gone in the end. agent: one keeps it.
func withFirst(t *testing.T, text string, agent bool, f func(l *lab, e *Engine)) {
	t.Helper()
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": text})
		l.twins = true
		e := l.open(map[bool]string{true: "agent", false: "apply"}[agent])
		l.apply(e, plan.Options{})
		stop := func() {}
		if agent {
			stop = l.keep(e).stop
		}
		f(l, e)
		stop()
		l.world.ClearFaults()
		l.end(e)
	})
}

// at is where an operation on an instance stands among the host's calls.
func (l *lab) at(op sim.Op, id string) int {
	return slices.IndexFunc(l.world.Ops(), func(c sim.Call) bool { return c.Op == op && c.ID == id && c.Err == nil })
}

// The new instance has an id range, an address and host ports of its own; it is up
// before the old one goes, and what refers to it turns to it in between.
func TestReplacementComesFirst(t *testing.T) {
	withFirst(t, firsts(""), false, func(l *lab, e *Engine) {
		was, b := e.current("sandbox.a"), l.id(e, "sandbox.b")
		l.world.ClearOps()
		res := l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		if res.Applied != (plan.Summary{Change: 1, Replace: 1}) {
			t.Errorf("applied %+v", res.Applied)
		}
		is := e.current("sandbox.a")
		if is.UID != was.UID || is.Instance.ID == was.Instance.ID || is.Instance.Phase != plan.Running {
			t.Errorf("instance %+v, was %+v", is.Instance, was.Instance)
		}
		if is.IDs == was.IDs || is.Net.Address == was.Net.Address || is.Ports["http"].Host == was.Ports["http"].Host {
			t.Errorf("it has ids %v, address %v, port %d of the old one: %v, %v, %d", is.IDs, is.Net.Address, is.Ports["http"].Host, was.IDs, was.Net.Address, was.Ports["http"].Host)
		}
		if peer := e.current("sandbox.b").Spec.Env["PEER"]; peer != is.Net.Address.String() {
			t.Errorf("sandbox.b has %s for its peer %s", peer, is.Net.Address)
		}
		if got, want := string(e.records.Outputs["port"].Value), fmt.Sprint(is.Ports["http"].Host); got != want {
			t.Errorf("output %s, want %s", got, want)
		}
		up, turned, gone := l.at(sim.OpStart, is.Instance.ID), l.at(sim.OpStart, b), l.at(sim.OpRemove, was.Instance.ID)
		if up < 0 || !(up < turned && turned < gone) {
			t.Errorf("started at %d, sandbox.b turned to it at %d, the old one gone at %d: %v", up, turned, gone, l.world.Ops())
		}
		if stopped := l.at(sim.OpStop, was.Instance.ID); stopped < turned {
			t.Errorf("the old one is stopped at %d, before sandbox.b has turned at %d", stopped, turned)
		}
		l.nothingToDo(e)
		l.tidy(e)
	})
}

// What does not become ready is taken away, and the old instance stays what it was.
func TestReplacementThatIsNotReady(t *testing.T) {
	for name, c := range map[string]struct {
		extra string
		fail  func(*lab)
		words string
	}{
		"its probe never passes": {extra: "health { tcp = 7 }\n lifetime { start_timeout = \"1m\" }\n", words: "not ready within 1m0s"},
		"its command ends":       {extra: "health { tcp = 7 }\n", words: "ended before it was ready: exit code 3"},
		"it cannot be made":      {fail: func(l *lab) { l.world.Fail(sim.OpCreate, "", errors.New("no space"), sim.Midway, 1) }, words: "no space"},
		"it cannot be started":   {fail: func(l *lab) { l.world.Fail(sim.OpStart, "", errors.New("no such file"), sim.Before, 1) }, words: "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			withFirst(t, firsts(""), false, func(l *lab, e *Engine) {
				was, phases := e.current("sandbox.a"), l.phases(e)
				text := firsts(c.extra + "security { user_namespace = false }")
				if strings.Contains(c.words, "exit code") {
					text = strings.Replace(text, `["sleep", "inf"]`, `["sim", "after=20s", "exit=3"]`, 1)
				}
				l.main(text)
				if c.fail != nil {
					c.fail(l)
				}
				res, err := l.applyFails(e, plan.Options{})
				if len(res.Failures) == 0 || !strings.Contains(res.Failures[0].Error, c.words) || !strings.Contains(res.Failures[0].Error, was.Instance.ID+" stays") {
					t.Errorf("failures %+v, %v; want %q", res.Failures, err, c.words)
				}
				for _, f := range res.Failures[1:] {
					if !f.Skipped {
						t.Errorf("what waits for it is not skipped: %+v", f)
					}
				}
				is := e.current("sandbox.a")
				if is.Instance.ID != was.Instance.ID || is.Instance.PID != was.Instance.PID || is.Net.Address != was.Net.Address || is.Generation != was.Generation || is.Ports["http"] != was.Ports["http"] {
					t.Errorf("it is %+v, was %+v", is.Instance, was.Instance)
				}
				if now := l.phases(e); !maps.Equal(now, phases) {
					t.Errorf("phases %v, were %v", now, phases)
				}
				l.tidy(e)
				if p := l.plan(e); p.Plan.Summary.Replace != 1 {
					t.Errorf("the replacement is not planned again:\n%s", p.Plan)
				}
				l.main(firsts(""))
				l.nothingToDo(e)
			})
		})
	}
}

// A probe that passes in time is what the old one waits for.
func TestReplacementIsWaitedFor(t *testing.T) {
	withFirst(t, firsts(""), false, func(l *lab, e *Engine) {
		was := l.id(e, "sandbox.a")
		l.main(strings.Replace(firsts("health { tcp = 7 }\n security { user_namespace = false }"), `["sleep", "inf"]`, `["sim", "after=40s", "serve-loopback=7", "after=100h"]`, 1))
		begun := time.Now()
		l.apply(e, plan.Options{})
		if took := time.Since(begun); took < 40*time.Second || took > 45*time.Second {
			t.Errorf("it took %s", took)
		}
		if l.id(e, "sandbox.a") == was {
			t.Error("it was not replaced")
		}
		l.nothingToDo(e)
		l.tidy(e)
	})
}

// A deposed instance whose removal fails keeps what is reserved for it, is no orphan
// and no survivor, and is planned for removal until it is gone.
func TestDeposedStaysOnRecordUntilItIsGone(t *testing.T) {
	withFirst(t, firsts(""), false, func(l *lab, e *Engine) {
		was := e.current("sandbox.a")
		l.world.Fail(sim.OpRemove, was.Instance.ID, errors.New("busy"), sim.Before, sim.Always)
		res, _ := l.applyFails(e, plan.Options{Replace: []string{"sandbox.a"}})
		if len(res.Failures) != 1 || res.Failures[0].Action != plan.ActDelete || !strings.Contains(res.Failures[0].Error, "deposed instance "+was.Instance.ID) {
			t.Fatalf("failures %+v", res.Failures)
		}
		is := e.current("sandbox.a")
		if is.Instance.ID == was.Instance.ID || len(is.Deposed) != 1 || is.Deposed[0].Instance.ID != was.Instance.ID || is.Deposed[0].Net.Address != was.Net.Address {
			t.Fatalf("record %+v, deposed %+v", is.Instance, is.Deposed)
		}
		l.phase(e, "sandbox.b", plan.Running)
		for range 2 { // the second is made from what the file says
			p := l.plan(e).Plan
			if p.Summary != (plan.Summary{Destroy: 1}) || len(p.Changes) < 1 || p.Changes[0].Deposed != was.Instance.ID || len(p.Drift) > 0 {
				t.Fatalf("plan\n%s", p)
			}
			if o := l.gc(e, GCRequest{DryRun: true}); len(o) != 1 || o[0].ID != was.Instance.ID || o[0].Action != OrphanWouldRemove {
				t.Errorf("gc says %+v", o)
			}
			// Whoever comes gets nothing that it still has.
			l.main(firsts("") + strings.ReplaceAll(`sandbox "X" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
}
`, "X", fmt.Sprint("c", len(e.snapshot().Sandboxes))))
			l.applyFails(e, plan.Options{})
			for address, s := range e.snapshot().Sandboxes {
				if s.Net.Address == was.Net.Address || s.IDs == was.IDs {
					t.Errorf("%s has what is reserved for the deposed one: %v %v", address, s.Net, s.IDs)
				}
			}
			l.main(firsts(""))
			l.applyFails(e, plan.Options{})
			l.close(e)
			*e = *l.open("apply")
		}
		l.world.ClearFaults()
		l.apply(e, plan.Options{})
		l.nothingToDo(e)
		l.tidy(e)
	})
}

// The agent goes on removing a deposed instance, slower and slower.
func TestAgentRemovesTheDeposed(t *testing.T) {
	withFirst(t, firsts(""), true, func(l *lab, e *Engine) {
		was := l.id(e, "sandbox.a")
		l.world.Fail(sim.OpRemove, was, errors.New("busy"), sim.Before, sim.Always)
		l.applyFails(e, plan.Options{Replace: []string{"sandbox.a"}})
		l.world.ClearOps()
		sleep(time.Hour)
		tries := 0
		for _, c := range l.world.Ops() {
			if c.Op == sim.OpRemove && c.ID == was {
				tries++
			}
		}
		if tries < 8 || tries > 40 {
			t.Errorf("%d tries in an hour", tries)
		}
		l.world.ClearFaults()
		sleep(6 * time.Minute)
		if d := e.current("sandbox.a").Deposed; len(d) > 0 {
			t.Errorf("deposed %+v", d)
		}
		if p := l.plan(e).Plan; p.Summary != (plan.Summary{}) { // the output alone is left to do
			t.Errorf("plan\n%s", p)
		}
		l.tidy(e)
	})
}

// A destroy takes the deposed with it, and an expiry that keeps the sandbox does not
// keep them.
func TestDestroyTakesTheDeposedWithIt(t *testing.T) {
	for _, text := range []string{firsts(""), firsts(`lifetime { ttl = "1h" }`)} {
		withFirst(t, text, false, func(l *lab, e *Engine) {
			l.world.Fail(sim.OpRemove, l.id(e, "sandbox.a"), errors.New("busy"), sim.Before, 1)
			l.applyFails(e, plan.Options{Replace: []string{"sandbox.a"}})
			if len(e.current("sandbox.a").Deposed) != 1 {
				t.Fatal("nothing is deposed")
			}
			if strings.Contains(text, "ttl") {
				sleep(2 * time.Hour)
				l.apply(e, plan.Options{})
				l.phase(e, "sandbox.a", plan.Stopped)
				l.tidy(e)
			}
		})
	}
}

// A mode or hold other than running is kept, and without a process there is nothing
// to stay up for.
func TestReplacementComesFirstOnlyForAProcess(t *testing.T) {
	withFirst(t, firsts(""), false, func(l *lab, e *Engine) {
		l.act(e, "pause", "sandbox.a")
		was := l.id(e, "sandbox.a")
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		l.phase(e, "sandbox.a", plan.Paused)
		if rec := e.current("sandbox.a"); rec.Hold == nil || rec.Instance.ID == was {
			t.Errorf("hold %+v, instance %s, was %s", rec.Hold, rec.Instance.ID, was)
		}
		l.nothingToDo(e)
		l.act(e, "resume", "sandbox.a")
		l.act(e, "stop", "sandbox.a")
		addr := e.current("sandbox.a").Net.Address
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		if v := l.phase(e, "sandbox.a", plan.Stopped); *v.AddressV4 != addr.String() {
			t.Errorf("address %s, was %s: nobody was served meanwhile", *v.AddressV4, addr)
		}
		l.nothingToDo(e)
		l.tidy(e)
	})
}

// A sandbox moves to another network while it is up; the old network waits for the
// old instance. Its own network cannot be made anew under it.
func TestReplacementComesFirstOnAnotherNetwork(t *testing.T) {
	withFirst(t, firsts(""), false, func(l *lab, e *Engine) {
		l.main(strings.Replace(firsts(""), "10.88.7.0", "10.88.9.0", 1))
		l.world.ReadOnly(t)
		_, err := l.applyFails(e, plan.Options{})
		l.world.ReadWrite()
		if !strings.Contains(fmt.Sprint(err.Diagnostics), "network.n cannot be replaced under sandbox.a") {
			t.Errorf("diagnostics %v", err.Diagnostics)
		}
		was, n := l.id(e, "sandbox.a"), e.current("sandbox.a").Net.Network
		l.main(strings.ReplaceAll(strings.ReplaceAll(strings.Replace(firsts(""), "10.88.7.0", "10.88.9.0", 1), `network "n"`, `network "m"`), "network.n", "network.m"))
		old, _ := e.network(n)
		l.world.ClearOps()
		l.apply(e, plan.Options{})
		if gone, net := l.at(sim.OpRemove, was), l.at(sim.OpRemoveNetwork, old.ID); gone < 0 || net < gone {
			t.Errorf("the instance goes at %d, its network at %d", gone, net)
		}
		l.nothingToDo(e)
		l.tidy(e)
	})
}

// Refused at plan, whatever there is: naming what cannot be there twice.
func TestReplacementCannotComeFirst(t *testing.T) {
	text := strings.Replace(firsts(`volume "work" { path = "/work" }`), "container = 80", "container = 80\n host = 8080", 1)
	l := newLab(t, map[string]string{"main.hcl": strings.Replace(text, "port \"http\" { container = 80\n host = 8080 }", "port \"http\" {\n container = 80\n host = 8080\n }", 1)})
	e := l.open("apply")
	l.world.ReadOnly(t)
	_, err := l.applyFails(e, plan.Options{})
	said := fmt.Sprint(err.Diagnostics)
	for _, words := range []string{"create_before_destroy is not possible", `volume "work"`, "host port 8080", "volume resource"} {
		if !strings.Contains(said, words) {
			t.Errorf("%s lacks %q", said, words)
		}
	}
	l.world.ReadWrite()

	// The files alone do not say so where they are not followed in full.
	l.main(strings.Replace(firsts(`volume "work" { path = "/work" }`), "create_before_destroy = true", "", 1))
	l.apply(e, plan.Options{})
	l.main(strings.Replace(firsts(""), "{ create_before_destroy = true }", "{\n create_before_destroy = true\n ignore_changes = [volume]\n }", 1))
	_, err = l.applyFails(e, plan.Options{})
	if said := fmt.Sprint(err.Diagnostics); !strings.Contains(said, `create_before_destroy of sandbox.a is not possible with volume "work"`) {
		t.Error(said)
	}
	l.end(e)
}

// The state is lost while the old instance cannot go: what is deposed is told by the
// notes, and goes.
func TestRebuildKnowsTheDeposed(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": firsts("")})
		l.twins = true
		e := l.open("apply")
		l.apply(e, plan.Options{})
		was := l.id(e, "sandbox.a")
		l.world.Fail(sim.OpRemove, was, errors.New("busy"), sim.Before, sim.Always)
		l.world.Fail(sim.OpStop, was, errors.New("busy"), sim.Before, sim.Always)
		l.applyFails(e, plan.Options{Replace: []string{"sandbox.a"}})
		is, lineage := l.id(e, "sandbox.a"), e.store.Lineage()
		l.close(e)
		l.lose(nil)
		l.rebuild(lineage, false)
		e = l.open("apply")
		rec := e.current("sandbox.a")
		if rec.Instance.ID != is || len(rec.Deposed) != 1 || rec.Deposed[0].Instance.ID != was {
			t.Errorf("instance %s, deposed %+v; want %s and %s", rec.Instance.ID, rec.Deposed, is, was)
		}
		l.world.ClearFaults()
		l.apply(e, plan.Options{})
		l.nothingToDo(e)
		l.tidy(e)
		l.end(e)
	})
}

// A replacement ordered by the user starts a new ttl, when the new instance is made.
func TestReplacementThatComesFirstHasANewLease(t *testing.T) {
	withFirst(t, firsts(`lifetime { ttl = "1h" }`), false, func(l *lab, e *Engine) {
		sleep(50 * time.Minute)
		l.apply(e, plan.Options{Replace: []string{"sandbox.a"}})
		if at, _, _ := plan.Deadline(&e.current("sandbox.a").Spec, e.current("sandbox.a").Lease); at.Sub(time.Now()) < 55*time.Minute {
			t.Errorf("it ends at %s, it is %s", at, time.Now())
		}
	})
}

// A dry run touches neither host nor state, whatever is to be done and with
// whichever flag, also where the plan is to be saved.
func TestDryRunsTouchNothing(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": firsts("")})
		l.twins = true
		m := &mortal{}
		p := l.process("apply", m)
		e := p.Engine
		// One that was given up, for an import to take back.
		given := "\nsandbox \"given\" {\n image = image.base\n command = [\"sleep\", \"inf\"]\n}\n"
		l.main(firsts("") + given)
		l.apply(e, plan.Options{})
		givenID := l.id(e, "sandbox.given")
		ctx := context.Background()
		if _, err := e.StateRemove(ctx, StateRemoveRequest{Addresses: []string{"sandbox.given"}}); err != nil {
			t.Fatal(err)
		}
		imported := given + fmt.Sprintf("import {\n to = sandbox.given\n id = %q\n}\n", givenID)
		l.main(firsts(""))
		l.apply(e, plan.Options{})
		// The first plan that is saved makes the key that it is sealed with.
		if _, err := e.Plan(ctx, PlanRequest{Source: l.source(), Save: true}); err != nil {
			t.Fatal(err)
		}
		l.world.Fail(sim.OpRemove, l.id(e, "sandbox.a"), errors.New("busy"), sim.Before, 1)
		l.applyFails(e, plan.Options{Replace: []string{"sandbox.a"}})
		edits := map[string]func(string) string{
			"nothing":  func(s string) string { return s },
			"in place": func(s string) string { return strings.Replace(s, "container = 80", "container = 81", 1) },
			"restart":  func(s string) string { return strings.Replace(s, `["sleep", "inf"]`, `["sleep", "1d"]`, 1) },
			"replace": func(s string) string {
				return strings.Replace(s, "create_before_destroy = true }", "create_before_destroy = true }\n security { user_namespace = false }", 1)
			},
			"replace, old first": func(s string) string {
				return strings.Replace(s, "create_before_destroy = true }", "create_before_destroy = false }\n security { user_namespace = false }", 1)
			},
			"network": func(s string) string {
				return strings.Replace(strings.Replace(s, "10.88.7", "10.88.9", 1), "= true }", "= false }", 1)
			},
			"image": func(s string) string { return strings.Replace(s, `"host"`, `"dir:/other"`, 1) },
			"suspend": func(s string) string {
				return strings.Replace(s, "port \"http\"", "operating_mode = \"suspended\"\n port \"http\"", 1)
			},
			"removed": func(s string) string { return s[:strings.Index(s, "sandbox \"b\"")] },
			"moved": func(s string) string {
				return strings.Replace(s, `sandbox "b"`, `sandbox "c"`, 1) + "\nmoved {\n from = sandbox.b\n to = sandbox.c\n}\n"
			},
			"given up": func(s string) string {
				return s[:strings.Index(s, "sandbox \"b\"")] + "\nremoved {\n from = sandbox.b\n lifecycle { destroy = false }\n}\n"
			},
			"imported": func(s string) string { return s + imported },
			"added":    func(s string) string { return s + "\nvolume \"v\" {}\nnetwork \"more\" {}\n" },
			"expiry": func(s string) string {
				return strings.Replace(s, "port \"http\"", "lifetime { ttl = \"1s\" }\n port \"http\"", 1)
			},
		}
		damages := map[string]func(){
			"":        func() {},
			"killed":  func() { l.world.KillMain(l.id(e, "sandbox.b"), 9) },
			"lost":    func() { l.world.Kill(l.id(e, "sandbox.a")) },
			"no link": func() { l.world.Break(l.id(e, "sandbox.b"), "link") },
		}
		options := []plan.Options{{}, {Destroy: true}, {NoRefresh: true}, {RefreshOnly: true}, {ReleaseHolds: true}, {NoStart: true},
			{Replace: []string{"sandbox.a", "sandbox.b"}}, {Targets: []string{"sandbox.a"}}, {Excludes: []string{"sandbox.b"}},
			{Destroy: true, Targets: []string{"sandbox.a"}}}
		plans, kinds := 0, map[plan.Action]bool{}
		for _, damage := range slices.Sorted(maps.Keys(damages)) {
			l.act(e, "pause", "sandbox.b")
			l.act(e, "resume", "sandbox.b")
			damages[damage]()
			sleep(time.Minute)
			l.world.ReadOnly(t)
			commits, files := m.commits(), stateFiles(t, l.state)
			for name, edit := range edits {
				text := edit(firsts(""))
				l.main(text)
				for i, o := range options {
					save := i%2 == 0
					res, err := e.Plan(ctx, PlanRequest{Source: l.source(), Options: o, Save: save})
					if named := slices.Concat(o.Replace, o.Targets, o.Excludes); err != nil && slices.Contains(named, "sandbox.b") && !strings.Contains(text, `sandbox "b"`) {
						continue // there is no such thing to name
					}
					if err != nil {
						t.Fatalf("%s, %s, %+v: %v", damage, name, o, err)
					}
					if (res.Sealed != "") != save {
						t.Fatalf("%s, %s, %+v: save %t gave a plan of %d bytes", damage, name, o, save, len(res.Sealed))
					}
					plans++
					for _, c := range res.Plan.Changes {
						kinds[c.Action] = true
					}
				}
			}
			l.gc(e, GCRequest{DryRun: true})
			l.view(e, "sandbox.a")
			for _, r := range []StateMoveRequest{{From: "sandbox.b", To: "sandbox.c"}, {From: "network.n", To: "network.m"}} {
				r.DryRun = true
				if res, err := e.StateMove(ctx, r); err != nil || len(res.Moved) != 1 || !res.DryRun {
					t.Errorf("%s: %+v: %+v, %v", damage, r, res, err)
				}
			}
			if res, err := e.StateRemove(ctx, StateRemoveRequest{Addresses: []string{"sandbox.b"}, DryRun: true}); err != nil || len(res.Removed) != 1 || !res.DryRun {
				t.Errorf("%s: state rm: %+v, %v", damage, res, err)
			}
			if n := m.commits() - commits; n > 0 {
				t.Errorf("%s: %d transactions", damage, n)
			}
			if diff := cmp.Diff(files, stateFiles(t, l.state)); diff != "" {
				t.Errorf("%s: files of the state dir (-before +after):\n%s", damage, diff)
			}
			l.world.ReadWrite()
			l.main(firsts(""))
			l.apply(e, plan.Options{})
			if damage != "" {
				sleep(time.Hour)
				l.apply(e, plan.Options{})
			}
		}
		t.Logf("%d plans, with %v", plans, slices.Sorted(maps.Keys(kinds)))
		for _, a := range []plan.Action{plan.ActCreate, plan.ActUpdate, plan.ActRestart, plan.ActReplace, plan.ActDelete, plan.ActStart, plan.ActSuspend, plan.ActRecreate, plan.ActRepair, plan.ActMove, plan.ActForget, plan.ActImport, plan.ActExpire} {
			if !kinds[a] {
				t.Errorf("no plan has the action %s", a)
			}
		}
		l.main(firsts("") + imported)
		l.apply(e, plan.Options{})
		l.end(e)
	})
}

// stateFiles are the files of a state dir, each with when it was written.
func stateFiles(t *testing.T, dir string) map[string]time.Time {
	t.Helper()
	all := map[string]time.Time{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all[path] = info.ModTime()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A sandbox that gets another address, or is given up, takes care of what is deposed.
func TestDeposedFollowsItsSandbox(t *testing.T) {
	withFirst(t, firsts(""), false, func(l *lab, e *Engine) {
		was := l.id(e, "sandbox.a")
		l.world.Fail(sim.OpRemove, was, errors.New("busy"), sim.Before, 2)
		l.applyFails(e, plan.Options{Replace: []string{"sandbox.a"}})
		for from, to := range map[string]string{"sandbox.a": "sandbox.z", "network.n": "network.m"} {
			if _, err := e.StateMove(context.Background(), StateMoveRequest{From: from, To: to}); err != nil {
				t.Fatal(err)
			}
		}
		if d := e.current("sandbox.z").Deposed; len(d) != 1 || d[0].Instance.ID != was || d[0].Net.Network != "network.m" {
			t.Fatalf("deposed %+v", d)
		}
		if v := l.view(e, "sandbox.z"); !slices.Equal(v.Deposed, []string{was}) {
			t.Errorf("list and describe tell of %q, not of %s", v.Deposed, was)
		}
		forget := StateRemoveRequest{Addresses: []string{"sandbox.z"}}
		if _, err := e.StateRemove(context.Background(), forget); err == nil {
			t.Fatal("it is forgotten, and its deposed instance with it")
		}
		id := l.id(e, "sandbox.z")
		if _, err := e.StateRemove(context.Background(), forget); err != nil {
			t.Fatal(err)
		}
		if _, there, err := e.host.Inspect(context.Background(), was); there || err != nil {
			t.Errorf("%s is still there, %v", was, err)
		}
		l.main(strings.NewReplacer(`"a"`, `"z"`, "sandbox.a", "sandbox.z", "network.n", "network.m", `"n"`, `"m"`).Replace(firsts("")) +
			fmt.Sprintf("import {\n to = sandbox.z\n id = %q\n}\n", id))
		l.apply(e, plan.Options{})
		if l.id(e, "sandbox.z") != id {
			t.Error("it was not taken back")
		}
		l.tidy(e)
	})
}

// When the files go back to the image of before, after a replacement by another one
// failed, the instance that stayed is what is declared, and stays with its files.
func TestRevertedImageReplacesNothing(t *testing.T) {
	withFirst(t, firsts(""), false, func(l *lab, e *Engine) {
		a, b := l.id(e, "sandbox.a"), l.id(e, "sandbox.b")
		l.world.Fail(sim.OpCreate, "", errors.New("nothing in there"), sim.Before, 1)
		other := strings.Replace(firsts(""), `"host"`, `"dir:/other"`, 1)
		l.main(other)
		res, _ := l.applyFails(e, plan.Options{})
		if len(res.Failures) < 1 || res.Failures[0].Address != "sandbox.a" || res.Failures[0].Skipped || e.snapshot().Images["image.base"].Spec.Source != "dir:/other" {
			t.Fatalf("failures %+v", res.Failures)
		}
		p := l.plan(e).Plan // of the same files: what failed is still to be done, from what is there
		i := slices.IndexFunc(p.Changes, func(c plan.Change) bool { return c.Address == "sandbox.a" && c.Action == plan.ActReplace })
		if p.Summary != (plan.Summary{Replace: 2}) || i < 0 || !slices.ContainsFunc(p.Changes[i].Diff, func(d plan.Diff) bool {
			return d.Path == "image" && string(d.Before) == `"host"` && string(d.After) == `"dir:/other"`
		}) {
			t.Errorf("plan\n%s", p)
		}
		l.main(firsts(""))
		if p := l.plan(e).Plan; p.Summary != (plan.Summary{Change: 1}) {
			t.Errorf("plan\n%s", p)
		}
		l.apply(e, plan.Options{})
		if l.id(e, "sandbox.a") != a || l.id(e, "sandbox.b") != b {
			t.Error("an instance was replaced")
		}
		l.nothingToDo(e)
		l.main(other) // and forth
		l.apply(e, plan.Options{})
		if l.id(e, "sandbox.a") == a || l.id(e, "sandbox.b") == b {
			t.Error("not replaced")
		}
		l.nothingToDo(e)
	})
}
