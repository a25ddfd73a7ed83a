package onhost

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What somebody may do to a host behind pinfold's back. Each of these touches what
// bears the mark of one lineage or instance, and nothing else. errAway: there was
// nothing to touch.
var errAway = errors.New("nothing of that is there")

// own tells whether a process is the instance's and lives: its number alone, that
// somebody once said, proves nothing.
func own(short, id string, pid int) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(groups), "-"+short+"/"+id) && !dead(pid)
}

// killFirst kills an instance's PID 1.
func killFirst(short, id string, pid int) error {
	if !own(short, id, pid) {
		return errAway
	}
	return away(syscall.Kill(pid, syscall.SIGKILL))
}

// killMain kills the command that PID 1 runs, and leaves PID 1 to see it.
func killMain(short, id string, first int) error {
	for pid, of := range processesOf(short) {
		if of == id && parent(pid) == first && !dead(pid) {
			return away(syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	return errAway
}

func parent(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ") // proc_pid_stat(5): state, then the parent
	f := strings.Fields(rest)
	if len(f) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(f[1])
	return ppid
}

// unmountInside detaches mounts in the mount namespace of an instance's process.
func unmountInside(short, id string, pid int, paths ...string) error {
	if !own(short, id, pid) {
		return errAway
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return away(err)
	}
	defer ns.Close()
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
				return err
			}
			for _, p := range paths {
				if err := unix.Unmount(p, unix.MNT_DETACH); err != nil {
					return fmt.Errorf("unmount %s: %w", p, err)
				}
			}
			return nil
		}()
	}()
	return away(<-done)
}

// deleteLink deletes the link with that mark in its alias: "instance ID" or "network ID".
func deleteLink(short, mark string) error {
	all, err := netlink.LinkList()
	for i := 0; err != nil && i < 50; i++ {
		all, err = netlink.LinkList()
	}
	if err != nil {
		return err
	}
	for _, l := range all {
		if strings.HasPrefix(l.Attrs().Alias+" ", "pinfold "+short+" "+mark+" ") {
			err := netlink.LinkDel(l)
			if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) {
				return errAway
			}
			return err
		}
	}
	return errAway
}

// unnameNetns takes a network namespace's name away.
func unnameNetns(runDir, id string) error {
	path := filepath.Join(runDir, "netns", id)
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return away(err)
	}
	return away(os.Remove(path))
}

// dropTables deletes the lineage's nftables tables.
func dropTables(short string) error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	found := false
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge, nftables.TableFamilyIPv4} {
		all, err := c.ListTablesOfFamily(family)
		if err != nil {
			return err
		}
		for _, t := range all {
			if strings.Contains(t.Name, short) {
				c.DelTable(t)
				found = true
			}
		}
	}
	if !found {
		return errAway
	}
	return away(c.Flush())
}

// groupDir is an instance's cgroup, of a v1 controller where there are such.
func groupDir(short, id, controller string) (string, error) {
	for _, pattern := range []string{"/sys/fs/cgroup/" + controller + "/*-" + short + "/" + id, "/sys/fs/cgroup/*-" + short + "/" + id} {
		if found, _ := filepath.Glob(pattern); len(found) == 1 {
			return found[0], nil
		}
	}
	return "", errAway
}

// removeGroup moves the instance's processes out of its cgroup, in one hierarchy,
// and removes that.
func removeGroup(short, id, controller string) error {
	dir, err := groupDir(short, id, controller)
	if err != nil {
		return err
	}
	root := filepath.Join(filepath.Dir(filepath.Dir(dir)), "cgroup.procs")
	for range 200 {
		procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return away(err)
		}
		for pid := range strings.FieldsSeq(string(procs)) {
			if err := os.WriteFile(root, []byte(pid), 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("move %s: %w", pid, err)
			}
		}
		if err := unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) {
			return away(err)
		}
		time.Sleep(time.Millisecond) // the kernel lets go of the last one
	}
	return fmt.Errorf("%s stays busy", dir)
}

// loosen lifts a limit of the instance's cgroup.
func loosen(short, id string) error {
	dir, err := groupDir(short, id, "pids")
	if err != nil {
		return err
	}
	return away(os.WriteFile(filepath.Join(dir, "pids.max"), []byte("max"), 0))
}

// freeze freezes or thaws the instance by its cgroup.
func freeze(short, id string, frozen bool) error {
	dir, err := groupDir(short, id, "freezer")
	if err != nil {
		return err
	}
	file, word := filepath.Join(dir, "freezer.state"), map[bool]string{true: "FROZEN", false: "THAWED"}[frozen]
	if _, err := os.Stat(file); err != nil {
		file, word = filepath.Join(dir, "cgroup.freeze"), map[bool]string{true: "1", false: "0"}[frozen]
	}
	if now, err := os.ReadFile(file); err != nil || bytes.Equal(bytes.TrimSpace(now), []byte(word)) {
		return errAway
	}
	return away(os.WriteFile(file, []byte(word), 0))
}

// clearRunDir removes everything in a run dir, names of network namespaces included.
func clearRunDir(runDir string) error {
	netns, _ := filepath.Glob(filepath.Join(runDir, "netns", "*"))
	for _, path := range netns {
		unix.Unmount(path, unix.MNT_DETACH)
	}
	entries, err := os.ReadDir(runDir)
	if err != nil {
		return away(err)
	}
	for _, e := range entries {
		// Somebody may be making things in it meanwhile.
		for i := 0; ; i++ {
			err := os.RemoveAll(filepath.Join(runDir, e.Name()))
			if err == nil {
				break
			}
			if i == 20 {
				return err
			}
			netns, _ := filepath.Glob(filepath.Join(runDir, "netns", "*"))
			for _, path := range netns {
				unix.Unmount(path, unix.MNT_DETACH)
			}
		}
	}
	return nil
}

// away turns the errors of what is gone meanwhile into errAway.
func away(err error) error {
	for _, gone := range []error{os.ErrNotExist, unix.ESRCH, unix.ENODEV, unix.ENOENT} {
		if errors.Is(err, gone) {
			return errAway
		}
	}
	return err
}
