// Package memfd makes files that live in memory and that nobody can change.
package memfd

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Sealed returns a read-only descriptor of a new memory file (memfd_create(2))
// with the given content and mode. All seals are set: neither content nor size
// can change.
func Sealed(name string, content []byte, mode os.FileMode) (*os.File, error) {
	const execFlag = 0x10 // MFD_EXEC, since Linux 6.3; older kernels refuse it
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|execFlag)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the memory file %s: %w", name, err)
	}
	rw := os.NewFile(uintptr(fd), name)
	defer rw.Close()
	if _, err := rw.Write(content); err != nil {
		return nil, fmt.Errorf("cannot fill the memory file %s: %w", name, err)
	}
	if err := rw.Chmod(mode); err != nil {
		return nil, fmt.Errorf("cannot set the mode of the memory file %s: %w", name, err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("cannot seal the memory file %s: %w", name, err)
	}
	// A file that somebody holds open for writing cannot be executed, so the
	// descriptor given out is a second, read-only one.
	ro, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot reopen the memory file %s: %w", name, err)
	}
	return ro, nil
}
