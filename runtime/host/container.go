package host

import (
	"os"
	"sync"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// maskedPaths and readonlyPaths are Docker's. Those below a user namespace that
// only the host's root may use anyway are covered all the same.
var (
	maskedPaths = []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
	readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// present drops what this kernel does not have, once.
var present = sync.OnceValues(func() (masked, readonly []string) {
	filter := func(paths []string) (out []string) {
		for _, p := range paths {
			if _, err := os.Lstat(p); err == nil {
				out = append(out, p)
			}
		}
		return out
	}
	return filter(maskedPaths), filter(readonlyPaths)
})

// containerConfig is what libcontainer is left to do: namespaces, the mounts
// that only a process inside can make, capabilities and the cgroup. Everything
// else of the root is there already, and the network namespace is furnished from
// outside, loopback too.
func (h *Host) containerConfig(in runtime.Instance, tree *cgroupTree) *configs.Config {
	masked, readonly := present()
	limits := in.Limits
	limits.PIDs = 0 // PID 1 sets it
	resources := tree.resources(limits, false)
	resources.Devices = deviceRules()
	c := &configs.Config{
		Rootfs:     h.stage.rootfs(in.ID),
		Readonlyfs: in.ReadOnlyRoot,
		Namespaces: configs.Namespaces{
			{Type: configs.NEWNS}, {Type: configs.NEWPID}, {Type: configs.NEWIPC}, {Type: configs.NEWUTS},
			{Type: configs.NEWNET}, {Type: configs.NEWCGROUP},
		},
		Cgroups:         tree.config(in.ID, resources),
		Hostname:        hostname(in),
		NoNewPrivileges: true,
		MaskPaths:       masked,
		ReadonlyPaths:   readonly,
		Capabilities: &configs.Capabilities{
			Bounding: in.Capabilities, Effective: in.Capabilities, Permitted: in.Capabilities,
		},
		Mounts: []*configs.Mount{
			{Source: "proc", Destination: "/proc", Device: "proc", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
			{Source: "sysfs", Destination: "/sys", Device: "sysfs", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY},
			{Source: h.stage.dir(in.ID) + "/dev", Destination: "/dev", Device: "bind", Flags: unix.MS_BIND | unix.MS_REC},
		},
	}
	if in.IDs.Size > 0 {
		ids := []configs.IDMap{{ContainerID: 0, HostID: int64(in.IDs.Base), Size: int64(in.IDs.Size)}}
		c.Namespaces.Add(configs.NEWUSER, "")
		c.UIDMappings, c.GIDMappings = ids, ids
	}
	return c
}
