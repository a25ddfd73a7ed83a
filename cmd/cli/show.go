package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
)

func (r *run) showCommand() *cli.Command {
	var in config.Inputs
	var effective bool
	return &cli.Command{
		Name: "show", Usage: "show effective values, or a saved plan", Category: "config",
		UsageText:   "pinfold show -effective [flags] SANDBOX\n       pinfold show [-json] PLANFILE",
		Description: "With -effective it prints every value a sandbox ends up with and the file and line each came from, without looking at the host. Otherwise it prints a plan that 'plan -out' saved.",
		Flags:       append([]cli.Flag{boolFlag(&effective, "effective", "print the values of SANDBOX, as the files here declare it")}, append(r.inputFlags(&in), r.jsonFlag())...),
		Metadata:    example("pinfold show -effective sandbox.py", "pinfold show next.plan"),
		Action: func(_ context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, 1)
			if err != nil {
				return err
			}
			if effective {
				return r.showEffective(in, args[0])
			}
			if len(in.Order) > 0 {
				return usage(cmd, "-var and -var-file go with -effective; a saved plan has its values")
			}
			return r.showPlan(args[0])
		},
	}
}

func (r *run) showEffective(in config.Inputs, text string) error {
	desired, diags, err := r.evaluate(in)
	if err != nil {
		return err
	}
	if !r.json {
		r.complain(diags)
	}
	address, err := sandboxAddress(text)
	if err != nil {
		return err
	}
	short := address
	address = inFull(address)
	var names, ends []string
	for i := range desired.Sandboxes {
		if a := desired.Sandboxes[i].Address; a == address {
			ends = nil
			break
		} else if strings.HasSuffix(a, ".sandbox."+short) {
			ends = append(ends, a)
		}
	}
	switch len(ends) {
	case 0:
	case 1:
		address = ends[0]
	default:
		slices.Sort(ends)
		return failure(fmt.Sprintf("%q is ambiguous: %s", text, strings.Join(ends, ", ")), "Write its address in full.")
	}
	for i := range desired.Sandboxes {
		x := &desired.Sandboxes[i]
		if x.Address == address {
			if r.json {
				return view.EffectiveJSON(r.out, x)
			}
			r.out.Effective(x)
			return nil
		}
		names = append(names, x.Address)
	}
	return undeclared(text, address, names)
}

// undeclared is the error for a sandbox that the files do not have.
func undeclared(text, address string, names []string) error {
	return failure("no sandbox "+text+" is declared here"+nearest(address, names), "The files of this directory declare %s.", count(names))
}

func count(names []string) string {
	switch len(names) {
	case 0:
		return "no sandbox"
	case 1:
		return "only " + names[0]
	}
	const most = 8
	text := ""
	for i, name := range names {
		if i == most {
			return text + " and others"
		}
		if i > 0 {
			text += ", "
		}
		text += name
	}
	return text
}

func (r *run) showPlan(path string) error {
	saved, err := readPlan(path)
	if err != nil {
		return err
	}
	if r.json {
		return view.PlanJSON(r.out, &saved.Result, nil)
	}
	r.out.Plan(&saved.Result, saved.Destroy)
	r.complain(view.PlanDiagnostics(&saved.Result))
	return nil
}
