package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
)

// logged is a log that can be read back.
type logged struct {
	mu    sync.Mutex
	lines []map[string]any
}

func (g *logged) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
		var m map[string]any
		if err := json.Unmarshal(line, &m); err != nil {
			return 0, err
		}
		g.lines = append(g.lines, m)
	}
	return len(b), nil
}

// take returns the lines so far and forgets them.
func (g *logged) take() []map[string]any {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := g.lines
	g.lines = nil
	return all
}

// count tells how many lines of a level have these values.
func count(lines []map[string]any, level string, pairs ...string) int {
	n := 0
	for _, line := range lines {
		match := line["@level"] == level
		for i := 0; i < len(pairs); i += 2 {
			match = match && line[pairs[i]] == pairs[i+1]
		}
		if match {
			n++
		}
	}
	return n
}

func TestLogTellsWhatIsDone(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		var g logged
		l.log = hclog.New(&hclog.LoggerOptions{Output: &g, Level: hclog.Debug, JSONFormat: true})
		e := l.open("agent")
		want := func(level string, n int, pairs ...string) {
			t.Helper()
			lines := g.take()
			if got := count(lines, level, pairs...); got != n {
				t.Errorf("%d lines %s %v, want %d, in:", got, level, pairs, n)
				for _, line := range lines {
					t.Log(line)
				}
			}
		}
		l.apply(e, plan.Options{})
		want("info", 1, "@message", "changed", "address", "sandbox.a", "action", "create", "cause", "declared", "by", "apply", "result", "running "+l.id(e, "sandbox.a"))
		k := l.keep(e)
		want("debug", 1, "@message", "looked at everything")
		l.act(e, "pause", "a")
		want("info", 1, "@message", "changed", "address", "sandbox.a", "action", "pause", "by", "operator", "result", "paused "+l.id(e, "sandbox.a"))
		l.act(e, "resume", "a")
		sleep(time.Second)
		want("debug", 1, "@message", "looked at one", "address", "sandbox.a")
		l.world.Fail(sim.OpStart, "", errors.New("no luck"), sim.Before, 3)
		l.world.KillMain(l.id(e, "sandbox.a"), 9)
		sleep(time.Hour)
		lines := g.take()
		for _, c := range []struct {
			n     int
			level string
			pairs []string
		}{
			{1, "info", []string{"@message", "noticed", "what", "exited", "cause", "killed"}},
			{1, "error", nil},
			{2, "warn", []string{"@message", "cannot keep"}},
			{1, "info", []string{"@message", "changed", "action", "start", "by", "agent"}},
		} {
			if got := count(lines, c.level, c.pairs...); got != c.n {
				t.Errorf("%d lines %s %v, want %d", got, c.level, c.pairs, c.n)
			}
		}
		if t.Failed() {
			for _, line := range lines {
				t.Log(line)
			}
		}
		k.stop()
		// Another failure, or the same after it had worked, is an error again.
		l.world.Fail(sim.OpPause, "", errors.New("stuck"), sim.Before, 1)
		l.main(one(`operating_mode = "paused"`))
		l.applyFails(e, plan.Options{})
		want("error", 1, "@message", "cannot change", "address", "sandbox.a", "action", "pause")
		l.world.Fail(sim.OpPause, "", errors.New("stuck"), sim.Before, 1)
		l.applyFails(e, plan.Options{})
		want("warn", 1, "@message", "cannot change", "action", "pause")
		if _, err := e.Apply(context.Background(), l.request(plan.Options{}), nil, nil); err != nil {
			t.Fatal(err)
		}
		l.end(e)
	})
}

func TestComplaintsOfRetriesAreAlike(t *testing.T) {
	var c complaints
	for i, want := range []int{1, 2, 1, 1} {
		text := []string{"instance 0123456789ab: no", "instance ba9876543210: no", "something else", "instance 0123456789ab: no"}[i]
		if got := c.again("sandbox.a", text); got != want {
			t.Errorf("%q: time %d, want %d", text, got, want)
		}
	}
}
