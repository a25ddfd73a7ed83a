package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/urfave/cli/v3"

	"pinfold/config"
	"pinfold/reconcile"
)

// bareKey is an address whose key lost its quotes to the shell: sandbox.w[a].
var bareKey = regexp.MustCompile(`^(.+)\[([^"\[\]]*[^"\[\]0-9][^"\[\]]*)\]$`)

// parseAddress reads an address, with or without quotes around a text key.
func parseAddress(text string) (config.Address, error) {
	address, err := config.ParseAddress(text)
	if err != nil {
		if m := bareKey.FindStringSubmatch(text); m != nil {
			if quoted, again := config.ParseAddress(m[1] + `["` + m[2] + `"]`); again == nil {
				return quoted, nil
			}
		}
	}
	return address, err
}

// parseModule reads a module's address likewise.
func parseModule(text string) (string, error) {
	module, err := config.ParseModule(text)
	if err != nil {
		if m := bareKey.FindStringSubmatch(text); m != nil {
			return config.ParseModule(m[1] + `["` + m[2] + `"]`)
		}
	}
	return module, err
}

// sandboxAddress reads what a user calls a sandbox: its address, or without
// "sandbox." the short form, which the engine looks up.
func sandboxAddress(text string) (string, error) {
	if full, err := parseAddress(text); err == nil {
		if full.Type != "sandbox" {
			return "", failure(text+" is not a sandbox", "Name a sandbox, such as sandbox.py.")
		}
		return full.String(), nil
	} else if strings.HasPrefix(text, "sandbox.") {
		return "", err
	}
	full, err := parseAddress("sandbox." + text)
	if err != nil {
		return "", failure(fmt.Sprintf("%q is not a sandbox's address", text), `Write sandbox.NAME, sandbox.NAME["KEY"] or sandbox.NAME[0]; NAME alone does where it is unambiguous.`)
	}
	return strings.TrimPrefix(full.String(), "sandbox."), nil
}

// oneSandbox is the only argument of a command: a sandbox.
func oneSandbox(cmd *cli.Command) (string, error) {
	args, err := arguments(cmd, 1, 1)
	if err != nil {
		return "", err
	}
	return sandboxAddress(args[0])
}

// inFull is the address that what sandboxAddress gave stands for.
func inFull(name string) string {
	if full, err := parseAddress(name); err == nil && full.Type == "sandbox" {
		return name // in a module, too
	}
	return "sandbox." + name
}

// nearest names the sandbox most like what was asked for, as "; did you mean …?".
func nearest(text string, names []string) string {
	full := inFull(text)
	if hint := didYouMean(full, names, ""); hint != "" {
		return hint
	}
	// One of several instances may be meant, without its key.
	whole, first := []string{}, map[string]string{}
	for _, name := range names {
		if of, _, keyed := strings.Cut(name, "["); keyed && first[of] == "" {
			whole, first[of] = append(whole, of), name
		}
	}
	if of := closest(full, whole); of != "" {
		return "; did you mean " + first[of] + "?"
	}
	return ""
}

// suggest adds to an engine's "not found" what exists.
func suggest(ctx context.Context, s reconcile.Service, text string, err error) error {
	var failed *reconcile.Error
	if !errors.As(err, &failed) || failed.Kind != reconcile.NotFound {
		return err
	}
	all, listErr := s.List(ctx)
	if listErr != nil {
		return err
	}
	var names []string
	for _, x := range all.Sandboxes {
		if x.Address == text || x.Address == "sandbox."+text {
			return err // it exists; something else was not found
		}
		names = append(names, x.Address)
	}
	full := inFull(text)
	if past, broken := s.Events(ctx, reconcile.EventsRequest{Address: full}); broken == nil && len(past.Events) > 0 {
		return explained(err, err.Error(), "'pinfold history "+shellWord(full)+"' tells what became of it.")
	}
	if len(names) == 0 {
		return explained(err, err.Error(), "There is no sandbox here at all; 'pinfold apply' makes those that are declared.")
	}
	return explained(err, err.Error()+nearest(text, names), "'pinfold list' shows those that exist.")
}
