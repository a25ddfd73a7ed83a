package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnsafePlacesAreRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(dir string) error
		says string
		is   error
	}{
		"link": {func(dir string) error {
			return errors.Join(os.Mkdir(dir+".real", 0o700), os.Symlink(dir+".real", dir))
		}, "symbolic link", nil},
		"open to all": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777))
		}, "chmod 0700", nil},
		"sticky": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777|os.ModeSticky))
		}, "chmod 0700", nil},
		"a file": {func(dir string) error { return os.WriteFile(dir, nil, 0o600) }, "not a directory", nil},
		"someone else's": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 12345, 0))
		}, "uid 12345", nil},
		"db is a link": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(dir+".db", nil, 0o600), os.Symlink(dir+".db", filepath.Join(dir, fileName)))
		}, "symbolic link", ErrNotState},
		"db is a dangling link": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Symlink(dir+".db", filepath.Join(dir, fileName)))
		}, "symbolic link", ErrNotState},
		"db is a directory": {func(dir string) error {
			return os.MkdirAll(filepath.Join(dir, fileName), 0o700)
		}, "not a regular file", ErrNotState},
		"db is a fifo": {func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), unix.Mkfifo(filepath.Join(dir, fileName), 0o600))
		}, "not a regular file", ErrNotState},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			dir := filepath.Join(parent, "state")
			if err := tc.make(dir); err != nil {
				t.Fatal(err)
			}
			for _, readOnly := range []bool{false, true} {
				s, err := Open(context.Background(), Options{Dir: dir + "/", ReadOnly: readOnly})
				if err == nil {
					s.Close()
					t.Fatal("was opened")
				}
				if !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), dir) || !errors.Is(err, tc.is) && tc.is != nil {
					t.Errorf("says %q", err)
				}
			}
			filepath.Walk(parent, func(path string, _ os.FileInfo, _ error) error {
				if base := filepath.Base(path); strings.HasPrefix(base, holderName) || strings.HasSuffix(base, ".new") {
					t.Errorf("left %s", path)
				}
				return nil
			})
		})
	}
}

func TestHalfMadeStateIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName+".new"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir).Close()
	if left := names(t, dir); !slices.Equal(left, []string{fileName}) {
		t.Errorf("left %q", left)
	}
}

// small mounts a file system of a few pages.
func small(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("pinfold-state-test", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Fatalf("this test needs root, to mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) {
	dir := small(t, "1m")
	s := open(t, dir)
	doc := bytes.Repeat([]byte("d"), 20_000)
	var kept []string
	var full error
	for i := 0; full == nil && i < 1000; i++ {
		key := fmt.Sprintf("sandbox.s%03d", i)
		if full = s.Update(func(x Tx) error { return errors.Join(x.Put(Sandboxes, key, doc), x.Bump()) }); full == nil {
			kept = append(kept, key)
		}
	}
	if !errors.Is(full, ErrDiskFull) || !strings.Contains(full.Error(), dir) || !strings.Contains(full.Error(), "free space") {
		t.Fatalf("after %d documents: %v", len(kept), full)
	}
	check := func(s Store) {
		t.Helper()
		if got := keys(t, s, Sandboxes); !slices.Equal(got, kept) {
			t.Errorf("documents %q, not %q", got, kept)
		}
		view(t, s, func(x Tx) error {
			if x.Serial() != uint64(len(kept)) {
				t.Errorf("serial %d of %d", x.Serial(), len(kept))
			}
			return nil
		})
	}
	check(s)
	s.Close()
	s = open(t, dir) // on the full disk
	check(s)

	// Room can be made by deleting what is recorded, as destroy does.
	gone := kept[:10]
	for _, key := range gone {
		update(t, s, func(x Tx) error { return x.Delete(Sandboxes, key) })
	}
	update(t, s, func(x Tx) error { return x.Put(Sandboxes, gone[0], doc) })
	s.Close()
	boltCheck(t, filepath.Join(dir, fileName))
}

func TestNoRoomForANewState(t *testing.T) {
	dir := small(t, "8k")
	s, err := Open(context.Background(), Options{Dir: dir})
	if err == nil {
		s.Close()
		t.Fatal("a state fits into 8 KiB")
	}
	if !errors.Is(err, ErrDiskFull) {
		t.Errorf("got %v", err)
	}
	if left := names(t, dir); left != nil {
		t.Errorf("left %q", left)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := small(t, "1m")
	s := open(t, dir)
	update(t, s, func(x Tx) error { return x.Put(Images, "k", []byte("v")) })
	s.Close()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	r, err := Open(context.Background(), Options{Dir: dir, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := get(t, r, Images, "k"); string(got) != "v" {
		t.Errorf("read %q", got)
	}
	r.Close()
	if _, err := Open(context.Background(), Options{Dir: dir}); !errors.Is(err, unix.EROFS) {
		t.Errorf("opening for writing: %v", err)
	}
}
