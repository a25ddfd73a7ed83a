package sim

import (
	"context"
	"slices"
	"time"

	"pinfold/runtime"
)

// Note implements runtime.Host.
func (h *Host) Note(ctx context.Context, id string, doc []byte) error {
	err := h.call(ctx, OpNote, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.instance(id)
		if err == nil {
			in.note, in.notedAt = slices.Clone(doc), now()
		}
		return err
	})
	return wrap("note", id, err)
}

// Notes implements runtime.Host.
func (h *Host) Notes(ctx context.Context) (all map[string]runtime.Noted, err error) {
	err = h.call(ctx, OpNotes, "", func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		all = map[string]runtime.Noted{}
		for id, in := range h.l.instances {
			made := in.spec
			all[id] = runtime.Noted{Doc: slices.Clone(in.note), At: in.notedAt, Made: &made}
		}
		return nil
	})
	return all, err
}

// Release implements runtime.Host.
func (h *Host) Release(ctx context.Context, id string) error {
	err := h.call(ctx, OpRelease, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.instance(id)
		if err == nil {
			in.released = true
		}
		return err
	})
	return wrap("release", id, err)
}

// Reclaim implements runtime.Host.
func (h *Host) Reclaim(ctx context.Context, id string) error {
	err := h.call(ctx, OpReclaim, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.instance(id)
		if err == nil {
			in.released = false
		}
		return err
	})
	return wrap("reclaim", id, err)
}

// Forget takes an instance's note away, as a power cut may.
func (w *World) Forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.find(id)
	in.note, in.notedAt = nil, time.Time{}
}
