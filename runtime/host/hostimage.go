package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// The host image is the host's root with a layer on top of it, the cover, that
// hides what sandboxes must not see. Root in a sandbox reads the host's files
// as root does, so the rule is: what an unprivileged user of the host cannot
// read is hidden, and so is everything that is not the operating system.
//
// The cover is an overlayfs layer of whiteouts (the name is gone) and opaque
// directories (there, but empty). Both are kernel objects of the layer: a
// sandbox can put files of its own over them but cannot look below.

// systemDirs are the top-level names of the host that sandboxes see; every
// other one is hidden or empty.
var systemDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt", "var"}

// emptyDirs are there, but without the host's content.
var emptyDirs = []struct {
	path string
	mode os.FileMode
}{
	{"/root", 0o700}, {"/home", 0o755}, {"/tmp", 0o777 | os.ModeSticky}, {"/run", 0o755},
	{"/dev", 0o755}, {"/proc", 0o555}, {"/sys", 0o555},
	{"/mnt", 0o755}, {"/media", 0o755}, {"/srv", 0o755}, {"/boot", 0o755},
	{"/var/tmp", 0o777 | os.ModeSticky}, {"/var/log", 0o755}, {"/var/spool", 0o755}, {"/var/mail", 0o755},
	{"/var/backups", 0o755}, {"/var/crash", 0o755}, {"/var/lock", 0o755}, {"/var/run", 0o755},
	{"/etc/ssh", 0o755}, {"/etc/sudoers.d", 0o755}, {"/etc/ssl/private", 0o700}, {"/etc/pinfold", 0o755},
	{"/etc/cron.d", 0o755}, {"/etc/NetworkManager/system-connections", 0o700}, {"/etc/wireguard", 0o700},
}

// hiddenPaths are gone, whether the host has them now or gets them later.
var hiddenPaths = []string{
	"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/machine-id", "/etc/crypttab", "/etc/ppp",
	"/etc/security/opasswd", "/etc/krb5.keytab", "/etc/docker", "/etc/kubernetes", "/etc/rancher", "/etc/letsencrypt",
	"/var/lib/docker", "/var/lib/containers", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/etcd", "/var/lib/rancher",
	"/var/lib/pinfold", "/var/lib/private", "/var/cache/private", "/var/lib/machines", "/var/lib/portables", "/var/lib/libvirt",
	"/var/lib/lxc", "/var/lib/lxd", "/var/lib/incus", "/var/lib/cloud", "/var/lib/dhcp", "/var/lib/NetworkManager", "/var/lib/systemd",
	"/var/lib/postgresql", "/var/lib/mysql", "/var/lib/redis", "/var/lib/mongodb", "/var/lib/vault", "/var/lib/consul", "/var/lib/tailscale",
	"/var/www", "/var/snap", "/swapfile", "/swap.img",
}

// searchedDirs are walked for files and directories that not everybody may
// read; those are hidden too.
var searchedDirs = []string{"/etc", "/opt", "/var", "/usr/local"}

// cover is the content of the layer: for each path one of the two kinds.
type cover map[string]coverEntry

type coverEntry struct {
	empty bool        // an opaque directory; else a whiteout
	mode  os.FileMode // of the directory
}

// hostCover makes sure the stage has the layer that fits the host as it is now,
// and returns its plan. The layer cannot lie below the root that it covers, so
// it is kept in the stage's memory.
func (h *Host) hostCover() (cover, error) {
	if err := h.ready(); err != nil {
		return nil, err
	}
	c, err := planCover(context.Background(), h.opts.StateDir, h.opts.RunDir)
	if err != nil {
		return nil, err
	}
	return c, h.stage.run(func() error { return c.makeAt(h.stage.coverDir(c, 0), 0) })
}

