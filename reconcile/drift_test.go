package reconcile

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
	"pinfold/state"
)

const driftConfig = `
image "base" { source = "host" }
network "n" {}
volume "v" {}
sandbox "killed" {
  for_each = toset(["a", "b"])
  image    = image.base
  command  = ["sleep"]
}
sandbox "linked" {
  image   = image.base
  command = ["sleep"]
  network { name = network.n }
}
sandbox "kept" {
  image   = image.base
  command = ["sleep"]
  lifetime { on_lost = "retain" }
}
sandbox "held" {
  image   = image.base
  command = ["sleep"]
}
`

// onlyLooking opens an engine that may write neither to the host nor to the state.
func (l *lab) onlyLooking() *Engine {
	l.t.Helper()
	store, err := state.Open(context.Background(), state.Options{Dir: l.state, Verb: "drift", ReadOnly: true})
	if err != nil {
		l.t.Fatal(err)
	}
	e, err := NewEngine(context.Background(), EngineOptions{Store: store, Host: l.world.Open(store.Lineage()), Settings: l.settings, ReadOnly: true})
	if err != nil {
		l.t.Fatal(err)
	}
	return e
}

func (l *lab) drift(s Service, ignore ...string) *DriftResult {
	l.t.Helper()
	res, err := s.Drift(context.Background(), DriftRequest{Ignore: ignore})
	if err != nil {
		l.t.Fatal(err)
	}
	return res
}

// What drift tells is what the next apply of the same files does, and what nothing is
// done about; it neither touches the host nor writes to the state.
func TestDrift(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": driftConfig})
	e := l.open("apply")
	l.apply(e, plan.Options{})
	l.act(e, "pause", "sandbox.held")
	serial := e.snapshot().Serial
	a, b, linked, kept := l.id(e, `sandbox.killed["a"]`), l.id(e, `sandbox.killed["b"]`), l.id(e, "sandbox.linked"), l.id(e, "sandbox.kept")
	l.close(e)

	l.world.ReadOnly(t)
	e = l.onlyLooking()
	if d := l.drift(e); d.Drifted() || d.Serial != serial || d.Lineage == "" {
		t.Fatalf("before anything happened: %+v", d)
	}
	l.close(e)

	l.world.ReadWrite()
	l.world.KillMain(a, 9)
	l.world.KillMain(b, 9)
	l.world.Break(linked, "link")
	l.world.Kill(kept)
	l.world.ReadOnly(t)

	// What the files say meanwhile is nobody's affair here.
	l.main(driftConfig + `sandbox "more" {
  image   = image.base
  command = ["sleep"]
}`)
	e = l.onlyLooking()
	d := l.drift(e)
	var got []string
	for _, x := range d.Drift {
		got = append(got, x.Address+": "+x.What)
	}
	for _, c := range d.Changes {
		got = append(got, fmt.Sprintf("%s %s", c.Address, c.Action))
	}
	want := []string{
		"sandbox.kept: lost: process gone without an outcome",
		`sandbox.killed["a"]: process gone: killed from outside`,
		`sandbox.killed["b"]: process gone: killed from outside`,
		"sandbox.linked: link, address missing",
		`sandbox.killed["a"] start`, `sandbox.killed["b"] start`, "sandbox.linked repair",
	}
	if !d.Drifted() || d.Ignored != 0 || !slices.Equal(got, want) {
		t.Errorf("drift is\n%q\nnot\n%q", got, want)
	}
	for _, tc := range []struct {
		ignore  []string
		drift   int
		changes int
		ignored int
	}{
		{[]string{"sandbox"}, 0, 0, 4},
		{[]string{"network", "volume", "image"}, 4, 3, 0},
		{[]string{"sandbox.killed"}, 2, 1, 2},
		{[]string{`sandbox.killed["a"]`, "sandbox.kept"}, 2, 2, 2},
		{[]string{"sandbox.kill"}, 4, 3, 0},
	} {
		if d := l.drift(e, tc.ignore...); len(d.Drift) != tc.drift || len(d.Changes) != tc.changes || d.Ignored != tc.ignored {
			t.Errorf("without %q: %+v", tc.ignore, d)
		}
	}
	if now := e.snapshot().Serial; now != serial {
		t.Errorf("the serial was %d and is %d", serial, now)
	}
	l.close(e)

	// An apply of the files as they were does that, and then only what is left alone
	// is told of.
	l.world.ReadWrite()
	l.main(driftConfig)
	e = l.open("apply")
	did := l.apply(e, plan.Options{})
	if did.Applied.Converge != 3 {
		t.Errorf("apply converged %+v", did.Applied)
	}
	if d := l.drift(e); len(d.Changes) > 0 {
		t.Errorf("after apply: %+v", d)
	}
	l.end(e)
}

// What an earlier apply could not do is no drift, however much the next one would do
// about it; what is due is drift, and says why.
func TestDriftOfWhatFailed(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": driftConfig + `
sandbox "dated" {
  image   = image.base
  command = ["sleep"]
  lifetime { ttl = "1h" }
}
`})
		e := l.open("apply")
		l.world.Fail(sim.OpStart, "", errors.New("no such program"), sim.Before, sim.Always)
		l.applyFails(e, plan.Options{})
		l.world.ClearFaults()
		if d := l.drift(e); d.Drifted() || len(d.Changes) > 0 || !strings.Contains(strings.Join(d.Notes, "\n"), "sandbox.held could not be started") {
			t.Errorf("after an apply that failed: %+v", d)
		}
		l.apply(e, plan.Options{})
		sleep(2 * time.Hour)
		d := l.drift(e)
		if !d.Drifted() || len(d.Drift) != 1 || d.Drift[0].Address != "sandbox.dated" || d.Drift[0].What == "" || len(d.Changes) == 0 {
			t.Errorf("of what is due: %+v", d)
		}
		if d := l.drift(e, "sandbox.dated"); d.Drifted() || len(d.Changes) > 0 || d.Ignored != 1 {
			t.Errorf("of what is due and not asked for: %+v", d)
		}
		l.end(e)
	})
}

func TestDriftThroughTheSocket(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": driftConfig})
	c, e, _, _ := l.serve()
	l.apply(e, plan.Options{})
	mine, theirs := l.drift(e), l.drift(c)
	if mine.Drifted() || !reflect.DeepEqual(mine, theirs) {
		t.Errorf("through the socket %+v, without it %+v", theirs, mine)
	}
	ctx := context.Background()
	records, err := c.Records(ctx)
	if err != nil {
		t.Fatal(err)
	}
	own, _ := e.Records(ctx)
	if records.Dir != own.Dir || len(records.Records.Sandboxes) != 5 || !reflect.DeepEqual(records.Exports, own.Exports) || records.Records.Lineage != e.store.Lineage() {
		t.Errorf("through the socket %+v, without it %+v", records, own)
	}
	pulled, err := c.Pull(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if own, err := e.Pull(ctx); err != nil || !reflect.DeepEqual(pulled, own) {
		t.Errorf("through the socket %+v, without it %+v, %v", pulled, own, err)
	}
	l.destroy(e)
}
