package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/mitchellh/go-wordwrap"
	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
)

// groups are the headings of the command list, in order.
var groups = []struct{ name, title string }{
	{"config", "Write and check a configuration"},
	{"change", "Change the host"},
	{"look", "Look"},
	{"act", "Act on one sandbox"},
	{"data", "Look after what is kept"},
	{"serve", "Serve"},
}

// placeholders are values of flags that need a word of their own.
var placeholders = []struct{ word, means string }{
	{"ADDRESS", "ADDRESS is that of anything declared, in full: sandbox.py, 'sandbox.py[\"a\"]' (quoted for the shell), network.agents, volume.models or image.base."},
	{"DURATION", "DURATION is a number with its unit, s, m, h, d (days) or w (weeks): 90s, 15m, 1h30m, 2d."},
}

const exampleKey = "example"

// The library's own help is off: each command has a -help flag that finish adds.
func init() { cli.HelpFlag = nil }

// example attaches lines a user can copy to a command's help.
func example(lines ...string) map[string]any {
	return map[string]any{exampleKey: lines}
}

func (r *run) helpCommand() *cli.Command {
	manuals := ""
	return &cli.Command{
		Name: "help", Usage: "explain a command", UsageText: "pinfold help [COMMAND [COMMAND]]\n       pinfold help -man DIR", Category: "serve",
		Description: "Explains one command: what it does, its flags, an example. Without a name it lists all commands. With -man it writes the same as manual pages, one for each command.",
		Flags:       []cli.Flag{stringFlag(&manuals, "man", "write manual pages (pinfold.1, pinfold-plan.1, ...) into `DIR`, which is made")},
		Metadata:    example("pinfold help apply", "pinfold help -man /usr/local/share/man/man1"),
		Action: func(_ context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 0, 2)
			if err != nil {
				return err
			}
			if manuals != "" {
				names, err := writeManuals(manuals, cmd.Root())
				if err == nil {
					r.out.Linef("Wrote %d manual pages to %s\n", len(names), view.Printable(manuals))
				}
				return err
			}
			about := cmd.Root()
			for _, name := range args {
				under := about.Command(name)
				if under == nil {
					return unknownCommand(about, name)
				}
				about = under
			}
			r.printHelp(about)
			return nil
		},
	}
}

// printHelp writes a command's manual page to standard output.
func (r *run) printHelp(cmd *cli.Command) {
	width := r.out.Width
	if width == 0 || width > 100 {
		width = 100
	}
	say := r.out.Printf
	narrow := width < 60 // what two columns would not fit
	say("Usage: %s\n\n", usageLines(cmd.UsageText, width))
	say("%s\n", indented(cmd.Description, 2, width))
	if strings.Contains(cmd.UsageText, "SANDBOX") {
		say("\n%s\n", indented(sandboxWords, 2, width))
	}
	root := cmd.Root() == cmd
	switch {
	case root:
		for _, g := range groups {
			say("\n%s:\n", g.title)
			for _, c := range cmd.Commands {
				if c.Category == g.name && !c.Hidden {
					r.explain(strings.Join(c.Names(), ", "), c.Usage, 12, narrow, width)
				}
			}
		}
	case len(cmd.Commands) > 0:
		say("\nCommands:\n")
		for _, c := range cmd.Commands {
			r.explain(c.Name, c.Usage, 12, narrow, width)
		}
	}
	own := cmd.VisibleFlags()
	if len(own) > 0 {
		title := "Flags"
		if root {
			title = "Global flags"
		}
		say("\n%s (one dash or two):\n", title)
		for _, f := range own {
			name, text := flagHelp(f)
			r.explain(name, text, 25, narrow, width)
		}
	}
	for _, text := range meanings(cmd) {
		say("\n%s\n", indented(text, 2, width))
	}
	if !root {
		say("\n%s\n", indented("Global flags (-state-dir, -run-dir, -host-config, -no-color) may stand here, too; 'pinfold -help' explains them.", 0, width))
	}
	if lines, ok := cmd.Metadata[exampleKey].([]string); ok {
		say("\nExample:\n")
		for _, line := range lines {
			say("  $ %s\n", continued(line, width-4, "      "))
		}
	}
}

