package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const fileName = "state.db"

// Open opens the state of o.Dir, and makes it when there is none and o.ReadOnly
// is false. It waits at most o.Wait for another process (0: tries once) and no
// longer than ctx, then returns a *LockedError or ctx's cause. Every page in use is
// checked before the first byte may be written, so a refused file is never
// changed: ErrNotState, ErrDamaged, ErrSchema. A document's checksum is checked
// when that is read.
func Open(ctx context.Context, o Options) (Store, error) {
	return openAs(ctx, o, current)
}

func openAs(ctx context.Context, o Options, format format) (Store, error) {
	lock, err := o.prepare(o.ReadOnly)
	if err != nil {
		return nil, err
	}
	f, err := openLocked(ctx, lock, o.ReadOnly)
	if err != nil {
		return nil, err
	}
	holder := announce(lock.dir, o.Verb)
	s, err := openBolt(f, lock.path, o, format)
	if err != nil {
		holder.withdraw()
		release(f)
		return nil, err
	}
	s.holder, s.served = holder, strings.HasPrefix(o.Verb, "agent")
	if !o.ReadOnly {
		if _, err := s.BackupDaily(); err != nil {
			o.warn(err)
		}
	}
	return s, nil
}

// prepare checks the state dir, or makes it, and tells how long to wait there.
func (o Options) prepare(readOnly bool) (lockWait, error) {
	if o.Dir == "" {
		return lockWait{}, errors.New("cannot open state: no state dir given; set -state-dir")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return lockWait{}, fmt.Errorf("cannot open state dir %s: %w", o.Dir, err)
	}
	if err := prepareDir(dir, !readOnly); err != nil {
		return lockWait{}, err
	}
	lock := lockWait{path: filepath.Join(dir, fileName), dir: dir, deadline: time.Now().Add(o.Wait), started: time.Now()}
	if o.Waiting != nil {
		var once sync.Once
		lock.waiting = func(h Holder) { once.Do(func() { o.Waiting(h) }) }
	}
	return lock, nil
}

func (o Options) warn(err error) {
	if o.Warn != nil {
		o.Warn(err)
	}
}

