package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/runtime/sim"
	"pinfold/state"
)

const pair = `
image "base" { source = "host" }
network "n" { cidr = "10.88.7.0/24" }
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
}
sandbox "b" {
  image   = image.base
  command = ["sleep", "inf"]
}
`

func (l *lab) gc(e *Engine, r GCRequest) []Orphan {
	l.t.Helper()
	res, err := e.GC(context.Background(), r)
	if err != nil {
		l.t.Fatalf("gc: %v", err)
	}
	return res.Orphans
}

// unrecord takes a sandbox's record out of the state behind the engine's back.
func (l *lab) unrecord(e *Engine, address string) {
	l.t.Helper()
	if err := e.store.Update(func(tx state.Tx) error { return tx.Delete(state.Sandboxes, address) }); err != nil {
		l.t.Fatal(err)
	}
}

// What is in order is no orphan, whatever its phase.
func TestGCFindsNothingInOrder(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(several)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		l.act(e, "stop", "sandbox.held")
		l.act(e, "pause", "sandbox.frozen")
		l.world.ClearOps()
		if found := l.gc(e, GCRequest{}); len(found) > 0 {
			t.Errorf("orphans: %+v", found)
		}
		if ops := l.writes(); len(ops) > 0 {
			t.Errorf("gc touched the host: %v", ops)
		}
		l.end(e)
	})
}

// A create that was cut off is the only thing that goes by itself: the journal
// proves it half-made.
func TestGCRemovesWhatTheJournalProvesHalfMade(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(pair)
		p := l.process("apply", &mortal{})
		l.world.Fail(sim.OpRemove, "", errors.New("busy"), sim.Before, sim.Always)
		l.world.Fail(sim.OpStart, "", errors.New("no"), sim.Before, sim.Always)
		p.Apply(context.Background(), l.request(plan.Options{}), nil, nil) // both fail, and cannot be undone
		doomed := p.snapshot().Sandboxes["sandbox.a"].Doomed
		if len(doomed) == 0 {
			t.Fatal("nothing is half-made")
		}
		p.bury(t)
		e := l.open("apply")
		l.world.ClearOps()
		dry := l.gc(e, GCRequest{DryRun: true})
		if !slices.ContainsFunc(dry, func(o Orphan) bool { return o.ID == doomed[0] && o.Action == OrphanWouldRemove }) {
			t.Errorf("a dry run says %+v", dry)
		}
		if ops := l.writes(); len(ops) > 0 {
			t.Errorf("a dry run touched the host: %v", ops)
		}
		still := l.gc(e, GCRequest{})
		if !slices.ContainsFunc(still, func(o Orphan) bool { return o.ID == doomed[0] && o.Action == OrphanReported }) {
			t.Errorf("what cannot be removed: %+v", still)
		}
		l.world.ClearFaults()
		gone := l.gc(e, GCRequest{})
		if !slices.ContainsFunc(gone, func(o Orphan) bool { return o.ID == doomed[0] && o.Action == OrphanRemoved }) {
			t.Errorf("gc says %+v", gone)
		}
		if _, there, err := e.host.Inspect(context.Background(), doomed[0]); there || err != nil {
			t.Errorf("%s is still there, %v", doomed[0], err)
		}
		if found := l.gc(e, GCRequest{}); len(found) > 0 {
			t.Errorf("a second gc says %+v", found)
		}
		l.apply(e, plan.Options{})
		l.tidy(e)
		l.end(e)
	})
}

