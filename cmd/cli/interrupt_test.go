package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func self(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		t.Fatal(err)
	}
}

func within[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not happen", what)
		panic("unreachable")
	}
}

// The first Ctrl-C asks to stop, the second exits at once, terminal restored.
func TestTwoInterrupts(t *testing.T) {
	stderr, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	exits := make(chan int, 1)
	app := &App{Err: stderr, Exit: func(code int) { exits <- code }}
	ctx, i := watchInterrupts(context.Background(), app)
	defer i.stop()
	restored := false
	i.onExit(func() { restored = true })
	self(t, syscall.SIGINT)
	within(t, ctx.Done(), "the cancellation")
	if !errors.Is(context.Cause(ctx), errInterrupted) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
	self(t, syscall.SIGTERM)
	if code := within(t, exits, "the exit"); code != exitInterrupted || !restored {
		t.Errorf("exit %d, restored %v", code, restored)
	}
}

// stuck is an engine whose apply has begun a step and does not end.
type stuck struct {
	*engine
	began, end chan struct{}
}

func (e *stuck) Apply(_ context.Context, _ reconcile.ApplyRequest, confirm func(*reconcile.PlanResult) (bool, error), progress func(reconcile.Progress)) (*reconcile.ApplyResult, error) {
	p := e.planned()
	if _, err := confirm(&p); err != nil {
		return nil, err
	}
	progress(reconcile.Progress{Address: "sandbox.py", Action: plan.ActCreate, State: "started", At: time.Now()})
	close(e.began)
	<-e.end
	return &reconcile.ApplyResult{PlanResult: p, Interrupted: true}, nil
}

// After the second Ctrl-C the shell's prompt has a line of its own: the one with
// the progress is ended.
func TestSecondInterruptEndsTheLine(t *testing.T) {
	configured(t)
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	if err := pty.Setsize(master, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	x := &terminal{t: t, master: master, slave: slave, over: make(chan struct{})}
	go x.read()
	e := &stuck{&engine{changes: []plan.Change{{Address: "sandbox.py", Kind: "sandbox", Action: plan.ActCreate}}}, make(chan struct{}), make(chan struct{})}
	exits := make(chan int, 1)
	app := &App{
		In: slave, Out: slave, Err: slave, Environ: []string{"TERM=xterm"}, Now: time.Now,
		Exit: func(code int) { exits <- code },
		Open: func(context.Context, reconcile.OpenOptions) (reconcile.Service, error) { return e, nil },
	}
	done := make(chan int, 1)
	go func() {
		done <- app.Run([]string{"pinfold", "-no-color", "-host-config", filepath.Join(t.TempDir(), "none.hcl"), "apply", "-auto-approve"})
	}()
	within(t, e.began, "the step's begin")
	self(t, syscall.SIGINT)
	x.expect(`again\s+to\s+stop\s+at\s+once\.\r\n`)
	x.expect(`0 of 1 done · sandbox\.py [0-9]+s`) // drawn again below
	self(t, syscall.SIGINT)
	if code := within(t, exits, "the exit"); code != exitInterrupted {
		t.Errorf("exit %d", code)
	}
	// A process would be gone by now; the shell goes on.
	if _, err := slave.WriteString("$ "); err != nil {
		t.Fatal(err)
	}
	const drawn = `(\r\x1b\[K[^\r\n]*)*` // here it goes on
	x.expect(`\A` + drawn + `\r\n` + drawn + `\$ `)
	close(e.end)
	within(t, done, "the end")
}

// exec passes signals on instead of stopping.
func TestSignalsTakenOver(t *testing.T) {
	app := &App{Exit: func(int) { t.Error("exit") }}
	ctx, i := watchInterrupts(context.Background(), app)
	defer i.stop()
	got := make(chan os.Signal, 4)
	i.takeOver(func(s os.Signal) { got <- s }, syscall.SIGUSR1)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1} {
		self(t, sig)
		if s := within(t, got, sig.String()); s != sig {
			t.Errorf("got %v, want %v", s, sig)
		}
	}
	if ctx.Err() != nil {
		t.Error("the context was cancelled")
	}
}
