//go:build failpoints

package host

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// verb is a method of runtime.Host that is made to fail at each of its steps. Before
// each time setUp brings about the same state, and tearDown ends it.
type verb struct {
	name   string
	object string // what an error must name
	setUp  func()
	do     func(context.Context) error
	done   func() // asserts that it has happened, and once
	// failed asserts what is promised of a call that fails; nil: only that it can be
	// called again. before is the footprint when it was called.
	failed   func(before []string)
	tearDown func()
	// tolerates are points whose failure need not be the verb's, and why.
	tolerates map[string]string
}

var errnos = []string{"ENOSPC", "EBUSY", "EPERM", "ENOMEM"}

// pass is a point and how often the verb passes it.
type pass struct {
	name  string
	when  string // "before" or "after"
	times int
}

// learn does the verb once and returns the steps that it passes, in order.
func (w *faultWorld) learn(v verb) (passed []pass) {
	w.t.Helper()
	v.setUp()
	stop := failpoint.Watch(func(name, when string) {
		if i := slices.IndexFunc(passed, func(p pass) bool { return p.name == name && p.when == when }); i >= 0 {
			passed[i].times++
		} else if when != "at" {
			passed = append(passed, pass{name, when, 1})
		}
	})
	err := v.do(w.ctx)
	stop()
	w.must(err)
	v.done()
	v.tearDown()
	return passed
}

// fails makes each step of the verb fail: before it, with each of errnos in turn, and
// after it, as a time-out behind which it has happened. It returns how often.
func (w *faultWorld) fails(v verb) (runs int) {
	w.t.Helper()
	full := os.Getenv("PINFOLD_CRASH") == "full"
	for i, p := range w.learn(v) {
		key := p.name + p.when
		if failed[key] && i%8 != 0 && !full {
			continue
		}
		failed[key] = true
		for _, n := range slices.Compact([]int{1, p.times}) {
			whats := []string{"ETIMEDOUT"}
			if p.when == "before" {
				whats = []string{errnos[(i+n)%len(errnos)]}
				if full {
					whats = errnos
				}
			}
			for _, what := range whats {
				w.failsAt(v, fmt.Sprintf("%s@%s:%d=%s", p.name, p.when, n, what), n == 1)
				runs++
			}
		}
	}
	return runs
}

// failed is what has been through in one verb: point, and "before" or "after". In
// another only every eighth is.
var failed = map[string]bool{}

// failsAt is a test of its own. must tells that the point is passed for certain.
func (w *faultWorld) failsAt(v verb, point string, must bool) {
	w.t.Run(v.name+" with "+point, func(t *testing.T) {
		defer func(outer *testing.T) { w.t = outer }(w.t)
		w.t = t
		v.setUp()
		before := w.footprint()
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		release := failpoint.Arm(point)
		err := v.do(ctx)
		struck := release()
		name, _, _ := strings.Cut(point, "@")
		_, errno, _ := strings.Cut(point, "=")
		switch {
		case !struck && must:
			t.Errorf("it was not passed")
		case err != nil && !struck:
			t.Errorf("it was not passed, and: %v", err)
		case err == nil && struck && v.tolerates[name] == "":
			t.Errorf("no error")
		case err != nil:
			if !errors.Is(err, errnoOf(errno)) || !strings.Contains(err.Error(), v.object) {
				t.Errorf("the error does not say that it is %s, or not of %s: %v", errno, v.object, err)
			}
			// What could not be cleared away is by whoever builds there next.
			if v.failed != nil && !strings.HasPrefix(name, "host.place.") {
				v.failed(before)
			}
			if err := v.do(ctx); err != nil {
				t.Errorf("called again: %v", err)
			}
		}
		v.done()
		v.tearDown()
		if t.Failed() {
			t.Logf("its error: %v", err)
		}
	})
}

func errnoOf(name string) unix.Errno {
	for e := unix.Errno(1); e < 200; e++ {
		if unix.ErrnoName(e) == name {
			return e
		}
	}
	panic("no errno " + name)
}

// faultWorld is a world with a network, a volume and an instance that uses all there
// is. Nothing else runs in this process: points are armed for all of it.
type faultWorld struct {
	*world
	net runtime.Network
	in  runtime.Instance
	up  []string // footprint of the world with nothing in it
}

