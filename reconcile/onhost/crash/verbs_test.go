//go:build failpoints

package crash

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// A verb is work that is cut off, or made to fail, at each point that it passes.
type verb struct {
	name    string
	before  string       // the files applied first; empty: nothing is there yet
	prepare func(*world) // then brings the host to where the work begins
	after   string       // the files that the work is about; empty: before
	// work is what is done; nil: an apply of the files. agent: the agent does it.
	work  func(ctx context.Context, s reconcile.Service, dir string) (*reconcile.ApplyResult, error)
	agent bool

	lose     func(*world)      // what goes when nobody has the state open any more
	bare     bool              // the work is done without opening the state
	execs    bool              // a command that was begun inside goes on when its caller dies
	signals  bool              // a signal may be on its way to the command of sandbox.a when its caller dies
	either   bool              // cut off, it may as well not have happened: a verb, which nobody repeats
	until    func(*world) bool // the agent is not asked to end before; nil: when it has nothing to do
	fresh    bool              // not even a state is there before
	backsOff bool              // sandbox.a is started again only after a while
	// What becomes of sandbox.a. Its volumes, claim, uid, lease, ports and address stay
	// in any case.
	samePID   bool // its process goes on
	newLayer  bool // its writable layer goes
	moves     bool // its address goes, with its network
	anew      bool // what is reserved for it goes, too: address, ports, id range
	ends      bool // all of it goes
	leaves    bool // what it was stays on the host without a record
	bystander bool // there is a sandbox.c, which is new as well
	// renames are new addresses, by those that things have before the work; what is
	// checked goes by the new ones.
	renames map[string]string
	// early: what prepare does is a part of what may take nothing from a sandbox.
	early bool
	// alone: there is no neighbour, or it is part of the work.
	alone bool
}

// apply tells whether the work is an apply, in which something else can be asked for
// besides.
func (v *verb) apply() bool { return v.work == nil && !v.agent }

const (
	base = `image "base" { source = "host" }
network "n" {
  cidr = "NET0"
}
volume "data" {}
`
	// b answers whoever connects.
	b = `sandbox "b" {
  image   = image.base
  command = ["perl", "-MIO::Socket::INET", "-e", "$s = IO::Socket::INET->new(Listen => 5, LocalPort => 7, ReuseAddr => 1) or die; while ($c = $s->accept) { if (!fork) { while (<$c>) { print $c $_ } exit } }"]
  network { name = network.n }
}
`
	// A sandbox writes down each start of it where it is to stay.
	script = `for d in /data /work ""; do echo up >> $d/log; done; exec sleep 1000`
)

func box(name, extra string) string {
	return fmt.Sprintf(`sandbox %q {
  image   = image.base
  command = ["sh", "-c", %q]
  network { name = network.n }
  port "http" { container = 80 }
  volume "work" { path = "/work" }
  mount {
    volume = volume.data
    path   = "/data"
  }
  %s
}
`, name, script, extra)
}

func a(extra string) string { return base + box("a", extra) + b }

func act(name string) func(context.Context, reconcile.Service, string) (*reconcile.ApplyResult, error) {
	return func(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
		_, err := s.Act(ctx, reconcile.ActRequest{Verb: name, Address: "sandbox.a"})
		return nil, err
	}
}

func after(verbs ...string) func(*world) {
	return func(w *world) {
		for _, v := range verbs {
			w.act(v, "sandbox.a")
		}
	}
}

// first has a sandbox.a whose replacement is there before the old instance goes.
func first(extra string) string {
	claim := `volume "work" { path = "/work" }`
	return strings.Replace(a("lifecycle { create_before_destroy = true }\n  "+extra), claim, "", 1)
}

