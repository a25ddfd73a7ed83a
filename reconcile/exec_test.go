package reconcile

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// waited is what a session's Wait returned.
type waited struct {
	code int
	err  error
}

func waitFor(s ExecSession) <-chan waited {
	c := make(chan waited, 1)
	go func() {
		code, err := s.Wait()
		c <- waited{code, err}
	}()
	return c
}

func TestPauseClosesSessionsAndLeavesTheProcess(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("") + box("b", "")})
		e := l.open("agent")
		l.apply(e, plan.Options{})
		ctx := context.Background()
		exec := func(address string) *execSession {
			t.Helper()
			s, err := e.exec(ctx, ExecRequest{Address: address, Args: []string{"sim", "after=1h", "write=/went:on", "exit=3"}})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		s, other := exec("a"), exec("b")
		gone, stays := waitFor(s), waitFor(other)
		sleep(time.Minute)
		l.act(e, "pause", "a")
		sleep(0)
		select {
		case w := <-gone:
			l.refused(w.err, Conflict, "sandbox.a was paused; the command goes on inside and continues on resume")
		default:
			t.Fatal("the caller is left waiting")
		}
		sleep(2 * time.Hour)
		if w := <-stays; w.code != 3 || w.err != nil {
			t.Errorf("the other sandbox's command ends with %d, %v", w.code, w.err)
		}
		l.act(e, "resume", "a")
		sleep(2 * time.Hour)
		if text, _ := l.world.LayerFile(l.id(e, "sandbox.a"), "/went"); text != "on" {
			t.Error("the command does not go on after resume")
		}
		select {
		case <-s.ended: // reaped, with nobody waiting
		default:
			t.Error("the command is not reaped")
		}
		// A new one is not told of the old pause.
		w := waitFor(exec("a"))
		sleep(2 * time.Hour)
		if w := <-w; w.code != 3 || w.err != nil {
			t.Errorf("after resume: %d, %v", w.code, w.err)
		}
		if len(e.execs.open) != 0 {
			t.Errorf("sessions are kept: %v", e.execs.open)
		}
		l.end(e)
	})
}

func TestFrozenFromOutsideClosesSessions(t *testing.T) {
	withAgent(t, one(""), func(l *lab, e *Engine, k *keeper) {
		s, err := e.Exec(context.Background(), ExecRequest{Address: "a", Args: []string{"sim", "after=1h", "exit=0"}})
		if err != nil {
			t.Fatal(err)
		}
		w := waitFor(s)
		if err := e.host.Pause(context.Background(), l.id(e, "sandbox.a")); err != nil {
			t.Fatal(err)
		}
		sleep(2 * fullLook)
		select {
		case w := <-w:
			l.refused(w.err, Conflict, "was paused")
		default:
			t.Error("the caller is left waiting")
		}
		l.act(e, "release", "a")
		sleep(2 * time.Hour)
	})
}

// freezingV1 is a host whose freezer is cgroup v1's: a frozen process that is
// killed dies when it is thawed.
type freezingV1 struct {
	runtime.Host
	exec *frozenV1
}

type frozenV1 struct {
	runtime.ExecProcess
	killed atomic.Bool
}

func (h *freezingV1) Exec(ctx context.Context, id string, r runtime.Exec) (runtime.ExecProcess, error) {
	p, err := h.Host.Exec(ctx, id, r)
	h.exec = &frozenV1{ExecProcess: p}
	return h.exec, err
}

func (h *freezingV1) Resume(ctx context.Context, id string) error {
	err := h.Host.Resume(ctx, id)
	if err == nil && h.exec.killed.Load() {
		err = h.exec.ExecProcess.Signal(int(syscall.SIGKILL))
	}
	return err
}

func (p *frozenV1) Signal(sig int) error {
	if sig == int(syscall.SIGKILL) {
		p.killed.Store(true)
		return nil
	}
	return p.ExecProcess.Signal(sig)
}

// The agent's end must not wait for a process that cannot end.
func TestHangUpGivesUp(t *testing.T) {
	inTime(t, func(t *testing.T) {
		l := newLab(t, map[string]string{"main.hcl": one("")})
		e := l.open("agent")
		e.host = &freezingV1{Host: e.host}
		l.apply(e, plan.Options{})
		s, err := e.exec(context.Background(), ExecRequest{Address: "a", Args: []string{"sim", "ignore=HUP"}})
		if err != nil {
			t.Fatal(err)
		}
		id := l.id(e, "sandbox.a")
		if err := e.host.Pause(context.Background(), id); err != nil { // nobody told the engine
			t.Fatal(err)
		}
		read, console, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		ctx, cancel := context.WithCancel(context.Background())
		over, done := make(chan struct{}), make(chan struct{})
		go func() { pass(ctx, s, []*os.File{console}, nil, done); close(over) }()
		w := waitFor(s)
		cancel()
		sleep(hangupGrace + killGrace + time.Second)
		select {
		case w := <-w:
			l.refused(w.err, Conflict, "was killed and does not end")
		default:
			t.Fatal("the session is not given up")
		}
		<-over
		if _, err := console.Write(nil); !errors.Is(err, os.ErrClosed) {
			t.Errorf("the console is kept: %v", err)
		}
		if err := e.host.Resume(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		sleep(0)
		select {
		case <-s.ended:
			if s.code != 128+9 {
				t.Errorf("it ends with %d", s.code)
			}
		default:
			t.Error("it was not killed")
		}
		l.end(e)
	})
}

func TestSocketExecEndsWithPause(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	c, e, _, stop := l.serve()
	l.apply(e, plan.Options{})
	s, err := c.Exec(context.Background(), ExecRequest{Address: "a", Args: []string{"sleep"}})
	if err != nil {
		t.Fatal(err)
	}
	w := waitFor(s)
	if _, err := c.Act(context.Background(), ActRequest{Verb: "pause", Address: "a"}); err != nil {
		t.Fatal(err)
	}
	select {
	case w := <-w:
		l.refused(w.err, Conflict, "sandbox.a was paused")
	case <-time.After(20 * time.Second):
		t.Fatal("the caller is left waiting")
	}
	stop() // fails by itself when the agent does not end
	l.end(e)
}

func TestExecRefusalsSayTheWay(t *testing.T) {
	withAgent(t, one("lifetime { ttl = \"1h\" }")+box("b", `lifetime { on_lost = "retain" }`)+box("c", ""), func(l *lab, e *Engine, k *keeper) {
		refused := func(address, words string) {
			t.Helper()
			_, err := e.Exec(context.Background(), ExecRequest{Address: address, Args: []string{"sim", "exit=0"}})
			l.refused(err, Conflict, words)
		}
		_, err := e.Exec(context.Background(), ExecRequest{Address: "a", Args: []string{"sim", "exec-fails"}})
		var x *Error
		if !errors.As(err, &x) || x.Code != 126 || strings.Contains(x.Message, "set command") {
			t.Errorf("a command that cannot be run: %+v", err)
		}
		l.act(e, "stop", "c")
		refused("c", "sandbox.c is stopped, cannot exec; start it first")
		l.world.Kill(l.id(e, "sandbox.b"))
		sleep(time.Minute)
		refused("b", "sandbox.b is lost, cannot exec; apply -replace sandbox.b makes it anew")
		sleep(2 * time.Hour)
		refused("a", "sandbox.a expired at ")
		refused("a", "a later or removed deadline in the files revives it")
	})
}
