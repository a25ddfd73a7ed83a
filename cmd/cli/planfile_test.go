package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What a command is asked to write replaces files, and nothing else: -out=/dev/null does
// not put a file in the place of a device.
func TestWriteOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	content := func(name, want string) {
		t.Helper()
		if got, err := os.ReadFile(at(name)); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v", name, got, err)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := writeOut(at(name), []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}

	write("new", "one")
	content("new", "one")
	write("new", "two")
	content("new", "two")

	if err := os.Symlink("new", at("link")); err != nil {
		t.Fatal(err)
	}
	write("link", "three")
	content("new", "three")
	if info, err := os.Lstat(at("link")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link became %v, %v", info, err)
	}

	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	end, err := os.OpenFile(at("pipe"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer end.Close()
	write("pipe", "four")
	got := make([]byte, 10)
	if n, err := end.Read(got); err != nil || string(got[:n]) != "four" {
		t.Errorf("through the pipe came %q, %v", got[:n], err)
	}
	if info, err := os.Lstat(at("pipe")); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe became %v, %v", info, err)
	}

	if err := writeOut(dir, nil, 0o600); err == nil || !strings.Contains(err.Error(), "it is a directory") {
		t.Errorf("a directory: %v", err)
	}
	if err := writeOut(at("no/file"), nil, 0o600); err == nil {
		t.Error("it went into a directory that is not there")
	}
	if err := writeOut(at("new/file"), nil, 0o600); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}
