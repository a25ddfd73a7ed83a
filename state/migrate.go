package state

import (
	"fmt"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

// format is a schema with the steps that lead to it from older ones, each from one
// schema to the next; the last leads to schema. A new schema appends its step and
// never changes one that a release had.
type format struct {
	schema int
	steps  []func(*tx) error
}

// current is this pinfold's format.
var current = format{schema: Schema}

// oldest is the oldest schema that can be converted.
func (f format) oldest() int { return f.schema - len(f.steps) }

// convert brings the file from an older schema to this one, all steps in one
// transaction, after a backup. Whoever is killed in the middle leaves the old one.
func (s *store) convert(f format, from int, warn func(error)) error {
	switch r, err := s.backup(converted, strconv.Itoa(f.schema)); {
	case r == nil:
		warn(noBackup(err))
	case err != nil:
		warn(err)
	}
	err := s.transact(func(b *bolt.Tx) error {
		for n, step := range f.steps[from-f.oldest():] {
			t := &tx{store: s, bolt: b}
			if err := t.run(func(Tx) error { return step(t) }); err != nil {
				return fmt.Errorf("from schema %d to %d: %w", from+n, from+n+1, err)
			}
		}
		return b.Bucket([]byte(metaBucket)).Put([]byte(metaSchema), []byte(strconv.Itoa(f.schema)))
	})
	if err != nil {
		return fmt.Errorf("cannot convert state %s: %w; it is as it was: use the older pinfold that wrote it until this is mended", s.path, err)
	}
	return nil
}
