package plan

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"pinfold/config"
)

// settled is a world of n running sandboxes with nothing to do.
func settled(n int) Input {
	w := newWorld().network("network.n", "10.88.0.0/16")
	for i := range n {
		s := spec(on("network.n"), ttl(8*time.Hour), env("WHO", fmt.Sprint(i)), claim("work"))
		s.Ports = map[string]config.Port{"http": {Container: 8080}}
		w.both(fmt.Sprintf("sandbox.s%06d", i), s)
	}
	for a, st := range Make(w.Input).Status {
		w.Records.Sandboxes[a].Conditions = st.Conditions
	}
	return w.Input
}

func benchmark(b *testing.B, n int) time.Duration {
	in := settled(n)
	if p := Make(in); !p.Empty() {
		b.Fatalf("there is something to do:\n%s", p)
	}
	b.ReportAllocs()
	before, start := cpu(b), 0
	for b.Loop() {
		start++
		Make(in)
	}
	per := (cpu(b) - before) / time.Duration(start)
	b.ReportMetric(float64(per)/float64(time.Millisecond), "cpu-ms/op")
	return per
}

// cpu is what this process has used, garbage collection included; on a shared
// machine it says more than the wall clock.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkNothingToDo1000(b *testing.B)  { benchmark(b, 1000) }
func BenchmarkNothingToDo10000(b *testing.B) { benchmark(b, 10000) }

// BenchmarkGrowth shows that ten times the sandboxes take about ten times as long.
func BenchmarkGrowth(b *testing.B) {
	var one, ten time.Duration
	b.Run("1000", func(b *testing.B) { one = benchmark(b, 1000) })
	b.Run("10000", func(b *testing.B) { ten = benchmark(b, 10000) })
	if one > 0 {
		b.Logf("CPU per plan: 1,000: %v; 10,000: %v; ratio %.1f", one, ten, float64(ten)/float64(one))
	}
}

// BenchmarkCreateAll plans 10,000 new sandboxes.
func BenchmarkCreateAll(b *testing.B) {
	w := newWorld().network("network.n", "10.88.0.0/16")
	for i := range 10000 {
		w.declare(fmt.Sprintf("sandbox.s%06d", i), spec(on("network.n"), env("WHO", fmt.Sprint(i))))
	}
	b.ReportAllocs()
	for b.Loop() {
		if p := Make(w.Input); p.Summary.Add != 10000 {
			b.Fatal(p.Summary)
		}
	}
}