// name tells covers apart by what they hold.
func (c cover) name() string {
	sum := sha256.New()
	for _, p := range c.paths() {
		fmt.Fprintf(sum, "%s\x00%v\x00", p, c[p])
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func (c cover) paths() []string { return slices.Sorted(maps.Keys(c)) }

func (s *stage) coverDir(c cover, base uint32) string {
	return filepath.Join(s.base, "covers", c.name()+"-"+strconv.FormatUint(uint64(base), 10))
}

// makeAt writes the layer to dir, unless it is there. Its files belong to the
// ids from base.
func (c cover) makeAt(dir string, base int) error {
	if _, err := os.Lstat(dir); err == nil {
		return nil
	}
	if err := failpoint.Step("host.covers.make", func() error { return os.MkdirAll(filepath.Dir(dir), 0o755) }); err != nil {
		return err
	}
	tmp, err := failpoint.Get("host.cover.make", func() (string, error) { return os.MkdirTemp(filepath.Dir(dir), "new-") })
	if err != nil {
		return err
	}
	// What stays of it goes with the stage.
	defer func() { _ = failpoint.Step("host.cover.discard", func() error { return os.RemoveAll(tmp) }) }()
	if err := failpoint.Step("host.cover.mode", func() error { return os.Chmod(tmp, 0o755) }); err != nil {
		return err
	}
	if err := failpoint.Step("host.cover.own", func() error { return os.Lchown(tmp, base, base) }); err != nil {
		return err
	}
	for _, p := range c.paths() {
		if err := c.write(tmp, p, base); err != nil {
			return err
		}
	}
	err = failpoint.Step("host.cover.place", func() error { return os.Rename(tmp, dir) })
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil // somebody else was as fast
	}
	return err
}

// cloneCover makes a mount of the layer under the given ids. Inside the stage
// only. Before Linux 6.3 tmpfs cannot be id-mapped; each range then gets a layer
// of its own.
func (s *stage) cloneCover(c cover, r runtime.IDRange, ids *os.File) (*os.File, error) {
	m, err := failpoint.Get("host.cover.clone", func() (*os.File, error) {
		return cloneMount(s.coverDir(c, 0), mountAttr{readOnly: true, noDev: true, ids: ids})
	})
	if err == nil || ids == nil || !errors.Is(err, unix.EINVAL) {
		return m, err
	}
	dir := s.coverDir(c, r.Base)
	if err := c.makeAt(dir, int(r.Base)); err != nil {
		return nil, err
	}
	return failpoint.Get("host.cover.cloneowned", func() (*os.File, error) { return cloneMount(dir, mountAttr{readOnly: true, noDev: true}) })
}

// HiddenBy implements runtime.Host. Only the host image hides anything.
func (h *Host) HiddenBy(ctx context.Context, src runtime.ImageSource) (hidden runtime.Hidden, err error) {
	if src.Kind != "host" {
		return hidden, nil
	}
	c, err := planCover(ctx, h.opts.StateDir, h.opts.RunDir)
	if err != nil {
		return hidden, fmt.Errorf("cannot tell what the host image hides: %w", err)
	}
	for _, p := range c.paths() {
		if c[p].empty {
			hidden.Empty = append(hidden.Empty, p)
		} else {
			hidden.Absent = append(hidden.Absent, p)
		}
	}
	return hidden, nil
}

func planCover(ctx context.Context, own ...string) (cover, error) {
	c := cover{}
	// Directories of ours first, by their real paths: overlayfs goes by those.
	for _, p := range own {
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return nil, err
		}
		c.hide(real)
	}
	for _, p := range hiddenPaths {
		c.hide(p)
	}
	for _, e := range emptyDirs {
		c.empty(e.path, e.mode)
	}
	top, err := os.ReadDir("/")
	if err != nil {
		return nil, err
	}
	for _, e := range top {
		if !slices.Contains(systemDirs, e.Name()) {
			c.hide("/" + e.Name())
		}
	}
	for _, d := range searchedDirs {
		if err := c.search(ctx, d); err != nil {
			return nil, err
		}
	}
	// What lies below something covered needs no entry of its own.
	for p := range c {
		for dir := filepath.Dir(p); dir != "/"; dir = filepath.Dir(dir) {
			if _, ok := c[dir]; ok {
				delete(c, p)
				break
			}
		}
	}
	return c, nil
}

func (c cover) hide(path string) {
	if _, ok := c[path]; !ok {
		c[path] = coverEntry{}
	}
}

