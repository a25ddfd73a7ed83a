package state

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	if none, err := missing(lock.path); err != nil || !none {
		return err // another process was first
	}
	fresh, err := freshPath(lock.dir)
	if err != nil {
		return err
	}
	if err := build(fresh, newUUID(), 0, nil); err != nil {
		os.Remove(fresh)
		return explain(lock.path, "create", err)
	}
	_, err = place(lock, fresh)
	return err
}

// freshPath is where a state.db is built. What lies there is of a creator that was
// killed: the caller has the directory's lock.
func freshPath(dir string) (string, error) {
	fresh := filepath.Join(dir, fileName+".new")
	if err := os.RemoveAll(fresh); err != nil {
		return "", fmt.Errorf("cannot remove half-made state %s: %w", fresh, bare(err))
	}
	return fresh, nil
}

// build writes a state to path, in one transaction, empty but for what fill puts
// there.
func build(path, lineage string, serial uint64, fill func(Tx) error) error {
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
			metaLineage: lineage,
			metaSerial:  strconv.FormatUint(serial, 10),
			metaCreated: time.Now().UTC().Format(time.RFC3339Nano),
		} {
			if err := meta.Put([]byte(key), seal(metaBucket, key, []byte(value))); err != nil {
				return err
			}
		}
		if fill == nil {
			return nil
		}
		return (&tx{store: &store{path: path}, bolt: t}).run(fill)
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
