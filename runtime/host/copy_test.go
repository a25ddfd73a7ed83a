package host

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"pinfold/runtime"
)

// withAndWithoutUserNamespace runs a test of a copy both ways, and asserts that the
// copies left no descriptor, no mount and no half file.
func withAndWithoutUserNamespace(t *testing.T, f func(w *world, ids runtime.IDRange)) {
	for name, ids := range map[string]runtime.IDRange{"user namespace": {Base: 1 << 20, Size: 65536}, "none": {}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			f(w, ids)
			w.noCopyLeft()
		})
	}
}

func (w *world) noCopyLeft() {
	w.t.Helper()
	w.must(w.h.ready())
	var mounts []byte
	w.must(w.h.stage.run(func() (err error) {
		mounts, err = os.ReadFile("/proc/thread-self/mountinfo")
		return err
	}))
	if strings.Contains(string(mounts), "/copy-") {
		w.t.Errorf("a copy has left mounts:\n%s", mounts)
	}
	err := filepath.WalkDir(w.h.opts.StateDir, func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".pinfold-") {
			w.t.Errorf("a copy has left %s", path)
		}
		return nil
	})
	w.must(err)
}

// shOK runs a script that must succeed.
func (w *world) shOK(id, script string) string {
	w.t.Helper()
	code, out := w.sh(id, script)
	if code != 0 {
		w.t.Fatalf("%s: code %d\n%s", script, code, out)
	}
	return out
}

// item is an entry of a tar.
type item struct {
	tar.Header
	data string
}

func (w *world) copyOut(id, path string) ([]item, error) {
	w.t.Helper()
	var b bytes.Buffer
	if err := w.h.CopyOut(w.ctx, id, path, &b); err != nil {
		return nil, err
	}
	var all []item
	for tr := tar.NewReader(&b); ; {
		head, err := tr.Next()
		if err == io.EOF {
			return all, nil
		}
		w.must(err)
		data, err := io.ReadAll(tr)
		w.must(err)
		all = append(all, item{*head, string(data)})
	}
}

func names(items []item) (all []string) {
	for _, i := range items {
		all = append(all, i.Name)
	}
	slices.Sort(all)
	return all
}

func archive(t *testing.T, items ...item) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, i := range items {
		if i.Mode == 0 {
			i.Mode = 0o644
		}
		if i.Typeflag == 0 {
			i.Typeflag = tar.TypeReg
		}
		i.Size = int64(len(i.data))
		if err := tw.WriteHeader(&i.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, i.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func file(name, data string) item { return item{tar.Header{Name: name}, data} }

// listing is all that a copy has to keep, as the sandbox itself sees it.
const listing = `cd %s && find . -printf '%%P %%y %%m %%U:%%G %%T@ %%l %%n\n' | grep -v ' s ' | LC_ALL=C sort -z && find . -type f -exec md5sum {} + | LC_ALL=C sort`

func TestCopyRoundTrip(t *testing.T) {
	withAndWithoutUserNamespace(t, func(w *world, ids runtime.IDRange) {
		t := w.t
		w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "vol"}))
		in := w.instance(1, "exec sleep infinity")
		in.IDs = ids
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: "vol", Path: "/work/volume"}}
		w.start(in)
		w.shOK(in.ID, `umask 022; cd /work && mkdir -p d/e empty && echo one >d/one && echo two >d/e/two && echo v >volume/v &&
			chown 1000:1001 d/one && chmod 6754 d/one && ln d/one d/e/same && chmod 0 empty && chmod 1777 d/e &&
			ln -s /etc/passwd absolute && ln -s d/one relative && ln -s nowhere dangling && chown -h 1000:1000 dangling &&
			mkfifo -m 0602 pipe && printf x >"$(printf 'odd\nname\377')" && head -c 300000 /dev/urandom >big && chown 5:6 volume/v &&
			touch -h -d '2001-02-03 04:05:06.789012345' d/one relative && touch -d '1999-01-01' d empty pipe &&
			python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")' && mkdir /back`)
		want := w.shOK(in.ID, fmt.Sprintf(listing, "/work"))

		var first []item
		states := []struct {
			name string
			to   func()
		}{
			{"running", func() {}},
			{"frozen", func() { w.must(w.h.Pause(w.ctx, in.ID)) }},
			{"stopped", func() {
				_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
				w.must(err)
			}},
			{"created", func() { w.create(in) }},
		}
		for i, s := range states {
			s.to()
			got, err := w.copyOut(in.ID, "/work")
			w.must(err)
			if i == 0 {
				first = got
			} else if a, b := fmt.Sprint(names(first)), fmt.Sprint(names(got)); a != b {
				t.Errorf("%s: %s\nrunning: %s", s.name, b, a)
			}
			var b bytes.Buffer
			w.must(w.h.CopyOut(w.ctx, in.ID, "/work/.", &b))
			// A directory for each, made by the copy itself.
			tr, moved := tar.NewReader(&b), new(bytes.Buffer)
			tw := tar.NewWriter(moved)
			for {
				head, err := tr.Next()
				if err == io.EOF {
					break
				}
				w.must(err)
				head.Name = s.name + "/" + head.Name
				if head.Typeflag == tar.TypeLink {
					head.Linkname = s.name + "/" + head.Linkname
				}
				w.must(tw.WriteHeader(head))
				_, err = io.Copy(tw, tr)
				w.must(err)
			}
			w.must(tw.Close())
			if err := w.h.CopyIn(w.ctx, in.ID, "/back", moved); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		}
		w.must(w.h.Start(w.ctx, in.ID))
		for _, s := range states {
			if got := w.shOK(in.ID, fmt.Sprintf(listing, "/back/"+s.name)); got != want {
				t.Errorf("%s: came back as\n%s\nwas\n%s", s.name, got, want)
			}
		}
		for path, name := range map[string]string{
			"/work/d/one": "one", "work/d/one": "one", "/work/relative": "relative", "/work/d/": "d/", "/work/d/.": "./", "/work/../work/d/e/..": "d/",
		} {
			got, err := w.copyOut(in.ID, path)
			if err != nil || len(got) == 0 || got[0].Name != name {
				t.Errorf("%s: %v, %v; want %s first", path, names(got), err, name)
			}
		}
		if got, err := w.copyOut(in.ID, "/work/socket"); err == nil {
			t.Errorf("a socket was copied: %v", names(got))
		}
	})
}