func newFaultWorld(t *testing.T) *faultWorld {
	t.Helper()
	h, dir := openTest(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	img, err := h.PrepareImage(ctx, runtime.ImageSource{Kind: "host"})
	if err != nil {
		t.Fatal(err)
	}
	w := &faultWorld{world: &world{t, h, dir, img, ctx}}
	h.resolvers = []string{filepath.Join(dir, "resolv.conf")}
	w.must(os.WriteFile(h.resolvers[0], []byte("nameserver 192.0.2.53\n"), 0o644))
	w.must(os.Mkdir(filepath.Join(dir, "path"), 0o755))
	w.net = w.network()
	w.must(h.EnsureVolume(ctx, runtime.Volume{ID: "data"}))
	port, err := h.CheckPort(ctx, netip.MustParseAddr("127.0.0.1"), 0, "udp")
	w.must(err)
	in := w.instance(1, "echo up; trap 'echo usr1' USR1; while :; do sleep 0.05; done")
	in.WorkingDir, in.User = "/made/here", "1000:1000"
	in.Limits = runtime.Limits{Memory: 512 << 20, PIDs: 64}
	in.Mounts = []runtime.Mount{
		{Kind: "volume", Source: "data", Path: "/data"}, {Kind: "tmpfs", Path: "/scratch", Size: 1 << 20},
		{Kind: "host", Source: filepath.Join(dir, "path"), Root: dir, Path: "/path"},
	}
	in.Files = []runtime.File{{Path: "/app/conf", Content: []byte("conf\n"), Mode: 0o644}}
	in.Net = &runtime.Attachment{Network: w.net, Address: netip.PrefixFrom(w.net.Gateway.Next(), 24)}
	in.Forwards = []runtime.Forward{{Name: "dns", Protocol: "udp", HostAddr: netip.MustParseAddr("127.0.0.1"), HostPort: port, ContainerPort: 53}}
	w.in = in
	// What is made once for all.
	w.start(in)
	w.must(h.Remove(ctx, in.ID))
	w.reset()
	return w
}

// reset notes what there is when nothing is in the world. The volume is as new.
func (w *faultWorld) reset() {
	w.t.Helper()
	w.must(os.Lchown(w.h.volumeDir("data"), 0, 0))
	w.settle()
	w.up = w.footprint()
}

// settle waits for links that go by themselves.
func (w *faultWorld) settle() {
	w.t.Helper()
	w.wait("links of instances gone", func() bool {
		links, _ := filepath.Glob("/sys/class/net/p" + w.h.opts.ShortID + "*")
		return len(links) == 0
	})
}

// clean removes the instances and asserts that nothing of them is left.
func (w *faultWorld) clean(ids ...string) {
	w.t.Helper()
	for _, id := range ids {
		w.must(w.h.Remove(w.ctx, id))
	}
	w.must(os.Lchown(w.h.volumeDir("data"), 0, 0))
	w.settle()
	d := slices.DeleteFunc(differences(w.up, w.footprint()), func(s string) bool {
		// What could not be cleared away of a copy goes with this process.
		return strings.Contains(s, "/instances/copy-")
	})
	if len(d) > 0 {
		w.t.Errorf("left behind:\n%s", strings.Join(d, "\n"))
	}
}

// unchanged asserts that a call which failed has left the host as it was, but for
// what holds one of the words.
func (w *faultWorld) unchanged(but ...string) func(before []string) {
	return func(before []string) {
		w.t.Helper()
		if w.in.Net != nil && !slices.ContainsFunc(before, func(s string) bool { return strings.HasPrefix(s, "link p") }) {
			w.settle()
		}
		d := slices.DeleteFunc(differences(before, w.footprint()), func(s string) bool {
			return slices.ContainsFunc(but, func(b string) bool { return strings.Contains(s, b) })
		})
		if len(d) > 0 {
			w.t.Errorf("a failing call has changed:\n%s", strings.Join(d, "\n"))
		}
	}
}

// whole asserts that an instance lives with all that belongs to it, in one process.
func (w *faultWorld) whole(id string, started bool) {
	w.t.Helper()
	s := w.state(id)
	if !s.Alive || s.Started != started || s.Frozen || len(s.Missing) > 0 {
		w.t.Errorf("instance %s: %+v", id, s)
	}
	if started {
		w.waitLog(id, "up\n")
		if got := strings.Count(w.log(id), "up\n"); got != 1 {
			w.t.Errorf("the command of instance %s has run %d times", id, got)
		}
	}
}

func (w *faultWorld) dead(id string) {
	w.t.Helper()
	s := w.state(id)
	if s.Alive || s.Dying || !s.Layer {
		w.t.Errorf("instance %s: %+v", id, s)
	}
	tree, err := w.h.cgroups()
	w.must(err)
	if _, err := os.Lstat(w.h.netns(id)); err == nil || tree.exists(id) {
		w.t.Errorf("instance %s has kept its network namespace or cgroup", id)
	}
}

const marker = "echo kept > /root/marker"

// stop ends an instance with a file in its layer. It runs as root.
func (w *faultWorld) startMarkStop(in runtime.Instance) {
	w.t.Helper()
	w.start(in)
	w.marked(in.ID)
	_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	w.must(os.Lchown(w.h.volumeDir("data"), 0, 0))
	w.settle()
}

func (w *faultWorld) marked(id string) {
	w.t.Helper()
	if code, out := w.run(id, runtime.Exec{Args: []string{"sh", "-c", marker}, User: "0"}); code != 0 {
		w.t.Fatalf("%d %s", code, out)
	}
}

func (w *faultWorld) stillMarked(id string) {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.h.instanceDir(id), "upper/root/marker"))
	if err != nil || string(data) != "kept\n" {
		w.t.Errorf("the writable layer of instance %s: %q, %v", id, data, err)
	}
}

