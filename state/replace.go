package state

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// ErrOlder: Replace by what is older than the state.
var ErrOlder = errors.New("the state has changed since")

// Replacement is what a Replace puts in the place of state.db.
type Replacement struct {
	Name    string // of what it is made of, for the words
	Lineage string // of the documents
	Serial  uint64 // at which they were read
	// Force also takes documents of another lineage, older ones, and the place of a
	// state in which steps that were cut off wait for their end.
	Force bool
	// Fill puts the documents, which are of this schema. It runs under the locks that
	// others wait for, so it must have them at hand.
	Fill func(Tx) error
	// DryRun tells what would be, or why it is refused, and changes nothing.
	DryRun bool
}

// Replace makes a state of documents and puts it in the place of state.db, which is
// moved aside. Nobody may have that open. A refused one changes nothing. Restored has
// no Backup.
func Replace(ctx context.Context, o Options, to Replacement) (*Restored, error) {
	if !uuid.MatchString(to.Lineage) {
		return nil, fmt.Errorf("cannot put %s in the place of the state: lineage %q is no UUID; nothing was changed", to.Name, to.Lineage)
	}
	lock, err := o.prepare(false)
	if err != nil {
		return nil, err
	}
	seized, err := seize(ctx, lock, o.Verb)
	if err != nil {
		return nil, err
	}
	defer seized.release()
	serial := max(to.Serial, foremost(lock))
	if f := seized.file; f != nil {
		was := report(f, lock.path, Schema, nil)
		if err := to.fits(was); err != nil {
			return nil, fmt.Errorf("cannot put %s in the place of %s: %w; nothing was changed", to.Name, lock.path, err)
		}
		serial = max(serial, was.Serial)
	}
	fresh, err := freshPath(lock.dir)
	if err != nil {
		return nil, err
	}
	done := &Restored{Serial: beyond(serial)}
	if err := build(fresh, to.Lineage, done.Serial, to.Fill); err != nil || to.DryRun {
		os.Remove(fresh)
		if err != nil {
			err = explain(lock.path, "write", err)
		}
		return done, err
	}
	done.Aside, err = place(lock, fresh)
	return done, err
}

// fits tells why the documents may not take the place of what is there.
func (to Replacement) fits(was *Report) error {
	switch {
	case was.later():
		return fmt.Errorf("%w: it has schema %d, this pinfold reads schema %d", ErrSchema, was.Schema, Schema)
	case !was.Sound():
		return fmt.Errorf("%w: %s; restore a backup instead", ErrDamaged, some(was.Problems))
	case to.Force:
		return nil
	case was.Lineage != to.Lineage:
		return fmt.Errorf("%w: that is of lineage %s, this of %s; -force puts it there all the same", ErrLineage, was.Lineage, to.Lineage)
	case to.Serial < was.Serial:
		return fmt.Errorf("%w: that has serial %d, this %d; pull it again, or give -force to forget what changed", ErrOlder, was.Serial, to.Serial)
	case was.Documents[Journal] > 0:
		return errors.New("steps that were cut off are not finished or undone there; any command that changes something, such as apply, does that first; -force forgets them")
	}
	return nil
}
