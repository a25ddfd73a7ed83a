package state

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"

	bolt "go.etcd.io/bbolt"
)

const (
	metaBucket  = "meta"
	metaSchema  = "schema"
	metaLineage = "lineage"
	metaSerial  = "serial"
	metaCreated = "created"
)

var documentBuckets = []string{Sandboxes, Blocks, Networks, Volumes, Images, Outputs, Ended, Journal, History}

// tx is the Tx of one run of one function.
type tx struct {
	store   *store
	bolt    *bolt.Tx
	over    bool
	changes int // of any bucket: tells Each that its cursor is stale
}

// abort ends the function from inside a Tx method, whose signature has no error.
type abort struct{ err error }

// run calls fn and turns an abort into its error. Other panics are fn's own.
func (t *tx) run(fn func(Tx) error) (err error) {
	defer func() { t.over = true }()
	defer func() {
		if p := recover(); p != nil {
			a, ok := p.(abort)
			if !ok {
				panic(p)
			}
			err = a.err
		}
	}()
	defer faultsPanic()()
	return fn(t)
}

// guard is deferred around every use of bbolt: where pages make no sense, it
// panics or faults.
func (t *tx) guard(bucket, key string) {
	if p := recover(); p != nil {
		if a, ok := p.(abort); ok {
			panic(a)
		}
		t.damaged(bucket, key, p)
	}
}

func (t *tx) damaged(bucket, key string, why any) {
	panic(abort{t.store.damaged(fmt.Sprintf("%s %s: %v", bucket, printable(key), why))})
}

// printable shows sequence keys as numbers.
func printable(key string) string {
	if len(key) == 8 && key[0] == 0 {
		return strconv.FormatUint(seqOf(key), 10)
	}
	return strconv.Quote(key)
}

func seqOf(key string) (seq uint64) {
	for i := range 8 {
		seq = seq<<8 | uint64(key[i])
	}
	return seq
}

func (t *tx) find(bucket string) (*bolt.Bucket, error) {
	if t.over {
		panic("state: a transaction was used after its function returned")
	}
	if bucket != metaBucket && !slices.Contains(documentBuckets, bucket) {
		return nil, fmt.Errorf("state schema %d has no bucket %q", Schema, bucket)
	}
	b := t.bolt.Bucket([]byte(bucket))
	if b == nil {
		return nil, t.store.damaged("bucket " + bucket + " is missing")
	}
	return b, nil
}

// need is find for methods that return no error.
func (t *tx) need(bucket string) *bolt.Bucket {
	b, err := t.find(bucket)
	if err != nil {
		panic(abort{err})
	}
	return b
}

// document returns a copy of the document in value.
func (t *tx) document(bucket, key string, value []byte) []byte {
	doc, ok := unseal(bucket, key, value)
	if !ok {
		t.damaged(bucket, key, "its checksum does not match")
	}
	return doc
}

func documentsOnly(bucket string) error {
	if bucket == metaBucket {
		return errors.New("meta holds no documents: use Meta and SetMeta")
	}
	return nil
}

func (t *tx) Get(bucket, key string) []byte {
	if err := documentsOnly(bucket); err != nil {
		panic(abort{err})
	}
	return t.get(bucket, key)
}

func (t *tx) get(bucket, key string) []byte {
	defer t.guard(bucket, key)
	value := t.need(bucket).Get([]byte(key))
	if value == nil {
		return nil
	}
	return t.document(bucket, key, value)
}

func (t *tx) Put(bucket, key string, doc []byte) error {
	if err := documentsOnly(bucket); err != nil {
		return err
	}
	return t.put(bucket, key, doc)
}

func (t *tx) put(bucket, key string, doc []byte) error {
	defer t.guard(bucket, key)
	b, err := t.find(bucket)
	if err == nil {
		err = b.Put([]byte(key), seal(bucket, key, doc))
	}
	if err != nil {
		return fmt.Errorf("cannot put %s %s: %w", bucket, printable(key), err)
	}
	t.changes++
	return nil
}

func (t *tx) Delete(bucket, key string) error {
	defer t.guard(bucket, key)
	err := documentsOnly(bucket)
	if err == nil {
		var b *bolt.Bucket
		if b, err = t.find(bucket); err == nil {
			err = b.Delete([]byte(key))
		}
	}
	if err != nil {
		return fmt.Errorf("cannot delete %s %s: %w", bucket, printable(key), err)
	}
	t.changes++
	return nil
}