const besteffort = "what stays of it goes with something else, or cannot be had everywhere"

var mended = map[string]string{"network.port.rules": "EBUSY says that something is there, which is looked at and mended"}

func TestCreateFails(t *testing.T) {
	w := newFaultWorld(t)
	in := w.in
	tolerates := map[string]string{"host.outcome.reserve": besteffort, "host.cgroup.remove": "EBUSY is waited for"}
	maps.Copy(tolerates, mended)
	create := verb{
		name: "create", object: in.ID, setUp: func() {},
		do:       func(ctx context.Context) error { _, err := w.h.Create(ctx, in); return err },
		done:     func() { w.whole(in.ID, false) },
		failed:   w.unchanged("/volumes/data "),
		tearDown: func() { w.clean(in.ID) }, tolerates: tolerates,
	}
	runs := w.fails(create)

	again := create
	again.name = "create on a layer"
	again.setUp = func() {
		if _, err := w.h.loadRecord(in.ID); err != nil {
			w.startMarkStop(in)
		}
	}
	again.tearDown = func() {
		_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		w.must(os.Lchown(w.h.volumeDir("data"), 0, 0))
		w.settle()
	}
	again.done = func() { w.whole(in.ID, false); w.stillMarked(in.ID) }
	again.failed = func(before []string) {
		// Of an incarnation that was begun the last one's outcome is not kept.
		w.unchanged("/volumes/data ", "/work", "/outcome", "/files")(before)
		w.stillMarked(in.ID)
	}
	runs += w.fails(again)
	w.clean(in.ID)

	old := in
	old.ID = fmt.Sprintf("%012x", 2)
	old.Mark = in.Mark
	in.CarryFrom = old.ID
	carry := again
	carry.name = "create with another's layer"
	carry.setUp = func() { w.startMarkStop(old) }
	carry.failed = func(before []string) { w.unchanged("/volumes/data ")(before); w.stillMarked(old.ID) }
	carry.tearDown = func() { w.clean(in.ID, old.ID) }
	runs += w.fails(carry)
	t.Logf("%d failures", runs)
}

