package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

// rootDir is a sandbox's root, open. Every path given to it is resolved as a
// process inside would: links cannot lead out.
type rootDir struct {
	f        *os.File
	path     string // where it is, to turn real paths back into inner ones
	uid, gid int    // who owns what ensure makes: root inside
}

func openRoot(path string, uid, gid int) (*rootDir, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	return &rootDir{f: f, path: path, uid: uid, gid: gid}, nil
}

func (r *rootDir) Close() error { return r.f.Close() }

func (r *rootDir) open(path string, flags int) (*os.File, error) {
	how := &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	return openBelow(r.f, path, how)
}

// openBelow is openat2. The kernel gives up (EAGAIN) where directories are renamed
// while it goes through them: that is tried again, but not for as long as a workload
// likes.
func openBelow(dir *os.File, path string, how *unix.OpenHow) (*os.File, error) {
	for try := 0; ; try++ {
		fd, err := unix.Openat2(int(dir.Fd()), path, how)
		if (err == unix.EINTR || err == unix.EAGAIN) && try < 1000 {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// ensure opens (O_PATH) the file or directory at path, making it and the
// directories above it when absent. made tells whether path itself was.
func (r *rootDir) ensure(path string, dir bool) (f *os.File, made bool, err error) {
	return r.ensureFrom(path, dir, 0)
}

func (r *rootDir) ensureFrom(path string, dir bool, links int) (*os.File, bool, error) {
	path = filepath.Clean("/" + path)
	if links > 40 {
		return nil, false, &os.PathError{Op: "make", Path: path, Err: unix.ELOOP}
	}
	f, err := r.open(path, unix.O_PATH)
	if err == nil {
		st, err := f.Stat()
		if err == nil && st.IsDir() != dir {
			err = fmt.Errorf("%s is in the way: a %s is wanted there", path, map[bool]string{true: "directory", false: "file"}[dir])
		}
		if err != nil {
			f.Close()
			return nil, false, err
		}
		return f, false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	parent, _, err := r.ensureFrom(filepath.Dir(path), true, links)
	if err != nil {
		return nil, false, err
	}
	defer parent.Close()
	name := filepath.Base(path)
	// A link to nothing: what it points to is what has to be made.
	buf := make([]byte, unix.PathMax)
	if n, err := unix.Readlinkat(int(parent.Fd()), name, buf); err == nil {
		target := string(buf[:n])
		if !filepath.IsAbs(target) {
			at, err := r.inner(parent)
			if err != nil {
				return nil, false, err
			}
			target = filepath.Join(at, target)
		}
		return r.ensureFrom(target, dir, links+1)
	}
	err = asOwner(r.uid, r.gid, func() error {
		if dir {
			return failpoint.Step("host.root.mkdir", func() error { return unix.Mkdirat(int(parent.Fd()), name, 0o755) })
		}
		return failpoint.Step("host.root.mkfile", func() error { return unix.Mknodat(int(parent.Fd()), name, unix.S_IFREG|0o644, 0) })
	})
	if err != nil {
		return nil, false, &os.PathError{Op: "make", Path: path, Err: err}
	}
	f, err = r.open(path, unix.O_PATH|unix.O_NOFOLLOW)
	return f, true, err
}

// inner is the path that an open directory has inside.
func (r *rootDir) inner(f *os.File) (string, error) {
	real, err := os.Readlink(fmt.Sprintf("/proc/thread-self/fd/%d", f.Fd()))
	if err != nil {
		return "", err
	}
	if !within(r.path, real) {
		return "", fmt.Errorf("%s lies outside of the root", real)
	}
	return "/" + strings.TrimPrefix(strings.TrimPrefix(real, r.path), "/"), nil
}

// asOwner runs f as somebody who makes files for uid and gid but may do all that
// we may. On a mount that shows a sandbox's ids, nobody else can make any: our
// own id has no place there. Must run on a locked thread.
func asOwner(uid, gid int, f func() error) error {
	if uid == 0 && gid == 0 {
		return f()
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("cannot read our capabilities: %w", err)
	}
	if err := errors.Join(unix.Setfsgid(gid), unix.Setfsuid(uid)); err != nil {
		return err
	}
	// Changing the id has dropped the capabilities that matter for files.
	err := unix.Capset(&header, &caps[0])
	if err == nil {
		err = f()
	}
	if rerr := errors.Join(unix.Setfsuid(0), unix.Setfsgid(0), unix.Capset(&header, &caps[0])); rerr != nil && err == nil {
		err = rerr
	}
	return err
}
