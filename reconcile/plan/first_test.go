package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/config"
)

// Replacements that come first, what is deposed, and what triggers a replacement.

func comesFirst(r *config.Resource[config.Sandbox]) { r.Lifecycle.CreateBeforeDestroy = true }

func first(s *Sandbox, _ *Seen) { s.Lifecycle.CreateBeforeDestroy = true }

func triggeredBy(address, path string) func(*config.Resource[config.Sandbox]) {
	return func(r *config.Resource[config.Sandbox]) {
		r.Lifecycle.ReplaceTriggeredBy = append(r.Lifecycle.ReplaceTriggeredBy, config.Trigger{Address: address, Path: path})
		r.DependsOn = append(r.DependsOn, address)
	}
}

// settledLives puts the declared lifecycles into the records, as an apply did.
func (w *world) settledLives() *world {
	for i := range w.Desired.Sandboxes {
		if rec := w.Records.Sandboxes[w.Desired.Sandboxes[i].Address]; rec != nil {
			rec.Lifecycle = w.Desired.Sandboxes[i].Lifecycle
		}
	}
	return w
}

// lines are the changes of a plan, each by action and name, in order.
func lines(p *Plan) string {
	var out []string
	for i := range p.Changes {
		out = append(out, string(p.Changes[i].Action)+" "+p.Changes[i].Name())
	}
	return strings.Join(out, ", ")
}

func replace(addresses ...string) func(*Options) {
	return func(o *Options) { o.Replace = addresses }
}

func TestOldInstanceGoesLast(t *testing.T) {
	w := newWorld().network("network.n", "10.88.0.0/24").
		declare("sandbox.a", spec(on("network.n")), comesFirst).record("sandbox.a", spec(on("network.n")), first).
		declare("sandbox.b", spec(on("network.n")), func(r *config.Resource[config.Sandbox]) {
			r.DependsOn, r.Unknown = append(r.DependsOn, "sandbox.a"), []string{"env.PEER"}
		}).record("sandbox.b", spec(on("network.n"), env("PEER", "10.88.0.5"))).
		both("sandbox.c", spec()).with(replace("sandbox.a", "sandbox.c"))
	p := Make(w.Input)
	if got, want := lines(p), "replace sandbox.a, restart sandbox.b, replace sandbox.c, delete sandbox.a (deposed object i-a)"; got != want {
		t.Fatalf("%s\nwant\n%s\n%s", got, want, p)
	}
	last := p.Changes[3]
	if !slices.Equal(last.DependsOn, []string{"sandbox.b"}) || !last.PartOfReplace() {
		t.Errorf("it waits for %v", last.DependsOn)
	}
	if p.Summary != (Summary{Change: 1, Replace: 2}) || p.Losses() != 2 {
		t.Errorf("summary %+v, losses %d", p.Summary, p.Losses())
	}
	if !slices.Contains(p.Unsettled(), "sandbox.a") || slices.Contains(p.Unsettled(), "sandbox.c") {
		t.Errorf("unsettled %v", p.Unsettled())
	}
}