func TestStartPauseAndStopFail(t *testing.T) {
	w := newFaultWorld(t)
	in := w.in
	tearDown := func() { w.clean(in.ID) }
	running := func() { w.start(in); w.waitLog(in.ID, "up\n") }
	frozen := func() { running(); w.must(w.h.Pause(w.ctx, in.ID)) }
	stop := func(ctx context.Context) error {
		_, err := w.h.Stop(ctx, in.ID, runtime.StopOptions{Grace: 200 * time.Millisecond})
		return err
	}
	runs := 0
	for _, v := range []verb{
		{
			name: "start", setUp: func() { w.create(in) },
			do:        func(ctx context.Context) error { return w.h.Start(ctx, in.ID) },
			done:      func() { w.whole(in.ID, true) },
			tolerates: map[string]string{"host.fifo.remove": besteffort, "host.init.exec": "that the command runs is seen"},
		},
		{
			name: "pause", setUp: running,
			do: func(ctx context.Context) error { return w.h.Pause(ctx, in.ID) },
			done: func() {
				if s := w.state(in.ID); !s.Alive || !s.Frozen {
					w.t.Errorf("paused: %+v", s)
				}
			},
		},
		{
			name: "resume", setUp: frozen,
			do:   func(ctx context.Context) error { return w.h.Resume(ctx, in.ID) },
			done: func() { w.whole(in.ID, true) },
		},
		{name: "stop", setUp: running, do: stop, done: func() { w.dead(in.ID) }, tolerates: map[string]string{"host.cgroup.remove": "EBUSY is waited for"}},
		{name: "stop of a frozen one", setUp: frozen, do: stop, done: func() { w.dead(in.ID) }, tolerates: map[string]string{"host.cgroup.remove": "EBUSY is waited for"}},
		{name: "stop of a created one", setUp: func() { w.create(in) }, do: stop, done: func() { w.dead(in.ID) }, tolerates: map[string]string{"host.cgroup.remove": "EBUSY is waited for"}},
		{
			name: "remove", setUp: running,
			do:        func(ctx context.Context) error { return w.h.Remove(ctx, in.ID) },
			done:      func() {},
			tolerates: map[string]string{"host.cgroup.remove": "EBUSY is waited for"},
		},
	} {
		v.object, v.tearDown = in.ID, tearDown
		runs += w.fails(v)
	}
	t.Logf("%d failures", runs)
}

func TestUpdateAndRepairFail(t *testing.T) {
	w := newFaultWorld(t)
	in := w.in
	changed := in
	changed.Limits = runtime.Limits{Memory: 256 << 20, PIDs: 32, CPU: 1}
	changed.Forwards = slices.Clone(in.Forwards)
	changed.Forwards[0].ContainerPort = 54
	tearDown := func() { w.clean(in.ID) }
	hurt := func(what func()) func() {
		return func() {
			w.start(in)
			w.waitLog(in.ID, "up\n")
			what()
		}
	}
	repair := func(ctx context.Context) error { return w.h.Repair(ctx, in) }
	sound := func() {
		w.whole(in.ID, true)
		w.shOK(in.ID, "true")
	}
	delLink := func() {
		for _, l := range w.ownLinks() {
			if strings.HasPrefix(l.Attrs().Name, "p") {
				w.must(netlink.LinkDel(l))
			}
		}
	}
	runs := 0
	for _, v := range []verb{
		{
			name: "update", setUp: hurt(func() {}),
			do: func(ctx context.Context) error { return w.h.Update(ctx, changed) },
			done: func() {
				w.whole(in.ID, true)
				tree, err := w.h.cgroups()
				w.must(err)
				if ok, err := tree.limitsHold(in.ID, changed.Limits, true); err != nil || !ok {
					w.t.Errorf("limits: %v, %v", ok, err)
				}
				if rec, err := w.h.loadRecord(in.ID); err != nil || rec.Instance.Limits != changed.Limits || !slices.Equal(rec.Instance.Forwards, changed.Forwards) {
					w.t.Errorf("record: %+v, %v", rec, err)
				}
			},
		},
		{
			name: "update of a created one", setUp: func() { w.create(in) },
			do:   func(ctx context.Context) error { return w.h.Update(ctx, changed) },
			done: func() { w.whole(in.ID, false) },
		},
		{name: "repair of the run directory", done: sound, do: repair, setUp: hurt(func() {
			w.must(os.RemoveAll(w.h.runDir(in.ID)))
			w.must(os.RemoveAll(filepath.Join(w.h.containers(), in.ID)))
			s := w.state(in.ID)
			w.h.Recall(in.ID, s.Process, in.Mark)
		})},
		{name: "repair of a name", done: sound, do: repair, setUp: hurt(func() {
			w.must(unix.Unmount(w.h.netns(in.ID), unix.MNT_DETACH))
			w.must(os.Remove(w.h.netns(in.ID)))
		})},
		{name: "repair of a link", done: sound, do: repair, tolerates: mended, setUp: hurt(delLink)},
		{name: "repair of rules and link", done: sound, do: repair, tolerates: mended, setUp: hurt(func() {
			w.must(w.h.net.Detach(w.ctx, in.ID, in.Net, nil)) // the namespace lives on
		})},
	} {
		v.object, v.tearDown = in.ID, tearDown
		runs += w.fails(v)
	}
	t.Logf("%d failures", runs)
}