// openLocked returns state.db open and locked. It starts again when the path
// came to mean another file while it waited: a lock on a file that was renamed
// away protects nothing.
func openLocked(ctx context.Context, lock lockWait, readOnly bool) (*os.File, error) {
	flag, how := os.O_RDWR, unix.LOCK_EX
	if readOnly {
		flag, how = os.O_RDONLY, unix.LOCK_SH
	}
	for {
		// O_NONBLOCK: a FIFO of that name must not hang us. It means nothing for
		// a regular file.
		f, err := os.OpenFile(lock.path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		switch {
		case errors.Is(err, fs.ErrNotExist) && readOnly:
			return nil, noState(lock.path)
		case errors.Is(err, fs.ErrNotExist):
			if err := create(ctx, lock); err != nil {
				return nil, err
			}
			continue
		case errors.Is(err, unix.ELOOP):
			return nil, notState(lock.path, errors.New(isLink))
		case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
			return nil, notState(lock.path, errors.New(isNoFile))
		case err != nil:
			return nil, fmt.Errorf("cannot open state %s: %w; run as root, or choose another -state-dir", lock.path, bare(err))
		}
		same, err := lockFile(ctx, lock, f, how)
		if err != nil {
			release(f)
			return nil, err
		}
		if same {
			return f, nil
		}
		release(f)
	}
}

// lockFile locks f and tells whether the path still means f.
func lockFile(ctx context.Context, lock lockWait, f *os.File, how int) (same bool, err error) {
	have, err := f.Stat()
	if err != nil {
		return false, fmt.Errorf("cannot look at state %s: %w", lock.path, bare(err))
	}
	if !have.Mode().IsRegular() {
		return false, notState(lock.path, errors.New(isNoFile))
	}
	if err := lock.acquire(ctx, f, how); err != nil {
		return false, err
	}
	now, err := os.Lstat(lock.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot look at state %s: %w", lock.path, bare(err))
	}
	return err == nil && os.SameFile(have, now), nil
}

// openBolt checks the locked file f and puts a store on it. f is the store's
// when it succeeds, and still the caller's when it fails.
func openBolt(f *os.File, path string, o Options, format format) (*store, error) {
	if err := verify(f); err != nil {
		if errors.Is(err, errIO) {
			return nil, fmt.Errorf("cannot read state %s: %w", path, err)
		}
		if errors.Is(err, errForeign) {
			return nil, notState(path, err)
		}
		return nil, unsound(path, strings.TrimPrefix(err.Error(), "it is damaged: "))
	}
	db, err := boltOn(f, path, o.ReadOnly)
	if err != nil {
		return nil, err
	}
	s := &store{path: path, file: f, db: db, readOnly: o.ReadOnly, reads: format.schema}
	if s.info, err = f.Stat(); err != nil {
		s.closeBolt()
		return nil, fmt.Errorf("cannot look at state %s: %w", path, bare(err))
	}
	if err := s.identify(format, o); err != nil {
		if !s.stuck.Load() {
			s.closeBolt()
		}
		return nil, err
	}
	if !o.ReadOnly {
		// The documents may hold secrets; a copy put here may be open to all.
		if err := f.Chmod(0o600); err != nil {
			s.closeBolt()
			return nil, fmt.Errorf("cannot make state %s private: %w", path, bare(err))
		}
		s.startWriter()
	}
	return s, nil
}

// boltOn opens bbolt on the file f, whose lock we have already: a flock belongs
// to the open file, so bbolt's own on the same one succeeds at once.
//
// The freelist is written with each commit (NoFreelistSync false): it costs a
// page or so, and saves scanning all pages at each open, which every command
// without an agent does. It is kept as a hash map, which finds free pages without
// walking the list. The mapping starts at 256 MiB of address space (not memory;
// room for some 100,000 sandboxes), so that a commit hardly ever has to remap and
// thus wait for a long View. The file itself grows in steps of 1 MiB.
func boltOn(f *os.File, path string, readOnly bool) (db *bolt.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = unsound(path, fmt.Sprint(p))
		}
	}()
	defer faultsPanic()()
	db, err = bolt.Open(path, 0o600, &bolt.Options{
		OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return f, nil },
		ReadOnly:        readOnly,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: 256 << 20,
		NoStatistics:    true,
	})
	if err != nil {
		return nil, explain(path, "open", err)
	}
	db.AllocSize = 1 << 20
	return db, nil
}

// identify refuses what is not ours, and converts what is older.
func (s *store) identify(format format, o Options) error {
	schema, err := s.schema()
	switch {
	case err != nil:
		return err
	case schema > format.schema:
		return schemaLater(s.path, schema)
	case schema < format.oldest():
		return fmt.Errorf("cannot open state %s: %w: it has schema %d, this pinfold reads schema %d and cannot convert it; use the older pinfold that wrote it, or another -state-dir; nothing was changed", s.path, ErrSchema, schema, format.schema)
	case schema < format.schema && o.ReadOnly:
		return fmt.Errorf("cannot open state %s: %w: it has schema %d and is converted to schema %d by the next command that changes anything, or by the agent; looking changes nothing", s.path, ErrSchema, schema, format.schema)
	case schema < format.schema:
		if err := s.convert(format, schema, o.warn); err != nil {
			return err
		}
	}
	return s.View(func(t Tx) error {
		for _, name := range documentBuckets {
			if t.(*tx).bolt.Bucket([]byte(name)) == nil {
				return unsound(s.path, fmt.Sprintf("bucket %s is missing", name))
			}
		}
		if err := t.(*tx).wholeMeta(); err != nil {
			return err
		}
		s.lineage = t.Meta(metaLineage)
		if s.lineage == "" {
			return unsound(s.path, "it has no lineage")
		}
		t.Serial()
		return nil
	})
}

// schema is the number of the file's schema.
func (s *store) schema() (schema int, err error) {
	err = s.View(func(t Tx) error {
		meta := t.(*tx).bolt.Bucket([]byte(metaBucket))
		if meta == nil {
			return notState(s.path, errors.New("it is a bbolt file of another program: it has no meta bucket"))
		}
		text := string(meta.Get([]byte(metaSchema)))
		if text == "" {
			return notState(s.path, errors.New("it is a bbolt file of another program: its meta has no schema"))
		}
		if schema, err = strconv.Atoi(text); err != nil {
			return notState(s.path, fmt.Errorf("its schema is %.20q, not a number", text))
		}
		return nil
	})
	return schema, err
}
