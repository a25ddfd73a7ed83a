package reconcile

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/state"
)

// process starts sh with a script and returns what its end can be waited for with.
func startShell(t *testing.T, script string) (cmd *exec.Cmd, fd int) {
	t.Helper()
	cmd = exec.Command("sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil { // it says that it is ready
		t.Fatal(err)
	}
	fd, err = unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return cmd, fd
}

func TestEndProcess(t *testing.T) {
	ctx := context.Background()
	for name, tc := range map[string]struct {
		script string
		grace  time.Duration
		want   string
	}{
		"one that listens":    {"echo; exec sleep 60", time.Minute, "SIGTERM"},
		"one that is stopped": {"echo; kill -STOP $$; exec sleep 60", time.Minute, "SIGTERM"},
		"one that is deaf":    {"trap '' TERM; echo; exec sleep 60", 50 * time.Millisecond, "SIGKILL"},
	} {
		_, fd := startShell(t, tc.script)
		got, err := endProcess(ctx, fd, tc.grace, time.Minute)
		if err != nil || got != tc.want {
			t.Errorf("%s: ended by %q, %v", name, got, err)
		}
		if over, err := ended(ctx, fd, time.Minute); !over || err != nil {
			t.Errorf("%s: it lives, %v", name, err)
		}
	}
	_, fd := startShell(t, "trap '' TERM; echo; exec sleep 60")
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	var e *Error
	if _, err := endProcess(ctx, fd, time.Minute, time.Minute); !errors.As(err, &e) || e.Kind != Interrupted {
		t.Errorf("interrupted: %v", err)
	}
}

// A note alone, or an open file alone, makes nobody the one to end.
func TestHolderIsProved(t *testing.T) {
	l := &lab{t: t}
	dir := t.TempDir()
	_, err := holderOf(dir, os.Getpid())
	l.refused(err, Invalid, "nobody has it open by now; nobody was ended")
	s, err := state.Open(context.Background(), state.Options{Dir: dir, Verb: "apply"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	h, err := holderOf(dir, os.Getpid())
	if err != nil || h.Verb != "apply" || h.PID != os.Getpid() {
		t.Errorf("%+v, %v", h, err)
	}
	other, _ := startShell(t, "exec 3<"+s.Path()+"; echo; exec sleep 60") // without a note
	_, err = holderOf(dir, other.Process.Pid)
	l.refused(err, Invalid, "(apply) has it")
	if hasOpen(1, s.Path()) || !hasOpen(other.Process.Pid, s.Path()) {
		t.Error("open files are not told")
	}
}
