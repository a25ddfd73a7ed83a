package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// EnsureVolume implements runtime.Host. A new volume belongs to root; the first
// sandbox that mounts it while it is empty gives it to its own user.
func (h *Host) EnsureVolume(ctx context.Context, v runtime.Volume) error {
	if !isName(v.ID) {
		return fmt.Errorf("volume id %q is not valid", v.ID)
	}
	dir := h.volumeDir(v.ID)
	switch st, err := os.Lstat(dir); {
	case err == nil && st.IsDir():
		return nil
	case err == nil:
		return fmt.Errorf("volume %s: %s is no directory: %w", v.ID, dir, runtime.ErrForeign)
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("cannot look at volume %s: %w", v.ID, err)
	}
	// It has its name only when it is as it should be: later its mode is its users' affair.
	tmp := h.newVolumeDir(v.ID)
	err := failpoint.Step("host.volume.make", func() error { return os.Mkdir(tmp, 0o755) })
	if errors.Is(err, os.ErrExist) {
		err = nil // of one that was cut off here
	}
	if err == nil {
		err = failpoint.Step("host.volume.mode", func() error { return os.Chmod(tmp, 0o755) }) // whatever the umask
	}
	if err == nil {
		err = failpoint.Step("host.volume.place", func() error { return os.Rename(tmp, dir) })
	}
	if err != nil {
		return fmt.Errorf("cannot make volume %s: %w", v.ID, err)
	}
	return nil
}

// newVolumeDir is where a volume's directory is made. No volume has such a name.
func (h *Host) newVolumeDir(id string) string {
	return filepath.Join(h.opts.StateDir, "volume-"+id+".new")
}

// RemoveVolume implements runtime.Host. A volume that is not there is removed.
func (h *Host) RemoveVolume(ctx context.Context, id string) error {
	if !isName(id) {
		return fmt.Errorf("volume id %q is not valid", id)
	}
	ids, err := h.recorded()
	if err != nil {
		return err
	}
	for _, i := range ids {
		rec, err := h.loadRecord(i)
		if errors.Is(err, os.ErrNotExist) {
			continue // a directory of somebody else's
		}
		if errors.Is(err, errDamaged) {
			// What it mounts cannot be told, but whether it lives.
			p, perr := h.loadProcess(i)
			ok, aerr := h.alive(p.Process)
			if err = errors.Join(perr, aerr); err == nil && ok {
				err = fmt.Errorf("instance %s lives and its record cannot be read: %w", i, runtime.ErrBusy)
			}
			if err == nil {
				continue
			}
		}
		if err != nil {
			return fmt.Errorf("cannot tell whether volume %s is in use: %w", id, err)
		}
		for _, m := range rec.Instance.Mounts {
			if m.Kind != "volume" || m.Source != id {
				continue
			}
			p, err := h.loadProcess(i)
			if err != nil {
				return err
			}
			ok, err := h.alive(p.Process)
			if err != nil {
				return err
			}
			if ok {
				return fmt.Errorf("volume %s is in use by instance %s (%s): %w", id, i, rec.Instance.Mark.Address, runtime.ErrBusy)
			}
		}
	}
	err = failpoint.Step("host.volume.remove", func() error { return os.RemoveAll(h.volumeDir(id)) })
	if err == nil {
		err = failpoint.Step("host.volume.discard", func() error { return os.RemoveAll(h.newVolumeDir(id)) })
	}
	if err == nil {
		// A record that is gone for good must not leave data that a power cut brings back.
		err = failpoint.Step("host.volumes.sync", func() error { return syncPath(filepath.Dir(h.volumeDir(id))) })
	}
	if err != nil {
		return fmt.Errorf("cannot remove volume %s: %w", id, err)
	}
	return nil
}