// A process that died in a create leaves a half-made instance. Without an agent a
// look tells of it and leaves it; opening for a change is what removes it, and gc
// tells of that.
func TestGCTellsWhatOpeningRemoved(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(pair)
		p := l.process("apply", &mortal{})
		l.apply(p.Engine, plan.Options{})
		l.main(pair + "sandbox \"c\" {\n image = image.base\n command = [\"sleep\", \"inf\"]\n}\n")
		l.world.Crash(1, sim.Midway)
		p.Apply(context.Background(), l.request(plan.Options{}), nil, nil)
		p.bury(t)
		store, err := state.Open(context.Background(), state.Options{Dir: l.state, Verb: "gc", ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		look, err := NewEngine(context.Background(), EngineOptions{Store: store, Host: l.world.Open(store.Lineage()), Settings: l.settings, ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		l.world.ClearOps()
		dry := l.gc(look, GCRequest{DryRun: true})
		if len(dry) != 1 || dry[0].Address != "sandbox.c" || dry[0].Action != OrphanWouldRemove {
			t.Fatalf("a dry run says %+v", dry)
		}
		if ops := l.writes(); len(ops) > 0 {
			t.Errorf("looking touched the host: %v", ops)
		}
		l.close(look)
		e := l.open("gc")
		gone := l.gc(e, GCRequest{})
		if len(gone) != 1 || gone[0].ID != dry[0].ID || gone[0].Action != OrphanRemoved {
			t.Errorf("gc says %+v", gone)
		}
		if again := l.gc(e, GCRequest{}); len(again) > 0 {
			t.Errorf("a second gc says %+v", again)
		}
		l.apply(e, plan.Options{})
		l.end(e)
	})
}

// A live instance without a record is reported and never ended; one without a
// process goes when it is named, a released one never.
func TestGCReportsWhatHasNoRecord(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(pair)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		a, b := sandboxID(e, "sandbox.a"), sandboxID(e, "sandbox.b")
		network, _ := e.network("network.n")
		l.unrecord(e, "sandbox.a")
		l.unrecord(e, "sandbox.b")
		l.close(e)
		e = l.open("apply")
		ctx := context.Background()
		if err := e.host.Release(ctx, b); err != nil {
			t.Fatal(err)
		}
		l.world.ClearOps()
		find := func(id string) *Orphan {
			found := l.gc(e, GCRequest{})
			if i := slices.IndexFunc(found, func(o Orphan) bool { return o.ID == id }); i >= 0 {
				return &found[i]
			}
			return nil
		}
		if o := find(a); o == nil || !o.Live || o.Address != "sandbox.a" || o.Action != OrphanReported {
			t.Errorf("the live one: %+v", o)
		}
		if o := find(b); o == nil || !o.Released || o.Action != OrphanKept {
			t.Errorf("the released one: %+v", o)
		}
		for id, words := range map[string]string{a: "it lives", b: "was released", network.ID: "not the id of an orphan", "0123456789ab": "not the id of an orphan"} {
			_, err := e.GC(ctx, GCRequest{Remove: []string{id}})
			l.refused(err, Invalid, words)
		}
		if ops := l.writes(); len(ops) > 0 {
			t.Errorf("reporting touched the host: %v", ops)
		}
		l.world.Kill(a)
		if o := find(a); o == nil || o.Live || o.Action != OrphanReported {
			t.Errorf("the dead one: %+v", o)
		}
		if found := l.gc(e, GCRequest{Remove: []string{a}, DryRun: true}); !slices.ContainsFunc(found, func(o Orphan) bool { return o.ID == a && o.Action == OrphanWouldRemove }) {
			t.Errorf("a dry run of its removal: %+v", found)
		}
		l.gc(e, GCRequest{Remove: []string{a}})
		if o := find(a); o != nil {
			t.Errorf("removed and yet %+v", o)
		}
		if got := l.events(e, "sandbox.a"); !slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "gc") }) {
			t.Errorf("history has %v", got)
		}
		if s, there, err := e.host.Inspect(ctx, b); !there || err != nil || !s.Alive {
			t.Errorf("the released one is %+v, %v", s, err)
		}
		l.world.KillMain(b, 9)
		if err := e.host.Remove(ctx, b); err != nil {
			t.Fatal(err)
		}
		l.end(e)
	})
}

// What could not be looked at may be alive: it is never removed by name.
func TestGCRemovesNothingUnknown(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(pair)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		a := sandboxID(e, "sandbox.a")
		l.takeRecords(e, map[string]string{"sandbox.a": state.Sandboxes})
		l.close(e)
		e = l.open("gc")
		l.world.Unknown(a, "too many open files")
		_, err := e.GC(context.Background(), GCRequest{Remove: []string{a}})
		l.refused(err, Invalid, "may be alive")
		l.world.Unknown(a, "")
		if s, there, err := e.host.Inspect(context.Background(), a); err != nil || !there || !s.Alive {
			t.Errorf("it is %+v, %v", s, err)
		}
		l.world.Kill(a)
		l.gc(e, GCRequest{Remove: []string{a}})
		l.end(e)
	})
}

// meanwhile is a host on which something happens right after each look at everything.
type meanwhile struct {
	runtime.Host
	happens func()
}

func (m meanwhile) Observe(ctx context.Context) (runtime.Observation, error) {
	seen, err := m.Host.Observe(ctx)
	m.happens()
	return seen, err
}

