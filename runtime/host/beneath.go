package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// openBeneath opens (O_PATH) what lies at path, which must begin with root, and
// sees to it that it is below root in truth. The links in root's own path are the
// administrator's and are followed. Below it sandboxes may have made links, and may
// be making them now: the kernel resolves the rest, refuses to leave root, and what
// is used afterwards is the descriptor, never the path again.
func openBeneath(root, path string) (*os.File, error) {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	rest, err := filepath.Rel(root, path)
	if err != nil {
		return nil, err
	}
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	// EAGAIN: something was renamed while ".." was resolved. Who renames without end
	// only harms himself.
	for range 100 {
		fd, oerr := unix.Openat2(int(dir.Fd()), rest, how)
		if oerr == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if err = oerr; !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	if errors.Is(err, unix.EXDEV) {
		return nil, fmt.Errorf("a symbolic link on the way leads out of %s, or is absolute; allow_host_paths allows only what lies below that directory: give the path the link leads to, which must be allowed itself", root)
	}
	return nil, &os.PathError{Op: "open", Path: path, Err: err}
}
