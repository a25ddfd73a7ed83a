package state

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const someLineage = "11111111-2222-4333-8444-555555555555"

func rebuild(dir string, fill func(Tx) error) (string, error) {
	return Rebuild(context.Background(), Options{Dir: dir, Verb: "state rebuild"}, someLineage, fill)
}

func putOne(x Tx) error {
	return errors.Join(x.Put(Sandboxes, "sandbox.a", []byte("{}")), x.SetMeta("config_dir", "/srv"))
}

// isRebuilt checks that the state is the one that putOne filled, and can be used.
func isRebuilt(t *testing.T, dir string) {
	t.Helper()
	s := open(t, dir)
	if s.Lineage() != someLineage || string(get(t, s, Sandboxes, "sandbox.a")) != "{}" {
		t.Errorf("lineage %s, document %q", s.Lineage(), get(t, s, Sandboxes, "sandbox.a"))
	}
	view(t, s, func(x Tx) error {
		if x.Meta("config_dir") != "/srv" || x.Serial() < 1_000_000_000 {
			t.Errorf("config_dir %q, serial %d", x.Meta("config_dir"), x.Serial())
		}
		return nil
	})
	update(t, s, func(x Tx) error { return x.Put(Sandboxes, "sandbox.b", []byte("{}")) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	boltCheck(t, filepath.Join(dir, fileName))
}

func TestRebuildWhereNothingIs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	aside, err := rebuild(dir, putOne)
	if err != nil || aside != "" {
		t.Fatalf("aside %q, %v", aside, err)
	}
	isRebuilt(t, dir)
}

// Whatever stands where state.db should be is moved aside as it is.
func TestRebuildMovesAsideWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	file, _, _ := sample(t)
	flipped := bytes.ReplaceAll(file, []byte("10.0.0.0/24"), []byte("10.0.0.1/24")) // a document: the tree is sound
	for name, content := range map[string][]byte{"empty": nil, "text": []byte("hello"), "cut": file[:len(file)/2], "document": flipped} {
		dir := t.TempDir()
		path := filepath.Join(dir, fileName)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		aside, err := rebuild(dir, putOne)
		if err != nil || !strings.HasPrefix(aside, path+".bad-") {
			t.Fatalf("%s: aside %q, %v", name, aside, err)
		}
		if got, err := os.ReadFile(aside); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: aside lie %d bytes of %d, %v", name, len(got), len(content), err)
		}
		isRebuilt(t, dir)
	}
	for name, put := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":      func(path string) error { return os.Symlink("/nowhere", path) },
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, fileName)
		if err := put(path); err != nil {
			t.Fatal(err)
		}
		was, _ := os.Lstat(path)
		aside, err := rebuild(dir, putOne)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if is, err := os.Lstat(aside); err != nil || !os.SameFile(was, is) {
			t.Errorf("%s: aside is %v, %v", name, is, err)
		}
		isRebuilt(t, dir)
	}
}

func TestRebuildNamesEachFileItMovesAside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := map[string]bool{}
	for range 3 {
		if err := os.WriteFile(filepath.Join(dir, fileName), []byte("bad"), 0o600); err != nil {
			t.Fatal(err)
		}
		aside, err := rebuild(dir, putOne)
		if err != nil || seen[aside] {
			t.Fatalf("aside %q of %v, %v", aside, seen, err)
		}
		seen[aside] = true
	}
	if left := names(t, dir); len(left) != 4 {
		t.Errorf("in the state dir are %q", left)
	}
}

// What can be read is not rebuilt, and a rebuild that fails changes nothing.
func TestRebuildRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	path := s.Path()
	var locked *LockedError
	if _, err := rebuild(dir, putOne); !errors.As(err, &locked) || locked.Holder.PID != os.Getpid() {
		t.Errorf("while it is open: %v", err)
	}
	s.Close()
	was := digest(t, path)
	if _, err := rebuild(dir, putOne); !errors.Is(err, ErrReadable) || !strings.Contains(err.Error(), s.Lineage()) {
		t.Errorf("a sound state: %v", err)
	}
	if digest(t, path) != was {
		t.Error("the sound state was changed")
	}

	if err := os.WriteFile(path, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	no := errors.New("no")
	if _, err := rebuild(dir, func(x Tx) error { return errors.Join(putOne(x), no) }); !errors.Is(err, no) {
		t.Errorf("a fill that fails: %v", err)
	}
	if _, err := Rebuild(context.Background(), Options{Dir: dir}, "x", putOne); err == nil || !strings.Contains(err.Error(), "UUID") {
		t.Errorf("a lineage that is none: %v", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "bad" {
		t.Errorf("state.db is %q", got)
	}
	if left := names(t, dir); len(left) != 1 {
		t.Errorf("left %q", left)
	}
}

// Of rebuilders and openers that come at once one makes the state, and the others
// find it.
func TestRebuildersTakeTurns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	results := make(chan error)
	for range 8 {
		go func() {
			_, err := Rebuild(context.Background(), Options{Dir: dir, Verb: "state rebuild", Wait: 30 * time.Second}, someLineage, putOne)
			results <- err
		}()
	}
	made := 0
	for range 8 {
		switch err := <-results; {
		case err == nil:
			made++
		case !errors.Is(err, ErrReadable):
			t.Error(err)
		}
	}
	if made != 1 {
		t.Errorf("%d rebuilt it", made)
	}
	isRebuilt(t, dir)
}
