package config

import (
	"fmt"
	"slices"
	"strings"
)

// DefaultCapabilities are what root inside a sandbox may do before
// drop_capabilities is applied: Docker's default set.
var DefaultCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// knownCapabilities are the kernel's names (capabilities(7)) without CAP_.
var knownCapabilities = []string{
	"AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE",
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER",
	"KILL", "LEASE", "LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP",
	"SETUID", "SYS_ADMIN", "SYS_BOOT", "SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT",
	"SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "SYSLOG", "WAKE_ALARM",
}

// Capabilities is the whole set that the sandbox's processes may have, with
// CAP_ names, sorted: DefaultCapabilities less the dropped ones.
func (s Security) Capabilities() []string {
	if slices.Contains(s.DropCapabilities, "ALL") {
		return []string{}
	}
	kept := make([]string, 0, len(DefaultCapabilities))
	for _, name := range DefaultCapabilities {
		if !slices.Contains(s.DropCapabilities, strings.TrimPrefix(name, "CAP_")) {
			kept = append(kept, name)
		}
	}
	return kept
}

// parseCapability accepts a name in any case, with or without CAP_, or ALL.
func parseCapability(text string) (string, error) {
	name := strings.TrimPrefix(strings.ToUpper(text), "CAP_")
	if name == "ALL" || slices.Contains(knownCapabilities, name) {
		return name, nil
	}
	return "", fmt.Errorf("there is no capability %q%s", text, didYouMean(name, knownCapabilities))
}
