package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// logOf is a log file with n numbered lines of 100 bytes.
func logOf(t *testing.T, n int) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for i := range n {
		fmt.Fprintf(f, "%-98d.\n", i)
	}
	return f
}

func sizeOf(t *testing.T, f *os.File) int64 {
	t.Helper()
	end, err := logEnd(f)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

func readFrom(t *testing.T, f *os.File, offset int64) string {
	t.Helper()
	var out bytes.Buffer
	if _, err := copyLog(&out, f, offset, toTheEnd); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestLogTail(t *testing.T) {
	f := logOf(t, 5000) // several blocks
	whole := readFrom(t, f, 0)
	if n := strings.Count(whole, "\n"); n != 5000 {
		t.Fatalf("%d lines", n)
	}
	for _, n := range []int{0, 1, 2, 655, 656, 4999, 5000, 6000} {
		offset, err := logTail(f, n, sizeOf(t, f))
		if err != nil {
			t.Fatal(err)
		}
		got := readFrom(t, f, offset)
		want := min(n, 5000)
		if strings.Count(got, "\n") != want || !strings.HasSuffix(whole, got) {
			t.Errorf("tail of %d: %d lines", n, strings.Count(got, "\n"))
		}
	}
	// Reading moves the descriptor's offset; a writer has its own.
	writer, err := os.OpenFile(f.Name(), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.WriteString("no end"); err != nil {
		t.Fatal(err)
	}
	offset, err := logTail(f, 2, sizeOf(t, f))
	if err != nil {
		t.Fatal(err)
	}
	if got := readFrom(t, f, offset); strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "no end") {
		t.Errorf("tail with an open last line: %q", got)
	}
}

func TestEmptyLog(t *testing.T) {
	f := logOf(t, 0)
	if got := readFrom(t, f, 0); got != "" {
		t.Errorf("%q", got)
	}
	if offset, err := logTail(f, 5, sizeOf(t, f)); err != nil || offset != 0 {
		t.Errorf("%d, %v", offset, err)
	}
}

// A long log loses its oldest part to a hole; readers see whole lines only, and
// no zero bytes, also when the hole opens under them.
func TestLogWithAHole(t *testing.T) {
	f := logOf(t, 5000)
	hole := int64(200 << 10)
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, hole); err != nil {
		t.Fatalf("this file system cannot punch holes: %v", err)
	}
	whole := func(name, text string) {
		t.Helper()
		if text == "" || strings.ContainsRune(text, 0) {
			t.Errorf("%s: empty or with zero bytes", name)
		}
		for line := range strings.Lines(text) {
			if len(line) != 100 {
				t.Errorf("%s: part of a line: %q", name, line)
				return
			}
		}
	}
	whole("from the start", readFrom(t, f, 0))
	whole("from inside the hole", readFrom(t, f, 100<<10))
	offset, err := logTail(f, 10000, sizeOf(t, f))
	if err != nil {
		t.Fatal(err)
	}
	if offset < hole {
		t.Errorf("the tail begins at %d, inside the hole", offset)
	}
	whole("all of the tail", readFrom(t, f, offset))
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20); err != nil {
		t.Fatal(err)
	}
	if got := readFrom(t, f, 0); got != "" {
		t.Errorf("a log that is all hole gives %d bytes", len(got))
	}
}

// flood writes further lines to a log each time something is read from it, as
// long as it is told to.
type flood struct {
	log   *os.File
	times int
	got   bytes.Buffer
}

func (w *flood) Write(p []byte) (int, error) {
	if w.times--; w.times >= 0 {
		if _, err := w.log.WriteString(strings.Repeat("more\n", logBlock/5)); err != nil {
			return 0, err
		}
	}
	return w.got.Write(p)
}

// What is written while the log is printed is not printed: exactly the lines
// asked for come, and it ends.
func TestPrintAFloodedLog(t *testing.T) {
	for _, c := range []struct{ tail, want int }{{-1, 5000}, {2000, 2000}, {1, 1}, {0, 0}} {
		f := logOf(t, 5000)
		writer, err := os.OpenFile(f.Name(), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		w := &flood{log: writer, times: 20}
		if err := printLog(w, f, c.tail); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(w.got.String(), "\n"); n != c.want || strings.Contains(w.got.String(), "more") {
			t.Errorf("-tail %d: %d lines, want %d", c.tail, n, c.want)
		}
	}
}

// The hole may open while a block is read: then it is read again from behind it.
func TestHoleOpensWhileReading(t *testing.T) {
	for range 20 {
		f := logOf(t, 20000)
		end := sizeOf(t, f)
		done := make(chan error, 1)
		go func() {
			for hole := int64(4096); hole < end; hole += 4096 {
				if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, hole); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
		text := readFrom(t, f, 0)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			if len(line) != 100 || strings.ContainsRune(line, 0) {
				t.Fatalf("not a line of the log: %q", line)
			}
		}
	}
}

func TestUnlinked(t *testing.T) {
	f := logOf(t, 1)
	if gone, err := unlinked(f); err != nil || gone {
		t.Errorf("%v, %v", gone, err)
	}
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if gone, err := unlinked(f); err != nil || !gone {
		t.Errorf("%v, %v", gone, err)
	}
}
