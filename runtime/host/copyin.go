package host

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

// unpacker writes a tar into a directory.
type unpacker struct {
	ctx     context.Context
	t       *tree
	top     *os.File
	inside  string // where top is
	resolve uint64 // how names are resolved: never out of top
	times   []dirTime
	buf     []byte
}

// dirTime is a directory's time, which is set when nothing more is put into it.
type dirTime struct {
	rel string
	at  time.Time
}

// unpack writes what r gives into the directory at a path inside.
func (t *tree) unpack(ctx context.Context, inside string, r io.Reader) error {
	top, err := t.open(inside, unix.O_PATH|unix.O_DIRECTORY)
	if linkRefused(err) {
		return errors.New("a link on the way cannot be followed: it leads to itself, or into another process's view")
	}
	if errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("it is no directory: %w", unix.ENOTDIR)
	}
	if err != nil {
		return missing(err)
	}
	defer top.Close()
	u := &unpacker{ctx: ctx, t: t, top: top, resolve: unix.RESOLVE_BENEATH, buf: make([]byte, 64<<10)}
	if u.inside, err = t.inner(top); err != nil {
		return err
	}
	if u.inside == "/" {
		u.resolve = unix.RESOLVE_IN_ROOT // absolute links do not lead out of it
	}
	if err := u.allowed(top); err != nil {
		return err
	}
	return onThrowawayThread(func() error {
		// So that directories are made with just the mode they are to have.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("cannot leave the shared file system context: %w", err)
		}
		unix.Umask(0)
		return asOwner(t.uid, t.gid, func() error { return u.all(tar.NewReader(chunks{ctx, r})) })
	})
}

// allowed refuses a directory that is not of the sandbox's files.
func (u *unpacker) allowed(dir *os.File) error {
	at, err := u.t.inner(dir)
	if err != nil {
		return err
	}
	window, err := isWindow(dir)
	if err == nil && (window || isOwn(at)) {
		err = fmt.Errorf("nothing can be copied to %s: it is the sandbox's own", at)
	}
	return err
}

func (u *unpacker) all(tr *tar.Reader) error {
	for {
		head, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("the archive cannot be read: %w", err)
		}
		if err := u.entry(head, tr); err != nil {
			return u.words(head.Name, err)
		}
	}
	for _, d := range slices.Backward(u.times) {
		f, err := u.open(d.rel, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		if changed(err) {
			continue
		}
		if err == nil {
			err = setTime(f, d.at)
			f.Close()
		}
		if err != nil {
			return u.words(d.rel, err)
		}
	}
	return nil
}

func (u *unpacker) words(name string, err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		err = fmt.Errorf("the place is read-only in the sandbox, or a tmpfs while it does not run: %w", unix.EROFS)
	case linkRefused(err):
		err = fmt.Errorf("a link on the way leads out of %s", u.inside)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// inArchive is a name of the archive as a path relative to top, "." for top itself.
func inArchive(name string) (string, error) {
	if slices.Contains(strings.Split(name, "/"), "..") {
		return "", errors.New(`names with ".." lead out of the directory`)
	}
	rel := strings.TrimPrefix(path.Clean("/"+name), "/")
	if rel == "" {
		rel = "."
	}
	return rel, nil
}

func (u *unpacker) entry(head *tar.Header, data io.Reader) error {
	rel, err := inArchive(head.Name)
	if err != nil {
		return err
	}
	switch head.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeFifo, tar.TypeLink, tar.TypeGNUSparse:
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock:
		return errors.New("it is a device node, which a sandbox cannot have")
	default:
		return fmt.Errorf("the archive has an entry of unknown type %q", head.Typeflag)
	}
	for _, id := range []int{head.Uid, head.Gid} {
		if id < 0 || int64(id) > 1<<32-2 || u.t.ids.Size > 0 && id >= int(u.t.ids.Size) {
			return fmt.Errorf("it belongs to %d:%d, but the sandbox has %d ids only", head.Uid, head.Gid, u.t.ids.Size)
		}
	}
	if rel == "." {
		if head.Typeflag != tar.TypeDir {
			return errors.New("it has no name")
		}
		return nil // top is there, and stays as it is
	}
	parent, err := u.directory(path.Dir(rel))
	if err != nil {
		return err
	}
	defer parent.Close()
	if head.Typeflag == tar.TypeDir {
		return u.dir(parent, rel, head)
	}
	if err := u.allowed(parent); err != nil {
		return err
	}
	return u.put(parent, path.Base(rel), head, data)
}

