package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// giveUp forgets a sandbox and leaves what is on the host as it is: its process, files,
// network and claims. The instance bears a mark from then on that nobody touches it. What
// is left of earlier incarnations goes first: nothing would ever know of it again.
func (e *actor) giveUp(ctx context.Context, rec *plan.Sandbox, cause string) error {
	if doomed(rec) {
		if err := e.removeDoomed(ctx, rec); err != nil {
			return fmt.Errorf("cannot forget %s: %w", rec.Address, err)
		}
	}
	for _, d := range slices.Clone(rec.Deposed) {
		if err := e.removeDeposed(ctx, rec, d.Instance.ID); err != nil {
			return fmt.Errorf("cannot forget %s: %w", rec.Address, err)
		}
	}
	begun := intent(opForget, rec)
	begun.Why = cause
	in, err := e.begin(begun, nil)
	if err != nil {
		return err
	}
	return e.finishForget(ctx, in, rec)
}

// finishForget marks the instance, and the record goes. Where the mark cannot be made,
// the record stays as it was.
func (e *actor) finishForget(ctx context.Context, in *Intent, rec *plan.Sandbox) error {
	if rec.Instance != nil {
		if err := e.noteNow(rec); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			e.log.Warn("the note beside a sandbox that is given up is not its newest", "address", rec.Address, "error", err)
		}
	}
	for _, id := range remains(rec) {
		if err := e.host.Release(ctx, id); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			err = fmt.Errorf("cannot forget %s: %w", rec.Address, err)
			for _, id := range remains(rec) {
				if undo := e.host.Reclaim(ctx, id); undo != nil && !errors.Is(undo, runtime.ErrNotFound) {
					err = errors.Join(err, undo)
				}
			}
			return e.stepFailed(rec, in, err, nil)
		}
	}
	e.alloc.leave(rec)
	w := &write{bump: true}
	set(&w.sandboxes, rec.Address, nil)
	set(&w.ended, rec.Address, nil)
	return e.end(in, w.event(e.eventOf(rec, "forget", in.Why, "left on the host as it is")))
}

// remains are the instances of a sandbox that hold something: its own, and the one
// whose files the next create was to carry over.
func remains(rec *plan.Sandbox) []string {
	var ids []string
	if rec.Instance != nil {
		ids = append(ids, rec.Instance.ID)
	}
	return appendOnce(ids, rec.CarryFrom)
}
