package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
)

// Exit codes. An exec returns its command's own.
const (
	exitDone        = 0
	exitError       = 1
	exitChanges     = 2
	exitInterrupted = 130
)

// diagnosed is an error that is one or more diagnostics, perhaps about another.
type diagnosed struct {
	all config.Diagnostics
	of  error
}

func (d *diagnosed) Unwrap() error { return d.of }

func (d *diagnosed) Error() string {
	var out []string
	for _, x := range d.all {
		if x.Severity == "error" {
			out = append(out, x.Summary)
		}
	}
	return strings.Join(out, "; ")
}

// failure is an error with what to do about it.
func failure(summary, detail string, args ...any) error {
	return &diagnosed{all: config.Diagnostics{{Severity: "error", Summary: summary, Detail: fmt.Sprintf(detail, args...)}}}
}

// explained is an engine's error with more words; it keeps its kind.
func explained(err error, summary, detail string) error {
	return &diagnosed{all: config.Diagnostics{{Severity: "error", Summary: summary, Detail: detail}}, of: err}
}

// together is all of several errors as one; nil for none.
func together(all []error) error {
	if len(all) < 2 {
		return errors.Join(all...)
	}
	found := &diagnosed{of: errors.Join(all...)}
	for _, err := range all {
		var one *diagnosed
		if errors.As(err, &one) {
			found.all = append(found.all, one.all...)
			continue
		}
		found.all = append(found.all, config.Diagnostic{Severity: "error", Summary: err.Error()})
	}
	return found
}

// exitWith ends the command with a code and nothing more to say.
type exitWith int

func (e exitWith) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// usage is a mistake in the command line of cmd.
func usage(cmd *cli.Command, format string, args ...any) error {
	return failure(fmt.Sprintf(format, args...), "Run '%s -help' for its flags and an example.", cmd.FullName())
}

// usageError words a failure of the flag parser.
func usageError(cmd *cli.Command, err error) error {
	text := err.Error()
	if name, unknown := strings.CutPrefix(text, "flag provided but not defined: -"); unknown {
		if hint := beforeCommand(cmd, name); hint != "" {
			return usage(cmd, "%s has no flag -%s; it stands before the command: %s", cmd.Name, name, hint)
		}
		if instead, known := insteadOfFlag[behindProgram(cmd, "-"+name)]; known {
			return failure(fmt.Sprintf("%s has no flag -%s", cmd.Name, name), "%s", instead)
		}
		if _, err := config.ParseSignal(name); err == nil && cmd.Name == "kill" {
			return signalAsFlag(cmd, name)
		}
		if instead, known := insteadOfAnywhere[name]; known {
			return failure(fmt.Sprintf("%s has no flag -%s", cmd.Name, name), "%s", instead)
		}
		var names []string
		for _, f := range flagsOf(cmd) {
			names = append(names, f.Names()...)
		}
		return usage(cmd, "%s has no flag -%s%s", cmd.Name, name, didYouMean(name, names, "-"))
	}
	if name, missing := strings.CutPrefix(text, "flag needs an argument: "); missing {
		return usage(cmd, "the flag -%s needs a value", strings.TrimLeft(name, "-"))
	}
	return usage(cmd, "%s", text)
}

// beforeCommand is the command line with a flag that belongs to the program itself
// in its place; empty for any other flag.
func beforeCommand(cmd *cli.Command, name string) string {
	root := cmd.Root()
	if root == cmd {
		return ""
	}
	for _, f := range root.Flags {
		text, ok := f.(*cli.StringFlag)
		if !ok || !text.IsLocal() || !slices.Contains(f.Names(), name) {
			continue
		}
		shown, _ := flagHelp(f)
		_, value, _ := strings.Cut(shown, " ")
		return "pinfold -" + name + "=" + value + " " + cmd.Name
	}
	return ""
}

// unknownCommand is about a name that is no command of the program, or none behind
// one of its commands.
func unknownCommand(of *cli.Command, name string) error {
	if strings.HasPrefix(name, "-") {
		return usage(of, "unknown flag %s", name)
	}
	if instead, known := insteadOf[behindProgram(of, name)]; known {
		return failure(fmt.Sprintf("%s has no command %q", of.FullName(), name), "%s", instead)
	}
	var names []string
	for _, c := range of.Commands {
		if !c.Hidden {
			names = append(names, c.Names()...)
		}
	}
	return failure(fmt.Sprintf("%s has no command %q%s", of.FullName(), name, didYouMean(name, names, "")), "Run '%s -help' for the list of commands.", of.FullName())
}

// didYouMean names the candidate most like given, if one is close; never given itself.
func didYouMean(given string, names []string, prefix string) string {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == given })
	if best := closest(given, names); best != "" {
		return "; did you mean " + prefix + best + "?"
	}
	return ""
}

// closest is the candidate most like given; empty if none is close.
func closest(given string, names []string) string {
	best, distance := "", min(3, (len(given)+2)/3)+1
	for _, name := range slices.Sorted(slices.Values(names)) {
		if d := levenshtein.Distance(given, name, nil); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// report shows what a command ended with and returns the exit code.
func (r *run) report(ctx context.Context, err error) int {
	json := r.json
	if !r.parsed {
		json = r.early
	}
	var code exitWith
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &code):
		return int(code)
	}
	exit, all := r.classify(ctx, err)
	var warned *warnedError
	if errors.As(err, &warned) {
		all = view.Merge(warned.warned, all)
	}
	if json {
		if err := view.DiagnosticsJSON(r.out, all); err != nil {
			fmt.Fprintf(r.Err, "%v\n", err)
		}
		return exit
	}
	if exit == exitInterrupted && len(all) == 1 {
		fmt.Fprintln(r.err, "Interrupted.")
		return exit
	}
	r.complain(all)
	return exit
}

// complain writes diagnostics for people to standard error.
func (r *run) complain(all config.Diagnostics) {
	// Standard error failing leaves nowhere to say so.
	_ = config.Fprint(r.err, view.PrintableDiagnostics(all), r.err.Color, r.err.Width)
}

// classify turns any error into an exit code and diagnostics.
func (r *run) classify(ctx context.Context, err error) (int, config.Diagnostics) {
	// An error of several lines says what is wrong in the first.
	one := func(text, advice string) config.Diagnostics {
		summary, detail, _ := strings.Cut(text, "\n")
		if detail != "" && advice != "" {
			advice = "\n" + advice
		}
		return config.Diagnostics{{Severity: "error", Summary: summary, Detail: detail + advice}}
	}
	var found *diagnosed
	if errors.As(err, &found) {
		return exitError, found.all
	}
	var failed *reconcile.Error
	if errors.As(err, &failed) {
		exit := exitError
		if failed.Code != 0 {
			exit = failed.Code
		}
		if failed.Kind == reconcile.Interrupted {
			exit = exitInterrupted
		}
		if failed.Diagnostics.HasErrors() {
			return exit, failed.Diagnostics
		}
		return exit, append(one(err.Error(), advice(failed.Kind)), failed.Diagnostics...)
	}
	if errors.Is(err, errInterrupted) || errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return exitInterrupted, one("interrupted", "")
	}
	return exitError, one(err.Error(), "")
}

// advice is what to do about a kind of error, where its message cannot know.
func advice(kind reconcile.ErrorKind) string {
	if kind == reconcile.Stale {
		return "Make a new plan with 'pinfold plan -out FILE' and apply that."
	}
	return ""
}
