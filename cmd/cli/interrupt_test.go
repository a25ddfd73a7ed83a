package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