// empty covers a directory, if the host's root has one there that is no link.
// The top-level ones are made in any case: programs expect them.
func (c cover) empty(path string, mode os.FileMode) {
	st, err := os.Lstat(path)
	if err != nil && filepath.Dir(path) != "/" {
		c.hide(path)
		return
	}
	if err == nil && !st.IsDir() {
		return // a link into what is covered itself, such as /var/run
	}
	c[path] = coverEntry{empty: true, mode: mode}
}

// search hides what is not readable by everybody. Other file systems are not
// part of the image and are not entered.
func (c cover) search(ctx context.Context, root string) error {
	st, err := os.Lstat(root)
	if err != nil || !st.IsDir() {
		return nil
	}
	device := st.Sys().(*syscall.Stat_t).Dev
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, covered := c[p]; covered {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return nil // gone meanwhile
		}
		mode := info.Mode().Perm()
		if d.IsDir() {
			if p != root && info.Sys().(*syscall.Stat_t).Dev != device {
				return fs.SkipDir
			}
			if mode&0o005 != 0o005 {
				c.hide(p)
				return fs.SkipDir
			}
			return nil
		}
		// A program that everybody may run but not read is no secret.
		if mode&0o004 == 0 && mode&0o001 == 0 {
			c.hide(p)
		}
		return nil
	})
}

// write puts one entry into the layer at dir, with the directories above it as
// the host has them: the topmost layer's attributes are what sandboxes see.
func (c cover) write(dir, path string, base int) error {
	if err := copyParents(dir, filepath.Dir(path), base); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, errParentLink) {
			return nil // nothing can be at path then, not before the parent changes
		}
		return err
	}
	target := filepath.Join(dir, path)
	e := c[path]
	if !e.empty {
		err := failpoint.Step("host.whiteout.make", func() error { return unix.Mknod(target, unix.S_IFCHR, 0) })
		if err != nil && err != unix.EEXIST {
			return &os.PathError{Op: "make whiteout", Path: target, Err: err}
		}
		return nil
	}
	err := failpoint.Step("host.opaque.make", func() error { return os.Mkdir(target, e.mode) })
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := failpoint.Step("host.opaque.mode", func() error { return os.Chmod(target, e.mode) }); err != nil {
		return err
	}
	if err := failpoint.Step("host.opaque.own", func() error { return os.Lchown(target, base, base) }); err != nil {
		return err
	}
	err = failpoint.Step("host.opaque.mark", func() error { return unix.Setxattr(target, "trusted.overlay.opaque", []byte("y"), 0) })
	if err != nil {
		return &os.PathError{Op: "make opaque", Path: target, Err: err}
	}
	return nil
}

var errParentLink = errors.New("parent is a symbolic link")

func copyParents(dir, path string, base int) error {
	if path == "/" {
		return nil
	}
	if err := copyParents(dir, filepath.Dir(path), base); err != nil {
		return err
	}
	target := filepath.Join(dir, path)
	if _, err := os.Lstat(target); err == nil {
		return nil
	}
	st, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		return errParentLink
	}
	if !st.IsDir() {
		return unix.ENOTDIR
	}
	sys := st.Sys().(*syscall.Stat_t)
	if err := failpoint.Step("host.covered.make", func() error { return os.Mkdir(target, 0o700) }); err != nil {
		return err
	}
	err = failpoint.Step("host.covered.own", func() error { return os.Lchown(target, base+int(sys.Uid), base+int(sys.Gid)) })
	if err != nil {
		return err
	}
	return failpoint.Step("host.covered.mode", func() error { return os.Chmod(target, st.Mode()) })
}

// separateSystemMounts are the parts of the operating system that the host
// keeps on file systems of their own.
func separateSystemMounts() []string {
	root, err := os.Stat("/")
	if err != nil {
		return nil
	}
	var out []string
	for _, p := range []string{"/usr", "/opt"} {
		st, err := os.Lstat(p)
		if err == nil && st.IsDir() && st.Sys().(*syscall.Stat_t).Dev != root.Sys().(*syscall.Stat_t).Dev {
			out = append(out, p)
		}
	}
	return out
}
