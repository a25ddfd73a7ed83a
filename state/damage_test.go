package state

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
)

func digest(t testing.TB, path string) [32]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// content is all that a store says, or the first error it gives.
func content(s Store) (all map[string]string, err error) {
	all = map[string]string{}
	err = s.View(func(x Tx) error {
		all["serial"] = fmt.Sprint(x.Serial())
		all["lineage"], all["config_dir"] = x.Meta("lineage"), x.Meta("config_dir")
		for _, b := range documentBuckets {
			err := x.Each(b, func(key string, doc []byte) error {
				all[b+" "+key] = string(doc)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

// sample makes a file with all that a tree can have: branch, leaf, overflow and
// freelist pages, inline and empty buckets. It returns its bytes up to the last
// page, and what it says now and what it said before the last commit.
func sample(t testing.TB) (file []byte, now, before map[string]string) {
	t.Helper()
	dir := t.TempDir()
	s := open(t, dir)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	update(t, s, func(x Tx) error {
		for i := range 30 {
			must(x.Put(Sandboxes, fmt.Sprintf("sandbox.s%03d", i), bytes.Repeat([]byte{byte('a' + i%26)}, 600)))
		}
		must(x.Put(Images, "image.big", bytes.Repeat([]byte("0123456789"), 1500)))
		must(x.Put(Networks, "network.a", []byte(`{"cidr":"10.0.0.0/24"}`)))
		return x.SetMeta("config_dir", "/etc/sandboxes")
	})
	update(t, s, func(x Tx) error {
		for i := range 10 {
			must(x.Delete(Sandboxes, fmt.Sprintf("sandbox.s%03d", 3*i)))
			_, err := x.Append(History, []byte("event"))
			must(err)
		}
		return x.Bump()
	})
	before, err := content(s)
	must(err)
	update(t, s, func(x Tx) error {
		return errors.Join(x.Put(Sandboxes, "sandbox.s001", []byte("changed")), x.Bump())
	})
	now, err = content(s)
	must(err)
	var size int64
	must(s.(*store).db.View(func(b *bolt.Tx) error { size = b.Size(); return nil }))
	must(s.Close())
	boltCheck(t, filepath.Join(dir, fileName))
	file, err = os.ReadFile(filepath.Join(dir, fileName))
	must(err)
	return file[:size], now, before
}

// probe opens the bytes as a state. Whatever they are, nothing panics, nothing
// is written, and no document is misread. It returns whether the state opened,
// and what it said.
func probe(t *testing.T, dir, name string, file []byte, readOnly bool) (opened bool, says map[string]string, err error) {
	t.Helper()
	path := filepath.Join(dir, fileName)
	os.Remove(path) // of the probe before; truncating would make ext4 write to disk
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), Options{Dir: dir, ReadOnly: readOnly})
	if err == nil {
		opened = true
		says, err = content(s)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: reading gave %v", name, err)
		}
		if cerr := s.Close(); cerr != nil {
			t.Errorf("%s: %v", name, cerr)
		}
	} else if !errors.Is(err, ErrNotState) && !errors.Is(err, ErrSchema) && !errors.Is(err, ErrDamaged) {
		t.Errorf("%s: opening gave %v", name, err)
	}
	if got := digest(t, path); got != sha256.Sum256(file) {
		t.Errorf("%s: the file was changed (opened: %v, %v)", name, opened, err)
	}
	for _, left := range names(t, dir) {
		if left != fileName && left != backupsName {
			t.Errorf("%s: left %q", name, left)
		}
	}
	return opened, says, err
}

func TestForeignFilesAreRefused(t *testing.T) {
	t.Parallel()
	foreign := func(fill func(*bolt.Tx) error) []byte {
		path := filepath.Join(t.TempDir(), "f")
		db, err := bolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(fill), db.Close()); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	bucket := func(name, key, value string) func(*bolt.Tx) error {
		return func(x *bolt.Tx) error {
			b, err := x.CreateBucket([]byte(name))
			if err != nil {
				return err
			}
			return b.Put([]byte(key), []byte(value))
		}
	}
	dir := t.TempDir()
	for name, tc := range map[string]struct {
		file []byte
		is   error
		says []string
	}{
		"empty":         {nil, ErrDamaged, []string{"it is empty", "nothing was changed", "backup"}},
		"text":          {[]byte("hello\n"), ErrNotState, []string{"too short"}},
		"zeros":         {make([]byte, 1<<20), ErrNotState, []string{"not a bbolt file"}},
		"elf":           {elf(t), ErrNotState, []string{"not a bbolt file"}},
		"bare bbolt":    {foreign(func(*bolt.Tx) error { return nil }), ErrNotState, []string{"another program"}},
		"other bbolt":   {foreign(bucket("meta", "x", "y")), ErrNotState, []string{"another program"}},
		"odd schema":    {foreign(bucket("meta", "schema", "one")), ErrNotState, []string{`"one"`}},
		"no buckets":    {foreign(bucket("meta", "schema", "1")), ErrDamaged, []string{"bucket sandboxes is missing"}},
		"newer schema":  {foreign(bucket("meta", "schema", "2")), ErrSchema, []string{"schema 2", "reads schema 1", "upgrade pinfold"}},
		"older schema":  {foreign(bucket("meta", "schema", "0")), ErrSchema, []string{"schema 0", "reads schema 1", "older pinfold"}},
		"later release": {foreign(bucket("meta", "schema", "12")), ErrSchema, []string{"schema 12"}},
	} {
		for _, readOnly := range []bool{false, true} {
			_, _, err := probe(t, dir, name, tc.file, readOnly)
			if !errors.Is(err, tc.is) {
				t.Errorf("%s: %v", name, err)
				continue
			}
			for _, want := range append(tc.says, "state.db") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q lacks %q", name, err, want)
				}
			}
		}
	}
}

func elf(t *testing.T) []byte {
	f, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 100_000)
	if _, err := f.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestCutFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, now, _ := sample(t)
	if opened, says, err := probe(t, dir, "whole", file, false); !opened || err != nil || !maps.Equal(says, now) {
		t.Fatalf("the sample itself: %v, %v", opened, err)
	}
	var sizes []int
	for n := 1; n < len(file); n += 1021 {
		sizes = append(sizes, n)
	}
	for n := 0; n < len(file); n += 4096 {
		sizes = append(sizes, n, n+1, n+15, n+79, n+80, n+4095)
	}
	for _, n := range sizes {
		if n >= len(file) {
			continue
		}
		want := ErrDamaged
		if n > 0 && n < pageHeader+metaSize { // what it was cannot be told
			want = ErrNotState
		}
		if _, _, err := probe(t, dir, fmt.Sprintf("cut to %d", n), file[:n], n%2 == 0); !errors.Is(err, want) {
			t.Errorf("cut to %d of %d: %v", n, len(file), err)
		}
	}
}

