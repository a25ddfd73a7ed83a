package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pinfold/config"
)

// removed adds a removed block.
func (w *world) removed(from string, destroy bool) *world {
	w.Desired.Removals = append(w.Desired.Removals, config.Removal{From: from, Destroy: destroy})
	return w
}

// imports adds an import block.
func (w *world) imports(id, to string) *world {
	w.Desired.Imports = append(w.Desired.Imports, config.Import{To: to, ID: id, Source: config.Position{File: "main.hcl", Line: 7}})
	return w
}

// unrecorded makes a recorded sandbox an instance without a record, as one that was
// given up or that a restored backup does not know, with the things it stands on that
// are named.
func (w *world) unrecorded(address string, released bool, with ...string) *world {
	rec := w.Records.Sandboxes[address]
	delete(w.Records.Sandboxes, address)
	c := Candidate{Kind: "sandbox", Released: released, Sandbox: rec, Image: w.Records.Images[rec.Spec.Image]}
	seen := w.Observed.Instances[rec.Instance.ID]
	seen.Released, seen.Address = released, address
	if rec.Net != nil {
		c.Network = w.Records.Networks[rec.Net.Network]
		seen.Network = c.Network.ID
	}
	for _, m := range rec.Spec.Mounts {
		c.Volumes = append(c.Volumes, w.Records.Volumes[m.Volume])
		seen.Volumes = append(seen.Volumes, w.Records.Volumes[m.Volume].ID)
	}
	for _, a := range with {
		delete(w.Records.Networks, a)
		delete(w.Records.Volumes, a)
	}
	w.Observed.Instances[rec.Instance.ID] = seen
	if w.Imports == nil {
		w.Imports = map[string]Candidate{}
	}
	w.Imports[rec.Instance.ID] = c
	return w
}

// did lists a plan's changes, "action address" each, in their order.
func did(p *Plan) []string {
	out := []string{}
	for _, c := range p.Changes {
		out = append(out, string(c.Action)+" "+c.Address)
	}
	return out
}

func wants(t *testing.T, p *Plan, want ...string) {
	t.Helper()
	if p.Diags.HasErrors() {
		t.Errorf("refused: %s", p)
	}
	if got := did(p); !slices.Equal(got, append([]string{}, want...)) {
		t.Errorf("it would\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func refused(t *testing.T, p *Plan, words string) {
	t.Helper()
	if !slices.ContainsFunc(p.Diags, func(d config.Diagnostic) bool {
		return d.Severity == "error" && strings.Contains(d.Summary+": "+d.Detail, words)
	}) {
		t.Errorf("no error says %q: %+v\n%s", words, p.Diags, p)
	}
}

func TestRemoved(t *testing.T) {
	world := func() *world {
		w := newWorld().network("network.n", "10.88.0.0/24").volume("volume.v").
			record(`sandbox.a["x"]`, spec(on("network.n"), mount("volume.v")), prevented).
			both("sandbox.b", spec(on("network.n"), mount("volume.v")))
		return w
	}
	p := Make(world().removed("sandbox.a", false).Input)
	wants(t, p, `forget sandbox.a["x"]`)
	if c := p.Changes[0]; c.Reason != Released || c.Instance == "" || !strings.Contains(c.Consequence, "its process goes on") || p.Summary.Destroy != 1 || p.Losses() != 0 {
		t.Errorf("%s; counted %+v", c, p.Summary)
	}
	refused(t, Make(world().removed("sandbox.a", true).Input), "may not be destroyed")
	refused(t, Make(world().removed("sandbox.other", false).Input), "may not be destroyed")
	wants(t, Make(world().removed("sandbox.a", false).with(func(o *Options) { o.Targets = []string{"sandbox.b"} }).Input))
	wants(t, Make(world().removed("sandbox.a", false).with(func(o *Options) { o.Targets = []string{"sandbox.a"} }).Input), `forget sandbox.a["x"]`)
	wants(t, Make(world().removed("sandbox.a", false).keep().Input))

	w := newWorld().record("sandbox.a", spec()).removed("sandbox.a", true)
	wants(t, Make(w.Input), "delete sandbox.a")
	// Of several instances those that one block is about.
	w = newWorld().record(`sandbox.a["x"]`, spec()).record(`sandbox.a["y"]`, spec()).removed(`sandbox.a["x"]`, false)
	wants(t, Make(w.Input), `forget sandbox.a["x"]`, `delete sandbox.a["y"]`)
	// All in a module, and with -destroy too.
	for _, destroy := range []bool{false, true} {
		w = newWorld().network("module.m.network.n", "10.88.0.0/24").record("module.m.sandbox.a", spec(on("module.m.network.n"))).
			removed("module.m", false).with(func(o *Options) { o.Destroy = destroy })
		w.Desired.Networks = nil
		want := []string{"forget module.m.sandbox.a", "forget module.m.network.n"}
		if destroy {
			want = slices.Insert(want, 1, "delete image.base")
		}
		wants(t, Make(w.Input), want...)
	}
}

// What an instance that is left alone stands on stays with it.
func TestRemovedKeepsItsGround(t *testing.T) {
	w := newWorld().network("network.n", "10.88.0.0/24").volume("volume.v").volume("volume.other").
		record("sandbox.a", spec(on("network.n"), mount("volume.v"))).removed("sandbox.a", false)
	w.Desired.Networks, w.Desired.Volumes = nil, nil
	p := Make(w.Input)
	wants(t, p, "forget sandbox.a", "forget network.n", "delete volume.other", "forget volume.v")

	// So it does later, when it has been left alone for long.
	w = newWorld().network("network.n", "10.88.0.0/24").volume("volume.v").
		record("sandbox.a", spec(on("network.n"), mount("volume.v"))).unrecorded("sandbox.a", true)
	wants(t, Make(w.Input))
	w.Desired.Networks[0].Spec.CIDR = "10.89.0.0/24"
	refused(t, Make(w.Input), "network.n cannot be replaced")
	w.Options.Destroy = true
	wants(t, Make(w.Input), "delete image.base", "forget network.n", "forget volume.v")
	for id, seen := range w.Observed.Instances { // its process ended: the bridge may go, its data stays
		seen.Alive = false
		w.Observed.Instances[id] = seen
	}
	wants(t, Make(w.Input), "delete image.base", "delete network.n", "forget volume.v")

	// A network cannot be forgotten under one that is kept.
	w = newWorld().network("network.n", "10.88.0.0/24").record("sandbox.a", spec(on("network.n"))).declare("sandbox.a", spec(on("network.n"))).removed("network.n", false)
	w.Desired.Networks = nil
	refused(t, Make(w.Input), "network.n cannot be forgotten")
}

// A record of what bears the mark of a given-up instance, as a backup of before brings
// it back, is left alone until somebody says what it is to be.
func TestRecordedAndGivenUp(t *testing.T) {
	build := func() *world {
		return newWorld().both("sandbox.a", spec(), func(_ *Sandbox, seen *Seen) { seen.Released = true })
	}
	p := Make(build().Input)
	wants(t, p)
	if !slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, "was given up") }) {
		t.Errorf("notes %q", p.Notes)
	}
	wants(t, Make(build().with(func(o *Options) { o.Replace = []string{"sandbox.a"} }).Input))
	wants(t, Make(build().with(func(o *Options) { o.Destroy = true }).Input))
	wants(t, Make(build().keep().Input))
	w := build().imports("i-a", "sandbox.a")
	w.Imports = map[string]Candidate{}
	wants(t, Make(w.Input), "import sandbox.a")
	w = build().removed("sandbox.a", false)
	w.Desired.Sandboxes = nil
	wants(t, Make(w.Input), "forget sandbox.a")
}

