//go:build failpoints

package crash

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// ground is all that one lineage has on the host, seen with eyes of its own: it shares
// no code with what makes and removes these things. ids names what is declared, so
// that two worlds with the same in them look the same, line by line.
type ground struct {
	dir, short string
	ids        map[string]string // instance id → name
	agent      int               // the one that serves now: none of what was left
	strangers  bool              // sandboxes may have processes besides their own
}

// settled looks until it is as wanted, or for as long as what goes by itself may take:
// a link some milliseconds after its namespace, a zombie until the host's PID 1 reaps it.
func (g *ground) settled(want []string) (got []string, err error) {
	for end := time.Now().Add(15 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got, err = g.look()
		if err != nil || slices.Equal(got, want) || time.Now().After(end) {
			return got, err
		}
	}
}

// look lists everything, sorted.
func (g *ground) look() (all []string, err error) {
	for _, part := range []func() ([]string, error){g.processes, g.children, g.groups, g.mounts, g.links, g.tables, g.files, g.loops} {
		found, err := part()
		if err != nil {
			return nil, err
		}
		for _, line := range found {
			all = append(all, g.plain(line))
		}
	}
	slices.Sort(all)
	return all, nil
}

var (
	anID      = regexp.MustCompile(`\b[0-9a-f]{12}\b`)
	aVolume   = regexp.MustCompile(`volumes/[0-9a-f]{12}`)
	aNetwork  = regexp.MustCompile(`network [0-9a-z]{8}\b`)
	linkNames = regexp.MustCompile(`\b[bp]SHORT[\w-]{8}`)
)

// plain replaces what differs from world to world by names. An instance that has no
// name is a stray one.
func (g *ground) plain(line string) string {
	line = strings.ReplaceAll(line, g.dir, "DIR")
	line = strings.ReplaceAll(line, g.short, "SHORT")
	line = aVolume.ReplaceAllString(line, "volumes/VOLUME")
	line = aNetwork.ReplaceAllString(line, "network NETWORK")
	for id, name := range g.ids {
		line = strings.ReplaceAll(line, id, name)
		if b, err := hex.DecodeString(id); err == nil {
			line = strings.ReplaceAll(line, base64.RawURLEncoding.EncodeToString(b), name)
		}
	}
	line = linkNames.ReplaceAllString(line, "link of ours")
	return anID.ReplaceAllString(line, "STRAY")
}

// processes counts those in each cgroup of ours; a sandbox cannot leave it.
func (g *ground) processes() ([]string, error) {
	groups, err := g.groups()
	if err != nil {
		return nil, err
	}
	in := map[string]map[string]bool{}
	for _, line := range groups {
		_, path, _ := strings.Cut(line, " ")
		list, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			continue // gone meanwhile
		}
		id := filepath.Base(path)
		if in[id] == nil {
			in[id] = map[string]bool{}
		}
		for _, pid := range strings.Fields(string(list)) {
			in[id][pid] = true
		}
	}
	var all []string
	for id, pids := range in {
		n := len(pids)
		if g.strangers && n > 2 {
			n = 2 // PID 1 and the command; what was exec'd goes on without its caller
		}
		all = append(all, fmt.Sprintf("%d processes in %s", n, id))
	}
	return all, nil
}

// children are processes that a killed one has left. They have come to this process
// then, and have the environment that was given to that one.
func (g *ground) children() (all []string, err error) {
	for _, pid := range childrenOf("self") {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && pid != g.agent && strings.Contains(string(text), dirVar+"="+g.dir+"\x00") {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // gone meanwhile: no name
			all = append(all, "child process "+strings.TrimSpace(string(name)))
		}
	}
	return all, nil
}

func (g *ground) groups() (all []string, err error) {
	for _, pattern := range []string{"/sys/fs/cgroup/*-" + g.short, "/sys/fs/cgroup/*/*-" + g.short} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, top := range tops {
			err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					all = append(all, "cgroup "+path)
				}
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

func (g *ground) mounts() (all []string, err error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], g.dir+"/") { // proc_pid_mountinfo(5): the mount point
			all = append(all, "mount "+fields[4])
		}
	}
	return all, nil
}

// links are the host's ends of veths and the bridges, with their addresses. An alias
// ends in facts that differ from world to world.
func (g *ground) links() (all []string, err error) {
	list, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) {
		list, err = netlink.LinkList()
	}
	if err != nil {
		return nil, err
	}
	mark := regexp.MustCompile(`^pinfold ` + g.short + ` \w+ \w+`)
	for _, l := range list {
		at := l.Attrs()
		if !strings.Contains(at.Name, g.short) && !mark.MatchString(at.Alias) {
			continue
		}
		addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			continue // gone meanwhile
		}
		all = append(all, fmt.Sprintf("%s %s, %q, of a bridge: %t, addresses: %d", l.Type(), at.Name, mark.FindString(at.Alias), at.MasterIndex != 0, len(addresses)))
	}
	return all, nil
}

// tables are the nft tables with the numbers of their rules and elements.
func (g *ground) tables() (all []string, err error) {
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
			if !strings.Contains(table.Name, g.short) {
				continue
			}
			parts, err := tableParts(c, table)
			if err != nil {
				return nil, err
			}
			for _, p := range parts {
				all = append(all, fmt.Sprintf("nft table %d %s: %s", family, table.Name, p))
			}
		}
	}
	return all, nil
}

func tableParts(c *nftables.Conn, table *nftables.Table) (all []string, err error) {
	chains, err := c.ListChainsOfTableFamily(table.Family)
	if err != nil {
		return nil, err
	}
	for _, chain := range chains {
		if chain.Table.Name != table.Name {
			continue
		}
		rules, err := c.GetRules(table, chain)
		if err != nil {
			return nil, err
		}
		all = append(all, fmt.Sprintf("chain %s with %d rules", chain.Name, len(rules)))
	}
	sets, err := c.GetSets(table)
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		if set.Anonymous {
			continue
		}
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, err
		}
		all = append(all, fmt.Sprintf("set %s with %d elements", set.Name, len(elements)))
	}
	return append(all, "is there"), nil
}

// Some files of the state and run dirs are there, or not, for reasons of their own: who
// had the state last, what a start or an exec needed and nobody cleared away, what each
// start and each copy out of a stopped sandbox makes anew, and the next content of a file,
// which the one after it replaces. They go with what they belong to.
// What a sandbox has written is its own affair.
var (
	unlisted = regexp.MustCompile(`^(state/(state\.db|state\.holder|backups.*|lineage|instances/[^/]+/([^/]+\.new|files(/\d+)?))|` +
		`run/(agent\.sock|starter\.lock|lineage|cgroup-parents|instances/[^/]+/entrance.*|containers/[^/]+/exec\.fifo))$`)
	inside = regexp.MustCompile(`^state/(instances/[^/]+/(upper|work)|volumes/[^/]+)$`)
)

// files lists the state and run dirs, but not what sandboxes have in theirs.
func (g *ground) files() (all []string, err error) {
	for _, top := range []string{"state", "run"} {
		err := filepath.WalkDir(filepath.Join(g.dir, top), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			name := strings.TrimPrefix(path, g.dir+"/")
			if !unlisted.MatchString(name) && strings.Count(name, "/") > 1 || strings.Count(name, "/") == 1 && !d.IsDir() && !unlisted.MatchString(name) {
				all = append(all, "file "+name)
			}
			if d.IsDir() && inside.MatchString(name) {
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (g *ground) loops() (all []string, err error) {
	paths, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if file, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(file), g.dir+"/") {
			all = append(all, "loop device of "+strings.TrimSpace(string(file)))
		}
	}
	return all, nil
}