func TestBothMetaPagesFlipped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, _, _ := sample(t)
	for off := 16; off < 80; off++ {
		bad := bytes.Clone(file)
		bad[off] ^= 0x10
		bad[4096+off] ^= 0x10
		if _, _, err := probe(t, dir, fmt.Sprintf("byte %d of both meta pages", off), bad, off%2 == 0); !errors.Is(err, ErrNotState) && !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d: %v", off, err)
		}
	}
}

// One flipped bit anywhere: refused, or noticed on reading, or without effect, or
// (one meta page lost, as by a power cut) the state before the last commit. A
// state that opens can be written and read again without a panic.
func TestFlippedBits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, now, before := sample(t)
	var offsets []int
	for page := 0; page < len(file); page += 4096 {
		many := 48 // header and two elements
		if page < 2*4096 {
			many = 80 // header and meta
		}
		for off := range many {
			offsets = append(offsets, page+off)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		offsets = append(offsets, rng.IntN(len(file)))
	}
	outcomes := map[string]int{}
	bad := bytes.Clone(file)
	for i, off := range offsets {
		bit := byte(1) << rng.IntN(8)
		bad[off] ^= bit
		name := fmt.Sprintf("bit %#x of byte %d in page %d", bit, off%4096, off/4096)
		opened, says, err := probe(t, dir, name, bad, i%2 == 0)
		switch {
		case !opened:
			outcomes["refused"]++
		case err != nil:
			outcomes["damage noticed on reading"]++
		case maps.Equal(says, now):
			outcomes["without effect"]++
		case off < 2*4096 && maps.Equal(says, before):
			outcomes["last commit lost"]++
		default:
			t.Errorf("%s: the state was misread", name)
		}
		if opened && i%20 == 0 {
			writeOn(t, name, bad)
		}
		bad[off] ^= bit
	}
	t.Log(len(offsets), outcomes)
	for _, o := range []string{"refused", "damage noticed on reading", "without effect"} {
		if outcomes[o] == 0 {
			t.Errorf("no flip was ever %s: the test does not see what it should", o)
		}
	}
}

