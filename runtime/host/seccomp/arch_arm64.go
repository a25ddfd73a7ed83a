package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	hasX32    = false
	bigEndian = false
)

// alias knows the names that profiles use and x/sys spells otherwise.
func alias(name string) (uint32, bool) {
	switch name {
	case "newfstatat":
		return unix.SYS_FSTATAT, true
	case "umount2":
		return unix.SYS_UMOUNT2, true
	}
	return 0, false
}
