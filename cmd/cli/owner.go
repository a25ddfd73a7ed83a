package cli

import (
	"os"
	"syscall"
)

// keepOwner gives f the owner that info tells, as far as this user may.
func keepOwner(f *os.File, info os.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 {
		return nil
	}
	return f.Chown(int(stat.Uid), int(stat.Gid))
}
