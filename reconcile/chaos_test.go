package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

// TestChaos lets users, operators, an agent, the kernel and death have their way
// with a few sandboxes, at random and side by side; at the end an apply must
// leave what the files say, nothing else, and no sandbox alive twice on the way.
func TestChaos(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 12
	}
	if n, err := strconv.Atoi(os.Getenv("PINFOLD_CHAOS")); err == nil {
		seeds = n
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			inTime(t, func(t *testing.T) { chaos(t, uint64(seed)) })
		})
	}
}

// someFiles is a random configuration of sandboxes a, b and c.
func someFiles(rng *rand.Rand) string {
	text := fmt.Sprintf("image \"base\" { source = %q }\n", []string{"host", "dir:/srv/a"}[rng.IntN(2)])
	text += fmt.Sprintf("network \"n\" {\n cidr = %q\n internet = %v\n}\nvolume \"data\" {}\n", []string{"10.88.7.0/24", "10.88.9.0/24"}[max(0, rng.IntN(8)-6)], rng.IntN(2) == 0)
	for _, name := range []string{"a", "b", "c"} {
		if rng.IntN(5) == 0 {
			continue
		}
		text += fmt.Sprintf("sandbox %q {\n image = image.base\n command = [\"sim\", \"append=/log:x\"]\n env = { X = \"%d\", GW = network.n.gateway }\n", name, rng.IntN(3))
		text += " network { name = network.n }\n volume \"work\" { path = \"/work\" }\n"
		if rng.IntN(2) == 0 {
			text += fmt.Sprintf(" port \"p\" { container = %d }\n", 80+rng.IntN(3))
		}
		if rng.IntN(2) == 0 {
			text += " mount {\n volume = volume.data\n path = \"/data\"\n }\n"
		}
		text += fmt.Sprintf(" operating_mode = %q\n", []string{"running", "running", "paused", "suspended"}[rng.IntN(4)])
		life := fmt.Sprintf("on_lost = %q", []string{"recreate", "recreate-fresh"}[rng.IntN(2)])
		if rng.IntN(3) == 0 {
			life += fmt.Sprintf("\n ttl = \"%dm\"", 1+rng.IntN(30))
			text += fmt.Sprintf(" shutdown_policy = %q\n", []string{"retain", "delete"}[rng.IntN(2)])
		}
		text += fmt.Sprintf(" lifetime {\n %s\n }\n resources { pids = %d }\n}\n", life, 10+rng.IntN(3))
	}
	return text
}