func TestImport(t *testing.T) {
	build := func(released bool, with ...string) *world {
		w := newWorld().network("network.n", "10.88.0.0/24").volume("volume.v").
			both("sandbox.a", spec(on("network.n"), mount("volume.v"), claim("work")))
		return w.unrecorded("sandbox.a", released, with...)
	}
	for _, released := range []bool{false, true} {
		p := Make(build(released).imports("i-a", "sandbox.a").Input)
		wants(t, p, "import sandbox.a")
		if rec := p.Records.Sandboxes["sandbox.a"]; rec == nil || rec.UID != "uid-a" || rec.Instance.ID != "i-a" {
			t.Errorf("records %s", encode(p.Records))
		}
		if p.Status["sandbox.a"].Phase != Running || p.Summary != (Summary{Change: 1}) {
			t.Errorf("status %+v, counted %+v", p.Status["sandbox.a"], p.Summary)
		}
	}
	// What it stands on comes with it.
	p := Make(build(true, "network.n", "volume.v").imports("i-a", "sandbox.a").Input)
	wants(t, p, "import network.n", "import volume.v", "import sandbox.a")
	// Under another address, on a network that is called otherwise by now, with a change
	// that the files ask for.
	w := build(false).imports("i-a", "module.m.sandbox.b").moved("network.n -> network.m")
	w.Desired.Sandboxes[0].Address = "module.m.sandbox.b"
	w.Desired.Sandboxes[0].Spec.Network = &config.Attachment{Name: "network.m"}
	w.Desired.Sandboxes[0].Spec.Labels = map[string]string{"x": "y"}
	w.Desired.Networks[0].Address = "network.m"
	p = Make(w.Input)
	wants(t, p, "move network.m", "import module.m.sandbox.b", "update module.m.sandbox.b")
	if got := p.Records.Sandboxes["module.m.sandbox.b"]; got.Net.Network != "network.m" || got.Spec.Network.Name != "network.m" {
		t.Errorf("it is on %s", got.Net.Network)
	}
	// Done before, and left out by -target or -destroy: nothing.
	w = newWorld().both("sandbox.a", spec()).imports("i-a", "sandbox.a")
	wants(t, Make(w.Input))
	w = build(false).both("sandbox.c", spec()).imports("i-a", "sandbox.a").with(func(o *Options) { o.Targets = []string{"sandbox.c"} })
	p = Make(w.Input)
	wants(t, p)
	if p.Records.Sandboxes["sandbox.a"] != nil {
		t.Error("it is on record all the same")
	}
	w = build(false).imports("i-a", "sandbox.a").with(func(o *Options) { o.Destroy = true })
	wants(t, Make(w.Input), "delete image.base", "delete network.n", "delete volume.v")
	// On record with another instance: nothing, and it is said.
	w = build(false)
	i := w.Imports
	w.record("sandbox.a", spec(on("network.n"), mount("volume.v"), claim("work")), func(s *Sandbox, seen *Seen) { s.UID, s.Instance.ID, seen.UID = "uid-other", "i-other", "uid-other" })
	w.Imports = i
	p = Make(w.imports("i-a", "sandbox.a").Input)
	wants(t, p)
	if !slices.ContainsFunc(p.Notes, func(n string) bool { return strings.Contains(n, "does nothing") }) {
		t.Errorf("notes %q", p.Notes)
	}
	// A volume.
	w = newWorld().volume("volume.v").imports("v-volume.v", "volume.v")
	delete(w.Records.Volumes, "volume.v")
	w.Imports = map[string]Candidate{"v-volume.v": {Kind: "volume"}}
	p = Make(w.Input)
	wants(t, p, "import volume.v")
	if v := p.Records.Volumes["volume.v"]; v == nil || v.ID != "v-volume.v" || !v.Made {
		t.Errorf("records %s", encode(p.Records))
	}
}

