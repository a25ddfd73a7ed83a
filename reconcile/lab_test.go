package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/runtime/sim"
	"pinfold/state"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// lab is a simulated host, a state directory and a configuration directory.
// Engines come and go over it as processes do.
type lab struct {
	t        *testing.T
	world    *sim.World
	state    string
	dir      string
	settings config.Settings
	quiet    bool         // no log
	twins    bool         // the test itself makes a sandbox live twice
	log      hclog.Logger // instead of the test's own
}

func newLab(t *testing.T, files map[string]string) *lab {
	t.Helper()
	l := &lab{t: t, world: sim.New(), state: t.TempDir(), dir: t.TempDir(), settings: config.DefaultSettings()}
	l.files(files)
	return l
}

// inTime runs f in a bubble of virtual time.
func inTime(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
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

func (l *lab) main(text string) { l.t.Helper(); l.files(map[string]string{"main.hcl": text}) }

func (l *lab) source() *config.Source {
	l.t.Helper()
	s, diags := config.Load(l.dir, config.Inputs{})
	if diags.HasErrors() {
		l.t.Fatalf("load: %v", diags)
	}
	return s
}

// mortal is a process that can die at any call of store or host. Once dead, it
// changes nothing any more: what it still tries fails.
type mortal struct {
	dead   atomic.Bool
	mu     sync.Mutex
	countN int // updates of the store so far
	hostN  int // writing calls of the host so far
	dieAt  int // update at which it dies; 0: none
	after  bool
	twice  func() // looks for two live instances of one sandbox
}

var errDead = errors.New("this process is dead")

type mortalStore struct {
	state.Store
	p *mortal
}

func (s mortalStore) Update(fn func(state.Tx) error) error {
	s.p.mu.Lock()
	s.p.countN++
	hit := s.p.countN == s.p.dieAt
	s.p.mu.Unlock()
	if hit && !s.p.after {
		s.p.dead.Store(true)
	}
	if s.p.dead.Load() {
		return errDead
	}
	err := s.Store.Update(fn)
	if hit {
		s.p.dead.Store(true)
		return errDead
	}
	return err
}

type mortalHost struct {
	runtime.Host
	p *mortal
}

func (h mortalHost) call(do func() error) error {
	if h.p.dead.Load() {
		return sim.ErrCrashed
	}
	h.p.mu.Lock()
	h.p.hostN++
	h.p.mu.Unlock()
	err := do()
	if errors.Is(err, sim.ErrCrashed) {
		h.p.dead.Store(true)
	}
	if h.p.twice != nil {
		h.p.twice()
	}
	return err
}

func (h mortalHost) PrepareImage(ctx context.Context, s runtime.ImageSource) (i runtime.Image, err error) {
	err = h.call(func() error { i, err = h.Host.PrepareImage(ctx, s); return err })
	return i, err
}
func (h mortalHost) EnsureNetwork(ctx context.Context, n runtime.Network) error {
	return h.call(func() error { return h.Host.EnsureNetwork(ctx, n) })
}
func (h mortalHost) RemoveNetwork(ctx context.Context, n runtime.Network) error {
	return h.call(func() error { return h.Host.RemoveNetwork(ctx, n) })
}
func (h mortalHost) EnsureVolume(ctx context.Context, v runtime.Volume) error {
	return h.call(func() error { return h.Host.EnsureVolume(ctx, v) })
}
func (h mortalHost) RemoveVolume(ctx context.Context, id string) error {
	return h.call(func() error { return h.Host.RemoveVolume(ctx, id) })
}
func (h mortalHost) Create(ctx context.Context, in runtime.Instance) (p runtime.Process, err error) {
	err = h.call(func() error { p, err = h.Host.Create(ctx, in); return err })
	return p, err
}
func (h mortalHost) Start(ctx context.Context, id string) error {
	return h.call(func() error { return h.Host.Start(ctx, id) })
}
func (h mortalHost) Pause(ctx context.Context, id string) error {
	return h.call(func() error { return h.Host.Pause(ctx, id) })
}
func (h mortalHost) Resume(ctx context.Context, id string) error {
	return h.call(func() error { return h.Host.Resume(ctx, id) })
}
func (h mortalHost) Stop(ctx context.Context, id string, o runtime.StopOptions) (out *runtime.Outcome, err error) {
	err = h.call(func() error { out, err = h.Host.Stop(ctx, id, o); return err })
	return out, err
}
func (h mortalHost) Signal(ctx context.Context, id string, sig int) error {
	return h.call(func() error { return h.Host.Signal(ctx, id, sig) })
}
func (h mortalHost) Update(ctx context.Context, in runtime.Instance) error {
	return h.call(func() error { return h.Host.Update(ctx, in) })
}
func (h mortalHost) Repair(ctx context.Context, in runtime.Instance) error {
	return h.call(func() error { return h.Host.Repair(ctx, in) })
}
func (h mortalHost) Release(ctx context.Context, id string) error {
	return h.call(func() error { return h.Host.Release(ctx, id) })
}
func (h mortalHost) Reclaim(ctx context.Context, id string) error {
	return h.call(func() error { return h.Host.Reclaim(ctx, id) })
}
func (h mortalHost) Remove(ctx context.Context, id string) error {
	return h.call(func() error { return h.Host.Remove(ctx, id) })
}

// process is an engine that may die, and what it stands on.
type process struct {
	*Engine
	m     *mortal
	store state.Store
}

// process starts one. It dies as m says.
func (l *lab) process(by string, m *mortal) *process {
	l.t.Helper()
	store, err := state.Open(context.Background(), state.Options{Dir: l.state, Verb: "test", Wait: 5 * time.Second})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { store.Close() })
	log := hclog.NewNullLogger()
	if os.Getenv("PINFOLD_LOG") == "debug" && !l.quiet {
		log = hclog.New(&hclog.LoggerOptions{Output: testWriter{l.t}, Level: hclog.Debug})
	}
	if l.log != nil {
		log = l.log
	}
	lineage := store.Lineage()
	m.twice = func() { l.atMostOne(lineage) }
	e, err := NewEngine(context.Background(), EngineOptions{
		Store: mortalStore{store, m}, Host: mortalHost{l.world.Open(lineage), m}, Settings: l.settings, By: by, Log: log,
	})
	if err != nil {
		store.Close()
		if m.dead.Load() {
			return nil
		}
		l.t.Fatal(err)
	}
	return &process{e, m, store}
}

