package seal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestSealedOpensForItsPurposeOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := In(dir)
	if _, err := os.Lstat(b.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("a key before anything is sealed: %v", err)
	}
	secret := []byte(`"correct horse"`)
	first, err := b.Seal(secret, "env")
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.Seal(secret, "env")
	if err != nil {
		t.Fatal(err)
	}
	if first == second || strings.Contains(first, "horse") {
		t.Errorf("sealed twice: %s, %s", first, second)
	}
	info, err := os.Stat(b.Path())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", info.Mode(), err)
	}
	for name, other := range map[string]*Box{"same": b, "another process": In(dir)} {
		if got, err := other.Open(first, "env"); err != nil || !bytes.Equal(got, secret) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if got, err := other.Open(first, "labels"); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s, for another purpose: %q, %v", name, got, err)
		}
	}
}

func TestDamagedAndForeignAreRefused(t *testing.T) {
	t.Parallel()
	b := In(t.TempDir())
	sealed, err := b.Seal([]byte("value"), "p")
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		flipped := []byte(sealed)
		flipped[i] ^= 1
		if got, err := b.Open(string(flipped), "p"); err == nil && !bytes.Equal(got, []byte("value")) {
			t.Errorf("byte %d flipped: %q", i, got)
		} else if err == nil && i < len(sealed)-1 { // the last has bits that mean nothing
			t.Errorf("byte %d flipped and opened", i)
		}
	}
	for _, text := range []string{"", "v1", "v1.", "v2.aaaaaaaa.aaaa", "v1.aaaaaaaa.aaaa", sealed[:len(sealed)-4]} {
		if got, err := b.Open(text, "p"); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNoKey) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestLostKeyIsToldAndMayComeBack(t *testing.T) {
	t.Parallel()
	b := In(t.TempDir())
	sealed, err := b.Seal([]byte("value"), "p")
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(b.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(b.Path()); err != nil {
		t.Fatal(err)
	}
	b = In(filepath.Dir(b.Path()))
	if _, err := b.Open(sealed, "p"); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), b.Path()) {
		t.Fatalf("without a key: %v", err)
	}
	if _, err := os.Lstat(b.Path()); err == nil {
		t.Error("opening has made a key")
	}
	newer, err := b.Seal([]byte("newer"), "p")
	if err != nil {
		t.Fatal(err)
	}
	current, err := os.ReadFile(b.Path())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Path(), append(current, old...), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, text := range map[string]string{"value": sealed, "newer": newer} {
		if got, err := b.Open(text, "p"); err != nil || string(got) != want {
			t.Errorf("with both keys: %q, %v", got, err)
		}
	}
}

func TestUnsafeKeyFilesAreRefused(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(path string) error{
		"mode":   func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o640)) },
		"empty":  func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"other":  func(p string) error { return os.WriteFile(p, []byte("hello\n"), 0o600) },
		"huge":   func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("A"), 1<<20), 0o600) },
		"link":   func(p string) error { return os.Symlink("/dev/zero", p) },
		"folder": func(p string) error { return os.Mkdir(p, 0o700) },
		"pipe":   func(p string) error { return syscall.Mkfifo(p, 0o600) },
	} {
		b := In(t.TempDir())
		if err := make(b.Path()); err != nil {
			t.Fatal(err)
		}
		if sealed, err := b.Seal([]byte("x"), "p"); !errors.Is(err, ErrKeyFile) || !strings.Contains(err.Error(), b.Path()) {
			t.Errorf("%s: %q, %v", name, sealed, err)
		}
	}
}

func TestKeyFileOfAnotherUserIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files to others")
	}
	b := In(t.TempDir())
	sealed, err := b.Seal([]byte("x"), "p")
	if err == nil {
		err = os.Chown(b.Path(), 1234, -1)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := In(filepath.Dir(b.Path())).Open(sealed, "p"); !errors.Is(err, ErrKeyFile) || !strings.Contains(err.Error(), "chown 0 "+b.Path()) {
		t.Errorf("%q, %v", got, err)
	}
}

// What a process seals can be read by the next one, whatever was done to the key file
// in between.
func TestKeyFileChangedUnderUse(t *testing.T) {
	t.Parallel()
	b := In(t.TempDir())
	first, err := b.Seal([]byte("first"), "p")
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, texts ...string) {
		t.Helper()
		for _, text := range texts {
			if _, err := In(filepath.Dir(b.Path())).Open(text, "p"); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	if err := os.Remove(b.Path()); err != nil {
		t.Fatal(err)
	}
	second, err := b.Seal([]byte("second"), "p")
	if err != nil {
		t.Fatal(err)
	}
	check("removed", first, second)

	// Another's key is put there.
	other := In(t.TempDir())
	if _, err := other.Seal(nil, "p"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other.Path(), b.Path()); err != nil {
		t.Fatal(err)
	}
	third, err := b.Seal([]byte("third"), "p")
	if err != nil {
		t.Fatal(err)
	}
	check("replaced", third)

	// The whole directory is gone: whoever writes the state says so, not this one.
	if err := os.RemoveAll(filepath.Dir(b.Path())); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Seal([]byte("fourth"), "p"); err != nil {
		t.Error(err)
	}
}

// Several processes that seal for the first time end up with one key.
func TestOneKeyIsMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var wg sync.WaitGroup
	sealed := make([]string, 16)
	for i := range sealed {
		wg.Go(func() {
			var err error
			if sealed[i], err = In(dir).Seal([]byte("x"), "p"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	b := In(dir)
	for _, text := range sealed {
		if got, err := b.Open(text, "p"); err != nil || string(got) != "x" {
			t.Errorf("%q, %v", got, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the key: %v, %v", entries, err)
	}
}
