package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func fill(t testing.TB, s Store) {
	t.Helper()
	update(t, s, func(x Tx) error {
		return errors.Join(x.Put(Sandboxes, "sandbox.a", []byte(`{"n":1}`)), x.SetMeta("config_dir", "/srv"), x.Bump())
	})
}

func backups(t testing.TB, dir string) (found []BackupFile) {
	t.Helper()
	found, err := Backups(dir)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A day's first opening for writing makes a backup of what was recorded before,
// and no other does.
func TestDailyBackup(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	s := open(t, dir)
	if all := backups(t, dir); len(all) != 0 {
		t.Fatalf("of an empty state there are %v", all)
	}
	fill(t, s)
	want, err := content(s)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if s, err := Open(context.Background(), Options{Dir: dir, ReadOnly: true}); err != nil {
		t.Fatal(err)
	} else {
		s.Close()
	}
	if all := backups(t, dir); len(all) != 0 {
		t.Fatalf("looking made %v", all)
	}
	today := time.Now().UTC().Format(time.DateOnly)
	for range 3 {
		s = open(t, dir)
		update(t, s, func(x Tx) error { return x.Put(Sandboxes, "sandbox.b", []byte("later")) })
		s.Close()
	}
	all := backups(t, dir)
	if len(all) != 1 && today == time.Now().UTC().Format(time.DateOnly) {
		t.Fatalf("after three openings there are %v", all)
	}
	first := all[len(all)-1]
	if !regexp.MustCompile(`/state/backups/state-\d{8}T\d{6}Z-1\.db$`).MatchString(first.Path) || time.Since(first.At) > time.Hour || first.Serial != 1 {
		t.Errorf("%+v", first)
	}
	for path, mode := range map[string]fs.FileMode{filepath.Dir(first.Path): 0o700 | fs.ModeDir, first.Path: 0o600} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != mode {
			t.Errorf("%s: %v, %v", path, fi.Mode(), err)
		}
	}
	if says := contentOf(t, first.Path); !maps.Equal(says, want) {
		t.Errorf("the backup says %v, not %v", says, want)
	}
	if left := names(t, filepath.Join(dir, backupsName)); len(left) != len(all) {
		t.Errorf("in backups are %q", left)
	}
}

// contentOf opens a copy of a state file as one and returns what it says.
func contentOf(t testing.TB, path string) map[string]string {
	t.Helper()
	boltCheck(t, path)
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), file, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	defer s.Close()
	says, err := content(s)
	if err != nil {
		t.Fatal(err)
	}
	return says
}

// The newest of each kind are kept, and none that was asked for is deleted.
// A backup that was made is one, though older ones cannot be removed.
func TestBackupWithoutRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	fill(t, s)
	old := time.Now().AddDate(0, 0, -20)
	for i := range keepDaily {
		path := filepath.Join(dir, backupsName, fmt.Sprintf("state-%s-%d.db", old.AddDate(0, 0, i).UTC().Format(stampLayout), i))
		if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	made, err := s.BackupDaily()
	if made == nil || err == nil || strings.Contains(err.Error(), "no backup") || !strings.Contains(err.Error(), made.Path) {
		t.Fatalf("%+v, %v", made, err)
	}
	if r, err := VerifyFile(made.Path, nil); err != nil || !r.Sound() {
		t.Errorf("%+v, %v", r, err)
	}
	if again, err := s.BackupDaily(); again != nil || err != nil {
		t.Errorf("another one the same day: %+v, %v", again, err)
	}
}

