package reconcile

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
	"pinfold/state"
)

// lab is a simulated host, a state directory and a configuration directory.
// Engines come and go over it as processes do.
type lab struct {
	t     *testing.T
	world *sim.World
	state string
	dir   string
}

func newLab(t *testing.T, files map[string]string) *lab {
	l := &lab{t: t, world: sim.New(), state: t.TempDir(), dir: t.TempDir()}
	l.files(files)
	return l
}

// files replaces the configuration.
func (l *lab) files(files map[string]string) {
	l.t.Helper()
	old, _ := filepath.Glob(filepath.Join(l.dir, "*"))
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			l.t.Fatal(err)
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o644); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *lab) source() *config.Source {
	l.t.Helper()
	s, diags := config.Load(l.dir, config.Inputs{})
	if diags.HasErrors() {
		l.t.Fatalf("load: %v", diags)
	}
	return s
}

func (l *lab) open(by string) *Engine {
	l.t.Helper()
	store, err := state.Open(context.Background(), state.Options{Dir: l.state, Verb: "test", Wait: 5 * time.Second})
	if err != nil {
		l.t.Fatal(err)
	}
	log := hclog.New(&hclog.LoggerOptions{Output: testWriter{l.t}, Level: hclog.Debug})
	e, err := NewEngine(context.Background(), EngineOptions{
		Store: store, Host: l.world.Open(store.Lineage()), Settings: config.DefaultSettings(), By: by, Log: log,
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return e
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Logf("%s", b)
	return len(b), nil
}

func (l *lab) close(e *Engine) {
	l.t.Helper()
	if err := e.Close(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) apply(e *Engine, o plan.Options) *ApplyResult {
	l.t.Helper()
	res, err := e.Apply(context.Background(), ApplyRequest{PlanRequest: PlanRequest{Source: l.source(), Options: o}, AutoApprove: true}, nil, nil)
	if err != nil {
		for _, d := range errorOf(err).(*Error).Diagnostics {
			l.t.Logf("%s: %s: %s", d.Severity, d.Summary, d.Detail)
		}
		l.t.Fatalf("apply: %v", err)
	}
	return res
}

func (l *lab) plan(e *Engine) *PlanResult {
	l.t.Helper()
	res, err := e.Plan(context.Background(), PlanRequest{Source: l.source()})
	if err != nil {
		l.t.Fatalf("plan: %v", err)
	}
	return res
}

func (l *lab) nothingToDo(e *Engine) {
	l.t.Helper()
	if p := l.plan(e); !p.Plan.Empty() {
		l.t.Fatalf("after apply there is still something to do:\n%s", p.Plan)
	}
}

func (l *lab) phases(e *Engine) map[string]plan.Phase {
	l.t.Helper()
	res, err := e.List(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	m := map[string]plan.Phase{}
	for _, s := range res.Sandboxes {
		m[s.Address] = s.Phase
	}
	return m
}

func (l *lab) clean() {
	l.t.Helper()
	if left := l.world.Leftovers(); len(left) > 0 {
		l.t.Fatalf("left on the host: %v", left)
	}
}

const twoSandboxes = `
image "base" { source = "host" }
network "n" { }
volume "data" {}
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
  env     = { GW = network.n.gateway, PEER = sandbox.b.address }
  network { name = network.n }
  port "http" { container = 80 }
  mount {
    volume = volume.data
    path   = "/data"
  }
  volume "work" { path = "/work" }
}
sandbox "b" {
  image   = image.base
  command = ["sleep", "inf"]
  network { name = network.n }
  operating_mode = "paused"
}
output "a" { value = sandbox.a.address }
`

func TestApplyPlanDestroy(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	e := l.open("apply")
	res := l.apply(e, plan.Options{})
	if res.Applied.Add != 5 {
		t.Errorf("applied %+v, want 5 to add", res.Applied)
	}
	if len(res.Outputs) != 1 || string(res.Outputs[0].Value) == "" {
		t.Errorf("outputs %+v", res.Outputs)
	}
	l.nothingToDo(e)
	l.close(e)

	e = l.open("apply")
	l.nothingToDo(e)
	got := l.phases(e)
	if got["sandbox.a"] != plan.Running || got["sandbox.b"] != plan.Paused {
		t.Errorf("phases %v", got)
	}
	rec, _ := e.sandbox("sandbox.a")
	b, _ := e.sandbox("sandbox.b")
	if rec.Spec.Env["PEER"] != b.Net.Address.String() {
		t.Errorf("PEER is %q, sandbox.b has %s", rec.Spec.Env["PEER"], b.Net.Address)
	}
	l.apply(e, plan.Options{Destroy: true})
	l.close(e)
	l.clean()
}