// Whoever takes over a fixed host port does not wait in vain for the one that had it.
func TestOldInstanceHandsItsPortOver(t *testing.T) {
	was := spec()
	was.Ports = map[string]config.Port{"http": {Container: 80, Host: 8080}}
	w := newWorld().declare("sandbox.a", spec(), comesFirst).record("sandbox.a", was, first).
		declare("sandbox.b", was, func(r *config.Resource[config.Sandbox]) { r.DependsOn = append(r.DependsOn, "sandbox.a") }).
		with(replace("sandbox.a"))
	if got, want := lines(Make(w.Input)), "replace sandbox.a, delete sandbox.a (deposed object i-a), create sandbox.b"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestNothingComesFirstWithoutAProcess(t *testing.T) {
	for name, w := range map[string]*world{
		"stopped":   newWorld().declare("sandbox.a", spec(), comesFirst).record("sandbox.a", spec(), first, exited(0)),
		"suspended": newWorld().declare("sandbox.a", spec(mode("suspended")), comesFirst).record("sandbox.a", spec(), first),
		"held":      newWorld().declare("sandbox.a", spec(), comesFirst).record("sandbox.a", spec(), first, held("suspended")),
		"lost":      newWorld().declare("sandbox.a", spec(), comesFirst).record("sandbox.a", spec(), first, gone),
	} {
		p := Make(w.with(replace("sandbox.a")).Input)
		if lines(p) != "replace sandbox.a" || p.Changes[0].CreateFirst {
			t.Errorf("%s: %s", name, p)
		}
	}
}

func TestCreateBeforeDestroyIsRefused(t *testing.T) {
	twice := spec(claim("work"))
	twice.Ports = map[string]config.Port{"http": {Container: 80, Host: 8080}, "any": {Container: 81}}
	moved := func() *world {
		return newWorld().network("network.n", "10.88.0.0/24").declare("sandbox.a", spec(on("network.n")), comesFirst).record("sandbox.a", spec(on("network.n")), first)
	}
	renumbered := moved()
	renumbered.Desired.Networks[0].Spec.CIDR = "10.99.0.0/24"
	renamed := moved()
	renamed.Desired.Networks[0] = config.Resource[config.Network]{Address: "network.m", Spec: config.Network{CIDR: "10.88.0.0/25"}}
	renamed.Desired.Sandboxes[0].Spec = spec(on("network.m"))
	renamed.Desired.Sandboxes[0].DependsOn = references(&renamed.Desired.Sandboxes[0].Spec)
	for want, w := range map[string]*world{
		`create_before_destroy of sandbox.a is not possible with host port 8080 of port "http", volume "work"`: newWorld().declare("sandbox.a", twice, comesFirst),
		`create_before_destroy of sandbox.b is not possible with host port 8080 of port "http", volume "work"`: newWorld().declare("sandbox.b", twice, comesFirst).record("sandbox.b", twice),
		"network.n cannot be replaced under sandbox.a":                                                         renumbered,
		"network.n cannot be destroyed before another takes its range under sandbox.a":                         renamed,
	} {
		p := Make(w.Input)
		if len(p.Diags) != 1 || p.Diags[0].Summary != want || !strings.Contains(p.Diags[0].Detail, "create_before_destroy") {
			t.Errorf("want %q:\n%v\n%s", want, p.Diags, p)
		}
	}
	things := newWorld().network("network.n", "10.88.0.0/24").volume("volume.v")
	things.Desired.Images[0].Lifecycle.CreateBeforeDestroy = true
	things.Desired.Volumes[0].Lifecycle.CreateBeforeDestroy = true
	things.Desired.Networks[0].Lifecycle.ReplaceTriggeredBy = []config.Trigger{{Address: "image.base"}}
	var said []string
	for _, d := range Make(things.Input).Diags {
		said = append(said, d.Summary)
	}
	if want := []string{"create_before_destroy of image.base is not supported", "replace_triggered_by of network.n is not supported", "create_before_destroy of volume.v is not supported"}; !slices.Equal(said, want) {
		t.Errorf("%q, want %q", said, want)
	}
	// What moves to another range stays up, and its network goes last.
	free := moved()
	free.Desired.Networks[0] = config.Resource[config.Network]{Address: "network.m", Spec: config.Network{CIDR: "10.99.0.0/24"}}
	free.Desired.Sandboxes[0].Spec = spec(on("network.m"))
	free.Desired.Sandboxes[0].DependsOn = references(&free.Desired.Sandboxes[0].Spec)
	if got, want := lines(Make(free.Input)), "create network.m, replace sandbox.a, delete sandbox.a (deposed object i-a), delete network.n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestDeposedIsPlannedForRemoval(t *testing.T) {
	dep := func(s *Sandbox, _ *Seen) {
		s.Deposed = []Deposed{{Instance: Instance{ID: "i-old", Phase: Running}, Net: &Net{Network: "network.old"}}}
	}
	w := newWorld().both("sandbox.a", spec(), dep)
	w.Observed.Instances["i-old"] = Seen{UID: "uid-a", Alive: true, Started: true}
	p := Make(w.Input)
	if lines(p) != "delete sandbox.a (deposed object i-old)" || p.Summary != (Summary{Destroy: 1}) || len(p.Notes)+len(p.Drift) > 0 {
		t.Errorf("with files: %s", p)
	}
	if p := Make(w.keep().Input); lines(p) != "delete sandbox.a (deposed object i-old)" {
		t.Errorf("the agent: %s", p)
	}
	w.Records.Sandboxes["sandbox.a"].Deposed[0].Retry = Retry{Attempts: 2, Error: "busy", NextAt: t0.Add(time.Minute)}
	if p := Make(w.Input); len(p.Changes) > 0 || !p.WakeAt.Equal(t0.Add(time.Minute)) || len(p.Notes) != 1 {
		t.Errorf("the agent, which waits: %s", p)
	}
	w.Trigger = Apply
	p = Make(w.with(func(o *Options) { o.Destroy = true }).Input)
	if lines(p) != "delete sandbox.a, delete image.base" || !slices.Contains(p.Changes[0].Notes, "goes with it: deposed object i-old") {
		t.Errorf("destroy: %s", p)
	}
	// Its network goes after it.
	net := newWorld().both("sandbox.a", spec(), dep)
	net.network("network.old", "10.88.5.0/24")
	net.Desired.Networks = nil
	if got, want := lines(Make(net.Input)), "delete sandbox.a (deposed object i-old), delete network.old"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// A lost one does not go on with it.
	lost := newWorld().both("sandbox.a", spec(), dep, gone)
	lost.Observed.Instances["i-old"] = Seen{UID: "uid-a", Alive: true, Started: true}
	if p := Make(lost.Input); lines(p) != "recreate sandbox.a, delete sandbox.a (deposed object i-old)" {
		t.Errorf("lost: %s", p)
	}
}

func TestReplaceTriggeredBy(t *testing.T) {
	chain := func() *world {
		w := newWorld().network("network.n", "10.88.0.0/24").volume("volume.v").
			both("sandbox.a", spec()).
			declare("sandbox.b", spec(), triggeredBy("sandbox.a", "")).record("sandbox.b", spec()).
			declare("sandbox.c", spec(), triggeredBy("sandbox.b", "")).record("sandbox.c", spec()).
			declare("sandbox.n", spec(), triggeredBy("network.n", "")).record("sandbox.n", spec()).
			declare("sandbox.cidr", spec(), triggeredBy("network.n", "cidr")).record("sandbox.cidr", spec()).
			declare("sandbox.id", spec(), triggeredBy("sandbox.a", "instance_id")).record("sandbox.id", spec()).
			declare("sandbox.cmd", spec(), triggeredBy("sandbox.a", "command")).record("sandbox.cmd", spec()).
			declare("sandbox.image", spec(), triggeredBy("image.base", "digest")).record("sandbox.image", spec()).
			both(`sandbox.k["x"]`, spec()).both(`sandbox.k["y.z"]`, spec()).
			declare("sandbox.keys", spec(), triggeredBy("sandbox.k", "")).record("sandbox.keys", spec()).
			declare("sandbox.key", spec(), triggeredBy(`sandbox.k["x"]`, "")).record("sandbox.key", spec())
		return w.settledLives()
	}
	spare := func(w *world, address string) *config.Resource[config.Sandbox] {
		return &w.Desired.Sandboxes[slices.IndexFunc(w.Desired.Sandboxes, func(r config.Resource[config.Sandbox]) bool { return r.Address == address })]
	}
	for name, c := range map[string]struct {
		edit func(*world)
		want string
	}{
		"nothing":   {func(*world) {}, ""},
		"labels":    {func(w *world) { spare(w, "sandbox.a").Spec.Labels = map[string]string{"x": "1"} }, "update sandbox.a, replace sandbox.b, replace sandbox.c"},
		"command":   {func(w *world) { spare(w, "sandbox.a").Spec.Command = []string{"x"} }, "restart sandbox.a, replace sandbox.b, replace sandbox.c, replace sandbox.cmd"},
		"-replace":  {func(w *world) { w.Options.Replace = []string{"sandbox.a"} }, "replace sandbox.a, replace sandbox.b, replace sandbox.c, replace sandbox.id"},
		"lifecycle": {func(w *world) { spare(w, "sandbox.a").Lifecycle.PreventDestroy = true }, "update sandbox.a"},
		"host": {func(w *world) {
			in(Paused)(w.Records.Sandboxes["sandbox.a"], new(Seen))
			w.Observed.Instances["i-a"] = Seen{UID: "uid-a", Layer: true, Alive: true, Started: true, Frozen: true}
		}, "resume sandbox.a"},
		"internet":  {func(w *world) { w.Desired.Networks[0].Spec.Internet = true }, "update network.n, replace sandbox.n"},
		"cidr":      {func(w *world) { w.Desired.Networks[0].Spec.CIDR = "10.99.0.0/24" }, "replace network.n, replace sandbox.cidr, replace sandbox.n"},
		"any key":   {func(w *world) { spare(w, `sandbox.k["y.z"]`).Spec.Labels = map[string]string{"x": "1"} }, `update sandbox.k["y.z"], replace sandbox.keys`},
		"one key":   {func(w *world) { spare(w, `sandbox.k["x"]`).Spec.Labels = map[string]string{"x": "1"} }, `update sandbox.k["x"], replace sandbox.key, replace sandbox.keys`},
		"the agent": {func(w *world) { w.Desired.Networks[0].Spec.Internet = true; w.Trigger = Keep }, ""},
		"guarded": {func(w *world) {
			spare(w, "sandbox.a").Spec.Labels = map[string]string{"x": "1"}
			spare(w, "sandbox.c").Lifecycle.PreventDestroy = true
		}, "error sandbox.c may not be replaced"},
	} {
		w := chain()
		c.edit(w)
		p := Make(w.Input)
		got := lines(p)
		if p.Diags.HasErrors() {
			got = "error " + p.Diags[0].Summary
		}
		if got != c.want {
			t.Errorf("%s: %s\nwant %s\n%s", name, got, c.want, p)
		}
	}
	w := chain()
	w.Desired.Networks[0].Spec.Internet = true
	c := Make(w.Input).Changes[1]
	if c.Cause != "replace_triggered_by: network.n changed" || !slices.Equal(c.ReplacePaths, []string{"replace_triggered_by"}) || c.TriggeredBy() != "network.n" || !slices.Equal(c.DependsOn, []string{"network.n"}) {
		t.Errorf("it says %q, %v, %q, after %v", c.Cause, c.ReplacePaths, c.TriggeredBy(), c.DependsOn)
	}
	// A plan of this one alone is told what another has found.
	alone := newWorld().declare("sandbox.n", spec(), triggeredBy("network.n", "")).record("sandbox.n", spec()).settledLives()
	alone.Triggered = map[string]string{"sandbox.n": "network.n"}
	if p := Make(alone.Input); lines(p) != "replace sandbox.n" || p.Changes[0].Cause != c.Cause {
		t.Errorf("alone: %s", p)
	}
}

// A chain of thousands is decided once each.
func TestLongChainOfTriggers(t *testing.T) {
	w := newWorld()
	const n = 3000
	for i := range n {
		a := fmt.Sprintf("sandbox.s%05d", i)
		if i == 0 {
			w.declare(a, spec(labels("x", "1")))
		} else {
			w.declare(a, spec(), triggeredBy(fmt.Sprintf("sandbox.s%05d", i-1), ""))
		}
		w.record(a, spec())
	}
	if p := Make(w.settledLives().Input); p.Summary != (Summary{Change: 1, Replace: n - 1}) {
		t.Errorf("%+v", p.Summary)
	}
}

// prevent_destroy guards what no block speaks of any more, and each that a destroy
// would take.
func TestPreventDestroyIsKept(t *testing.T) {
	guarded := func() *world {
		w := newWorld().network("network.n", "10.88.0.0/24").volume("volume.v")
		for _, a := range []string{"sandbox.a", "sandbox.b"} {
			w.both(a, spec(), func(s *Sandbox, _ *Seen) { s.Lifecycle.PreventDestroy = true })
		}
		w.Records.Networks["network.n"].Lifecycle.PreventDestroy = true
		w.Records.Volumes["volume.v"].Lifecycle.PreventDestroy = true
		return w
	}
	want := []string{"network.n may not be destroyed", "sandbox.a may not be destroyed", "sandbox.b may not be destroyed", "volume.v may not be destroyed"}
	for name, edit := range map[string]func(*world){
		"blocks removed":        func(w *world) { w.Desired = &config.Desired{Images: w.Desired.Images} },
		"destroy without files": func(w *world) { w.Desired, w.Options.Destroy = &config.Desired{}, true },
		"destroy": func(w *world) {
			w.Options.Destroy = true
			for i := range w.Desired.Sandboxes {
				w.Desired.Sandboxes[i].Lifecycle.PreventDestroy = true
			}
			w.Desired.Networks[0].Lifecycle.PreventDestroy, w.Desired.Volumes[0].Lifecycle.PreventDestroy = true, true
		},
	} {
		w := guarded()
		edit(w)
		var got []string
		for _, d := range Make(w.Input).Diags {
			got = append(got, d.Summary)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Released and replaced in one plan: nothing is woken on a lease that ends with the
// old instance, and a shutdown_time that was acted on stays so for the new one.
func TestReleasedAndReplaced(t *testing.T) {
	past := t0.Add(-time.Hour)
	for name, s := range map[string]config.Sandbox{
		"by ttl":           spec(ttl(30*time.Minute), policy("pause")),
		"by shutdown_time": spec(shutdown(past), policy("pause")),
		"renewed":          spec(shutdown(past), policy("pause"), renewOnAccess(2*time.Hour)),
		"idle before":      spec(ttl(30*time.Minute), policy("pause"), idle(time.Minute)),
	} {
		for _, edits := range [][]func(*Sandbox, *Seen){{expiredPaused(past, ShutdownTime)}, {held("paused"), expiredPaused(past, TTLExpiry)}, {heldBy("idle", "paused"), expiredPaused(past, TTLExpiry)}} {
			l := begin(t, newWorld().both("sandbox.a", s, edits...).with(func(o *Options) { o.ReleaseHolds, o.Replace = true, []string{"sandbox.a"} }))
			p := Make(*l.Input)
			l.run(p)
			if len(l.wrong) > 0 || p.Diags.HasErrors() {
				t.Fatalf("%s: %s\nin\n%s", name, strings.Join(l.wrong, "\n"), p)
			}
			l.is(Running, false, "")
			l.Options = Options{}
			if again := Make(*l.Input); len(again.Changes) > 0 {
				t.Errorf("%s: after\n%s\nthere is more to do:\n%s", name, p, again)
			}
		}
	}
	// One that lives, out of its pause: how long is the declared word, not the recorded.
	l := begin(t, newWorld().declare("sandbox.a", spec(shutdown(past), policy("pause"), renewOnAccess(3*time.Hour))).
		record("sandbox.a", spec(shutdown(past), policy("pause")), expiredPaused(past, ShutdownTime)).with(func(o *Options) { o.ReleaseHolds = true }))
	p := Make(*l.Input)
	l.run(p)
	if len(l.wrong) > 0 || p.Diags.HasErrors() {
		t.Fatalf("%s\nin\n%s", strings.Join(l.wrong, "\n"), p)
	}
	l.is(Running, false, "")
	if at, _, _ := Deadline(&l.rec().Spec, l.rec().Lease); !at.Equal(t0.Add(3 * time.Hour)) {
		t.Errorf("it ends at %s", at)
	}
}