// verbs are all that there is to do.
var verbs = named([]*verb{
	{name: "first", after: a(""), alone: true, fresh: true},
	{name: "create", before: base + b, after: a("")},
	{name: "create paused", before: base + b, after: a(`operating_mode = "paused"`)},
	{name: "create suspended", before: base + b, after: a(`operating_mode = "suspended"`)},
	{name: "create rich", before: base + b, after: rich},
	{name: "start created", before: base + b, prepare: func(w *world) {
		w.files(a(""))
		res, err := applyWith(context.Background(), w.Service, w.dir, plan.Options{NoStart: true})
		if err != nil {
			w.Fatal(tellOf(res, err))
		}
	}, after: a(""), work: act("start"), either: true},
	{name: "start", before: a(""), prepare: after("stop"), work: act("start"), either: true},
	{name: "pause", before: a(""), work: act("pause"), either: true, samePID: true},
	{name: "resume", before: a(""), prepare: after("pause"), work: act("resume"), either: true, samePID: true},
	{name: "stop", before: a(""), work: act("stop"), either: true},
	{name: "kill", before: a(""), work: act("kill"), either: true, signals: true},
	{name: "release", before: a(""), prepare: after("stop"), work: act("release"), either: true},
	{name: "suspend", before: a(""), after: a(`operating_mode = "suspended"`)},
	{name: "suspend paused", before: a(""), prepare: after("pause"), after: a(`operating_mode = "suspended"`)},
	{name: "unsuspend", before: a(`operating_mode = "suspended"`), after: a("")},
	{name: "update", before: a(""), after: strings.Replace(a(`resources { pids = 50 }`), "container = 80", "container = 81", 1), samePID: true},
	{name: "restart", before: a(""), after: a(`env = { X = "1" }`)},
	{name: "replace", before: a(""), after: a("security { user_namespace = false }"), newLayer: true},
	{name: "replace first", before: first(""), after: first("env = { X = \"1\" }\n security { user_namespace = false }"), newLayer: true, anew: true},
	{name: "replace first probed", before: first(""), after: first(`health {
    command = ["true"]
  }
  security { user_namespace = false }`), newLayer: true, anew: true},
	{name: "replace network", before: a(""), after: strings.Replace(a(""), "NET0", "NET1", 1), newLayer: true, moves: true, alone: true},
	{name: "update network", before: a(""), after: strings.Replace(a(""), `"NET0"`, "\"NET0\"\n internet = true\n", 1), samePID: true},
	{name: "remove", before: a(""), after: base + b, ends: true},
	{name: "remove paused", before: a(""), prepare: after("pause"), after: base + b, ends: true},
	{name: "remove without rules", before: a(""), prepare: deleteRules, after: base + b, ends: true},
	{name: "destroy", before: a(""), after: "locals {}\n", ends: true, alone: true},
	{name: "volume create", before: a(""), after: a("") + "volume \"more\" {}\n", samePID: true},
	{name: "volume remove", before: a("") + "volume \"more\" {}\n", after: a(""), samePID: true},
	{name: "expire retain", before: a(""), after: a(`lifetime { ttl = "1ms" }`)},
	{name: "expire delete", before: a(""), after: a("lifetime { ttl = \"1ms\" }\n shutdown_policy = \"delete\""), ends: true},
	{name: "expire pause", before: a(""), after: a("lifetime { ttl = \"1ms\" }\n shutdown_policy = \"pause\""), samePID: true},
	{name: "revive", before: a(""), prepare: func(w *world) {
		w.files(a(`lifetime { ttl = "1ms" }`))
		w.apply()
	}, after: a(`lifetime { ttl = "10h" }`)},
	{name: "renew", before: a(`lifetime { ttl = "1h" }`), work: renew, either: true, samePID: true},
	{name: "lost", before: a(""), prepare: killInit, backsOff: true},
	{name: "lost deleted", before: a("lifetime { on_lost = \"delete\" }"), prepare: killInit, ends: true},
	{name: "killed", before: a(""), prepare: killMain, backsOff: true},
	{name: "finished", before: strings.Replace(a(""), "exec sleep 1000", "[ -e /data/end ] && exit 3; exec sleep 1000", 1), prepare: finish},
	{name: "out of memory", before: strings.Replace(a("resources { memory = \"32MiB\" }"), "exec sleep 1000", "[ -e /data/end ] && exec perl -e '$x = q(x) x 300000000'; exec sleep 1000", 1), prepare: finish},
	{name: "repair bridge address", before: a(""), prepare: changeBridgeAddress, samePID: true},
	{name: "repair address inside", before: a(""), prepare: changeAddressInside, samePID: true},
	{name: "repair link", before: a(""), prepare: deleteLink("instance"), samePID: true},
	{name: "repair bridge", before: a(""), prepare: deleteLink("network"), samePID: true},
	{name: "repair rules", before: a(""), prepare: deleteRules, samePID: true},
	{name: "repair netns", before: a(""), prepare: deleteNetns, samePID: true},
	{name: "repair run dir", before: a(""), prepare: clearRunDir, samePID: true},
	{name: "repair limits", before: a("resources { pids = 50 }"), prepare: liftLimits, samePID: true},
	{name: "exec", before: a(""), work: executeOne, either: true, samePID: true, execs: true},
	{name: "exec signalled", before: a(""), work: executeAndSignal, either: true, samePID: true, execs: true},
	{name: "attach signalled", before: a(""), work: attachAndSignal, either: true, samePID: true},
	{name: "copy in", before: a(""), work: copyIn, either: true, samePID: true},
	{name: "copy in stopped", before: a(""), prepare: after("stop"), work: copyIn, either: true},
	{name: "copy in protected", before: strings.Replace(a("security { read_only_root = true }"), `"/data"`, `"/other"`, 1), prepare: after("stop"), work: copyIn, either: true},
	{name: "gc", before: a(""), work: collect, either: true, samePID: true},
	{name: "rebuild", before: a(""), lose: func(w *world) {
		w.must(os.Remove(filepath.Join(w.dir, "state", "state.db")))
	}, work: rebuild, bare: true, samePID: true},
	{name: "move", before: renamedX(a("")), after: moved("sandbox.x", "sandbox.a") + moved("network.m", "network.n") + a(""),
		renames: map[string]string{"sandbox.x": "sandbox.a"}, samePID: true},
	{name: "move and restart", before: renamedX(a("")), after: moved("sandbox.x", "sandbox.a") + moved("network.m", "network.n") + a(`env = { X = "1" }`),
		renames: map[string]string{"sandbox.x": "sandbox.a"}},
	{name: "removed", before: a(""), after: removedA + base + b, ends: true, leaves: true},
	{name: "removed with its ground", before: a(""), after: removedA + "locals {}\n", ends: true, leaves: true, alone: true},
	{name: "import", before: a(""), prepare: remove("sandbox.a"), early: true, after: "import {\n to = sandbox.a\n id = \"GIVENUP\"\n}\n" + a(""), samePID: true},
	{name: "import with its ground", before: base + box("a", ""), prepare: remove("sandbox.a", "network.n", "volume.data"), early: true, alone: true,
		after: "import {\n to = sandbox.a\n id = \"GIVENUP\"\n}\n" + base + box("a", ""), samePID: true},
	{name: "state mv", before: a(""), after: moved("sandbox.a", "sandbox.x") + renamedA(a("")), work: stateMove,
		renames: map[string]string{"sandbox.a": "sandbox.x"}, samePID: true},
	{name: "state rm", before: a(""), after: removedA + base + b, work: stateRemove, ends: true, leaves: true},
	{name: "copy out", before: a(""), work: copyOut, either: true, samePID: true},
	{name: "adopt", before: threeMore, prepare: func(w *world) {
		w.act("pause", "sandbox.p")
		w.act("stop", "sandbox.s")
	}, agent: true, samePID: true},
	{name: "adopt lost", before: threeMore, prepare: func(w *world) {
		w.act("pause", "sandbox.p")
		killInit(w)
	}, agent: true, backsOff: true},
	{name: "probe and serve", before: a("") + lone, agent: true, samePID: true, execs: true, until: func(w *world) bool {
		logs, _ := filepath.Glob(filepath.Join(w.dir, "state", "volumes", "*", "probed"))
		return len(logs) > 0
	}},
})

