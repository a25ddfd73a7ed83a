package cli

import (
	"context"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
)

// verb is the command of one operator verb.
func (r *run) verb(name, short, description string, flags func(*reconcile.ActRequest) []cli.Flag) *cli.Command {
	request := &reconcile.ActRequest{Verb: name}
	all := []cli.Flag{lockFlag(&request.LockWait), r.jsonFlag()}
	if flags != nil {
		all = append(flags(request), all...)
	}
	return &cli.Command{
		Name: name, Usage: short, UsageText: "pinfold " + name + " [flags] SANDBOX", Category: "act",
		Description: description,
		Flags:       all,
		Metadata:    example("sudo pinfold " + name + " py"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			var err error
			if request.Address, err = oneSandbox(cmd); err != nil {
				return err
			}
			return r.act(ctx, name, request.Address, request.LockWait, func(s reconcile.Service) (*reconcile.ActResult, error) {
				return s.Act(ctx, *request)
			})
		},
	}
}

// act opens the engine, acts on one sandbox and shows it afterwards.
func (r *run) act(ctx context.Context, verb, address string, lockWait time.Duration, do func(reconcile.Service) (*reconcile.ActResult, error)) error {
	service, err := r.open(ctx, need{verb: verb, does: verb + " sandboxes", changes: true, lockWait: lockWait})
	if err != nil {
		return err
	}
	defer service.Close()
	result, err := do(service)
	if err != nil {
		return suggest(ctx, service, address, err)
	}
	if r.json {
		return view.ActJSON(r.out, result)
	}
	r.out.Acted(result, r.Now())
	return nil
}

func reasonFlag(a *reconcile.ActRequest) []cli.Flag {
	return []cli.Flag{stringFlag(&a.Reason, "reason", "why; `WORDS` are shown with the hold")}
}

func (r *run) startCommand() *cli.Command {
	return r.verb("start", "start a stopped or created sandbox",
		"Starts a fresh process on the sandbox's files, at once. Where the files declare another mode, a hold keeps it running.", reasonFlag)
}

func (r *run) stopCommand() *cli.Command {
	return r.verb("stop", "stop a sandbox, keep its files",
		"Ends the process: it gets its stop_signal (default SIGTERM) and after stop_grace (default 10s) SIGKILL. Files, volumes, address and ports stay, and a hold keeps it stopped until start or release.", reasonFlag)
}

func (r *run) pauseCommand() *cli.Command {
	return r.verb("pause", "freeze a sandbox",
		"Freezes all processes; memory and sockets stay as they are, and the deadline goes on. A hold keeps it frozen until resume or release.", reasonFlag)
}

func (r *run) resumeCommand() *cli.Command {
	return r.verb("resume", "thaw a paused sandbox",
		"Lets the frozen processes go on. With -timeout it also gets a new deadline, counted from now. One that its deadline paused (shutdown_policy pause), or whose clock rests while it is paused, needs a deadline to go on: -timeout, else its renew_on_access, else its ttl.",
		func(a *reconcile.ActRequest) []cli.Flag {
			return append([]cli.Flag{lengthFlag(&a.Timeout, "timeout", "end it `DURATION` from now; by default its deadline stays, or is made anew from its rules where pausing took it away")}, reasonFlag(a)...)
		})
}

func (r *run) releaseCommand() *cli.Command {
	return r.verb("release", "drop a sandbox's hold",
		"Takes away the hold that start, stop, pause, -no-start, the idle rule or an expiry by pause left, so that the sandbox goes to its declared mode at once.", nil)
}

func (r *run) touchCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "touch", Usage: "count as use of sandboxes", UsageText: "pinfold touch [flags] SANDBOX...", Category: "act",
		Description: "Tells that the sandboxes are in use, now: lifetime.idle_timeout counts anew from here. It wakes nothing, moves no deadline and leaves no hold.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold touch py", "sudo pinfold touch 'w[\"a\"]' 'w[\"b\"]'"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, -1)
			if err != nil {
				return err
			}
			names, err := sandboxAddresses(args)
			if err != nil {
				return err
			}
			return r.actOnAll(ctx, need{verb: "touch", does: "touch sandboxes", changes: true, lockWait: lockWait}, names, func(s reconcile.Service, name string) (*reconcile.ActResult, error) {
				return s.Touch(ctx, name)
			})
		},
	}
}

