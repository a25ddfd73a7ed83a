package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/reconcile"
)

// kinds are what a word of -ignore may be beside an address.
var kinds = []string{"sandbox", "network", "volume", "image"}

func (r *run) driftCommand() *cli.Command {
	var request reconcile.DriftRequest
	var lockWait time.Duration
	return &cli.Command{
		Name: "drift", Usage: "tell how the host differs from what is recorded", UsageText: "pinfold drift [flags]", Category: "change",
		Description: "Looks at the host and tells what is not as it was left: what was killed, lost, taken away or broken from outside, deadlines that have passed and were not acted on, and what 'pinfold apply' would do about each with the files as they were applied last. What the files say now is not looked at, and neither host nor state are changed. An operator's hold, an idle sandbox at rest and a process that ended by itself are no drift.\n\nExit codes: 0 there is none; 2 there is; 1 error.",
		Flags: []cli.Flag{
			custom("ignore", "do not tell of `ADDRESS|KIND`: one thing, all instances of a block, a module, or every sandbox, network, volume or image; may be repeated", func(s string) error {
				word, err := driftWord(s)
				request.Ignore = append(request.Ignore, word)
				return err
			}),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold drift", "sudo pinfold drift -ignore network -ignore sandbox.scratch || mail -s drift root </dev/null"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			return r.drift(ctx, request, lockWait)
		},
	}
}

// driftWord reads a kind, or the address of a thing or module.
func driftWord(text string) (string, error) {
	if slices.Contains(kinds, text) {
		return text, nil
	}
	if address, err := anyName(text); err == nil {
		return address, nil
	}
	return "", fmt.Errorf("%q is neither a kind (sandbox, network, volume, image) nor an address, such as sandbox.py%s", text, didYouMean(text, kinds, ""))
}

func (r *run) drift(ctx context.Context, request reconcile.DriftRequest, lockWait time.Duration) error {
	service, err := r.open(ctx, need{verb: "drift", does: "look at the host and at the records", lockWait: lockWait})
	if err != nil {
		return err
	}
	defer service.Close()
	result, err := service.Drift(ctx, request)
	if err != nil {
		return err
	}
	if r.json {
		if err := view.DriftJSON(r.out, result); err != nil {
			return err
		}
	} else {
		r.out.Drift(result)
	}
	if result.Drifted() {
		return exitWith(exitChanges)
	}
	return nil
}
