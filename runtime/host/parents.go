package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pinfold/runtime/failpoint"
)

// The settings can name another cgroup parent while instances live below the one of
// before. They stay where they are until they end, so every parent that this lineage
// has used since the boot is written down before anything is made below it, and
// struck off when Close has found it empty and removed it.

func (h *Host) parentsPath() string { return filepath.Join(h.opts.RunDir, "cgroup-parents") }

// readParents lists them. A line that is none of ours, or not whole, names nothing.
func (h *Host) readParents() ([]string, error) {
	data, err := os.ReadFile(h.parentsPath())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot read where our cgroups are: %w", err)
	}
	var parents []string
	for line := range strings.Lines(string(data)) {
		parent := strings.TrimSuffix(line, "\n")
		name, below := strings.CutPrefix(parent, "/")
		if below && isName(name) && strings.HasSuffix(name, "-"+h.opts.ShortID) {
			parents = append(parents, parent)
		}
	}
	return parents, nil
}

func (h *Host) writeParents(parents []string) error {
	if len(parents) == 0 {
		err := failpoint.Step("host.parents.remove", func() error { return os.Remove(h.parentsPath()) })
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot strike off where our cgroups were: %w", err)
		}
		return nil
	}
	return failpoint.Step("host.parents.write", func() error {
		return replaceFile(h.parentsPath(), []byte(strings.Join(parents, "\n")+"\n"), 0o600)
	})
}

// noteParent writes down that something is about to be made below the parent of now.
func (h *Host) noteParent(t *cgroupTree) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.noted {
		return nil
	}
	parents, err := h.readParents()
	if err != nil {
		return err
	}
	if !slices.Contains(parents, t.parent) {
		if err := h.writeParents(append(parents, t.parent)); err != nil {
			return err
		}
	}
	h.noted = true
	return nil
}

// cgroupTrees returns the tree in which instances are made now, and then those of
// other parents in which some may still be.
func (h *Host) cgroupTrees() ([]*cgroupTree, error) {
	t, err := h.cgroups()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]*cgroupTree{t}, h.olderTrees...), nil
}

// cgroupsOf returns the tree that an instance is in; where it is in none, that of now.
func (h *Host) cgroupsOf(id string) (*cgroupTree, error) {
	trees, err := h.cgroupTrees()
	if err != nil {
		return nil, err
	}
	for _, t := range trees[1:] {
		if t.exists(id) {
			return t, nil
		}
	}
	return trees[0], nil
}

// removeParents removes the parents that are empty.
func (h *Host) removeParents() error {
	trees, err := h.cgroupTrees()
	if err != nil {
		return nil // without cgroups there are none
	}
	var errs []error
	var kept []string
	for _, t := range trees {
		gone, err := t.removeParent()
		errs = append(errs, err)
		if !gone {
			kept = append(kept, t.parent)
		}
	}
	if len(kept) == len(trees) {
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, h.writeParents(kept))...)
}

// parents finds those of a lineage by their names, for where what was written down
// is gone with the run directory.
func (t *cgroupTree) parents(shortID string) []string {
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(t.dir("", "freezer")), "*-"+shortID)) // the pattern is a good one
	for i, path := range found {
		found[i] = "/" + filepath.Base(path)
	}
	return found
}

// at is the same tree below another parent.
func (t *cgroupTree) at(parent string) *cgroupTree {
	other := &cgroupTree{parent: parent, paths: make(map[string]string, len(t.paths)), v2: t.v2, swap: t.swap}
	for k, p := range t.paths {
		other.paths[k] = strings.TrimSuffix(p, t.parent) + parent
	}
	return other
}