// rich uses all that a sandbox can be made of.
const rich = base + `sandbox "a" {
  image       = image.base
  command     = ["sleep", "1000"]
  user        = "1000:1000"
  working_dir = "/made/up"
  volume "work" { path = "/work" }
  mount {
    tmpfs = true
    size  = "1MiB"
    path  = "/scratch"
  }
  mount {
    host = "SHARED"
    path = "/shared"
  }
  file "/etc/pinfold-test" { content = "x" }
}
` + b

// lone has no network: the agent serves its port. Its probe never ends by itself.
const lone = `sandbox "lone" {
  image   = image.base
  command = ["sleep", "1000"]
  port "http" { container = 80 }
  volume "probes" { path = "/probes" }
  health {
    command  = ["sh", "-c", "echo > /probes/probed; exec sleep 1000"]
    interval = "200ms"
    timeout  = "300ms"
  }
}
`

// threeMore has two sandboxes besides that can be brought to other phases.
var threeMore = a("") + box("p", "") + box("s", "")

func moved(from, to string) string {
	return fmt.Sprintf("moved {\n from = %s\n to = %s\n}\n", from, to)
}

const removedA = "removed {\n from = sandbox.a\n lifecycle { destroy = false }\n}\n"

// renamedX calls sandbox.a and network.n otherwise.
func renamedX(text string) string {
	return strings.NewReplacer(`sandbox "a"`, `sandbox "x"`, `network "n"`, `network "m"`, "network.n", "network.m").Replace(text)
}

