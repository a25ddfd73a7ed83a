package checkup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// made is a machine as a test makes it up.
type made struct {
	user     bool
	release  string
	files    map[string]string
	broken   map[Trial]error
	disk     Disk
	soft     uint64
	hard     uint64
	raisable bool
	blockers []string
	starters []int
	err      error // of all that can fail but files and trials
}

func (m *made) Root() bool               { return !m.user }
func (m *made) Release() (string, error) { return m.release, m.err }
func (m *made) Read(path string) (string, error) {
	text, ok := m.files[path]
	if !ok {
		return "", &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
	}
	return text, nil
}
func (m *made) Try(t Trial) error                  { return m.broken[t] }
func (m *made) Disk(string) (Disk, error)          { return m.disk, m.err }
func (m *made) OpenFiles() (uint64, uint64, bool)  { return m.soft, m.hard, m.raisable }
func (m *made) ForwardBlockers() ([]string, error) { return m.blockers, m.err }
func (m *made) Starters() ([]int, error)           { return m.starters, m.err }

const hybrid = `25 30 0:23 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
26 25 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
27 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
28 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
29 25 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
30 25 0:28 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
31 25 0:29 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices
`

// good is a machine with which nothing is wrong.
func good() *made {
	return &made{
		release: "6.8.0-45-generic", soft: 1024, hard: 1 << 20, raisable: true, broken: map[Trial]error{},
		disk: Disk{Type: "ext4", Free: 100 << 30, Inodes: 1000, FreeInodes: 900},
		files: map[string]string{
			"/proc/self/mountinfo":                         hybrid,
			"/proc/sys/user/max_user_namespaces":           "63000\n",
			"/proc/sys/net/ipv4/ip_forward":                "1\n",
			"/proc/sys/net/ipv4/conf/all/rp_filter":        "2\n",
			"/proc/sys/net/netfilter/nf_conntrack_max":     "262144\n",
			"/proc/sys/fs/inotify/max_user_instances":      "128\n",
			"/proc/sys/kernel/pid_max":                     "4194304\n",
			"/proc/sys/net/bridge/bridge-nf-call-iptables": "0\n",
		},
	}
}

func TestNothingIsWrong(t *testing.T) {
	for _, f := range Run(context.Background(), good(), "/var/lib/pinfold") {
		if f.Status != OK || f.Found == "" || f.Advice != "" {
			t.Errorf("%+v", f)
		}
	}
}

// TestEachCheckFinds: each of them sees what it is for, says what to do, and no other
// is led astray by it.
func TestEachCheckFinds(t *testing.T) {
	file := func(path, text string) func(*made) {
		return func(m *made) {
			if _, there := m.files[path]; !there {
				t.Errorf("no check reads %s", path)
			}
			m.files[path] = text
		}
	}
	v2 := "25 30 0:23 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct {
		name   string
		change func(*made)
		status Status
		found  string
	}{
		{"kernel", func(m *made) { m.release = "5.15.0" }, Fail, "Linux 5.15.0"},
		{"kernel", func(m *made) { m.release = "5.19.1" }, OK, "Linux 5.19.1"},
		{"kernel", func(m *made) { m.release = "4.20" }, Fail, "Linux 4.20"},
		{"kernel", func(m *made) { m.release = "odd" }, Warn, "no version"},
		{"cgroups", file("/proc/self/mountinfo", "1 2 3 / /proc rw - proc proc rw\n"), Fail, "none are mounted"},
		{"cgroups", file("/proc/self/mountinfo", strings.Replace(hybrid, "rw,pids", "rw,misc", 1)), Fail, "v1, hybrid, without pids"},
		{"cgroups", func(m *made) {
			m.files["/proc/self/mountinfo"] = v2
			m.files["/sys/fs/cgroup/cgroup.controllers"] = "cpuset cpu io memory pids\n"
		}, OK, "v2, with all controllers"},
		{"cgroups", func(m *made) {
			m.files["/proc/self/mountinfo"] = v2
			m.files["/sys/fs/cgroup/cgroup.controllers"] = "cpuset io pids\n"
		}, Fail, "v2, without cpu, memory"},
		{"namespace_limit", file("/proc/sys/user/max_user_namespaces", "0\n"), Fail, "0 user namespaces"},
		{"namespace_limit", file("/proc/sys/user/max_user_namespaces", "10\n"), Warn, "10 user namespaces"},
		{"forwarding", file("/proc/sys/net/ipv4/ip_forward", "0\n"), Warn, "ip_forward is off"},
		{"forwarding", file("/proc/sys/net/ipv4/conf/all/rp_filter", "1\n"), OK, "a strict check"},
		{"forward_policy", func(m *made) { m.blockers = []string{"chain FORWARD of nftables table ip filter"} }, Warn, "FORWARD"},
		{"bridge_netfilter", file("/proc/sys/net/bridge/bridge-nf-call-iptables", "1\n"), Warn, "is on"},
		{"conntrack", file("/proc/sys/net/netfilter/nf_conntrack_max", "4096\n"), Warn, "4096 tracked"},
		{"open_files", func(m *made) { m.hard, m.raisable = 1024, false }, Warn, "1024"},
		{"open_files", func(m *made) { m.hard = 100 }, Fail, "100"},
		{"open_files", func(m *made) { m.hard = 1024 }, OK, "1024"},
		{"inotify", file("/proc/sys/fs/inotify/max_user_instances", "0\n"), Fail, "0 watchers"},
		{"pid_max", file("/proc/sys/kernel/pid_max", "1000\n"), Warn, "1000 processes"},
		{"pid_max", file("/proc/sys/kernel/pid_max", "many\n"), Warn, "cannot be told"},
		{"disk", func(m *made) { m.disk.Free = 10 << 20 }, Fail, "10 MiB free"},
		{"disk", func(m *made) { m.disk.Free = 500 << 20 }, Warn, "500 MiB free"},
		{"disk", func(m *made) { m.disk.FreeInodes = 3 }, Warn, "3 of 1000 inodes"},
		{"disk", func(m *made) { m.disk.FreeInodes = 0 }, Fail, "0 of 1000 inodes"},
		{"disk", func(m *made) { m.disk.Type = "tmpfs" }, Warn, "tmpfs"},
		{"disk", func(m *made) { m.disk.Type = "overlay" }, Warn, "overlay"},
		{"starters", func(m *made) { m.starters = []int{7, 42} }, Warn, "gone: 7 42"},
		{"user_namespaces", func(m *made) { m.broken[UserNamespace] = errors.New("EPERM") }, Fail, "EPERM"},
		{"overlay", func(m *made) { m.broken[Overlay] = errors.New("EINVAL") }, Fail, "EINVAL"},
		{"nftables", func(m *made) { m.broken[Nftables] = errors.New("EOPNOTSUPP") }, Fail, "EOPNOTSUPP"},
		{"links", func(m *made) { m.broken[Links] = errors.New("EOPNOTSUPP") }, Fail, "EOPNOTSUPP"},
		{"seccomp", func(m *made) { m.broken[Seccomp] = errors.New("EINVAL") }, Fail, "EINVAL"},
		{"memfd", func(m *made) { m.broken[Memfd] = errors.New("EACCES") }, Fail, "EACCES"},
		{"pidfd", func(m *made) { m.broken[Pidfd] = errors.New("ENOSYS") }, Fail, "ENOSYS"},
	} {
		m := good()
		c.change(m)
		seen := false
		for _, f := range Run(context.Background(), m, "/var/lib/pinfold") {
			if f.Name != c.name {
				if f.Status != OK {
					t.Errorf("%s (%s) makes %+v", c.name, c.found, f)
				}
				continue
			}
			seen = true
			if f.Status != c.status || !strings.Contains(f.Found, c.found) || (f.Advice == "") != (c.status == OK) && !strings.Contains(f.Found, "no version") && !strings.Contains(f.Found, "cannot be told") {
				t.Errorf("want %s %q, got %+v", c.status, c.found, f)
			}
		}
		if !seen {
			t.Errorf("there is no check %s", c.name)
		}
	}
}

