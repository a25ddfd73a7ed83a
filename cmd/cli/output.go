package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
)

func (r *run) outputCommand() *cli.Command {
	var raw bool
	var lockWait time.Duration
	return &cli.Command{
		Name: "output", Usage: "print output values", UsageText: "pinfold output [flags] [NAME]", Category: "look",
		Description: "Prints the outputs that the last apply kept, or the one named. With -raw a text, number or boolean is printed with nothing around it, for scripts. The value of a sensitive one is told only to whoever asks for it by name.",
		Flags:       []cli.Flag{boolFlag(&raw, "raw", "print the value of NAME alone, without quotes and line break"), lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold output", "curl $(sudo pinfold output -raw url)"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 0, 1)
			switch {
			case err != nil:
				return err
			case raw && len(args) == 0:
				return usage(cmd, "-raw needs the name of an output")
			case raw && r.json:
				return usage(cmd, "-raw and -json exclude each other")
			}
			service, err := r.open(ctx, need{verb: "output", does: "read the outputs", lockWait: lockWait})
			if err != nil {
				return err
			}
			defer service.Close()
			all, err := service.Outputs(ctx)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return r.outputs(all)
			}
			if _, err := outputNamed(all, args[0]); err != nil {
				return err
			}
			one, err := service.Output(ctx, args[0])
			if err != nil {
				return err
			}
			switch {
			case raw:
				return view.OutputRaw(r.out, *one)
			case r.json:
				return view.OutputsJSON(r.out, []config.Output{*one}, true)
			}
			r.out.Output(*one)
			return nil
		},
	}
}

func (r *run) outputs(all []config.Output) error {
	switch {
	case r.json:
		return view.OutputsJSON(r.out, all, false)
	case len(all) == 0:
		r.out.Printf("No outputs.\n")
	default:
		r.out.Outputs(all)
	}
	return nil
}

func outputNamed(all []config.Output, name string) (config.Output, error) {
	var names []string
	for _, o := range all {
		if o.Name == name {
			return o, nil
		}
		names = append(names, o.Name)
	}
	return config.Output{}, failure(fmt.Sprintf("there is no output %q%s", name, didYouMean(name, names, "")), "Outputs are kept by apply; declare it in an output block and apply.")
}
