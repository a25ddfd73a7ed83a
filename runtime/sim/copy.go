package sim

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"pinfold/runtime"
)

// The simulated tree has files and directories, no links; owners, modes and times
// are not kept. Besides those of files, mounts and the working directory it has the
// usual directories of a system.
var usualDirs = []string{"/", "/bin", "/etc", "/home", "/opt", "/root", "/srv", "/tmp", "/usr", "/usr/bin", "/var"}

// CopyOut implements runtime.Host.
func (h *Host) CopyOut(ctx context.Context, id, p string, w io.Writer) error {
	type entry struct {
		name, text string
		dir        bool
	}
	var entries []entry
	err := h.copying(ctx, OpCopyOut, id, func(in *instance) error {
		inside, err := insidePath(p)
		if err != nil {
			return err
		}
		base := path.Base(inside)
		if inside == "/" || strings.HasSuffix(p, "/.") {
			base = "."
		}
		if text, ok := in.read(h.w, inside); ok {
			if strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") {
				return fmt.Errorf("%s: %w", p, syscall.ENOTDIR)
			}
			entries = append(entries, entry{name: base, text: text})
			return nil
		}
		if !in.isDir(h.w, inside) {
			return fmt.Errorf("%s: %w", p, runtime.ErrNotFound)
		}
		for _, name := range in.tree(h.w) {
			if !under(name, inside) {
				continue
			}
			e := entry{name: base + "/" + strings.TrimPrefix(strings.TrimPrefix(name, inside), "/")}
			if text, ok := in.read(h.w, name); ok {
				e.text = text
			} else {
				e.dir = true
			}
			entries = append(entries, e)
		}
		return nil
	})
	if err != nil {
		return wrap("copy out of", id, err)
	}
	tw := tar.NewWriter(w)
	for _, e := range entries {
		head := &tar.Header{Typeflag: tar.TypeReg, Name: e.name, Mode: 0o644, Size: int64(len(e.text)), ModTime: now()}
		if e.dir {
			head = &tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimSuffix(e.name, "/") + "/", Mode: 0o755, ModTime: now()}
		}
		err := ctx.Err()
		if err == nil {
			err = tw.WriteHeader(head)
		}
		if err == nil {
			_, err = io.WriteString(tw, e.text)
		}
		if err != nil {
			return wrap("copy out of", id, err)
		}
	}
	return wrap("copy out of", id, tw.Close())
}

// CopyIn implements runtime.Host.
func (h *Host) CopyIn(ctx context.Context, id, p string, r io.Reader) error {
	target, err := insidePath(p)
	look := func(in *instance) error {
		switch _, file := in.read(h.w, target); {
		case err != nil:
			return err
		case file:
			return fmt.Errorf("%s: %w", p, syscall.ENOTDIR)
		case !in.isDir(h.w, target):
			return fmt.Errorf("%s: %w", p, runtime.ErrNotFound)
		}
		for _, own := range []string{"/proc", "/sys", "/dev"} {
			if under(target, own) {
				return fmt.Errorf("nothing can be copied to %s: it is the sandbox's own", p)
			}
		}
		return nil
	}
	err = h.copying(ctx, OpCopyIn, id, func(in *instance) error {
		if err := look(in); err != nil {
			return err
		}
		// What r gives may take its time: the world goes on meanwhile.
		h.w.mu.Unlock()
		defer h.w.mu.Lock()
		return h.unpack(ctx, in, target, tar.NewReader(r))
	})
	return wrap("copy into", id, err)
}

func (h *Host) unpack(ctx context.Context, in *instance, target string, tr *tar.Reader) error {
	for {
		head, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the archive cannot be read: %w", err)
		}
		text, err := io.ReadAll(tr)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		if slices.Contains(strings.Split(head.Name, "/"), "..") {
			return fmt.Errorf("%s leads out of %s", head.Name, target)
		}
		h.w.mu.Lock()
		err = in.unpack(h.w, path.Join(target, head.Name), head, string(text))
		h.w.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

func (in *instance) unpack(w *World, at string, head *tar.Header, text string) error {
	_, file := in.read(w, at)
	dir := in.isDir(w, at)
	if size := int(in.spec.IDs.Size); size > 0 && (head.Uid >= size || head.Gid >= size) {
		return fmt.Errorf("%s belongs to %d:%d, but the sandbox has %d ids", head.Name, head.Uid, head.Gid, size)
	}
	switch head.Typeflag {
	case tar.TypeReg:
		if dir {
			return fmt.Errorf("%s: %w", at, syscall.EISDIR)
		}
		return in.write(w, at, text, false)
	case tar.TypeDir:
		if file {
			return fmt.Errorf("%s: %w", at, syscall.ENOTDIR)
		}
		if dir {
			return nil
		}
		return in.write(w, at+"/", "", false)
	case tar.TypeXGlobalHeader:
		return nil
	case tar.TypeChar, tar.TypeBlock:
		return fmt.Errorf("%s is a device node", head.Name)
	}
	return fmt.Errorf("%s is neither file nor directory: %w", head.Name, runtime.ErrUnsupported)
}

// copying runs f with the world locked, on an instance that has files.
func (h *Host) copying(ctx context.Context, op Op, id string, f func(*instance) error) error {
	return h.call(ctx, op, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.instance(id)
		switch {
		case err != nil:
			return err
		case in.stuck && !in.live():
			return fmt.Errorf("processes of its last run have not died: %w", runtime.ErrBusy)
		case in.layer == nil:
			return fmt.Errorf("its writable layer is gone: %w", runtime.ErrNotFound)
		}
		return f(in)
	})
}

func insidePath(p string) (string, error) {
	if p == "" || strings.ContainsRune(p, 0) {
		return "", fmt.Errorf("path %q is empty or holds a zero byte", p)
	}
	return path.Clean("/" + p), nil
}

// isDir tells whether an absolute, clean path is a directory inside.
func (in *instance) isDir(w *World, p string) bool {
	return slices.Contains(in.tree(w), p) && !in.isFile(w, p)
}

func (in *instance) isFile(w *World, p string) bool {
	_, ok := in.read(w, p)
	return ok
}

// tree lists every file and directory inside, each before what is in it.
func (in *instance) tree(w *World) []string {
	all := map[string]bool{}
	add := func(p string) {
		for ; !all[p]; p = path.Dir(p) {
			all[p] = true
		}
	}
	for _, p := range append(slices.Clone(usualDirs), path.Clean("/"+in.spec.WorkingDir), "/etc/hosts") {
		add(p)
	}
	for p := range in.layer {
		if len(in.mountsAt(p)) == 0 {
			add(path.Clean(p))
		}
	}
	for _, m := range in.spec.Mounts {
		add(path.Clean(m.Path))
		tree, _, _ := in.place(w, path.Clean(m.Path))
		for p := range tree {
			if inside := path.Join(m.Path, p); m.Path == deepest(in.mountsAt(inside)) {
				add(inside)
			}
		}
	}
	for _, f := range in.spec.Files {
		add(path.Clean(f.Path))
	}
	return slices.Sorted(maps.Keys(all))
}

// mountsAt are the mount points that a path lies at or below.
func (in *instance) mountsAt(p string) (at []string) {
	for _, m := range in.spec.Mounts {
		if under(p, m.Path) {
			at = append(at, m.Path)
		}
	}
	return at
}

func deepest(paths []string) string {
	return slices.MaxFunc(paths, func(a, b string) int { return len(a) - len(b) })
}