func (t *tx) Each(bucket string, fn func(key string, doc []byte) error) error {
	err := documentsOnly(bucket)
	var b *bolt.Bucket
	if err == nil {
		b, err = t.findGuarded(bucket)
	}
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", bucket, err)
	}
	c := b.Cursor()
	key, doc := t.step(bucket, "", c.First)
	for doc != nil {
		before := t.changes
		if err := fn(key, doc); err != nil {
			return err
		}
		next := c.Next
		if t.changes != before {
			next = func() ([]byte, []byte) { return seekAfter(c, key) }
		}
		key, doc = t.step(bucket, key, next)
	}
	return nil
}

func (t *tx) findGuarded(bucket string) (*bolt.Bucket, error) {
	defer t.guard(bucket, "")
	return t.find(bucket)
}

// step moves a cursor and returns what it came to; a nil document is the end.
func (t *tx) step(bucket, last string, move func() ([]byte, []byte)) (key string, doc []byte) {
	defer t.guard(bucket, last)
	k, value := move()
	if k == nil {
		return "", nil
	}
	key = string(k)
	return key, t.document(bucket, key, value)
}

// seekAfter moves the cursor to the first key behind key.
func seekAfter(c *bolt.Cursor, key string) (k, v []byte) {
	k, v = c.Seek([]byte(key))
	if bytes.Equal(k, []byte(key)) {
		return c.Next()
	}
	return k, v
}

func (t *tx) Append(bucket string, doc []byte) (uint64, error) {
	if err := documentsOnly(bucket); err != nil {
		return 0, err
	}
	seq, err := t.sequence(bucket)
	if err != nil {
		return 0, fmt.Errorf("cannot append to %s: %w", bucket, err)
	}
	return seq, t.put(bucket, SeqKey(seq), doc)
}

func (t *tx) sequence(bucket string) (uint64, error) {
	defer t.guard(bucket, "")
	b, err := t.find(bucket)
	if err != nil {
		return 0, err
	}
	return b.NextSequence()
}

func (t *tx) Trim(bucket string, keep int) error {
	if err := t.trim(bucket, keep); err != nil {
		return fmt.Errorf("cannot trim %s to %d: %w", bucket, keep, err)
	}
	return nil
}

// trim walks back over the keep newest documents and deletes what is before.
func (t *tx) trim(bucket string, keep int) error {
	defer t.guard(bucket, "")
	if keep < 0 {
		return errors.New("the number is negative")
	}
	if err := documentsOnly(bucket); err != nil {
		return err
	}
	b, err := t.find(bucket)
	if err != nil {
		return err
	}
	c := b.Cursor()
	k, _ := c.Last()
	for range keep {
		if k == nil {
			return nil
		}
		k, _ = c.Prev()
	}
	var old [][]byte // a cursor must not move while its bucket changes
	for ; k != nil; k, _ = c.Prev() {
		old = append(old, bytes.Clone(k))
	}
	for _, k := range old {
		if err := b.Delete(k); err != nil {
			return err
		}
		t.changes++
	}
	return nil
}

func (t *tx) Meta(key string) string {
	if key == metaSchema { // plain, see the package comment
		defer t.guard(metaBucket, key)
		return string(t.need(metaBucket).Get([]byte(key)))
	}
	return string(t.get(metaBucket, key))
}

// wholeMeta reads all of meta: under a key in which a bit flipped nobody would look
// for what it held, and take it for absent.
func (t *tx) wholeMeta() error {
	defer t.guard(metaBucket, "")
	return t.need(metaBucket).ForEach(func(key, value []byte) error {
		if string(key) != metaSchema {
			t.document(metaBucket, string(key), value)
		}
		return nil
	})
}

func (t *tx) SetMeta(key, value string) error {
	switch key {
	case metaSchema, metaLineage, metaSerial, metaCreated:
		return fmt.Errorf("cannot set meta %q: it is the file's own", key)
	}
	return t.put(metaBucket, key, []byte(value))
}

func (t *tx) Serial() uint64 {
	text := t.Meta(metaSerial)
	serial, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.damaged(metaBucket, metaSerial, fmt.Sprintf("%q is not a number", text))
	}
	return serial
}

func (t *tx) Bump() error {
	return t.put(metaBucket, metaSerial, strconv.AppendUint(nil, t.Serial()+1, 10))
}
