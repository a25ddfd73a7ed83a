package reconcile

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// killWait bounds how long a kill waits for the end that SIGKILL brings.
const killWait = 10 * time.Second

// opKill sends a signal to the sandbox's command. It leaves no hold: what the command
// does about it is its own affair, and an end is an exit, by the restart block. That
// of SIGKILL, which nothing can refuse, is waited for and recorded.
func (e *actor) opKill(ctx context.Context, rec *plan.Sandbox, r ActRequest) (note string, err error) {
	sig := r.Signal
	if sig == 0 {
		sig = int(syscall.SIGKILL)
	}
	name := config.SignalName(sig)
	if sig < 0 || sig > 64 {
		return "", &Error{Kind: Invalid, Message: fmt.Sprintf("there is no signal %d", sig)}
	}
	if err := plan.Killable(rec.Address, phaseOf(rec)); err != nil {
		return "", &Error{Kind: Conflict, Message: err.Error()}
	}
	id := rec.Instance.ID
	begun := intent(opKill, rec)
	begun.Why = name
	in, err := e.begin(begun, nil)
	if err != nil {
		return "", err
	}
	if err := e.host.Signal(ctx, id, sig); err != nil {
		return "", errors.Join(notSent(rec.Address, sig, err), e.end(in, nil))
	}
	if err := e.end(in, (&write{}).event(e.eventOf(rec, "kill", name, r.Reason))); err != nil {
		return "", err
	}
	if sig != int(syscall.SIGKILL) {
		return "", nil
	}
	bounded, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	process := runtime.Process{PID: rec.Instance.PID, StartTime: rec.Instance.StartTime, BootID: rec.Instance.BootID}
	switch err := e.host.WaitExit(bounded, id, process); {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("it has not ended within %s; it does once the kernel lets it", killWait), nil
	case err != nil:
		return "", fmt.Errorf("%s was sent %s, and whether it ended cannot be seen: %w", rec.Address, name, err)
	}
	_, err = e.refresh(ctx, rec.Address)
	return "", err
}

// notSent words why a signal did not reach the command.
func notSent(address string, sig int, err error) error {
	switch {
	case errors.Is(err, runtime.ErrNotRunning), errors.Is(err, runtime.ErrNotFound):
		return &Error{Kind: Conflict, Message: fmt.Sprintf("sandbox: cannot kill %s: its process has just ended", address)}
	case sig == int(syscall.SIGSTOP):
		return &Error{Kind: Invalid, Message: fmt.Sprintf("sandbox: SIGSTOP cannot be sent to %s; 'pinfold pause' freezes all of it", address)}
	case errors.Is(err, runtime.ErrUnsupported):
		return &Error{Kind: Invalid, Message: fmt.Sprintf("sandbox: %s cannot be sent to %s: PID 1 keeps it for itself", config.SignalName(sig), address)}
	}
	return fmt.Errorf("cannot send %s to %s: %w", config.SignalName(sig), address, err)
}