// Nothing leads out of the sandbox's root, nor out of the directory that is copied to.
func TestCopyIsConfined(t *testing.T) {
	withAndWithoutUserNamespace(t, func(w *world, ids runtime.IDRange) {
		t := w.t
		// What the host has at this very path must not show.
		outside := filepath.Join(w.dir, "outside")
		w.must(os.Mkdir(outside, 0o755))
		w.must(os.WriteFile(filepath.Join(outside, "secret"), []byte("the host's"), 0o644))
		in := w.instance(1, "exec sleep infinity")
		in.IDs = ids
		w.start(in)
		w.shOK(in.ID, fmt.Sprintf(`mkdir -p /work/in /other && echo theirs >/other/f && cd /work &&
			ln -s /proc/1/root escape && ln -s /proc/self/cwd here && ln -s loop loop && ln -s %s host && ln -s ../../../../../.. up &&
			ln -s /proc proc && ln -s /dev/shm shm && ln -s /sys sys && ln -s /other in/absolute && ln -s ../../other in/up && ln -s . in/fine &&
			ln -s /other/f in/link && mkdir -p %s && echo "the sandbox's" >%s/secret`, outside, outside, outside))

		check := func(state string) {
			for _, path := range []string{
				"/work/escape/etc", "/work/here/", "/work/loop/x", "/proc", "/proc/1/environ", "/sys", "/work/proc/1/environ", "/work/nothing", "/work/in/link/",
			} {
				if state == "stopped" && (path == "/work/here/" || path == "/work/escape/etc") {
					continue // there is no /proc to follow links in
				}
				if got, err := w.copyOut(in.ID, path); err == nil {
					t.Errorf("%s: %s was copied out: %v", state, path, names(got))
				}
			}
			for _, path := range []string{"/work/host/secret", "/work/up" + outside + "/secret", "/../../../../../.." + outside + "/secret"} {
				got, err := w.copyOut(in.ID, path)
				if err != nil || got[0].data != "the sandbox's\n" {
					t.Errorf("%s: %s holds %v, %v", state, path, got, err)
				}
			}
			w.must(w.h.CopyIn(w.ctx, in.ID, "/work/host", archive(t, file("planted", "x"))))
			if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
				t.Errorf("%s: the host's directory holds %v, %v", state, left, err)
			}
			if _, err := w.copyOut(in.ID, outside+"/planted"); err != nil {
				t.Errorf("%s: the sandbox's own directory: %v", state, err)
			}
			for _, path := range []string{"/proc", "/sys", "/dev", "/dev/shm", "/work/proc", "/work/sys", "/work/shm", "/work/escape/work", "/proc/1/cwd", "/work/up/proc"} {
				if err := w.h.CopyIn(w.ctx, in.ID, path, archive(t, file("planted", "x"))); err == nil {
					t.Errorf("%s: %s was copied to", state, path)
				}
			}
			for what, a := range map[string]*bytes.Buffer{
				"a name with ..":                archive(t, file("../planted", "x")),
				"one in the middle":             archive(t, file("fine/../../planted", "x")),
				"through an absolute link":      archive(t, file("absolute/planted", "x")),
				"through a relative link":       archive(t, file("up/planted", "x")),
				"a directory behind a link":     archive(t, item{tar.Header{Name: "absolute/planted", Typeflag: tar.TypeDir}, ""}),
				"through a link it brings":      archive(t, item{tar.Header{Name: "mine", Typeflag: tar.TypeSymlink, Linkname: "/other"}, ""}, file("mine/planted", "x")),
				"through a chain of its links":  archive(t, item{tar.Header{Name: "a", Typeflag: tar.TypeSymlink, Linkname: "."}, ""}, item{tar.Header{Name: "a/b", Typeflag: tar.TypeSymlink, Linkname: "a/.."}, ""}, file("a/b/planted", "x")),
				"a hard link out":               archive(t, item{tar.Header{Name: "planted", Typeflag: tar.TypeLink, Linkname: "../../other/f"}, ""}),
				"a hard link through a link":    archive(t, item{tar.Header{Name: "planted", Typeflag: tar.TypeLink, Linkname: "absolute/f"}, ""}),
				"a hard link to a link":         archive(t, item{tar.Header{Name: "planted", Typeflag: tar.TypeLink, Linkname: "absolute"}, ""}),
				"a device":                      archive(t, item{tar.Header{Name: "planted", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, ""}),
				"a block device":                archive(t, item{tar.Header{Name: "planted", Typeflag: tar.TypeBlock, Devmajor: 8}, ""}),
				"a damaged archive":             bytes.NewBufferString(strings.Repeat("no tar", 200)),
				"a file instead of a directory": archive(t, file("../in", "x")),
			} {
				if err := w.h.CopyIn(w.ctx, in.ID, "/work/in", a); err == nil {
					t.Errorf("%s: %s was unpacked", state, what)
				}
			}
			// A link within will do, one at the name itself is replaced, and an
			// absolute name is one below the directory.
			w.must(w.h.CopyIn(w.ctx, in.ID, "/work/in", archive(t, file("fine/kept", "x"), file("link", "mine"), file("/rooted", "x"), item{tar.Header{Name: "fine", Typeflag: tar.TypeDir, Uid: 9, Mode: 0o700}, ""})))
			if ids.Size > 0 {
				if err := w.h.CopyIn(w.ctx, in.ID, "/work/in", archive(t, item{tar.Header{Name: "planted", Uid: 65536}, "x"})); err == nil || !strings.Contains(err.Error(), "65536 ids") {
					t.Errorf("%s: an owner the sandbox does not have: %v", state, err)
				}
			}
		}
		check("running")
		w.must(w.h.Pause(w.ctx, in.ID))
		check("frozen")
		_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		check("stopped")
		w.start(in)
		if out := w.shOK(in.ID, `cat /other/f /work/in/link; find / -xdev -name planted; ls /work/in; stat -c %u /work/in; ls -A /other`); out !=
			"theirs\nmine"+outside+"/planted\na\nabsolute\nb\nfine\nkept\nlink\nmine\nrooted\nup\n0\nf\n" {
			t.Errorf("in the end: %q", out)
		}
	})
}

