package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/runtime/sim"
)

func (l *lab) stats(e *Engine, addresses ...string) *StatsResult {
	l.t.Helper()
	s, err := e.Stats(context.Background(), addresses...)
	if err != nil {
		l.t.Fatal(err)
	}
	return s
}

// topLine is a line of a TopResult, the phase first.
func topLine(x SandboxTop) string {
	num := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	text := fmt.Sprintf("%s %s cpu %s/%s memory %s/%s pids %s/%s", x.Address, x.Phase, num(x.CPUPercent), num(x.CPULimit), num(x.Memory), num(x.MemoryLimit), num(x.PIDs), num(x.PIDsLimit))
	if x.Network != nil {
		text += " net " + num(*x.Network)
	}
	if x.Unknown != nil {
		text += " unknown"
	}
	return text
}

func TestTop(t *testing.T) {
	withAgent(t, base+`
sandbox "busy" {
  image   = image.base
  command = ["sim", "busy", "memory=1048576"]
  network { name = network.n }
  resources {
    cpu    = 1.5
    memory = "64MiB"
    pids   = 9
  }
}
sandbox "idle" {
  image   = image.base
  command = ["sleep", "inf"]
}
sandbox "off" {
  image          = image.base
  command        = ["sleep", "inf"]
  operating_mode = "suspended"
}
`, func(l *lab, e *Engine, k *keeper) {
		check := func(top *TopResult, want ...string) {
			l.t.Helper()
			var got []string
			for _, x := range top.Sandboxes {
				got = append(got, topLine(x))
			}
			if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
				l.t.Errorf("got\n%q, want\n%q", got, want)
			}
		}
		first := l.stats(e)
		sleep(2 * time.Second)
		second := l.stats(e)
		top := second.Since(first)
		if top.Seconds != 2 || !top.At.Equal(second.At) {
			l.t.Errorf("over %g seconds, at %s", top.Seconds, top.At)
		}
		check(top,
			`sandbox.busy running cpu 100/1.5 memory 3145728/67108864 pids 2/9 net {"received":0,"sent":0,"received_per_second":0,"sent_per_second":0}`,
			"sandbox.idle running cpu 0/null memory 2097152/null pids 2/null")

		// Frozen it gets nothing; by its name one without a process is told, too.
		l.act(e, "pause", "busy")
		at := l.stats(e)
		sleep(time.Second)
		check(l.stats(e, "busy", "off", "sandbox.busy").Since(at),
			`sandbox.busy paused cpu 0/1.5 memory 3145728/67108864 pids 2/9 net {"received":0,"sent":0,"received_per_second":0,"sent_per_second":0}`,
			"sandbox.off stopped cpu null/null memory null/null pids null/null")

		// Of another process nothing is known yet, nor of what a counter that began anew did.
		l.act(e, "resume", "busy")
		l.act(e, "stop", "busy")
		sleep(time.Second)
		l.act(e, "start", "busy")
		check(l.stats(e, "busy").Since(at), `sandbox.busy running cpu null/1.5 memory 3145728/67108864 pids 2/9 net {"received":0,"sent":0,"received_per_second":null,"sent_per_second":null}`)
		was := l.stats(e, "busy")
		was.Sandboxes[0].Stats.CPU = time.Hour
		was.Sandboxes[0].Stats.Net.Sent = 1
		sleep(time.Second)
		l.world.Uses(l.id(e, "sandbox.busy"), runtime.Stats{CPU: time.Second, Memory: 5, PIDs: 3, Net: &runtime.Traffic{Received: 3000, Sent: 0}})
		check(l.stats(e, "busy").Since(was), `sandbox.busy running cpu null/1.5 memory 5/null pids 3/null net {"received":3000,"sent":0,"received_per_second":3000,"sent_per_second":null}`)

		// One that cannot be looked at does not hide the others.
		l.world.Fail(sim.OpStats, l.id(e, "sandbox.busy"), errors.New("no"), sim.Before, 1)
		check(l.stats(e).Since(at), "sandbox.busy running cpu null/1.5 memory null/null pids null/null unknown", "sandbox.idle running cpu 0/null memory 2097152/null pids 2/null")

		_, err := e.Stats(context.Background(), "nobody")
		l.refused(err, NotFound, "not found: nobody")
	})
}

// TestTopWithoutAnAgent: what ended unseen is no process any more.
func TestTopWithoutAnAgent(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open("apply")
		l.apply(e, plan.Options{})
		l.world.KillMain(l.id(e, "sandbox.a"), 15)
		if s := l.stats(e); len(s.Sandboxes) != 0 {
			t.Errorf("%+v", s.Sandboxes)
		}
		if s := l.stats(e, "a"); len(s.Sandboxes) != 1 || s.Sandboxes[0].Phase != plan.Stopped || s.Sandboxes[0].Stats != nil {
			t.Errorf("%+v", s.Sandboxes)
		}
		l.end(e)
	})
}