func (u *unpacker) open(rel string, flags int) (*os.File, error) {
	return u.t.at(u.top, rel, flags, u.resolve)
}

// directory opens (O_PATH) a directory below top, making it and those above it when
// absent.
func (u *unpacker) directory(rel string) (*os.File, error) {
	f, err := u.open(rel, unix.O_PATH|unix.O_DIRECTORY)
	if !errors.Is(err, unix.ENOENT) || rel == "." {
		return f, err
	}
	parent, err := u.directory(path.Dir(rel))
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := u.allowed(parent); err != nil {
		return nil, err
	}
	made, err := u.mkdir(parent, path.Base(rel), 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	made.Close() // harmless on nil
	return u.open(rel, unix.O_PATH|unix.O_DIRECTORY)
}

// mkdir makes a directory and opens it (O_PATH).
func (u *unpacker) mkdir(parent *os.File, name string, mode uint32) (*os.File, error) {
	err := failpoint.Step("host.copy.mkdir", func() error { return unix.Mkdirat(int(parent.Fd()), name, mode) })
	if err != nil {
		return nil, err
	}
	return u.made(parent, name, unix.S_IFDIR)
}

// made opens (O_PATH) what was just made, and not what somebody put in its place.
func (u *unpacker) made(parent *os.File, name string, kind uint32) (*os.File, error) {
	f, err := u.t.at(parent, name, unix.O_PATH|unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil, err
	}
	st, err := fstat(f)
	if err == nil && (st.Mode&unix.S_IFMT != kind || st.Uid != uint32(u.t.uid)) {
		err = errors.New("the sandbox has put something else in its place")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// dir makes a directory, or gives one that is there the archive's owner and mode.
func (u *unpacker) dir(parent *os.File, rel string, head *tar.Header) error {
	name := path.Base(rel)
	f, err := u.t.at(parent, name, unix.O_PATH|unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	switch {
	case errors.Is(err, unix.ENOENT):
		if err := u.allowed(parent); err != nil {
			return err
		}
		if f, err = u.mkdir(parent, name, 0o700); err != nil {
			return err
		}
	case err != nil:
		return err
	default:
		st, err := fstat(f)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			// A link to a directory will do, but says nothing about that one's owner.
			f.Close()
			linked, err := u.open(rel, unix.O_PATH|unix.O_DIRECTORY)
			if err == nil {
				linked.Close()
			}
			return err
		}
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = fmt.Errorf("a file is in the way of the directory: %w", unix.ENOTDIR)
		}
		if err != nil {
			f.Close()
			return err
		}
	}
	defer f.Close()
	if u.allowed(f) != nil {
		return nil // as it is
	}
	if err := u.own(f, head); err != nil {
		return err
	}
	u.times = append(u.times, dirTime{rel, head.ModTime})
	return nil
}

// own gives an open file (O_PATH will do) the archive's owner and mode.
func (u *unpacker) own(f *os.File, head *tar.Header) error {
	uid, gid := int(u.t.ids.Base)+head.Uid, int(u.t.ids.Base)+head.Gid
	err := failpoint.Step("host.copy.own", func() error { return unix.Fchownat(int(f.Fd()), "", uid, gid, unix.AT_EMPTY_PATH) })
	if err != nil {
		return fmt.Errorf("cannot give it to %d:%d: %w", head.Uid, head.Gid, err)
	}
	if head.Typeflag == tar.TypeSymlink {
		return nil
	}
	// After the owner, which clears set-id bits.
	err = failpoint.Step("host.copy.mode", func() error { return unix.Chmod(fdPath(f), uint32(head.Mode)&0o7777) })
	if err != nil {
		return fmt.Errorf("cannot set its mode: %w", err)
	}
	return nil
}

func setTime(f *os.File, at time.Time) error {
	ts, err := unix.TimeToTimespec(at)
	if err != nil {
		return fmt.Errorf("its time %s cannot be set: %w", at, err)
	}
	err = failpoint.Step("host.copy.time", func() error {
		return unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH)
	})
	if err != nil {
		return fmt.Errorf("cannot set its time: %w", err)
	}
	return nil
}

// put makes anything but a directory, beside its name first.
func (u *unpacker) put(parent *os.File, name string, head *tar.Header, data io.Reader) (err error) {
	if err := replaceable(parent, name); err != nil {
		return err // before anything is written
	}
	beside := ".pinfold-" + strings.ToLower(rand.Text())
	defer func() {
		// Renaming one name of a file onto another leaves both.
		uerr := failpoint.Step("host.copy.unlink", func() error { return unix.Unlinkat(int(parent.Fd()), beside, 0) })
		if err == nil && uerr != nil && uerr != unix.ENOENT {
			err = uerr
		}
	}()
	switch head.Typeflag {
	case tar.TypeLink:
		err = u.link(parent, beside, head.Linkname)
	case tar.TypeSymlink:
		err = failpoint.Step("host.copy.symlink", func() error { return unix.Symlinkat(head.Linkname, int(parent.Fd()), beside) })
		if err == nil {
			err = u.finish(parent, beside, unix.S_IFLNK, head)
		}
	case tar.TypeFifo:
		err = failpoint.Step("host.copy.fifo", func() error { return unix.Mknodat(int(parent.Fd()), beside, unix.S_IFIFO|0o600, 0) })
		if err == nil {
			err = u.finish(parent, beside, unix.S_IFIFO, head)
		}
	default:
		err = u.file(parent, beside, head, data)
	}
	if err == nil {
		err = replaceable(parent, name)
	}
	if err == nil {
		err = failpoint.Step("host.copy.place", func() error { return unix.Renameat(int(parent.Fd()), beside, int(parent.Fd()), name) })
	}
	return err
}

// replaceable refuses a name that stands for a directory, or for something mounted:
// seen from here, outside of the sandbox's mount namespace, renaming onto it would
// take the mount away.
func replaceable(parent *os.File, name string) error {
	var st unix.Statx_t
	err := unix.Statx(int(parent.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_TYPE, &st)
	switch {
	case err == unix.ENOENT:
		return nil
	case err != nil:
		return err
	case st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0:
		return errors.New("it is mounted there (a declared file, or a part of the image or the host) and cannot be replaced")
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return fmt.Errorf("a directory is in the way: %w", unix.EISDIR)
	}
	return nil
}

func (u *unpacker) finish(parent *os.File, name string, kind uint32, head *tar.Header) error {
	f, err := u.made(parent, name, kind)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := u.own(f, head); err != nil {
		return err
	}
	return setTime(f, head.ModTime)
}

func (u *unpacker) file(parent *os.File, name string, head *tar.Header, data io.Reader) error {
	f, err := failpoint.Get("host.copy.make", func() (*os.File, error) {
		fd, err := unix.Openat(int(parent.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return os.NewFile(uintptr(fd), name), err // none for a negative one
	})
	if err != nil {
		return err
	}
	err = failpoint.Step("host.copy.write", func() error {
		_, err := io.CopyBuffer(struct{ io.Writer }{f}, data, u.buf)
		return err
	})
	if err == nil {
		err = u.own(f, head)
	}
	if err == nil {
		err = setTime(f, head.ModTime)
	}
	return errors.Join(err, f.Close())
}

// link gives a file below top one more name.
func (u *unpacker) link(parent *os.File, name, to string) error {
	rel, err := inArchive(to)
	if err != nil {
		return fmt.Errorf("it is a link to %s: %w", to, err)
	}
	f, err := u.open(rel, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("it is a link to %s: %w", to, missing(err))
	}
	defer f.Close()
	st, err := fstat(f)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = fmt.Errorf("it is a link to %s, which is no file", to)
	}
	if err != nil {
		return err
	}
	err = failpoint.Step("host.copy.link", func() error { return unix.Linkat(int(f.Fd()), "", int(parent.Fd()), name, unix.AT_EMPTY_PATH) })
	if errors.Is(err, unix.EXDEV) {
		return fmt.Errorf("it is a link to %s, which lies on another mount", to)
	}
	return err
}
