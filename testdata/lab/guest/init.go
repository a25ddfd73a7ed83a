package main

import (
	"fmt"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/testdata/lab/wire"
)

// boot is PID 1: it sets the machine up as an init system does, runs the driver, and
// shuts down in order when that has ended.
func boot() {
	// The kernel gives PID 1 its console.
	if err := setUp(); err != nil {
		fmt.Println(wire.Prefix+"FAIL: setting up the machine:", err)
		shutDown()
	}
	driver, err := os.StartProcess(self, []string{self, "drive"}, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		fmt.Println(wire.Prefix+"FAIL: starting the driver:", err)
		shutDown()
	}
	reapUntil(func(pid int) bool { return pid == driver.Pid })
	shutDown()
}

// setUp leaves the machine as a host is when its services are started. /tmp stays on
// the disk: a tmpfs cannot be idmapped by this kernel.
func setUp() error {
	os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	os.Setenv("HOME", "/root")
	for _, m := range []struct {
		kind, at, options string
		flags             uintptr
	}{
		{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"devtmpfs", "/dev", "mode=755", unix.MS_NOSUID},
		{"devpts", "/dev/pts", "mode=620,gid=5,ptmxmode=000", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/run", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
		{"cgroup2", "/sys/fs/cgroup", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		err := unix.Mount(m.kind, m.at, m.kind, m.flags, m.options)
		if err != nil && err != unix.EBUSY { // what the initrd needed is there already
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the mounts: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte("lab")); err != nil {
		return err
	}
	for _, line := range [][]string{
		{"modprobe", "-a", "virtio_console", "dummy", "loop"},
		{"ip", "link", "set", "lo", "up"},
		// Tests of what leaves the host need somewhere to leave to.
		{"ip", "link", "add", "uplink", "type", "dummy"},
		{"ip", "address", "add", "192.0.2.2/24", "dev", "uplink"},
		{"ip", "link", "set", "uplink", "up"},
		{"ip", "route", "add", "default", "via", "192.0.2.1"},
	} {
		if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", line, err, out)
		}
	}
	return nil
}

// reapUntil reaps what ends until it is the one; false when there is nothing left.
func reapUntil(one func(pid int) bool) bool {
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return false
		case one(pid):
			return true
		}
	}
}

// shutDown is an orderly one: everything is asked to end, then killed, and the disk
// is flushed.
func shutDown() {
	const grace = 5 * time.Second
	unix.Kill(-1, unix.SIGTERM)
	time.AfterFunc(grace, func() { unix.Kill(-1, unix.SIGKILL) })
	reapUntil(func(int) bool { return false })
	unix.Sync()
	if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		fmt.Println(wire.Prefix+"the disk could not be made read-only:", err)
	}
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
