package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/reconcile"
)

// followEvery is how often a followed log is looked at.
const followEvery = 100 * time.Millisecond

func (r *run) logsCommand() *cli.Command {
	var follow bool
	var lockWait time.Duration
	tail := -1
	return &cli.Command{
		Name: "logs", Usage: "print a sandbox's output", UsageText: "pinfold logs [flags] SANDBOX", Category: "look",
		Description: "Prints what the sandbox's command wrote to standard output and error, as far as it is kept. With -f it goes on until the sandbox is destroyed or you press Ctrl-C.",
		Flags: []cli.Flag{
			boolFlag(&follow, "follow", "go on as more is written, through restarts", "f"),
			custom("tail", "print only the last `N` lines; 'all', the default, is as much as is kept", func(s string) error {
				if s == "all" {
					tail = -1
					return nil
				}
				n, err := strconv.Atoi(s)
				if err != nil || n < 0 {
					return fmt.Errorf("%q is not a number of lines", s)
				}
				tail = n
				return nil
			}, "n"),
			lockFlag(&lockWait),
		},
		Metadata: example("sudo pinfold logs py", "sudo pinfold logs -f -tail 20 py"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			address, err := oneSandbox(cmd)
			if err != nil {
				return err
			}
			return r.logs(ctx, address, follow, tail, lockWait)
		},
	}
}

// openLog opens a sandbox's log and lets go of the engine at once.
func (r *run) openLog(ctx context.Context, address string, lockWait time.Duration) (*os.File, error) {
	service, err := r.open(ctx, need{verb: "logs", does: "read the output of sandboxes", lockWait: lockWait})
	if err != nil {
		return nil, err
	}
	defer service.Close()
	f, err := service.OpenLog(ctx, address)
	if err != nil {
		return nil, suggest(ctx, service, address, err)
	}
	return f, nil
}

func (r *run) logs(ctx context.Context, address string, follow bool, tail int, lockWait time.Duration) error {
	f, err := r.openLog(ctx, address, lockWait)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if !follow {
		if err := printLog(r.out, f, tail); err != nil {
			return fmt.Errorf("cannot print the log of %s: %w", address, err)
		}
		return nil
	}
	var offset int64
	if tail >= 0 {
		end, err := logEnd(f)
		if err == nil {
			offset, err = logTail(f, tail, end)
		}
		if err != nil {
			return fmt.Errorf("cannot read the log of %s: %w", address, err)
		}
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		// Asked before reading: what was written before the file went is not lost.
		gone, err := unlinked(f)
		if err != nil {
			return fmt.Errorf("cannot look at the log of %s: %w", address, err)
		}
		if offset, err = copyLog(r.out, f, offset, toTheEnd); err != nil {
			return err
		}
		if gone {
			next, err := r.openLog(ctx, address, lockWait)
			switch {
			case err == nil:
				f.Close()
				f, offset = next, 0
			case isKind(err, reconcile.NotFound):
				return nil // destroyed: the end
			case !isKind(err, reconcile.Conflict): // else: its next instance is being made
				return err
			}
		}
		select {
		case <-ctx.Done():
			return exitWith(exitInterrupted)
		case <-tick.C:
		}
	}
}

func isKind(err error, kind reconcile.ErrorKind) bool {
	var failed *reconcile.Error
	return errors.As(err, &failed) && failed.Kind == kind
}
