package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

// A scenario is work that is cut off at every point of it.
type scenario struct {
	name   string
	before string                  // the configuration applied first
	break_ func(l *lab, e *Engine) // what happens to the host then
	wait   time.Duration           // and how much time passes
	after  string                  // the configuration that the work is about; empty: before
	verb   func(e *Engine) error   // the work; nil: apply
	layer  string                  // a file that sandbox.a's layer must have in the end
	phases string                  // what List says in the end
	told   func(e *Engine) string  // configuration that goes before after, by what is there once break_ is done
	leaves bool                    // something is left on the host for good
	twins  bool                    // two instances of one sandbox may live at the same time
	fails  bool                    // the work fails, and nothing is changed by it
}

const base = `
image "base" { source = "host" }
network "n" { cidr = "10.88.7.0/24" }
volume "data" {}
`

func sandboxA(extra string) string {
	return base + `
sandbox "a" {
  image   = image.base
  command = ["sim", "append=/log:x"]
  network { name = network.n }
  port "http" { container = 80 }
  volume "work" { path = "/work" }
  mount {
    volume = volume.data
    path   = "/data"
  }
` + extra + `
}
sandbox "b" {
  image   = image.base
  command = ["sleep", "inf"]
  env     = { PEER = sandbox.a.address, GW = network.n.gateway }
  network { name = network.n }
}
`
}

// sandboxFirst is sandboxA with a replacement that comes first, and without a claim.
func sandboxFirst(extra string) string {
	text := strings.Replace(sandboxA("lifecycle { create_before_destroy = true }\n"+extra), "  volume \"work\" { path = \"/work\" }\n", "", 1)
	return text
}

func act(verb string) func(e *Engine) error {
	return func(e *Engine) error {
		_, err := e.Act(context.Background(), ActRequest{Verb: verb, Address: "sandbox.a"})
		return err
	}
}

func sandboxID(e *Engine, address string) string {
	return e.current(address).Instance.ID
}

