package checkup

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/runtime/host/pinit"
	"pinfold/runtime/network"
)

// Here is the machine that this process runs on. What it tries, it tries in namespaces
// that end with the try.
type Here struct{}

// Root implements Machine.
func (Here) Root() bool { return os.Geteuid() == 0 }

// Release implements Machine.
func (Here) Release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return string(bytes.TrimRight(u.Release[:], "\x00")), nil
}

// Read implements Machine.
func (Here) Read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return string(b), err
}

// OpenFiles implements Machine.
func (Here) OpenFiles() (soft, hard uint64, raisable bool) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, 0, false
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err == nil {
		raisable = data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
	}
	return limit.Cur, limit.Max, raisable
}

// ForwardBlockers implements Machine.
func (Here) ForwardBlockers() ([]string, error) { return network.ForwardBlockers() }

// Disk implements Machine.
func (Here) Disk(dir string) (Disk, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return Disk{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		kind, known := fileSystems[int64(st.Type)]
		if !known {
			kind = fmt.Sprintf("type %#x", st.Type)
		}
		return Disk{Type: kind, Free: st.Bavail * uint64(st.Bsize), Inodes: st.Files, FreeInodes: st.Ffree}, nil
	}
}

// fileSystems are the names of statfs(2)'s numbers.
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.RAMFS_MAGIC: "ramfs", unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs",
	unix.FUSE_SUPER_MAGIC: "fuse", unix.CIFS_SUPER_MAGIC: "cifs", 0x2fc12fc1: "zfs", 0xca451a4e: "bcachefs",
}

// starterName is the memory file that starters run from.
const starterName = "/memfd:pinfold-starter (deleted)"

// Starters implements Machine: those whom init, or whoever reaps for it, has taken over.
func (Here) Starters() (pids []int, err error) {
	programs, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, err
	}
	for _, link := range programs {
		if to, err := os.Readlink(link); err != nil || to != starterName {
			continue // gone by now, or something else
		}
		dir := filepath.Dir(link)
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue
		}
		if _, after, ok := strings.Cut(string(status), "\nPPid:\t"); ok && strings.HasPrefix(after, "1\n") {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				return nil, err
			}
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Try implements Machine.
func (h Here) Try(t Trial) error {
	switch t {
	case UserNamespace:
		ns, err := userNamespace()
		if err == nil {
			ns.Close()
		}
		return err
	case Memfd:
		_, err := hold(nil)
		return err
	case Overlay:
		return apart(unix.CLONE_NEWNS|unix.CLONE_FS, overlay)
	case Nftables:
		return apart(unix.CLONE_NEWNET, tables)
	case Links:
		return apart(unix.CLONE_NEWNET, links)
	case Seccomp:
		const getActionAvail, retErrno = 2, 0x50000 // linux/seccomp.h
		action := uint32(retErrno)
		if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, getActionAvail, 0, uintptr(unsafe.Pointer(&action))); errno != 0 {
			return os.NewSyscallError("seccomp", errno)
		}
		return nil
	case Pidfd:
		fd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			return os.NewSyscallError("pidfd_open", err)
		}
		defer unix.Close(fd)
		return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(fd, 0, nil, 0))
	}
	return fmt.Errorf("there is no trial %q", t)
}

// apart runs f on a thread with new namespaces, which ends with it.
func apart(flags int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and, but for this one case, never unlocked: the thread ends here
		if unix.Gettid() == os.Getpid() {
			// The main thread would not end, and what proc shows of this process is what
			// it sees. While it waits here another one is taken.
			done <- apart(flags, f)
			runtime.UnlockOSThread()
			return
		}
		if err := unix.Unshare(flags); err != nil {
			done <- os.NewSyscallError("unshare", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// base is where the trial's ids lie on the host; nobody owns anything there.
const base = 1 << 30

func userNamespace() (*os.File, error) {
	return hold([]syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: 1 << 16}})
}

// hold runs the program that is PID 1 of sandboxes from memory, to its end, and with ids
// in a user namespace, which it returns.
func hold(ids []syscall.SysProcIDMap) (*os.File, error) {
	program, err := pinit.Open()
	if err != nil {
		return nil, err
	}
	defer program.Close()
	rd, wr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	defer wr.Close()
	cmd := exec.Cmd{
		Path: "/proc/self/fd/3", Args: []string{"pinit", "hold"}, Dir: "/", Env: []string{}, Stdin: rd, ExtraFiles: []*os.File{program},
		SysProcAttr: &syscall.SysProcAttr{},
	}
	if ids != nil {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings, cmd.SysProcAttr.GidMappingsEnableSetgroups = ids, ids, true
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	wr.Close()
	if werr := cmd.Wait(); err == nil && werr != nil {
		ns.Close()
		err = werr
	}
	return ns, err
}

// overlay mounts a writable layer over the root with its owners shifted, as a sandbox
// of the host image has it, all of it in memory and for this thread alone.
func overlay() error {
	ids, err := userNamespace()
	if err != nil {
		return err
	}
	defer ids.Close()
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return &os.PathError{Op: "make private", Path: "/", Err: err}
	}
	lower, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "clone mount", Path: "/", Err: err}
	}
	defer unix.Close(lower)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ids.Fd())}
	if err := unix.MountSetattr(lower, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return &os.PathError{Op: "shift owners", Path: "/", Err: err}
	}
	const at = "/proc" // it is there on every host
	if err := unix.Mount("pinfold", at, "tmpfs", 0, "size=1m"); err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: at, Err: err}
	}
	for _, dir := range []string{"lower", "upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(at, dir), 0o755); err != nil {
			return err
		}
	}
	if err := unix.MoveMount(lower, "", unix.AT_FDCWD, at+"/lower", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move mount", Path: at + "/lower", Err: err}
	}
	if err := unix.Mount("overlay", at+"/root", "overlay", 0, "lowerdir="+at+"/lower,upperdir="+at+"/upper,workdir="+at+"/work"); err != nil {
		return &os.PathError{Op: "mount overlay", Path: "/", Err: err}
	}
	var st unix.Stat_t
	if err := unix.Stat(at+"/lower", &st); err != nil {
		return err
	}
	if st.Uid != base {
		return fmt.Errorf("the owner of / is shifted to %d instead of %d", st.Uid, base)
	}
	if err := os.WriteFile(at+"/root/pinfold-check", nil, 0o600); err != nil {
		return fmt.Errorf("the layer over / cannot be written: %w", err)
	}
	return nil
}

// tables makes a table as networks have it, in a network namespace of this thread.
func tables() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	t := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "pinfold-check"})
	c.AddChain(&nftables.Chain{Table: t, Name: "nat", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	c.AddChain(&nftables.Chain{Table: t, Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter})
	return c.Flush()
}

// links makes a bridge with a veth pair on it, in a network namespace of this thread.
func links() error {
	h, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer h.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "check0"}}
	if err := h.LinkAdd(bridge); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "check1", MasterIndex: bridge.Index}, PeerName: "check2"}
	if err := h.LinkAdd(pair); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	return nil
}
