package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
)

func (r *run) initCommand() *cli.Command {
	return &cli.Command{
		Name: "init", Usage: "write a starter configuration", UsageText: "pinfold [-chdir=DIR] init", Category: "config",
		Description: "Writes a small configuration that works as it is into the current directory. Where there already are *.hcl files nothing is changed.",
		Metadata:    example("mkdir sandboxes && pinfold -chdir=sandboxes init", "sudo pinfold -chdir=sandboxes apply"),
		Action: func(_ context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			return r.init()
		},
	}
}

func (r *run) init() error {
	existing, err := filepath.Glob("*.hcl")
	if err != nil {
		return fmt.Errorf("cannot look for *.hcl files here: %w", err)
	}
	if len(existing) > 0 {
		r.out.Linef("There is a configuration here already (%s); nothing was changed.\n", view.Printable(strings.Join(existing, ", ")))
		return nil
	}
	starter := config.Starter()
	for _, name := range slices.Sorted(maps.Keys(starter)) {
		if err := writeNew(name, starter[name]); err != nil {
			return fmt.Errorf("cannot write the starter configuration: %w", err)
		}
		r.out.Linef("Wrote %s\n", name)
	}
	r.out.Linef("\nNext: pinfold validate, then pinfold plan and pinfold apply.\n")
	return nil
}

// writeNew writes a file that must not exist yet.
func writeNew(name string, content []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
