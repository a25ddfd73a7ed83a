package onhost

import (
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// What the tests of chaos, adoption, exhaustion and hostile workloads stand on: an
// agent with less than it would like, a disk of its own, and eyes of their own.

// What an agent is told by its environment.
const (
	follows   = "PINFOLD_TEST_FOLLOW"    // any value: it follows the world's configuration
	speaks    = "PINFOLD_TEST_LOG"       // any value: it says what it does
	mayOpen   = "PINFOLD_TEST_NOFILE"    // how many descriptors it may have
	livesIn   = "PINFOLD_TEST_CGROUP"    // the cgroup that it is to be in
	noInotify = "PINFOLD_TEST_NOINOTIFY" // any value: for it, all inotify instances are in use
)

// agentOptions are those of the agent that this process is.
func (w *world) agentOptions() reconcile.AgentOptions {
	o := reconcile.AgentOptions{OpenOptions: w.options("agent"), Ready: func() { fmt.Println("ready") }}
	if err := confine(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot be confined:", err)
		os.Exit(1)
	}
	if os.Getenv(speaks) != "" {
		o.Log = hclog.New(&hclog.LoggerOptions{Output: os.Stderr, Level: hclog.Info})
	}
	if os.Getenv(follows) != "" {
		o.ConfigDir = filepath.Join(w.dir, "config")
	}
	return o
}

// confine gives this process less than it would like.
func confine() error {
	if n := os.Getenv(mayOpen); n != "" {
		most, err := strconv.ParseUint(n, 10, 64)
		if err != nil {
			return err
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
			return err
		}
	}
	if dir := os.Getenv(livesIn); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
			return err
		}
	}
	if os.Getenv(noInotify) != "" {
		return refuse(unix.EMFILE, unix.SYS_INOTIFY_INIT1)
	}
	return nil
}

// refuse makes a system call fail with that error in all threads of this process.
func refuse(errno syscall.Errno, call uint32) error {
	// seccomp(2): struct seccomp_data begins with the call's number.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, err := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if err != 0 {
		return err
	}
	return nil
}

// logged is logging, and what the agents say must not hold a panic.
func logged(w *world) {
	logging(w)
	w.Cleanup(func() {
		text := w.said()
		for _, bad := range []string{"panic:", "fatal error:", "DATA RACE"} {
			if at := strings.Index(text, bad); at >= 0 {
				w.Errorf("the agent's log: %s", text[at:min(len(text), at+4000)])
			}
		}
	})
}

// logging keeps what the world's agents say in a file, which is shown when the test
// failed.
func logging(w *world) {
	path := filepath.Join(w.dir, "agent.log")
	f, err := os.Create(path)
	w.must(err)
	w.log, w.env = f, append(w.env, speaks+"=1")
	w.Cleanup(func() {
		f.Close()
		text, err := os.ReadFile(path)
		if err != nil {
			w.Error(err)
		}
		if w.Failed() {
			w.Logf("the end of the agent's log:\n%s", text[max(0, len(text)-12000):])
		}
	})
}

// said is what the world's agents have said so far.
func (w *world) said() string {
	w.Helper()
	text, err := os.ReadFile(w.log.Name())
	w.must(err)
	return string(text)
}

// onSmallDisk gives the world's state a file system of its own, of so many MiB.
func onSmallDisk(mib int) func(*world) {
	return func(w *world) {
		w.Helper()
		image, at := filepath.Join(w.dir, "disk.img"), filepath.Join(w.dir, "state")
		w.must(os.WriteFile(image, nil, 0o600))
		w.must(os.Truncate(image, int64(mib)<<20))
		run(w, "mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", image)
		run(w, "mount", "-o", "loop", image, at)
		w.Cleanup(func() {
			if err := syscall.Unmount(at, 0); err != nil {
				w.Errorf("unmount %s: %v", at, err)
				syscall.Unmount(at, syscall.MNT_DETACH)
			}
			free := func() bool { return len(loopsOf(w.dir)) == 0 }
			if !within(20*time.Second, free) {
				w.Errorf("left behind: %v", loopsOf(w.dir))
			}
		})
	}
}

// loopsOf lists the loop devices whose file is below dir.
func loopsOf(dir string) (list []string) {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(b), dir+"/") {
			list = append(list, f)
		}
	}
	return list
}

// fill takes all space that is left at dir and returns what gives it back.
func fill(w *world, dir string) (empty func()) {
	w.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	w.must(err)
	defer f.Close()
	for size := 1 << 20; size >= 512; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	empty = func() {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			w.Error(err)
		}
	}
	w.Cleanup(empty)
	return empty
}

