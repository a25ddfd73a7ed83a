package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

func (h *Host) notePath(id string) string     { return filepath.Join(h.instanceDir(id), "note.json") }
func (h *Host) releasedPath(id string) string { return filepath.Join(h.instanceDir(id), "released") }

// Note implements runtime.Host.
func (h *Host) Note(ctx context.Context, id string, doc []byte) error {
	if err := checkID(id); err != nil {
		return err
	}
	err := failpoint.Step("host.note.write", func() error { return replaceFile(h.notePath(id), doc, 0o600) })
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("instance %s: %w", id, runtime.ErrNotFound)
	}
	return err
}

// Notes implements runtime.Host.
func (h *Host) Notes(ctx context.Context) (map[string]runtime.Noted, error) {
	ids, err := h.recorded()
	if err != nil {
		return nil, err
	}
	all := make(map[string]runtime.Noted, len(ids))
	for _, id := range ids {
		var n runtime.Noted
		switch rec, err := h.loadRecord(id); {
		case errors.Is(err, runtime.ErrForeign):
			continue
		case err == nil:
			n.Made = &rec.Instance
		}
		doc, err := os.ReadFile(h.notePath(id))
		if err == nil && json.Valid(doc) {
			n.Doc = doc
			if st, err := os.Stat(h.notePath(id)); err == nil {
				n.At = st.ModTime()
			}
		}
		all[id] = n
	}
	return all, nil
}

// Release implements runtime.Host.
func (h *Host) Release(ctx context.Context, id string) error {
	if _, err := h.mustRecord(id); err != nil {
		return err
	}
	err := failpoint.Step("host.release.mark", func() error { return os.WriteFile(h.releasedPath(id), nil, 0o600) })
	if err == nil {
		err = failpoint.Step("host.release.sync", func() error { return syncPath(h.instanceDir(id)) })
	}
	if err != nil {
		return fmt.Errorf("cannot mark instance %s as released: %w", id, err)
	}
	return nil
}
