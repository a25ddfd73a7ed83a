package cli

import (
	"context"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/reconcile"
)

func (r *run) listCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "list", Aliases: []string{"ps"}, Usage: "list the sandboxes", UsageText: "pinfold list [flags] [SANDBOX]...", Category: "look",
		Description: "Lists all sandboxes, or those named, with their phase, address, ports and the time they have left, as seen on the host now.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold list", "sudo pinfold list -json | jq -r '.sandboxes[].address'"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			var names []string
			for _, text := range cmd.Args().Slice() {
				address, err := sandboxAddress(text)
				if err != nil {
					return err
				}
				names = append(names, address)
			}
			service, err := r.open(ctx, need{verb: "list", does: "look at sandboxes", lockWait: lockWait})
			if err != nil {
				return err
			}
			defer service.Close()
			all, err := service.List(ctx, names...)
			if err != nil {
				if len(names) == 1 {
					err = suggest(ctx, service, names[0], err)
				}
				return err
			}
			if r.json {
				return view.ListJSON(r.out, all)
			}
			r.out.List(all, watched(ctx, service), r.Now())
			return nil
		},
	}
}

// watched tells whether an agent runs, that is, answers here. Whether one that
// cannot say so does is not known, and nothing is said about it.
func watched(ctx context.Context, s reconcile.Service) bool {
	status, err := s.Status(ctx)
	return err != nil || status.Agent
}

func (r *run) describeCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "describe", Usage: "tell everything about a sandbox", UsageText: "pinfold describe [flags] SANDBOX", Category: "look",
		Description: "Shows one sandbox's phase, deadline, addresses, conditions, declared values and last events, and what will happen to it next.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold describe py"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			address, err := oneSandbox(cmd)
			if err != nil {
				return err
			}
			service, err := r.open(ctx, need{verb: "describe", does: "look at sandboxes", lockWait: lockWait})
			if err != nil {
				return err
			}
			defer service.Close()
			about, err := service.Describe(ctx, address)
			if err != nil {
				return suggest(ctx, service, address, err)
			}
			if r.json {
				return view.DescribeJSON(r.out, about)
			}
			r.out.Describe(about, watched(ctx, service), r.Now())
			return nil
		},
	}
}
