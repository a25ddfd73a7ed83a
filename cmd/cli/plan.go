package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// planning are the flags plan, apply and destroy share.
type planning struct {
	in       config.Inputs
	options  plan.Options
	refresh  bool
	takeOver bool
	lockWait time.Duration
	short    []misnamed
}

func (r *run) planningFlags(p *planning, destroy bool) []cli.Flag {
	p.refresh = true
	o := &p.options
	only, but := "change only `ADDRESS`, of a thing, of a block or of a module, and what it depends on; may be repeated", "change all but `ADDRESS` and what depends on it; may be repeated"
	if destroy {
		only, but = "end only `ADDRESS`, of a thing, of a block or of a module, and what depends on it; may be repeated", "end all but `ADDRESS` and what it depends on; may be repeated"
	}
	flags := []cli.Flag{addressFlag(&o.Targets, &p.short, "target", only, anyName), addressFlag(&o.Excludes, &p.short, "exclude", but, anyName)}
	if !destroy {
		flags = append(flags,
			addressFlag(&o.Replace, &p.short, "replace", "make a new instance of the sandbox `ADDRESS` though nothing about it changed: its writable layer is lost, its volumes stay; may be repeated", oneThing),
			boolFlag(&o.Destroy, "destroy", "end everything that is recorded, as 'pinfold destroy' does"),
			boolFlag(&o.NoStart, "no-start", "make new sandboxes and leave them to 'pinfold start'"),
			boolFlag(&o.ReleaseHolds, "release-holds", "drop the holds that pause, stop, start and resume left, so that what the files say goes"),
			boolFlag(&o.RefreshOnly, "refresh-only", "record what is seen on the host, and change nothing there"),
		)
	}
	flags = append(flags, boolFlag(&p.refresh, "refresh", "do not look at the host; believe what was seen last"))
	flags = append(flags, r.inputFlags(&p.in)...)
	return append(flags,
		boolFlag(&p.takeOver, "take-over", "from now on the state serves this directory, though it served another until now"),
		lockFlag(&p.lockWait),
	)
}

// check finds addresses without their type, and combinations that mean nothing.
func (r *run) check(cmd *cli.Command, p *planning) error {
	p.options.NoRefresh = !p.refresh
	if len(p.short) > 0 {
		x := p.short[0]
		if desired, _, err := r.evaluate(p.in); err == nil {
			full := map[string]string{} // by what follows the type
			all := withWhole(addressesOf(desired, true))
			if x.flag != "replace" { // the last of one name wins
				all = slices.Concat(modulesOver(all), withWhole(addressesOf(desired, false)), all)
			}
			for _, address := range all {
				_, name, _ := strings.Cut(address, ".")
				full[name] = address
			}
			if best := closest(x.text, slices.Collect(maps.Keys(full))); best != "" {
				return usage(cmd, "-%s: %q is not an address; did you mean %s?", x.flag, x.text, full[best])
			}
		}
		return usage(cmd, "-%s: %q is not an address; write TYPE.NAME, TYPE.NAME[\"KEY\"] or TYPE.NAME[0], such as sandbox.%s", x.flag, x.text, x.text)
	}
	switch o := p.options; {
	case o.Destroy && o.RefreshOnly:
		return usage(cmd, "-destroy and -refresh-only exclude each other")
	case o.Destroy && len(o.Replace) > 0:
		return usage(cmd, "-destroy and -replace exclude each other")
	case o.RefreshOnly && o.NoRefresh:
		return usage(cmd, "-refresh-only and -refresh=false exclude each other")
	case o.RefreshOnly && len(o.Replace) > 0:
		return usage(cmd, "-refresh-only and -replace exclude each other")
	}
	return nil
}

// request is what the engine is asked, with the warnings of reading the files.
func (p *planning) request() (reconcile.PlanRequest, config.Diagnostics, error) {
	src, diags, err := source(p.in)
	if err != nil {
		return reconcile.PlanRequest{}, nil, err
	}
	return reconcile.PlanRequest{Source: src, Options: p.options, TakeOver: p.takeOver, LockWait: p.lockWait}, diags, nil
}

func (r *run) planCommand() *cli.Command {
	var p planning
	var out string
	detailed, input := false, true
	return &cli.Command{
		Name: "plan", Usage: "show what apply would do", UsageText: "pinfold plan [flags]", Category: "change",
		Description: "Compares the files here with what is recorded and with the host, and prints every step with its cause and what it costs. Nothing is changed. Values of variables are never asked for: give them with -var, -var-file or PINFOLD_VAR_NAME.\n\nExit codes: 0 done; 1 error; 2 with -detailed-exitcode when there are changes.",
		Flags: append([]cli.Flag{
			stringFlag(&out, "out", "save the plan to `FILE`, for 'pinfold apply FILE'; what in it is sensitive only this state can read"),
			boolFlag(&detailed, "detailed-exitcode", "exit 2 when there are changes, 0 when there are none"),
			boolFlag(&input, "input", "never ask; a plan asks for nothing, also without it"),
			r.jsonFlag(),
		}, r.planningFlags(&p, false)...),
		Metadata: example("sudo pinfold plan", "sudo pinfold plan -out next.plan && sudo pinfold apply next.plan"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			if err := r.check(cmd, &p); err != nil {
				return err
			}
			return r.plan(ctx, &p, out, detailed)
		},
	}
}

func (r *run) plan(ctx context.Context, p *planning, out string, detailed bool) error {
	request, warned, err := p.request()
	if err != nil {
		return r.noFiles(ctx, p, err)
	}
	// A plan to be applied later needs a state it can be tied to.
	service, err := r.open(ctx, need{verb: "plan", does: "look at the host and at the records", changes: out != "", lockWait: p.lockWait})
	if err != nil {
		return err
	}
	defer service.Close()
	request.Save = out != ""
	result, err := quoting{service, request.Source}.Plan(ctx, request)
	if err != nil {
		return withWarnings(err, warned)
	}
	all := view.Merge(warned, view.PlanDiagnostics(result))
	if r.json {
		if err := view.PlanJSON(r.out, result, warned); err != nil {
			return err
		}
	} else {
		r.out.Plan(result, p.options.Destroy)
		r.complain(all)
	}
	if all.HasErrors() {
		return exitWith(exitError)
	}
	if out != "" {
		if err := writePlan(out, &reconcile.PlanFile{FormatVersion: reconcile.PlanFileVersion, Destroy: request.Options.Destroy, Result: *result}); err != nil {
			return err
		}
		if !r.json {
			r.out.Linef("\nSaved the plan. To do exactly this, run: pinfold apply %s\n", shellWord(out))
		}
	}
	if detailed && view.Changes(result.Plan) {
		return exitWith(exitChanges)
	}
	return nil
}

// withWarnings keeps what was warned of beside an error.
func withWarnings(err error, warned config.Diagnostics) error {
	if len(warned) == 0 {
		return err
	}
	return &warnedError{err, warned}
}

type warnedError struct {
	error
	warned config.Diagnostics
}

func (w *warnedError) Unwrap() error { return w.error }

// shellWord quotes a path for a shell where it needs that.
func shellWord(path string) string {
	for _, c := range path {
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '/' || c == '.' || c == '_' || c == '-' || c == ','
		if !plain {
			return fmt.Sprintf("%q", path)
		}
	}
	return path
}
