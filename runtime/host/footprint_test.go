//go:build failpoints

package host

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// footprint lists what the host has of the world's lineage, with its own eyes: files
// with owner, mode and content, cgroups, processes, mounts, links, and nftables
// elements.
func (w *world) footprint() []string {
	w.t.Helper()
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	w.must(w.files(w.h.opts.StateDir, add))
	w.must(w.files(w.h.opts.RunDir, add))
	name := w.h.opts.CgroupParent + "-" + w.h.opts.ShortID
	for _, pattern := range []string{"/sys/fs/cgroup/" + name + "/*", "/sys/fs/cgroup/*/" + name + "/*"} {
		groups, err := filepath.Glob(pattern)
		w.must(err)
		for _, g := range groups {
			if st, err := os.Stat(g); err == nil && st.IsDir() && isInstanceID(filepath.Base(g)) {
				procs, _ := os.ReadFile(filepath.Join(g, "cgroup.procs")) // gone meanwhile: none
				add("cgroup %s %q", g, strings.Fields(string(procs)))
			}
		}
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	w.must(err)
	for line := range strings.Lines(string(table)) {
		if at := strings.Fields(line)[4]; within(w.dir, at) {
			add("mount %s", at)
		}
	}
	w.must(w.h.stage.run(func() error {
		places, err := filepath.Glob(filepath.Join(w.h.stage.base, "instances", "*"))
		for _, p := range places {
			add("place %s", p)
		}
		return err
	}))
	for _, l := range w.ownLinks() {
		add("link %s %q", l.Attrs().Name, l.Attrs().Alias)
	}
	w.elements(add)
	slices.Sort(all)
	return all
}

// files lists what lies below a directory, but for what one process keeps for all.
func (w *world) files(dir string, add func(string, ...any)) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == "starter.lock" || d.Name() == "cgroup-parents":
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		content := ""
		if st.Mode().IsRegular() && filepath.Base(filepath.Dir(path)) != "netns" {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%x", sha256.Sum256(data))[:8]
		}
		owner := st.Sys().(*syscall.Stat_t)
		add("file %s %v %d:%d %s", path, st.Mode(), owner.Uid, owner.Gid, content)
		return nil
	})
}

// ownLinks are the links that bear the lineage's name.
func (w *world) ownLinks() (own []netlink.Link) {
	w.t.Helper()
	all, err := netlink.LinkList()
	for i := 0; err != nil && i < 100; i++ { // others make and remove links meanwhile
		all, err = netlink.LinkList()
	}
	w.must(err)
	for _, l := range all {
		if strings.Contains(l.Attrs().Name, w.h.opts.ShortID) {
			own = append(own, l)
		}
	}
	return own
}

func (w *world) elements(add func(string, ...any)) {
	w.t.Helper()
	c, err := nftables.New()
	w.must(err)
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		tables, err := c.ListTablesOfFamily(family)
		w.must(err)
		for _, t := range tables {
			if !strings.Contains(t.Name, w.h.opts.ShortID) {
				continue
			}
			sets, err := c.GetSets(t)
			w.must(err)
			for _, s := range sets {
				elements, err := c.GetSetElements(s)
				w.must(err)
				for _, e := range elements {
					add("element of %s: %x %x %s", s.Name, e.Key, e.Val, e.Comment)
				}
			}
		}
	}
}

// differences lists what one footprint has more than the other.
func differences(before, after []string) (out []string) {
	for _, s := range after {
		if !slices.Contains(before, s) {
			out = append(out, "+ "+s)
		}
	}
	for _, s := range before {
		if !slices.Contains(after, s) {
			out = append(out, "- "+s)
		}
	}
	return out
}