func TestBackupsRotate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	fill(t, s)
	asked, err := s.Backup()
	if err != nil || !strings.HasSuffix(asked.Path, "-1-manual.db") || !asked.Sound() {
		t.Fatalf("%+v, %v", asked, err)
	}
	old := time.Now().AddDate(0, 0, -20)
	for i := range 12 {
		for _, kind := range []string{"", "-before-schema-2", "-manual"} {
			at := old.AddDate(0, 0, i).UTC().Format(stampLayout)
			if err := os.Link(asked.Path, filepath.Join(dir, backupsName, fmt.Sprintf("state-%s-%d%s.db", at, i, kind))); err != nil {
				t.Fatal(err)
			}
		}
	}
	foreign := filepath.Join(dir, backupsName, "state-mine.db")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := s.BackupDaily()
	if err != nil || made == nil {
		t.Fatal(made, err)
	}
	if _, err := s.(*store).backup(converted, "2"); err != nil {
		t.Fatal(err)
	}
	have := map[string]int{}
	for _, b := range backups(t, dir) {
		have[b.kind]++
		if b.kind != manual && b.At.Before(old.AddDate(0, 0, 12-keepDaily)) {
			t.Errorf("%s is kept, newer ones are not", b.Path)
		}
	}
	if want := map[string]int{daily: keepDaily, converted: keepConverted, manual: 13}; !maps.Equal(have, want) {
		t.Errorf("kept are %v, not %v", have, want)
	}
	for _, path := range []string{foreign, made.Path} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

// A clock that was ahead once does not make today's backup the oldest.
func TestBackupOfTodayStaysThoughOthersAreOfTomorrow(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	fill(t, s)
	asked, err := s.Backup()
	if err != nil {
		t.Fatal(err)
	}
	for i := range keepDaily + 2 {
		at := time.Now().AddDate(0, 0, 5+i).UTC().Format(stampLayout)
		if err := os.Link(asked.Path, filepath.Join(dir, backupsName, "state-"+at+"-1.db")); err != nil {
			t.Fatal(err)
		}
	}
	made, err := s.BackupDaily()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(made.Path); err != nil {
		t.Error(err)
	}
}

// What keeps a backup from being made is told, and keeps nothing else.
func TestNoBackupStopsNoWork(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		says  string
	}{
		"a file in its place": {func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, backupsName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "not a directory"},
		"a link in its place": {func(t *testing.T, dir string) {
			if err := os.Symlink(t.TempDir(), filepath.Join(dir, backupsName)); err != nil {
				t.Fatal(err)
			}
		}, "not a directory"},
		"open to all": {func(t *testing.T, dir string) {
			backups := filepath.Join(dir, backupsName)
			if err := errors.Join(os.Mkdir(backups, 0o700), os.Chmod(backups, 0o777)); err != nil {
				t.Fatal(err)
			}
		}, "chmod 0700"},
		"read-only": {func(t *testing.T, dir string) {
			backups := filepath.Join(dir, backupsName)
			if err := os.Mkdir(backups, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("pinfold-state-test", backups, "tmpfs", unix.MS_RDONLY, "mode=0700"); err != nil {
				t.Fatalf("this test needs root, to mount a tmpfs: %v", err)
			}
			t.Cleanup(func() {
				if err := unix.Unmount(backups, 0); err != nil {
					t.Error(err)
				}
			})
		}, "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			fill(t, s)
			s.Close()
			c.spoil(t, dir)
			var warned []string
			s, err := Open(context.Background(), Options{Dir: dir, Warn: func(err error) { warned = append(warned, err.Error()) }})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if len(warned) != 1 || !strings.Contains(warned[0], c.says) || !strings.Contains(warned[0], dir) {
				t.Errorf("warned of %q", warned)
			}
			update(t, s, func(x Tx) error { return x.Put(Sandboxes, "sandbox.b", []byte("b")) })
		})
	}
}

