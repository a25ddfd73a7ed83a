package host

import (
	"testing"
	"time"

	"pinfold/runtime"
)

// TestWorkloadThatStopsWhatEnters: root inside can send SIGSTOP to what enters its
// PID namespace for an exec. The exec then ends within its bound, and nobody who
// waits for it (pause, stop) is held up for longer.
func TestWorkloadThatStopsWhatEnters(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, `exec perl -e 'while (1) { for my $d (glob "/proc/[0-9]*") {
		my ($pid) = $d =~ /(\d+)/; next if $pid == 1 || $pid == $$;
		kill "STOP", $pid; } }'`)
	in.Limits.PIDs = 64
	w.start(in)
	w.h.enterBound = 2 * time.Second
	stopped := 0
	for range 5 {
		p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"true"}})
		if err != nil {
			stopped++
			continue
		}
		// It came through, and may have been stopped since.
		w.must(p.Signal(9))
		if _, err := p.Wait(); err != nil {
			t.Errorf("wait: %v", err)
		}
	}
	t.Logf("%d of 5 execs were stopped on their way in", stopped)
	done := make(chan error, 1)
	go func() { done <- w.h.Pause(w.ctx, in.ID) }()
	select {
	case err := <-done:
		w.must(err)
	case <-time.After(20 * time.Second):
		t.Fatal("pause is held up by an exec that was stopped")
	}
	w.must(w.h.Resume(w.ctx, in.ID))
	if _, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{Grace: 100 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if left := stays(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
