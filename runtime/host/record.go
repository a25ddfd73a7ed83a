package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// record is instance.json: whose the instance is and what it was made from.
type record struct {
	Version  int              `json:"version"`
	Lineage  string           `json:"lineage"`
	Instance runtime.Instance `json:"instance"`
	// Carrying names the instance whose layer was moved here by a Create that
	// has not finished: removing this one gives the layer back.
	Carrying string `json:"carrying,omitempty"`
}

const recordVersion = 1

type cachedRecord struct {
	modified time.Time
	size     int64
	record   record
}

func (h *Host) recordPath(id string) string { return filepath.Join(h.instanceDir(id), "instance.json") }

// errDamaged is what a power cut can make of instance.json: it is there and says
// nothing. Whose the instance is, its place in our state directory tells.
var errDamaged = errors.New("cannot be understood")

// loadRecord reads instance.json. os.ErrNotExist when there is none, errDamaged when
// it does not say anything, runtime.ErrForeign when it is of another lineage.
func (h *Host) loadRecord(id string) (record, error) {
	path := h.recordPath(id)
	st, err := os.Stat(path)
	if err != nil {
		return record{}, err
	}
	h.mu.Lock()
	c, ok := h.records[id]
	h.mu.Unlock()
	if ok && c.modified.Equal(st.ModTime()) && c.size == st.Size() {
		return c.record, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, fmt.Errorf("%s %w: %w", path, errDamaged, err)
	}
	if r.Version != recordVersion {
		return record{}, fmt.Errorf("%s has version %d, this program knows %d", path, r.Version, recordVersion)
	}
	if r.Lineage != h.opts.Lineage || r.Instance.ID != id {
		return record{}, fmt.Errorf("instance directory %s is of lineage %s, instance %s: %w", h.instanceDir(id), r.Lineage, r.Instance.ID, runtime.ErrForeign)
	}
	h.mu.Lock()
	h.records[id] = cachedRecord{st.ModTime(), st.Size(), r}
	h.mu.Unlock()
	return r, nil
}

// putRecord writes instance.json for everybody to read, but does not wait for the
// disk: after a power cut it may be there and damaged.
func (h *Host) putRecord(in runtime.Instance, carrying string) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	data, err := h.encodeRecord(in, carrying)
	if err != nil {
		return err
	}
	return replaceFile(h.recordPath(in.ID), data, 0o600)
}

// saveRecord writes instance.json so that a power cut leaves either what was there
// before or, once it has returned, this.
func (h *Host) saveRecord(in runtime.Instance, carrying string) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	return h.syncRecord(in, carrying)
}

// editRecord changes an instance's record, and its name servers to fit. Where the
// record stays the same nothing is written; that the instance is gone is no error.
func (h *Host) editRecord(id string, change func(*runtime.Instance)) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	rec, err := h.loadRecord(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	now := rec.Instance
	change(&now)
	if err := h.refreshResolvers(now); err != nil {
		return err
	}
	if reflect.DeepEqual(now, rec.Instance) {
		return nil
	}
	if err := failpoint.Step("host.record.edit", func() error { return h.syncRecord(now, rec.Carrying) }); err != nil {
		return fmt.Errorf("cannot write down what has changed of instance %s: %w", id, err)
	}
	return nil
}

func (h *Host) syncRecord(in runtime.Instance, carrying string) error {
	data, err := h.encodeRecord(in, carrying)
	if err != nil {
		return err
	}
	path := h.recordPath(in.ID)
	tmp := path + ".new"
	if err := failpoint.Step("host.record.write", func() error { return os.WriteFile(tmp, data, 0o600) }); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if err := failpoint.Step("host.record.sync", func() error { return syncPath(tmp) }); err != nil {
		return err
	}
	if err := failpoint.Step("host.record.place", func() error { return os.Rename(tmp, path) }); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	dir := filepath.Dir(path)
	return errors.Join(
		failpoint.Step("host.instance.sync", func() error { return syncPath(dir) }),
		failpoint.Step("host.instances.sync", func() error { return syncPath(filepath.Dir(dir)) }),
	)
}

func (h *Host) encodeRecord(in runtime.Instance, carrying string) ([]byte, error) {
	return json.Marshal(record{Version: recordVersion, Lineage: h.opts.Lineage, Instance: in, Carrying: carrying})
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot put %s on the disk: %w", path, err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("cannot put %s on the disk: %w", path, err)
	}
	return nil
}

// mustRecord is loadRecord for instances that have to exist.
func (h *Host) mustRecord(id string) (record, error) {
	if err := checkID(id); err != nil {
		return record{}, err
	}
	r, err := h.loadRecord(id)
	if errors.Is(err, os.ErrNotExist) {
		return r, fmt.Errorf("instance %s: %w", id, runtime.ErrNotFound)
	}
	return r, err
}

// processRecord is process.json in the run directory.
type processRecord struct {
	Process runtime.Process `json:"process"`
	Mark    runtime.Mark    `json:"mark"`
	// Netns is its network namespace; zero in what was recalled.
	Netns namespaceID `json:"netns,omitzero"`
	// Creating: Create has not come to its end. Such a process counts as none; the
	// next Create or Remove does away with it.
	Creating bool `json:"creating,omitempty"`

	// lost: there is no such file, or none that says anything, and this is what was
	// recalled.
	lost bool
}

func (h *Host) processPath(id string) string { return filepath.Join(h.runDir(id), "process.json") }

func (h *Host) saveProcess(id string, r processRecord) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	h.recall(id, r)
	return replaceFile(h.processPath(id), data, 0o600)
}

// loadProcess returns the recorded PID 1, the zero value when there is none. Where
// the run directory was cleared, or the file is damaged, it is the one that was
// recalled: the caller's records outlive the run directory.
func (h *Host) loadProcess(id string) (processRecord, error) {
	data, err := os.ReadFile(h.processPath(id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return processRecord{}, fmt.Errorf("cannot tell which process instance %s has: %w", id, err)
	}
	var r processRecord
	if err == nil && json.Unmarshal(data, &r) == nil && r.Process.PID > 0 {
		return r, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r = h.recalled[id]
	r.lost = true
	// What is only remembered must be an init of ours, if it is there.
	if exe, err := os.Readlink(pidPath(r.Process.PID, "exe")); err == nil && !slices.Contains(initPrograms, exe) {
		r.Process = runtime.Process{}
	}
	return r, nil
}

// Recall implements runtime.Host.
func (h *Host) Recall(id string, p runtime.Process, m runtime.Mark) {
	h.recall(id, processRecord{Process: p, Mark: m})
}

func (h *Host) recall(id string, r processRecord) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.recalled[id] = r
}
