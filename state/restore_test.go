package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func restoreFrom(dir, backup, lineage string, force bool) (*Restored, error) {
	return Restore(context.Background(), Options{Dir: dir, Verb: "state restore"}, Restoration{Backup: backup, Lineage: lineage, Force: force})
}

// backedUp makes a state with a backup and a change after it, and closes it.
func backedUp(t *testing.T, dir string) (backup *Report, says map[string]string) {
	t.Helper()
	s := open(t, dir)
	fill(t, s)
	says, err := content(s)
	if err != nil {
		t.Fatal(err)
	}
	backup, err = s.Backup()
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, func(x Tx) error {
		return errors.Join(x.Delete(Sandboxes, "sandbox.a"), x.Put(Sandboxes, "sandbox.b", []byte("b")), x.Bump(), x.Bump())
	})
	s.Close()
	return backup, says
}

// isRestored checks that the state says what the backup did, but for the serial.
func isRestored(t *testing.T, dir string, r *Restored, want map[string]string) {
	t.Helper()
	s := open(t, dir)
	defer s.Close()
	says, err := content(s)
	if err != nil {
		t.Fatal(err)
	}
	view(t, s, func(x Tx) error {
		if x.Serial() != r.Serial || r.Serial <= 3 {
			t.Errorf("serial %d, told was %d", x.Serial(), r.Serial)
		}
		return nil
	})
	says["serial"] = want["serial"]
	if !maps.Equal(says, want) {
		t.Errorf("it says %v, not %v", says, want)
	}
}

// A sound state is moved aside as a damaged one is; both are still there.
func TestRestore(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(path string) error{
		"sound":     func(string) error { return nil },
		"cut":       func(path string) error { return os.Truncate(path, 5000) },
		"empty":     func(path string) error { return os.Truncate(path, 0) },
		"missing":   os.Remove,
		"directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"fifo":      func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
		"link":      func(path string) error { return errors.Join(os.Remove(path), os.Symlink("/nowhere", path)) },
		"later":     func(path string) error { setSchema(t, path, "9"); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			backup, want := backedUp(t, dir)
			path := filepath.Join(dir, fileName)
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			was, _ := os.Lstat(path)
			copied := digest(t, backup.Path)
			r, err := restoreFrom(dir, backup.Path, "", false)
			if err != nil {
				t.Fatal(err)
			}
			is, err := os.Lstat(r.Aside)
			switch {
			case was == nil:
				if r.Aside != "" {
					t.Errorf("aside is %s, of nothing", r.Aside)
				}
			case err != nil || !os.SameFile(was, is):
				t.Errorf("aside is %v, %v", is, err)
			}
			isRestored(t, dir, r, want)
			if digest(t, backup.Path) != copied {
				t.Error("the backup was changed")
			}
		})
	}
}