// bury lets go of what a dead process's end lets go of.
func (p *process) bury(t *testing.T) {
	t.Helper()
	p.m.dead.Store(true)
	if err := p.store.Close(); err != nil {
		t.Fatal(err)
	}
}

// atMostOne fails the test when two instances of one sandbox are alive.
func (l *lab) atMostOne(lineage string) {
	if l.twins {
		return
	}
	o, err := l.world.Open(lineage).Observe(context.Background())
	if err != nil {
		return // a test that lets looks fail
	}
	alive := map[string]string{}
	for id, in := range o.Instances {
		if !in.Alive && !in.Dying {
			continue
		}
		if other := alive[in.Mark.UID]; other != "" {
			l.t.Errorf("instances %s and %s of %s are alive at the same time", other, id, in.Mark.Address)
		}
		alive[in.Mark.UID] = id
	}
}

func (l *lab) open(by string) *Engine {
	l.t.Helper()
	return l.process(by, &mortal{}).Engine
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Logf("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}

func (l *lab) close(e *Engine) {
	l.t.Helper()
	if err := e.Close(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) request(o plan.Options) ApplyRequest {
	l.t.Helper()
	return ApplyRequest{PlanRequest: PlanRequest{Source: l.source(), Options: o}, AutoApprove: true}
}

func (l *lab) apply(e *Engine, o plan.Options) *ApplyResult {
	l.t.Helper()
	res, err := e.Apply(context.Background(), l.request(o), nil, nil)
	if err != nil {
		for _, d := range errorOf(err).(*Error).Diagnostics {
			l.t.Logf("%s: %s: %s", d.Severity, d.Summary, d.Detail)
		}
		l.t.Fatalf("apply: %v", err)
	}
	return res
}

// applyFails wants an error, and returns it with what was done.
func (l *lab) applyFails(e *Engine, o plan.Options) (*ApplyResult, *Error) {
	l.t.Helper()
	res, err := e.Apply(context.Background(), l.request(o), nil, nil)
	if err == nil {
		l.t.Fatal("apply succeeds")
	}
	return res, errorOf(err).(*Error)
}

func (l *lab) destroy(e *Engine) { l.t.Helper(); l.apply(e, plan.Options{Destroy: true}) }

// end destroys everything, closes the engine and wants the host clean.
func (l *lab) end(e *Engine) {
	l.t.Helper()
	l.destroy(e)
	l.close(e)
	l.clean()
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

// tidy wants the host to hold what the records say, and no more, and the journal
// to be empty.
func (l *lab) tidy(e *Engine) {
	l.t.Helper()
	o, err := e.host.Observe(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	want := map[string]bool{}
	r := e.snapshot()
	for a, s := range r.Sandboxes {
		if s.Instance != nil {
			want["instance "+s.Instance.ID] = true
		}
		for _, id := range s.Claim {
			want["volume "+id] = true
		}
		for _, d := range s.Deposed {
			l.t.Errorf("%s still has the deposed instance %s", a, d.Instance.ID)
		}
		if s.CarryFrom != "" && s.Instance == nil {
			want["instance "+s.CarryFrom] = true // its files wait for the next create
		} else if len(s.Doomed) > 0 || s.CarryFrom != "" {
			l.t.Errorf("%s still has old instances %v, carries from %q", a, s.Doomed, s.CarryFrom)
		}
		if i := s.Instance; i != nil && !live(s) && i.Phase != plan.Lost {
			if seen := o.Instances[i.ID]; seen.Alive || seen.Dying {
				l.t.Errorf("%s is %s, its process lives", a, i.Phase)
			}
			for _, left := range l.world.Leftovers() {
				if strings.HasSuffix(left, " "+i.ID) && (strings.HasPrefix(left, "cgroup") || strings.HasPrefix(left, "netns") || strings.HasPrefix(left, "link")) {
					l.t.Errorf("%s is %s, but left: %s", a, i.Phase, left)
				}
			}
		}
	}
	for _, n := range r.Networks {
		want["network "+n.ID] = true
	}
	for _, v := range r.Volumes {
		want["volume "+v.ID] = true
	}
	have := map[string]bool{}
	for id, in := range o.Instances {
		have["instance "+id] = true
		if in.Released { // left alone, with what it stands on
			want["instance "+id], want["network "+in.Network] = true, in.Network != ""
			for _, m := range in.Mounts {
				want["volume "+m.Source] = m.Kind == "volume"
			}
		}
	}
	for id := range o.Networks {
		have["network "+id] = true
	}
	for id := range o.Volumes {
		have["volume "+id] = true
	}
	for x := range have {
		if !want[x] {
			l.t.Errorf("on the host without a record: %s", x)
		}
	}
	for x := range want {
		if want[x] && !have[x] && !strings.HasPrefix(x, "instance") {
			l.t.Errorf("on record, not on the host: %s", x)
		}
	}
	open, err := e.openIntents()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, in := range open {
		l.t.Errorf("still in the journal: %s of %s, instance %s", in.Op, in.Address, in.Instance)
	}
}

func (l *lab) view(e *Engine, address string) SandboxView {
	l.t.Helper()
	res, err := e.List(context.Background(), address)
	if err != nil {
		l.t.Fatal(err)
	}
	return res.Sandboxes[0]
}

func (l *lab) phase(e *Engine, address string, want plan.Phase) SandboxView {
	l.t.Helper()
	v := l.view(e, address)
	if v.Phase != want {
		l.t.Errorf("%s is %s, want %s", address, v.Phase, want)
	}
	return v
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

// id is the instance id of a sandbox.
func (l *lab) id(e *Engine, address string) string {
	l.t.Helper()
	rec := e.current(address)
	if rec == nil || rec.Instance == nil {
		l.t.Fatalf("%s has no instance", address)
	}
	return rec.Instance.ID
}

func (l *lab) act(e *Engine, verb, address string) *ActResult {
	l.t.Helper()
	res, err := e.Act(context.Background(), ActRequest{Verb: verb, Address: address})
	if err != nil {
		l.t.Fatalf("%s %s: %v", verb, address, err)
	}
	return res
}

func (l *lab) refused(err error, kind ErrorKind, words string) {
	l.t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		l.t.Fatalf("error is %v, want one of kind %s", err, kind)
	}
	if e.Kind != kind || !strings.Contains(e.Message, words) {
		l.t.Errorf("error %s: %q, want %s with %q", e.Kind, e.Message, kind, words)
	}
}

// events are the types and reasons of a sandbox's history, oldest first.
func (l *lab) events(e *Engine, address string) []string {
	l.t.Helper()
	all, err := e.history(address, 100)
	if err != nil {
		l.t.Fatal(err)
	}
	var s []string
	for _, ev := range all {
		s = append(s, fmt.Sprintf("%s/%s/%s", ev.Type, ev.Reason, ev.By))
	}
	return s
}

// writes lists the names of the host's writing calls since the last ClearOps.
func (l *lab) writes() []string {
	var s []string
	for _, c := range l.world.Ops() {
		s = append(s, string(c.Op))
	}
	return s
}

func (l *lab) clean() {
	l.t.Helper()
	if left := l.world.Leftovers(); len(left) > 0 {
		l.t.Fatalf("left on the host: %v", left)
	}
}

// keeper is an agent's loop over an engine.
type keeper struct {
	*agent
	stop func()
}

// keep starts an agent's loop; the bubble's clock drives it.
func (l *lab) keep(e *Engine) *keeper {
	l.t.Helper()
	a := newAgent(e)
	ctx, cancel := context.WithCancel(context.Background())
	ready, over := make(chan struct{}), make(chan error, 1)
	go func() { over <- a.loop(ctx, func() { close(ready) }) }()
	<-ready
	k := &keeper{a, sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			l.t.Errorf("agent: %v", err)
		}
		e.nudge = nil
	})}
	l.t.Cleanup(k.stop)
	return k
}

// looks are how often the agent looked at everything and at one sandbox.
func (k *keeper) looks() (all, one int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.passes, k.glances
}

func (m *mortal) commits() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.countN
}

// null is a file that takes and gives nothing.
func (l *lab) null() *os.File {
	l.t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { f.Close() })
	return f
}

// sleep lets virtual time pass.
func sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

func hasPrefix(list []string, prefix string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return strings.HasPrefix(s, prefix) })
}