func TestSignalExecAndCopyFail(t *testing.T) {
	w := newFaultWorld(t)
	in := w.in
	w.start(in)
	w.waitLog(in.ID, "up\n")
	var sleeper runtime.ExecProcess
	sleeps := func() {
		var err error
		sleeper, err = w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"sleep", "1000"}})
		w.must(err)
	}
	ended := func(code int) func() {
		return func() {
			if got, err := sleeper.Wait(); err != nil || got != code {
				w.t.Errorf("code %d, %v; want %d", got, err, code)
			}
		}
	}
	idle := func() {
		w.wait("nothing but the instance's own processes", func() bool { return w.count(in.ID) <= 3 })
	}
	items := []item{
		file("new/a/file", "one"), file("new/a/file", "two"), special(tar.TypeDir, "new/dir", ""), special(tar.TypeLink, "new/link", "new/a/file"),
		special(tar.TypeSymlink, "new/symlink", "a/file"), special(tar.TypeFifo, "new/fifo", ""),
	}
	copied := func() {
		if got := w.shOK(in.ID, "cd /data/new; cat a/file link symlink; test -p fifo -a -d dir && echo and rest"); got != "twotwotwoand rest\n" {
			w.t.Errorf("copied %q", got)
		}
	}
	runs := 0
	for _, v := range []verb{
		{
			name: "signal", object: in.ID, setUp: func() {},
			do:   func(ctx context.Context) error { return w.h.Signal(ctx, in.ID, int(unix.SIGUSR1)) },
			done: func() { w.waitLog(in.ID, "usr1\n") }, tearDown: func() {},
		},
		{
			name: "exec", object: in.ID,
			setUp: func() { w.must(os.RemoveAll(filepath.Join(w.h.runDir(in.ID), "entrance"))) },
			do: func(ctx context.Context) error {
				p, err := w.h.Exec(ctx, in.ID, runtime.Exec{Args: []string{"sh", "-c", "echo here > /data/exec"}, User: "0"})
				if err != nil {
					return err
				}
				_, err = p.Wait()
				return err
			},
			failed: func([]string) { idle() },
			done: func() {
				if got := w.shOK(in.ID, "cat /data/exec; rm -f /data/exec"); got != "here\n" {
					w.t.Errorf("exec wrote %q", got)
				}
			},
			tearDown: idle,
			// It is made anew, and removed, by whoever builds there next.
			tolerates: map[string]string{"host.place.remove": besteffort, "host.place.private": besteffort, "host.place.detach": besteffort},
		},
		{
			name: "kill of an exec", setUp: sleeps, tearDown: idle, object: "process",
			do: func(context.Context) error { return sleeper.Kill() }, done: ended(137),
		},
		{
			name: "signal to an exec", setUp: sleeps, tearDown: idle, object: "process",
			do: func(context.Context) error { return sleeper.Signal(int(unix.SIGTERM)) }, done: ended(143),
		},
		{
			name: "copy in", object: in.ID, setUp: func() {},
			do:     func(ctx context.Context) error { return w.h.CopyIn(ctx, in.ID, "/data", archive(w.t, items...)) },
			failed: func([]string) { w.noCopyLeft() }, done: copied,
			tearDown: func() { w.run(in.ID, runtime.Exec{Args: []string{"rm", "-rf", "/data/new"}, User: "0"}) },
		},
	} {
		runs += w.fails(v)
	}
	// One at rest, whose root cannot be written to.
	_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	in.ReadOnlyRoot, in.WorkingDir = true, ""
	w.create(in)
	_, err = w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	runs += w.fails(verb{
		name: "copy into one at rest", object: in.ID, setUp: func() {},
		do: func(ctx context.Context) error {
			return w.h.CopyIn(ctx, in.ID, "/data", archive(w.t, file("rest", "rest")))
		},
		failed: func([]string) {
			w.noCopyLeft()
			w.unchanged("/files", "/volumes")(w.footprint())
		},
		done: func() {
			got, err := os.ReadFile(filepath.Join(w.h.volumeDir("data"), "rest"))
			if err != nil || string(got) != "rest" {
				w.t.Errorf("copied %q, %v", got, err)
			}
		},
		tearDown: func() { w.must(os.Remove(filepath.Join(w.h.volumeDir("data"), "rest"))) },
	})
	w.must(os.RemoveAll(filepath.Join(w.h.volumeDir("data"), "new")))
	w.clean(in.ID)
	t.Logf("%d failures", runs)
}

