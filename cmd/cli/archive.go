package cli

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func brokenPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }

// packing is a tree here that becomes a tar archive.
type packing struct {
	path    string // of its root, a link followed where that was asked for
	name    string // what it is called
	as      string // what it is called in the archive; ".": only what is in it
	info    fs.FileInfo
	owners  bool
	skipped []string // what no archive can hold
}

// packed looks at the root of what is to be packed.
func packed(src string, follow, owners bool) (packing, error) {
	p := packing{path: filepath.Clean(src), owners: owners}
	var err error
	if follow || strings.HasSuffix(src, "/") || contents(src) {
		p.info, err = os.Stat(src)
	} else {
		p.info, err = os.Lstat(p.path)
	}
	if err != nil {
		return p, fmt.Errorf("cannot copy %s: %w", src, unwrapped(err))
	}
	if p.info.Mode()&(fs.ModeDevice|fs.ModeSocket|fs.ModeNamedPipe) != 0 {
		return p, failure("cannot copy "+src, "It is neither a file, a directory nor a link. For what comes out of a pipe use exec: pinfold exec -i SANDBOX tee FILE.")
	}
	p.name = filepath.Base(p.path)
	if p.name == "." || p.name == ".." || p.name == "/" {
		if full, err := filepath.Abs(p.path); err == nil {
			p.name = filepath.Base(full)
		}
	}
	if p.info.Mode()&fs.ModeSymlink == 0 {
		if full, err := filepath.EvalSymlinks(p.path); err == nil {
			p.path = full
		}
	}
	return p, nil
}

// unwrapped is what the system said, without the call's name and path.
func unwrapped(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// write writes the archive.
func (p *packing) write(out io.Writer) error {
	w := tar.NewWriter(out)
	err := filepath.WalkDir(p.path, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(p.path, at)
		if err != nil {
			return err
		}
		name := path.Join(p.as, rel)
		if name == "." {
			return nil // the directory is there and stays as it is
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return p.entry(w, at, name, info)
	})
	if err != nil {
		if errors.Is(err, os.ErrClosed) || brokenPipe(err) {
			return err
		}
		return fmt.Errorf("cannot copy %s: %w", p.path, err)
	}
	return w.Close()
}

func (p *packing) entry(w *tar.Writer, at, name string, info fs.FileInfo) error {
	var link string
	var f *os.File
	switch mode := info.Mode(); {
	case mode.IsRegular():
		var err error
		// Not through a link, nor waiting at a pipe, put there since the look.
		if f, err = os.OpenFile(at, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
			return err
		}
		defer f.Close()
		if info, err = f.Stat(); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s changed while it was read", at)
		}
	case mode.IsDir():
	case mode&fs.ModeSymlink != 0:
		var err error
		if link, err = os.Readlink(at); err != nil {
			return err
		}
	default:
		p.skipped = append(p.skipped, at)
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname = name, "", ""
	if info.IsDir() {
		h.Name += "/"
	}
	if !p.owners {
		h.Uid, h.Gid = 0, 0
	}
	h.Format = tar.FormatPAX // names of any length, times to the nanosecond
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if f == nil {
		return nil
	}
	if n, err := io.CopyN(w, f, h.Size); err == io.EOF {
		return fmt.Errorf("%s became shorter while it was read: %d of %d bytes", at, n, h.Size)
	} else if err != nil {
		return err
	}
	return nil
}

// unpacking puts entries of an archive below a directory. What an archive of a
// sandbox says is not trusted: no name and no link leads out of the directory,
// and no file becomes set-user-id.
type unpacking struct {
	root   *os.Root
	owners bool
	temp   string // a file that is being written
	dirs   []*tar.Header
}

// add puts one entry in its place. What has its name is replaced, unless it is a
// directory; directories are merged.
func (u *unpacking) add(h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("the archive has the name %q, which leads out of the destination", h.Name)
	}
	mode := h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSticky)
	switch h.Typeflag {
	case tar.TypeDir:
		return u.directory(name, h)
	case tar.TypeReg:
		f, err := u.fresh(name)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err == nil {
			err = f.Chmod(mode)
		}
		if closing := f.Close(); err == nil {
			err = closing
		}
		if err != nil {
			u.discard()
			return err
		}
	case tar.TypeSymlink:
		if err := u.make(name, func(temp string) error { return u.root.Symlink(h.Linkname, temp) }); err != nil {
			return err
		}
	case tar.TypeLink:
		from := path.Clean(h.Linkname)
		if !filepath.IsLocal(from) {
			return fmt.Errorf("the archive has a link to %q, which is not in it", h.Linkname)
		}
		if err := u.make(name, func(temp string) error { return u.root.Link(from, temp) }); err != nil {
			return err
		}
	case tar.TypeFifo:
		if err := u.make(name, func(temp string) error { return u.fifo(temp, mode) }); err != nil {
			return err
		}
	default:
		return fmt.Errorf("the archive has %s, which is neither a file, a directory, a link nor a pipe", h.Name)
	}
	if h.Typeflag != tar.TypeLink {
		if err := u.dress(u.temp, h); err != nil {
			u.discard()
			return err
		}
	}
	if err := u.root.Rename(u.temp, name); err != nil {
		u.discard()
		if info, looked := u.root.Lstat(name); looked == nil && info.IsDir() {
			return fmt.Errorf("cannot replace the directory %s by what is no directory", name)
		}
		return err
	}
	u.temp = ""
	return nil
}