// What goes between a look at everything and the look at it alone is no orphan.
func TestGCTellsNothingOfWhatIsGoneByThen(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(pair)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		a := sandboxID(e, "sandbox.a")
		l.takeRecords(e, map[string]string{"sandbox.a": state.Sandboxes})
		l.close(e)
		e = l.open("gc")
		orphan := func(o Orphan) bool { return o.ID == a }
		if found := l.gc(e, GCRequest{}); !slices.ContainsFunc(found, orphan) {
			t.Fatalf("before it goes: %+v", found)
		}
		host := e.host
		e.host = meanwhile{host, sync.OnceFunc(func() {
			l.world.Kill(a)
			if err := host.Remove(context.Background(), a); err != nil {
				t.Error(err)
			}
		})}
		if found := l.gc(e, GCRequest{}); slices.ContainsFunc(found, orphan) {
			t.Errorf("it is gone, and yet %+v", found)
		}
		l.world.ClearOps()
		_, err := e.GC(context.Background(), GCRequest{Remove: []string{a}})
		l.refused(err, Invalid, "not the id of an orphan")
		e.host = host
		l.end(e)
	})
}

// A live instance of a sandbox that was released is nobody's survivor.
func TestAReleasedInstanceIsNoSurvivor(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.twins = true
		l.main(pair)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		ctx := context.Background()
		rec := e.current("sandbox.b")
		released := rec.Instance.ID
		if err := e.host.Release(ctx, released); err != nil {
			t.Fatal(err)
		}
		c := copySandbox(rec)
		c.Instance = nil
		if err := e.as(byApply).commit((&write{}).sandbox(c)); err != nil {
			t.Fatal(err)
		}
		l.apply(e, plan.Options{})
		if now := sandboxID(e, "sandbox.b"); now == released {
			t.Error("the record was bound to what had been released")
		}
		if s, _, err := e.host.Inspect(ctx, released); err != nil || !s.Alive {
			t.Errorf("the released one is %+v, %v", s, err)
		}
		l.world.KillMain(released, 9)
		if err := e.host.Remove(ctx, released); err != nil {
			t.Fatal(err)
		}
		l.end(e)
	})
}

// What is on record and nowhere on the host is said; plan and agent mend it.
func TestGCTellsOfHollowRecords(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(several)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		ctx := context.Background()
		n, _ := e.network("network.n")
		v, _ := e.volume("volume.spare")
		id := sandboxID(e, "sandbox.frozen")
		l.world.BreakNetwork(n.ID, "bridge")
		for _, err := range []error{e.host.RemoveVolume(ctx, v.ID), e.host.Remove(ctx, id)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, o := range l.gc(e, GCRequest{}) {
			if o.Kind != "record" || o.Action != OrphanReported || o.Found == "" || o.Hint == "" {
				t.Errorf("gc has %+v", o)
			}
			got = append(got, o.Address)
		}
		if want := []string{"network.n", "sandbox.frozen", "volume.spare"}; !slices.Equal(got, want) {
			t.Errorf("hollow are %v, want %v", got, want)
		}
		sleep(time.Hour)
		l.apply(e, plan.Options{})
		l.nothingToDo(e)
		if found := l.gc(e, GCRequest{}); len(found) > 0 {
			t.Errorf("after an apply: %+v", found)
		}
		l.end(e)
	})
}

// The agent tells once of what it finds without a record, and leaves it alone.
func TestTheAgentTellsOfOrphans(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(pair)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		a := sandboxID(e, "sandbox.a")
		l.unrecord(e, "sandbox.a")
		l.close(e)
		e = l.open("agent")
		if err := e.host.EnsureVolume(context.Background(), runtime.Volume{ID: "0123456789ab"}); err != nil {
			t.Fatal(err)
		}
		l.world.ClearOps()
		k := l.keep(e)
		sleep(5 * time.Minute)
		k.stop()
		if ops := l.writes(); len(ops) > 0 {
			t.Errorf("the agent touched the host: %v", ops)
		}
		for _, address := range []string{"sandbox.a", "volume 0123456789ab"} {
			told := 0
			for _, ev := range l.events(e, address) {
				if strings.Contains(ev, "orphan") {
					told++
				}
			}
			if told != 1 {
				t.Errorf("%s: told of %d times: %v", address, told, l.events(e, address))
			}
		}
		if s, _, err := e.host.Inspect(context.Background(), a); err != nil || !s.Alive {
			t.Errorf("the orphan is %+v, %v", s, err)
		}
		l.world.Kill(a)
		l.gc(e, GCRequest{Remove: []string{a, "0123456789ab"}})
		l.end(e)
	})
}

