package reconcile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
	"pinfold/state"
)

// many is a configuration of n sandboxes on one network, with deadlines.
func many(n int) string {
	return fmt.Sprintf(`
image "base" { source = "host" }
network "n" { cidr = "10.64.0.0/16" }
policy "p" {
  lifetime { ttl = "100d" }
  resources {
    cpu    = 0.5
    memory = "256MiB"
  }
}
sandbox "s" {
  count    = %d
  image    = image.base
  command  = ["sleep", "inf"]
  env      = { GW = network.n.gateway, I = "${count.index}" }
  labels   = { team = "agents" }
  policies = [policy.p]
  network { name = network.n }
}`, n)
}

// benchWorld brings up n sandboxes.
func benchWorld(b *testing.B, n int) (*Engine, *config.Source) {
	b.Helper()
	dir, st := b.TempDir(), b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.hcl"), []byte(many(n)), 0o644); err != nil {
		b.Fatal(err)
	}
	src, diags := config.Load(dir, config.Inputs{})
	if diags.HasErrors() {
		b.Fatal(diags)
	}
	store, err := state.Open(context.Background(), state.Options{Dir: st, Verb: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	e, err := NewEngine(context.Background(), EngineOptions{Store: store, Host: sim.New().Open(store.Lineage()), Settings: config.DefaultSettings()})
	if err != nil {
		b.Fatal(err)
	}
	r := ApplyRequest{PlanRequest: PlanRequest{Source: src}, AutoApprove: true, Parallelism: 256}
	if _, err := e.Apply(context.Background(), r, nil, nil); err != nil {
		b.Fatal(err)
	}
	return e, src
}

// BenchmarkPlanNothing is a plan with nothing to do, end to end: the
// configuration evaluated, the host (simulated) looked at, all compared. Its
// parts are reported beside it.
func BenchmarkPlanNothing(b *testing.B) {
	took := map[int]float64{}
	defer func() {
		if took[1_000] > 0 && took[10_000] > 0 {
			b.Logf("1,000: %.0f ms (bar 100), 10,000: %.0f ms (bar 1000), ratio %.1f", took[1_000], took[10_000], took[10_000]/took[1_000])
		}
	}()
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, src := benchWorld(b, n)
			ctx := context.Background()
			ms := func(what string, f func()) {
				began := time.Now()
				f()
				b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms-"+what)
			}
			b.ResetTimer()
			for b.Loop() {
				p, err := e.Plan(ctx, PlanRequest{Source: src})
				if err != nil || !p.Plan.Empty() {
					b.Fatalf("%v %v", p, err)
				}
			}
			took[n] = float64(b.Elapsed().Microseconds()) / 1000 / float64(b.N)
			b.ReportMetric(took[n], "ms/plan")
			var d *config.Desired
			var seen sight
			ms("evaluate", func() { d, _ = src.Evaluate(e.settings, e.exports()) })
			ms("look", func() { seen, _ = e.look(ctx) })
			records := e.snapshot()
			ms("make", func() {
				plan.Make(plan.Input{Desired: d, Records: records, Observed: seen.Observed, Now: e.now(), Trigger: plan.Apply})
			})
			ms("load", func() {
				if err := e.load(); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkAgentPass is one look at everything by an agent that has nothing to
// do, and BenchmarkAgentGlance what one event on one sandbox costs.
func BenchmarkAgentPass(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, _ := benchWorld(b, n)
			a := newAgent(e)
			ctx, cancel := context.WithCancel(context.Background())
			defer a.work.Wait()
			defer cancel()
			for b.Loop() {
				if err := a.pass(ctx); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/pass")
		})
	}
}

func BenchmarkAgentGlance(b *testing.B) {
	for _, n := range []int{1_000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e, _ := benchWorld(b, n)
			as := e.as(byAgent)
			for b.Loop() {
				if did, _, err := as.converge(context.Background(), "sandbox.s[7]"); did || err != nil {
					b.Fatal(did, err)
				}
			}
		})
	}
}

// BenchmarkIdleAgent is the CPU that an agent takes over a minute in which nothing
// happens to 1,000 sandboxes. It is real time: run it with -benchtime 1x.
func BenchmarkIdleAgent(b *testing.B) {
	e, _ := benchWorld(b, 1_000)
	a := newAgent(e)
	ctx, cancel := context.WithCancel(context.Background())
	ready, over := make(chan struct{}), make(chan error, 1)
	go func() { over <- a.loop(ctx, func() { close(ready) }) }()
	<-ready
	time.Sleep(5 * time.Second) // past its first looks
	for b.Loop() {
		before := cpuTime(b)
		time.Sleep(time.Minute)
		used := cpuTime(b) - before
		b.ReportMetric(100*used.Seconds()/60, "%CPU")
	}
	cancel()
	if err := <-over; err != nil {
		b.Fatal(err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkThousandDue is what deciding takes when the deadlines of 1,000 sandboxes
// pass at one instant.
func BenchmarkThousandDue(b *testing.B) {
	e, _ := benchWorld(b, 1_000)
	records := e.snapshot()
	seen, err := e.look(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	at := e.now().Add(time.Hour)
	for address, rec := range records.Sandboxes {
		c := copySandbox(rec)
		c.Lease.Until = at
		records.Sandboxes[address] = c
	}
	in := plan.Input{Records: records, Observed: seen.Observed, Now: at.Add(-1), Trigger: plan.Keep}
	if p := plan.Make(in); len(p.Changes) > 0 || !p.WakeAt.Equal(at) {
		b.Fatalf("a nanosecond before: %d changes, wakes at %s", len(p.Changes), p.WakeAt)
	}
	in.Now = at
	for b.Loop() {
		if p := plan.Make(in); len(p.Changes) != 1_000 {
			b.Fatalf("%d changes", len(p.Changes))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/1000")
}
