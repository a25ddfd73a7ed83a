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

// rooted starts a sandbox whose root is the host's.
func (w *world) rooted() runtime.Instance {
	in := w.instance(1, "exec sleep 1000")
	in.IDs = runtime.IDRange{}
	w.start(in)
	return in
}

func (w *world) open(name string, flags int, content string) *os.File {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if content != "" {
		w.must(os.WriteFile(path, []byte(content), 0o600))
	}
	f, err := os.OpenFile(path, flags, 0o600)
	w.must(err)
	w.t.Cleanup(func() { f.Close() })
	return f
}

func (w *world) content(f *os.File, want string) {
	w.t.Helper()
	if b, err := os.ReadFile(f.Name()); err != nil || string(b) != want {
		w.t.Errorf("%s holds %q, %v; want %q", f.Name(), b, err, want)
	}
}

// exec runs a script to its end.
func (w *world) exec(id string, e runtime.Exec, script string) (int, error) {
	w.t.Helper()
	e.Args = []string{"sh", "-c", script}
	p, err := w.h.Exec(w.ctx, id, e)
	w.must(err)
	return p.Wait()
}

// A sandbox gets hold of no file or directory of the caller's, even where its root
// is the host's.
func TestExecGivesNoFileAway(t *testing.T) {
	w := newWorld(t)
	in := w.rooted()
	secret := w.open("secret", os.O_RDONLY, "secret\n")
	stdout := w.open("stdout", os.O_WRONLY|os.O_CREATE, "")
	stderr := w.open("stderr", os.O_WRONLY|os.O_CREATE, "")
	code, err := w.exec(in.ID, runtime.Exec{Stdin: secret, Stdout: stdout, Stderr: stderr}, `
cat
for fd in 0 1 2; do stat -L -c %F /proc/self/fd/$fd; done
echo owned 1<>/proc/self/fd/0
echo err >&2`)
	if err != nil || code != 0 {
		t.Errorf("code %d, %v", code, err)
	}
	w.content(secret, "secret\n")
	w.content(stdout, "secret\nfifo\nfifo\nfifo\n")
	w.content(stderr, "err\n")

	dir, err := os.Open(w.dir)
	w.must(err)
	defer dir.Close()
	path, err := os.OpenFile(w.dir+"/secret", unix.O_PATH|unix.O_NOFOLLOW, 0)
	w.must(err)
	defer path.Close()
	for _, e := range []runtime.Exec{{Stdin: dir}, {Stdout: dir}, {Stderr: dir}} {
		e.Args = []string{"true"}
		if _, err := w.h.Exec(w.ctx, in.ID, e); err == nil || !strings.Contains(err.Error(), "is a directory; give a file") {
			t.Errorf("a directory: %v", err)
		}
	}
	if _, err := w.exec(in.ID, runtime.Exec{Stdin: path}, "cat"); err == nil || !strings.Contains(err.Error(), "cannot read the standard input") {
		t.Errorf("a descriptor that cannot be read: %v", err)
	}
}

