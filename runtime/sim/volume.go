package sim

import (
	"context"
	"fmt"
	"path"
	"regexp"

	"pinfold/runtime"
)

var volumeID = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,63}$`)

// EnsureVolume implements runtime.Host.
func (h *Host) EnsureVolume(ctx context.Context, v runtime.Volume) error {
	err := h.call(ctx, OpEnsureVolume, v.ID, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		switch {
		case !volumeID.MatchString(v.ID):
			return fmt.Errorf("its id does not match %s", volumeID)
		case h.w.foreign[foreignKey{"volume", v.ID}]:
			return runtime.ErrForeign
		case h.l.volumes[v.ID] == nil:
			h.l.volumes[v.ID] = files{}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("make volume %s: %w", v.ID, err)
	}
	return nil
}

// RemoveVolume implements runtime.Host.
func (h *Host) RemoveVolume(ctx context.Context, id string) error {
	err := h.call(ctx, OpRemoveVolume, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		if h.w.foreign[foreignKey{"volume", id}] {
			return runtime.ErrForeign
		}
		for _, in := range h.l.instances {
			for _, m := range in.spec.Mounts {
				if m.Kind == "volume" && m.Source == id && in.live() {
					return fmt.Errorf("instance %s has it mounted: %w", in.spec.ID, runtime.ErrBusy)
				}
			}
		}
		delete(h.l.volumes, id)
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return nil
}

// VolumeUsage implements runtime.Host. A file takes as many bytes as it has.
func (h *Host) VolumeUsage(ctx context.Context, id string) (u runtime.Usage, err error) {
	u.Path = "/state/volumes/" + id
	err = h.call(ctx, OpVolumeUsage, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		tree, there := h.l.volumes[id]
		if !there {
			return runtime.ErrNotFound
		}
		for _, text := range tree {
			u.Files++
			u.Bytes += int64(len(text))
		}
		return nil
	})
	if err != nil {
		return u, fmt.Errorf("measure volume %s: %w", id, err)
	}
	return u, nil
}

// HiddenBy implements runtime.Host. What this host hides, sandboxes never have.
func (h *Host) HiddenBy(ctx context.Context, src runtime.ImageSource) (hidden runtime.Hidden, err error) {
	err = h.call(ctx, OpHiddenBy, src.Kind, func(midway) error {
		if src.Kind == "host" {
			hidden = runtime.Hidden{Absent: []string{"/etc/shadow"}, Empty: []string{"/root"}}
		}
		return nil
	})
	return hidden, err
}

// PrepareImage implements runtime.Host. Every absolute path exists on this
// host, except those that World.Missing names.
func (h *Host) PrepareImage(ctx context.Context, src runtime.ImageSource) (image runtime.Image, err error) {
	name := src.Kind
	if src.Kind == "dir" {
		name = src.Path
	}
	err = h.call(ctx, OpPrepareImage, name, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		switch {
		case src.Kind == "host":
			image = runtime.Image{ImageSource: src, Digest: "host"}
		case src.Kind != "dir":
			return fmt.Errorf("image kind %q: %w", src.Kind, runtime.ErrUnsupported)
		case !path.IsAbs(src.Path):
			return fmt.Errorf("image directory %q is not an absolute path", src.Path)
		case h.w.missing[path.Clean(src.Path)]:
			return fmt.Errorf("image directory %s: %w", src.Path, runtime.ErrNotFound)
		default:
			image = runtime.Image{ImageSource: src, Digest: "dir:" + path.Clean(src.Path)}
		}
		return nil
	})
	if err != nil {
		return runtime.Image{}, fmt.Errorf("prepare image: %w", err)
	}
	return image, nil
}
