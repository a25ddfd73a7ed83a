package host

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// mountAttr says how a cloned mount is to look.
type mountAttr struct {
	readOnly bool
	noDev    bool
	ids      *os.File // user namespace to map the owners into; nil: as on disk
}

// cloneMount makes a detached copy of the mount at path, without what is
// mounted below it. It is taken in the caller's mount namespace and can be
// moved into any other. Its propagation is private.
func cloneMount(path string, a mountAttr) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "clone mount", Path: path, Err: err}
	}
	return adjustMount(fd, path, a)
}

// cloneMountAt is cloneMount of an open file or directory.
func cloneMountAt(f *os.File, a mountAttr) (*os.File, error) {
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	runtime.KeepAlive(f)
	if err != nil {
		return nil, &os.PathError{Op: "clone mount", Path: f.Name(), Err: err}
	}
	return adjustMount(fd, f.Name(), a)
}

func adjustMount(fd int, name string, a mountAttr) (*os.File, error) {
	f := os.NewFile(uintptr(fd), name)
	attr := unix.MountAttr{Propagation: unix.MS_PRIVATE}
	if a.readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if a.noDev {
		attr.Attr_set |= unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID
	}
	if a.ids != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(a.ids.Fd())
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		f.Close()
		if a.ids != nil && err == unix.EINVAL {
			return nil, fmt.Errorf("the file system of %s cannot show its files under other ids (id-mapped mount): %w; set security { user_namespace = false }", name, err)
		}
		return nil, &os.PathError{Op: "set attributes of mount of", Path: name, Err: err}
	}
	runtime.KeepAlive(a.ids)
	return f, nil
}

// attach puts a detached mount at path.
func attach(mount *os.File, path string) error {
	err := unix.MoveMount(int(mount.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	runtime.KeepAlive(mount)
	if err != nil {
		return &os.PathError{Op: "attach " + mount.Name() + " to", Path: path, Err: err}
	}
	return nil
}

// attachTo puts a detached mount on an open file or directory.
func attachTo(mount, target *os.File) error {
	err := unix.MoveMount(int(mount.Fd()), "", int(target.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	runtime.KeepAlive(mount)
	runtime.KeepAlive(target)
	if err != nil {
		return &os.PathError{Op: "attach " + mount.Name() + " to", Path: target.Name(), Err: err}
	}
	return nil
}

// newMount makes a detached mount of a new file system. options are key=value
// pairs in order.
func newMount(fstype string, attrs int, options ...[2]string) (*os.File, error) {
	fs, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot open file system type %s: %w", fstype, err)
	}
	defer unix.Close(fs)
	for _, o := range options {
		if err := unix.FsconfigSetString(fs, o[0], o[1]); err != nil {
			return nil, fmt.Errorf("cannot set %s=%s of a new %s: %w", o[0], o[1], fstype, fsError(fs, err))
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("cannot make a new %s: %w", fstype, fsError(fs, err))
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return nil, fmt.Errorf("cannot make a mount of a new %s: %w", fstype, fsError(fs, err))
	}
	return os.NewFile(uintptr(fd), fstype), nil
}

// fsError adds the kernel's own words, which fsopen(2) descriptors carry.
func fsError(fs int, err error) error {
	var buf [512]byte
	if n, rerr := unix.Read(fs, buf[:]); rerr == nil && n > 2 {
		return fmt.Errorf("%w (%s)", err, buf[2:n-1])
	}
	return err
}