// renamedA calls sandbox.a otherwise.
func renamedA(text string) string { return strings.Replace(text, `sandbox "a"`, `sandbox "x"`, 1) }

// remove forgets what is recorded and leaves it on the host.
func remove(addresses ...string) func(*world) {
	return func(w *world) {
		w.Helper()
		w.givenUp = *w.view("a").InstanceID
		_, err := w.StateRemove(context.Background(), reconcile.StateRemoveRequest{Addresses: addresses})
		w.must(err)
	}
}

func stateMove(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	_, err := s.StateMove(ctx, reconcile.StateMoveRequest{From: "sandbox.a", To: "sandbox.x"})
	return nil, err
}

func stateRemove(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	_, err := s.StateRemove(ctx, reconcile.StateRemoveRequest{Addresses: []string{"sandbox.a"}})
	return nil, err
}

func named(list []*verb) map[string]*verb {
	m := map[string]*verb{}
	for _, v := range list {
		if v.after == "" {
			v.after = v.before
		}
		m[v.name] = v
	}
	return m
}

func renew(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	d := config.Duration(5 * time.Hour)
	_, err := s.Renew(ctx, reconcile.RenewRequest{Address: "sandbox.a", In: &d})
	return nil, err
}

// execute runs a command in sandbox.a.
func execute(ctx context.Context, s reconcile.Service, args ...string) error {
	x, err := begin(ctx, s, args...)
	if err != nil {
		return err
	}
	if code, err := x.Wait(); err != nil || code != 0 {
		return fmt.Errorf("%v ends with %d, %v", args, code, err)
	}
	return nil
}

func begin(ctx context.Context, s reconcile.Service, args ...string) (reconcile.ExecSession, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	return s.Exec(ctx, reconcile.ExecRequest{Address: "sandbox.a", Args: args, Stdout: null, Stderr: null})
}

func executeOne(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	return nil, execute(ctx, s, "sh", "-c", "echo exec >> /run/exec")
}

