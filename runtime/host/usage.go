package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// A volume's files are made by sandboxes, who may change them while they are counted.
// So no path is followed, but each directory opened from the one above, and none that
// has become a link; and what is kept in memory does not grow with what they make,
// but for the numbers of files of several names.

// usageDepth is how deep a volume is counted: a descriptor is open for each level.
const usageDepth = 64

// VolumeUsage implements runtime.Host.
func (h *Host) VolumeUsage(ctx context.Context, id string) (runtime.Usage, error) {
	u := runtime.Usage{Path: h.volumeDir(id)}
	if !isName(id) {
		return runtime.Usage{}, fmt.Errorf("volume id %q is not valid", id)
	}
	fail := func(err error) (runtime.Usage, error) {
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
			err = runtime.ErrNotFound
		}
		return u, fmt.Errorf("cannot measure volume %s: %w", id, err)
	}
	dir, err := openDir(unix.AT_FDCWD, u.Path)
	if err != nil {
		return fail(err)
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fail(err)
	}
	m := meter{ctx: ctx, usage: &u, device: st.Dev, linked: map[uint64]bool{}}
	u.Bytes = st.Blocks * blockSize
	if err := m.count(dir, 1); err != nil {
		return fail(err)
	}
	return u, nil
}

// blockSize is the unit of st_blocks, whatever the file system's is (inode(7)).
const blockSize = 512

// openDir opens a directory for reading, and nothing else that has its name.
func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// meter counts one volume. Only the end of ctx is an error of it.
type meter struct {
	ctx    context.Context
	usage  *runtime.Usage
	device uint64
	linked map[uint64]bool // inodes of several names that were counted
}

func (m *meter) count(dir *os.File, depth int) error {
	for {
		if err := m.ctx.Err(); err != nil {
			return err
		}
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if err := m.entry(dir, name, depth); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			m.lacks(err)
			return nil
		}
	}
}

func (m *meter) entry(dir *os.File, name string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		m.lacks(err)
		return nil
	}
	directory := st.Mode&unix.S_IFMT == unix.S_IFDIR
	switch {
	case st.Dev != m.device:
		return nil // mounted there
	case !directory && st.Nlink > 1 && m.linked[st.Ino]:
		return nil
	case !directory && st.Nlink > 1:
		m.linked[st.Ino] = true
	}
	m.usage.Bytes += st.Blocks * blockSize
	if !directory {
		m.usage.Files++
		return nil
	}
	if depth == usageDepth {
		m.usage.Partial = true
		return nil
	}
	under, err := openDir(int(dir.Fd()), name)
	if err != nil {
		m.lacks(err)
		return nil
	}
	defer under.Close()
	return m.count(under, depth+1)
}

// lacks notes that something could not be read, unless it is only gone, or something
// else by now.
func (m *meter) lacks(err error) {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		m.usage.Partial = true
	}
}
