package cli

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/reconcile"
)

func (r *run) attachCommand() *cli.Command {
	var proxy bool
	var lockWait time.Duration
	return &cli.Command{
		Name: "attach", Usage: "follow a sandbox's own process to its end", UsageText: "pinfold attach [flags] SANDBOX", Category: "act",
		Description: "Prints what the sandbox's command writes from now on, until it ends, and exits with its code: 128+N after signal N. It counts as use of the sandbox as long as it goes on. The command has no standard input.\n\nCtrl-C lets go: the command stays as it is, and attach exits with 130. With -signal-proxy signals go to the command instead; only when the terminal is closed (SIGHUP) attach lets go. When the sandbox is paused attach ends with an error; the command stays.",
		Flags: []cli.Flag{
			boolFlag(&proxy, "signal-proxy", "pass signals on to the command: Ctrl-C (SIGINT), SIGTERM, SIGQUIT, SIGUSR1 and SIGUSR2"),
			lockFlag(&lockWait),
		},
		Metadata: example("sudo pinfold attach py", "sudo pinfold attach -signal-proxy job; echo $?"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			address, err := oneSandbox(cmd)
			if err != nil {
				return err
			}
			return r.attach(ctx, address, proxy, lockWait)
		},
	}
}

// attach follows the output from where it is when the session begins.
func (r *run) attach(ctx context.Context, address string, proxy bool, lockWait time.Duration) error {
	service, err := r.open(ctx, need{verb: "attach", does: "attach to sandboxes", changes: true, lockWait: lockWait})
	if err != nil {
		return err
	}
	log, offset, session, err := begun(ctx, service, address)
	if closing := service.Close(); err == nil && closing != nil {
		err = fmt.Errorf("cannot let go of the state: %w", closing)
	}
	if log != nil {
		defer log.Close()
	}
	if err != nil {
		return err
	}
	if proxy {
		r.interrupts.takeOver(func(s os.Signal) {
			if s == syscall.SIGHUP {
				r.interrupts.cancel(errInterrupted)
				return
			}
			forward(session, s)
		}, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	}
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, err := session.Wait()
		ended <- end{code, err}
	}()
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		if offset, err = copyLog(r.out, log, offset, toTheEnd); err != nil {
			return fmt.Errorf("cannot print the log of %s: %w", address, err)
		}
		select {
		case <-ctx.Done():
			return exitWith(exitInterrupted)
		case <-tick.C:
		case end := <-ended:
			if ctx.Err() != nil {
				return exitWith(exitInterrupted)
			}
			last, err := logEnd(log) // what another process writes after this one is not its
			if err == nil {
				_, err = copyLog(r.out, log, offset, last)
			}
			switch {
			case end.err != nil:
				return end.err
			case err != nil:
				return fmt.Errorf("cannot print the log of %s: %w", address, err)
			case end.code != 0:
				return exitWith(end.code)
			}
			return nil
		}
	}
}

// begun opens a session and finds where in the log its output begins.
func begun(ctx context.Context, service reconcile.Service, address string) (log *os.File, offset int64, session reconcile.ExecSession, err error) {
	if log, err = service.OpenLog(ctx, address); err != nil {
		return nil, 0, nil, suggest(ctx, service, address, err)
	}
	if offset, err = logEnd(log); err != nil {
		return log, 0, nil, fmt.Errorf("cannot read the log of %s: %w", address, err)
	}
	session, err = service.Attach(ctx, address)
	return log, offset, session, suggest(ctx, service, address, err)
}
