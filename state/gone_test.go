package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A file that nobody will ever open again takes no change: whoever has it open is
// told so, by each use, until the file is back.
func TestFileTakenAwayUnderTheStore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put := func(key string) error {
		return s.Update(func(x Tx) error { return x.Put(Sandboxes, key, []byte(key)) })
	}
	has := func(key string) (has bool) {
		t.Helper()
		if err := s.View(func(x Tx) error { has = x.Get(Sandboxes, key) != nil; return nil }); err != nil {
			t.Fatal(err)
		}
		return has
	}
	if err := put("before"); err != nil {
		t.Fatal(err)
	}
	path, aside := filepath.Join(dir, fileName), filepath.Join(dir, "aside")
	for _, c := range []struct {
		what string
		take func() error
	}{
		{"moved away", func() error { return os.Rename(path, aside) }},
		{"replaced", func() error {
			if err := os.Rename(path, aside); err != nil {
				return err
			}
			old, err := os.ReadFile(aside)
			if err != nil {
				return err
			}
			return os.WriteFile(path, old, 0o600)
		}},
	} {
		if err := c.take(); err != nil {
			t.Fatal(err)
		}
		err := put(c.what)
		if !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
			t.Errorf("%s, an update: %v", c.what, err)
		}
		if err := s.View(func(Tx) error { return nil }); !errors.Is(err, ErrGone) {
			t.Errorf("%s, a view: %v", c.what, err)
		}
		if err := os.Rename(aside, path); err != nil {
			t.Fatal(err)
		}
		if has(c.what) {
			t.Errorf("%s: the refused change is in the file", c.what)
		}
		if err := put("after " + c.what); err != nil {
			t.Errorf("put back: %v", err)
		}
	}
	if !has("before") {
		t.Error("what was there is not")
	}
}

// One that goes between the commit and its confirmation leaves the outcome open.
func TestFileTakenAwayDuringACommit(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir).(*store)
	inside := false
	err := s.Update(func(x Tx) error {
		x.(*tx).bolt.OnCommit(func() {
			inside = true
			if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
				t.Error(err)
			}
		})
		return x.Put(Sandboxes, "a", nil)
	})
	if !inside || !errors.Is(err, ErrOutcome) {
		t.Errorf("confirmed: %v", err)
	}
}

func TestAReaderIsNotDisturbed(t *testing.T) {
	dir := t.TempDir()
	open(t, dir).Close()
	s, err := Open(context.Background(), Options{Dir: dir, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Remove(filepath.Join(dir, fileName)); err != nil {
		t.Fatal(err)
	}
	if err := s.View(func(Tx) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestWhoeverWaitsIsToldOnceForWhom(t *testing.T) {
	dir := t.TempDir()
	other := start(t, "hold", dir)
	other.line(t)
	told := 0
	s, err := Open(context.Background(), Options{Dir: dir, Wait: time.Minute, ReadOnly: true, Waiting: func(h Holder) {
		told++
		if h.PID != other.Process.Pid || h.Verb != "apply" {
			t.Errorf("waiting for %+v, not pid %d", h, other.Process.Pid)
		}
		other.stdin.Close()
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}
