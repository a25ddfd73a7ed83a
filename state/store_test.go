package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// open opens dir and closes it with the test.
func open(t testing.TB, dir string) Store {
	t.Helper()
	s, err := Open(context.Background(), Options{Dir: dir, Verb: "test", Wait: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func update(t testing.TB, s Store, fn func(Tx) error) {
	t.Helper()
	if err := s.Update(fn); err != nil {
		t.Fatal(err)
	}
}

func view(t testing.TB, s Store, fn func(Tx) error) {
	t.Helper()
	if err := s.View(fn); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, s Store, bucket, key string) (doc []byte) {
	t.Helper()
	view(t, s, func(x Tx) error { doc = x.Get(bucket, key); return nil })
	return doc
}

func keys(t testing.TB, s Store, bucket string) (all []string) {
	t.Helper()
	view(t, s, func(x Tx) error {
		return x.Each(bucket, func(key string, _ []byte) error { all = append(all, key); return nil })
	})
	return all
}

func TestDocumentsSurviveReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "state")
	s := open(t, dir)
	lineage := s.Lineage()
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(lineage) {
		t.Errorf("lineage %q is no UUID", lineage)
	}
	update(t, s, func(x Tx) error {
		if x.Get(Sandboxes, "sandbox.a") != nil {
			t.Error("a document that nobody put")
		}
		return errors.Join(
			x.Put(Sandboxes, "sandbox.a", []byte(`{"n":1}`)),
			x.Put(Sandboxes, "sandbox.b", nil),
			x.Put(Networks, "sandbox.a", []byte("other bucket")),
			x.SetMeta("config_dir", "/etc/x"),
			x.Bump(), x.Bump())
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir)
	if s.Lineage() != lineage {
		t.Errorf("lineage was %s, is %s", lineage, s.Lineage())
	}
	if s.Path() != filepath.Join(dir, "state.db") {
		t.Errorf("path %s", s.Path())
	}
	view(t, s, func(x Tx) error {
		if got := x.Get(Sandboxes, "sandbox.a"); string(got) != `{"n":1}` {
			t.Errorf("sandbox.a is %q", got)
		}
		if got := x.Get(Sandboxes, "sandbox.b"); got == nil || len(got) != 0 {
			t.Errorf("an empty document came back as %#v", got)
		}
		if got := x.Meta("config_dir"); got != "/etc/x" {
			t.Errorf("config_dir is %q", got)
		}
		if x.Meta("digest") != "" || x.Meta("schema") != "1" || x.Meta("lineage") != lineage {
			t.Errorf("meta: %q %q %q", x.Meta("digest"), x.Meta("schema"), x.Meta("lineage"))
		}
		if _, err := time.Parse(time.RFC3339, x.Meta("created")); err != nil {
			t.Error(err)
		}
		if x.Serial() != 2 {
			t.Errorf("serial %d", x.Serial())
		}
		return nil
	})
	update(t, s, func(x Tx) error { return x.Delete(Sandboxes, "sandbox.a") })
	if got := keys(t, s, Sandboxes); !slices.Equal(got, []string{"sandbox.b"}) {
		t.Errorf("left: %q", got)
	}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, dir)
	mode := func(path string) fs.FileMode {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Mode().Perm()
	}
	if got := mode(dir); got != 0o700 {
		t.Errorf("dir %04o", got)
	}
	for _, name := range []string{"state.db", "state.holder"} {
		if got := mode(filepath.Join(dir, name)); got != 0o600 {
			t.Errorf("%s %04o", name, got)
		}
	}
	s.Close()
	if left := names(t, dir); !slices.Equal(left, []string{"state.db"}) {
		t.Errorf("after Close there is %q", left)
	}
	if err := os.Chmod(filepath.Join(dir, "state.db"), 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if got := mode(filepath.Join(dir, "state.db")); got != 0o600 {
		t.Errorf("an open file was left with %04o", got)
	}
}

func names(t testing.TB, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestErrorChangesNothing(t *testing.T) {
	s := open(t, t.TempDir())
	update(t, s, func(x Tx) error { return x.Put(Volumes, "volume.a", []byte("old")) })
	mine := errors.New("mine")
	err := s.Update(func(x Tx) error {
		_, aerr := x.Append(Journal, []byte("x"))
		if err := errors.Join(x.Put(Volumes, "volume.a", []byte("new")), x.Bump(), aerr); err != nil {
			t.Error(err)
		}
		if string(x.Get(Volumes, "volume.a")) != "new" {
			t.Error("a transaction does not see its own change")
		}
		return mine
	})
	if err != mine {
		t.Errorf("got %v", err)
	}
	if got := get(t, s, Volumes, "volume.a"); string(got) != "old" {
		t.Errorf("volume.a is %q", got)
	}
	if got := keys(t, s, Journal); got != nil {
		t.Errorf("journal has %q", got)
	}
	view(t, s, func(x Tx) error {
		if x.Serial() != 0 {
			t.Errorf("serial %d", x.Serial())
		}
		return nil
	})
	if err := s.View(func(Tx) error { return mine }); err != mine {
		t.Errorf("View: %v", err)
	}
}

func TestBytesAreTheCallers(t *testing.T) {
	s := open(t, t.TempDir())
	doc := []byte("abc")
	update(t, s, func(x Tx) error {
		if err := x.Put(Images, "k", doc); err != nil {
			return err
		}
		copy(doc, "xyz")
		return nil
	})
	got := get(t, s, Images, "k")
	if string(got) != "abc" {
		t.Errorf("a document changed after Put: %q", got)
	}
	got = append(got[:0], "zzz"...) // would fault in the mapped file
	if again := get(t, s, Images, "k"); string(again) != "abc" {
		t.Errorf("writing to %q changed the store: %q", got, again)
	}
}

func TestEach(t *testing.T) {
	s := open(t, t.TempDir())
	update(t, s, func(x Tx) error {
		for _, k := range []string{"c", "a", "e", "b", "d"} {
			if err := x.Put(Outputs, k, []byte(k)); err != nil {
				return err
			}
		}
		return nil
	})
	if got := keys(t, s, Outputs); !slices.Equal(got, []string{"a", "b", "c", "d", "e"}) {
		t.Errorf("order %q", got)
	}
	stop := errors.New("stop")
	var seen []string
	err := s.View(func(x Tx) error {
		return x.Each(Outputs, func(k string, _ []byte) error {
			if seen = append(seen, k); k == "b" {
				return stop
			}
			return nil
		})
	})
	if err != stop || !slices.Equal(seen, []string{"a", "b"}) {
		t.Errorf("%v after %q", err, seen)
	}
	update(t, s, func(x Tx) error {
		seen = nil
		return x.Each(Outputs, func(k string, doc []byte) error {
			seen = append(seen, k+"="+string(doc))
			switch k {
			case "a":
				return errors.Join(x.Delete(Outputs, "a"), x.Delete(Outputs, "b"))
			case "d":
				return errors.Join(x.Put(Outputs, "dd", []byte("new")), x.Put(Outputs, "e", []byte("E")))
			}
			return nil
		})
	})
	if want := []string{"a=a", "c=c", "d=d", "dd=new", "e=E"}; !slices.Equal(seen, want) {
		t.Errorf("while changing: %q, not %q", seen, want)
	}
}

func TestAppendAndTrim(t *testing.T) {
	s := open(t, t.TempDir())
	update(t, s, func(x Tx) error {
		for i := uint64(1); i <= 300; i++ {
			seq, err := x.Append(History, fmt.Append(nil, i))
			if err != nil || seq != i {
				return fmt.Errorf("append %d gave %d, %v", i, seq, err)
			}
		}
		return x.Delete(History, SeqKey(299))
	})
	for _, tc := range []struct{ keep, first, left int }{{1000, 1, 299}, {299, 1, 299}, {3, 297, 3}, {1, 300, 1}, {0, 0, 0}} {
		update(t, s, func(x Tx) error { return x.Trim(History, tc.keep) })
		got := keys(t, s, History)
		if len(got) != tc.left || tc.left > 0 && got[0] != SeqKey(uint64(tc.first)) {
			t.Errorf("keep %d left %d", tc.keep, len(got))
		}
	}
	update(t, s, func(x Tx) error {
		seq, err := x.Append(History, nil)
		if seq != 301 {
			t.Errorf("a sequence number came back: %d", seq)
		}
		return err
	})
	if err := s.Update(func(x Tx) error { return x.Trim(History, -1) }); err == nil {
		t.Error("keep -1 was accepted")
	}
}

func TestWrongUse(t *testing.T) {
	s := open(t, t.TempDir())
	put := func(bucket, key string) func(Tx) error {
		return func(x Tx) error { return x.Put(bucket, key, []byte("x")) }
	}
	for name, tc := range map[string]struct {
		run  func(func(Tx) error) error
		fn   func(Tx) error
		want string
	}{
		"put unknown":    {s.Update, put("things", "a"), `no bucket "things"`},
		"put meta":       {s.Update, put("meta", "a"), "SetMeta"},
		"put no key":     {s.Update, put(Sandboxes, ""), "key required"},
		"put long key":   {s.Update, put(Sandboxes, strings.Repeat("k", 40000)), "key too large"},
		"put in view":    {s.View, put(Sandboxes, "a"), "not writable"},
		"bump in view":   {s.View, func(x Tx) error { return x.Bump() }, "not writable"},
		"get unknown":    {s.View, func(x Tx) error { x.Get("things", "a"); return nil }, `no bucket "things"`},
		"get meta":       {s.View, func(x Tx) error { x.Get("meta", "serial"); return nil }, "use Meta"},
		"each unknown":   {s.View, func(x Tx) error { return x.Each("things", nil) }, `no bucket "things"`},
		"delete unknown": {s.Update, func(x Tx) error { return x.Delete("things", "a") }, `no bucket "things"`},
		"append unknown": {s.Update, func(x Tx) error { _, err := x.Append("things", nil); return err }, `no bucket "things"`},
		"trim meta":      {s.Update, func(x Tx) error { return x.Trim("meta", 0) }, "no documents"},
		"own meta":       {s.Update, func(x Tx) error { return x.SetMeta("lineage", "x") }, "file's own"},
	} {
		if err := tc.run(tc.fn); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var kept Tx
	view(t, s, func(x Tx) error { kept = x; return nil })
	defer func() {
		if p := recover(); p == nil {
			t.Error("a Tx was usable after its end")
		}
	}()
	kept.Get(Sandboxes, "a")
}

func TestAfterClose(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.Close()
	nothing := func(Tx) error { t.Error("ran"); return nil }
	if err := s.Update(nothing); !errors.Is(err, ErrClosed) {
		t.Errorf("Update: %v", err)
	}
	if err := s.View(nothing); !errors.Is(err, ErrClosed) || !strings.Contains(err.Error(), dir) {
		t.Errorf("View: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestCloseWaitsForWhatRuns(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	inside, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for _, run := range []func(func(Tx) error) error{s.View, s.Update} {
		all.Go(func() {
			err := run(func(x Tx) error {
				inside <- struct{}{}
				<-goOn
				x.Get(Sandboxes, "a")
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	<-inside
	<-inside
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	for !s.(*store).closed.Load() {
		runtime.Gosched()
	}
	select {
	case <-closed:
		t.Error("Close did not wait")
	default:
	}
	close(goOn)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	all.Wait()
}

func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	look := func(d string) (Store, error) {
		return Open(context.Background(), Options{Dir: d, Verb: "look", ReadOnly: true})
	}
	for _, d := range []string{dir, filepath.Join(dir, "absent")} {
		_, err := look(d)
		if !errors.Is(err, ErrNoState) || !strings.Contains(err.Error(), d) {
			t.Errorf("%s: %v", d, err)
		}
	}
	if left := names(t, dir); left != nil {
		t.Fatalf("looking made %q", left)
	}
	s := open(t, dir)
	update(t, s, func(x Tx) error { return x.Put(Images, "k", []byte("v")) })
	s.Close()
	before := digest(t, filepath.Join(dir, "state.db"))
	a, err := look(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := look(dir)
	if err != nil {
		t.Fatalf("a second reader: %v", err)
	}
	if !bytes.Equal(get(t, a, Images, "k"), get(t, b, Images, "k")) || a.Lineage() != s.Lineage() {
		t.Error("readers differ")
	}
	if err := a.Update(func(Tx) error { return nil }); !errors.Is(err, ErrReadOnly) {
		t.Errorf("Update: %v", err)
	}
	var le *LockedError
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.As(err, &le) || le.Holder.Verb != "look" {
		t.Errorf("a writer beside readers: %v", err)
	}
	a.Close()
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.As(err, &le) || le.Holder.Verb != "look" {
		t.Errorf("a writer beside the reader that is left: %v", err)
	}
	b.Close()
	if digest(t, filepath.Join(dir, "state.db")) != before {
		t.Error("looking changed the file")
	}
	open(t, dir)
}
