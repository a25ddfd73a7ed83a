package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// made for these tests: two schemas after the real one. The first renames a
// document, the second changes it and makes a bucket.
var made = format{schema: Schema + 2, steps: []func(*tx) error{
	func(t *tx) error {
		doc := t.Get(Sandboxes, "sandbox.a")
		return errors.Join(t.Delete(Sandboxes, "sandbox.a"), t.Put(Sandboxes, "sandbox.renamed", doc))
	},
	func(t *tx) error {
		doc := t.Get(Sandboxes, "sandbox.renamed")
		_, err := t.bolt.CreateBucketIfNotExists([]byte("tokens"))
		return errors.Join(err, t.Put(Sandboxes, "sandbox.renamed", append(doc, '!')))
	},
}}

// with is made with one step replaced.
func (f format) with(i int, step func(*tx) error) format {
	f.steps = append([]func(*tx) error{}, f.steps...)
	f.steps[i] = step
	return f
}

// older makes a closed state of the real schema.
func older(t *testing.T, dir string) map[string]string {
	t.Helper()
	s := open(t, dir)
	fill(t, s)
	says, err := content(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	return says
}

func TestConvert(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := older(t, dir)
	if _, err := openAs(context.Background(), Options{Dir: dir, ReadOnly: true}, made); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "looking changes nothing") {
		t.Errorf("opened for looking: %v", err)
	}
	warn := func(err error) { t.Errorf("warned of %v", err) }
	for range 2 { // the second finds it converted
		s, err := openAs(context.Background(), Options{Dir: dir, Warn: warn}, made)
		if err != nil {
			t.Fatal(err)
		}
		if got := get(t, s, Sandboxes, "sandbox.renamed"); string(got) != `{"n":1}!` || get(t, s, Sandboxes, "sandbox.a") != nil {
			t.Errorf("the document is %q", got)
		}
		view(t, s, func(x Tx) error {
			if x.Meta("schema") != fmt.Sprint(made.schema) || s.Lineage() != before["lineage"] {
				t.Errorf("schema %s, lineage %s", x.Meta("schema"), s.Lineage())
			}
			return nil
		})
		s.Close()
	}
	boltCheck(t, filepath.Join(dir, fileName))
	var found []BackupFile
	for _, b := range backups(t, dir) {
		if b.kind == converted {
			found = append(found, b)
		}
	}
	if len(found) != 1 || !strings.HasSuffix(found[0].Path, "-1-before-schema-3.db") {
		t.Fatalf("backups %v", found)
	}
	if says := contentOf(t, found[0].Path); says["sandboxes sandbox.a"] != before["sandboxes sandbox.a"] {
		t.Errorf("the backup says %v", says)
	}

	// The pinfold of before refuses it, until its backup is restored.
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.Is(err, ErrSchema) {
		t.Errorf("opened by the older: %v", err)
	}
	r, err := restoreFrom(dir, found[0].Path, "", false)
	if err != nil {
		t.Fatal(err)
	}
	isRestored(t, dir, r, before)
}

// A step that fails, in whatever way, leaves the file as it was.
func TestConvertThatFails(t *testing.T) {
	t.Parallel()
	no := errors.New("no")
	for name, last := range map[string]func(*tx) error{
		"an error": func(*tx) error { return no },
		"a panic":  func(*tx) error { panic(no) },
		"damage":   func(t *tx) error { t.damaged(Sandboxes, "sandbox.a", no); return nil },
	} {
		dir := t.TempDir()
		before := older(t, dir)
		was := digest(t, filepath.Join(dir, fileName))
		_, err := openAs(context.Background(), Options{Dir: dir}, made.with(1, last))
		if err == nil || !strings.Contains(err.Error(), "cannot convert state "+dir) || !strings.Contains(err.Error(), no.Error()) {
			t.Errorf("%s: %v", name, err)
		}
		if digest(t, filepath.Join(dir, fileName)) != was {
			t.Errorf("%s: the file was changed", name)
		}
		s := open(t, dir)
		if says, err := content(s); err != nil || says["sandboxes sandbox.a"] != before["sandboxes sandbox.a"] {
			t.Errorf("%s: afterwards it says %v, %v", name, says, err)
		}
		s.Close()
	}
}

// Where no backup can be made the conversion goes on, and says so.
func TestConvertWithoutABackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	older(t, dir)
	if err := os.WriteFile(filepath.Join(dir, backupsName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var warned []error
	s, err := openAs(context.Background(), Options{Dir: dir, Warn: func(err error) { warned = append(warned, err) }}, made)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if len(warned) == 0 || !strings.Contains(warned[0].Error(), "no backup of the state was made") {
		t.Errorf("warned of %v", warned)
	}
	if get(t, s, Sandboxes, "sandbox.renamed") == nil {
		t.Error("it was not converted")
	}
}

// converting is the other process of TestKilledWhileConverting: it dies where its
// second argument says.
func converting(dir, where string) {
	die := func() { syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }
	f := made
	switch where {
	case "before":
		f = made.with(0, func(*tx) error { die(); return nil })
	case "between":
		f = made.with(1, func(*tx) error { die(); return nil })
	case "at the end":
		f = made.with(1, func(t *tx) error { err := made.steps[1](t); t.bolt.OnCommit(die); return err })
	}
	_, err := openAs(context.Background(), Options{Dir: dir}, f)
	fmt.Println("it lives:", err)
	os.Exit(1)
}

// Whoever is killed while converting leaves the old or the new, whole.
func TestKilledWhileConverting(t *testing.T) {
	t.Parallel()
	for where, is := range map[string]string{"before": "sandbox.a", "between": "sandbox.a", "at the end": "sandbox.renamed"} {
		dir := t.TempDir()
		older(t, dir)
		p := start(t, "convert", dir, where)
		if err := p.Wait(); p.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%s: the process ended with %v", where, err)
		}
		p.ended.Store(true)
		boltCheck(t, filepath.Join(dir, fileName))
		db, err := bolt.Open(filepath.Join(dir, fileName), 0o600, &bolt.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		err = db.View(func(x *bolt.Tx) error {
			schema := string(x.Bucket([]byte(metaBucket)).Get([]byte(metaSchema)))
			if k, _ := x.Bucket([]byte(Sandboxes)).Cursor().First(); string(k) != is || (schema == fmt.Sprint(Schema)) != (is == "sandbox.a") {
				t.Errorf("killed %s: schema %s, document %s", where, schema, k)
			}
			return nil
		})
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		s, err := openAs(context.Background(), Options{Dir: dir}, made)
		if err != nil {
			t.Fatalf("%s: the next: %v", where, err)
		}
		if got := get(t, s, Sandboxes, "sandbox.renamed"); string(got) != `{"n":1}!` {
			t.Errorf("%s: the next reads %q", where, got)
		}
		s.Close()
	}
}
