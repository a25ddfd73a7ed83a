// Package checkup looks whether a machine has what sandboxes need. What is found is said
// in words, with what to do about it; nothing of what is tried stays.
package checkup

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Status is how a check went.
type Status string

const (
	OK   Status = "ok"
	Warn Status = "warn" // it works, with something to know about
	Fail Status = "fail" // sandboxes do not work, or not all of them
)

// Finding is what one check found.
type Finding struct {
	Name   string
	Status Status
	Found  string
	Advice string // what to do; empty where nothing is
}

// Machine is what the checks ask. Here is the one this process runs on.
type Machine interface {
	Root() bool
	Release() (string, error)         // of the kernel, as uname -r
	Read(path string) (string, error) // a small file of proc or sys
	Try(Trial) error                  // nil: it works
	Disk(dir string) (Disk, error)    // of a directory, or the nearest above it that is there
	OpenFiles() (soft, hard uint64, raisable bool)
	// ForwardBlockers are others' chains that drop forwarded packets.
	ForwardBlockers() ([]string, error)
	// Starters are processes of pinfold's that start sandboxes, and outlived who had them.
	Starters() ([]int, error)
}

// Trial is something that is tried for real, where nobody else sees it.
type Trial string

const (
	UserNamespace Trial = "user_namespaces"
	Overlay       Trial = "overlay"
	Nftables      Trial = "nftables"
	Links         Trial = "links"
	Seccomp       Trial = "seccomp"
	Memfd         Trial = "memfd"
	Pidfd         Trial = "pidfd"
)

// Disk is a file system's room.
type Disk struct {
	Type               string // "ext4", "xfs", "tmpfs", …
	Free               uint64 // bytes that root may still use
	Inodes, FreeInodes uint64 // how many there are and are free; 0: it does not count them
}

// trials need root, all but the last three.
var trials = []struct {
	trial     Trial
	root      bool
	good, fix string
}{
	{UserNamespace, true, "can be made", "Allow them (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns), or set user_namespace = false in security blocks."},
	{Overlay, true, "works over the host's root with shifted owners", "The file system of / has to take idmapped mounts (ext4, xfs, btrfs; not overlay), with Linux 5.19 or later; load the module overlay. Images of other directories may work."},
	{Nftables, true, "a table with address translation can be made", "Load the modules nf_tables, nft_nat and nft_masq; networks and published ports need them."},
	{Links, true, "a bridge and a veth pair can be made", "Load the modules bridge and veth; networks need them."},
	{Seccomp, false, "system call filters are there", "Use a kernel with CONFIG_SECCOMP_FILTER."},
	{Memfd, false, "programs in memory can be run", "Allow it: sysctl vm.memfd_noexec must not be 2, and no security module may forbid it."},
	{Pidfd, false, "processes can be held by descriptor", "Use Linux 5.3 or later, and allow pidfd_open and pidfd_send_signal where pinfold itself runs in a container."},
}

// Run does every check. stateDir is where the files of sandboxes are to be.
func Run(ctx context.Context, m Machine, stateDir string) []Finding {
	var all []Finding
	add := func(name string, check func(Machine) Finding) {
		f := check(m)
		f.Name = name
		all = append(all, f)
	}
	add("kernel", kernel)
	add("cgroups", cgroups)
	for _, t := range trials {
		add(string(t.trial), func(m Machine) Finding {
			if t.root && !m.Root() {
				return unseen()
			}
			if err := m.Try(t.trial); err != nil {
				return Finding{Status: Fail, Found: "does not work: " + err.Error(), Advice: t.fix}
			}
			return Finding{Status: OK, Found: t.good}
		})
	}
	add("namespace_limit", atLeast("/proc/sys/user/max_user_namespaces", 1, 1000, "user namespaces at a time", "user.max_user_namespaces"))
	add("forwarding", forwarding)
	add("forward_policy", forwardPolicy)
	add("bridge_netfilter", bridgeNetfilter)
	add("conntrack", atLeast("/proc/sys/net/netfilter/nf_conntrack_max", 0, 65536, "tracked connections at a time", "net.netfilter.nf_conntrack_max"))
	add("open_files", openFiles)
	add("inotify", atLeast("/proc/sys/fs/inotify/max_user_instances", 1, 128, "watchers for each user", "fs.inotify.max_user_instances"))
	add("pid_max", atLeast("/proc/sys/kernel/pid_max", 1, 32768, "processes at a time", "kernel.pid_max"))
	add("disk", func(m Machine) Finding { return disk(m, stateDir) })
	add("starters", starters)
	return all
}