func run(w *world, name string, args ...string) {
	w.Helper()
	if out, err := osexec.Command(name, args...).CombinedOutput(); err != nil {
		w.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// within waits until ok, for so long at most.
func within(bound time.Duration, ok func() bool) bool {
	for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// short is what the names of this world's host objects have in them.
func (w *world) short() string {
	w.Helper()
	st, err := w.Status(w.ctx)
	w.must(err)
	return reconcile.ShortID(st.Lineage)
}

// census is what a host has of one lineage, by the instances' ids.
type census struct {
	dirs, netns, links map[string]bool
	groups             map[string]bool
	inits              map[string][]int // processes that are PID 1 of a namespace
	others             []string         // processes of ours whose instance has no such
	bridges            int
}

// count looks at the host itself, and at nothing that pinfold says.
func count(short, stateDir, runDir string) (c census, err error) {
	c = census{inits: map[string][]int{}, links: map[string]bool{}, groups: map[string]bool{}}
	if c.dirs, err = names(filepath.Join(stateDir, "instances")); err != nil {
		return c, err
	}
	if c.netns, err = names(filepath.Join(runDir, "netns")); err != nil {
		return c, err
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*/*-" + short + "/*", "/sys/fs/cgroup/*-" + short + "/*"} {
		paths, _ := filepath.Glob(pattern)
		for _, p := range paths {
			if id := filepath.Base(p); instanceID.MatchString(id) {
				c.groups[id] = true
			}
		}
	}
	all, err := netlink.LinkList()
	for i := 0; err != nil && i < 50; i++ { // interrupted by others' changes
		all, err = netlink.LinkList()
	}
	if err != nil {
		return c, err
	}
	for _, l := range all {
		if id, is := strings.CutPrefix(l.Attrs().Alias, "pinfold "+short+" instance "); is {
			id, _, _ = strings.Cut(id, " ")
			c.links[id] = true
		} else if strings.HasPrefix(l.Attrs().Alias, "pinfold "+short+" network ") {
			c.bridges++
		}
	}
	held := map[string]string{}
	for pid, id := range processesOf(short) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || dead(pid) {
			continue
		}
		if firstOfNamespace.Match(status) {
			c.inits[id] = append(c.inits[id], pid)
		} else {
			held[id] = fmt.Sprintf("process %d of %s", pid, id)
		}
	}
	for id, what := range held {
		if c.inits[id] == nil {
			c.others = append(c.others, what)
		}
	}
	return c, nil
}

var (
	instanceID       = regexp.MustCompile(`^[0-9a-f]{12}$`)
	firstOfNamespace = regexp.MustCompile(`(?m)^NSpid:\t\d+\t1$`)
)

// processesOf are the processes in cgroups of the lineage, with their instance.
func processesOf(short string) map[int]string {
	in := regexp.MustCompile(`-` + short + `/([0-9a-f]{12})`)
	all := map[int]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if m := in.FindSubmatch(text); m != nil {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			all[pid] = string(m[1])
		}
	}
	return all
}

func names(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	all := map[string]bool{}
	for _, e := range entries {
		all[e.Name()] = true
	}
	return all, nil
}

// tally compares the host with what the world says that it has: every instance
// once, and nothing besides.
func (w *world) tally(short string, views []reconcile.SandboxView, networks int) error {
	c, err := count(short, filepath.Join(w.dir, "state"), filepath.Join(w.dir, "run"))
	if err != nil {
		return err
	}
	all, live, linked := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, v := range views {
		if v.InstanceID == nil {
			continue
		}
		id := *v.InstanceID
		all[id] = true
		if v.PID == nil {
			continue
		}
		live[id] = true
		if v.AddressV4 != nil {
			linked[id] = true
		}
		if got := c.inits[id]; len(got) != 1 || got[0] != *v.PID {
			return fmt.Errorf("%s says that its process is %d, the host has %v", v.Address, *v.PID, got)
		}
	}
	inits := map[string]bool{}
	for id := range c.inits {
		inits[id] = true
	}
	for _, x := range []struct {
		what      string
		got, want map[string]bool
	}{
		{"directories of instances", c.dirs, all}, {"processes", inits, live}, {"cgroups", c.groups, live},
		{"network namespaces", c.netns, live}, {"links", c.links, linked},
	} {
		if got, want := sorted(x.got), sorted(x.want); !slices.Equal(got, want) {
			return fmt.Errorf("%s: %v, want %v", x.what, got, want)
		}
	}
	if len(c.others) > 0 {
		return fmt.Errorf("processes without the first of their namespace: %v", c.others)
	}
	if c.bridges != networks {
		return fmt.Errorf("%d bridges, want %d", c.bridges, networks)
	}
	return nil
}

func sorted(set map[string]bool) []string {
	list := make([]string, 0, len(set))
	for s := range set {
		list = append(list, s)
	}
	slices.Sort(list)
	return list
}

// settled tells what is not as declared yet, by the world's own word.
func (w *world) settled(views []reconcile.SandboxView, p *plan.Plan) error {
	for _, c := range p.Changes {
		if c.Action != plan.ActNoop {
			return fmt.Errorf("the plan has %s %s (%s)", c.Action, c.Address, c.Cause)
		}
	}
	for _, v := range views {
		ended := condition(v, "Expired").Status == "True" && v.Mode != "paused"
		finished := condition(v, "Finished").Status == "True"
		switch want := map[string]plan.Phase{"running": plan.Running, "paused": plan.Paused, "suspended": plan.Stopped}[v.Mode]; {
		case ended, finished:
			if v.Phase != plan.Stopped {
				return fmt.Errorf("%s has ended and is %s", v.Address, v.Phase)
			}
		case v.Phase != want:
			return fmt.Errorf("%s is %s, its mode %s", v.Address, v.Phase, v.Mode)
		}
		for _, c := range v.Conditions {
			if c.Status == "Unknown" {
				return fmt.Errorf("%s: %s is unknown: %s %s", v.Address, c.Type, c.Reason, c.Message)
			}
		}
	}
	return nil
}

// source is the configuration as it is on the disk.
func (w *world) source() *config.Source {
	w.Helper()
	src, diags := config.Load(filepath.Join(w.dir, "config"), config.Inputs{})
	if diags.HasErrors() {
		w.Fatal(diags)
	}
	return src
}