func executeAndSignal(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	x, err := begin(ctx, s, "sleep", "1000")
	if err != nil {
		return nil, err
	}
	if err := x.Signal(int(syscall.SIGTERM)); err != nil {
		return nil, errors.Join(err, x.Signal(int(syscall.SIGKILL)))
	}
	if code, err := x.Wait(); err != nil || code != 128+int(syscall.SIGTERM) {
		return nil, fmt.Errorf("exec ends with %d, %v", code, err)
	}
	return nil, nil
}

// attachAndSignal sends the main process a signal that it takes no notice of.
func attachAndSignal(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	x, err := s.Attach(ctx, "sandbox.a")
	if err != nil {
		return nil, err
	}
	return nil, x.Signal(int(syscall.SIGURG))
}

func collect(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	res, err := s.GC(ctx, reconcile.GCRequest{})
	if err == nil && len(res.Orphans) > 0 {
		err = fmt.Errorf("orphans: %+v", res.Orphans)
	}
	return nil, err
}

func rebuild(ctx context.Context, _ reconcile.Service, dir string) (*reconcile.ApplyResult, error) {
	_, err := reconcile.Rebuild(ctx, options(dir, "rebuild"), reconcile.RebuildRequest{})
	return nil, err
}

// copyIn unpacks one thing of each kind into the claim.
func copyIn(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	f, err := memfile()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := tar.NewWriter(f)
	for _, h := range []tar.Header{
		{Name: "dir/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "dir/one", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4},
		{Name: "two", Typeflag: tar.TypeReg, Mode: 0o644, Size: 4},
		{Name: "symbolic", Typeflag: tar.TypeSymlink, Linkname: "two"},
		{Name: "hard", Typeflag: tar.TypeLink, Linkname: "two"},
		{Name: "pipe", Typeflag: tar.TypeFifo, Mode: 0o600},
	} {
		err = errors.Join(err, t.WriteHeader(&h))
		if h.Size > 0 {
			_, wrong := t.Write([]byte("text"))
			err = errors.Join(err, wrong)
		}
	}
	if err = errors.Join(err, t.Close()); err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		return nil, err
	}
	return nil, s.CopyIn(ctx, reconcile.CopyRequest{Address: "sandbox.a", Path: "/work", Archive: f})
}

func copyOut(ctx context.Context, s reconcile.Service, _ string) (*reconcile.ApplyResult, error) {
	f, err := memfile()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return nil, s.CopyOut(ctx, reconcile.CopyRequest{Address: "sandbox.a", Path: "/work", Archive: f})
}

func memfile() (*os.File, error) {
	fd, err := unix.MemfdCreate("archive", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "archive"), nil
}

// killInit kills PID 1 of sandbox.a from the host.
func killInit(w *world) {
	w.Helper()
	pid := *w.view("a").PID
	w.must(syscall.Kill(pid, syscall.SIGKILL))
	w.within("PID 1 is gone", func() bool { return gone(pid) })
}

// killMain kills the command of sandbox.a from the host: the child of its PID 1.
func killMain(w *world) {
	w.Helper()
	pid := *w.view("a").PID
	list := childrenOf(strconv.Itoa(pid))
	if len(list) != 1 {
		w.Fatalf("the children of PID 1 are %v", list)
	}
	w.must(syscall.Kill(list[0], syscall.SIGKILL))
	w.within("PID 1 has ended", func() bool { return gone(pid) })
}

// arrived tells whether no signal is on its way any more to the command under a PID 1:
// both have taken what was sent to them, and sleep, or PID 1 is gone.
func arrived(pid int) bool {
	if gone(pid) {
		return true
	}
	if !idle(pid) { // first: what it has taken it has handed on
		return false
	}
	children := childrenOf(strconv.Itoa(pid))
	return len(children) == 1 && idle(children[0])
}

// idle tells whether a process sleeps and no signal waits for it, by proc_pid_status(5).
func idle(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	const none = "0000000000000000"
	for _, line := range []string{"State:\tS (sleeping)", "SigPnd:\t" + none, "ShdPnd:\t" + none} {
		if !strings.Contains(string(status), line) {
			return false
		}
	}
	return true
}

