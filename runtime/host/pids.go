package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// The limit of processes counts threads, and libcontainer's helpers are Go programs
// that need some: under a small limit, or in a sandbox that is nearly full, they
// would die half-way and tell the user's terminal about it. So no helper ever
// counts. A created instance has no such limit until PID 1, before it starts the
// command, sets it. An exec goes through the helpers outside of the cgroup that
// counts and joins it at the last step, before its command.

// pidsMax is the limit as the kernel writes it.
func pidsMax(l runtime.Limits) string {
	if l.PIDs > 0 {
		return strconv.FormatInt(l.PIDs, 10)
	}
	return "max"
}

func (h *Host) pidsPath(id string) string { return filepath.Join(h.runDir(id), "pids") }

// savePIDs writes down the limit that PID 1 will set. In place: PID 1 has the file open.
func (h *Host) savePIDs(id string, l runtime.Limits) error {
	err := failpoint.Step("host.pids.write", func() error { return os.WriteFile(h.pidsPath(id), []byte(pidsMax(l)), 0o600) })
	if err != nil {
		return fmt.Errorf("cannot write down the process limit of instance %s: %w", id, err)
	}
	return nil
}

// openPIDs opens what PID 1 needs to set the limit. max is nil where the kernel
// offers none and none is asked for.
func (h *Host) openPIDs(in runtime.Instance, tree *cgroupTree) (limit, max *os.File, err error) {
	if err := h.savePIDs(in.ID, in.Limits); err != nil {
		return nil, nil, err
	}
	if err := failpoint.Step("host.cgroup.make", func() error { return tree.makeCounted(in.ID) }); err != nil {
		return nil, nil, fmt.Errorf("cannot make the cgroup of instance %s: %w", in.ID, err)
	}
	max, err = os.OpenFile(filepath.Join(tree.dir(in.ID, "pids"), "pids.max"), os.O_WRONLY, 0)
	if err != nil && !(errors.Is(err, os.ErrNotExist) && in.Limits.PIDs == 0) {
		return nil, nil, fmt.Errorf("processes of instance %s cannot be limited: %w", in.ID, err)
	}
	limit, err = os.Open(h.pidsPath(in.ID))
	if err != nil {
		max.Close() // harmless on nil
	}
	return limit, max, err
}

// makeCounted makes the cgroup that counts processes, as libcontainer would a little
// later.
func (t *cgroupTree) makeCounted(id string) error {
	dir := t.dir(id, "pids")
	if t.v2 {
		on, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"))
		if err != nil || !slices.Contains(strings.Fields(string(on)), "pids") {
			return fs2.CreateCgroupPath(dir, &cgroups.Cgroup{Resources: &cgroups.Resources{}})
		}
	}
	return os.MkdirAll(dir, 0o755)
}

// full tells whether an instance has as many processes as it may, and how many that is.
func (t *cgroupTree) full(id string) (limit int64, full bool, err error) {
	read := func(file string) (int64, error) {
		b, err := os.ReadFile(filepath.Join(t.dir(id, "pids"), file))
		text := strings.TrimSpace(string(b))
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV), err == nil && text == "max":
			return -1, nil
		case err != nil:
			return 0, err
		}
		return strconv.ParseInt(text, 10, 64)
	}
	if limit, err = read("pids.max"); err != nil || limit < 0 {
		return 0, false, err
	}
	now, err := read("pids.current")
	return limit, now >= limit, err
}

// On version 2, where no controller has a tree of its own, an exec is in this
// cgroup beside the instances' until it joins the instance's.
const anteroom = "entering"

func (t *cgroupTree) removeAnteroom() {
	if t.v2 {
		// Who is in it keeps it.
		_ = failpoint.Step("host.anteroom.remove", func() error { return unix.Rmdir(filepath.Join(t.paths[""], anteroom)) })
	}
}

// entrance returns what libcontainer.Load takes to get at an instance without
// entering the cgroup that counts its processes.
func (h *Host) entrance(id string, tree *cgroupTree) (root string, err error) {
	if tree.v2 {
		err := failpoint.Step("host.anteroom.make", func() error { return os.Mkdir(filepath.Join(tree.paths[""], anteroom), 0o755) })
		if err != nil && !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("cannot make a cgroup for entering instances: %w", err)
		}
	}
	root = filepath.Join(h.runDir(id), "entrance")
	file := filepath.Join(root, id, "state.json")
	if _, err := os.Stat(file); err == nil || !errors.Is(err, os.ErrNotExist) {
		return root, err
	}
	data, err := os.ReadFile(filepath.Join(h.containers(), id, "state.json"))
	if err != nil {
		return "", err
	}
	var state libcontainer.State
	if err := json.Unmarshal(data, &state); err != nil {
		return "", fmt.Errorf("libcontainer's state of instance %s cannot be understood: %w", id, err)
	}
	counted := tree.dir(id, "pids")
	for controller, path := range state.CgroupPaths {
		switch {
		case path != counted:
		case tree.v2:
			state.CgroupPaths[controller] = filepath.Join(tree.paths[""], anteroom)
		default:
			delete(state.CgroupPaths, controller)
		}
	}
	if data, err = json.Marshal(state); err != nil {
		return "", err
	}
	if err := failpoint.Step("host.entrance.make", func() error { return os.MkdirAll(filepath.Dir(file), 0o700) }); err != nil {
		return "", err
	}
	return root, failpoint.Step("host.entrance.write", func() error { return replaceFile(file, data, 0o600) })
}