// takeRecords deletes the records of these, as a restored older backup does.
func (l *lab) takeRecords(e *Engine, records map[string]string) {
	l.t.Helper()
	err := e.store.Update(func(tx state.Tx) error {
		for address, bucket := range records {
			if err := tx.Delete(bucket, address); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// What a restored backup does not know of comes back by its note: the same process,
// on its network and volumes, with all that was recorded of it.
func TestGCAdopts(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(several)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		l.act(e, "pause", "sandbox.frozen")
		before := l.view(e, "sandbox.up")
		up, frozen := sandboxID(e, "sandbox.up"), sandboxID(e, "sandbox.frozen")
		n, _ := e.network("network.n")
		data, _ := e.volume("volume.data")
		rec := e.current("sandbox.up")
		l.takeRecords(e, map[string]string{"sandbox.up": state.Sandboxes, "sandbox.frozen": state.Sandboxes, "network.n": state.Networks, "volume.data": state.Volumes})
		l.close(e)
		e = l.open("gc")
		ctx := context.Background()
		found := l.gc(e, GCRequest{})
		for id, want := range map[string]string{up: "sandbox.up", n.ID: "network.n", data.ID: "volume.data", rec.Claim["work"]: `sandbox.up volume "work"`} {
			i := slices.IndexFunc(found, func(o Orphan) bool { return o.ID == id })
			if i < 0 || found[i].Address != want || !strings.Contains(found[i].Hint, "gc -adopt "+up) {
				t.Errorf("%s: %+v", want, found)
			}
			if want != "sandbox.up" {
				_, err := e.GC(ctx, GCRequest{Remove: []string{id}})
				l.refused(err, Invalid, "uses it")
			}
		}
		l.world.ClearOps()
		got := l.gc(e, GCRequest{Adopt: []string{up, frozen}})
		if len(got) != 2 || got[0].Action != OrphanAdopted || got[1].Action != OrphanAdopted {
			t.Errorf("gc says %+v", got)
		}
		if ops := l.writes(); len(ops) > 0 {
			t.Errorf("taking back touched the host: %v", ops)
		}
		v := l.view(e, "sandbox.up")
		if v.Phase != plan.Running || *v.PID != *before.PID || *v.AddressV4 != *before.AddressV4 || v.Ports["http"] != before.Ports["http"] || !v.ExpiresAt.Equal(*before.ExpiresAt) {
			t.Errorf("sandbox.up is %+v, was %+v", v, before)
		}
		if v := l.phase(e, "sandbox.frozen", plan.Paused); v.Hold == nil || v.Hold.By != "operator" {
			t.Errorf("sandbox.frozen is held %+v", v.Hold)
		}
		l.nothingToDo(e)
		l.tidy(e)
		_, err := e.GC(ctx, GCRequest{Adopt: []string{up}})
		l.refused(err, Conflict, "it is on record")
		l.end(e)
	})
}

// What is on record is not pushed aside by what is taken back, and what a stranger
// has is given to nobody else.
func TestGCAdoptsNothingInTheWay(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.main(pair)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		a, b := sandboxID(e, "sandbox.a"), sandboxID(e, "sandbox.b")
		old := e.current("sandbox.a")
		l.takeRecords(e, map[string]string{"sandbox.a": state.Sandboxes, "sandbox.b": state.Sandboxes})
		l.close(e)
		l.world.Forget(b)
		e = l.open("apply")
		ctx := context.Background()
		p := l.plan(e)
		if !slices.ContainsFunc(p.Plan.Notes, func(n string) bool { return strings.Contains(n, a) && strings.Contains(n, "sandbox.a") }) {
			t.Errorf("the plan says nothing of the one that lives: %v", p.Plan.Notes)
		}
		l.apply(e, plan.Options{Targets: []string{"sandbox.a"}})
		now := e.current("sandbox.a")
		if now.Instance.ID == a || now.Net.Address == old.Net.Address || now.IDs == old.IDs {
			t.Errorf("the new one has %+v %+v, the stranger %+v %+v", now.Net, now.IDs, old.Net, old.IDs)
		}
		for id, words := range map[string]string{a: "sandbox.a is on record", b: "nothing beside its files", "0123456789ab": "has nothing of it", now.Instance.ID: "on record"} {
			_, err := e.GC(ctx, GCRequest{Adopt: []string{id}})
			l.refused(err, Conflict, words)
		}
		_, err := e.GC(ctx, GCRequest{Adopt: []string{a}, DryRun: true})
		l.refused(err, Invalid, "-dry-run")
		for _, id := range []string{a, b} {
			if s, _, err := e.host.Inspect(ctx, id); err != nil || !s.Alive {
				t.Errorf("%s is %+v, %v", id, s, err)
			}
			l.world.Kill(id)
		}
		l.gc(e, GCRequest{Remove: []string{a, b}})
		l.end(e)
	})
}