var scenarios = []scenario{
	{name: "create", after: sandboxA(""), phases: "a running, b running"},
	{name: "create-paused", after: sandboxA(`operating_mode = "paused"`), phases: "a paused, b running"},
	{name: "create-suspended", after: sandboxA(`operating_mode = "suspended"`), phases: "a stopped, b running"},
	{name: "update", before: sandboxA(""), after: strings.Replace(sandboxA("resources { pids = 7 }\n labels = { x = \"y\" }"), "container = 80", "container = 81", 1), layer: "/log", phases: "a running, b running"},
	{name: "restart", before: sandboxA(""), after: sandboxA(`env = { X = "1" }`), layer: "/log", phases: "a running, b running"},
	{name: "replace", before: sandboxA(""), after: sandboxA("security { user_namespace = false }"), phases: "a running, b running"},
	{name: "replace-first", before: sandboxFirst(""), after: sandboxFirst("security { user_namespace = false }"), phases: "a running, b running", twins: true},
	{name: "replace-first-failing", before: sandboxFirst(""), after: sandboxFirst(`health { tcp = 7 }
  lifetime { start_timeout = "1m" }
  security { user_namespace = false }`), fails: true, phases: "a running, b running", twins: true},
	{name: "remove-first", before: sandboxFirst(""), break_: func(l *lab, e *Engine) {
		l.world.Fail(sim.OpRemove, sandboxID(e, "sandbox.a"), errors.New("busy"), sim.Before, 1)
		if _, err := e.Apply(context.Background(), l.request(plan.Options{Replace: []string{"sandbox.a"}}), nil, nil); err == nil {
			l.t.Fatal("what is deposed goes")
		}
	}, phases: "a running, b running", twins: true},
	{name: "replace-network", before: sandboxA(""), after: strings.Replace(sandboxA(""), "10.88.7", "10.88.9", 1), phases: "a running, b running"},
	{name: "recreate", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.world.Kill(sandboxID(e, "sandbox.a")) }, wait: time.Hour, layer: "/log", phases: "a running, b running"},
	{name: "killed", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.world.KillMain(sandboxID(e, "sandbox.a"), 9) }, wait: time.Hour, layer: "/log", phases: "a running, b running"},
	{name: "reboot", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.world.Reboot() }, wait: time.Hour, layer: "/log", phases: "a running, b running"},
	{name: "exited", before: strings.Replace(sandboxA(""), `"append=/log:x"`, `"after=1m", "exit=3"`, 1), wait: time.Hour, phases: "a stopped, b running"},
	{name: "repair", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.world.Break(sandboxID(e, "sandbox.a"), "link") }, layer: "/log", phases: "a running, b running"},
	{name: "bridge", before: sandboxA(""), break_: func(l *lab, e *Engine) {
		n, _ := e.network("network.n")
		l.world.BreakNetwork(n.ID, "bridge")
	}, layer: "/log", phases: "a running, b running"},
	{name: "rootfs", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.world.Break(sandboxID(e, "sandbox.a"), "rootfs") }, layer: "/log", phases: "a running, b running"},
	{name: "suspend", before: sandboxA(""), after: sandboxA(`operating_mode = "suspended"`), layer: "/log", phases: "a stopped, b running"},
	{name: "remove", before: sandboxA(""), after: base, phases: ""},
	{name: "expire-retain", before: sandboxA("lifetime { ttl = \"1m\" }"), wait: time.Hour, layer: "/log", phases: "a stopped, b running"},
	{name: "expire-delete", before: sandboxA("lifetime { ttl = \"1m\" }\n shutdown_policy = \"delete\""), wait: time.Hour, phases: "b running"},
	{name: "revive", before: sandboxA(`shutdown_time = "2000-01-01T01:00:00Z"`), wait: 2 * time.Hour, break_: func(l *lab, e *Engine) {
		time.Sleep(90 * time.Minute)
		l.apply(e, plan.Options{})
	}, after: sandboxA(`shutdown_time = "2001-01-01T01:00:00Z"`), layer: "/log", phases: "a running, b running"},
	{name: "pause", before: sandboxA(""), verb: act("pause"), layer: "/log"},
	{name: "stop", before: sandboxA(""), verb: act("stop"), layer: "/log"},
	{name: "kill", before: sandboxA(""), verb: act("kill"), layer: "/log"},
	{name: "resume", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.act(e, "pause", "sandbox.a") }, verb: act("resume"), layer: "/log"},
	{name: "start", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.act(e, "stop", "sandbox.a") }, verb: act("start"), layer: "/log"},
	{name: "move", before: rename(sandboxA(""), `"a"`, `"x"`, "sandbox.a", "sandbox.x", `"n"`, `"m"`, "network.n", "network.m", `"data"`, `"store"`, "volume.data", "volume.store"),
		after: moved("sandbox.x", "sandbox.a") + moved("network.m", "network.n") + moved("volume.store", "volume.data") + sandboxA(`labels = { x = "y" }`),
		layer: "/log", phases: "a running, b running"},
	{name: "swap", before: sandboxA(""), after: moved("sandbox.a", "sandbox.b") + moved("sandbox.b", "sandbox.a") + rename(sandboxA(""), `"a"`, `"b"`, `"b"`, `"a"`, "sandbox.a", "sandbox.b"),
		phases: "a running, b running"},
	{name: "removed", before: sandboxA(""), after: removed("sandbox.a") + base + box("b", "network { name = network.n }"), phases: "b running", leaves: true},
	{name: "removed with its ground", before: sandboxA(""), after: removed("sandbox.a") + "image \"base\" { source = \"host\" }\n", leaves: true},
	{name: "import", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.rm(e, "sandbox.a") }, told: func(e *Engine) string { return imported(givenUp(e), "sandbox.a") },
		after: sandboxA(`labels = { x = "y" }`), layer: "/log", phases: "a running, b running"},
	{name: "import with its ground", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.rm(e, "sandbox.a", "sandbox.b", "network.n", "volume.data") },
		told: func(e *Engine) string { return imported(givenUp(e), "sandbox.a") }, after: sandboxA(""), layer: "/log", phases: "a running, b running", leaves: true},
	{name: "state mv", before: moved("sandbox.x", "sandbox.a") + sandboxA(""), verb: func(e *Engine) error {
		_, err := e.StateMove(context.Background(), StateMoveRequest{From: "sandbox.a", To: "sandbox.x"})
		return err
	}, layer: "/log"},
	{name: "state rm", before: sandboxA(""), verb: func(e *Engine) error {
		_, err := e.StateRemove(context.Background(), StateRemoveRequest{Addresses: []string{"sandbox.a"}})
		return err
	}, layer: "/log", leaves: true},
	{name: "release", before: sandboxA(""), break_: func(l *lab, e *Engine) { l.act(e, "stop", "sandbox.a") }, verb: act("release"), layer: "/log"},
}