// A workload that swaps what is copied under the copy's hands gains nothing.
func TestCopyWhileTheTreeChanges(t *testing.T) {
	withAndWithoutUserNamespace(t, func(w *world, ids runtime.IDRange) {
		t := w.t
		in := w.instance(1, `mkdir -p /work/sub/real /secret && echo inside >/work/sub/real/f && echo secret >/secret/f && cd /work/sub && ln -s /secret link && mkfifo fifo && echo ready
			exec python3 -c '
import os, shutil
def swap(name):
    try:
        os.rename(name, "d"); os.rename("d", name)
    except OSError: # a copy has made one
        shutil.rmtree("d", ignore_errors=True)
i = 0
while True:
    swap("real"); swap("link"); swap("fifo")
    with open("grown", "a") as f: f.write("x" * 4096)
    if i % 100 == 0: os.truncate("grown", 0)
    i += 1
'`)
		in.IDs = ids
		w.start(in)
		w.waitLog(in.ID, "ready")
		copies, unpacked := 0, 0
		for range 300 {
			got, err := w.copyOut(in.ID, "/work")
			if err != nil && !strings.Contains(err.Error(), "shorter") {
				t.Fatal(err)
			}
			for _, i := range got {
				if i.data == "secret\n" {
					t.Fatalf("%s is what the link leads to", i.Name)
				}
			}
			if err == nil {
				copies++
			}
			// "d" is a directory, a link out, a pipe or nothing.
			if err := w.h.CopyIn(w.ctx, in.ID, "/work/sub", archive(t, file("d/planted", "x"))); err == nil {
				unpacked++
			}
		}
		if copies == 0 || unpacked == 0 {
			t.Errorf("%d copies out and %d in came through", copies, unpacked)
		}
		if out := w.shOK(in.ID, "ls -A /secret"); out != "f\n" {
			t.Errorf("beside the directory there is now: %q", out)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
	})
}

// A pipe, a lease and a file without end do not hold a copy up for ever.
func TestCopyDoesNotWait(t *testing.T) {
	withAndWithoutUserNamespace(t, func(w *world, ids runtime.IDRange) {
		t := w.t
		in := w.instance(1, `mkdir /work; cd /work; mkfifo pipe; truncate -s 1T endless && echo text >leased && exec python3 -c '
import fcntl, os, signal, time
f = os.open("leased", os.O_RDWR)
def broken(*_):
    print("asked", flush=True)
    fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_UNLCK)
signal.signal(signal.SIGIO, broken)
fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
while True: signal.pause()
'`)
		in.IDs = ids
		w.start(in)
		w.waitLog(in.ID, "ready")
		if got, err := w.copyOut(in.ID, "/work/leased"); err != nil || got[0].data != "text\n" || !strings.Contains(w.log(in.ID), "asked") {
			t.Errorf("a leased file: %v, %v; the log is %q", got, err, w.log(in.ID))
		}
		got, err := w.copyOut(in.ID, "/work/pipe")
		if err != nil || len(got) != 1 || got[0].Typeflag != tar.TypeFifo {
			t.Errorf("a pipe: %v, %v", got, err)
		}
		ctx, cancel := context.WithCancel(w.ctx)
		if err := w.h.CopyOut(ctx, in.ID, "/work", after(1<<20, cancel)); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
		// The end of the sandbox is the end of the copy.
		removed := make(chan error, 1)
		err = w.h.CopyOut(w.ctx, in.ID, "/work/endless", after(1<<20, func() { removed <- w.h.Remove(w.ctx, in.ID) }))
		if !errors.Is(err, runtime.ErrNotRunning) {
			t.Fatalf("of one that was removed meanwhile: %v", err)
		}
		w.must(<-removed)
	})
}

// A copy of a stopped one holds nobody up: whoever starts or removes it ends the copy,
// and another copy waits.
func TestCopyGivesWay(t *testing.T) {
	withAndWithoutUserNamespace(t, func(w *world, ids runtime.IDRange) {
		t := w.t
		in := w.instance(1, `truncate -s 1T /endless; echo x >/small; exit 0`)
		in.IDs = ids
		w.must(w.h.WaitExit(w.ctx, in.ID, w.start(in)))
		for _, claim := range []func() error{
			func() error { _, err := w.h.Create(w.ctx, in); return err },
			func() error { return w.h.Remove(w.ctx, in.ID) },
		} {
			_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
			w.must(err)
			began, claimed, others := make(chan struct{}), make(chan error, 1), make(chan error, 3)
			for range cap(others) {
				go func() {
					<-began
					others <- w.h.CopyOut(w.ctx, in.ID, "/small", io.Discard)
				}()
			}
			err = w.h.CopyOut(w.ctx, in.ID, "/endless", after(1<<20, func() {
				close(began)
				go func() { claimed <- claim() }()
			}))
			if !errors.Is(err, runtime.ErrBusy) {
				t.Fatalf("the copy that was under way: %v", err)
			}
			w.must(<-claimed)
			for range cap(others) {
				if err := <-others; err != nil && !errors.Is(err, runtime.ErrBusy) && !errors.Is(err, runtime.ErrNotFound) {
					t.Errorf("a copy that has waited: %v", err)
				}
			}
		}
		// One whose caller is stuck does not hold a start up either.
		w.must(w.h.WaitExit(w.ctx, in.ID, w.start(in)))
		_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		stuck, free, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- w.h.CopyOut(w.ctx, in.ID, "/endless", after(1<<20, func() { close(stuck); <-free }))
		}()
		<-stuck
		w.create(in)
		close(free)
		if err := <-done; !errors.Is(err, runtime.ErrBusy) {
			t.Errorf("the copy that was stuck: %v", err)
		}
	})
}