// TestWithoutRoot: what needs root is said to be unseen, and fails nothing.
func TestWithoutRoot(t *testing.T) {
	m := good()
	m.user = true
	unseen := 0
	for _, f := range Run(context.Background(), m, "/x") {
		if f.Status == Fail {
			t.Errorf("%+v", f)
		}
		if strings.Contains(f.Found, "needs root") {
			unseen++
		}
	}
	if unseen != 6 {
		t.Errorf("%d checks say that they need root", unseen)
	}
}

// TestHere: what is found of this machine is what proc and a look at it say.
func TestHere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("run the tests as root")
	}
	before := state(t)
	dir := t.TempDir()
	found := map[string]Finding{}
	for _, f := range Run(context.Background(), Here{}, dir+"/not/there") {
		found[f.Name] = f
	}
	read := func(path string) string {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	for name, want := range map[string]string{
		"kernel": "Linux " + read("/proc/sys/kernel/osrelease"), "pid_max": read("/proc/sys/kernel/pid_max") + " ",
		"namespace_limit": read("/proc/sys/user/max_user_namespaces") + " ", "inotify": read("/proc/sys/fs/inotify/max_user_instances") + " ",
	} {
		if !strings.HasPrefix(found[name].Found, want) {
			t.Errorf("%s: %q, want %q", name, found[name].Found, want)
		}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d, at most %d", limit.Cur, limit.Max); found["open_files"].Found != want {
		t.Errorf("open files: %q, want %q", found["open_files"].Found, want)
	}
	// The suites make real sandboxes here, so all of this has to work.
	for _, name := range []string{"cgroups", "user_namespaces", "overlay", "nftables", "links", "seccomp", "memfd", "pidfd"} {
		if f := found[name]; f.Status != OK {
			t.Errorf("%+v", f)
		}
	}
	if !strings.Contains(found["disk"].Found, "MiB free on "+dir) {
		t.Errorf("%+v", found["disk"])
	}
	if after := state(t); after != before {
		t.Errorf("something was left on the host:\n%s\nwas\n%s", after, before)
	}
}

// state is what the trials could leave: mounts and links of the checks' names.
func state(t *testing.T) (all string) {
	t.Helper()
	for _, path := range []string{"/proc/self/mountinfo", "/proc/net/dev"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "pinfold - tmpfs") || strings.Contains(line, " / /proc/") && strings.Contains(line, "overlay") || strings.Contains(line, "check") {
				all += line
			}
		}
	}
	return all
}

// TestTheProcessStaysWhereItIs: whichever thread a trial comes to, the main thread, by
// which proc shows this process, is in the namespaces it was in.
func TestTheProcessStaysWhereItIs(t *testing.T) {
	where := func() (all string) {
		for _, ns := range []string{"mnt", "net"} {
			at, err := os.Readlink("/proc/self/ns/" + ns)
			if err != nil {
				t.Fatal(err)
			}
			all += at + " "
		}
		return all
	}
	before := where()
	for range 20 {
		for _, trial := range []Trial{Links, Nftables, Overlay} {
			if err := (Here{}).Try(trial); err != nil {
				t.Fatal(err)
			}
		}
	}
	if after := where(); after != before {
		t.Errorf("it is in %s, was in %s", after, before)
	}
}
