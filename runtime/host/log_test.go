package host

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// What pinit.c promises, in bytes.
const (
	logKept  = 16 << 20
	logSlack = 1 << 20
)

// stored is what the log takes on the disk.
func (w *world) stored(id string) int64 {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(w.h.instanceDir(id), "log"), &st); err != nil {
		return 0
	}
	return st.Blocks * 512
}

// follow notes the most the log has taken until the process ends. That may take as
// long as the test may: it is a lot of output.
func (w *world) follow(id string, p runtime.Process) (most int64) {
	w.t.Helper()
	for ; ; time.Sleep(2 * time.Millisecond) {
		most = max(most, w.stored(id))
		ok, err := w.h.alive(p)
		w.must(err)
		if !ok {
			return most
		}
		w.must(w.ctx.Err())
	}
}

// kept returns what is left of the log, and where that begins.
func (w *world) kept(id string) (int64, []byte) {
	w.t.Helper()
	f, err := os.Open(filepath.Join(w.h.instanceDir(id), "log"))
	w.must(err)
	defer f.Close()
	start, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	w.must(err)
	b, err := io.ReadAll(f)
	w.must(err)
	return start, b
}

// TestLogIsBounded: 100 MB of numbered lines, written with no process of ours
// alive. The newest are all there, and the disk never held more than promised.
func TestLogIsBounded(t *testing.T) {
	w := newWorld(t)
	const lines = 1_000_000
	in := w.instance(1, fmt.Sprintf(`perl -e 'printf "%%099d\n", $_ for 1..%d'`, lines))
	starter := roleCommand(t, "start", w.h.opts, in, "")
	if out, err := starter.Output(); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	// A block more on either side of what is kept.
	if most := w.follow(in.ID, w.state(in.ID).Process); most > logKept+logSlack+32<<10 {
		t.Errorf("the log took %d bytes of the disk", most)
	}
	start, b := w.kept(in.ID)
	if start+int64(len(b)) != lines*100 || len(b) < logKept || bytes.IndexByte(b, 0) >= 0 {
		t.Fatalf("kept %d bytes from %d on, of %d", len(b), start, lines*100)
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	next := start/100 + 1
	if start%100 != 0 { // what is left of a line
		s.Scan()
		next++
	}
	for ; s.Scan(); next++ {
		if want := fmt.Sprintf("%099d", next); s.Text() != want {
			t.Fatalf("line %q, want %q", s.Text(), want)
		}
	}
	if next != lines+1 {
		t.Errorf("the log ends at line %d", next-1)
	}

	// The next life goes on where this one has ended.
	in.Command = []string{"sh", "-c", `perl -e 'print "x" x 99, "\n" for 1..30000'`}
	p := w.start(in)
	if most := w.follow(in.ID, p); most > logKept+logSlack+32<<10 {
		t.Errorf("the second life's log took %d bytes of the disk", most)
	}
	start, b = w.kept(in.ID)
	if start+int64(len(b)) != lines*100+3_000_000 || len(b) < logKept {
		t.Errorf("the second life: kept %d bytes from %d on", len(b), start)
	}
}

func TestLogOfOneLongLine(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, `perl -e 'print "x" x 1000000 for 1..100; print "\n"; print "last\n"'`)
	p := w.start(in)
	if most := w.follow(in.ID, p); most > logKept+logSlack+32<<10 {
		t.Errorf("the log took %d bytes of the disk", most)
	}
	start, b := w.kept(in.ID)
	if start+int64(len(b)) != 100_000_006 || !strings.HasSuffix(string(b[len(b)-8:]), "xx\nlast\n") {
		t.Errorf("kept %d bytes from %d on, ending in %q", len(b), start, b[len(b)-8:])
	}
}
