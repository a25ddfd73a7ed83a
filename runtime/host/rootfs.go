package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// sources are the detached mounts a root is put together from. They are cloned
// in the host's mount namespace, where the paths mean what the caller means.
type sources struct {
	instance *os.File   // the instance's directory, with upper and work
	lower    []*os.File // topmost first
	cover    cover      // on top of those, made in the stage
	ids      *os.File   // what maps owners into the sandbox's ids; not ours to close
	system   []placed   // parts of the image on file systems of their own
	mounts   []placed   // what the declaration mounts, in order
	files    []placed
}

// placed is a mount and where inside it goes.
type placed struct {
	mount *os.File
	path  string
	dir   bool
	// fresh is a volume's directory that nobody has used yet: it becomes the
	// sandbox's user's.
	fresh string
}

func (s *sources) Close() {
	s.instance.Close() // a nil file's Close is harmless
	for _, f := range s.lower {
		f.Close()
	}
	for _, list := range [][]placed{s.system, s.mounts, s.files} {
		for _, p := range list {
			p.mount.Close()
		}
	}
}

func (h *Host) openSources(in runtime.Instance, ids *os.File) (s *sources, err error) {
	layers, err := h.lower(in.Image)
	if err != nil {
		return nil, err
	}
	s = &sources{cover: layers.cover, ids: ids}
	defer func() {
		if err != nil {
			s.Close()
			s = nil
		}
	}()
	s.instance, err = failpoint.Get("host.layer.clone", func() (*os.File, error) { return cloneMount(h.instanceDir(in.ID), mountAttr{}) })
	if err != nil {
		return s, err
	}
	for _, dir := range layers.dirs {
		f, err := failpoint.Get("host.lower.clone", func() (*os.File, error) {
			return cloneMount(dir, mountAttr{readOnly: true, noDev: true, ids: ids})
		})
		if errors.Is(err, os.ErrNotExist) {
			return s, fmt.Errorf("image directory %s: %w", dir, runtime.ErrNotFound)
		}
		if err != nil {
			return s, err
		}
		s.lower = append(s.lower, f)
	}
	for _, dir := range layers.mounts {
		f, err := failpoint.Get("host.system.clone", func() (*os.File, error) {
			return cloneMount(dir, mountAttr{readOnly: true, noDev: true, ids: ids})
		})
		if err != nil {
			return s, err
		}
		s.system = append(s.system, placed{mount: f, path: dir, dir: true})
	}
	for _, m := range in.Mounts {
		p, err := h.openMount(m, in.IDs, ids)
		if err != nil {
			return s, err
		}
		s.mounts = append(s.mounts, p)
	}
	if s.files, err = h.openFiles(in, ids); err != nil {
		return s, err
	}
	return s, nil
}

