package reconcile

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"pinfold/reconcile/plan"
)

// TestNothingGrows creates and destroys sandboxes 10,000 times under one agent: its
// memory, descriptors and goroutines are what they were after the first few hundred.
// The history and the state file have reached their bounds by then.
func TestNothingGrows(t *testing.T) {
	const rounds, each = 10_000, 500
	inTime(t, func(t *testing.T) {
		l := newLab(t, nil)
		l.quiet = true
		e := l.open(byAgent)
		k := l.keep(e)
		many := func(n int) {
			l.main(fmt.Sprintf(`
image "base" { source = "host" }
network "n" { cidr = "10.88.0.0/20" }
sandbox "s" {
  count   = %d
  image   = image.base
  command = ["sim", "append=/log:x"]
  network { name = network.n }
  volume "work" { path = "/work" }
  port "p" { container = 80 }
  lifetime {
    ttl              = "1h"
    idle_timeout     = "10m"
    resume_on_access = true
  }
}
`, n))
			l.apply(e, plan.Options{})
			sleep(2 * time.Second) // the agent sees to them
		}
		measure := func(done int) growth {
			l.world.ClearOps() // the simulated host's own record of calls
			g := grown()
			t.Logf("after %6d rounds: heap %5.1f MiB, %d descriptors, %d goroutines, state file %.1f MiB", done, float64(g.heap)/(1<<20), g.fds, g.goroutines, float64(g.file(l.state))/(1<<20))
			return g
		}
		var first, last growth
		for done := 0; done < rounds; {
			many(each)
			many(0)
			done += each
			switch {
			case done == 6*each: // the history is as long as it gets
				first = measure(done)
			case done%(2*each) == 0 && done > 6*each:
				last = measure(done)
			}
		}
		if last.fds > first.fds || last.goroutines > first.goroutines {
			t.Errorf("descriptors grew from %d to %d, goroutines from %d to %d", first.fds, last.fds, first.goroutines, last.goroutines)
		}
		if last.heap > first.heap+(4<<20) {
			t.Errorf("the heap grew from %d to %d bytes", first.heap, last.heap)
		}
		k.stop()
		l.end(e)
	})
}

// growth is what this process has.
type growth struct {
	heap            uint64
	fds, goroutines int
}

func grown() growth {
	runtime.GC()
	runtime.GC() // what finalizers of the first let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fds, _ := os.ReadDir("/proc/self/fd")
	return growth{heap: m.HeapAlloc, fds: len(fds), goroutines: runtime.NumGoroutine()}
}

func (growth) file(stateDir string) int64 {
	st, err := os.Stat(statePath(stateDir))
	if err != nil {
		return 0
	}
	return st.Size()
}