// after is a writer that does something once so many bytes have come.
func after(n int, do func()) io.Writer { return &trigger{n, do} }

type trigger struct {
	left int
	do   func()
}

func (w *trigger) Write(b []byte) (int, error) {
	if w.left -= len(b); w.left <= 0 && w.do != nil {
		w.do()
		w.do = nil
	}
	return len(b), nil
}

// What cannot be written to says so and stays as it is.
func TestCopyInRefused(t *testing.T) {
	withAndWithoutUserNamespace(t, func(w *world, ids runtime.IDRange) {
		t := w.t
		w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "vol"}))
		in := w.instance(1, "exec sleep infinity")
		in.IDs = ids
		in.Files = []runtime.File{{Path: "/etc/declared.conf", Content: []byte("declared"), Mode: 0o644}}
		in.Mounts = []runtime.Mount{
			{Kind: "volume", Source: "vol", Path: "/rw"}, {Kind: "volume", Source: "vol", Path: "/ro", ReadOnly: true},
			{Kind: "tmpfs", Path: "/small", Size: 1 << 20},
		}
		w.start(in)
		w.shOK(in.ID, `printf old >/small/f; mkdir /work /work/dir; echo x >/work/file`)
		refused := func(path string, word string, items ...item) {
			t.Helper()
			if err := w.h.CopyIn(w.ctx, in.ID, path, archive(t, items...)); err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("to %s: %v; want an error with %q", path, err, word)
			}
		}
		for _, state := range []string{"running", "stopped"} {
			if state == "stopped" {
				_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
				w.must(err)
				refused("/small", "tmpfs", file("f", "new"))
			}
			refused("/ro", "read-only", file("f", "x"))
			refused("/", "read-only", file("ro/f", "x"))
			refused("/etc", "mounted", file("declared.conf", "mine"))
			refused("/etc", "mounted", item{tar.Header{Name: "hosts", Typeflag: tar.TypeSymlink, Linkname: "x"}, ""})
			refused("/", "sandbox's own", file("proc/x", "x"))
			refused("/", "sandbox's own", file("dev/x", "x"))
			refused("/work", "directory is in the way", file("dir", "x"))
			refused("/work", "file is in the way", item{tar.Header{Name: "file", Typeflag: tar.TypeDir}, ""})
			refused("/work", "which is no file", item{tar.Header{Name: "l", Typeflag: tar.TypeLink, Linkname: "dir"}, ""})
			w.must(w.h.CopyIn(w.ctx, in.ID, "/rw", archive(t, item{tar.Header{Name: state, Uid: 7, Gid: 8}, state})))

			// The directory is looked at before the archive.
			if err := w.h.CopyIn(w.ctx, in.ID, "/work/none", never{t}); !errors.Is(err, runtime.ErrNotFound) {
				t.Errorf("into nothing: %v", err)
			}
			if err := w.h.CopyIn(w.ctx, in.ID, "/work/file", never{t}); !errors.Is(err, syscall.ENOTDIR) {
				t.Errorf("into a file: %v", err)
			}
			if err := w.h.CopyIn(w.ctx, in.ID, "", never{t}); err == nil {
				t.Error("an empty path will do")
			}
			if _, err := w.copyOut(in.ID, "/work/none"); !errors.Is(err, runtime.ErrNotFound) {
				t.Errorf("out of nothing: %v", err)
			}
			if state == "running" {
				// A full disk.
				refused("/small", "no space", file("f", strings.Repeat("x", 4<<20)))
				refused("/small", "no space", file("g", strings.Repeat("x", 4<<20)))
				if out := w.shOK(in.ID, `cd /small; ls -A; cat f`); out != "f\nold" {
					t.Errorf("after the disk was full: %q", out)
				}
				// An archive that breaks off.
				b := archive(t, file("cut", strings.Repeat("x", 4<<10)))
				b.Truncate(2 << 10)
				if err := w.h.CopyIn(w.ctx, in.ID, "/work", b); err == nil {
					t.Error("half an archive will do")
				}
			}
		}
		w.start(in)
		if out := w.shOK(in.ID, `cat /etc/declared.conf; ls -A /work; cd /rw; ls; stat -c %u:%g *; cat *; ls -A /dev | grep -c ^x`+"; true"); out != "declareddir\nfile\nrunning\nstopped\n7:8\n7:8\nrunningstopped0\n" {
			t.Errorf("in the end: %q", out)
		}

		in.ReadOnlyRoot = true
		_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		w.start(in)
		refused("/work", "read-only", file("f", "x"))
		w.must(w.h.CopyIn(w.ctx, in.ID, "/rw", archive(t, file("f", "x"))))
		_, err = w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		refused("/work", "read-only", file("f", "x"))
		w.must(w.h.CopyIn(w.ctx, in.ID, "/rw", archive(t, file("g", "x"))))
		if _, err := w.copyOut(in.ID, "/rw/f"); err != nil {
			t.Error(err)
		}
		if err := w.h.CopyOut(w.ctx, "ffffffffffff", "/", io.Discard); !errors.Is(err, runtime.ErrNotFound) {
			t.Errorf("out of an unknown one: %v", err)
		}
		if err := w.h.CopyIn(w.ctx, "ffffffffffff", "/", never{t}); !errors.Is(err, runtime.ErrNotFound) {
			t.Errorf("into an unknown one: %v", err)
		}
	})
}