// writeOn changes a damaged state that opened; nothing may panic, and what is
// acknowledged must be there.
func writeOn(t *testing.T, name string, file []byte) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), file, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		t.Fatalf("%s: a second open: %v", name, err)
	}
	err = s.Update(func(x Tx) error {
		for i := range 50 {
			if err := x.Put(Volumes, fmt.Sprint(i), bytes.Repeat([]byte("v"), 500)); err != nil {
				return err
			}
		}
		return nil
	})
	if cerr := s.Close(); cerr != nil {
		t.Errorf("%s: %v", name, cerr)
	}
	if err != nil {
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrOutcome) {
			t.Errorf("%s: writing gave %v", name, err)
		}
		return
	}
	s, err = Open(context.Background(), Options{Dir: dir})
	if err != nil {
		t.Errorf("%s: after writing: %v", name, err)
		return
	}
	if got := keys(t, s, Volumes); len(got) != 50 {
		t.Errorf("%s: %d of 50 documents", name, len(got))
	}
	s.Close()
}

// A file that somebody else cuts short while it is open faults in the mapping.
func TestFileCutWhileOpen(t *testing.T) {
	t.Parallel()
	file, _, _ := sample(t)
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(context.Background(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 2*4096); err != nil {
		t.Fatal(err)
	}
	if _, err := content(s); !errors.Is(err, ErrDamaged) {
		t.Errorf("reading: %v", err)
	}
	err = s.Update(func(x Tx) error { return x.Put(Sandboxes, "sandbox.s001", []byte("x")) })
	if !errors.Is(err, ErrDamaged) {
		t.Errorf("writing: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// bbolt faults in the commit and again while rolling back, and keeps its locks.
func TestFileCutDuringACommit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	put := func(x Tx) error { return x.Put(Sandboxes, "sandbox.a", []byte("x")) }
	err := s.Update(func(x Tx) error { return errors.Join(put(x), os.Truncate(s.Path(), 2*4096)) })
	if !errors.Is(err, ErrOutcome) || !strings.Contains(err.Error(), s.Path()) {
		t.Errorf("the commit: %v", err)
	}
	if err := s.Update(put); !errors.Is(err, ErrOutcome) {
		t.Errorf("the next update: %v", err)
	}
	if _, err := content(s); !errors.Is(err, ErrOutcome) {
		t.Errorf("reading: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.Is(err, ErrDamaged) {
		t.Errorf("opening again: %v", err)
	}
}

// Not even a file of which nothing is left ends the process that has it open.
func TestFileEmptiedWhileOpen(t *testing.T) {
	t.Parallel()
	for _, readOnly := range []bool{false, true} {
		dir := t.TempDir()
		s := open(t, dir)
		fill(t, s)
		if readOnly {
			s.Close()
			var err error
			if s, err = Open(context.Background(), Options{Dir: dir, ReadOnly: true}); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Truncate(s.Path(), 0); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := content(s); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "to 0 while it was open") {
				t.Errorf("reading: %v", err)
			}
			err := s.Update(func(x Tx) error { return x.Bump() })
			if want := map[bool]error{false: ErrDamaged, true: ErrReadOnly}[readOnly]; !errors.Is(err, want) {
				t.Errorf("writing: %v", err)
			}
			if r, err := s.Verify(nil); err != nil || r.Sound() || r.Problems[0] != "it is empty" {
				t.Errorf("verifying: %+v, %v", r, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	}
}

// A fault inside bbolt itself, with its locks held, breaks the store down and does
// not hang its closing.
func TestFaultInsideBolt(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir()).(*store)
	fill(t, s)
	if err := os.Truncate(s.Path(), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.view(func(*bolt.Tx) error { t.Error("it went well"); return nil }); !errors.Is(err, ErrOutcome) {
		t.Errorf("a transaction: %v", err)
	}
	if _, err := content(s); !errors.Is(err, ErrOutcome) {
		t.Errorf("reading: %v", err)
	}
	if err := s.Update(func(x Tx) error { return x.Bump() }); !errors.Is(err, ErrOutcome) {
		t.Errorf("writing: %v", err)
	}
	if r, err := s.Verify(nil); err != nil || r.Sound() {
		t.Errorf("verifying: %+v, %v", r, err)
	}
}

// A key of meta that became another is no absent one.
func TestMetaKeyFlipped(t *testing.T) {
	t.Parallel()
	file, _, _ := sample(t)
	bad := bytes.ReplaceAll(file, []byte("config_dir"), []byte("conbig_dir"))
	if bytes.Equal(bad, file) {
		t.Fatal("there is no such key")
	}
	if opened, _, err := probe(t, t.TempDir(), "config_dir", bad, false); opened || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), `meta "conbig_dir": its checksum does not match`) {
		t.Errorf("opened %v, %v", opened, err)
	}
}
