package host

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// TestOutcomeOfAnEarlierRun: a power cut may bring back the outcome file of the run
// before. It says nothing of the one that was cut off.
func TestOutcomeOfAnEarlierRun(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exit 3")
	p := w.start(in)
	w.must(w.h.WaitExit(w.ctx, in.ID, p))
	if s := w.state(in.ID); s.Outcome == nil || s.Outcome.ExitCode != 3 {
		t.Fatalf("the first run: %+v, outcome %+v", s, s.Outcome)
	}
	before, err := os.ReadFile(w.h.outcomePath(in.ID))
	w.must(err)
	in.Command = []string{"sleep", "1000"}
	p = w.start(in)
	w.must(unix.Kill(p.PID, unix.SIGKILL))
	w.must(w.h.WaitExit(w.ctx, in.ID, p))
	w.must(os.WriteFile(w.h.outcomePath(in.ID), before, 0o600))
	if s := w.state(in.ID); s.Outcome != nil {
		t.Errorf("the second run has the first one's outcome: %+v", s.Outcome)
	}
	// Also after a reboot, when only the caller knows which process it was.
	w.must(os.Remove(w.h.processPath(in.ID)))
	w.h.Recall(in.ID, p, in.Mark)
	if s := w.state(in.ID); s.Outcome != nil {
		t.Errorf("recalled, the second run has the first one's outcome: %+v", s.Outcome)
	}
	out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	if out != nil {
		t.Errorf("stopped, the second run has the first one's outcome: %+v", out)
	}
	w.must(w.h.Remove(w.ctx, in.ID))
}
