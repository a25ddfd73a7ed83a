package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// Exec starts a process in a running sandbox.
func (e *Engine) Exec(ctx context.Context, r ExecRequest) (ExecSession, error) {
	s, err := e.exec(ctx, r)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (e *Engine) exec(ctx context.Context, r ExecRequest) (*execSession, error) {
	if len(r.Args) == 0 {
		return nil, &Error{Kind: Invalid, Message: "exec needs a command"}
	}
	v, err := e.enter(ctx, r.Address)
	if err != nil {
		return nil, err
	}
	rec := v.rec
	if rec.Instance == nil {
		v.leave()
		return nil, &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: %s is pending, cannot exec; apply creates it", rec.Address)}
	}
	// It is known before it runs, so that a pause that comes next closes it.
	// What goes on without its caller is no use any more.
	s := &execSession{address: rec.Address, uid: rec.UID, ended: make(chan struct{}), cut: make(chan struct{}), left: v.leave}
	e.execs.add(s)
	s.p, err = e.host.Exec(context.WithoutCancel(ctx), rec.Instance.ID, runtime.Exec{
		Args: r.Args, Env: r.Env, WorkingDir: r.WorkingDir, User: r.User,
		TTY: r.TTY, Width: r.Width, Height: r.Height,
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
	})
	if err != nil {
		e.execs.remove(s)
		v.leave()
		return nil, e.cannotExec(ctx, rec, err)
	}
	v.count()
	// Whoever asked may leave early; the process is reaped all the same.
	go func() {
		s.code, s.err = s.p.Wait()
		v.leave()
		e.execs.remove(s)
		close(s.ended)
	}()
	return s, nil
}

// cannotExec says why the host refused, and what to do.
func (e *Engine) cannotExec(ctx context.Context, rec *plan.Sandbox, err error) error {
	switch {
	case errors.Is(err, runtime.ErrPaused):
		return &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: %s is paused, cannot exec; resume it first", rec.Address)}
	case errors.Is(err, runtime.ErrNotRunning), errors.Is(err, runtime.ErrNotFound):
		return &Error{Kind: Conflict, Message: e.cannotEnter(ctx, rec, "exec")}
	case errors.Is(err, runtime.ErrCommand):
		code := 126
		if errors.Is(err, os.ErrNotExist) {
			code = 127
		}
		// The host's advice is for the command that is declared.
		return &Error{Kind: Invalid, Message: strings.TrimSuffix(err.Error(), "; set command"), Code: code}
	default:
		return errorOf(fmt.Errorf("cannot exec in %s: %w", rec.Address, err))
	}
}

// cannotEnter tells why no process runs in the sandbox, and what brings one back.
func (e *Engine) cannotEnter(ctx context.Context, rec *plan.Sandbox, verb string) string {
	phase := e.phaseNow(ctx, rec)
	switch {
	case rec.Expired != nil:
		return fmt.Sprintf("sandbox: %s expired at %s, cannot %s; a later or removed deadline in the files revives it",
			rec.Address, rec.Expired.Deadline.UTC().Format(time.RFC3339), verb)
	case phase == plan.Lost, phase == plan.Failed:
		way := "apply recreates it"
		if phase == plan.Lost && rec.Spec.Lifetime.OnLost == "retain" {
			way = "apply -replace " + rec.Address + " makes it anew"
		}
		return fmt.Sprintf("sandbox: %s is %s, cannot %s; %s", rec.Address, phase, verb, way)
	default:
		return fmt.Sprintf("sandbox: %s is %s, cannot %s; start it first", rec.Address, phase, verb)
	}
}

// phaseNow is the phase a refusal should name.
func (e *Engine) phaseNow(ctx context.Context, rec *plan.Sandbox) plan.Phase {
	seen, there, err := e.host.Inspect(ctx, rec.Instance.ID)
	if err != nil {
		return rec.Instance.Phase
	}
	return plan.StatusOf(rec, seenOf(seen), there, "", e.now()).Phase
}

// execSession is a process started by Exec and whoever waits for it. The two may
// part: a frozen process does not end, not even killed, and its caller must not
// be left hanging without a word.
type execSession struct {
	address string      // when it began, for words
	uid     string      // of the sandbox, which keeps it whatever its address
	p       ExecSession // what it is a session with

	ended chan struct{} // closed when the process has ended and code and err are set
	code  int
	err   error

	once  sync.Once
	cut   chan struct{} // closed when the caller is sent away, with why
	why   error
	stays bool // what was started goes on: it is not to be hung up

	left func() // called when the caller is sent away; nil: nothing to do
}

func (s *execSession) Console() *os.File    { return s.p.Console() }
func (s *execSession) Signal(sig int) error { return s.p.Signal(sig) }

// Wait returns when the process has ended, or earlier, with an *Error, when the
// session was closed.
func (s *execSession) Wait() (int, error) {
	select {
	case <-s.ended:
		return s.code, s.err
	default:
	}
	select {
	case <-s.ended:
		return s.code, s.err
	case <-s.cut:
		return -1, s.why
	}
}

// close sends the caller away with words. The process stays.
func (s *execSession) close(why error, stays bool) {
	s.once.Do(func() {
		s.why, s.stays = why, stays
		close(s.cut)
		if s.left != nil {
			s.left()
		}
	})
}

// execs are the open sessions of this process, by sandbox uid. The zero value is
// ready to use.
type execs struct {
	mu   sync.Mutex
	open map[string]map[*execSession]bool
}

func (x *execs) add(s *execSession) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = map[string]map[*execSession]bool{}
	}
	if x.open[s.uid] == nil {
		x.open[s.uid] = map[*execSession]bool{}
	}
	x.open[s.uid][s] = true
}

func (x *execs) remove(s *execSession) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.open[s.uid], s)
	if len(x.open[s.uid]) == 0 {
		delete(x.open, s.uid)
	}
}

// paused closes the sessions of a sandbox that is frozen now. Those of other
// processes are theirs to close.
func (x *execs) paused(rec *plan.Sandbox) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for s := range x.open[rec.UID] {
		s.close(&Error{Kind: Conflict, Message: fmt.Sprintf(
			"%s was paused; the command goes on inside and continues on resume", rec.Address)}, true)
	}
}
