package cli

import (
	"context"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
)

func (r *run) validateCommand() *cli.Command {
	var in config.Inputs
	return &cli.Command{
		Name: "validate", Usage: "check the configuration", UsageText: "pinfold validate [flags]", Category: "config",
		Description: "Reads and evaluates the files of the current directory and reports everything that is wrong with them in one run. A variable without a value and a default is left open: what is wrong whatever it will be is found. It looks at neither records nor host and needs no privileges.",
		Flags:       append(r.inputFlags(&in), r.jsonFlag()),
		Metadata:    example("pinfold validate", "pinfold validate -var 'deadline=never'"),
		Action: func(_ context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			settings, diags := config.LoadSettings(r.global.hostConfig)
			src, found := config.Load(".", in)
			if diags = append(diags, found...); !diags.HasErrors() {
				diags = append(diags, src.Check(settings)...)
			}
			if r.json {
				if err := view.ValidateJSON(r.out, diags); err != nil {
					return err
				}
			} else {
				r.complain(diags)
			}
			if diags.HasErrors() {
				return exitWith(exitError)
			}
			if !r.json {
				r.out.Linef("The configuration is valid.\n")
			}
			return nil
		},
	}
}

// evaluate reads the configuration here with the host settings and says what it
// declares; what only exists after apply is unknown. Its error repeats the
// errors among the diagnostics.
func (r *run) evaluate(in config.Inputs) (*config.Desired, config.Diagnostics, error) {
	settings, all := config.LoadSettings(r.global.hostConfig)
	src, found := config.Load(".", in)
	all = append(all, found...)
	if all.HasErrors() {
		return nil, all, &diagnosed{all: all}
	}
	desired, found := src.Evaluate(settings, nil)
	all = append(all, found...)
	if all.HasErrors() {
		return nil, all, &diagnosed{all: all}
	}
	return desired, all, nil
}
