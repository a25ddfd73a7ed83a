package host

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// The name of an instance's network namespace and its cgroup cannot bear a mark of
// their own, so what stands there may be somebody else's. What is ours follows from
// what was written down before it was made: Create makes the run directory of the
// instance before its cgroup, and process.json, with the namespace in it, before the
// name; taking down removes them in the opposite order. What is not ours is refused
// by Create and left alone by everything.

// namespaceID tells namespaces apart while they exist (stat(2) of nsfs).
type namespaceID struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

// namespaceOf is the network namespace of a process, zero when the process has none
// any more.
func namespaceOf(pid int) (namespaceID, error) {
	var st unix.Stat_t
	err := unix.Stat(pidPath(pid, "ns/net"), &st)
	if err == unix.ENOENT || err == unix.ESRCH {
		return namespaceID{}, nil
	}
	if err != nil {
		return namespaceID{}, fmt.Errorf("cannot look at the network namespace of process %d: %w", pid, err)
	}
	return namespaceID{st.Dev, st.Ino}, nil
}

// own is what of an instance's names on the host is ours: what a life that has not
// been taken down has left.
type own struct {
	cgroup bool        // what is in its cgroup
	netns  namespaceID // the namespace that has its name
	// anyNetns: there was one, and it is not known which.
	anyNetns bool
}

// ownOf tells it from the records, and without them from the processes themselves.
func (h *Host) ownOf(id string) (o own, err error) {
	r, err := h.loadProcess(id)
	if err != nil {
		return o, err
	}
	if r.lost {
		// Nothing is written down after the run directory was made, or it was cleared.
		if o.cgroup, err = there(h.runDir(id)); err != nil {
			return o, err
		}
		if o.anyNetns, err = there(h.processPath(id)); err != nil { // damaged
			return o, err
		}
		if r.Process.PID == 0 {
			if r.Process, err = h.findInit(id); err != nil {
				return o, err
			}
		}
	}
	if r.Process.PID == 0 || r.Process.BootID != h.boot {
		return o, nil
	}
	o.cgroup = true
	alive, err := h.alive(r.Process)
	if err == nil && alive {
		o.netns, err = namespaceOf(r.Process.PID)
	}
	if o.netns == (namespaceID{}) {
		o.netns = r.Netns
	}
	o.anyNetns = o.netns == namespaceID{}
	return o, err
}

func there(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// initPrograms are what PID 1 of an instance executes, as /proc/PID/exe names it:
// ours before the command is started, and from then on.
var initPrograms = []string{"/memfd:pinfold-starter (deleted)", "/memfd:pinit (deleted)"}

// findInit finds PID 1 of an instance in its cgroup; the zero value when it is not there.
func (h *Host) findInit(id string) (runtime.Process, error) {
	trees, err := h.cgroupTrees()
	if err != nil {
		return runtime.Process{}, err
	}
	for _, t := range trees {
		pids, err := t.pids(id)
		if err != nil {
			return runtime.Process{}, fmt.Errorf("cannot list the processes of instance %s: %w", id, err)
		}
		for _, pid := range pids {
			if exe, err := os.Readlink(pidPath(pid, "exe")); err != nil || !slices.Contains(initPrograms, exe) {
				continue
			}
			p, err := h.identify(pid)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			return p, err
		}
	}
	return runtime.Process{}, nil
}

// foreignError names what is not ours and what to do about it.
func foreignError(id, what, remedy string) error {
	return fmt.Errorf("instance %s: %s: %w; it is left alone: %s, then try again", id, what, runtime.ErrForeign, remedy)
}

// refuseForeign fails with runtime.ErrForeign when something that is not ours has a
// name that the instance needs.
func (h *Host) refuseForeign(id string) error {
	o, err := h.ownOf(id)
	if err != nil {
		return err
	}
	if _, err := h.netnsAt(id, o); err != nil {
		return err
	}
	return h.foreignProcesses(id, o)
}

// foreignProcesses fails with runtime.ErrForeign when processes that are not ours are
// in the instance's cgroup, in whichever hierarchy.
func (h *Host) foreignProcesses(id string, o own) error {
	if o.cgroup {
		return nil
	}
	trees, err := h.cgroupTrees()
	if err != nil {
		return err
	}
	for _, t := range trees {
		paths := t.instancePaths(id)
		for _, k := range slices.Sorted(maps.Keys(paths)) {
			pids, err := cgroups.GetAllPids(paths[k])
			if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("cannot list the processes of instance %s: %w", id, err)
			}
			if len(pids) > 0 {
				return foreignError(id, fmt.Sprintf("its cgroup %s holds processes that are not its own (%v)", paths[k], pids),
					"end them or move them to another cgroup")
			}
		}
	}
	return nil
}

// nameState is what is at the name of a network namespace.
type nameState int

const (
	nameFree  nameState = iota
	nameEmpty           // the file that it is bound to
	nameBound
)

// netnsAt looks at the name of the instance's network namespace. What is not ours
// there is runtime.ErrForeign.
func (h *Host) netnsAt(id string, o own) (nameState, error) {
	path := h.netns(id)
	foreign := func(what, remedy string) (nameState, error) {
		return nameFree, foreignError(id, path+" "+what, remedy)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		if err == unix.ENOENT {
			return nameFree, nil
		}
		return nameFree, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode == unix.S_IFREG|netnsMode && st.Size == 0 && st.Uid == 0 {
		return nameEmpty, nil // a bind that was cut off, or taken away by hand
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil && err != unix.ENOENT {
		return nameFree, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.NSFS_MAGIC:
		return foreign("is in the way of its network namespace and was not made by pinfold", "move it elsewhere")
	case !o.anyNetns && o.netns != namespaceID{st.Dev, st.Ino}:
		return foreign("is bound to a network namespace that is not its own", "umount "+path+" && rm "+path)
	}
	return nameBound, nil
}

// remains tells whether anything of ours is at the names of an instance of which
// nothing else is left.
func (h *Host) remains(id string) (bool, error) {
	o, err := h.ownOf(id)
	if err != nil {
		return false, err
	}
	switch state, err := h.netnsAt(id, o); {
	case err != nil && !errors.Is(err, runtime.ErrForeign):
		return false, err
	case state != nameFree:
		return true, nil
	}
	switch err := h.foreignProcesses(id, o); {
	case errors.Is(err, runtime.ErrForeign):
		return false, nil
	case err != nil:
		return false, err
	}
	trees, err := h.cgroupTrees()
	return slices.ContainsFunc(trees, func(t *cgroupTree) bool { return t.exists(id) }), err
}