// Order, offsets and O_APPEND are those of the caller's descriptors.
func TestExecWritesToFiles(t *testing.T) {
	w := newWorld(t)
	in := w.rooted()
	var script, want strings.Builder
	for i := range 50 {
		fmt.Fprintf(&script, "echo o%d; echo e%d >&2\n", i, i)
		fmt.Fprintf(&want, "o%d\ne%d\n", i, i)
	}
	both := w.open("both", os.O_WRONLY, "0123456789")
	_, err := both.Seek(5, io.SeekStart)
	w.must(err)
	fd, err := unix.FcntlInt(both.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	w.must(err)
	second := os.NewFile(uintptr(fd), "second")
	_, err = w.exec(in.ID, runtime.Exec{Stdout: both, Stderr: second}, script.String())
	w.must(err)
	w.must(second.Close())
	_, err = both.WriteString("next")
	w.must(err)
	w.content(both, "01234"+want.String()+"next")

	added := w.open("added", os.O_WRONLY|os.O_APPEND, "there\n")
	_, err = w.exec(in.ID, runtime.Exec{Stdout: added}, "echo more")
	w.must(err)
	w.content(added, "there\nmore\n")

	// Two open files of one inode overwrite each other, as they do without a sandbox.
	one, two := w.open("twice", os.O_WRONLY|os.O_CREATE, ""), w.open("twice", os.O_WRONLY, "")
	_, err = w.exec(in.ID, runtime.Exec{Stdout: one}, "echo first")
	w.must(err)
	_, err = w.exec(in.ID, runtime.Exec{Stdout: one, Stderr: two}, "echo 2nd; echo other >&2")
	w.must(err)
	w.content(one, "other\n2nd\n")

	large := w.open("large", os.O_WRONLY|os.O_CREATE, "")
	code, err := w.exec(in.ID, runtime.Exec{Stdout: large}, "head -c 5000000 /dev/zero; exit 3")
	w.must(err)
	if st, err := large.Stat(); err != nil || st.Size() != 5000000 || code != 3 {
		t.Errorf("%d bytes, %v, code %d", st.Size(), err, code)
	}

	reads := w.open("added", os.O_RDONLY, "")
	if _, err = w.exec(in.ID, runtime.Exec{Stdout: reads}, "echo lost"); err == nil || !strings.Contains(err.Error(), "cannot write the command's standard output") {
		t.Errorf("output that cannot be written: %v", err)
	}
	w.content(added, "there\nmore\n")
}

func TestExecReadsFromFiles(t *testing.T) {
	w := newWorld(t)
	in := w.rooted()
	large := w.open("large", os.O_RDONLY, strings.Repeat("0123456789abcdef", 200000))
	rest := w.open("rest", os.O_RDONLY, "0123456789")
	_, err := rest.Seek(4, io.SeekStart)
	w.must(err)
	for _, c := range []struct {
		in           *os.File
		script, want string
	}{
		{large, "wc -c", "3200000\n"},
		{w.open("large", os.O_RDONLY, ""), "head -c 3", "012"}, // and leaves the rest
		{rest, "cat", "456789"},
	} {
		out := w.open("out", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, "")
		_, err := w.exec(in.ID, runtime.Exec{Stdin: c.in, Stdout: out}, c.script)
		w.must(err)
		w.content(out, c.want)
	}
}

// What a command leaves running does not hold its end up, and neither takes what
// the command itself wrote away nor leaves anything here.
func TestExecLeavesWritersBehind(t *testing.T) {
	w := newWorld(t)
	in := w.rooted()
	pipes := func() (n int) {
		all, err := os.ReadDir("/proc/self/fd")
		w.must(err)
		for _, e := range all {
			if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, w.dir+"/out") {
				n++
			}
		}
		return n
	}
	quiet := w.open("out", os.O_WRONLY|os.O_CREATE, "")
	began := time.Now()
	code, err := w.exec(in.ID, runtime.Exec{Stdout: quiet, Stderr: quiet}, "sleep 1000 & echo done; exit 5")
	if err != nil || code != 5 || time.Since(began) < lingering {
		t.Errorf("code %d, %v, after %s", code, err, time.Since(began))
	}
	w.content(quiet, "done\n")
	chatty := w.open("out2", os.O_WRONLY|os.O_CREATE, "")
	_, err = w.exec(in.ID, runtime.Exec{Stdout: chatty}, "(while :; do echo on; done) & echo 'the end'")
	w.must(err)
	if b, err := os.ReadFile(chatty.Name()); err != nil || !bytes.Contains(b, []byte("the end\n")) {
		t.Errorf("%d bytes without the command's own, %v", len(b), err)
	}
	if n := pipes(); n != 2 {
		t.Errorf("%d descriptors of the files are open, want the caller's 2", n)
	}
}

// Kill ends the whole group, and nobody once it is reaped.
func TestExecKill(t *testing.T) {
	w := newWorld(t)
	in := w.rooted()
	before := w.count(in.ID)
	rd, wr, err := os.Pipe()
	w.must(err)
	defer rd.Close()
	p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"sh", "-c", `trap "" TERM HUP; sleep 1000 & (sleep 1000 & sleep 1000) & echo up; wait`}, Stdout: wr})
	wr.Close()
	w.must(err)
	line, err := bufio.NewReader(rd).ReadString('\n')
	if err != nil || line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	w.must(p.Kill())
	code, err := p.Wait()
	if err != nil || code != 137 {
		t.Errorf("code %d, %v", code, err)
	}
	w.wait("nobody of the group is left", func() bool { return w.count(in.ID) == before })
	w.must(p.Kill())
	if !w.state(in.ID).Alive {
		t.Error("the sandbox has ended")
	}
}
