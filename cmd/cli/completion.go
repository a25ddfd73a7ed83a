package cli

import (
	"context"
	_ "embed"
	"slices"
	"strings"
	"time"

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
		Description: "Prints a script for your shell to load. It completes commands, flags and, where you may look at them, sandboxes.",
		Metadata:    example("source <(pinfold completion bash)"),
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
// up to the one being completed, and prints a candidate a line, each followed
// by a tab and what it is.
func (r *run) completeCommand() *cli.Command {
	return &cli.Command{
		Name: "__complete", Hidden: true, UsageText: "pinfold __complete WORD...", SkipFlagParsing: true,
		Action: func(ctx context.Context, cmd *cli.Command) error {
			words := cmd.Args().Slice()
			if len(words) > 0 && words[0] == "--" {
				words = words[1:]
			}
			if len(words) == 0 {
				words = []string{""}
			}
			r.complete(ctx, cmd.Root(), words)
			return nil
		},
	}
}

// sandboxCommands take the address of a sandbox.
var sandboxCommands = []string{"list", "describe", "logs", "wait", "start", "stop", "pause", "resume", "release", "renew", "exec", "show"}

func (r *run) complete(ctx context.Context, root *cli.Command, words []string) {
	last := words[len(words)-1]
	var about *cli.Command
	for _, word := range words[:len(words)-1] {
		if !strings.HasPrefix(word, "-") {
			if about = root.Command(word); about != nil {
				break
			}
		}
	}
	offer := func(word, what string) {
		if strings.HasPrefix(word, last) {
			r.out.Printf("%s\t%s\n", word, what)
		}
	}
	switch {
	case strings.HasPrefix(last, "-"):
		cmd := root
		if about != nil {
			cmd = about
		}
		dashes := "-"
		if strings.HasPrefix(last, "--") {
			dashes = "--"
		}
		for _, f := range flagsOf(cmd) {
			for _, name := range f.Names() {
				_, text := flagHelp(f)
				offer(dashes+name, text)
			}
		}
	case about == nil:
		for _, c := range root.Commands {
			if !c.Hidden {
				offer(c.Name, c.Usage)
			}
		}
	case about.Name == "completion":
		for _, shell := range []string{"bash", "fish", "zsh"} {
			offer(shell, "")
		}
	case slices.Contains(sandboxCommands, about.Name):
		for _, address := range r.addresses(ctx) {
			offer(address, "sandbox")
		}
	}
}

// addresses are the sandboxes there are, as far as this user can find out at
// once. Completion never complains.
func (r *run) addresses(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	service, err := r.open(ctx, need{verb: "completion", does: "look at sandboxes", lockWait: time.Millisecond})
	if err != nil {
		return nil
	}
	defer service.Close()
	all, err := service.List(ctx)
	if err != nil {
		return nil
	}
	var out []string
	for _, x := range all.Sandboxes {
		out = append(out, x.Address)
	}
	return out
}
