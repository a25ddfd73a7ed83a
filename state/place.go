package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A state.db that is damaged, or that a backup replaces, is moved aside and never
// deleted: what can still be read in it may be wanted.

// stampLayout is an instant in a file's name; names sort by it.
const stampLayout = "20060102T150405Z"

const asideSuffix = ".bad-"

// Rebuild makes a new state.db of a given lineage with what fill puts there, whole
// or not at all. It refuses where a state.db can be read, or was written by a newer
// pinfold; a damaged one is moved aside, and Rebuild tells where to. The serial is
// beyond those of the file that was there before. fill runs under the locks that
// others wait for, so it must have at hand what it puts.
func Rebuild(ctx context.Context, o Options, lineage string, fill func(Tx) error) (aside string, err error) {
	if !uuid.MatchString(lineage) {
		return "", fmt.Errorf("cannot rebuild the state in %s: lineage %q is no UUID", o.Dir, lineage)
	}
	lock, err := o.prepare(false)
	if err != nil {
		return "", err
	}
	seized, err := seize(ctx, lock, o.Verb)
	if err != nil {
		return "", err
	}
	defer seized.release()
	before := foremost(lock)
	if f := seized.file; f != nil {
		r := report(f, lock.path, Schema, nil)
		before = max(before, r.Serial)
		switch {
		case r.later():
			return "", schemaLater(lock.path, r.Schema)
		case r.Sound():
			return "", fmt.Errorf("%w: %s has lineage %s and serial %d; move it away first if its records are to be made anew", ErrReadable, lock.path, r.Lineage, r.Serial)
		}
	}
	fresh, err := freshPath(lock.dir)
	if err != nil {
		return "", err
	}
	if err := build(fresh, lineage, beyond(before), fill); err != nil {
		os.Remove(fresh)
		return "", explain(lock.path, "rebuild", err)
	}
	return place(lock, fresh)
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// beyond is a serial that no file of before has: serials count changes, which are
// fewer than microseconds, since each is a commit of its own or one of a few in it.
// So a plan that was saved before fits no more, though of the file that it was made
// of nothing can be read.
func beyond(serial uint64) uint64 {
	return max(serial+1, uint64(max(0, time.Now().UnixMicro())))
}

// foremost is the greatest serial that the backups and the files that were moved
// aside tell of.
func foremost(lock lockWait) (serial uint64) {
	backups, _ := Backups(lock.dir) // what cannot be read tells nothing
	for _, b := range backups {
		serial = max(serial, b.Serial)
	}
	entries, _ := os.ReadDir(lock.dir)
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), fileName+asideSuffix) {
			continue
		}
		if r, err := VerifyFile(filepath.Join(lock.dir, e.Name()), nil); err == nil {
			serial = max(serial, r.Serial)
		}
	}
	return serial
}

// seizure is a state dir whose state.db nobody has open, and nobody makes.
type seizure struct {
	file   *os.File // state.db, locked; nil when there is none, or none that is a file
	dir    *os.File
	holder announcement
}

func (s *seizure) release() {
	if s.dir != nil {
		release(s.dir)
	}
	if s.file != nil {
		release(s.file)
	}
	s.holder.withdraw()
}

// seize waits until nobody has state.db open. The file is locked before the
// directory, as everywhere.
func seize(ctx context.Context, lock lockWait, verb string) (*seizure, error) {
	for {
		s, same, err := trySeize(ctx, lock, verb)
		if err != nil || !same {
			s.release()
		}
		if err != nil {
			return nil, err
		}
		if same {
			return s, nil
		}
	}
}

// trySeize tells also whether the path still means what was locked.
func trySeize(ctx context.Context, lock lockWait, verb string) (s *seizure, same bool, err error) {
	s = new(seizure)
	before, err := os.Lstat(lock.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, false, fmt.Errorf("cannot look at state %s: %w", lock.path, bare(err))
	}
	if err == nil && before.Mode().IsRegular() {
		f, err := os.OpenFile(lock.path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) {
			return s, false, nil
		}
		if err != nil {
			return s, false, fmt.Errorf("cannot open state %s: %w; run as root, or choose another -state-dir", lock.path, bare(err))
		}
		s.file = f
		if err := lock.acquire(ctx, f, unix.LOCK_EX); err != nil {
			return s, false, err
		}
		if before, err = f.Stat(); err != nil {
			return s, false, fmt.Errorf("cannot look at state %s: %w", lock.path, bare(err))
		}
	}
	s.holder = announce(lock.dir, verb)
	if s.dir, err = os.Open(lock.dir); err != nil {
		return s, false, fmt.Errorf("cannot open state dir %s: %w", lock.dir, bare(err))
	}
	if err := lock.acquireDir(ctx, s.dir); err != nil {
		return s, false, err
	}
	now, err := os.Lstat(lock.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, before == nil, nil
	case err != nil:
		return s, false, fmt.Errorf("cannot look at state %s: %w", lock.path, bare(err))
	}
	return s, before != nil && os.SameFile(before, now), nil
}

// place makes the file fresh the state.db, in one step, and moves aside what was
// there. The caller has the locks. When it fails, fresh is gone and state.db is
// what it was, or (ErrOutcome) it may be either.
func place(lock lockWait, fresh string) (aside string, err error) {
	aside, err = setAside(lock.path)
	if err == nil {
		err = os.Rename(fresh, lock.path)
	}
	if err != nil {
		os.Remove(fresh)
		return aside, explain(lock.path, "put in place", err)
	}
	if err := syncDir(lock.dir); err != nil {
		return aside, explain(lock.path, "put in place", err)
	}
	return aside, nil
}

// setAside gives what is at the path another name: a file gets it beside its own,
// so that there is no moment without a state.db. It returns "" where nothing is.
func setAside(path string) (string, error) {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	stamp := time.Now().UTC().Format(stampLayout)
	for n := 1; ; n++ {
		aside := path + asideSuffix + stamp
		if n > 1 {
			aside += fmt.Sprintf("-%d", n)
		}
		switch err := alias(path, aside, fi.Mode()); err {
		case nil:
			return aside, nil
		case unix.EEXIST:
		default:
			return "", fmt.Errorf("cannot move %s aside: %w", path, err)
		}
	}
}

// alias names a file a second time. Where that cannot be, it renames.
func alias(path, name string, mode fs.FileMode) error {
	if mode.IsRegular() {
		switch err := unix.Link(path, name); err {
		case unix.EPERM, unix.EOPNOTSUPP, unix.EMLINK: // not on this file system
		default:
			return err
		}
	}
	return unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, name, unix.RENAME_NOREPLACE)
}
