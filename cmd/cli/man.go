package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/urfave/cli/v3"

	"pinfold/config"
)

// manualDate is when the texts were last gone over, for the foot of each page.
const manualDate = "2026-12-01"

// writeManuals writes a manual page for each command into a directory, which is made,
// and returns their names. They say what -help does.
func writeManuals(dir string, root *cli.Command) (names []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot write manual pages: %w", err)
	}
	var errs []error
	var walk func(name string, cmd *cli.Command)
	walk = func(name string, cmd *cli.Command) {
		names = append(names, name+".1")
		errs = append(errs, renameio.WriteFile(filepath.Join(dir, name+".1"), []byte(manual(name, cmd, root)), 0o644, renameio.IgnoreUmask()))
		for _, under := range cmd.Commands {
			if !under.Hidden {
				walk(name+"-"+under.Name, under)
			}
		}
	}
	walk(root.Name, root)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("cannot write manual pages: %w", err)
	}
	return names, nil
}

// manual is one page in the language of man(7). name is the page's, such as
// pinfold-state-list.
func manual(name string, cmd, root *cli.Command) string {
	var out strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	say(`.TH %s 1 %s "pinfold %s" "User Commands"`, strings.ToUpper(name), manualDate, config.Version)
	say(".SH NAME\n%s \\- %s", roff(name), roff(cmd.Usage))
	say(".SH SYNOPSIS\n.nf")
	for _, line := range strings.Split(cmd.UsageText, "\n") {
		say("%s", roff(strings.TrimSpace(line)))
	}
	say(".fi\n.SH DESCRIPTION")
	var exits []string
	for i, text := range strings.Split(cmd.Description, "\n\n") {
		if codes, ok := strings.CutPrefix(text, "Exit codes: "); ok {
			exits = append(exits, codes)
			continue
		}
		if i > 0 {
			say(".PP")
		}
		say("%s", roff(text))
	}
	if strings.Contains(cmd.UsageText, "SANDBOX") {
		say(".PP\n%s", roff(sandboxWords))
	}
	commands := false
	for _, under := range cmd.Commands {
		if under.Hidden {
			continue
		}
		if !commands {
			say(".SH COMMANDS")
			commands = true
		}
		say(".TP\n.B %s\n%s; see", roff(strings.Join(under.Names(), ", ")), roff(under.Usage))
		say(".BR %s (1).", roff(name+"-"+under.Name))
	}
	if flags := cmd.VisibleFlags(); len(flags) > 0 {
		say(".SH OPTIONS\nFlags take one dash or two.")
		for _, f := range flags {
			names, text := flagHelp(f)
			say(".TP\n.B %s\n%s", roff(names), roff(text))
		}
		for _, text := range meanings(cmd) {
			say(".PP\n%s", roff(text))
		}
	}
	if len(exits) > 0 {
		say(".SH EXIT STATUS")
		for _, text := range exits {
			say("%s", roff(text))
		}
	}
	if lines, ok := cmd.Metadata[exampleKey].([]string); ok {
		say(".SH EXAMPLES\n.nf")
		for _, line := range lines {
			say("%s", roff(line))
		}
		say(".fi")
	}
	if cmd != root {
		say(".SH SEE ALSO\n.BR pinfold (1),\nwhich explains the flags that all commands take.")
	}
	return out.String()
}

// roff is text that means itself: a backslash, a dash that must be one, and a line that
// begins like a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