// What is refused changes nothing.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	backup, _ := backedUp(t, dir)
	path := filepath.Join(dir, fileName)
	was := digest(t, path)

	other := t.TempDir()
	foreign, _ := backedUp(t, other)
	good, err := os.ReadFile(backup.Path)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, content []byte) string {
		path := filepath.Join(other, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	later := file("later", good)
	setSchema(t, later, "9")
	older := file("older", good)
	setSchema(t, older, "0")
	for name, c := range map[string]struct {
		backup string
		is     error
	}{
		"cut":             {file("cut", good[:len(good)/2]), ErrDamaged},
		"document":        {file("document", bytes.ReplaceAll(good, []byte(`{"n":1}`), []byte(`{"n":2}`))), ErrDamaged},
		"empty":           {file("empty", nil), ErrDamaged},
		"later":           {later, ErrSchema},
		"older":           {older, ErrSchema},
		"another lineage": {foreign.Path, ErrLineage},
		"a directory":     {other, ErrNotState},
		"none":            {filepath.Join(other, "none"), os.ErrNotExist},
	} {
		if _, err := restoreFrom(dir, c.backup, "", false); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.backup) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := restoreFrom(dir, path, "", false); err == nil || !strings.Contains(err.Error(), "itself") {
		t.Errorf("itself: %v", err)
	}
	// The file is gone, but whose the directory is is known.
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := restoreFrom(dir, foreign.Path, backup.Lineage, false); !errors.Is(err, ErrLineage) {
		t.Errorf("another lineage where the state is gone: %v", err)
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}

	s := open(t, dir)
	var locked *LockedError
	if _, err := restoreFrom(dir, backup.Path, "", false); !errors.As(err, &locked) || locked.Holder.PID != os.Getpid() {
		t.Errorf("while it is open: %v", err)
	}
	s.Close()
	if digest(t, path) != was {
		t.Error("the state was changed")
	}
	for _, left := range names(t, dir) {
		if left != fileName && left != backupsName {
			t.Errorf("left %q", left)
		}
	}

	if r, err := restoreFrom(dir, foreign.Path, "", true); err != nil || r.Backup.Lineage != foreign.Lineage {
		t.Errorf("forced: %+v, %v", r, err)
	}
}

// The way that loses least comes first; of the backup it says how old it is and what
// it forgets.
func TestWordsSayHowAStateComesBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	backup, _ := backedUp(t, dir)
	newer := filepath.Join(dir, backupsName, "state-29991231T000000Z-9.db")
	if err := os.WriteFile(newer, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, fileName)
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	_, err := Open(context.Background(), Options{Dir: dir})
	if !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
	want := "cannot open state " + path + ": the state file is damaged: it is cut short: 100 bytes of 24576; nothing was changed\n" +
		"'pinfold state verify' tells all that is wrong with it\n" +
		"'pinfold state rebuild' makes the records anew from what is on this host: it keeps everything that runs, as it is now\n" +
		"'pinfold state restore " + backup.Path + "' goes back to " + backup.At.Format(time.RFC3339) + " (Ns ago): it forgets what was changed, renewed or held since then"
	if got := regexp.MustCompile(`\(\d+s ago\)`).ReplaceAllString(err.Error(), "(Ns ago)"); got != want {
		t.Errorf("it says\n%s\nnot\n%s", got, want)
	}
	if err := os.RemoveAll(filepath.Join(dir, backupsName)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "there is no sound backup in "+filepath.Join(dir, backupsName)) {
		t.Errorf("without a backup: %v", err)
	}
}

// An agent has the file open until it is stopped.
func TestWordsUnderAnAgent(t *testing.T) {
	t.Parallel()
	for verb, served := range map[string]bool{"apply": false, "agent -run-dir /run/x": true} {
		s, err := Open(context.Background(), Options{Dir: t.TempDir(), Verb: verb})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(s.Path(), 4096); err != nil {
			t.Fatal(err)
		}
		_, err = content(s)
		if !errors.Is(err, ErrDamaged) || strings.Contains(err.Error(), "\nstop the agent first, then\n'pinfold state rebuild'") != served {
			t.Errorf("%s: %v", verb, err)
		}
		s.Close()
	}
}

func TestAgo(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "by a clock that was ahead", 0: "0s ago", 119 * time.Second: "119s ago", 2 * time.Minute: "2m ago",
		90 * time.Minute: "90m ago", 47 * time.Hour: "47h ago", 75 * time.Hour: "3 days ago",
	} {
		if got := ago(d); got != want {
			t.Errorf("%v: %q, not %q", d, got, want)
		}
	}
}

