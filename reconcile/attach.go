package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// Attach begins a session with the sandbox's own process.
func (e *Engine) Attach(ctx context.Context, word string) (ExecSession, error) {
	s, err := e.attach(ctx, word)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (e *Engine) attach(ctx context.Context, word string) (*execSession, error) {
	v, err := e.enter(ctx, word)
	if err != nil {
		return nil, err
	}
	rec := v.rec
	now, err := e.glance(ctx, rec)
	if err != nil {
		v.leave()
		return nil, errorOf(err)
	}
	switch st := now.status(rec, e.now()); st.Phase {
	case plan.Running:
	case plan.Pending, plan.Created, plan.Paused:
		v.leave()
		return nil, &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: %s is %s, cannot attach", rec.Address, st.Phase)}
	default:
		v.leave()
		return nil, &Error{Kind: Conflict, Message: e.cannotEnter(ctx, rec, "attach")}
	}
	v.count()
	p := &mainProcess{e: e, address: rec.Address, id: rec.Instance.ID, process: now.processes[rec.Instance.ID]}
	s := &execSession{address: rec.Address, uid: rec.UID, p: p, ended: make(chan struct{}), cut: make(chan struct{})}
	p.ctx, s.left = context.WithCancel(context.WithoutCancel(ctx))
	e.execs.add(s)
	go func() {
		defer s.left()
		s.code, s.err = p.Wait()
		v.leave()
		e.execs.remove(s)
		close(s.ended)
	}()
	return s, nil
}

// mainProcess is a sandbox's own process seen as one that was exec'd.
type mainProcess struct {
	e       *Engine
	address string
	id      string
	process runtime.Process
	ctx     context.Context // done when nobody is attached any more
}

func (p *mainProcess) Console() *os.File { return nil }

func (p *mainProcess) Signal(sig int) error {
	return p.e.host.Signal(context.Background(), p.id, sig)
}

// Wait returns when the process has ended. Its code is in its outcome, which
// stays readable beside it.
func (p *mainProcess) Wait() (int, error) {
	if err := p.e.host.WaitExit(p.ctx, p.id, p.process); err != nil {
		return -1, err
	}
	seen, there, err := p.e.host.Inspect(context.Background(), p.id)
	switch {
	case err != nil:
		return -1, errorOf(err)
	case there && seen.Outcome != nil:
		return seen.Outcome.ExitCode, nil
	}
	return -1, &Error{Kind: Conflict, Message: fmt.Sprintf("the process of %s is gone and left no exit code", p.address)}
}

// CopyOut writes what is at a path in the sandbox to the request's file.
func (e *Engine) CopyOut(ctx context.Context, r CopyRequest) error {
	return e.copy(ctx, r, func(id string) error { return e.host.CopyOut(ctx, id, r.Path, r.Archive) })
}

// CopyIn unpacks the request's file at a path in the sandbox.
func (e *Engine) CopyIn(ctx context.Context, r CopyRequest) error {
	return e.copy(ctx, r, func(id string) error { return e.host.CopyIn(ctx, id, r.Path, r.Archive) })
}

func (e *Engine) copy(ctx context.Context, r CopyRequest, do func(id string) error) error {
	if r.Archive == nil {
		return &Error{Kind: Invalid, Message: "a copy needs a file to read from or write to"}
	}
	v, err := e.enter(ctx, r.Address)
	if err != nil {
		return err
	}
	defer v.leave()
	rec := v.rec
	if phaseOf(rec) == plan.Running {
		v.count() // files of one that does not run can be had, and it is not used by that
	}
	if rec.Instance == nil {
		return &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: %s is pending and has no files yet; apply creates it", rec.Address)}
	}
	if phaseOf(rec) == plan.Failed {
		return &Error{Kind: Conflict, Message: e.cannotEnter(ctx, rec, "copy")}
	}
	if err := do(rec.Instance.ID); err != nil {
		kind := Internal
		switch {
		case errors.Is(err, runtime.ErrNotFound), errors.Is(err, os.ErrNotExist):
			kind = NotFound
		case ctx.Err() != nil:
			kind = Interrupted
		}
		return &Error{Kind: kind, Message: fmt.Sprintf("%s: %v", rec.Address, err)}
	}
	return nil
}
