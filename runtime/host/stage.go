package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

// stage is a mount namespace of our own in which sandbox roots are put
// together. Nothing mounted there is seen by the host, everything is gone when
// this process ends, however it ends, and a sandbox's init copies a mount
// table that is short whatever the host's looks like.
//
// It keeps only the mounts without which a program cannot be started (the
// root, proc, sys, dev and what holds the given paths); sources that lie on
// other mounts are cloned in the host's namespace and moved in by descriptor.
//
// The program may live under a directory that a sandbox's root cannot pass
// through, so roots are built on a tmpfs that covers one of the host's
// directories, in here only.
type stage struct {
	ns   *os.File // the namespace
	base string   // the covered directory
}

// stageBases are the directories that may be covered: all are in the File
// System Hierarchy Standard and hold nothing that starting a sandbox needs.
var stageBases = []string{"/mnt", "/media", "/srv", "/opt"}

// newStage makes the namespace. keep are paths that must stay reachable in it.
func newStage(keep ...string) (*stage, error) {
	keep = append(slices.Clone(keep), "/proc", "/sys", "/dev", "/usr", "/lib", "/lib64", "/bin", "/etc")
	if exe, err := os.Executable(); err == nil {
		keep = append(keep, exe)
	}
	for i, p := range keep {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			keep[i] = real
		}
	}
	base := ""
	for _, b := range stageBases {
		real, err := filepath.EvalSymlinks(b)
		if err == nil && real == b && !slices.ContainsFunc(keep, func(k string) bool { return within(b, k) }) {
			base = b
			break
		}
	}
	if base == "" {
		return nil, fmt.Errorf("cannot find a directory to build sandbox roots at: one of %s must exist and hold neither the state directory, the run directory nor the program; make /mnt",
			strings.Join(stageBases, ", "))
	}
	s := &stage{base: base}
	err := onThrowawayThread(func() error {
		if err := failpoint.Step("host.stage.make", func() error { return unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS) }); err != nil {
			return fmt.Errorf("cannot make a mount namespace: %w", err)
		}
		err := failpoint.Step("host.stage.private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") })
		if err != nil {
			return fmt.Errorf("cannot make the mounts of a new namespace private: %w", err)
		}
		if err := dropMounts(keep); err != nil {
			return err
		}
		err = failpoint.Step("host.stage.mount", func() error {
			return unix.Mount("tmpfs", base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755")
		})
		if err != nil {
			return fmt.Errorf("cannot mount a tmpfs at %s: %w", base, err)
		}
		if err := s.makeDev(); err != nil {
			return err
		}
		if s.ns, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
			return fmt.Errorf("cannot open the new mount namespace: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (s *stage) Close() error { return s.ns.Close() }

// within tells whether path is dir or lies below it.
func within(dir, path string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// dropMounts detaches every mount that is on the way to none of keep.
func dropMounts(keep []string) error {
	table, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return fmt.Errorf("cannot read the mount table: %w", err)
	}
	defer table.Close()
	mounts, err := mountinfo.GetMountsFromReader(table, nil)
	if err != nil {
		return fmt.Errorf("cannot read the mount table: %w", err)
	}
	slices.Reverse(mounts) // later ones lie on top of or below earlier ones
	for _, m := range mounts {
		if within("/sys/fs/cgroup", m.Mountpoint) || slices.ContainsFunc(keep, func(k string) bool { return within(m.Mountpoint, k) }) {
			continue
		}
		// This goes for what is mounted in proc and sysfs too: they can be mounted
		// anew in a user namespace only while nothing covers a part of them.
		// Places made for mounts, like that of the cgroups, do not count.
		err := failpoint.Step("host.stage.drop", func() error { return unix.Unmount(m.Mountpoint, unix.MNT_DETACH) })
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cannot drop %s from our mount namespace: %w", m.Mountpoint, err)
		}
	}
	return nil
}

// onThrowawayThread runs f on an operating system thread that ends with it, so
// that what f does to the thread's namespaces touches nobody.
func onThrowawayThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// run runs f inside the stage. Processes that f starts begin there too.
func (s *stage) run(f func() error) error {
	return onThrowawayThread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("cannot leave the shared file system context: %w", err)
		}
		if err := unix.Setns(int(s.ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("cannot enter our mount namespace: %w", err)
		}
		return f()
	})
}

