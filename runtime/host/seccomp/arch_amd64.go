package seccomp

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	hasX32    = true
	bigEndian = false
)

func alias(string) (uint32, bool) { return 0, false }
