package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/reconcile"
)

// App is the program with what it touches of the world.
type App struct {
	In       *os.File
	Out, Err *os.File
	Environ  []string // os.Environ form
	Euid     int
	Now      func() time.Time
	Exit     func(code int) // for the second Ctrl-C

	Open  func(context.Context, reconcile.OpenOptions) (reconcile.Service, error)
	Agent func(context.Context, reconcile.AgentOptions) error

	// Doctor looks at the host, and at state and agent from outside.
	Doctor func(context.Context, reconcile.OpenOptions, reconcile.DoctorRequest) (*reconcile.DoctorResult, error)

	// What is done to the state file where it may not be possible to open it.
	Verify  func(context.Context, reconcile.OpenOptions, string) (*reconcile.VerifyResult, error)
	Unlock  func(context.Context, reconcile.OpenOptions, reconcile.UnlockRequest) (*reconcile.UnlockResult, error)
	Push    func(context.Context, reconcile.OpenOptions, reconcile.PushRequest) (*reconcile.PushResult, error)
	Restore func(context.Context, reconcile.OpenOptions, reconcile.RestoreRequest) (*reconcile.RestoreResult, error)
	Rebuild func(context.Context, reconcile.OpenOptions, reconcile.RebuildRequest) (*reconcile.RebuildResult, error)
}

// New is the App of this process.
func New() *App {
	return &App{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Environ: os.Environ(), Euid: os.Geteuid(), Now: time.Now, Exit: os.Exit,
		Open: reconcile.Open, Agent: reconcile.RunAgent, Doctor: reconcile.Doctor,
		Verify: reconcile.Verify, Unlock: reconcile.ForceUnlock, Push: reconcile.Push, Restore: reconcile.Restore, Rebuild: reconcile.Rebuild,
	}
}

// run is one invocation.
type run struct {
	*App
	global     globals
	help       bool
	json       bool     // -json: standard output carries one JSON document
	words      []string // the command line, without the program
	early      bool     // -json was seen before the flags were parsed
	parsed     bool     // the flags were understood; json says the truth
	out, err   *view.Screen
	interrupts *interrupts
}

// Run executes one command line (args[0] is the program) and returns the exit code.
func (a *App) Run(args []string) int {
	r := &run{App: a, words: args[min(1, len(args)):]}
	// Errors of parsing itself are shown in the form that was asked for.
	r.early = asksForJSON(args)
	r.screens(false)
	ctx, interrupts := watchInterrupts(context.Background(), a)
	defer interrupts.stop()
	r.interrupts = interrupts

	root := r.root()
	err := root.Run(ctx, args)
	code := r.report(ctx, err)
	if broken := r.out.Err(); broken != nil && code == 0 {
		fmt.Fprintf(a.Err, "cannot write to standard output: %v\n", broken)
		code = 1
	}
	return code
}

// asksForJSON looks for -json before the parser has; what follows "--" is not ours.
func asksForJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "-json") || slices.Contains(args, "--json")
}