// dir is where an instance's root is built.
func (s *stage) dir(id string) string    { return filepath.Join(s.base, "instances", id) }
func (s *stage) rootfs(id string) string { return filepath.Join(s.dir(id), "root") }
func (s *stage) devDir() string          { return filepath.Join(s.base, "dev") }

// clear detaches what was built for an instance. Inside the stage only.
func (s *stage) clear(id string) error {
	dir := s.dir(id)
	for {
		// Private first: nothing may be taken from an init that has got it.
		err := failpoint.Step("host.place.private", func() error { return unix.Mount("", dir, "", unix.MS_PRIVATE|unix.MS_REC, "") })
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err == nil {
			err = failpoint.Step("host.place.detach", func() error { return unix.Unmount(dir, unix.MNT_DETACH) })
		}
		if err != nil {
			return fmt.Errorf("cannot detach %s: %w", dir, err)
		}
	}
	// Never recursively: should a mount be left after all, its files are not ours.
	for _, d := range []string{s.rootfs(id), dir} {
		err := failpoint.Step("host.place.remove", func() error { return os.Remove(d) })
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot remove %s: %w", d, err)
		}
	}
	return nil
}

// prepare mounts a small tmpfs of its own at the instance's directory, so that
// clear gets rid of everything below it with one call. It is shared: what is
// mounted below it from now on also appears, locked, to an init that has copied
// the stage (mount_namespaces(7)).
func (s *stage) prepare(id string) error {
	dir := s.dir(id)
	if err := failpoint.Step("host.place.make", func() error { return os.MkdirAll(dir, 0o755) }); err != nil {
		return fmt.Errorf("cannot make %s: %w", dir, err)
	}
	err := failpoint.Step("host.place.mount", func() error {
		return unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=64k")
	})
	if err != nil {
		return fmt.Errorf("cannot mount a tmpfs at %s: %w", dir, err)
	}
	if err := failpoint.Step("host.place.share", func() error { return unix.Mount("", dir, "", unix.MS_SHARED, "") }); err != nil {
		return fmt.Errorf("cannot share the mounts at %s: %w", dir, err)
	}
	if err := failpoint.Step("host.place.fill", func() error { return os.Mkdir(s.rootfs(id), 0o755) }); err != nil {
		return fmt.Errorf("cannot make %s: %w", s.rootfs(id), err)
	}
	return nil
}

// devNodes is the whole of a sandbox's /dev besides links and mount points.
var devNodes = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

// makeDev fills the one /dev that all sandboxes get a read-only clone of.
func (s *stage) makeDev() error {
	dev := s.devDir()
	if err := failpoint.Step("host.nodes.make", func() error { return os.Mkdir(dev, 0o755) }); err != nil {
		return fmt.Errorf("cannot make %s: %w", dev, err)
	}
	err := failpoint.Step("host.nodes.mount", func() error {
		return unix.Mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=64k")
	})
	if err != nil {
		return fmt.Errorf("cannot mount a tmpfs for /dev: %w", err)
	}
	for _, n := range devNodes {
		p := filepath.Join(dev, n.name)
		err := failpoint.Step("host.node.make", func() error {
			return unix.Mknod(p, unix.S_IFCHR|0o666, int(unix.Mkdev(n.major, n.minor)))
		})
		if err == nil {
			err = failpoint.Step("host.node.mode", func() error { return os.Chmod(p, 0o666) }) // whatever the umask
		}
		if err != nil {
			return fmt.Errorf("cannot make the device node /dev/%s: %w", n.name, err)
		}
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	} {
		if err := failpoint.Step("host.node.link", func() error { return os.Symlink(target, filepath.Join(dev, name)) }); err != nil {
			return fmt.Errorf("cannot make the link /dev/%s: %w", name, err)
		}
	}
	for _, d := range []string{"pts", "shm"} {
		if err := failpoint.Step("host.node.mkdir", func() error { return os.Mkdir(filepath.Join(dev, d), 0o755) }); err != nil {
			return fmt.Errorf("cannot make the directory /dev/%s: %w", d, err)
		}
	}
	return nil
}