// finish lets the command of sandbox.a end by itself.
func finish(w *world) {
	w.Helper()
	w.act("stop", "a")
	logs, err := filepath.Glob(filepath.Join(w.dir, "state", "volumes", "*", "log"))
	w.must(err)
	for _, log := range logs {
		w.must(os.WriteFile(filepath.Join(filepath.Dir(log), "end"), nil, 0o644))
	}
	w.act("release", "a")
	w.within("sandbox.a has finished", func() bool { return w.view("a").Phase == plan.Stopped })
}

// short is the lineage's part of names on the host.
func (w *world) short() string {
	w.Helper()
	st, err := w.Status(context.Background())
	w.must(err)
	return reconcile.ShortID(st.Lineage)
}

// deleteLink deletes the bridge, or the host's end of sandbox.a's veth.
func deleteLink(kind string) func(*world) {
	return func(w *world) {
		w.Helper()
		alias := "pinfold " + w.short() + " " + kind + " "
		if kind == "instance" {
			alias += *w.view("a").InstanceID
		}
		w.must(netlink.LinkDel(w.linkOf(alias)))
	}
}

// linkOf finds a link by how its alias begins.
func (w *world) linkOf(alias string) netlink.Link {
	w.Helper()
	list, err := netlink.LinkList()
	w.must(err)
	for _, l := range list {
		if strings.HasPrefix(l.Attrs().Alias, alias) {
			return l
		}
	}
	w.Fatalf("no link has the alias %q", alias)
	return nil
}

// changeBridgeAddress gives the bridge another address in place of its own.
func changeBridgeAddress(w *world) {
	w.Helper()
	other, err := netlink.ParseAddr("10.99.0.1/30")
	w.must(err)
	w.must(changeAddress(w.linkOf("pinfold "+w.short()+" network "), other))
}

// changeAddressInside gives sandbox.a's own end another address, as root inside could.
func changeAddressInside(w *world) {
	w.Helper()
	other, err := netlink.ParseAddr("10.99.0.2/30")
	w.must(err)
	path := filepath.Join(w.dir, "run", "netns", *w.view("a").InstanceID)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- func() error {
			ns, err := os.Open(path)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			l, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return errors.Join(
				netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 1, 2, 3, 4, 5}),
				changeAddress(l, other))
		}()
	}()
	w.must(<-done)
}

func changeAddress(l netlink.Link, to *netlink.Addr) error {
	have, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, a := range have {
		if err := netlink.AddrDel(l, &a); err != nil {
			return err
		}
	}
	return netlink.AddrAdd(l, to)
}

func deleteRules(w *world) {
	w.Helper()
	c, err := nftables.New()
	w.must(err)
	for _, family := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyBridge} {
		tables, err := c.ListTablesOfFamily(family)
		w.must(err)
		for _, t := range tables {
			if strings.Contains(t.Name, w.short()) {
				c.DelTable(t)
			}
		}
	}
	w.must(c.Flush())
}

func deleteNetns(w *world) {
	w.Helper()
	path := filepath.Join(w.dir, "run", "netns", *w.view("a").InstanceID)
	w.must(unix.Unmount(path, unix.MNT_DETACH))
	w.must(os.Remove(path))
}

func clearRunDir(w *world) {
	w.Helper()
	id := *w.view("a").InstanceID
	deleteNetns(w)
	for _, dir := range []string{"instances", "containers"} {
		w.must(os.RemoveAll(filepath.Join(w.dir, "run", dir, id)))
	}
}

func liftLimits(w *world) {
	w.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/pids/*-%s/%s/pids.max", "/sys/fs/cgroup/*-%s/%s/pids.max"} {
		files, err := filepath.Glob(fmt.Sprintf(pattern, w.short(), *w.view("a").InstanceID))
		w.must(err)
		for _, f := range files {
			w.must(os.WriteFile(f, []byte("max"), 0))
			return
		}
	}
	w.Fatal("sandbox.a has no pids.max")
}
