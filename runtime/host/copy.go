package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// A copy works beside a workload that may be hostile and changes the tree as it
// likes. So nothing is trusted twice: each thing is looked up once, through
// descriptors, and only what a descriptor holds is looked at, opened or changed.

// CopyOut implements runtime.Host.
func (h *Host) CopyOut(ctx context.Context, id, path string, w io.Writer) error {
	err := h.copying(ctx, id, path, func(ctx context.Context, t *tree) error { return t.pack(ctx, path, w) })
	if err != nil {
		return fmt.Errorf("cannot copy %s out of instance %s: %w", path, id, err)
	}
	return nil
}

// CopyIn implements runtime.Host.
func (h *Host) CopyIn(ctx context.Context, id, path string, r io.Reader) error {
	err := h.copying(ctx, id, path, func(ctx context.Context, t *tree) error { return t.unpack(ctx, path, r) })
	if err != nil {
		return fmt.Errorf("cannot copy into %s of instance %s: %w", path, id, err)
	}
	return nil
}

// tree is a sandbox's root as a copy sees it.
type tree struct {
	*rootDir
	ids runtime.IDRange
}

// copying runs f on the instance's root. When PID 1 ends meanwhile, so does f's
// context, with runtime.ErrNotRunning: its files may then be in use elsewhere.
func (h *Host) copying(ctx context.Context, id, path string, f func(context.Context, *tree) error) error {
	if path == "" || strings.ContainsRune(path, 0) {
		return errors.New("the path is empty or holds a zero byte")
	}
	rec, err := h.mustRecord(id)
	if err != nil {
		return err
	}
	in := rec.Instance
	r, err := h.loadProcess(id)
	if err != nil {
		return err
	}
	fd, err := h.openPidfd(r.Process)
	if errors.Is(err, os.ErrProcessDone) {
		return h.atRest(ctx, in, f)
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	if r.Creating {
		return fmt.Errorf("it is being created: %w", runtime.ErrBusy)
	}
	root, err := h.openOf(r.Process, "root", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer root.Close()

	bound, end := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if fd.wait(bound) == nil {
			end(runtime.ErrNotRunning)
		}
	}()
	defer func() {
		end(nil)
		<-watched
	}()
	base := int(in.IDs.Base)
	return f(bound, &tree{&rootDir{f: root, path: "/", uid: base, gid: base}, in.IDs})
}

// atRest runs f on the root of an instance without a process, which is put together
// for it as Create would, and taken apart again.
func (h *Host) atRest(ctx context.Context, in runtime.Instance, f func(context.Context, *tree) error) error {
	if _, err := os.Lstat(filepath.Join(h.instanceDir(in.ID), "upper")); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("its writable layer is gone: %w", runtime.ErrNotFound)
		}
		return err
	}
	groups, err := h.cgroupsOf(in.ID)
	if err != nil {
		return err
	}
	if left, err := groups.pids(in.ID); err != nil || len(left) > 0 {
		if err == nil {
			err = fmt.Errorf("its processes are still ending; try again in a moment: %w", runtime.ErrBusy)
		}
		return err
	}
	if err := h.ready(); err != nil {
		return err
	}
	ids, err := newUserNamespace(h.pinit, in.IDs)
	if err != nil {
		return err
	}
	defer ids.Close() // harmless on nil
	// What would be written to a tmpfs would be gone with the copy.
	in.Mounts = slices.Clone(in.Mounts)
	for i := range in.Mounts {
		if in.Mounts[i].Kind == "tmpfs" {
			in.Mounts[i].ReadOnly = true
		}
	}
	src, err := h.openSources(in, ids)
	if err != nil {
		return err
	}
	defer src.Close()

	// A place of its own in the stage: Exec clears the instance's.
	staged := in
	staged.ID = "copy-" + in.ID
	var root *rootDir
	err = h.stage.run(func() error {
		err := h.stage.clear(staged.ID)
		if err == nil {
			err = h.stage.prepare(staged.ID)
		}
		if err == nil {
			_, err = h.build(staged, src)
		}
		at, base := h.stage.rootfs(staged.ID), int(in.IDs.Base)
		if err == nil && in.ReadOnlyRoot {
			err = unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		}
		if err == nil {
			root, err = openRoot(at, base, base)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("cannot put its root together: %w", err)
	} else {
		err = f(ctx, &tree{root, in.IDs})
		root.Close()
	}
	if cerr := h.stage.run(func() error { return h.stage.clear(staged.ID) }); err == nil {
		err = cerr
	}
	return err
}

// at opens a path below an open directory of the tree.
func (t *tree) at(dir *os.File, path string, flags int, resolve uint64) (*os.File, error) {
	return openBelow(dir, path, &unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: resolve | unix.RESOLVE_NO_MAGICLINKS})
}

// reopen opens what an O_PATH descriptor holds, and nothing else.
func reopen(f *os.File, flags int) (*os.File, error) {
	return os.OpenFile(fdPath(f), flags|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
}

// fdPath names an open file by a link that leads to just that file.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/thread-self/fd/%d", f.Fd()) }

func fstat(f *os.File) (st unix.Stat_t, err error) {
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return st, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return st, nil
}

// ownDirs are the sandbox's own, not of its files.
var ownDirs = []string{"/proc", "/sys", "/dev"}

func isOwn(inside string) bool {
	return slices.ContainsFunc(ownDirs, func(own string) bool { return within(own, inside) })
}

// windows are file systems through which one looks at, and changes, the kernel.
// Wherever a workload has mounted them, they hold no files to copy.
var windows = []int64{
	unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC, unix.DEVPTS_SUPER_MAGIC,
	unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.SELINUX_MAGIC, unix.SMACK_MAGIC,
	unix.PSTOREFS_MAGIC, unix.EFIVARFS_MAGIC, unix.BINFMTFS_MAGIC, unix.NSFS_MAGIC, unix.RDTGROUP_SUPER_MAGIC, unix.AUTOFS_SUPER_MAGIC,
}

// isWindow tells whether an open file lies in one.
func isWindow(f *os.File) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: f.Name(), Err: err}
	}
	return slices.Contains(windows, int64(st.Type)), nil
}

// missing turns the kernel's word for a path that is not there into the package's.
func missing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return runtime.ErrNotFound
	}
	return err
}

// linkRefused tells whether a path was not followed because of where its links lead.
func linkRefused(err error) bool { return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EXDEV) }

// chunks passes what r gives until ctx ends.
type chunks struct {
	ctx context.Context
	r   io.Reader
}

func (c chunks) Read(b []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(b)
}

// insideName is the last part of a path, "." where it has none of its own.
func insideName(p string) string {
	clean := path.Clean("/" + p)
	if clean == "/" || strings.HasSuffix(p, "/.") {
		return "."
	}
	return path.Base(clean)
}