// However fast one follows the other, and though of the file between nothing can be
// read, a serial is beyond all before.
func TestSerialsOfRestoresGrow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	backup, _ := backedUp(t, dir)
	var last uint64
	for round := range 12 {
		var serial uint64
		if round%4 == 3 {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			if _, err := rebuild(dir, putOne); err != nil {
				t.Fatal(err)
			}
			r, err := VerifyFile(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			serial = r.Serial
		} else {
			r, err := restoreFrom(dir, backup.Path, "", true)
			if err != nil {
				t.Fatal(err)
			}
			serial = r.Serial
		}
		if serial <= last {
			t.Fatalf("round %d: serial %d comes after %d", round, serial, last)
		}
		s := open(t, dir)
		for range 3 {
			update(t, s, func(x Tx) error { last = x.Serial() + 1; return x.Bump() })
		}
		s.Close()
		if round%2 == 0 {
			if err := os.Truncate(path, 100); err != nil {
				t.Fatal(err)
			}
		}
	}
	// A clock that was stepped back: what lies aside is known, though.
	ahead := filepath.Join(dir, backupsName, "state-29991231T000000Z-9000000000000000.db")
	if err := os.WriteFile(ahead, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := restoreFrom(dir, backup.Path, "", true); err != nil || r.Serial != 9000000000000001 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.Remove(ahead); err != nil {
		t.Fatal(err)
	}
	for range 2 { // by the file, then by what lies aside
		r, err := restoreFrom(dir, backup.Path, "", true)
		if err != nil || r.Serial < 9000000000002 {
			t.Errorf("%+v, %v", r, err)
		}
		if err := os.Truncate(path, 100); err != nil {
			t.Fatal(err)
		}
	}
}

// What it would do is told, or why not, and nothing is changed.
func TestRestoreDryRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	backup, want := backedUp(t, dir)
	was := digest(t, filepath.Join(dir, fileName))
	try := func(r Restoration) (*Restored, error) {
		return Restore(context.Background(), Options{Dir: dir, Verb: "state restore"}, r)
	}
	r, err := try(Restoration{Backup: backup.Path, DryRun: true})
	if err != nil || r.Aside != "" || r.Backup.Lineage != backup.Lineage || !r.Backup.At.Equal(backup.At) || backup.At.IsZero() {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := try(Restoration{Backup: backup.Path + ".none", DryRun: true}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	if digest(t, filepath.Join(dir, fileName)) != was {
		t.Error("the state was changed")
	}
	for _, left := range names(t, dir) {
		if left != fileName && left != backupsName {
			t.Errorf("left %q", left)
		}
	}
	fill := func(x Tx) error { _, err := x.Append(History, []byte("restored")); return err }
	done, err := try(Restoration{Backup: backup.Path, Fill: fill})
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	events := keys(t, s, History)
	view(t, s, func(x Tx) error {
		if last := string(x.Get(History, events[len(events)-1])); last != "restored" {
			t.Errorf("the last event is %q", last)
		}
		return nil
	})
	update(t, s, func(x Tx) error { return x.Delete(History, events[len(events)-1]) })
	s.Close()
	isRestored(t, dir, done, want)
}

// swapping is the other process of TestKilledWhileRestoring: it restores two backups
// in turn, without end.
func swapping(dir string, from ...string) {
	for n := 0; ; n++ {
		if _, err := restoreFrom(dir, from[n%2], "", false); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

// Whoever is killed while restoring leaves one state or the other, whole, and what
// was there before is kept.
func TestKilledWhileRestoring(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, fileName)
	first, _ := backedUp(t, dir)
	s := open(t, dir)
	update(t, s, func(x Tx) error { return x.Put(Sandboxes, "sandbox.c", []byte("c")) })
	second, err := s.Backup()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	seen := map[string]int{}
	for round := range 20 {
		p := start(t, "swap", dir, first.Path, second.Path)
		for range 1 + round%3 {
			if line := p.line(t); len(line) > 3 {
				t.Fatalf("the restorer said %q", line)
			}
		}
		p.kill()
		r, err := VerifyFile(path, nil)
		if err != nil || !r.Sound() || r.Lineage != first.Lineage {
			t.Fatalf("round %d: %+v, %v", round, r, err)
		}
		s := open(t, dir)
		has := strings.Join(keys(t, s, Sandboxes), " ")
		s.Close()
		if has != "sandbox.a" && has != "sandbox.b sandbox.c" {
			t.Fatalf("round %d: it records %q", round, has)
		}
		seen[has]++
	}
	t.Log(seen)
	kept, err := filepath.Glob(path + ".bad-*")
	if err != nil || len(kept) < 20 {
		t.Errorf("%d files are kept, %v", len(kept), err)
	}
	for _, path := range kept {
		if r, err := VerifyFile(path, nil); err != nil || !r.Sound() {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
}
