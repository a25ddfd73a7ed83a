package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

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
		if n.Doc, n.At, err = readNote(h.notePath(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("cannot read the note of instance %s: %w", id, err)
		}
		all[id] = n
	}
	return all, nil
}

// noteBound is the size of the longest note that is read, far beyond any that is written.
const noteBound = 16 << 20

// readNote reads a note; one that is no regular file, too long or not whole says nothing.
func readNote(path string) (doc []byte, at time.Time, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, at, nil
	}
	if err != nil {
		return nil, at, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > noteBound {
		return nil, at, err
	}
	if doc, err = io.ReadAll(io.LimitReader(f, noteBound)); err != nil || !json.Valid(doc) {
		return nil, at, err
	}
	return doc, st.ModTime(), nil
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

// Reclaim implements runtime.Host.
func (h *Host) Reclaim(ctx context.Context, id string) error {
	if _, err := h.mustRecord(id); err != nil {
		return err
	}
	err := failpoint.Step("host.release.unmark", func() error { return os.Remove(h.releasedPath(id)) })
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = failpoint.Step("host.release.forget", func() error { return syncPath(h.instanceDir(id)) })
	}
	if err != nil {
		return fmt.Errorf("cannot take the mark of a released one from instance %s: %w", id, err)
	}
	return nil
}
