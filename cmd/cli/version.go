package cli

import (
	"context"
	"runtime"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
)

func (r *run) versionCommand() *cli.Command {
	return &cli.Command{
		Name: "version", Usage: "print the version", UsageText: "pinfold version [-json]", Category: "serve",
		Description: "Prints the version of this program and what it was built with. It needs no privileges.",
		Flags:       []cli.Flag{r.jsonFlag()},
		Metadata:    example("pinfold version -json"),
		Action: func(_ context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			return r.version(r.json)
		},
	}
}

func (r *run) version(json bool) error {
	if json {
		return view.VersionJSON(r.out, config.Version, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	}
	r.out.Linef("pinfold %s (%s, %s/%s)\n", config.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return nil
}
