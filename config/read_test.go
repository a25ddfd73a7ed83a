package config

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A file that is no file, or that never ends, is an error and nothing that is waited for
// or left out.
func TestWhatCannotBeReadWhole(t *testing.T) {
	pipe := func(dir, name string) {
		t.Helper()
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"more.hcl", "pinfold.pfvars", "m/more.hcl"} {
		t.Run(name, func(t *testing.T) {
			dir := directory(t, map[string]string{"main.hcl": `module "m" { source = "./m" }`, "m/main.hcl": "locals {}"})
			pipe(dir, name)
			s, diags := Load(dir, Inputs{})
			if s != nil || len(diags) != 1 || !strings.Contains(diags[0].Detail, name+" cannot be read: it is not a regular file") {
				t.Errorf("%t, %s", s != nil, show(t, diags))
			}
		})
	}
	t.Run("directories are no files", func(t *testing.T) {
		dir := directory(t, map[string]string{"main.hcl": "locals {}", "old.hcl/main.hcl": "nonsense"})
		mustLoad(t, dir, Inputs{})
	})
	t.Run("a file that waits", func(t *testing.T) {
		const path = "/proc/kmsg" // the kernel's messages: a regular file, of which a reader waits for more
		if f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			t.Skip(err)
		} else {
			f.Close()
		}
		began := time.Now()
		if _, err := readBounded(path); err == nil {
			t.Error("it was read")
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("it took %s", took)
		}
	})
	t.Run("one without an end", func(t *testing.T) {
		_, err := readGiven("/dev/zero")
		if err == nil || !strings.Contains(err.Error(), "more than the 16777216 bytes") {
			t.Error(err)
		}
		if content, err := readGiven(os.DevNull); err != nil || len(content) > 0 {
			t.Errorf("%q, %v", content, err)
		}
	})
	t.Run("values from a pipe", func(t *testing.T) {
		dir := directory(t, map[string]string{"main.hcl": `variable "x" {}`})
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := w.WriteString("x = 7\n"); err != nil {
			t.Fatal(err)
		}
		w.Close()
		s := mustLoad(t, dir, Inputs{VarFiles: []string{"/proc/self/fd/" + strconv.FormatUint(uint64(r.Fd()), 10)}})
		if got := s.Variables["x"].Text; got != "7\n" && got != "7" {
			t.Errorf("x is %q", got)
		}
	})
}
