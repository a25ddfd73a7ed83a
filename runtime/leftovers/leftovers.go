// Package leftovers looks for what bears the mark of one lineage on the real
// host, with its own eyes: it shares no code with what makes and removes these
// things. Tests use it to prove that nothing stayed behind.
package leftovers

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
)

// Settled is Of once what goes by itself has gone: a link some milliseconds after
// its namespace, a zombie when the host's PID 1 reaps it.
func Settled(short, stateDir, runDir string) (left []string, err error) {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		left, err = Of(short, stateDir, runDir)
		if err != nil || len(left) == 0 || time.Now().After(end) {
			return left, err
		}
	}
}

// Of lists processes, cgroups, mounts, loop devices, links, nft tables, and files of
// instances and volumes, sorted. short is the lineage's short id.
func Of(short, stateDir, runDir string) (left []string, err error) {
	for _, look := range []func(string, string, string) ([]string, error){processes, groups, mounts, loops, links, tables, files} {
		found, err := look(short, stateDir, runDir)
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	slices.Sort(left)
	return left, nil
}

// processes are those in a cgroup of ours; a sandbox cannot leave it.
func processes(short, _, _ string) (left []string, err error) {
	paths, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(text), "pinfold-"+short) {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "comm")) // gone meanwhile: no name
			left = append(left, fmt.Sprintf("process %s %s", filepath.Base(filepath.Dir(path)), strings.TrimSpace(string(name))))
		}
	}
	return left, nil
}

func groups(short, _, _ string) (left []string, err error) {
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

func mounts(_, stateDir, runDir string) (left []string, err error) {
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

// loops are block devices made of files in the directories.
func loops(_, stateDir, runDir string) (left []string, err error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		of, err := os.ReadFile(f)
		if err == nil && (strings.HasPrefix(string(of), stateDir+"/") || strings.HasPrefix(string(of), runDir+"/")) {
			left = append(left, fmt.Sprintf("loop device %s of %s", strings.Split(f, "/")[3], strings.TrimSpace(string(of))))
		}
	}
	return left, nil
}

func links(short, _, _ string) (left []string, err error) {
	all, err := netlink.LinkList()
	// Others make and remove links meanwhile; an interrupted dump is taken again.
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		all, err = netlink.LinkList()
	}
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if a := l.Attrs(); strings.HasPrefix(a.Alias, "pinfold "+short+" ") || strings.Contains(a.Name, short) {
			left = append(left, "link "+a.Name)
		}
	}
	return left, nil
}

func tables(short, _, _ string) (left []string, err error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge, nftables.TableFamilyIPv4} {
		all, err := c.ListTablesOfFamily(family)
		if err != nil {
			return nil, err
		}
		for _, table := range all {
			if strings.Contains(table.Name, short) {
				left = append(left, "nft table "+table.Name)
			}
		}
	}
	return left, nil
}

func files(_, stateDir, runDir string) (left []string, err error) {
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