// A backup that nobody asked for leaves the work its space.
func TestFullDiskGetsNoBackup(t *testing.T) {
	dir := small(t, "4m")
	s := open(t, dir)
	fill(t, s)
	update(t, s, func(x Tx) error { return x.Put(Images, "image.a", make([]byte, 300_000)) })
	s.Close()
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	var warned error
	s, err := Open(context.Background(), Options{Dir: dir, Warn: func(err error) { warned = err }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !errors.Is(warned, ErrDiskFull) {
		t.Errorf("warned of %v", warned)
	}
	if _, err := os.Stat(filepath.Join(dir, backupsName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("backups: %v", err)
	}
	update(t, s, func(x Tx) error { return x.Put(Sandboxes, "sandbox.b", []byte("b")) })
	// One that is asked for and does not fit leaves no half of itself.
	full, err := os.OpenFile(filepath.Join(dir, "rest"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for err == nil {
		_, err = full.Write(make([]byte, 4096))
	}
	if _, err := s.Backup(); !errors.Is(err, ErrDiskFull) {
		t.Errorf("asked for one: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, backupsName)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// A damaged state makes no backup, and so drives out no sound one.
func TestDamagedStateGetsNoBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	update(t, s, func(x Tx) error { return x.Put(Sandboxes, "sandbox.a", []byte("to be damaged")) })
	sound, err := s.Backup()
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	file, err := os.ReadFile(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(), bytes.ReplaceAll(file, []byte("to be damaged"), []byte("To be damaged")), 0o600); err != nil {
		t.Fatal(err)
	}
	var warned error
	s, err = Open(context.Background(), Options{Dir: dir, Warn: func(err error) { warned = err }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !errors.Is(warned, ErrDamaged) || !strings.Contains(warned.Error(), "sandbox.a") || !strings.Contains(warned.Error(), "pinfold state restore "+sound.Path) {
		t.Errorf("warned of %v", warned)
	}
	if left := names(t, filepath.Join(dir, backupsName)); len(left) != 1 {
		t.Errorf("in backups are %q", left)
	}
	_, err = content(s)
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "pinfold state restore "+sound.Path) {
		t.Errorf("reading it: %v", err)
	}
}

// Backups are made whole while others write, and by several at a time.
func TestBackupsWhileWriting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		for i := uint64(1); ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			err := s.Update(func(x Tx) error {
				return errors.Join(x.Put(Sandboxes, "sandbox.a", fmt.Appendf(nil, "%d", x.Serial()+1)), x.Put(Images, fmt.Sprint(i%64), bytes.Repeat([]byte("i"), 2000)), x.Bump())
			})
			if err != nil {
				done <- err
				return
			}
		}
	}()
	results := make(chan error)
	for range 4 {
		go func() {
			for range 5 {
				if _, err := s.Backup(); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	for range 4 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for _, b := range backups(t, dir) {
		says := contentOf(t, b.Path)
		if serial := fmt.Sprint(b.Serial); says["serial"] != serial || b.Serial > 0 && says["sandboxes sandbox.a"] != serial {
			t.Errorf("%s: serial %s, document %s", b.Path, says["serial"], says["sandboxes sandbox.a"])
		}
	}
}

func TestHalfMadeBackupIsMadeAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	fill(t, s)
	if err := errors.Join(os.Mkdir(filepath.Join(dir, backupsName), 0o700), os.WriteFile(filepath.Join(dir, backupsName, fileName+".new"), []byte("half"), 0o600)); err != nil {
		t.Fatal(err)
	}
	r, err := s.Backup()
	if err != nil {
		t.Fatal(err)
	}
	if left := names(t, filepath.Join(dir, backupsName)); len(left) != 1 || filepath.Base(r.Path) != left[0] {
		t.Errorf("in backups are %q", left)
	}
}

// Two in one second are two, and the later one is the newer.
func TestBackupsOfOneSecond(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	defer s.Close()
	fill(t, s)
	var made []string // newest first
	for range 12 {
		r, err := s.Backup()
		if err != nil {
			t.Fatal(err)
		}
		made = slices.Insert(made, 0, r.Path)
	}
	var have []string
	for _, b := range backups(t, dir) {
		if b.kind != manual || b.Serial != 1 {
			t.Errorf("%+v", b)
		}
		have = append(have, b.Path)
	}
	if !slices.Equal(have, made) {
		t.Errorf("there are\n%s\nnot\n%s", strings.Join(have, "\n"), strings.Join(made, "\n"))
	}
	if !regexp.MustCompile(`(?m)-1-manual-\d+\.db$`).MatchString(strings.Join(made, "\n")) {
		t.Errorf("no two were of one second: %q", made)
	}
}
