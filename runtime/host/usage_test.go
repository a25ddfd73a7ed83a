package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// usageWorld is a host with one volume and where its files lie.
func usageWorld(t *testing.T) (*Host, string, func() runtime.Usage) {
	h, _ := openTest(t, nil)
	if err := h.EnsureVolume(t.Context(), runtime.Volume{ID: "vol"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.RemoveVolume(context.Background(), "vol"); err != nil {
			t.Error(err)
		}
	})
	return h, h.volumeDir("vol"), func() runtime.Usage {
		t.Helper()
		u, err := h.VolumeUsage(t.Context(), "vol")
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What counts is what the disk gives: a file of two names once, nothing for a hole, and
// nothing of where a link leads or of what is mounted below.
func TestUsageIsOfTheVolumeAlone(t *testing.T) {
	_, dir, usage := usageWorld(t)
	const size = 1 << 20
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.Mkdir(outside, 0o755))
	must(t, os.WriteFile(filepath.Join(outside, "big"), make([]byte, 8*size), 0o644))

	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "a/b/file"), []byte(strings.Repeat("x", size)), 0o600))
	before := usage()
	if before.Files != 1 || before.Bytes < size || before.Bytes > size+1<<18 || before.Partial || before.Path != dir {
		t.Errorf("one file of %d bytes: %+v", size, before)
	}
	must(t, os.Link(filepath.Join(dir, "a/b/file"), filepath.Join(dir, "a/again")))
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	must(t, os.Symlink(dir, filepath.Join(dir, "a/loop")))
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "hole"), nil, 0o600))
	must(t, os.Truncate(filepath.Join(dir, "hole"), 64*size))
	must(t, os.Mkdir(filepath.Join(dir, "mounted"), 0o755))
	must(t, unix.Mount("tmpfs", filepath.Join(dir, "mounted"), "tmpfs", 0, "size=16m"))
	t.Cleanup(func() {
		if err := unix.Unmount(filepath.Join(dir, "mounted"), 0); err != nil {
			t.Error(err)
		}
	})
	must(t, os.WriteFile(filepath.Join(dir, "mounted/big"), make([]byte, 8*size), 0o644))
	after := usage()
	if after.Files != 5 || after.Bytes-before.Bytes > 1<<18 || after.Partial {
		t.Errorf("with a second name, links, a pipe and a hole: %+v, before %+v", after, before)
	}
}

// Sandboxes nest directories as deep as they like.
func TestUsageOfADeepVolume(t *testing.T) {
	_, dir, usage := usageWorld(t)
	at, err := unix.Open(dir, unix.O_PATH, 0)
	must(t, err)
	for range 3000 { // longer than any path may be
		must(t, unix.Mkdirat(at, "d", 0o700))
		under, err := unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = under
	}
	must(t, unix.Close(at))
	if u := usage(); !u.Partial {
		t.Errorf("it is %+v", u)
	}
}

// What goes or changes its kind while it is counted is no error.
func TestUsageUnderChange(t *testing.T) {
	h, dir, usage := usageWorld(t)
	var changing sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	changing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := filepath.Join(dir, fmt.Sprint(i%7))
			for _, err := range []error{os.MkdirAll(filepath.Join(name, "x/y"), 0o700), os.WriteFile(filepath.Join(name, "x/f"), []byte("x"), 0o600), os.RemoveAll(name), os.Symlink("/", name), os.Remove(name)} {
				if err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range 500 {
		if u := usage(); u.Files > 20 || u.Partial {
			t.Errorf("it is %+v", u)
			break
		}
	}
	stop()
	changing.Wait()

	ended, end := context.WithCancel(t.Context())
	end()
	if u, err := h.VolumeUsage(ended, "vol"); !errors.Is(err, context.Canceled) || u.Path != dir {
		t.Errorf("after its end: %+v, %v", u, err)
	}
}

func TestUsageOfWhatIsNoVolume(t *testing.T) {
	h, dir, usage := usageWorld(t)
	must(t, os.WriteFile(h.volumeDir("file"), []byte("x"), 0o600))
	must(t, os.Symlink(dir, h.volumeDir("link")))
	for _, id := range []string{"file", "link", "none"} {
		if u, err := h.VolumeUsage(t.Context(), id); !errors.Is(err, runtime.ErrNotFound) {
			t.Errorf("%s: %+v, %v", id, u, err)
		}
		must(t, os.RemoveAll(h.volumeDir(id)))
	}
	if u, err := h.VolumeUsage(t.Context(), "../instances"); err == nil {
		t.Errorf("a path for an id: %+v", u)
	}
	usage()
	m := meter{usage: &runtime.Usage{}}
	for _, gone := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP} {
		if m.lacks(gone); m.usage.Partial {
			t.Errorf("%v counts as unread", gone)
		}
	}
	if m.lacks(unix.EIO); !m.usage.Partial {
		t.Error("a failing disk counts as read")
	}
}