func unseen() Finding {
	return Finding{Status: Warn, Found: "not looked at: that needs root", Advice: "Run it with sudo."}
}

func cannotTell(err error) Finding {
	return Finding{Status: Warn, Found: "cannot be told: " + err.Error()}
}

// oldest is the first kernel with idmapped lower layers.
const oldest = "5.19"

func kernel(m Machine) Finding {
	release, err := m.Release()
	if err != nil {
		return cannotTell(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return Finding{Status: Warn, Found: fmt.Sprintf("Linux %q, which is no version known here", release)}
	}
	if major < 5 || major == 5 && minor < 19 {
		return Finding{Status: Fail, Found: "Linux " + release, Advice: "Use Linux " + oldest + " or later: before it a root cannot be shared between sandboxes with user namespaces."}
	}
	return Finding{Status: OK, Found: "Linux " + release}
}

func cgroups(m Machine) Finding {
	mounts, err := m.Read("/proc/self/mountinfo")
	if err != nil {
		return cannotTell(err)
	}
	root, unified := "", false
	have := map[string]bool{}
	for line := range strings.Lines(mounts) {
		// proc_pid_mountinfo(5): ... (5) mount point ... - type source options
		before, after, ok := strings.Cut(strings.TrimSpace(line), " - ")
		at, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(at) < 5 || len(kind) < 3 {
			continue
		}
		switch {
		case at[4] == "/sys/fs/cgroup":
			root = kind[0]
		case at[4] == "/sys/fs/cgroup/unified" && kind[0] == "cgroup2":
			unified = true
		case kind[0] == "cgroup" && strings.HasPrefix(at[4], "/sys/fs/cgroup/"):
			for _, name := range strings.Split(kind[2], ",") {
				have[name] = true
			}
		}
	}
	mode := "v1"
	need := []string{"cpu", "cpuacct", "devices", "freezer", "memory", "pids"}
	switch {
	case root == "cgroup2":
		mode, need = "v2", []string{"cpu", "memory", "pids"}
		text, err := m.Read("/sys/fs/cgroup/cgroup.controllers")
		if err != nil {
			return cannotTell(err)
		}
		for _, name := range strings.Fields(text) {
			have[name] = true
		}
	case root == "":
		return Finding{Status: Fail, Found: "none are mounted at /sys/fs/cgroup", Advice: "Mount cgroup2 there, as systemd does."}
	case unified:
		mode = "v1, hybrid"
	}
	missing := slices.DeleteFunc(need, func(name string) bool { return have[name] })
	if len(missing) > 0 {
		return Finding{Status: Fail, Found: mode + ", without " + strings.Join(missing, ", "), Advice: "Switch these controllers on (kernel command line cgroup_enable=, or the hierarchy's mount): limits need them."}
	}
	return Finding{Status: OK, Found: mode + ", with all controllers"}
}

// atLeast checks a number of the kernel: below least it fails, below enough it is told.
func atLeast(path string, least, enough int64, what, name string) func(Machine) Finding {
	return func(m Machine) Finding {
		text, err := m.Read(path)
		if err != nil {
			return cannotTell(err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil {
			return cannotTell(err)
		}
		f := Finding{Status: OK, Found: fmt.Sprintf("%d %s", n, what)}
		switch advice := fmt.Sprintf("sysctl -w %s=%d, and the same in /etc/sysctl.d.", name, enough); {
		case n < least:
			f.Status, f.Advice = Fail, advice
		case n < enough:
			f.Status, f.Advice = Warn, "Enough for few sandboxes. For more: "+advice
		}
		return f
	}
}

func forwarding(m Machine) Finding {
	text, err := m.Read("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		return cannotTell(err)
	}
	filter, err := m.Read("/proc/sys/net/ipv4/conf/all/rp_filter")
	if err != nil {
		return cannotTell(err)
	}
	way := map[string]string{"0": "no check", "1": "a strict check", "2": "a loose check"}[strings.TrimSpace(filter)]
	if strings.TrimSpace(text) != "1" {
		return Finding{Status: Warn, Found: "net.ipv4.ip_forward is off", Advice: "pinfold switches it on when it makes a network; sysctl -w net.ipv4.ip_forward=1 does it now, a file in /etc/sysctl.d for good."}
	}
	return Finding{Status: OK, Found: "net.ipv4.ip_forward is on, with " + way + " of where packets come from (rp_filter)"}
}

func forwardPolicy(m Machine) Finding {
	if !m.Root() {
		return unseen()
	}
	by, err := m.ForwardBlockers()
	if err != nil {
		return cannotTell(err)
	}
	if len(by) > 0 {
		return Finding{
			Status: Warn, Found: strings.Join(by, ", ") + " drops forwarded packets",
			Advice: "internet = true and ports published beyond loopback do not work until its owner accepts what comes from and goes to pinfold's bridges, which are named b and six hex digits: with Docker, rules in chain DOCKER-USER (iptables -I DOCKER-USER -i bXXXXXX+ -j ACCEPT, and the same with -o).",
		}
	}
	return Finding{Status: OK, Found: "nobody's nftables chain drops forwarded packets"}
}

func bridgeNetfilter(m Machine) Finding {
	text, err := m.Read("/proc/sys/net/bridge/bridge-nf-call-iptables")
	switch {
	case err != nil:
		return Finding{Status: OK, Found: "br_netfilter is not loaded: iptables rules leave bridges alone"}
	case strings.TrimSpace(text) == "1":
		return Finding{Status: Warn, Found: "net.bridge.bridge-nf-call-iptables is on: iptables rules see what sandboxes of one network send to each other",
			Advice: "Where forward_policy names a chain, it drops that too. Accept it there, or sysctl -w net.bridge.bridge-nf-call-iptables=0 where nobody needs it."}
	}
	return Finding{Status: OK, Found: "net.bridge.bridge-nf-call-iptables is off"}
}

// fewFiles is what an agent needs for some hundred sandboxes: about three each.
const fewFiles = 1024

func openFiles(m Machine) Finding {
	soft, hard, raisable := m.OpenFiles()
	f := Finding{Status: OK, Found: fmt.Sprintf("%d, at most %d", soft, hard)}
	switch {
	case hard < 256:
		f.Status = Fail
	case hard <= fewFiles && !raisable:
		f.Status = Warn
	}
	if f.Status != OK {
		f.Advice = "Raise the limit (ulimit -n, LimitNOFILE= of the agent's unit)"
		if !raisable {
			f.Advice += " before pinfold starts: it has not CAP_SYS_RESOURCE"
		}
		f.Advice += "."
	}
	return f
}

// Free space below which is told.
const (
	littleSpace = 1 << 30
	noSpace     = 64 << 20
)

func disk(m Machine, dir string) Finding {
	d, err := m.Disk(dir)
	if err != nil {
		return cannotTell(err)
	}
	f := Finding{Status: OK, Found: fmt.Sprintf("%d MiB free on %s (%s)", d.Free>>20, dir, d.Type)}
	few := d.Inodes > 0 && d.FreeInodes < d.Inodes/50
	switch {
	case d.Free < noSpace || d.Inodes > 0 && d.FreeInodes == 0:
		f.Status, f.Advice = Fail, "Make room: the state cannot be written when it is full."
	case d.Free < littleSpace || few:
		f.Status, f.Advice = Warn, "Make room before it is full."
	case d.Type == "tmpfs" || d.Type == "ramfs":
		f.Status, f.Advice = Warn, "It is lost at a reboot; choose a state dir on a disk."
	case slices.Contains([]string{"nfs", "cifs", "fuse", "overlay"}, d.Type):
		f.Status, f.Advice = Warn, "Writable layers may not work there; ext4, xfs and btrfs do."
	}
	if few {
		f.Found += fmt.Sprintf(", %d of %d inodes", d.FreeInodes, d.Inodes)
	}
	return f
}

func starters(m Machine) Finding {
	if !m.Root() {
		return unseen()
	}
	pids, err := m.Starters()
	switch {
	case err != nil:
		return cannotTell(err)
	case len(pids) > 0:
		return Finding{Status: Warn, Found: fmt.Sprintf("left over from a pinfold that is gone: %s", strings.Trim(fmt.Sprint(pids), "[]")), Advice: "They end by themselves. One that does not can be killed; no sandbox needs it."}
	}
	return Finding{Status: OK, Found: "none is left over"}
}