func TestImportRefused(t *testing.T) {
	build := func() *world {
		return newWorld().network("network.n", "10.88.0.0/24").both("sandbox.a", spec(on("network.n"))).
			unrecorded("sandbox.a", false).imports("i-a", "sandbox.a")
	}
	for name, tt := range map[string]struct {
		edit  func(*world)
		words string
	}{
		"unknown":           {func(w *world) { w.Imports = nil }, "bears this state's mark"},
		"of another kind":   {func(w *world) { w.Imports["i-a"] = Candidate{Kind: "volume"} }, "id of a volume"},
		"without a note":    {func(w *world) { w.Imports["i-a"] = Candidate{Kind: "sandbox", Refused: "Nothing tells what it was."} }, "Nothing tells"},
		"recorded as other": {func(w *world) { w.record("sandbox.b", spec(), func(s *Sandbox, _ *Seen) { s.Instance.ID = "i-a" }) }, "on record already, as sandbox.b"},
		"of one on record":  {func(w *world) { w.record("sandbox.b", spec(), func(s *Sandbox, _ *Seen) { s.UID = "uid-a" }) }, "incarnation of sandbox.b"},
		"its id range is taken": {func(w *world) {
			ids := IDRange{Base: 1 << 24, Size: 65536}
			w.Imports["i-a"].Sandbox.IDs = ids
			w.record("sandbox.b", spec(), func(s *Sandbox, _ *Seen) { s.IDs = ids })
		}, "has its id range"},
		"its address is taken": {func(w *world) { w.record("sandbox.b", spec(on("network.n"))) }, "has its address 10.88.0.5"},
		"its port is taken": {func(w *world) {
			ports := map[string]Port{"http": {Container: 80, Host: 8080, Address: "127.0.0.1", Protocol: "tcp"}}
			w.Imports["i-a"].Sandbox.Ports = ports
			w.record("sandbox.b", spec(), func(s *Sandbox, _ *Seen) { s.Ports = ports })
		}, "has the host port"},
		"its network is another by now": {func(w *world) {
			n := *w.Records.Networks["network.n"]
			n.ID = "n-other"
			w.Records.Networks["network.n"] = &n
		}, "on record as another network"},
		"its range is taken": {func(w *world) {
			delete(w.Records.Networks, "network.n")
			w.Records.Networks["network.m"] = &Network{Address: "network.m", ID: "n-m", CIDR: netip.MustParsePrefix("10.88.0.0/16"), Made: true}
		}, "overlaps that of network.m"},
	} {
		t.Run(name, func(t *testing.T) {
			w := build()
			tt.edit(w)
			p := Make(w.Input)
			refused(t, p, tt.words)
			refused(t, p, "cannot import i-a into sandbox.a")
			if p.Diags[0].Range == nil || p.Diags[0].Range.Start.Line != 7 {
				t.Errorf("it does not say where: %+v", p.Diags[0])
			}
		})
	}
}

// A block that is removed cannot take away a guard that the record has, whatever its
// value came from.
func TestGuardOutlivesItsBlock(t *testing.T) {
	p := Make(newWorld().record("sandbox.a", spec(), prevented).Input)
	refused(t, p, "sandbox.a may not be destroyed")
	p = Make(newWorld().record("sandbox.a", spec(), prevented).declare("sandbox.b", spec(), func(r *config.Resource[config.Sandbox]) {
		r.Lifecycle.PreventDestroy = true
	}).moved("sandbox.a -> sandbox.b").Input)
	wants(t, p, "move sandbox.b")
}
