// Package pinit holds the small C program that is PID 1 of every sandbox, and
// hands it out as an executable descriptor that nothing can write to or read.
//
// The program is built by the Makefile in this folder, before go build.
package pinit

//go:generate make

import (
	_ "embed"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

//go:embed pinit.bin
var program []byte

// Open returns a descriptor of a sealed, execute-only memory file with the
// program. Execute-only matters: the kernel then counts its process as not
// dumpable from the first instruction, so that not even a sandbox that keeps
// CAP_SYS_PTRACE can open /proc/1/exe or /proc/1/fd.
func Open() (*os.File, error) {
	const execFlag = 0x10 // MFD_EXEC, since Linux 6.3; older kernels refuse it
	fd, err := unix.MemfdCreate("pinit", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|execFlag)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("pinit", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a memory file for PID 1: %w", err)
	}
	rw := os.NewFile(uintptr(fd), "pinit")
	defer rw.Close()
	if _, err := rw.Write(program); err != nil {
		return nil, fmt.Errorf("cannot fill the memory file for PID 1: %w", err)
	}
	if err := rw.Chmod(0o111); err != nil {
		return nil, fmt.Errorf("cannot set the mode of the memory file for PID 1: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("cannot seal the memory file for PID 1: %w", err)
	}
	// A file that somebody holds open for writing cannot be executed, so the
	// descriptor given out is a second, read-only one.
	ro, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot reopen the memory file for PID 1: %w", err)
	}
	return ro, nil
}
