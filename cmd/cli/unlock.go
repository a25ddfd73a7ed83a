package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/reconcile"
)

func (r *run) forceUnlockCommand() *cli.Command {
	var lockWait time.Duration
	force, input := false, true
	return &cli.Command{
		Name: "force-unlock", Usage: "end the process that has the state", UsageText: "pinfold force-unlock [flags] PID", Category: "data",
		Description: "Ends the process that keeps others from the state, after asking. No lock outlives its process, so there is none to take away from a dead one: PID is that of a living command, as those that wait name it. It must prove to have the state, else nobody is ended. It gets SIGTERM, which finishes the steps that have begun, and after 10 seconds SIGKILL. What was cut off then is finished or undone by the next command that changes something. An agent is refused unless -force is given: stop it as a service. Sandboxes live on in any case.\n\nExit codes: 0 it has ended; 1 error, or you did not approve.",
		Flags: []cli.Flag{
			boolFlag(&force, "force", "do not ask, and end an agent as well"),
			boolFlag(&input, "input", "never ask: needs -force, else it is an error"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold force-unlock 4711"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, 1)
			if err != nil {
				return err
			}
			pid, err := strconv.Atoi(args[0])
			if err != nil || pid <= 1 {
				return usage(cmd, "%q is not the number of a process", args[0])
			}
			if !force {
				if err := r.canAsk("force-unlock", input, "Add -force to end it without being asked."); err != nil {
					return err
				}
			}
			o, err := r.offline("force-unlock", "end who has the state", lockWait)
			if err != nil {
				return err
			}
			return r.unlock(ctx, o, reconcile.UnlockRequest{PID: pid, Agent: force}, !force)
		},
	}
}

// unlock says first who it is, when it is to ask.
func (r *run) unlock(ctx context.Context, o reconcile.OpenOptions, request reconcile.UnlockRequest, ask bool) error {
	if ask {
		try := request
		try.DryRun = true
		who, err := r.Unlock(ctx, o, try)
		if err != nil {
			return err
		}
		r.out.WouldUnlock(who, r.Now())
		if err := r.approved("Do you really want to end it?", fmt.Sprintf("pinfold will end process %d and say what it left begun.", request.PID)); err != nil {
			return err
		}
	}
	result, err := r.Unlock(ctx, o, request)
	switch {
	case err != nil:
		return err
	case r.json:
		return view.UnlockJSON(r.out, result)
	}
	r.out.Unlocked(result)
	return nil
}
