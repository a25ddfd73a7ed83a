package host

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // device rules are refused without it
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/cgroups/manager"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// cgroupTree is where our cgroups are in each hierarchy. On cgroup v2 the only
// key is "".
type cgroupTree struct {
	parent string // "/pinfold-abcdef"
	paths  map[string]string
	v2     bool
	swap   bool // v1: the kernel counts swap

	own     string      // cgroup.procs of the cgroup this process is in, "" if unknown
	warming atomic.Bool // a warm is under way
}

// cgroups finds the hierarchies, once. runtime.ErrUnsupported without them.
func (h *Host) cgroups() (*cgroupTree, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tree != nil {
		return h.tree, nil
	}
	t := &cgroupTree{parent: "/" + h.opts.CgroupParent + "-" + h.opts.ShortID}
	kind := cgroupMode()
	if kind == "none" {
		return nil, fmt.Errorf("%w: no cgroups are mounted at /sys/fs/cgroup; mount cgroup2 there", runtime.ErrUnsupported)
	}
	t.v2 = kind == "v2"
	// The library opens the root of all cgroups once per process and keeps it. That
	// must not happen inside a stage, whose mounts go with it.
	if f, err := cgroups.OpenFile("/sys/fs/cgroup", ".", unix.O_RDONLY|unix.O_DIRECTORY); err == nil {
		f.Close()
	}
	m, err := manager.New(&cgroups.Cgroup{Path: t.parent, Resources: &cgroups.Resources{}})
	if err != nil {
		return nil, fmt.Errorf("%w: cgroups cannot be used: %w", runtime.ErrUnsupported, err)
	}
	t.paths = map[string]string{}
	for k, p := range m.GetPaths() {
		t.paths[k] = p
	}
	if !t.v2 {
		for _, need := range []string{"freezer", "memory", "pids", "cpu", "devices"} {
			if t.paths[need] == "" {
				return nil, fmt.Errorf("%w: the cgroup controller %q is not mounted below /sys/fs/cgroup", runtime.ErrUnsupported, need)
			}
		}
		_, err := os.Stat(filepath.Join(filepath.Dir(t.paths["memory"]), "memory.memsw.limit_in_bytes"))
		t.swap = err == nil
	}
	if mine, err := cgroups.ParseCgroupFile("/proc/self/cgroup"); err == nil {
		controller := "freezer"
		if t.v2 {
			controller = ""
		}
		if at, ok := mine[controller]; ok {
			t.own = filepath.Join(strings.TrimSuffix(t.paths[controller], t.parent), at, "cgroup.procs")
		}
	}
	parents, err := h.readParents()
	if err != nil {
		return nil, err
	}
	if len(parents) == 0 {
		parents = t.parents(h.opts.ShortID)
	}
	for _, p := range parents {
		if p != t.parent {
			h.olderTrees = append(h.olderTrees, t.at(p))
		}
	}
	h.tree = t
	return t, nil
}

// warm makes the next move of a process into a cgroup cheap. The first such move
// after a pause waits for a grace period of the kernel's read-copy-update, some
// milliseconds in which nothing else of a start goes on; further moves soon after
// do not. So we move ourselves to where we are already, while the caller does
// other work.
func (t *cgroupTree) warm() {
	if t.own == "" || !t.warming.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer t.warming.Store(false)
		// Whether the move itself is allowed makes no difference.
		_ = os.WriteFile(t.own, []byte(strconv.Itoa(os.Getpid())), 0)
	}()
}

// cgroupMode is what runtime.Info calls Cgroups.
func cgroupMode() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return "none"
	}
	switch {
	case st.Type == unix.CGROUP2_SUPER_MAGIC:
		return "v2"
	case st.Type != unix.TMPFS_MAGIC:
		return "none"
	}
	if err := unix.Statfs("/sys/fs/cgroup/unified", &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		return "hybrid"
	}
	if err := unix.Statfs("/sys/fs/cgroup/freezer", &st); err == nil && st.Type == unix.CGROUP_SUPER_MAGIC {
		return "v1"
	}
	return "none"
}

// config is the cgroup of an instance as libcontainer takes it.
func (t *cgroupTree) config(id string, r *cgroups.Resources) *cgroups.Cgroup {
	return &cgroups.Cgroup{Path: t.parent + "/" + id, Resources: r}
}

// instancePaths are an instance's directories by hierarchy.
func (t *cgroupTree) instancePaths(id string) map[string]string {
	paths := make(map[string]string, len(t.paths))
	for k, p := range t.paths {
		paths[k] = filepath.Join(p, id)
	}
	return paths
}

func (t *cgroupTree) manager(id string) (cgroups.Manager, error) {
	return manager.NewWithPaths(t.config(id, &cgroups.Resources{SkipDevices: true}), t.instancePaths(id))
}

// dir is the instance's directory in the hierarchy of a v1 controller, or its
// only one on v2.
func (t *cgroupTree) dir(id, controller string) string {
	if t.v2 {
		controller = ""
	}
	return filepath.Join(t.paths[controller], id)
}

