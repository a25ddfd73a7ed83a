package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/urfave/cli/v3"
	"golang.org/x/term"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
)

func (r *run) consoleCommand() *cli.Command {
	var in config.Inputs
	var lockWait time.Duration
	return &cli.Command{
		Name: "console", Usage: "evaluate expressions", UsageText: "pinfold console [flags]", Category: "config",
		Description: "Reads expressions, one a line, and prints their values as the language writes them: what the files here would get, with their variables, locals, resources and functions. One with open brackets goes on in the next line. Addresses, ports, instance ids and digests are those of what exists; what is not made yet, or may not be read (without root and without access to the agent's socket), is unknown. A variable without a value is unknown, too. Outputs cannot be referred to. Nothing is changed.\n\nOn a terminal lines can be edited, and the arrow keys bring earlier ones back. 'exit' or Ctrl-D ends it. From a pipe it reads to the end, and goes on after an error.\n\nExit codes: 0 done; 1 an expression of a pipe, or the configuration, has an error.",
		Flags:       append(r.inputFlags(&in), lockFlag(&lockWait)),
		Metadata:    example("pinfold console", "echo 'cidrhost(\"10.1.0.0/16\", 5)' | pinfold console"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			console, wrong, err := r.console(ctx, in, lockWait)
			if err != nil {
				return err
			}
			if isTerminal(r.In) && isTerminal(r.Out) {
				return r.converse(console)
			}
			return r.evaluateLines(console, wrong)
		},
	}
}

// console is ready for expressions about the files here and what exists of them.
// Errors of the files are shown; wrong tells that there are any.
func (r *run) console(ctx context.Context, in config.Inputs, lockWait time.Duration) (c *config.Console, wrong bool, err error) {
	settings, err := r.settings()
	if err != nil {
		return nil, false, err
	}
	src, diags, err := consoleSource(in)
	if err != nil {
		return nil, false, err
	}
	exports, why := r.exports(ctx, src.Dir, lockWait)
	if why != "" {
		diags = append(diags, config.Diagnostic{Severity: "warning", Summary: "what is known only of resources that exist is unknown here", Detail: why})
	}
	c, found := src.Console(settings, exports)
	diags = append(diags, found...)
	r.complain(diags)
	return c, diags.HasErrors(), nil
}

// consoleSource is the configuration of the working directory, or an empty one.
func consoleSource(in config.Inputs) (*config.Source, config.Diagnostics, error) {
	if files, _ := filepath.Glob("*.hcl"); len(files) > 0 { // the pattern is well-formed
		return source(in)
	}
	dir, err := os.Getwd()
	return &config.Source{Dir: dir}, nil, err
}

// exports are those of what is recorded for the configuration in dir, or why there
// are none.
func (r *run) exports(ctx context.Context, dir string, lockWait time.Duration) (x config.Exports, why string) {
	recorded, err := r.records(ctx, "console", "read what is recorded", lockWait)
	var found *diagnosed
	switch {
	case errors.As(err, &found) && len(found.all) == 1:
		return nil, sentence(found.all[0].Summary) + ". " + found.all[0].Detail
	case err != nil:
		return nil, sentence(err.Error()) + "."
	case recorded.Dir == "":
		return nil, "" // nothing exists yet
	case recorded.Dir != dir:
		return nil, fmt.Sprintf("The state in %s serves %s, and this is %s.", r.global.stateDir, recorded.Dir, dir)
	}
	return recorded.Exports, ""
}

// records are what is recorded, read in a moment: nobody waits for us afterwards.
func (r *run) records(ctx context.Context, verb, does string, lockWait time.Duration) (*reconcile.RecordsResult, error) {
	service, err := r.open(ctx, need{verb: verb, does: does, lockWait: lockWait})
	if err != nil {
		return nil, err
	}
	defer service.Close()
	return service.Records(ctx)
}

// evaluateLines evaluates what is piped in.
func (r *run) evaluateLines(c *config.Console, wrong bool) error {
	lines := bufio.NewScanner(r.In)
	lines.Buffer(nil, maxExpression)
	text := ""
	for lines.Scan() && r.interrupts.ctx.Err() == nil {
		text += lines.Text()
		if text == "exit" {
			text = ""
			break
		}
		if unfinished(text) && len(text) < maxExpression {
			text += "\n"
			continue
		}
		wrong = !r.printValue(c, text) || wrong
		text = ""
	}
	switch {
	case lines.Err() != nil:
		return fmt.Errorf("cannot read expressions: %w", lines.Err())
	case r.interrupts.ctx.Err() != nil:
		return errInterrupted
	}
	if wrong = !r.printValue(c, text) || wrong; wrong {
		return exitWith(exitError)
	}
	return nil
}

// maxExpression bounds an expression and a line, in bytes.
const maxExpression = 1 << 20

// printValue evaluates and prints; false when the text has errors.
func (r *run) printValue(c *config.Console, text string) bool {
	if strings.TrimSpace(text) == "" {
		return true
	}
	v, diags := c.Evaluate(text)
	r.complain(diags)
	if diags.HasErrors() {
		return false
	}
	r.out.Printf("%s\n", view.Expression(v))
	return true
}

// unfinished tells whether brackets or a heredoc are open at the end of the text.
func unfinished(text string) bool {
	// What is wrong is told when the whole is evaluated.
	tokens, _ := hclsyntax.LexExpression([]byte(text+"\n"), "", hcl.InitialPos)
	open := 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl:
			open++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			open--
		}
	}
	return open > 0
}

// converse reads lines that can be edited until exit or Ctrl-D. What is printed in
// between finds the terminal as it was.
func (r *run) converse(c *config.Console) error {
	fd := int(r.In.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return fmt.Errorf("cannot use the terminal: %w", err)
	}
	r.interrupts.onExit(func() { _ = term.Restore(fd, before) })
	t := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{r.In, r.Out}, "")
	read := func(prompt string) (string, error) {
		if width, height, err := term.GetSize(fd); err == nil && width > 0 {
			_ = t.SetSize(width, height) // it draws as on a narrower one otherwise
		}
		t.SetPrompt(prompt)
		if _, err := term.MakeRaw(fd); err != nil {
			return "", fmt.Errorf("cannot use the terminal: %w", err)
		}
		line, err := t.ReadLine()
		if errors.Is(err, term.ErrPasteIndicator) {
			err = nil // a line that was pasted is one like any other
		}
		return line, errors.Join(err, term.Restore(fd, before))
	}
	text := ""
	for {
		prompt := "> "
		if text != "" {
			prompt = ": "
		}
		line, err := read(prompt)
		switch {
		case errors.Is(err, io.EOF):
			r.out.Printf("\n")
			return nil
		case err != nil:
			return err
		case text == "" && strings.TrimSpace(line) == "exit":
			return nil
		}
		text += line
		if unfinished(text) && len(text) < maxExpression {
			text += "\n"
			continue
		}
		r.printValue(c, text)
		text = ""
	}
}
