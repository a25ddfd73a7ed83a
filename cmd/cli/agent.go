package cli

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v3"

	"pinfold/config"
	"pinfold/reconcile"
)

func (r *run) agentCommand() *cli.Command {
	var o reconcile.AgentOptions
	var lockWait time.Duration
	return &cli.Command{
		Name: "agent", Usage: "stay and keep the host as declared", UsageText: "pinfold agent [flags]", Category: "serve",
		Description: "Stays resident: enforces deadlines, starts what was killed, mends what was lost. With -config it also applies a directory whenever that changes; other commands reach it through its socket. Ctrl-C ends it; the sandboxes live on.",
		Flags: append([]cli.Flag{
			stringFlag(&o.ConfigDir, "config", "apply the configuration in `DIR` now and whenever it changes; without it the agent keeps what was applied last"),
			listFlag(&o.AllowDestroy, "allow-destroy", "let the configuration in DIR that has this `DIGEST` delete or replace more than the host setting max_destroy allows; the log names the digest when it refuses; may be repeated"),
			lockFlag(&lockWait),
		}, r.inputFlags(&o.Inputs)...),
		Metadata: example("sudo pinfold agent", "sudo pinfold agent -config /srv/sandboxes"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			if o.ConfigDir == "" && (len(o.Inputs.Order) > 0 || len(o.AllowDestroy) > 0) {
				return usage(cmd, "-var, -var-file and -allow-destroy go with -config")
			}
			return r.agent(ctx, o, lockWait)
		},
	}
}

func (r *run) agent(ctx context.Context, o reconcile.AgentOptions, lockWait time.Duration) error {
	if r.Euid != 0 {
		return failure("pinfold needs root to keep sandboxes", "You are user %d. Run it with sudo, or as a system service.", r.Euid)
	}
	settings, err := r.settings()
	if err != nil {
		return err
	}
	log, err := r.logger(hclog.Info)
	if err != nil {
		return err
	}
	o.OpenOptions = reconcile.OpenOptions{
		StateDir: r.global.stateDir, RunDir: r.global.runDir, Settings: settings,
		LockWait: lockWait, Verb: "agent", Version: config.Version, Log: log,
	}
	var served atomic.Bool
	o.Ready = func() {
		served.Store(true)
		log.Info("ready", "state_dir", r.global.stateDir, "run_dir", r.global.runDir)
		tell(log, daemon.SdNotifyReady)
	}
	err = r.Agent(ctx, o)
	tell(log, daemon.SdNotifyStopping)
	switch {
	case err == nil || ctx.Err() != nil:
	case served.Load():
		return fmt.Errorf("the agent ended: %w", err)
	default:
		return fmt.Errorf("cannot start the agent: %w", err)
	}
	// Being told to stop is no failure; sandboxes live on.
	return nil
}

// tell passes a state to the service manager, if one asked for it (sd_notify(3)).
func tell(log hclog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot tell the service manager", "state", state, "error", err)
	}
}