// explain writes a name and what it means beside it, or where there is no room below it.
func (r *run) explain(name, text string, wide int, narrow bool, width int) {
	by := wide + 3
	if narrow {
		by = 6
	}
	text = indented(text, by, width)
	if narrow || len(name) > wide {
		r.out.Printf("%s\n%s\n", indented(name, 2, width), text)
		return
	}
	r.out.Printf("  %-*s %s\n", wide, name, strings.TrimLeft(text, " "))
}

// usageLines are the lines of a command's usage, after "Usage: "; what goes on in
// another is indented below.
func usageLines(text string, width int) string {
	var out []string
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		wrapped := strings.Split(wordwrap.WrapString(line, uint(width-len("Usage: "))), "\n")
		for j, part := range wrapped {
			switch {
			case j > 0:
				out = append(out, strings.TrimRight("           "+part, " "))
			case i > 0:
				out = append(out, "       "+part)
			default:
				out = append(out, part)
			}
		}
	}
	return strings.Join(out, "\n")
}

// continued is a command line broken where it does not fit, as a shell takes it; what
// stands in quotes stays in one line.
func continued(line string, width int, margin string) string {
	var words []string
	var quote rune
	start := 0
	for i, c := range line {
		switch {
		case c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == ' ':
			words = append(words, line[start:i])
			start = i + 1
		}
	}
	words = append(words, line[start:])
	var out strings.Builder
	length := 0
	for i, word := range words {
		// " \" behind it must fit, too.
		if n := len(word); i > 0 && length+1+n+2 > width {
			out.WriteString(" \\\n" + margin)
			length = len(margin)
		} else if i > 0 {
			out.WriteString(" ")
			length++
		}
		out.WriteString(word)
		length += len(word)
	}
	return out.String()
}

// sandboxWords explains SANDBOX.
const sandboxWords = "SANDBOX is an address, such as sandbox.py or 'sandbox.py[\"a\"]' (quoted for the shell); py and 'py[\"a\"]' will do where nothing else has that name."

// meanings explain the placeholders that the command's flags have.
func meanings(cmd *cli.Command) (out []string) {
	for _, x := range placeholders {
		if slices.ContainsFunc(cmd.VisibleFlags(), func(f cli.Flag) bool {
			name, _ := flagHelp(f)
			return strings.HasSuffix(name, " "+x.word)
		}) {
			out = append(out, x.means)
		}
	}
	return out
}

// flagHelp is a flag's names with its value's, and its explanation.
func flagHelp(f cli.Flag) (name, text string) {
	doc, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return "-" + strings.Join(f.Names(), ", -"), ""
	}
	text = doc.GetUsage()
	placeholder := ""
	if before, rest, ok := strings.Cut(text, "`"); ok {
		if word, after, ok := strings.Cut(rest, "`"); ok {
			placeholder = word
			text = before + word + after
		}
	}
	for _, n := range f.Names() {
		if name != "" {
			name += ", "
		}
		name += "-" + n
	}
	if boolean, ok := f.(*cli.BoolFlag); ok {
		if boolean.Value {
			name += "=false"
		}
	} else {
		if placeholder == "" {
			placeholder = "VALUE"
		}
		name += " " + placeholder
		if v := doc.GetValue(); v != "" {
			text += fmt.Sprintf(" (default %s)", v)
		}
	}
	if env := doc.GetEnvVars(); len(env) > 0 {
		text += " [$" + strings.Join(env, ", $") + "]"
	}
	return name, text
}

// flagsOf are a command's flags with the global ones.
func flagsOf(cmd *cli.Command) []cli.Flag {
	all := slices.Clone(cmd.Flags)
	if root := cmd.Root(); root != cmd {
		for _, f := range root.Flags {
			if local, ok := f.(cli.LocalFlag); ok && !local.IsLocal() {
				all = append(all, f)
			}
		}
	}
	return all
}

func indented(text string, by, width int) string {
	margin := strings.Repeat(" ", by)
	wrapped := wordwrap.WrapString(text, uint(max(10, width-by)))
	return margin + strings.ReplaceAll(strings.ReplaceAll(wrapped, "\n", "\n"+margin), margin+"\n", "\n")
}