func (h *Host) openMount(m runtime.Mount, r runtime.IDRange, ids *os.File) (placed, error) {
	p := placed{path: m.Path, dir: true}
	attr := mountAttr{readOnly: m.ReadOnly, noDev: true, ids: ids}
	var err error
	switch m.Kind {
	case "volume":
		dir := h.volumeDir(m.Source)
		p.mount, err = failpoint.Get("host.volume.clone", func() (*os.File, error) { return cloneMount(dir, attr) })
		if errors.Is(err, os.ErrNotExist) {
			return p, fmt.Errorf("volume %s, to be mounted at %s: %w", m.Source, m.Path, runtime.ErrNotFound)
		}
		if entries, err := os.ReadDir(dir); err == nil && len(entries) == 0 && !m.ReadOnly {
			p.fresh = dir
		}
	case "host":
		f, err := openBeneath(m.Root, m.Source)
		if errors.Is(err, os.ErrNotExist) {
			return p, fmt.Errorf("host path %s, to be mounted at %s: %w", m.Source, m.Path, runtime.ErrNotFound)
		}
		if err != nil {
			return p, fmt.Errorf("host path %s cannot be mounted at %s: %w", m.Source, m.Path, err)
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil {
			return p, err
		}
		p.dir = st.IsDir()
		p.mount, err = failpoint.Get("host.path.clone", func() (*os.File, error) { return cloneMountAt(f, attr) })
		return p, err
	case "tmpfs":
		options := [][2]string{{"mode", "1777"}, {"uid", strconv.Itoa(int(r.Base))}, {"gid", strconv.Itoa(int(r.Base))}}
		if m.Size > 0 {
			options = append(options, [2]string{"size", strconv.FormatInt(m.Size, 10)})
		}
		attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
		if m.ReadOnly {
			attrs |= unix.MOUNT_ATTR_RDONLY
		}
		p.mount, err = failpoint.Get("host.tmpfs.make", func() (*os.File, error) { return newMount("tmpfs", attrs, options...) })
	default:
		err = fmt.Errorf("mount kind %q is not known; use volume, host or tmpfs", m.Kind)
	}
	return p, err
}

// openFiles writes the declared files and the ones every sandbox has into the
// instance's directory and clones a read-only mount of each.
func (h *Host) openFiles(in runtime.Instance, ids *os.File) (out []placed, err error) {
	dir := filepath.Join(h.instanceDir(in.ID), "files")
	if err := failpoint.Step("host.files.clear", func() error { return os.RemoveAll(dir) }); err != nil {
		return nil, fmt.Errorf("cannot remove the earlier files of instance %s: %w", in.ID, err)
	}
	if err := failpoint.Step("host.files.make", func() error { return os.Mkdir(dir, 0o700) }); err != nil {
		return nil, fmt.Errorf("cannot make the directory for the files of instance %s: %w", in.ID, err)
	}
	defer func() {
		if err != nil {
			for _, p := range out {
				p.mount.Close()
			}
			out = nil
		}
	}()
	for i, f := range h.withNetworkFiles(in) {
		path := filepath.Join(dir, strconv.Itoa(i))
		if err := failpoint.Step("host.files.write", func() error { return os.WriteFile(path, f.Content, 0o600) }); err != nil {
			return out, fmt.Errorf("cannot write the file %s of instance %s: %w", f.Path, in.ID, err)
		}
		if err := failpoint.Step("host.files.mode", func() error { return unix.Chmod(path, f.Mode&0o7777) }); err != nil {
			return out, fmt.Errorf("cannot set the mode of the file %s of instance %s: %w", f.Path, in.ID, err)
		}
		m, err := failpoint.Get("host.files.clone", func() (*os.File, error) {
			return cloneMount(path, mountAttr{readOnly: true, noDev: true, ids: ids})
		})
		if err != nil {
			return out, err
		}
		out = append(out, placed{mount: m, path: f.Path})
	}
	return out, nil
}

// build puts the root together in the stage, after stage.prepare. It returns who
// the command runs as. What it mounts is detached by stage.clear.
func (h *Host) build(in runtime.Instance, src *sources) (identity, error) {
	s, base := h.stage, int(in.IDs.Base)
	dir := s.dir(in.ID)
	put := func(m *os.File, name string) (string, error) {
		path := filepath.Join(dir, name)
		if err := failpoint.Step("host.part.make", func() error { return os.Mkdir(path, 0o755) }); err != nil {
			return "", err
		}
		return path, failpoint.Step("host.part.attach", func() error { return attach(m, path) })
	}
	instance, err := put(src.instance, "instance")
	if err != nil {
		return identity{}, err
	}
	layers := src.lower
	if src.cover != nil {
		m, err := s.cloneCover(src.cover, in.IDs, src.ids)
		if err != nil {
			return identity{}, fmt.Errorf("cannot hide what is the host's own: %w", err)
		}
		defer m.Close()
		layers = append([]*os.File{m}, layers...)
	}
	lower := ""
	for i, l := range layers {
		path, err := put(l, "lower"+strconv.Itoa(i))
		if err != nil {
			return identity{}, err
		}
		if i > 0 {
			lower += ":"
		}
		lower += path
	}
	rootfs := s.rootfs(in.ID)
	// index=off: a layer may be mounted again while the kernel is still busy
	// dropping its last mount.
	options := "index=off,lowerdir=" + lower + ",upperdir=" + instance + "/upper,workdir=" + instance + "/work"
	err = failpoint.Step("host.overlay.mount", func() error { return unix.Mount("overlay", rootfs, "overlay", unix.MS_NODEV, options) })
	if err != nil {
		return identity{}, fmt.Errorf("cannot mount the overlay root of instance %s: %w", in.ID, err)
	}
	if err := h.buildDev(dir, base); err != nil {
		return identity{}, err
	}
	root, err := openRoot(rootfs, base, base)
	if err != nil {
		return identity{}, err
	}
	defer root.Close()
	for _, p := range src.system {
		if err := root.place(p); err != nil {
			return identity{}, err
		}
	}
	who, err := resolveUser(root, in.User, in.IDs)
	if err != nil {
		return identity{}, err
	}
	if err := makeWorkingDir(root, in.WorkingDir, base+who.uid, base+who.gid); err != nil {
		return identity{}, err
	}
	for _, p := range src.mounts {
		if p.fresh != "" && who.uid != 0 {
			if err := adopt(p.fresh, who); err != nil {
				return identity{}, err
			}
		}
	}
	// Shallow paths first, so that what is mounted deeper is not covered.
	mounts := slices.Clone(src.mounts)
	slices.SortStableFunc(mounts, func(a, b placed) int { return depth(a.path) - depth(b.path) })
	for _, p := range append(mounts, src.files...) {
		if err := root.place(p); err != nil {
			return identity{}, err
		}
	}
	return who, nil
}

func depth(path string) int {
	n := 0
	for _, c := range filepath.Clean(path) {
		if c == '/' {
			n++
		}
	}
	return n
}

// place attaches a mount inside the root.
func (r *rootDir) place(p placed) error {
	inside := filepath.Clean("/" + p.path)
	for _, reserved := range []string{"/proc", "/sys", "/dev"} {
		if inside == "/" || within(reserved, inside) {
			return fmt.Errorf("nothing can be mounted at %s: it is the sandbox's own", p.path)
		}
	}
	target, _, err := r.ensure(inside, p.dir)
	if err != nil {
		return fmt.Errorf("cannot make the mount point %s: %w", p.path, err)
	}
	defer target.Close()
	return failpoint.Step("host.mount.attach", func() error { return attachTo(p.mount, target) })
}

// adopt gives an unused volume to the user who will work in it.
func adopt(dir string, who identity) error {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Uid != 0 || st.Gid != 0 {
		return nil
	}
	return failpoint.Step("host.volume.adopt", func() error { return os.Lchown(dir, who.uid, who.gid) })
}

// makeWorkingDir makes the directory a command starts in, owned by its user.
func makeWorkingDir(root *rootDir, path string, uid, gid int) error {
	if path == "" || filepath.Clean(path) == "/" {
		return nil
	}
	if !filepath.IsAbs(path) {
		return fmt.Errorf("working directory %q is not absolute", path)
	}
	f, made, err := root.ensure(path, true)
	if err != nil {
		return fmt.Errorf("cannot make the working directory %s: %w", path, err)
	}
	defer f.Close()
	if !made {
		return nil
	}
	return failpoint.Step("host.workdir.own", func() error { return unix.Fchownat(int(f.Fd()), "", uid, gid, unix.AT_EMPTY_PATH) })
}

// buildDev makes the sandbox's /dev beside its root, for libcontainer to bind:
// the shared nodes, and terminals and shared memory of its own.
func (h *Host) buildDev(dir string, base int) error {
	dev := filepath.Join(dir, "dev")
	if err := failpoint.Step("host.dev.make", func() error { return os.Mkdir(dev, 0o755) }); err != nil {
		return err
	}
	nodes, err := failpoint.Get("host.dev.clone", func() (*os.File, error) { return cloneMount(h.stage.devDir(), mountAttr{readOnly: true}) })
	if err != nil {
		return err
	}
	defer nodes.Close()
	if err := failpoint.Step("host.dev.attach", func() error { return attach(nodes, dev) }); err != nil {
		return err
	}
	pts, err := failpoint.Get("host.pts.make", func() (*os.File, error) {
		return newMount("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
			[2]string{"ptmxmode", "0666"}, [2]string{"mode", "0620"}, [2]string{"gid", strconv.Itoa(base + 5)})
	})
	if err != nil {
		return err
	}
	defer pts.Close()
	if err := failpoint.Step("host.pts.attach", func() error { return attach(pts, filepath.Join(dev, "pts")) }); err != nil {
		return err
	}
	shm, err := failpoint.Get("host.shm.make", func() (*os.File, error) {
		return newMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
			[2]string{"mode", "1777"}, [2]string{"size", "64m"}, [2]string{"uid", strconv.Itoa(base)}, [2]string{"gid", strconv.Itoa(base)})
	})
	if err != nil {
		return err
	}
	defer shm.Close()
	return failpoint.Step("host.shm.attach", func() error { return attach(shm, filepath.Join(dev, "shm")) })
}