// exists tells whether any part of the cgroup is there.
func (t *cgroupTree) exists(id string) bool {
	for _, c := range []string{"freezer", "pids"} { // that of pids is made before all others
		if _, err := os.Stat(t.dir(id, c)); err == nil {
			return true
		}
	}
	return false
}

// complete tells whether the cgroup is there in every hierarchy that limits.
func (t *cgroupTree) complete(id string) bool {
	for _, c := range []string{"freezer", "memory", "pids", "cpu", "devices"} {
		if _, err := os.Stat(t.dir(id, c)); err != nil {
			return false
		}
	}
	return true
}

// pids are the processes in the cgroup and below it; none when it is gone.
// Zombies are not among them.
func (t *cgroupTree) pids(id string) ([]int, error) {
	pids, err := cgroups.GetAllPids(t.dir(id, "freezer"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	return pids, err
}

// frozen tells whether the instance is frozen or on its way there.
func (t *cgroupTree) frozen(id string) (bool, error) {
	file, thawed := "freezer.state", "THAWED"
	if t.v2 {
		file, thawed = "cgroup.freeze", "0"
	}
	b, err := os.ReadFile(filepath.Join(t.dir(id, "freezer"), file))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot read the freezer of instance %s: %w", id, err)
	}
	return strings.TrimSpace(string(b)) != thawed, nil
}

func (t *cgroupTree) freeze(id string, state cgroups.FreezerState) error {
	m, err := t.manager(id)
	if err != nil {
		return err
	}
	return m.Freeze(state)
}

// killAll ends every process of the cgroup. What is frozen does not run again:
// version 1 delivers the signal only at the thaw, so all get theirs before it.
func (t *cgroupTree) killAll(id string) error {
	if t.v2 {
		file := filepath.Join(t.dir(id, ""), "cgroup.kill")
		err := failpoint.Step("host.cgroup.kill", func() error { return os.WriteFile(file, []byte("1"), 0) })
		if err == nil || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot kill the cgroup of instance %s: %w", id, err)
		}
		// Before Linux 5.14, or the cgroup is gone.
	}
	pids, err := t.pids(id)
	if err != nil {
		return fmt.Errorf("cannot list the processes of instance %s: %w", id, err)
	}
	for _, pid := range pids {
		err := failpoint.Step("host.cgroup.signal", func() error { return unix.Kill(pid, unix.SIGKILL) })
		if err != nil && err != unix.ESRCH {
			return fmt.Errorf("cannot kill process %d of instance %s: %w", pid, id, err)
		}
	}
	frozen, err := t.frozen(id)
	if err != nil || !frozen || t.v2 {
		return err
	}
	if err := failpoint.Step("host.cgroup.thaw", func() error { return t.freeze(id, cgroups.Thawed) }); err != nil {
		return fmt.Errorf("cannot thaw the killed processes of instance %s: %w", id, err)
	}
	return nil
}

// remove removes the cgroup, waiting up to bound for the kernel to be done with
// its last processes.
func (t *cgroupTree) remove(id string, bound time.Duration) error {
	deadline := time.Now().Add(bound)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		var last error
		for _, p := range t.instancePaths(id) {
			if err := removeCgroup(p); err != nil {
				last = err
			}
		}
		if last == nil {
			return nil
		}
		if !errors.Is(last, unix.EBUSY) {
			return fmt.Errorf("cannot remove the cgroup of instance %s: %w", id, last)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cannot remove the cgroup of instance %s: %w: %w", id, last, runtime.ErrBusy)
		}
		time.Sleep(pause)
	}
}

// removeCgroup removes one directory and the empty ones the workload or its
// init system may have made below it.
func removeCgroup(path string) error {
	if err := rmdirCgroup(path); !errors.Is(err, unix.EBUSY) {
		return err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(path, e.Name())); err != nil {
				return err
			}
		}
	}
	return rmdirCgroup(path)
}

// rmdirCgroup removes one directory. EBUSY when processes or directories are in it.
func rmdirCgroup(path string) error {
	err := failpoint.Step("host.cgroup.remove", func() error { return unix.Rmdir(path) })
	if err == nil || err == unix.ENOENT || err == unix.ENODEV {
		return nil
	}
	return &os.PathError{Op: "rmdir", Path: path, Err: err}
}

// removeParent removes the parent where it is empty, and tells whether it is gone in
// every hierarchy.
func (t *cgroupTree) removeParent() (gone bool, err error) {
	var errs []error
	gone = true
	if ids, err := t.instances(); err == nil && len(ids) == 0 {
		t.removeAnteroom()
	}
	for _, p := range t.paths {
		err := failpoint.Step("host.parent.remove", func() error { return unix.Rmdir(p) })
		if err == nil || err == unix.ENOENT {
			continue
		}
		gone = false
		if err != unix.EBUSY && err != unix.ENOTEMPTY {
			errs = append(errs, &os.PathError{Op: "rmdir", Path: p, Err: err})
		}
	}
	return gone, errors.Join(errs...)
}

