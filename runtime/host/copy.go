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
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
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
	r, fd, err := h.copyTarget(id)
	if errors.Is(err, os.ErrProcessDone) {
		ctx, leave, werr := h.files.enter(ctx, id)
		if werr != nil {
			return werr
		}
		defer leave()
		// Whoever was waited for may have started or removed it.
		if rec, err = h.mustRecord(id); err != nil {
			return err
		}
		if r, fd, err = h.copyTarget(id); errors.Is(err, os.ErrProcessDone) {
			return h.atRest(ctx, rec.Instance, f)
		}
		leave()
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
	ids := rec.Instance.IDs
	return f(bound, &tree{&rootDir{f: root, path: "/", uid: int(ids.Base), gid: int(ids.Base)}, ids})
}

func (h *Host) copyTarget(id string) (processRecord, pidfd, error) {
	r, err := h.loadProcess(id)
	if err != nil {
		return r, pidfd{}, err
	}
	fd, err := h.openPidfd(r.Process)
	return r, fd, err
}

// resting says who is at the files of instances without a process: one copy, or who
// makes or removes the instance. Two mounts of one writable layer must not be.
type resting struct {
	mu    sync.Mutex
	at    map[string]*visit
	count atomic.Uint64 // of copies, for a name to each
}

type visit struct {
	end  context.CancelCauseFunc
	gone chan struct{}
}

// enter waits until nobody is at the files. The context returned ends when somebody
// who may not be kept waiting comes.
func (r *resting) enter(ctx context.Context, id string) (context.Context, func(), error) {
	bound, end := context.WithCancelCause(ctx)
	for {
		before, leave := r.take(id, end)
		if before == nil {
			return bound, leave, nil
		}
		select {
		case <-before.gone:
		case <-ctx.Done():
			end(nil)
			return nil, nil, context.Cause(ctx)
		}
	}
}

// take makes the caller the one who is at the files, or returns who is.
func (r *resting) take(id string, end context.CancelCauseFunc) (before *visit, leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u := r.at[id]; u != nil {
		return u, nil
	}
	u := &visit{end, make(chan struct{})}
	if r.at == nil {
		r.at = map[string]*visit{}
	}
	r.at[id] = u
	return nil, sync.OnceFunc(func() {
		r.mu.Lock()
		if r.at[id] == u {
			delete(r.at, id)
		}
		r.mu.Unlock()
		end(nil)
		close(u.gone)
	})
}

// claimBound is how long a copy may take to notice that it is to end. One that is
// stuck in its caller's Read or Write touches nothing when that returns.
const claimBound = time.Second

// claim ends a copy that is at the files and keeps others away until the returned
// function is called. For an empty id it does nothing.
func (r *resting) claim(id string) (leave func()) {
	if id == "" {
		return func() {}
	}
	for {
		before, leave := r.take(id, func(error) {})
		if before == nil {
			return leave
		}
		before.end(fmt.Errorf("it is being started or removed; copy again: %w", runtime.ErrBusy))
		select {
		case <-before.gone:
		case <-time.After(claimBound):
			r.mu.Lock()
			if r.at[id] == before {
				delete(r.at, id)
			}
			r.mu.Unlock()
		}
	}
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
	staged.ID = fmt.Sprintf("copy-%s-%d", in.ID, h.files.count.Add(1))
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
			err = failpoint.Step("host.copy.protect", func() error {
				return unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
			})
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

func (c chunks) Read(b []byte) (n int, err error) {
	if c.ctx.Err() == nil {
		n, err = c.r.Read(b)
	}
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx) // what came too late is not used
	}
	return n, err
}

// insideName is the last part of a path, "." where it has none of its own.
func insideName(p string) string {
	clean := path.Clean("/" + p)
	if clean == "/" || strings.HasSuffix(p, "/.") {
		return "."
	}
	return path.Base(clean)
}
