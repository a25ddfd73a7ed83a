package cli

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
)

func (r *run) doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "check the host, the state and the agent", UsageText: "pinfold doctor [flags]", Category: "serve",
		Description: "Looks whether this host has what sandboxes need, by trying it where nothing of it stays, and whether host settings, directories, state and agent are in order. It changes nothing and needs neither a state nor an agent. What it finds is ok, a warning or a failure, the last two with what to do. Without root some of it is not looked at, and it says so.\n\nExit codes: 0 nothing has failed, warnings or not; 1 something has.",
		Flags:       []cli.Flag{r.jsonFlag()},
		Metadata:    example("sudo pinfold doctor"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			log, err := r.logger(hclog.Off)
			if err != nil {
				return err
			}
			o := reconcile.OpenOptions{StateDir: r.global.stateDir, RunDir: r.global.runDir, Verb: "doctor", Version: config.Version, Log: log}
			found, err := r.Doctor(ctx, o, reconcile.DoctorRequest{HostConfig: r.global.hostConfig})
			if err != nil {
				return err
			}
			if r.json {
				err = view.JSON(r.out, found)
			} else {
				r.out.Doctor(found)
			}
			if err == nil && found.Failed > 0 {
				err = exitWith(exitError)
			}
			return err
		},
	}
}
