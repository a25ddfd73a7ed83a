package state

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestReplace(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s := open(t, dir)
	lineage := s.Lineage()
	put := func(tx Tx) error { return tx.Put(Networks, "network.n", []byte(`{"address":"network.n"}`)) }
	to := Replacement{Name: "s.json", Lineage: lineage, Serial: 7, Fill: put}
	if _, err := Replace(ctx, Options{Dir: dir}, to); !errors.Is(err, ErrLocked) {
		t.Errorf("while somebody has it: %v", err)
	}
	// A step that waits for its end.
	if err := s.Update(func(tx Tx) error { _, err := tx.Append(Journal, []byte(`{}`)); return err }); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := Replace(ctx, Options{Dir: dir}, to); err == nil {
		t.Error("a step that was cut off is forgotten")
	}
	to.Force = true
	done, err := Replace(ctx, Options{Dir: dir}, to)
	if err != nil || done.Aside == "" || done.Serial <= 7 {
		t.Fatalf("%+v, %v", done, err)
	}
	if r, err := VerifyFile(done.Aside, nil); err != nil || !r.Sound() || r.Documents[Journal] != 1 {
		t.Errorf("what was there: %+v, %v", r, err)
	}
	s = open(t, dir)
	if s.Lineage() != lineage {
		t.Errorf("the lineage is %s", s.Lineage())
	}
	if err := s.View(func(tx Tx) error {
		if tx.Serial() != done.Serial || tx.Get(Networks, "network.n") == nil {
			t.Errorf("serial %d, document %s", tx.Serial(), tx.Get(Networks, "network.n"))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.Close()

	// An error of Fill, a dry run and a damaged state leave everything as it is.
	path := filepath.Join(dir, fileName)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	same := func(what string) {
		t.Helper()
		if now, err := os.ReadFile(path); err != nil || string(now) != string(before) {
			t.Errorf("%s: the state was changed, %v", what, err)
		}
		if _, err := os.Stat(path + ".new"); !os.IsNotExist(err) {
			t.Errorf("%s: a half-made state is left, %v", what, err)
		}
	}
	broken := errors.New("no document")
	if _, err := Replace(ctx, Options{Dir: dir}, Replacement{Lineage: lineage, Force: true, Fill: func(Tx) error { return broken }}); !errors.Is(err, broken) {
		t.Errorf("an error of Fill: %v", err)
	}
	same("an error of Fill")
	to.DryRun = true
	if done, err := Replace(ctx, Options{Dir: dir}, to); err != nil || done.Aside != "" {
		t.Errorf("a dry run: %+v, %v", done, err)
	}
	same("a dry run")
	if err := os.Truncate(path, 4096); err != nil {
		t.Fatal(err)
	}
	before = before[:4096]
	to.DryRun = false
	if _, err := Replace(ctx, Options{Dir: dir}, to); !errors.Is(err, ErrDamaged) {
		t.Errorf("a damaged state: %v", err)
	}
	same("a damaged state")
}
