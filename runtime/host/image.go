package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pinfold/runtime"
)

// lowerLayers are the directories, topmost first, that an image's root consists
// of below the writable layer.
type lowerLayers struct {
	cover cover // topmost of all, for the host image
	dirs  []string
	// mounts are directories of the image that lie on file systems of their
	// own and are shown read-only at the same place.
	mounts []string
}

// PrepareImage implements runtime.Host. For the host image it brings up to date
// what hides the host's secrets.
func (h *Host) PrepareImage(ctx context.Context, src runtime.ImageSource) (runtime.Image, error) {
	img, _, err := h.prepareImage(src)
	return img, err
}

func (h *Host) prepareImage(src runtime.ImageSource) (runtime.Image, *lowerLayers, error) {
	img := runtime.Image{ImageSource: src}
	var layers *lowerLayers
	switch src.Kind {
	case "host":
		if src.Path != "" {
			return img, nil, fmt.Errorf("the host image takes no path, got %q", src.Path)
		}
		cover, err := h.hostCover()
		if err != nil {
			return img, nil, fmt.Errorf("cannot prepare the host image: %w", err)
		}
		img.Digest = "host"
		layers = &lowerLayers{cover: cover, dirs: []string{"/"}, mounts: separateSystemMounts()}
	case "dir":
		if !filepath.IsAbs(src.Path) {
			return img, nil, fmt.Errorf("image path %q is not absolute", src.Path)
		}
		real, err := filepath.EvalSymlinks(src.Path)
		if errors.Is(err, os.ErrNotExist) {
			return img, nil, fmt.Errorf("image directory %s: %w", src.Path, runtime.ErrNotFound)
		}
		if err != nil {
			return img, nil, fmt.Errorf("image directory %s: %w", src.Path, err)
		}
		st, err := os.Stat(real)
		if err != nil {
			return img, nil, fmt.Errorf("image directory %s: %w", src.Path, err)
		}
		if !st.IsDir() {
			return img, nil, fmt.Errorf("image %s is not a directory", src.Path)
		}
		for _, own := range []string{h.opts.StateDir, h.opts.RunDir} {
			if r, err := filepath.EvalSymlinks(own); err == nil && within(real, r) {
				return img, nil, fmt.Errorf("image directory %s holds pinfold's own %s, which no sandbox may see; use the host image or another directory", src.Path, own)
			}
		}
		img.Digest = "dir:" + real
		layers = &lowerLayers{dirs: []string{real}}
	default:
		return img, nil, fmt.Errorf("image kind %q is not supported yet; use host or dir", src.Kind)
	}
	h.mu.Lock()
	h.images[src] = layers
	h.mu.Unlock()
	return img, layers, nil
}

// lower returns the layers of an image, preparing it when this process has not
// done so yet.
func (h *Host) lower(img runtime.Image) (*lowerLayers, error) {
	h.mu.Lock()
	layers := h.images[img.ImageSource]
	h.mu.Unlock()
	if layers != nil {
		return layers, nil
	}
	_, layers, err := h.prepareImage(img.ImageSource)
	return layers, err
}
