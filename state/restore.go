package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

// Restoration is what a Restore is to do.
type Restoration struct {
	Backup string // the file
	// Lineage is whose the state dir is known to be, if it is; a backup of another
	// lineage needs Force.
	Lineage string
	Force   bool
	Check   Check
	// Fill, when set, adds to what the backup records, as the documents of this
	// schema are; one of an older schema stays as it is.
	Fill func(Tx) error
	// DryRun tells what would be, or why it is refused, and changes nothing.
	DryRun bool
}

// Restored tells what a Restore did.
type Restored struct {
	Backup *Report
	Serial uint64 // beyond that of the backup and of what was there
	Aside  string // where what was there is now; empty: nothing was
}

// Restore puts a copy of the backup in the place of state.db, which is moved aside.
// Nobody may have that open. A backup in which anything is wrong is refused, and
// nothing is changed.
func Restore(ctx context.Context, o Options, to Restoration) (*Restored, error) {
	from, err := openFile(to.Backup)
	if err != nil {
		return nil, err
	}
	defer release(from)
	lock, err := o.prepare(false)
	if err != nil {
		return nil, err
	}
	if err := notItself(from, to.Backup, lock.path); err != nil {
		return nil, err
	}
	seized, err := seize(ctx, lock, o.Verb)
	if err != nil {
		return nil, err
	}
	defer seized.release()
	fresh, err := freshPath(lock.dir)
	if err != nil {
		return nil, err
	}
	r, err := to.build(lock, seized.file, from, fresh)
	if err != nil || to.DryRun {
		os.Remove(fresh)
		return r, err
	}
	r.Aside, err = place(lock, fresh)
	return r, err
}

func notItself(from *os.File, backup, path string) error {
	a, err := from.Stat()
	if err != nil {
		return fmt.Errorf("cannot look at %s: %w", backup, bare(err))
	}
	if b, err := os.Lstat(path); err == nil && os.SameFile(a, b) {
		return fmt.Errorf("%s is the state itself, not a backup of it; nothing was changed", backup)
	}
	return nil
}

// build makes the file fresh from the backup, which is read as it will be, not as it
// was when it was looked at.
func (to Restoration) build(lock lockWait, old, from *os.File, fresh string) (*Restored, error) {
	// What is no backup at all is not copied first: it may be of any size.
	if err := verify(from); err != nil && !errors.Is(err, errIO) {
		return nil, fmt.Errorf("cannot restore %s: %w: %w; nothing was changed: take another backup", to.Backup, ErrDamaged, err)
	}
	f, err := os.OpenFile(fresh, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, explain(lock.path, "write", err)
	}
	defer f.Close()
	if _, err := io.Copy(f, from); err != nil {
		return nil, explain(lock.path, "restore", err)
	}
	r := report(f, to.Backup, Schema, to.Check)
	if b, ok := backupFile(to.Backup); ok {
		r.At = b.At
	}
	serial, lineage := max(r.Serial, foremost(lock)), to.Lineage
	if old != nil {
		was := report(old, lock.path, Schema, nil)
		serial = max(serial, was.Serial)
		if was.Lineage != "" {
			lineage = was.Lineage
		}
	}
	switch {
	case r.later():
		return nil, fmt.Errorf("cannot restore %s: %w: it has schema %d, this pinfold reads schema %d; a newer pinfold wrote it; nothing was changed", r.Path, ErrSchema, r.Schema, Schema)
	case !r.Sound():
		return nil, fmt.Errorf("cannot restore %s: %w: %s; nothing was changed: take another backup", r.Path, ErrDamaged, some(r.Problems))
	case r.Schema < current.oldest():
		return nil, fmt.Errorf("cannot restore %s: %w: it has schema %d, which this pinfold cannot convert; nothing was changed", r.Path, ErrSchema, r.Schema)
	case lineage != "" && lineage != r.Lineage && !to.Force:
		return nil, fmt.Errorf("cannot restore %s: %w: it is of lineage %s, the state dir %s of %s, so it knows nothing of what that one made on this host; -force puts it there all the same; nothing was changed",
			r.Path, ErrLineage, r.Lineage, lock.dir, lineage)
	}
	serial = beyond(serial)
	fill := to.Fill
	if r.Schema != Schema {
		fill = nil
	}
	if err := amend(fresh, serial, fill); err != nil {
		return nil, explain(lock.path, "restore", err)
	}
	return &Restored{Backup: r, Serial: serial}, nil
}

// amend sets the serial of a state that nobody else has, and adds to its documents.
func amend(path string, serial uint64, fill func(Tx) error) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType, NoStatistics: true})
	if err != nil {
		return err
	}
	err = db.Update(func(t *bolt.Tx) error {
		value := strconv.AppendUint(nil, serial, 10)
		err := t.Bucket([]byte(metaBucket)).Put([]byte(metaSerial), seal(metaBucket, metaSerial, value))
		if err != nil || fill == nil {
			return err
		}
		return (&tx{store: &store{path: path}, bolt: t}).run(fill)
	})
	return errors.Join(err, db.Close())
}