func special(kind byte, name, to string) item {
	return item{tar.Header{Typeflag: kind, Name: name, Linkname: to, Mode: 0o755}, ""}
}

func TestNetworkAndVolumeFail(t *testing.T) {
	w := newFaultWorld(t)
	in := w.in
	extra := w.net
	extra.ID, extra.Address = "0000000b", "network.extra"
	used, err := w.h.PrefixesInUse(w.ctx)
	w.must(err)
	for used = append(used, w.net.CIDR); slices.ContainsFunc(used, extra.CIDR.Overlaps); {
		extra.CIDR = netip.PrefixFrom(nextBlock(extra.CIDR.Addr()), 24)
		extra.Gateway = extra.CIDR.Addr().Next()
	}
	internet := w.net
	internet.Internet = true
	ensure := func(n *runtime.Network) func(context.Context) error {
		return func(ctx context.Context) error { return w.h.EnsureNetwork(ctx, *n) }
	}
	there := func(n *runtime.Network) func() {
		return func() {
			o, err := w.h.Observe(w.ctx)
			w.must(err)
			if s := o.Networks[n.ID]; !s.Exists || len(s.Missing) > 0 {
				w.t.Errorf("network: %+v", s)
			}
		}
	}
	remove := func() { w.must(w.h.RemoveNetwork(w.ctx, extra)); w.clean() }
	runs := 0
	for _, v := range []verb{
		{
			name: "ensure network", object: "network.extra", setUp: func() {},
			do: ensure(&extra), done: there(&extra), failed: w.unchanged(), tearDown: remove,
		},
		{
			name: "remove network", object: "network.extra", setUp: func() { w.must(ensure(&extra)(w.ctx)) },
			do:   func(ctx context.Context) error { return w.h.RemoveNetwork(ctx, extra) },
			done: func() { w.clean() }, tearDown: func() { w.clean() },
		},
		{
			name: "change a network in use", object: "", setUp: func() { w.start(in) },
			do: ensure(&internet),
			done: func() {
				there(&internet)()
				if got := w.shOK(in.ID, "cat /etc/resolv.conf"); got != "nameserver 192.0.2.53\n" {
					w.t.Errorf("name servers %q", got)
				}
			},
			tearDown: func() { w.must(ensure(&w.net)(w.ctx)); w.clean(in.ID) },
		},
		{
			name: "ensure volume", object: "extra", setUp: func() {},
			do: func(ctx context.Context) error { return w.h.EnsureVolume(ctx, runtime.Volume{ID: "extra"}) },
			done: func() {
				if st, err := os.Lstat(w.h.volumeDir("extra")); err != nil || !st.IsDir() || st.Mode().Perm() != 0o755 {
					w.t.Errorf("volume: %v, %v", st, err)
				}
			},
			tearDown: func() { w.must(w.h.RemoveVolume(w.ctx, "extra")); w.clean() },
		},
		{
			name: "remove volume", object: "extra", setUp: func() {
				w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "extra"}))
				w.must(os.WriteFile(filepath.Join(w.h.volumeDir("extra"), "file"), nil, 0o600))
			},
			do:   func(ctx context.Context) error { return w.h.RemoveVolume(ctx, "extra") },
			done: func() { w.clean() }, tearDown: func() { w.clean() },
		},
	} {
		runs += w.fails(v)
	}
	t.Logf("%d failures", runs)
}

