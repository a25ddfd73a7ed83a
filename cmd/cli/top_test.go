package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// looks are two looks at one sandbox, a second apart, that used half a core.
func twoLooks() []reconcile.StatsResult {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	look := func(after time.Duration) reconcile.StatsResult {
		return reconcile.StatsResult{At: at.Add(after), Sandboxes: []reconcile.SandboxStats{
			{Address: "sandbox.idle", Instance: "0123456789ac", Phase: plan.Running, StartedAt: at, Stats: &runtime.Stats{At: at.Add(after), Memory: 1 << 30, PIDs: 2}},
			{Address: "sandbox.py", Instance: "0123456789ab", Phase: plan.Running, StartedAt: at, Stats: &runtime.Stats{At: at.Add(after), CPU: time.Hour + after/2, Memory: 3 << 20, PIDs: 2}},
		}}
	}
	return []reconcile.StatsResult{look(time.Second), look(2 * time.Second)}
}

func TestTopOnce(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string // words of the output, in order
	}{
		{nil, []string{"SANDBOX", "sandbox.idle", " 0% ", "1GiB", "sandbox.py", " 50% ", "3MiB"}},
		{[]string{"-sort", "cpu"}, []string{"sandbox.py", "sandbox.idle"}},
		{[]string{"-sort=memory", "-once"}, []string{"sandbox.idle", "sandbox.py"}},
	} {
		e := &engine{stats: twoLooks()}
		r := invoke(t, e, append([]string{"top", "-interval", "100ms"}, c.args...)...)
		rest := r.out
		for _, word := range c.want {
			_, after, found := strings.Cut(rest, word)
			if rest = after; !found {
				t.Errorf("%v: no %q where it should be in\n%s", c.args, word, r.out)
			}
		}
		if r.code != 0 || e.opens != 2 || e.closed != 2 || strings.Contains(r.out, "\x1b") {
			t.Errorf("%v: exit %d, opened %d times, closed %d times\n%s%s", c.args, r.code, e.opens, e.closed, r.out, r.err)
		}
	}
	e := &engine{stats: twoLooks()}
	r := invoke(t, e, "top", "-once", "-json", "-interval=100ms", "py", "w[a]")
	var top reconcile.TopResult
	if err := json.Unmarshal([]byte(r.out), &top); err != nil || r.code != 0 {
		t.Fatalf("exit %d, %v\n%s%s", r.code, err, r.out, r.err)
	}
	if top.Seconds != 1 || len(top.Sandboxes) != 2 || *top.Sandboxes[1].CPUPercent != 50 {
		t.Errorf("%+v", top)
	}
	if err := fits("top", []byte(r.out)); err != nil {
		t.Error(err)
	}
	if got := strings.Join(e.asked, " "); got != `py w["a"] py w["a"]` {
		t.Errorf("asked for %s", got)
	}
}

// TestTopOnATerminal: it is drawn anew until q or Ctrl-C, ends well, and leaves the
// terminal as it was.
func TestTopOnATerminal(t *testing.T) {
	dir := t.TempDir()
	env := []string{"PINFOLD_STATE_DIR=" + dir + "/state", "PINFOLD_RUN_DIR=" + dir + "/run", "PINFOLD_HOST_CONFIG=" + dir + "/host.hcl"}
	for key, name := range map[string]string{"q": "q", "\x03": "Ctrl-C"} {
		t.Run(name, func(t *testing.T) {
			x := onTerminal(t, dir, env, pty.Winsize{Rows: 10, Cols: 60}, "top", "-interval", "100ms")
			before := modes(t, x.slave)
			for range 3 {
				x.expect(`\x1b\[HNo sandbox has a process\.\x1b\[K\r\n\x1b\[J`)
			}
			x.send("x" + key)
			if code := x.ends(); code != 0 {
				t.Errorf("exit %d", code)
			}
			if after := modes(t, x.slave); after != before {
				t.Errorf("the terminal's modes are %+v, were %+v", after, before)
			}
			text, _ := x.whole()
			if n, m := strings.Count(text, enterScreen), strings.Count(text, leaveScreen); n != 1 || m != 1 || strings.Contains(text, "\x1b[Kx") {
				t.Errorf("%q", text)
			}
		})
	}
	// Without colours there are no escape sequences.
	x := onTerminal(t, dir, append(env, "NO_COLOR=1"), pty.Winsize{Rows: 10, Cols: 60}, "top", "-interval", "100ms")
	x.expect(`(?s)No sandbox.*No sandbox`)
	x.send("\x03")
	if text, code := x.whole(); code != 0 || strings.Contains(text, "\x1b") {
		t.Errorf("exit %d\n%q", code, text)
	}
}

// TestTopFrame: no more is drawn than the terminal has room for.
func TestTopFrame(t *testing.T) {
	top := twoLooks()[0].Since(&twoLooks()[1])
	for len(top.Sandboxes) < 40 {
		top.Sandboxes = append(top.Sandboxes, top.Sandboxes[0])
	}
	frame := topFrame(top, false, 80, 10)
	lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(frame, "\x1b[H"), "\x1b[J"), "\n")
	if len(lines) != 10 || lines[9] != "" || lines[8] != "... and 33 lines more\x1b[K" || !strings.HasPrefix(lines[7], "sandbox.idle") {
		t.Errorf("%d lines: %q", len(lines), lines)
	}
	if frame := topFrame(top, false, 80, 100); strings.Contains(frame, "more") || strings.Count(frame, "\n") != 41 {
		t.Errorf("%q", frame)
	}
}
