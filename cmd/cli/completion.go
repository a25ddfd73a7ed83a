package cli

import (
	"context"
	_ "embed"

	"github.com/urfave/cli/v3"
)

//go:embed completion.bash
var bashCompletion string

//go:embed completion.zsh
var zshCompletion string

//go:embed completion.fish
var fishCompletion string

func (r *run) completionCommand() *cli.Command {
	return &cli.Command{
		Name: "completion", Usage: "print a script that completes command lines", UsageText: "pinfold completion bash|zsh|fish", Category: "serve",
		Description: "Prints a script for your shell to load. It completes commands and flags, what flags such as -for, -target and -replace take, and, where you may look at them, sandboxes, outputs, what is recorded, backups and processes.",
		Metadata:    example("source <(pinfold completion bash)", "pinfold completion fish > ~/.config/fish/completions/pinfold.fish"),
		Action: func(_ context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, 1)
			if err != nil {
				return err
			}
			scripts := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
			script, ok := scripts[args[0]]
			if !ok {
				return usage(cmd, "there is no completion for %q%s; bash, zsh and fish are known", args[0], didYouMean(args[0], []string{"bash", "zsh", "fish"}, ""))
			}
			r.out.Printf("%s", script)
			return nil
		},
	}
}

// completeCommand is what the scripts call: it gets the words after "pinfold"
// up to the one being completed, quoted as the shell has them, and prints a
// candidate a line, each followed by a tab and what it is.
func (r *run) completeCommand() *cli.Command {
	return &cli.Command{
		Name: "__complete", Hidden: true, UsageText: "pinfold __complete WORD...", SkipFlagParsing: true,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			words := cmd.Args().Slice()
			if len(words) > 0 && words[0] == "--" {
				words = words[1:]
			}
			r.complete(ctx, cmd.Root(), words)
			return nil
		},
	}
}