func nextBlock(a netip.Addr) netip.Addr {
	b := a.As4()
	if b[2]++; b[2] == 0 {
		b[1]++
	}
	return netip.AddrFrom4(b)
}

func TestPublishFails(t *testing.T) {
	w := newFaultWorld(t)
	port, err := w.h.CheckPort(w.ctx, netip.MustParseAddr("127.0.0.1"), 0, "tcp")
	w.must(err)
	f := runtime.Forward{Name: "web", Protocol: "tcp", HostAddr: netip.MustParseAddr("127.0.0.1"), HostPort: port, ContainerPort: 80}
	address := netip.AddrPortFrom(f.HostAddr, port).String()
	var closer io.Closer
	slow := func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	runs := w.fails(verb{
		name: "publish", object: " ", setUp: func() {},
		do: func(context.Context) (err error) {
			closer, err = w.h.Publish(f, slow, func() {})
			return err
		},
		failed: func([]string) {
			if c, err := net.Dial("tcp", address); err == nil {
				c.Close()
				w.t.Error("a port that was not published is served")
			}
		},
		done: func() {
			c, err := net.Dial("tcp", address)
			w.must(err)
			c.Close()
		},
		tearDown: func() { w.must(closer.Close()) },
	})
	t.Logf("%d failures", runs)
}

// TestOpenAndCloseFail: what is made once for all, and taken away by the last.
func TestOpenAndCloseFail(t *testing.T) {
	w := newFaultWorld(t)
	in := w.instance(1, "true")
	root := t.TempDir() // an image with nothing in it: the command is never started
	w.must(os.Mkdir(filepath.Join(root, "etc"), 0o755))
	var h *Host
	var o Options
	fresh := func() { h, o = nil, testOptions(w.t, w.t.TempDir()) }
	open := func() (err error) {
		if h == nil {
			h, err = Open(o)
		}
		return err
	}
	use := func(ctx context.Context) (err error) {
		if err = open(); err != nil {
			return err
		}
		if in.Image, err = h.PrepareImage(ctx, runtime.ImageSource{Kind: "dir", Path: root}); err != nil {
			return err
		}
		if _, err = h.Create(ctx, in); err != nil {
			return err
		}
		return h.Remove(ctx, in.ID)
	}
	// What one that fails to close leaves, the next takes along.
	clean := func() {
		w.must(open())
		w.must(h.Close())
		checkClean(w.t, o)
	}
	nothing := func() {}
	runs := w.fails(verb{
		name: "first use", object: " ", setUp: fresh, do: use, done: nothing, tearDown: clean,
		tolerates: map[string]string{"host.outcome.reserve": besteffort, "host.cgroup.remove": "EBUSY is waited for"},
	})
	runs += w.fails(verb{
		name: "first use of the host's root", object: " ", setUp: fresh, tearDown: clean,
		do: func(ctx context.Context) error {
			if err := open(); err != nil {
				return err
			}
			_, err := h.PrepareImage(ctx, runtime.ImageSource{Kind: "host"})
			return err
		},
		done: func() {
			c, err := planCover(w.ctx, o.StateDir, o.RunDir)
			w.must(err)
			w.must(h.stage.run(func() error {
				_, err := os.Lstat(h.stage.coverDir(c, 0))
				return err
			}))
		},
		tolerates: map[string]string{"host.cover.discard": besteffort},
	})
	runs += w.fails(verb{
		name: "close", object: " ", setUp: func() { fresh(); w.must(use(w.ctx)) },
		do: func(context.Context) error {
			if err := open(); err != nil {
				return err
			}
			last := h
			h = nil
			return last.Close()
		},
		done: clean, tearDown: nothing,
		tolerates: map[string]string{"host.parent.remove": "one in use is left"},
	})
	t.Logf("%d failures", runs)
}