// sandboxAddresses are the sandboxes that arguments name.
func sandboxAddresses(args []string) (names []string, err error) {
	names = make([]string, len(args))
	for i, text := range args {
		if names[i], err = sandboxAddress(text); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// actOnAll acts on all it can, also when one of them is not there.
func (r *run) actOnAll(ctx context.Context, n need, names []string, do func(reconcile.Service, string) (*reconcile.ActResult, error)) error {
	service, err := r.open(ctx, n)
	if err != nil {
		return err
	}
	defer service.Close()
	var done []reconcile.SandboxView
	var failed []error
	for _, name := range names {
		res, err := do(service, name)
		if err != nil {
			failed = append(failed, suggest(ctx, service, name, err))
			continue
		}
		done = append(done, res.Sandbox)
		if !r.json {
			r.out.Acted(res, r.Now())
		}
	}
	if err := together(failed); err != nil {
		return err
	}
	if r.json {
		return view.ListJSON(r.out, &reconcile.ListResult{Sandboxes: done})
	}
	return nil
}

func (r *run) killCommand() *cli.Command {
	request := reconcile.ActRequest{Verb: "kill"}
	return &cli.Command{
		Name: "kill", Usage: "send a signal to sandboxes' processes", UsageText: "pinfold kill [-s SIGNAL] [flags] SANDBOX...", Category: "act",
		Description: "Sends a signal to the process of each running sandbox, SIGKILL if none is named. SIGNAL is a name, with or without SIG (HUP, SIGTERM, RTMIN+1), or a number. What the process does about it is its own affair. Its end counts as an exit: no hold is left, and the restart block decides what follows. To end a process and keep it from being started again use stop.",
		Flags:       append([]cli.Flag{signalFlag(&request.Signal)}, append(reasonFlag(&request), lockFlag(&request.LockWait), r.jsonFlag())...),
		Metadata:    example("sudo pinfold kill py", "sudo pinfold kill -s HUP web 'w[\"a\"]'"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, -1)
			if err != nil {
				return err
			}
			for _, text := range args {
				if number, dashed := strings.CutPrefix(text, "-"); dashed { // -9 is no flag to the parser
					return signalAsFlag(cmd, number)
				}
			}
			names, err := sandboxAddresses(args)
			if err != nil {
				return err
			}
			return r.actOnAll(ctx, need{verb: "kill", does: "send signals to sandboxes", changes: true, lockWait: request.LockWait}, names, func(s reconcile.Service, name string) (*reconcile.ActResult, error) {
				one := request
				one.Address = name
				return s.Act(ctx, one)
			})
		},
	}
}

// signalAsFlag is about kill -9, as other programs take it.
func signalAsFlag(cmd *cli.Command, name string) error {
	return usage(cmd, "kill has no flag -%s; write -s %s", name, name)
}

func (r *run) renewCommand() *cli.Command {
	var request reconcile.RenewRequest
	var lockWait time.Duration
	return &cli.Command{
		Name: "renew", Usage: "move a sandbox's deadline", UsageText: "pinfold renew (-until INSTANT | -at-least DURATION | -in DURATION) [flags] SANDBOX", Category: "act",
		Description: "Moves the deadline that lifetime.ttl gave: to an instant, to at least or to exactly some time from now. Exactly one of the three flags is needed. It never passes a shutdown_time, which only the files move; the next plan does not count it as a change.",
		Flags: []cli.Flag{
			instantFlag(&request.Until, "until", "end it at `INSTANT`, which is later than it would end now (RFC 3339: 2026-12-01T18:00:00Z)"),
			lengthFlag(&request.AtLeast, "at-least", "let it live at least `DURATION` from now; never shortens"),
			lengthFlag(&request.In, "in", "end it `DURATION` from now; may shorten, and gives a deadline where there was none"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold renew -at-least 2h py", "sudo pinfold renew -until 2026-12-24T18:00:00Z py"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			for _, arg := range cmd.Args().Slice() {
				if _, err := config.ParseDuration(arg); err == nil {
					return usage(cmd, "renew does not take the argument %q; did you mean -at-least %s or -in %s?", arg, arg, arg)
				}
			}
			args, err := arguments(cmd, 1, 1)
			if err != nil {
				return err
			}
			forms := 0
			for _, given := range []bool{request.Until != nil, request.AtLeast != nil, request.In != nil} {
				if given {
					forms++
				}
			}
			if forms != 1 {
				return usage(cmd, "renew needs exactly one of -until, -at-least and -in")
			}
			if request.Address, err = sandboxAddress(args[0]); err != nil {
				return err
			}
			return r.act(ctx, "renew", request.Address, lockWait, func(s reconcile.Service) (*reconcile.ActResult, error) {
				return s.Renew(ctx, request)
			})
		},
	}
}
