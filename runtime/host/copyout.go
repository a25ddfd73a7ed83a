package host

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPending and maxLinked bound what a copy remembers of a tree that a
	// workload has made large on purpose: directories still to be read, and files
	// with several names. More directories are an error, more such files are copied
	// once for each name.
	maxPending = 1 << 20
	maxLinked  = 1 << 16

	// leaseBound is longer than a lease on a file can hold up its opening
	// (/proc/sys/fs/lease-break-time is 45 seconds).
	leaseBound = time.Minute
)

// packer writes a tree into a tar.
type packer struct {
	ctx     context.Context
	t       *tree
	top     *os.File
	name    string // top's in the tar
	tw      *tar.Writer
	pending []string // directories to be read, relative to top
	linked  map[inode]string
	buf     []byte
}

type inode struct{ dev, ino uint64 }

// pack writes what is at a path inside.
func (t *tree) pack(ctx context.Context, inside string, w io.Writer) error {
	top, err := t.open(inside, unix.O_PATH|unix.O_NOFOLLOW)
	if linkRefused(err) {
		return errors.New("a link on the way cannot be followed: it leads to itself, or into another process's view")
	}
	if err != nil {
		return missing(err)
	}
	defer top.Close()
	real, err := t.inner(top)
	if err != nil {
		return err
	}
	if window, err := isWindow(top); err != nil || window || within("/proc", real) || within("/sys", real) {
		if err == nil {
			err = errors.New("it shows the kernel's state and holds no files; read it with exec")
		}
		return err
	}
	p := &packer{ctx: ctx, t: t, top: top, name: insideName(inside), tw: tar.NewWriter(w), linked: map[inode]string{}, buf: make([]byte, 64<<10)}
	known, err := p.entry(top, "")
	if err == nil && !known {
		err = errors.New("it is a socket or a device node, which cannot be copied")
	}
	for err == nil && len(p.pending) > 0 {
		last := len(p.pending) - 1
		dir := p.pending[last]
		p.pending = p.pending[:last]
		err = p.directory(dir)
	}
	if err != nil {
		return err
	}
	return p.tw.Close()
}

// below opens (O_PATH) what is at a path below top now, itself and through no link.
// Each path is resolved whole, so that no descriptor is held for each level of a
// tree that may be as deep as its maker likes.
func (p *packer) below(rel string) (*os.File, error) {
	if rel == "" {
		rel = "."
	}
	return p.t.at(p.top, rel, unix.O_PATH|unix.O_NOFOLLOW, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
}

// changed tells whether an error means that what was listed is not there any more.
func changed(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESTALE) || linkRefused(err)
}

// directory writes what is in a directory.
func (p *packer) directory(rel string) error {
	at, err := p.below(rel)
	if changed(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer at.Close()
	dir, err := reopen(at, unix.O_RDONLY|unix.O_DIRECTORY)
	if changed(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if err := p.named(path.Join(rel, name)); err != nil {
				return err
			}
		}
		if err == io.EOF || changed(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot list %s: %w", p.path(rel), err)
		}
	}
}

// path is the name in the archive.
func (p *packer) path(rel string) string {
	if rel == "" {
		return p.name
	}
	return p.name + "/" + rel
}

func (p *packer) named(rel string) error {
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	f, err := p.below(rel)
	if changed(err) {
		return nil
	}
	if errors.Is(err, unix.ENAMETOOLONG) {
		return fmt.Errorf("%.64s... lies deeper than a path can reach", p.path(rel))
	}
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = p.entry(f, rel)
	return err
}

// entry writes one thing, a directory without what is in it. False: it is of a kind
// that is left out.
func (p *packer) entry(f *os.File, rel string) (bool, error) {
	st, err := fstat(f)
	if err != nil {
		return false, err
	}
	head := &tar.Header{
		Format: tar.FormatPAX, Name: p.path(rel), Mode: int64(st.Mode & 0o7777), ModTime: time.Unix(st.Mtim.Unix()),
		Uid: p.t.idInside(st.Uid), Gid: p.t.idInside(st.Gid),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return true, p.file(f, head, st)
	case unix.S_IFDIR:
		window, err := isWindow(f)
		if err == nil && !window {
			err = p.later(rel)
		}
		if err != nil {
			return true, err
		}
		head.Typeflag, head.Name = tar.TypeDir, head.Name+"/"
	case unix.S_IFLNK:
		head.Typeflag = tar.TypeSymlink
		if head.Linkname, err = readlink(f); err != nil {
			return true, err
		}
	case unix.S_IFIFO:
		head.Typeflag = tar.TypeFifo
	default:
		return false, nil
	}
	return true, p.head(head)
}

func (p *packer) later(rel string) error {
	if len(p.pending) >= maxPending {
		return fmt.Errorf("%s has more than %d directories beside each other; copy a part of it", p.name, maxPending)
	}
	p.pending = append(p.pending, rel)
	return nil
}

func (p *packer) head(head *tar.Header) error {
	if err := p.tw.WriteHeader(head); err != nil {
		return fmt.Errorf("cannot write %s to the archive: %w", head.Name, err)
	}
	return nil
}

// file writes a regular file as long as it is now: one that grows without end ends
// there too.
func (p *packer) file(at *os.File, head *tar.Header, st unix.Stat_t) error {
	window, err := isWindow(at)
	if err != nil || window {
		return err
	}
	key := inode{st.Dev, st.Ino}
	if st.Nlink > 1 {
		if first, ok := p.linked[key]; ok {
			head.Typeflag, head.Linkname = tar.TypeLink, first
			return p.head(head)
		}
	}
	f, err := p.openFile(at)
	if err != nil {
		return fmt.Errorf("cannot read %s: %w", head.Name, err)
	}
	defer f.Close()
	if st, err = fstat(f); err != nil {
		return err
	}
	head.Typeflag, head.Size = tar.TypeReg, st.Size
	if err := p.head(head); err != nil {
		return err
	}
	if st.Nlink > 1 && len(p.linked) < maxLinked {
		p.linked[key] = head.Name
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{p.tw}, io.LimitReader(chunks{p.ctx, f}, st.Size), p.buf)
	if err == nil && n < st.Size {
		err = fmt.Errorf("it has become shorter meanwhile (%d of %d bytes); copy again, or pause the sandbox first", n, st.Size)
	}
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", head.Name, err)
	}
	return nil
}

// openFile opens a regular file for reading. Where a process inside holds a lease on
// it, the kernel takes the lease away after a while.
func (p *packer) openFile(at *os.File) (*os.File, error) {
	ctx, cancel := context.WithTimeout(p.ctx, leaseBound)
	defer cancel()
	for {
		f, err := reopen(at, unix.O_RDONLY)
		if !errors.Is(err, unix.EAGAIN) || sleep(ctx, 20*time.Millisecond) != nil {
			return f, err
		}
	}
}

func readlink(f *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	if err != nil {
		return "", &os.PathError{Op: "readlink", Path: f.Name(), Err: err}
	}
	return string(buf[:n]), nil
}

// overflowID stands for an owner that has no id inside (user_namespaces(7)).
const overflowID = 65534

// idInside is what a host's id is inside.
func (t *tree) idInside(id uint32) int {
	switch {
	case t.ids.Size == 0:
		return int(id)
	case id < t.ids.Base || id-t.ids.Base >= t.ids.Size:
		return overflowID
	}
	return int(id - t.ids.Base)
}
