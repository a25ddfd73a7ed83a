package cli

import (
	"context"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/reconcile"
)

func (r *run) gcCommand() *cli.Command {
	var request reconcile.GCRequest
	var lockWait time.Duration
	return &cli.Command{
		Name: "gc", Usage: "find and remove what was left half-made", UsageText: "pinfold gc [flags]", Category: "data",
		Description: "Compares what bears this state's mark on the host with what is recorded. What the journal proves half-made is removed. All else is only told of: what has a mark and no record, and what has a record and is not there. What was released is left alone, and what has no mark is never touched. -adopt takes an instance back on record, with its process, network and volumes. -remove takes away by name what was told of, if no process lives in it; data goes with it.",
		Flags: []cli.Flag{
			boolFlag(&request.DryRun, "dry-run", "tell what would be removed, and change nothing"),
			listFlag(&request.Adopt, "adopt", "take the instance with this `ID` back on record, as what lies beside it says; its process is not touched; may be repeated"),
			listFlag(&request.Remove, "remove", "also remove the instance, network or volume with this `ID` that has no record, data included; may be repeated"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold gc -dry-run", "sudo pinfold gc -adopt 8b2e41f0a7c3", "sudo pinfold gc -remove 3f2a9c01d4e7"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			result, err := call(ctx, r, need{verb: "gc", does: "look for what was left on the host", changes: !request.DryRun, lockWait: lockWait}, func(s reconcile.Service) (*reconcile.GCResult, error) { return s.GC(ctx, request) })
			if err != nil {
				return err
			}
			if r.json {
				return view.GCJSON(r.out, result)
			}
			r.out.Collected(result)
			return nil
		},
	}
}

// orphanCandidates are the ids of those that have no record and fit.
func (r *run) orphanCandidates(ctx context.Context, fits func(*reconcile.Orphan) bool) (out []candidate) {
	r.peek(ctx, func(ctx context.Context, s reconcile.Service) {
		all, err := s.GC(ctx, reconcile.GCRequest{DryRun: true})
		if err != nil {
			return
		}
		for _, o := range all.Orphans {
			if o.Kind != "record" && o.Action == reconcile.OrphanReported && fits(&o) {
				out = append(out, candidate{o.ID, o.Kind + " " + o.Address})
			}
		}
	})
	return out
}
