package cli

import (
	"context"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/reconcile"
)

func (r *run) stateMvCommand() *cli.Command {
	var request reconcile.StateMoveRequest
	var lockWait time.Duration
	return &cli.Command{
		Name: "mv", Usage: "give what is recorded another address", UsageText: "pinfold state mv [flags] FROM TO",
		Description: "Records under the address TO what is recorded under FROM, with every reference of other records to it. FROM and TO are a resource, with or without a key, or a module, with all that is in it. Nothing on the host is touched: processes, files, deadlines and holds stay as they are. It refuses when something is recorded at TO. Change the files as well, or the next plan destroys what they do not declare; a moved block in the files does both at once, and for everybody.",
		Flags: []cli.Flag{
			boolFlag(&request.DryRun, "dry-run", "tell what would be moved, and change nothing"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example(`sudo pinfold state mv sandbox.py sandbox.python`, `sudo pinfold state mv 'sandbox.worker["a"]' 'sandbox.worker["b"]'`, `sudo pinfold state mv module.ci module.build`),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 2, 2)
			if err != nil {
				return err
			}
			request.From, request.To, request.LockWait = args[0], args[1], lockWait
			result, err := call(ctx, r, need{verb: "state mv", does: "move records", changes: !request.DryRun, lockWait: lockWait}, func(s reconcile.Service) (*reconcile.StateMoveResult, error) { return s.StateMove(ctx, request) })
			if err != nil {
				return err
			}
			if r.json {
				return view.StateMoveJSON(r.out, result)
			}
			r.out.Moved(result)
			return nil
		},
	}
}

func (r *run) stateRmCommand() *cli.Command {
	var request reconcile.StateRemoveRequest
	var lockWait time.Duration
	return &cli.Command{
		Name: "rm", Usage: "forget what is recorded, and leave it on the host", UsageText: "pinfold state rm [flags] ADDRESS...",
		Description: "Forgets what is recorded at these addresses and leaves it on the host as it is: processes go on, files and data stay. It is marked, and pinfold leaves it alone for ever: nothing restarts it, and no deadline ends it. An ADDRESS is a resource, with or without a key, or a module, with all that is in it. What a sandbox that stays on record uses is refused. Take it out of the files as well, or the next apply makes a new one; a removed block in the files does both at once. An import block takes it back.",
		Flags: []cli.Flag{
			boolFlag(&request.DryRun, "dry-run", "tell what would be forgotten, and change nothing"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example(`sudo pinfold state rm -dry-run sandbox.py`, `sudo pinfold state rm 'sandbox.worker["a"]' volume.models`),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, -1)
			if err != nil {
				return err
			}
			request.Addresses, request.LockWait = args, lockWait
			result, err := call(ctx, r, need{verb: "state rm", does: "forget records", changes: !request.DryRun, lockWait: lockWait}, func(s reconcile.Service) (*reconcile.StateRemoveResult, error) { return s.StateRemove(ctx, request) })
			if err != nil {
				return err
			}
			if r.json {
				return view.StateRemoveJSON(r.out, result)
			}
			r.out.Forgotten(result)
			return nil
		},
	}
}