func chaos(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 7))
	l := newLab(t, nil)
	l.quiet = true
	l.main(someFiles(rng))
	lineage := ""
	var p *process
	var k *keeper
	live := func() []string {
		o, err := l.world.Open(lineage).Observe(context.Background())
		if err != nil {
			return nil // a fault to order
		}
		var ids []string
		for _, id := range sortedKeys(o.Instances) {
			if o.Instances[id].Alive && o.Instances[id].Started {
				ids = append(ids, id)
			}
		}
		return ids
	}
	begin := func() {
		p = l.process("agent", &mortal{})
		lineage = p.Engine.store.Lineage()
		k = l.keep(p.Engine)
	}
	begin()
	quick := func(what string, patience time.Duration, do func(ctx context.Context) error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := do(ctx)
		var e *Error
		if err != nil && !errors.As(err, &e) {
			t.Errorf("%s: an error that is no *Error: %v", what, err)
		}
	}
	for range 60 {
		var wg sync.WaitGroup
		for range 1 + rng.IntN(3) {
			name := string(rune('a' + rng.IntN(3)))
			patience := time.Duration(1+rng.IntN(60)) * time.Second
			switch rng.IntN(12) {
			case 0, 1:
				l.main(someFiles(rng))
				fallthrough
			case 2:
				r := l.request(plan.Options{ReleaseHolds: rng.IntN(4) == 0, NoStart: rng.IntN(6) == 0})
				if rng.IntN(6) == 0 {
					r.Options.Replace = []string{"sandbox." + name}
				}
				if rng.IntN(12) == 0 {
					r.Options = plan.Options{Destroy: true}
				}
				wg.Go(func() {
					quick("apply", patience, func(ctx context.Context) error { _, err := p.Apply(ctx, r, nil, nil); return err })
				})
			case 3, 4, 5:
				verb := []string{"start", "stop", "pause", "resume", "release", "kill"}[rng.IntN(6)]
				wg.Go(func() {
					quick(verb, patience, func(ctx context.Context) error {
						_, err := p.Act(ctx, ActRequest{Verb: verb, Address: name})
						return err
					})
				})
			case 6:
				d := config.Duration(time.Duration(1+rng.IntN(20)) * time.Minute)
				wg.Go(func() {
					quick("renew", patience, func(ctx context.Context) error {
						_, err := p.Renew(ctx, RenewRequest{Address: name, In: &d})
						return err
					})
				})
			case 7, 8:
				if ids := live(); len(ids) > 0 {
					id := ids[rng.IntN(len(ids))]
					func() {
						defer func() { recover() }() // it may have gone meanwhile
						switch rng.IntN(5) {
						case 0:
							l.world.Kill(id)
						case 1:
							l.world.KillMain(id, 9)
						case 2:
							l.world.KillMain(id, 15)
						case 3:
							l.world.OOM(id)
						default:
							l.world.Break(id, []string{"link", "rules", "cgroup", "rootfs", "netns"}[rng.IntN(5)])
						}
					}()
				}
			case 9:
				op := []sim.Op{sim.OpCreate, sim.OpStart, sim.OpStop, sim.OpRemove, sim.OpUpdate, sim.OpRepair, sim.OpEnsureNetwork, sim.OpRemoveNetwork, sim.OpEnsureVolume, sim.OpRemoveVolume, sim.OpPause, sim.OpResume, sim.OpInspect, sim.OpObserve}[rng.IntN(14)]
				l.world.Fail(op, "", errors.New("chance"), sim.When(rng.IntN(3)), 1+rng.IntN(4))
			case 10:
				if rng.IntN(4) == 0 {
					l.world.Reboot()
				}
			default:
				l.world.Delay(sim.OpCreate, time.Duration(rng.IntN(3))*time.Second)
				l.world.Delay(sim.OpStop, time.Duration(rng.IntN(3))*time.Second)
			}
		}
		switch rng.IntN(6) {
		case 0: // the process dies somewhere
			if rng.IntN(2) == 0 {
				l.world.Crash(1+rng.IntN(6), sim.When(rng.IntN(3)))
			} else {
				p.m.mu.Lock()
				p.m.dieAt, p.m.after = p.m.countN+1+rng.IntN(8), rng.IntN(2) == 0
				p.m.mu.Unlock()
			}
			sleep(time.Duration(rng.IntN(120)) * time.Second)
			p.m.dead.Store(true)
			wg.Wait()
			k.stop()
			p.bury(t)
			l.world.ClearFaults()
			begin()
		case 1:
			sleep(time.Duration(rng.IntN(20)) * time.Minute)
		default:
			sleep(time.Duration(rng.IntN(20)) * time.Second)
		}
		wg.Wait()
	}
	l.world.ClearFaults()
	sleep(time.Hour) // the agent settles what it can
	e := p.Engine
	for a, rec := range e.snapshot().Sandboxes {
		if n, ok := e.network("network.n"); rec.Retry.Error != "" && phaseOf(rec) != plan.Failed && ok && n.Made {
			t.Errorf("%s is still failing after an hour without faults: %s", a, rec.Retry.Error)
		}
	}
	l.apply(e, plan.Options{ReleaseHolds: true})
	sleep(time.Minute)
	l.nothingToDo(e)
	l.tidy(e)
	d, _ := l.source().Evaluate(l.settings, e.exports())
	for i := range d.Sandboxes {
		want := &d.Sandboxes[i]
		rec := e.current(want.Address)
		if rec == nil {
			if e.snapshot().Ended[want.Address] == nil {
				t.Errorf("%s is missing", want.Address)
			}
			continue
		}
		if rec.Spec.Env["X"] != want.Spec.Env["X"] || rec.Spec.Resources != want.Spec.Resources {
			t.Errorf("%s: recorded %v %+v, declared %v %+v", want.Address, rec.Spec.Env, rec.Spec.Resources, want.Spec.Env, want.Spec.Resources)
		}
		if rec.Instance != nil && alive(rec.Instance.Phase) {
			on := l.world.Spec(rec.Instance.ID)
			if on.Env["X"] != want.Spec.Env["X"] || on.Env["GW"] != want.Spec.Env["GW"] || on.Limits.PIDs != want.Spec.Resources.PIDs || len(on.Forwards) != len(want.Spec.Ports) {
				t.Errorf("%s on the host: env %v, limits %+v, ports %v; declared %v %+v %v", want.Address, on.Env, on.Limits, on.Forwards, want.Spec.Env, want.Spec.Resources, want.Spec.Ports)
			}
		}
	}
	if t.Failed() {
		t.Logf("files:\n%s\nhistory:", l.source().Files["main.hcl"])
		for _, a := range []string{"a", "b", "c"} {
			t.Logf("%s: %s", a, strings.Join(l.events(e, "sandbox."+a), "\n  "))
		}
	}
	k.stop()
	l.end(e)
}
