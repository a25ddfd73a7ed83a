package host

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// Info implements runtime.Host.
func (h *Host) Info(ctx context.Context) (runtime.Info, error) {
	i := runtime.Info{BootID: h.boot, Cgroups: cgroupMode()}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return i, fmt.Errorf("cannot read the kernel's version: %w", err)
	}
	i.Kernel = string(bytes.TrimRight(u.Release[:], "\x00"))
	lack := func(format string, a ...any) { i.Lacking = append(i.Lacking, fmt.Sprintf(format, a...)) }
	if _, err := h.cgroups(); err != nil {
		lack("%v", err)
	}
	if tree, err := h.cgroups(); err == nil && !tree.v2 && !tree.swap {
		lack("the kernel does not count swap: memory limits leave swap unbounded")
	}
	for _, ns := range []string{"user", "pid", "net", "mnt", "ipc", "uts", "cgroup"} {
		if _, err := os.Stat(filepath.Join("/proc/self/ns", ns)); err != nil {
			lack("no %s namespaces", ns)
		}
	}
	if b, err := os.ReadFile("/proc/sys/user/max_user_namespaces"); err == nil && string(bytes.TrimSpace(b)) == "0" {
		lack("user namespaces are switched off (sysctl user.max_user_namespaces = 0)")
	}
	// EBADF and EINVAL mean that the call is there and disliked its arguments.
	if err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{}); err == unix.ENOSYS {
		lack("no mount_setattr (Linux 5.12)")
	}
	if !h.punchesHoles() {
		lack("the file system of %s cannot punch holes: the logs of sandboxes are not bounded there", h.opts.StateDir)
	}
	blocked, err := h.forwardingBlocked(ctx)
	if err != nil {
		return i, err
	}
	for _, by := range blocked {
		lack("%s drops forwarded packets: internet = true and ports published beyond loopback do not work here until its owner accepts what comes from and goes to interfaces named b%s*", by, h.opts.ShortID)
	}
	return i, nil
}

// punchesHoles tries it on a file without a name.
func (h *Host) punchesHoles() bool {
	fd, err := unix.Open(h.opts.StateDir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return true // not to be told this way
	}
	defer unix.Close(fd)
	err = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
	return err != unix.EOPNOTSUPP && err != unix.ENOSYS
}

// forwardingBlocked names what stands in the way of forwarded packets, where an
// instance has need of them.
func (h *Host) forwardingBlocked(ctx context.Context) ([]string, error) {
	ids, err := h.recorded()
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(ids, func(id string) bool {
		rec, err := h.loadRecord(id)
		return err == nil && forwards(rec.Instance)
	}) {
		return nil, nil
	}
	by, err := h.net.ForwardingBlockedBy(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether packets are forwarded: %w", err)
	}
	return by, nil
}

// forwards tells whether the host has to forward packets between the instance and
// the world outside.
func forwards(in runtime.Instance) bool {
	if in.Net == nil {
		return false
	}
	return in.Net.Network.Internet || slices.ContainsFunc(in.Forwards, func(f runtime.Forward) bool { return !f.HostAddr.IsLoopback() })
}

// OpenLog implements runtime.Host.
func (h *Host) OpenLog(ctx context.Context, id string) (*os.File, error) {
	if _, err := h.mustRecord(id); err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(h.instanceDir(id), "log"))
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("instance %s has no log yet: %w", id, runtime.ErrNotFound)
	}
	return f, err
}
