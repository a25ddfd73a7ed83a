package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

func moved(from, to string) string {
	return fmt.Sprintf("moved {\n  from = %s\n  to   = %s\n}\n", from, to)
}

func removed(from string) string {
	return fmt.Sprintf("removed {\n  from = %s\n  lifecycle {\n    destroy = false\n  }\n}\n", from)
}

func imported(id, to string) string {
	return fmt.Sprintf("import {\n  to = %s\n  id = %q\n}\n", to, id)
}

// done lists what an apply's plan held, "action address" each.
func changes(p *plan.Plan) []string {
	var out []string
	for _, c := range p.Changes {
		if c.Action != plan.ActNoop {
			out = append(out, string(c.Action)+" "+c.Address)
		}
	}
	return out
}

func (l *lab) wants(p *plan.Plan, want ...string) {
	l.t.Helper()
	if got := changes(p); !slices.Equal(got, want) {
		l.t.Errorf("the plan is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// With everything renamed in the files the plan is moves and nothing else, though some
// values come from what the renamed things export; applying it touches no host object,
// and there is nothing to do then.
func TestMovedBlocks(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	before := l.view(e, "sandbox.a")
	uid := e.current("sandbox.a").UID
	text := rename(twoSandboxes, otherNames...)
	blocks := moved("sandbox.a", "sandbox.one") + moved("network.n", "network.net") + moved("volume.data", "volume.store") + moved("image.base", "image.root")
	l.main(blocks + text)
	l.wants(l.plan(e).Plan, "move image.root", "move network.net", "move sandbox.one", "move volume.store")
	if e.current("sandbox.a") == nil {
		t.Error("a plan moved something")
	}
	l.world.ClearOps()
	var told []string
	res, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, func(p Progress) { told = append(told, p.Address+" "+p.State) })
	if err != nil {
		t.Fatal(err)
	}
	e.background.Wait()
	if ops := l.writes(); len(ops) > 0 {
		t.Errorf("moves touched the host: %v", ops)
	}
	if res.Applied.Change != 4 || !slices.Contains(told, "sandbox.one done") || len(res.Outputs) != 1 {
		t.Errorf("applied %+v, told %q, outputs %+v", res.Applied, told, res.Outputs)
	}
	l.nothingToDo(e)
	l.tidy(e)
	after := l.view(e, "sandbox.one")
	if *after.PID != *before.PID || after.Ports["http"] != before.Ports["http"] || e.current("sandbox.one").UID != uid || after.Generation != before.Generation {
		t.Errorf("it is %+v, was %+v", after, before)
	}
	if got := l.events(e, "sandbox.one"); !slices.Contains(got, "move/moved from sandbox.a/apply") {
		t.Errorf("its history is %v", got)
	}
	l.main(text) // the blocks may go
	l.nothingToDo(e)
	l.close(e)
	e = l.open("apply")
	l.nothingToDo(e)
	l.end(e)
}

// A move and a change of the same thing come in one apply.
func TestMovedAndChanged(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	pid := *l.view(e, "sandbox.a").PID
	l.main(moved("sandbox.a", "sandbox.b") + rename(one(`labels = { x = "y" }`), `"a"`, `"b"`))
	l.wants(l.plan(e).Plan, "move sandbox.b", "update sandbox.b")
	l.apply(e, plan.Options{})
	if v := l.view(e, "sandbox.b"); *v.PID != pid || v.Labels["x"] != "y" {
		t.Errorf("%+v", v)
	}
	l.nothingToDo(e)
	l.main(moved("sandbox.a", "sandbox.b") + moved("sandbox.b", "sandbox.c") + rename(one(`env = { X = "1" }`), `"a"`, `"c"`))
	l.wants(l.plan(e).Plan, "move sandbox.c", "restart sandbox.c")
	l.apply(e, plan.Options{})
	l.nothingToDo(e)
	l.end(e)
}

// An apply that is interrupted after its moves has made them; the next goes on from there.
func TestInterruptedAfterMoves(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.main(moved("sandbox.a", "sandbox.b") + rename(one(`env = { X = "1" }`), `"a"`, `"b"`) + box("c", ""))
	ctx, cancel := context.WithCancel(context.Background())
	res, err := e.Apply(ctx, l.request(plan.Options{}), nil, func(p Progress) {
		if p.Action == plan.ActMove {
			cancel()
		}
	})
	if err != nil || !res.Interrupted || res.Applied.Change != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	l.wants(l.plan(e).Plan, "restart sandbox.b", "create sandbox.c")
	l.apply(e, plan.Options{})
	l.nothingToDo(e)
	l.end(e)
}

// How many there are may depend on what something exports that has another name now.
func TestMovedUnderACount(t *testing.T) {
	text := "image \"base\" { source = \"host\" }\nnetwork \"n\" { cidr = \"10.88.7.0/24\" }\n" +
		"sandbox \"a\" {\n  for_each = toset([network.n.gateway])\n  image = image.base\n  command = [\"sleep\", \"inf\"]\n}\n"
	l := newLab(t, map[string]string{"main.hcl": "network \"n\" { cidr = \"10.88.7.0/24\" }\n"})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.main(text)
	l.apply(e, plan.Options{})
	id := l.id(e, `sandbox.a["10.88.7.1"]`)
	l.main(moved("network.n", "network.m") + rename(text, `"n"`, `"m"`, "network.n", "network.m"))
	l.wants(l.plan(e).Plan, "move network.m")
	l.apply(e, plan.Options{})
	if l.id(e, `sandbox.a["10.88.7.1"]`) != id {
		t.Error("it is another one")
	}
	l.nothingToDo(e)
	l.main(moved("network.n", "network.m") + rename(text, `"n"`, `"m"`))
	if _, err := e.Plan(context.Background(), PlanRequest{Source: l.source()}); err == nil {
		t.Error("what is not declared is not missed")
	}
	l.main(rename(text, `"n"`, `"m"`, "network.n", "network.m"))
	l.end(e)
}

const blueAndGreen = `
image "base" { source = "host" }
sandbox "blue" {
  image   = image.base
  command = ["sim", "append=/log:b"]
}
sandbox "green" {
  image   = image.base
  command = ["sim", "append=/log:g"]
}
`

// Two that trade names do it once, also when the next process plans, an apply without
// anything else is made, and until the blocks are gone.
func TestTwoTradeNames(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": blueAndGreen})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	blue, green := l.id(e, "sandbox.blue"), l.id(e, "sandbox.green")
	traded := rename(blueAndGreen, `"blue"`, `"green"`, `"green"`, `"blue"`)
	swap := moved("sandbox.blue", "sandbox.tmp") + moved("sandbox.tmp", "sandbox.green") + moved("sandbox.green", "sandbox.blue")
	l.main(swap + traded)
	l.wants(l.plan(e).Plan, "move sandbox.blue", "move sandbox.green")
	l.apply(e, plan.Options{})
	check := func(a, b string) {
		t.Helper()
		l.nothingToDo(e)
		if l.id(e, "sandbox.blue") != a || l.id(e, "sandbox.green") != b {
			t.Errorf("blue is %s, green %s", l.id(e, "sandbox.blue"), l.id(e, "sandbox.green"))
		}
	}
	check(green, blue)
	pulled, err := e.Pull(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l.close(e)
	if _, err := Push(t.Context(), OpenOptions{StateDir: l.state, RunDir: t.TempDir()}, PushRequest{Name: "s.json", Document: again(t, pulled)}); err != nil {
		t.Fatal(err)
	}
	e = l.open("apply")
	check(green, blue)
	l.apply(e, plan.Options{})
	check(green, blue)
	l.main(traded)
	l.apply(e, plan.Options{}) // an apply of nothing forgets the circle
	l.main(swap + blueAndGreen)
	l.apply(e, plan.Options{})
	check(blue, green)
	l.end(e)
}

// Blocks that trade names of what is made with them do nothing to it later.
func TestNamesTradedBeforeAnythingWas(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": moved("sandbox.blue", "sandbox.green") + moved("sandbox.green", "sandbox.blue") + blueAndGreen})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.nothingToDo(e)
	l.end(e)
}

// A saved plan with moves is applied as it is, and is stale once a record moved.
func TestSavedPlanWithMoves(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.main(moved("sandbox.a", "sandbox.b") + rename(one(""), `"a"`, `"b"`))
	s := saved(t, l, e)
	l.mv(e, "sandbox.a", "sandbox.c")
	_, err := e.Apply(context.Background(), ApplyRequest{Saved: planFile(t, e, s)}, nil, nil)
	l.refused(err, Stale, "the state has changed since")
	l.mv(e, "sandbox.c", "sandbox.a")
	s = saved(t, l, e)
	if _, err := e.Apply(context.Background(), ApplyRequest{Saved: planFile(t, e, s)}, nil, nil); err != nil {
		t.Fatal(err)
	}
	l.nothingToDo(e)
	l.end(e)
}

// The agent works on at what is moved; an apply that was shown before it changed
// something moves what is there then.
func TestMovedUnderTheAgent(t *testing.T) {
	withAgent(t, one(`lifetime { ttl = "1h" }`), func(l *lab, e *Engine, k *keeper) {
		until := *l.view(e, "sandbox.a").ExpiresAt
		l.main(moved("sandbox.a", "sandbox.b") + rename(one(`lifetime { ttl = "1h" }`), `"a"`, `"b"`))
		r := l.request(plan.Options{})
		r.AutoApprove = false
		_, err := e.Apply(context.Background(), r, func(*PlanResult) (bool, error) {
			l.world.KillMain(l.id(e, "sandbox.a"), 9)
			sleep(10 * time.Second)
			return true, nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		sleep(time.Minute)
		v := l.phase(e, "sandbox.b", plan.Running)
		if !v.ExpiresAt.Equal(until) {
			t.Errorf("it ends at %s, want %s", v.ExpiresAt, until)
		}
		sleep(time.Until(until))
		l.phase(e, "sandbox.b", plan.Stopped)
	})
}

// Removed from the files but for the host, and taken back: the same process, deadline,
// address and ports all the way.
func TestRemovedAndImported(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(several)
		e := l.open("agent")
		l.apply(e, plan.Options{})
		k := l.keep(e)
		before, uid := l.view(e, "sandbox.up"), e.current("sandbox.up").UID
		id := *before.InstanceID
		n, _ := e.network("network.n")
		data, _ := e.volume("volume.data")
		// All of it goes from the files, but what runs stays with what it stands on.
		l.main(removed("sandbox.up") + "image \"base\" { source = \"host\" }\n")
		l.wants(l.plan(e).Plan, "delete sandbox.done", "delete sandbox.frozen", "delete sandbox.held", "forget sandbox.up",
			"forget network.n", "forget volume.data", "delete volume.spare")
		l.apply(e, plan.Options{})
		l.nothingToDo(e)
		sleep(10 * time.Hour) // beyond its ttl
		s, _, err := e.host.Inspect(context.Background(), id)
		if err != nil || !s.Alive || !s.Released || len(s.Missing) > 0 || s.Process.PID != *before.PID {
			t.Errorf("it is %+v, %v", s, err)
		}
		if found := l.gc(e, GCRequest{}); len(found) != 4 || slices.ContainsFunc(found, func(o Orphan) bool { return o.Action != OrphanKept }) {
			t.Errorf("gc tells of %+v", found)
		}
		// Taken back, with a later deadline so that it lives on.
		back := rename(several, `ttl = "8h"`, `ttl = "80h"`)
		l.main(imported(id, "sandbox.up") + back)
		p := l.plan(e).Plan
		if got := changes(p); !slices.Equal(got[:3], []string{"import network.n", "import volume.data", "import sandbox.up"}) || !slices.Contains(got, "update sandbox.up") {
			t.Errorf("the plan is %q", got)
		}
		l.apply(e, plan.Options{})
		after := l.view(e, "sandbox.up")
		if after.Phase != plan.Running || *after.PID != *before.PID || *after.AddressV4 != *before.AddressV4 || after.Ports["http"] != before.Ports["http"] || e.current("sandbox.up").UID != uid {
			t.Errorf("it is %+v, was %+v", after, before)
		}
		if now, _ := e.network("network.n"); now == nil || now.ID != n.ID {
			t.Errorf("network.n is %+v, was %+v", now, n)
		}
		if now, _ := e.volume("volume.data"); now == nil || now.ID != data.ID {
			t.Errorf("volume.data is %+v, was %+v", now, data)
		}
		if s, _, err := e.host.Inspect(context.Background(), id); err != nil || s.Released {
			t.Errorf("it still bears the mark: %+v, %v", s, err)
		}
		l.nothingToDo(e)
		l.tidy(e)
		sleep(time.Minute)
		l.world.KillMain(id, 9)
		sleep(time.Minute)
		l.phase(e, "sandbox.up", plan.Running) // the agent looks after it again
		k.stop()
		l.end(e)
	})
}

// What was moved and then given up is called by its last address, by the plan as by gc.
func TestRemovedByItsLastAddress(t *testing.T) {
	l := newLab(t, nil)
	part := func(name string) string {
		return "sandbox \"" + name + "\" {\n  image = image.base\n  command = [\"sleep\", \"inf\"]\n  network { name = network.n }\n  mount {\n    volume = volume.data\n    path = \"/data\"\n  }\n}\n"
	}
	base := "image \"base\" { source = \"host\" }\n"
	kept := base + "network \"n\" {}\nvolume \"data\" {}\n"
	l.main(kept + part("old"))
	e := l.open("apply")
	l.apply(e, plan.Options{})
	id := l.id(e, "sandbox.old")
	l.main(kept + part("new") + "moved {\n  from = sandbox.old\n  to = sandbox.new\n}\n")
	l.apply(e, plan.Options{})
	l.main(kept + removed("sandbox.new"))
	l.apply(e, plan.Options{})

	l.main(base)
	named := 0
	for _, c := range l.plan(e).Plan.Changes {
		if strings.Contains(c.Cause, id) {
			named++
			if !strings.Contains(c.Cause, "sandbox.new") || strings.Contains(c.Cause, "sandbox.old") {
				t.Errorf("the plan says %q", c.Cause)
			}
		}
	}
	if named != 2 {
		t.Errorf("%d changes name the instance, not those of the network and of the volume", named)
	}
	l.apply(e, plan.Options{})
	found := l.gc(e, GCRequest{})
	if len(found) != 3 {
		t.Errorf("gc tells of %+v", found)
	}
	for _, o := range found {
		if text := o.Address + " " + o.Found; strings.Contains(text, "sandbox.old") || !strings.Contains(text, "sandbox.new") {
			t.Errorf("gc says %q", text)
		}
	}
	l.close(e)
}

// What is left on the host keeps its address, ids and range in the very apply that leaves
// it there.
func TestRemovedAndAnotherMade(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	b, n := e.current("sandbox.b"), e.snapshot().Networks["network.n"]
	other := "sandbox \"c\" {\n  image = image.base\n  command = [\"sleep\", \"inf\"]\n  network { name = network.n }\n}\n"
	l.main(removed("sandbox.b") + removed("sandbox.a") + "image \"base\" { source = \"host\" }\nnetwork \"n\" { }\n" + other)
	l.apply(e, plan.Options{})
	c := e.current("sandbox.c")
	if c.Net.Address == b.Net.Address || c.IDs == b.IDs {
		t.Errorf("sandbox.c has %+v %+v, which sandbox.b has still", c.Net, c.IDs)
	}
	l.main(removed("network.n") + "image \"base\" { source = \"host\" }\nnetwork \"m\" { }\n" + rename(other, "network.n", "network.m"))
	l.apply(e, plan.Options{})
	if m, _ := e.network("network.m"); m.CIDR.Overlaps(n.CIDR) {
		t.Errorf("network.m has the range of the one that is left: %s", m.CIDR)
	}
	l.destroy(e)
	o, err := e.host.Observe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	l.discard(e, sortedKeys(o.Instances)...)
	l.end(e)
}

// What a restored backup does not know of is taken back under any name; what is not
// this state's, or is not there, is refused before anything is done.
func TestImport(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(several)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		l.act(e, "pause", "sandbox.frozen")
		up, frozen, held := l.id(e, "sandbox.up"), l.id(e, "sandbox.frozen"), l.id(e, "sandbox.held")
		data, _ := e.volume("volume.data")
		spare, _ := e.volume("volume.spare")
		l.takeRecords(e, map[string]string{"sandbox.up": "sandboxes", "sandbox.frozen": "sandboxes", "volume.data": "volumes", "volume.spare": "volumes"})
		l.close(e)
		e = l.open("apply")
		text := rename(several, `sandbox "frozen"`, `sandbox "ice"`)
		for id, words := range map[string]string{
			"0123456789ab": "Nothing on this host has this id", "nonsense": "Nothing on this host has this id",
			held: "It is on record already, as sandbox.held", spare.ID: "It is the id of a volume",
		} {
			l.main(imported(id, "sandbox.ice") + text)
			l.world.ClearOps()
			_, err := l.applyFails(e, plan.Options{})
			if len(err.Diagnostics) == 0 || !strings.Contains(err.Diagnostics[0].Detail, words) {
				t.Errorf("%s: %+v", id, err)
			}
			if ops := l.writes(); len(ops) > 0 {
				t.Errorf("%s: a refused import touched the host: %v", id, ops)
			}
		}
		l.main(imported(up, "sandbox.up") + imported(frozen, "sandbox.ice") + imported(spare.ID, "volume.spare") + text)
		l.wants(l.plan(e).Plan, "import sandbox.ice", "import volume.data", "import sandbox.up", "import volume.spare")
		l.world.ClearOps()
		l.apply(e, plan.Options{})
		e.background.Wait()
		for _, call := range l.world.Ops() {
			if call.ID == up || call.ID == frozen || call.ID == spare.ID || call.ID == data.ID {
				t.Errorf("an import touched the host: %+v", call)
			}
		}
		if v := l.phase(e, "sandbox.ice", plan.Paused); *v.InstanceID != frozen || v.Hold == nil || v.Hold.By != byOperator {
			t.Errorf("%+v", v)
		}
		if v, _ := e.volume("volume.data"); v.ID != data.ID {
			t.Errorf("volume.data is %+v", v)
		}
		l.nothingToDo(e)
		l.tidy(e)
		l.end(e)
	})
}

// An import whose mark cannot be taken away leaves no record, and is done by the next.
func TestImportThatFails(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": blueAndGreen})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	id := l.id(e, "sandbox.blue")
	l.rm(e, "sandbox.blue")
	l.main(imported(id, "sandbox.blue") + blueAndGreen)
	l.world.Fail(sim.OpReclaim, id, errors.New("the disk is full"), sim.Before, 1)
	if _, err := l.applyFails(e, plan.Options{}); !strings.Contains(err.Message, "the disk is full") {
		t.Errorf("%v", err)
	}
	if e.current("sandbox.blue") != nil {
		t.Error("it is on record")
	}
	l.apply(e, plan.Options{})
	if l.id(e, "sandbox.blue") != id {
		t.Error("it is another one")
	}
	l.nothingToDo(e)
	l.tidy(e)
	l.end(e)
}

// What refresh-only prints and its exit code are computed from the same plan; a move
// that waits for an apply is neither.
func TestRefreshOnlyMovesNothing(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.main(moved("sandbox.a", "sandbox.b") + rename(one(""), `"a"`, `"b"`))
	l.apply(e, plan.Options{RefreshOnly: true})
	if e.current("sandbox.a") == nil {
		t.Error("it moved")
	}
	l.apply(e, plan.Options{Destroy: true})
	if got := sortedKeys(e.snapshot().Sandboxes); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
	l.close(e)
	l.clean()
}
