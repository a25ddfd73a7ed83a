package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"pinfold/reconcile"
)

// leftAtLast are the leftovers once what goes by itself has gone: a link some
// milliseconds after its namespace, a zombie when the host's PID 1 reaps it.
func leftAtLast(stateDir, runDir string) (left []string, err error) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left, err = leftovers(stateDir, runDir)
		if err != nil || len(left) == 0 || time.Now().After(end) {
			slices.Sort(left)
			return left, err
		}
	}
}

// leftovers lists what bears the mark of a state dir's lineage on the host:
// processes, cgroups, mounts, links, nft tables, and files of instances and
// volumes. It looks with its own eyes, not the engine's.
func leftovers(stateDir, runDir string) (left []string, err error) {
	lineage, err := os.ReadFile(filepath.Join(stateDir, "lineage"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing was ever made
	}
	if err != nil {
		return nil, err
	}
	short := reconcile.ShortID(strings.TrimSpace(string(lineage)))
	for _, look := range []func(string, string, string) ([]string, error){leftProcesses, leftGroups, leftMounts, leftLinks, leftTables, leftFiles} {
		found, err := look(short, stateDir, runDir)
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	return left, nil
}

// leftProcesses are those in a cgroup of ours; a sandbox cannot leave it.
func leftProcesses(short, _, _ string) (left []string, err error) {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	for _, path := range groups {
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), "pinfold-"+short) {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "comm")) // gone meanwhile: no name
			left = append(left, fmt.Sprintf("process %s %s", filepath.Base(filepath.Dir(path)), strings.TrimSpace(string(name))))
		}
	}
	return left, nil
}

func leftGroups(short, _, _ string) (left []string, err error) {
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // somebody else's, gone meanwhile
		}
		if err == nil && d.IsDir() && strings.Contains(d.Name(), "pinfold-"+short) {
			left = append(left, "cgroup "+path)
			return fs.SkipDir
		}
		return err
	})
	return left, err
}

func leftMounts(_, stateDir, runDir string) (left []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // proc_pid_mountinfo(5): the mount point is the fifth
		if strings.HasPrefix(fields[4], stateDir+"/") || strings.HasPrefix(fields[4], runDir+"/") {
			left = append(left, "mount "+fields[4])
		}
	}
	return left, nil
}

func leftLinks(short, _, _ string) (left []string, err error) {
	links, err := netlink.LinkList()
	// Others make and remove links meanwhile; an interrupted dump is taken again.
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		links, err = netlink.LinkList()
	}
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if a := l.Attrs(); strings.HasPrefix(a.Alias, "pinfold "+short+" ") || strings.Contains(a.Name, short) {
			left = append(left, "link "+a.Name)
		}
	}
	return left, nil
}

func leftTables(short, _, _ string) (left []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge, nftables.TableFamilyIPv4} {
		tables, err := c.ListTablesOfFamily(family)
		if err != nil {
			return nil, err
		}
		for _, table := range tables {
			if strings.Contains(table.Name, short) {
				left = append(left, "nft table "+table.Name)
			}
		}
	}
	return left, nil
}

func leftFiles(_, stateDir, runDir string) (left []string, err error) {
	for _, dir := range []string{
		filepath.Join(stateDir, "instances"), filepath.Join(stateDir, "volumes"),
		filepath.Join(runDir, "instances"), filepath.Join(runDir, "containers"), filepath.Join(runDir, "netns"),
	} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			left = append(left, "file "+filepath.Join(dir, e.Name()))
		}
	}
	return left, nil
}