// never is not to be read.
type never struct{ t *testing.T }

func (n never) Read([]byte) (int, error) {
	n.t.Error("the archive was read")
	return 0, io.EOF
}

// A workload's own windows into the kernel hold nothing to copy, wherever they are.
func TestCopyLeavesTheKernelAlone(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, `mkdir -p /work/p /work/s && mount -t proc proc /work/p && mount -t sysfs sysfs /work/s && mknod /work/null c 1 3; touch /work/bound && mount --bind /proc/self/status /work/bound && echo ready; exec sleep infinity`)
	in.IDs = runtime.IDRange{}
	in.Capabilities = append(slices.Clone(in.Capabilities), "CAP_SYS_ADMIN")
	in.Seccomp = "unconfined"
	w.start(in)
	w.waitLog(in.ID, "ready")
	got, err := w.copyOut(in.ID, "/work")
	w.must(err)
	if all := names(got); !slices.Equal(all, []string{"work/", "work/p/", "work/s/"}) {
		t.Errorf("copied: %v", all)
	}
	for _, path := range []string{"/work/p", "/work/p/1", "/work/s", "/work/s/kernel"} {
		if _, err := w.copyOut(in.ID, path); err == nil {
			t.Errorf("%s was copied out", path)
		}
		if err := w.h.CopyIn(w.ctx, in.ID, path, archive(t, file("x", "x"))); err == nil || !strings.Contains(err.Error(), "own") {
			t.Errorf("to %s: %v", path, err)
		}
	}
}

// A tree deeper than descriptors reach is copied, one deeper than paths is refused.
func TestCopyOfADeepTree(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep infinity")
	w.start(in)
	w.shOK(in.ID, `mkdir /work && cd /work && python3 -c '
import os
os.mkdir("a"); os.chdir("a")
for i in range(1500): os.mkdir("x"); os.chdir("x")
open("end", "w").close()
os.chdir("/work"); os.mkdir("b"); os.chdir("b")
for i in range(30): os.mkdir("y" * 200); os.chdir("y" * 200)
'`)
	before := descriptorsOpen(t)
	got, err := w.copyOut(in.ID, "/work/a")
	if err != nil || len(got) != 1502 {
		t.Errorf("%d entries, %v", len(got), err)
	}
	if _, err := w.copyOut(in.ID, "/work/b"); err == nil || !strings.Contains(err.Error(), "deeper") {
		t.Errorf("the deeper one: %v", err)
	}
	w.wait("no descriptor more than before", func() bool { return descriptorsOpen(t) <= before })
}

func descriptorsOpen(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(to, "/work") {
			n++ // others belong to tests beside this one
		}
	}
	return n
}
