package state

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
)

// create makes state.db, whole or not at all: it is built and synced under
// another name and then renamed. Creators take turns by a lock on the directory,
// so that nobody's new file, whose lineage may be in use, is renamed over.
func create(ctx context.Context, lock lockWait) error {
	d, err := os.Open(lock.dir)
	if err != nil {
		return fmt.Errorf("cannot open state dir %s: %w", lock.dir, bare(err))
	}
	defer release(d)
	if err := lock.acquireDir(ctx, d); err != nil {
		return err
	}
	if _, err := os.Lstat(lock.path); err == nil {
		return nil // another process was first
	} else if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot look at state %s: %w", lock.path, bare(err))
	}
	fresh := filepath.Join(lock.dir, fileName+".new")
	if err := os.RemoveAll(fresh); err != nil { // of a creator that was killed
		return fmt.Errorf("cannot remove half-made state %s: %w", fresh, bare(err))
	}
	if err := build(fresh, time.Now()); err != nil {
		os.Remove(fresh)
		return explain(lock.path, "create", err)
	}
	if err := os.Rename(fresh, lock.path); err != nil {
		os.Remove(fresh)
		return explain(lock.path, "create", err)
	}
	if err := syncDir(lock.dir); err != nil {
		return explain(lock.path, "create", err)
	}
	return nil
}

// build writes an empty state of a new lineage to path, in one transaction.
func build(path string, now time.Time) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType, NoStatistics: true})
	if err != nil {
		return err
	}
	err = db.Update(func(t *bolt.Tx) error {
		for _, name := range documentBuckets {
			if _, err := t.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		meta, err := t.CreateBucket([]byte(metaBucket))
		if err != nil {
			return err
		}
		if err := meta.Put([]byte(metaSchema), []byte(strconv.Itoa(Schema))); err != nil {
			return err
		}
		for key, value := range map[string]string{
			metaLineage: newUUID(),
			metaSerial:  "0",
			metaCreated: now.UTC().Format(time.RFC3339Nano),
		} {
			if err := meta.Put([]byte(key), seal(metaBucket, key, []byte(value))); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, db.Close())
}

// newUUID makes a random UUID, version 4 of RFC 9562.
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: it would end the process
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