// root is the command tree.
func (r *run) root() *cli.Command {
	var version bool
	root := &cli.Command{
		Name:        "pinfold",
		Usage:       "declared sandboxes on Linux hosts",
		UsageText:   "pinfold [-chdir=DIR] [global flags] COMMAND [flags] [arguments]",
		Description: "Sandboxes are declared in HCL files. plan shows what would change, apply makes the host match, and agent keeps it so.\n\nTo begin: make a directory, run 'pinfold init' in it, then 'sudo pinfold apply'. 'pinfold COMMAND -help' explains a command and has an example.\n\nExit codes: 0 done; 1 error; 2 there are changes (plan -detailed-exitcode); 130 interrupted. exec ends with its command's own.\n\nEnvironment: PINFOLD_VAR_NAME sets the input variable NAME; PINFOLD_LOG=debug (trace, debug, info, warn, error, off) logs to standard error; NO_COLOR=1 is -no-color; those that set global flags stand beside them below.",
		Flags: append(r.globalFlags(),
			&cli.BoolFlag{Name: "version", Aliases: []string{"v"}, Usage: "print the version, as 'pinfold version' does", Local: true, Destination: &version},
		),
		Commands: []*cli.Command{
			r.initCommand(), r.validateCommand(), r.fmtCommand(), r.consoleCommand(), r.graphCommand(), r.showCommand(),
			r.planCommand(), r.applyCommand(), r.destroyCommand(), r.driftCommand(),
			r.listCommand(), r.describeCommand(), r.eventsCommand(), r.historyCommand(), r.logsCommand(), r.topCommand(), r.waitCommand(), r.outputCommand(),
			r.startCommand(), r.stopCommand(), r.pauseCommand(), r.resumeCommand(), r.releaseCommand(), r.renewCommand(), r.touchCommand(), r.killCommand(),
			r.execCommand(), r.attachCommand(), r.copyCommand(),
			r.volumeCommand(), r.imageCommand(), r.stateCommand(), r.gcCommand(), r.forceUnlockCommand(),
			r.agentCommand(), r.doctorCommand(), r.versionCommand(), r.completionCommand(), r.helpCommand(), r.completeCommand(),
		},
		HideHelp: true, HideHelpCommand: true, HideVersion: true,
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
	}
	root.Action = func(ctx context.Context, cmd *cli.Command) error {
		switch {
		case cmd.Args().Present():
			return unknownCommand(root, cmd.Args().First())
		case version:
			return r.version(false)
		}
		r.printHelp(root)
		return nil
	}
	r.finish(root)
	return root
}

// finish gives a command and those under it what all have: -help, colours decided before it runs,
// -chdir done, and errors of parsing that say what to do.
func (r *run) finish(cmd *cli.Command) {
	for _, under := range cmd.Commands {
		r.finish(under)
	}
	cmd.HideHelp, cmd.HideHelpCommand = true, true
	cmd.Writer, cmd.ErrWriter = r.Out, r.Err
	cmd.OnUsageError = func(_ context.Context, cmd *cli.Command, err error, _ bool) error {
		if of, name := noCommand(cmd.Root(), r.words); of != nil {
			return unknownCommand(of, name)
		}
		return usageError(cmd, err)
	}
	cmd.Flags = append(cmd.Flags, &cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show this help", Local: true, Destination: &r.help})
	action := cmd.Action
	cmd.Action = func(ctx context.Context, cmd *cli.Command) error {
		r.parsed = true
		r.screens(r.global.noColor)
		if r.help {
			r.printHelp(cmd)
			return nil
		}
		if r.global.chdir != "" {
			if err := os.Chdir(r.global.chdir); err != nil {
				return fmt.Errorf("cannot work in the directory of -chdir: %w", err)
			}
		}
		return action(ctx, cmd)
	}
}

// arguments checks how many positional arguments a command got; atMost -1: any number.
func arguments(cmd *cli.Command, atLeast, atMost int) ([]string, error) {
	args := cmd.Args().Slice()
	switch {
	case len(args) < atLeast:
		return nil, usage(cmd, "%s needs an argument: %s", cmd.Name, cmd.UsageText)
	case atMost >= 0 && len(args) > atMost:
		hint := ""
		switch {
		case strings.HasPrefix(args[atMost], "-"):
			hint = "; write flags before it"
		case strings.HasSuffix(cmd.UsageText, " SANDBOX"):
			hint = "; it takes one sandbox at a time, so run it once for each"
		}
		return nil, usage(cmd, "%s does not take the argument %q%s", cmd.Name, args[atMost], hint)
	}
	return args, nil
}

// errInterrupted ends a command that Ctrl-C stopped.
var errInterrupted error = &reconcile.Error{Kind: reconcile.Interrupted, Message: "interrupted"}