// set-up brings a lab to where a scenario's work begins, and returns the engine.
func (s *scenario) setUp(l *lab, m *mortal) *process {
	l.quiet, l.twins = true, s.twins
	told := ""
	if s.before != "" {
		l.main(s.before)
		e := l.open("apply")
		l.apply(e, plan.Options{})
		if s.break_ != nil {
			s.break_(l, e)
		}
		if s.told != nil {
			told = s.told(e)
		}
		l.close(e)
	}
	if s.after != "" {
		l.main(told + s.after)
	}
	time.Sleep(s.wait)
	l.world.ClearOps()
	return l.process("apply", m)
}

func (s *scenario) work(l *lab, e *Engine) error {
	if s.verb != nil {
		return s.verb(e)
	}
	_, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, nil)
	return err
}

// check wants the end of the scenario.
func (s *scenario) check(l *lab, e *Engine) {
	l.t.Helper()
	if s.fails {
		l.main(s.before) // what was asked for in vain
	}
	l.nothingToDo(e)
	l.tidy(e)
	got := []string{}
	for _, a := range []string{"a", "b"} {
		if p, ok := l.phases(e)["sandbox."+a]; ok {
			got = append(got, a+" "+string(p))
		}
	}
	if s.verb == nil && strings.Join(got, ", ") != s.phases {
		l.t.Errorf("phases %v, want %s", got, s.phases)
	}
	if s.layer != "" {
		if text, _ := l.world.LayerFile(sandboxID(e, "sandbox.a"), s.layer); !strings.HasPrefix(text, "x") {
			l.t.Errorf("%s of sandbox.a is %q: its files are lost", s.layer, text)
		}
	}
}

// givenUp is the released instance that was sandbox.a's.
func givenUp(e *Engine) string {
	o, err := e.host.Observe(context.Background())
	if err != nil {
		return err.Error()
	}
	for id, s := range o.Instances {
		if s.Released && s.Mark.Address == "sandbox.a" {
			return id
		}
	}
	return "nothing"
}

// end is lab.end, where what is left for good is taken from the host.
func (s *scenario) end(l *lab, e *Engine) {
	l.t.Helper()
	if s.leaves {
		l.destroy(e)
		o, err := e.host.Observe(context.Background())
		if err != nil {
			l.t.Fatal(err)
		}
		l.discard(e, sortedKeys(o.Instances)...)
	}
	l.end(e)
}

// point is where the process dies.
type point struct {
	commit int // the n-th update of the store, or
	call   int // the n-th writing call of the host
	when   sim.When
}

func (p point) String() string {
	what, n := "commit", p.commit
	if p.call > 0 {
		what, n = "call", p.call
	}
	return fmt.Sprintf("%s %s %d", [...]string{"before", "midway", "after"}[p.when], what, n)
}

// TestCrash cuts off every scenario before and after each transaction and
// before, within and after each call of the host; the next process, by an apply
// or by an agent's passes, must bring it to the end with nothing lost, left over
// or alive twice.
func TestCrash(t *testing.T) {
	var ran atomic.Int64
	t.Cleanup(func() { t.Logf("%d crash points", ran.Load()) })
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			var commits, calls int
			inTime(t, func(t *testing.T) {
				l := newLab(t, nil)
				p := s.setUp(l, &mortal{})
				if err := s.work(l, p.Engine); (err != nil) != s.fails {
					t.Fatal(err)
				}
				commits, calls = p.m.countN, p.m.hostN
				if s.verb != nil {
					l.apply(p.Engine, plan.Options{})
				}
				s.check(l, p.Engine)
				s.end(l, p.Engine)
			})
			if t.Failed() {
				return
			}
			var points []point
			for n := 1; n <= commits; n++ {
				points = append(points, point{commit: n}, point{commit: n, when: sim.After})
			}
			for n := 1; n <= calls; n++ {
				points = append(points, point{call: n}, point{call: n, when: sim.Midway}, point{call: n, when: sim.After})
			}
			for i, at := range points {
				by := []string{"apply", "agent"}[i%2]
				if !testing.Short() {
					by = "both"
				}
				for _, who := range []string{"apply", "agent"} {
					if by != "both" && by != who {
						continue
					}
					ok := t.Run(at.String()+" then "+who, func(t *testing.T) {
						inTime(t, func(t *testing.T) { crash(t, &s, at, who) })
					})
					ran.Add(1)
					if !ok {
						return // the others would say the same
					}
				}
			}
		})
	}
}