// instances lists the ids that have a cgroup.
func (t *cgroupTree) instances() ([]string, error) {
	dir := t.paths["freezer"]
	if t.v2 {
		dir = t.paths[""]
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list our cgroups: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && isInstanceID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// oomKills reads the cgroup's oom_kill counter; 0 when the cgroup is gone.
func (t *cgroupTree) oomKills(id string) (uint64, error) {
	read := fs.OOMKillCount
	if t.v2 {
		read = fs2.OOMKillCount
	}
	n, err := read(t.dir(id, "memory"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return 0, nil
	}
	return n, err
}

const cpuPeriod = 100_000 // microseconds, the kernel's default

func cpuQuota(cores float64) int64 {
	return max(int64(math.Round(cores*cpuPeriod)), 1000) // the kernel's least quota is 1 ms
}

// resources translates limits. With reset, a limit of zero lifts the one that
// is in force; without, it is left alone, which is the same in a new cgroup.
func (t *cgroupTree) resources(l runtime.Limits, reset bool) *cgroups.Resources {
	r := &cgroups.Resources{}
	if l.CPU > 0 {
		r.CpuQuota, r.CpuPeriod = cpuQuota(l.CPU), cpuPeriod
	} else if reset {
		r.CpuQuota, r.CpuPeriod = -1, cpuPeriod
	}
	if l.Memory > 0 {
		r.Memory = l.Memory
	} else if reset {
		r.Memory = -1
	}
	if r.Memory != 0 && (t.v2 || t.swap) {
		r.MemorySwap = r.Memory
	}
	if l.PIDs > 0 {
		r.PidsLimit = &l.PIDs
	} else if reset {
		unlimited := int64(-1)
		r.PidsLimit = &unlimited
	}
	return r
}

// setLimits brings a live cgroup's limits to l, but for that of processes when the
// command has not been started.
func (t *cgroupTree) setLimits(id string, l runtime.Limits, started bool) error {
	m, err := t.manager(id)
	if err != nil {
		return err
	}
	r := t.resources(l, true)
	r.SkipDevices = true
	if !started {
		r.PidsLimit = nil
	}
	if err := failpoint.Step("host.limits.set", func() error { return m.Set(r) }); err != nil {
		return fmt.Errorf("cannot set the limits of instance %s: %w", id, err)
	}
	return nil
}

// limitsHold compares what the kernel enforces with l, but for the limit of
// processes when the command has not been started.
func (t *cgroupTree) limitsHold(id string, l runtime.Limits, started bool) (bool, error) {
	read := func(controller, file string) (string, error) {
		b, err := os.ReadFile(filepath.Join(t.dir(id, controller), file))
		if errors.Is(err, os.ErrNotExist) && t.v2 { // the controller is not switched on
			return "max", nil
		}
		return strings.TrimSpace(string(b)), err
	}
	page := int64(os.Getpagesize())
	memory, quota := "max", "max"
	if l.Memory > 0 {
		memory = strconv.FormatInt(l.Memory/page*page, 10)
	}
	if l.CPU > 0 {
		quota = strconv.FormatInt(cpuQuota(l.CPU), 10)
	}
	if started {
		got, err := read("pids", "pids.max")
		if err != nil || got != pidsMax(l) {
			return false, err
		}
	}
	if t.v2 {
		got, err := read("", "memory.max")
		if err != nil || got != memory {
			return false, err
		}
		got, err = read("", "cpu.max")
		f := strings.Fields(got)
		return len(f) > 0 && f[0] == quota, err
	}
	got, err := read("memory", "memory.limit_in_bytes")
	if err != nil {
		return false, err
	}
	if n, _ := strconv.ParseUint(got, 10, 64); n >= math.MaxInt64/uint64(page)*uint64(page) {
		got = "max"
	}
	if got != memory {
		return false, nil
	}
	if got, err = read("cpu", "cpu.cfs_quota_us"); err != nil {
		return false, err
	}
	if got == "-1" {
		got = "max"
	}
	return got == quota, nil
}

// deviceRules are the only devices a sandbox may open. Making nodes is allowed
// for none; overlayfs' whiteouts are exempt in the kernel.
func deviceRules() []*devices.Rule {
	rules := []*devices.Rule{{Type: devices.WildcardDevice, Major: devices.Wildcard, Minor: devices.Wildcard, Permissions: "rwm", Allow: false}}
	allow := func(major, minor int64) {
		rules = append(rules, &devices.Rule{Type: devices.CharDevice, Major: major, Minor: minor, Permissions: "rw", Allow: true})
	}
	for _, n := range devNodes {
		allow(int64(n.major), int64(n.minor))
	}
	allow(5, 2)                  // ptmx
	allow(136, devices.Wildcard) // pts
	return rules
}
