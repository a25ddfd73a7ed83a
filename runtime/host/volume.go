package host

import (
	"context"
	"errors"
	"fmt"
	"os"

	"pinfold/runtime"
)

// EnsureVolume implements runtime.Host. A new volume belongs to root; the first
// sandbox that mounts it while it is empty gives it to its own user.
func (h *Host) EnsureVolume(ctx context.Context, v runtime.Volume) error {
	if !isName(v.ID) {
		return fmt.Errorf("volume id %q is not valid", v.ID)
	}
	dir := h.volumeDir(v.ID)
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrExist) {
		st, serr := os.Lstat(dir)
		if serr == nil && st.IsDir() {
			return nil
		}
		return fmt.Errorf("volume %s: %s is no directory: %w", v.ID, dir, runtime.ErrForeign)
	}
	if err != nil {
		return fmt.Errorf("cannot make volume %s: %w", v.ID, err)
	}
	return os.Chmod(dir, 0o755) // whatever the umask
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
		if err != nil {
			continue // not ours, or not whole: it has no live process that we made
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
	if err := os.RemoveAll(h.volumeDir(id)); err != nil {
		return fmt.Errorf("cannot remove volume %s: %w", id, err)
	}
	return nil
}