func crash(t *testing.T, s *scenario, at point, who string) {
	l := newLab(t, nil)
	m := &mortal{}
	p := s.setUp(l, m)
	if at.commit > 0 {
		m.mu.Lock()
		m.dieAt, m.after = m.countN+at.commit, at.when == sim.After
		m.mu.Unlock()
	} else {
		l.world.Crash(at.call, at.when)
	}
	err := s.work(l, p.Engine)
	if !m.dead.Load() {
		t.Logf("%s is not reached", at)
	} else if err == nil && s.verb != nil {
		// Nothing was confirmed that did not happen.
		t.Logf("died after the work: %s", at)
	}
	p.bury(t)
	l.world.ClearFaults()

	e := l.open(who)
	if who == "agent" {
		k := l.keep(e)
		sleep(2 * time.Hour)
		k.stop()
		if s.after == "" && s.verb == nil {
			l.nothingToDo(e) // an agent needs no files for what is on record
		}
	}
	// What only the files ask for is applied again.
	if s.fails {
		l.applyFails(e, plan.Options{})
	} else {
		l.apply(e, plan.Options{})
	}
	s.check(l, e)
	s.end(l, e)
}

// An intent whose end could not be recorded must not come back much later and be
// carried out on what is no longer so.
func TestIntentLeftOpenIsClosedByTheNext(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	m := &mortal{}
	p := l.process("agent", m)
	l.apply(p.Engine, plan.Options{})
	m.mu.Lock()
	m.dieAt = m.countN + 2 // the second transaction of the stop: its end
	m.mu.Unlock()
	if _, err := p.Act(context.Background(), ActRequest{Verb: "stop", Address: "a"}); err == nil {
		t.Fatal("a stop that cannot be recorded is confirmed")
	}
	m.dead.Store(false) // the disk has room again
	open, err := p.openIntents()
	if err != nil || len(open) != 1 || open[0].Op != opStop {
		t.Fatalf("journal %+v, %v", open, err)
	}
	l.act(p.Engine, "release", "a")
	l.phase(p.Engine, "sandbox.a", plan.Running)
	pid := *l.view(p.Engine, "sandbox.a").PID
	p.bury(t)
	e := l.open("agent")
	if v := l.phase(e, "sandbox.a", plan.Running); v.PID == nil || *v.PID != pid {
		t.Errorf("the old stop was carried out on a new process: %+v", v)
	}
	l.tidy(e)
	l.end(e)
}

// TestStaleStopIsNotCarriedOut: a stop whose end could not be recorded is no
// reason to end a process that was started since.
func TestStaleStopIsNotCarriedOut(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": `
image "base" { source = "host" }
sandbox "a" {
  image   = image.base
  command = ["sleep", "inf"]
}
`})
	e := l.open("apply")
	defer l.close(e)
	l.apply(e, plan.Options{})
	rec, _ := e.sandbox("sandbox.a")
	as := e.as(byAgent)
	stale, err := as.begin(Intent{Op: opStop, Kind: "sandbox", Address: rec.Address, UID: rec.UID, Instance: rec.Instance.ID, Why: "restart"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"pause", "resume"} { // newer steps, begun and ended
		if _, err := e.Act(context.Background(), ActRequest{Verb: verb, Address: "sandbox.a"}); err != nil {
			t.Fatal(err)
		}
	}
	e.openMu.Lock()
	e.unrecovered = append(e.unrecovered, *stale)
	e.openMu.Unlock()
	as.recoverAgain(context.Background())
	now, _ := e.sandbox("sandbox.a")
	if now.Instance.Phase != plan.Running || now.Instance.PID != rec.Instance.PID {
		t.Errorf("sandbox.a is %s with pid %d; want it running with pid %d", now.Instance.Phase, now.Instance.PID, rec.Instance.PID)
	}
	if open, err := e.openIntents(); err != nil || len(open) > 0 {
		t.Errorf("journal %v, %v; want it empty", open, err)
	}
	l.nothingToDo(e)
}