func (u *unpacking) directory(name string, h *tar.Header) error {
	if name == "." {
		return nil
	}
	err := u.root.Mkdir(name, 0o700)
	switch {
	case err == nil:
		u.dirs = append(u.dirs, h) // its mode may forbid to fill it
		return nil
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	info, err := u.root.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("cannot replace the file %s by a directory", name)
	}
	return nil
}

// fresh is a new file beside the place it is for.
func (u *unpacking) fresh(name string) (f *os.File, err error) {
	err = u.make(name, func(temp string) (err error) {
		f, err = u.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		return err
	})
	return f, err
}

// make makes something under a name that nothing has, beside name.
func (u *unpacking) make(name string, do func(temp string) error) error {
	for {
		temp := path.Join(path.Dir(name), ".pinfold-cp-"+rand.Text())
		err := do(temp)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			u.temp = temp
		}
		return err
	}
}

func (u *unpacking) fifo(name string, mode fs.FileMode) error {
	dir, err := u.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Mknodat(int(dir.Fd()), path.Base(name), unix.S_IFIFO|0o600, 0); err != nil {
		return err
	}
	return u.root.Chmod(name, mode)
}

// dress gives what was made its owner and time.
func (u *unpacking) dress(name string, h *tar.Header) error {
	if u.owners {
		if err := u.root.Lchown(name, h.Uid, h.Gid); err != nil {
			return err
		}
	}
	if h.Typeflag == tar.TypeSymlink || h.ModTime.IsZero() {
		return nil
	}
	return u.root.Chtimes(name, h.ModTime, h.ModTime)
}

func (u *unpacking) discard() {
	if u.temp != "" {
		_ = u.root.Remove(u.temp) // nothing more can be done about it
		u.temp = ""
	}
}

// end drops a file that is not whole and gives new directories their modes and
// times, the innermost first.
func (u *unpacking) end() error {
	u.discard()
	dirs := u.dirs
	u.dirs = nil
	for _, h := range slices.Backward(dirs) {
		name := path.Clean(h.Name)
		if err := u.dress(name, h); err != nil {
			return err
		}
		if err := u.root.Chmod(name, h.FileInfo().Mode()&(fs.ModePerm|fs.ModeSticky)); err != nil {
			return err
		}
	}
	return nil
}
