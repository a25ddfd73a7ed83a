package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// Somebody may clear the run directory while sandboxes live. All that it says of
// one that runs follows from its record and its process, and is written anew. What
// a created one waits at cannot be given back: it has to be made again.

func (h *Host) containerState(id string) string {
	return filepath.Join(h.containers(), id, "state.json")
}

// containerKnown tells whether libcontainer's state of an instance is there.
func (h *Host) containerKnown(id string) bool {
	_, err := os.Lstat(h.containerState(id))
	return !errors.Is(err, os.ErrNotExist)
}

// restoreRunDir writes what the run directory lacks of an instance that lives.
func (h *Host) restoreRunDir(in runtime.Instance, p processRecord, tree *cgroupTree) error {
	if err := h.ready(); err != nil {
		return err
	}
	for _, dir := range []string{h.runDir(in.ID), filepath.Dir(h.containerState(in.ID))} {
		if err := failpoint.Step("host.run.restore", func() error { return os.MkdirAll(dir, 0o700) }); err != nil {
			return fmt.Errorf("cannot make the run directory of instance %s: %w", in.ID, err)
		}
	}
	if !h.containerKnown(in.ID) {
		if err := h.restoreContainer(in, p.Process, tree); err != nil {
			return fmt.Errorf("cannot write libcontainer's state of instance %s: %w", in.ID, err)
		}
	}
	if !p.lost {
		return nil
	}
	ns, err := namespaceOf(p.Process.PID)
	if err != nil {
		return err
	}
	p.Netns = ns
	if err := failpoint.Step("host.process.restore", func() error { return h.saveProcess(in.ID, p) }); err != nil {
		return fmt.Errorf("cannot write down the process of instance %s: %w", in.ID, err)
	}
	return nil
}

// restoreContainer writes libcontainer's state of an instance, by which a process
// is started in it.
func (h *Host) restoreContainer(in runtime.Instance, p runtime.Process, tree *cgroupTree) error {
	config := h.containerConfig(in, tree)
	state := libcontainer.State{
		BaseState: libcontainer.BaseState{
			ID: in.ID, InitProcessPid: p.PID, InitProcessStartTime: p.StartTime, Created: time.Now(), Config: *config,
		},
		CgroupPaths:         tree.instancePaths(in.ID),
		NamespacePaths:      map[configs.NamespaceType]string{},
		ExternalDescriptors: []string{os.DevNull, os.DevNull, os.DevNull},
	}
	for _, ns := range config.Namespaces {
		state.NamespacePaths[ns.Type] = ns.GetPath(p.PID)
	}
	data, err := json.Marshal(&state)
	if err != nil {
		return err
	}
	return failpoint.Step("host.container.restore", func() error { return replaceFile(h.containerState(in.ID), data, 0o600) })
}

// keepRunDir makes the run directory again where somebody has cleared it under us.
func (h *Host) keepRunDir() error {
	for _, name := range []string{"lineage", "netns"} {
		if _, err := os.Lstat(filepath.Join(h.opts.RunDir, name)); err == nil {
			continue
		}
		h.mu.Lock()
		h.noted = false
		h.mu.Unlock()
		return makeRunDir(h.opts)
	}
	return nil
}

func makeRunDir(o Options) error {
	return makeDir(o.RunDir, o.Lineage, "instances", "containers", "netns")
}

// makeDir makes dir and the directories in it, and marks it as the lineage's.
func makeDir(dir, lineage string, within ...string) error {
	if err := failpoint.Step("host.directory.make", func() error { return os.MkdirAll(dir, 0o700) }); err != nil {
		return fmt.Errorf("cannot make %s: %w", dir, err)
	}
	if err := claim(dir, lineage, within); err != nil {
		return err
	}
	for _, name := range within {
		path := filepath.Join(dir, name)
		if err := failpoint.Step("host.directory.fill", func() error { return os.MkdirAll(path, 0o700) }); err != nil {
			return fmt.Errorf("cannot make %s: %w", path, err)
		}
	}
	return nil
}

// claim marks dir as the lineage's. One that is another lineage's is refused,
// unless nothing of that one is left in the directories within.
func claim(dir, lineage string, within []string) error {
	owner, err := Owner(dir)
	if err != nil || owner == lineage {
		return err
	}
	if owner != "" {
		for _, name := range within {
			left, err := os.ReadDir(filepath.Join(dir, name))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("cannot tell whether %s is in use: %w", dir, err)
			}
			if len(left) > 0 {
				return fmt.Errorf("%s holds %s of lineage %s, not %s: %w; give each state dir a run dir of its own (-run-dir), or use the state dir that this one belongs to (-state-dir)",
					dir, name, owner, lineage, runtime.ErrForeign)
			}
		}
	}
	return failpoint.Step("host.lineage.write", func() error {
		return replaceFile(filepath.Join(dir, "lineage"), []byte(lineage+"\n"), 0o600)
	})
}

// Owner tells which lineage a state or run directory is marked as belonging to, ""
// when it is none's. A mark that can be no lineage, as of a power cut, is none.
func Owner(dir string) (string, error) {
	mark, err := os.ReadFile(filepath.Join(dir, "lineage"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("cannot read whose directory %s is: %w", dir, err)
	}
	owner := strings.TrimSpace(string(mark))
	if !lineageShape.MatchString(owner) {
		return "", nil
	}
	return owner, nil
}

// lineageShape is what lineages look like; those of states are UUIDs.
var lineageShape = regexp.MustCompile(`^[0-9a-zA-Z-]{6,64}$`)

// Left is what a state directory holds.
type Left struct {
	Lineage   string
	Instances []string // the address of each sandbox, or the instance's id where that cannot be told
	Volumes   int
}

// LeftIn looks into a state directory whose state is gone.
func LeftIn(stateDir string) (Left, error) {
	var l Left
	var err error
	if l.Lineage, err = Owner(stateDir); err != nil {
		return l, err
	}
	dir := filepath.Join(stateDir, "instances")
	ids, err := listIDs(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return l, err
	}
	for _, id := range ids {
		var r record
		data, err := os.ReadFile(filepath.Join(dir, id, "instance.json"))
		if err != nil || json.Unmarshal(data, &r) != nil || r.Instance.Mark.Address == "" {
			r.Instance.Mark.Address = id
		}
		if l.Lineage == "" && lineageShape.MatchString(r.Lineage) {
			l.Lineage = r.Lineage // each instance says it too
		}
		l.Instances = append(l.Instances, r.Instance.Mark.Address)
	}
	slices.Sort(l.Instances)
	volumes, err := os.ReadDir(filepath.Join(stateDir, "volumes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return l, fmt.Errorf("cannot list volumes: %w", err)
	}
	l.Volumes = len(volumes)
	return l, nil
}
