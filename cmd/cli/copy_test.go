package cli

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pinfold/config"
	"pinfold/reconcile"
)

func TestPlaceOf(t *testing.T) {
	for text, want := range map[string]place{
		"py:/etc/hosts":             {"py", "/etc/hosts"},
		"sandbox.py:etc":            {"sandbox.py", "/etc"},
		`w["a:b"]:/x`:               {`w["a:b"]`, "/x"},
		"w[a]:/x:y":                 {`w["a"]`, "/x:y"},
		"./py:/x":                   {"", "./py:/x"},
		"/tmp/a:b":                  {"", "/tmp/a:b"},
		"-":                         {"", "-"},
		"plain":                     {"", "plain"},
		`sandbox.w["]\"x:"]:/dir/.`: {`sandbox.w["]\"x:"]`, "/dir/."},
	} {
		got, err := placeOf(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "py:", "a b:/x", ":/x"} {
		if got, err := placeOf(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// archive is a tar of these entries: "dir/", "file=content", "link->target",
// "hard=>target".
func archive(t *testing.T, entries ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		h := &tar.Header{Mode: 0o644, ModTime: time.Unix(1e9, 0), Format: tar.FormatPAX}
		content := ""
		if name, target, ok := strings.Cut(e, "=>"); ok {
			h.Name, h.Linkname, h.Typeflag = name, target, tar.TypeLink
		} else if name, target, ok := strings.Cut(e, "->"); ok {
			h.Name, h.Linkname, h.Typeflag = name, target, tar.TypeSymlink
		} else if name, text, ok := strings.Cut(e, "="); ok {
			h.Name, content, h.Typeflag, h.Size = name, text, tar.TypeReg, int64(len(text))
		} else {
			h.Name, h.Typeflag, h.Mode = e, tar.TypeDir, 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// inside is an engine whose sandbox has these archives, by the paths asked for.
func inside(paths map[string][]byte) *engine {
	return &engine{copyOut: func(path string, w io.Writer) error {
		b, ok := paths[path]
		if !ok {
			return &reconcile.Error{Kind: reconcile.NotFound, Message: path + ": not found"}
		}
		if b == nil {
			return &reconcile.Error{Kind: reconcile.Internal, Message: path + ": not a directory"}
		}
		_, err := w.Write(b)
		return err
	}, list: []reconcile.SandboxView{{Address: "sandbox.py"}}}
}

// tree is what is below the working directory, as archive has it.
func tree(t *testing.T) (out []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || path == ".":
			return err
		case d.IsDir():
			out = append(out, path+"/")
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			out = append(out, path+"->"+target)
			return err
		default:
			b, err := os.ReadFile(path)
			out = append(out, path+"="+string(b))
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// grow makes what is written as archive has it.
func grow(t *testing.T, entries ...string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, e := range entries {
		var err error
		if name, target, ok := strings.Cut(e, "->"); ok {
			err = os.Symlink(target, name)
		} else if name, text, ok := strings.Cut(e, "="); ok {
			err = os.WriteFile(name, []byte(text), 0o644)
		} else {
			err = os.MkdirAll(e, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What goes where when copying out, by the rules of docker cp.
func TestCopyOut(t *testing.T) {
	file, dir := archive(t, "f=1"), archive(t, "d/", "d/f=1", "d/s/", "d/s/l->../f")
	in := map[string][]byte{"/x/f": file, "/x/d": dir, "/x/d/": dir, "/x/d/.": archive(t, "./", "./f=1", "./s/", "./s/l->../f"), "/x/l": archive(t, "l->f"), "/x/up": archive(t, "up->../x/l")}
	for _, c := range []struct {
		here []string
		args []string
		want []string // the tree then; nil: refused, and nothing changed
		say  string
	}{
		{nil, []string{"py:/x/f", "g"}, []string{"g=1"}, ""},
		{nil, []string{"py:x/f", "."}, []string{"f=1"}, ""},
		{[]string{"g=0"}, []string{"py:/x/f", "g"}, []string{"g=1"}, ""},
		{[]string{"g/"}, []string{"py:/x/f", "g"}, []string{"g/", "g/f=1"}, ""},
		{[]string{"g/"}, []string{"py:/x/f", "g/h"}, []string{"g/", "g/h=1"}, ""},
		{nil, []string{"py:/x/f", "g/"}, nil, "there is no directory g/"},
		{nil, []string{"py:/x/f", "g/h"}, nil, "cannot copy to g/h"},
		{[]string{"g=0"}, []string{"py:/x/f", "g/"}, nil, "g/"},
		{[]string{"o=0", "g->o"}, []string{"py:/x/f", "g"}, []string{"g->o", "o=1"}, ""},
		{nil, []string{"py:/x/d", "e"}, []string{"e/", "e/f=1", "e/s/", "e/s/l->../f"}, ""},
		{nil, []string{"py:/x/d", "e/"}, []string{"e/", "e/f=1", "e/s/", "e/s/l->../f"}, ""},
		{[]string{"e/", "e/f=0"}, []string{"py:/x/d/", "e"}, []string{"e/", "e/d/", "e/d/f=1", "e/d/s/", "e/d/s/l->../f", "e/f=0"}, ""},
		{[]string{"e/", "e/f=0", "e/g=2"}, []string{"py:/x/d/.", "e"}, []string{"e/", "e/f=1", "e/g=2", "e/s/", "e/s/l->../f"}, ""},
		{nil, []string{"py:/x/d/.", "e"}, []string{"e/", "e/f=1", "e/s/", "e/s/l->../f"}, ""},
		{[]string{"e=0"}, []string{"py:/x/d", "e"}, nil, "cannot copy a directory to the file e"},
		{[]string{"d/", "d/f/"}, []string{"py:/x/d", "."}, nil, "cannot replace the directory d/f"},
		{nil, []string{"py:/x/l", "m"}, []string{"m->f"}, ""},
		{nil, []string{"-L", "py:/x/l", "m"}, []string{"m=1"}, ""},
		{nil, []string{"-L", "py:/x/up", "."}, []string{"up=1"}, ""},
		{nil, []string{"py:/none", "."}, nil, "/none: not found"},
		{nil, []string{"py:/x/f", "/dev/null"}, nil, "neither a file nor a directory"},
	} {
		grow(t, c.here...)
		before := tree(t)
		e := inside(in)
		r := invoke(t, e, append([]string{"cp"}, c.args...)...)
		got := tree(t)
		if !e.opened.ReadOnly {
			t.Errorf("cp %v keeps others from the state", c.args)
		}
		if c.want == nil {
			if r.code != 1 || !strings.Contains(r.err, c.say) || !slices.Equal(got, before) {
				t.Errorf("cp %v in %v: exit %d, %v\n%s", c.args, c.here, r.code, got, r.err)
			}
			continue
		}
		if r.code != 0 || !slices.Equal(got, c.want) {
			t.Errorf("cp %v in %v: exit %d, %v, want %v\n%s", c.args, c.here, r.code, got, c.want, r.err)
		}
	}
}

// Without an agent one that may rest is used with the state open for changes, and
// copied from without.
func TestCopyWakes(t *testing.T) {
	for _, life := range []config.Lifetime{{IdleTimeout: 1}, {ResumeOnAccess: true}, {RenewOnAccess: 1}} {
		grow(t)
		e := inside(map[string][]byte{"/.": archive(t, "./"), "/f": archive(t, "f=1")})
		e.spec.Lifetime = life
		r := invoke(t, e, "cp", "py:/f", ".")
		if got := tree(t); r.code != 0 || !slices.Equal(got, []string{"f=1"}) || !slices.Equal(e.openings, []bool{true, false, true}) || !slices.Equal(e.copies, []string{"out py /.", "out py /f"}) {
			t.Errorf("%+v: exit %d, %v, opened %v, %v\n%s", life, r.code, got, e.openings, e.copies, r.err)
		}
	}
}

// An archive comes as it is, a followed link under its own name.
func TestCopyOutAsArchive(t *testing.T) {
	e := inside(map[string][]byte{"/d": archive(t, "d/", "d/f=1", "d/g=>d/f"), "/l": archive(t, "l->d")})
	r := invoke(t, e, "cp", "-L", "py:/l", "-")
	var got []string
	for a := tar.NewReader(strings.NewReader(r.out)); ; {
		h, err := a.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Name+" "+h.Linkname)
	}
	if want := []string{"l/ ", "l/f ", "l/g l/f"}; r.code != 0 || !slices.Equal(got, want) {
		t.Errorf("exit %d, %q, want %q\n%s", r.code, got, want, r.err)
	}
}

// Whatever a sandbox's archive says, nothing outside the destination changes, no
// file is set-user-id, and none is there in part.
func TestCopyOutTrustsNothing(t *testing.T) {
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("safe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"name with ..":           archive(t, "d/", "d/../../f=evil"),
		"absolute name":          archive(t, "d/", outside+"/f=evil"),
		"through its own link":   archive(t, "d/", "d/l->"+outside, "d/l/f=evil"),
		"through two links":      archive(t, "d/", "d/a->b", "d/b->"+outside, "d/a/f=evil"),
		"up by a relative link":  archive(t, "d/", "d/l->../..", "d/l/f=evil"),
		"hard link to outside":   archive(t, "d/", "d/h=>"+outside+"/f"),
		"hard link up":           archive(t, "d/", "d/h=>../../f"),
		"hard link through one":  archive(t, "d/", "d/l->"+outside, "d/h=>d/l/f"),
		"directory over a link":  archive(t, "d/", "d/l->"+outside, "d/l/", "d/l/new=evil"),
		"a device":               special(t, tar.TypeChar),
		"cut off":                archive(t, "d/", "d/f=whole")[:1024+3],
		"the rest is no archive": append(archive(t, "d/")[:512], bytes.Repeat([]byte("x"), 1024)...),
	} {
		grow(t, "to/")
		r := invoke(t, inside(map[string][]byte{"/d": b}), "cp", "py:/d", "to")
		left, err := os.ReadDir(outside)
		text, readErr := os.ReadFile(filepath.Join(outside, "f"))
		if err != nil || readErr != nil || len(left) != 1 || string(text) != "safe" {
			t.Errorf("%s: outside are %v, %q (%v, %v)", name, left, text, err, readErr)
		}
		got := tree(t)
		if name != "absolute name" && r.code != 1 {
			t.Errorf("%s: exit %d\n%s", name, r.code, r.err)
		}
		for _, e := range got {
			if strings.Contains(e, ".pinfold-cp") || strings.HasPrefix(e, "to/d/f=") || strings.Contains(e, "safe") {
				t.Errorf("%s: there is %s", name, e)
			}
		}
	}
	grow(t)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o6755}); err != nil {
		t.Fatal(err)
	}
	if r := invoke(t, inside(map[string][]byte{"/f": out.Bytes()}), "cp", "-a", "py:/f", "f"); r.code != 0 {
		t.Fatalf("exit %d\n%s", r.code, r.err)
	}
	if info, err := os.Stat("f"); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v %v", info, err)
	}
}

func special(t *testing.T, kind byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755}), w.WriteHeader(&tar.Header{Name: "d/x", Typeflag: kind, Mode: 0o644})); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// A directory that may not be written to is filled before it gets its mode.
func TestCopyOutModesAndTimes(t *testing.T) {
	grow(t)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	at := time.Unix(1e9, 0)
	for _, h := range []tar.Header{{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o500}, {Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o400}, {Name: "d/p", Typeflag: tar.TypeFifo, Mode: 0o620}} {
		h.ModTime = at
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if r := invoke(t, inside(map[string][]byte{"/d": out.Bytes()}), "cp", "py:/d", "."); r.code != 0 {
		t.Fatalf("exit %d\n%s", r.code, r.err)
	}
	for name, mode := range map[string]fs.FileMode{"d": fs.ModeDir | 0o500, "d/f": 0o400, "d/p": fs.ModeNamedPipe | 0o620} {
		info, err := os.Lstat(name)
		if err != nil || info.Mode() != mode || !info.ModTime().Equal(at) {
			t.Errorf("%s: %v of %v, %v", name, info.Mode(), info.ModTime(), err)
		}
	}
}

// What goes where when copying in.
func TestCopyIn(t *testing.T) {
	dir, file, link := archive(t, "./"), archive(t, "x=0"), archive(t, "x->nowhere")
	for _, c := range []struct {
		there map[string][]byte
		src   string
		dst   string
		into  string
		want  []string
		say   string
	}{
		{map[string][]byte{"/w/.": dir}, "f", "/w", "/w/.", []string{"f=1"}, ""},
		{map[string][]byte{"/w/.": dir}, "f", "/w/", "/w/.", []string{"f=1"}, ""},
		{map[string][]byte{"/w/.": dir}, "./d/../f", "w", "/w/.", []string{"f=1"}, ""},
		{map[string][]byte{"/.": dir}, "f", "/", "/.", []string{"f=1"}, ""},
		{nil, "f", "/w/new", "/w", []string{"new=1"}, ""},
		{map[string][]byte{"/w/new/.": nil, "/w/new": file}, "f", "/w/new", "/w", []string{"new=1"}, ""},
		{map[string][]byte{"/w/new/.": nil, "/w/new": link}, "f", "/w/new", "/w", []string{"new=1"}, ""},
		{nil, "f", "/w/new/", "", nil, "there is no directory /w/new/ in py"},
		{map[string][]byte{"/w/.": nil, "/w": file}, "f", "/w/", "", nil, "/w of py is a file, not a directory"},
		{map[string][]byte{"/w/.": dir}, "d", "/w", "/w/.", []string{"d/", "d/l->g", "d/s/", "d/s/g=2"}, ""},
		{map[string][]byte{"/w/.": dir}, "d/.", "/w", "/w/.", []string{"l->g", "s/", "s/g=2"}, ""},
		{nil, "d", "/w/e/", "/w", []string{"e/", "e/l->g", "e/s/", "e/s/g=2"}, ""},
		{nil, "d/.", "/w/e", "/w", []string{"e/", "e/l->g", "e/s/", "e/s/g=2"}, ""},
		{map[string][]byte{"/w/.": nil, "/w": file}, "d", "/w", "", nil, "/w of py is a file, not a directory"},
		{map[string][]byte{"/w/.": nil, "/w": link}, "d", "/w", "", nil, "/w of py is a link, not a directory"},
		{map[string][]byte{"/w/.": dir}, "k", "/w", "/w/.", []string{"k->f"}, ""},
		{map[string][]byte{"/w/.": dir}, "-L k", "/w", "/w/.", []string{"k=1"}, ""},
		{map[string][]byte{"/w/.": dir}, "/dev/null", "/w", "", nil, "neither a file, a directory nor a link"},
	} {
		grow(t, "f=1", "k->f", "d/s/", "d/s/g=2", "d/l->g")
		e := inside(c.there)
		var into string
		var got []string
		e.copyIn = func(path string, r io.Reader) error {
			into = path
			a := tar.NewReader(r)
			for {
				h, err := a.Next()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				b, err := io.ReadAll(a)
				if err != nil {
					return err
				}
				if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
					t.Errorf("%s is of %d:%d, %q", h.Name, h.Uid, h.Gid, h.Uname)
				}
				switch h.Typeflag {
				case tar.TypeDir:
					got = append(got, h.Name)
				case tar.TypeSymlink:
					got = append(got, h.Name+"->"+h.Linkname)
				default:
					got = append(got, h.Name+"="+string(b))
				}
			}
		}
		args := append([]string{"cp"}, strings.Fields(c.src)...)
		r := invoke(t, e, append(args, "py:"+c.dst)...)
		if c.want == nil {
			if r.code != 1 || !strings.Contains(r.err, c.say) || into != "" {
				t.Errorf("cp %s %s: exit %d, into %q\n%s", c.src, c.dst, r.code, into, r.err)
			}
			continue
		}
		if r.code != 0 || into != c.into || !slices.Equal(got, c.want) {
			t.Errorf("cp %s %s: exit %d, into %q %q, want %q %q\n%s", c.src, c.dst, r.code, into, got, c.into, c.want, r.err)
		}
	}
}

// The sandbox's refusal is told, not that the pipe to it broke; and what cannot be
// read here is told, not that the archive ended.
func TestCopyInFails(t *testing.T) {
	grow(t, "big="+strings.Repeat("x", 1<<20))
	e := inside(map[string][]byte{"/w/.": archive(t, "./")})
	e.copyIn = func(string, io.Reader) error {
		return &reconcile.Error{Kind: reconcile.Internal, Message: "no space left"}
	}
	if r := invoke(t, e, "cp", "big", "py:/w"); r.code != 1 || !strings.Contains(r.err, "no space left") || strings.Contains(r.err, "pipe") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	// A file that becomes shorter while it is read.
	info, err := os.Stat("big")
	if err != nil {
		t.Fatal(err)
	}
	p := packing{path: "big", as: "big", info: info}
	err = p.write(writerFunc(func(b []byte) (int, error) {
		return len(b), os.Truncate("big", 10)
	}))
	if err == nil || !strings.Contains(err.Error(), "big became shorter while it was read") {
		t.Errorf("%v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// What no archive can hold is left out and told.
func TestCopyInLeavesOut(t *testing.T) {
	grow(t, "d/", "d/f=1")
	if err := syscall.Mkfifo("d/p", 0o600); err != nil {
		t.Fatal(err)
	}
	e := inside(map[string][]byte{"/w/.": archive(t, "./")})
	e.copyIn = func(_ string, r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	}
	if r := invoke(t, e, "cp", "d", "py:/w"); r.code != 0 || !strings.Contains(r.err, "left out d/p: ") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

// Ctrl-C ends a copy that would never end, and leaves no part of a file.
func TestCopyInterrupted(t *testing.T) {
	grow(t, "to/")
	e := inside(nil)
	e.copyOut = func(_ string, w io.Writer) error {
		h := &tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 40}
		if err := tar.NewWriter(w).WriteHeader(h); err != nil {
			return err
		}
		self(t, syscall.SIGINT)
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return fmt.Errorf("cannot write the archive: %w", err)
			}
		}
	}
	r := invoke(t, e, "cp", "py:/f", "to")
	if got := tree(t); r.code != exitInterrupted || !cmp.Equal(got, []string{"to/"}) {
		t.Errorf("exit %d, %v\n%s", r.code, got, r.err)
	}
	grow(t)
	e = inside(map[string][]byte{})
	e.copyIn = func(_ string, r io.Reader) error {
		self(t, syscall.SIGINT)
		_, err := io.Copy(io.Discard, r)
		if err != nil {
			return err
		}
		return &reconcile.Error{Kind: reconcile.Interrupted, Message: context.Canceled.Error()}
	}
	if r := invokeWith(t, e, endless(t), "cp", "-", "py:/w"); r.code != exitInterrupted {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

// endless is a pipe in which nothing comes.
func endless(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r
}
