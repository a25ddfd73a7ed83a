package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pinfold/runtime"
)

// bound is how long the suite waits for a condition, and for one test's calls
// together. It only turns a hang into a failure.
const bound = 2 * time.Minute

// world is one subtest's machine and what the subtest made on it.
type world struct {
	*testing.T
	Subject
	ctx   context.Context
	h     runtime.Host
	image runtime.Image

	loopback netip.Addr // an address of this machine that no other subtest uses

	handles   []runtime.Host
	instances []string
	networks  []runtime.Network
	volumes   []string
}

func newWorld(t *testing.T, s Subject) *world {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	w := &world{T: t, Subject: s, ctx: ctx}
	w.loopback = netip.AddrFrom4([4]byte{127, byte(1 + random(250)), byte(random(256)), byte(1 + random(250))})
	t.Cleanup(func() {
		defer cancel()
		w.cleanUp()
	})
	w.h = w.open()
	var err error
	w.image, err = w.h.PrepareImage(ctx, s.Image)
	w.must(err)
	return w
}

// open gives a handle of the first lineage.
func (w *world) open() runtime.Host { return w.keep(w.Open(w.T)) }

// openOther gives a handle of the other lineage.
func (w *world) openOther() runtime.Host { return w.keep(w.OpenOther(w.T)) }

// keep makes sure that the handle is closed in the end.
func (w *world) keep(h runtime.Host) runtime.Host {
	w.handles = append(w.handles, h)
	return h
}

// close closes a handle now.
func (w *world) close(h runtime.Host) {
	w.Helper()
	w.handles = slices.DeleteFunc(w.handles, func(k runtime.Host) bool { return k == h })
	w.must(h.Close())
}

// cleanUp removes what the subtest made and proves that nothing is left.
func (w *world) cleanUp() {
	if w.h == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	for _, id := range w.instances {
		if err := w.h.Remove(ctx, id); err != nil {
			w.Errorf("clean-up: %v", err)
		}
	}
	for _, n := range w.networks {
		if err := w.h.RemoveNetwork(ctx, n); err != nil {
			w.Errorf("clean-up: %v", err)
		}
	}
	for _, id := range w.volumes {
		if err := w.h.RemoveVolume(ctx, id); err != nil {
			w.Errorf("clean-up: %v", err)
		}
	}
	o, err := w.h.Observe(ctx)
	if err != nil {
		w.Errorf("clean-up: %v", err)
	}
	if len(o.Instances) > 0 || len(o.Volumes) > 0 {
		w.Errorf("after everything was removed, Observe sees instances %v and volumes %v", o.Instances, o.Volumes)
	}
	for id, n := range o.Networks {
		if n.Exists {
			w.Errorf("after everything was removed, Observe sees network %s", id)
		}
	}
	for _, h := range w.handles {
		if err := h.Close(); err != nil {
			w.Errorf("close: %v", err)
		}
	}
	if left := w.Leftovers(w.T); len(left) > 0 {
		w.Errorf("left over:\n%s", strings.Join(left, "\n"))
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// fails asserts that err wraps want; nil want: any error.
func (w *world) fails(what string, err, want error) {
	w.Helper()
	switch {
	case err == nil:
		w.Errorf("%s succeeded, want an error: %v", what, want)
	case want != nil && !errors.Is(err, want):
		w.Errorf("%s: %v; want an error that wraps %q", what, err, want)
	}
}

// dockerCapabilities is what Docker leaves to a container's root.
var dockerCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// instance describes a new instance that runs command, with a user namespace
// and everything else at its default.
func (w *world) instance(command []string) runtime.Instance {
	id := randomHex(12)
	w.instances = append(w.instances, id)
	return runtime.Instance{
		ID:           id,
		Mark:         runtime.Mark{UID: "uid-" + id, Address: "sandbox.test" + id},
		Image:        w.image,
		Command:      command,
		Hostname:     "test",
		IDs:          runtime.IDRange{Base: 0x10000 * (16 + uint32(len(w.instances))), Size: 0x10000},
		Capabilities: dockerCapabilities,
		Seccomp:      "default",
	}
}

// network describes and makes a new network in a range that nobody uses.
func (w *world) network() runtime.Network {
	w.Helper()
	used, err := w.h.PrefixesInUse(w.ctx)
	w.must(err)
	for range 1000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(100 + random(150)), byte(random(256)), 0}), 24)
		free := true
		for _, u := range used {
			free = free && (u.Bits() == 0 || !u.Overlaps(p))
		}
		if !free {
			continue
		}
		n := runtime.Network{ID: randomHex(8), Address: "network.test", CIDR: p, Gateway: p.Addr().Next()}
		w.networks = append(w.networks, n)
		w.must(w.h.EnsureNetwork(w.ctx, n))
		return n
	}
	w.Fatal("no range is free for a network")
	return runtime.Network{}
}

// attach puts the instance on the network as its nth member, from 0.
func attach(in *runtime.Instance, n runtime.Network, nth int) {
	addr := n.Gateway
	for range nth + 1 {
		addr = addr.Next()
	}
	in.Net = &runtime.Attachment{Network: n, Address: netip.PrefixFrom(addr, n.CIDR.Bits())}
}

func (w *world) volume() string {
	w.Helper()
	id := randomHex(12)
	w.volumes = append(w.volumes, id)
	w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: id}))
	return id
}

func (w *world) create(in runtime.Instance) runtime.Process {
	w.Helper()
	p, err := w.h.Create(w.ctx, in)
	w.must(err)
	return p
}

// up creates and starts.
func (w *world) up(in runtime.Instance) runtime.Process {
	w.Helper()
	p := w.create(in)
	w.must(w.h.Start(w.ctx, in.ID))
	return p
}

// ready creates and starts a command that prints "ready", and waits for that.
func (w *world) ready(in runtime.Instance) runtime.Process {
	w.Helper()
	p := w.up(in)
	w.eventually("the command is ready", func() bool { return strings.Contains(w.log(in.ID), "ready\n") })
	return p
}

// state is what Observe says of the instance, after a check that Inspect says the same.
func (w *world) state(id string) runtime.InstanceState {
	w.Helper()
	s, _ := w.look(id)
	return s
}

// look is state, and whether anything of the instance is there. What changes
// between the two looks is looked at again.
func (w *world) look(id string) (runtime.InstanceState, bool) {
	w.Helper()
	for try := 0; ; try++ {
		o, err := w.h.Observe(w.ctx)
		w.must(err)
		all, known := o.Instances[id]
		one, found, err := w.h.Inspect(w.ctx, id)
		w.must(err)
		missing := all.Missing
		all.Missing, one.Missing = nil, nil
		same := known == found && reflect.DeepEqual(all, one)
		if same {
			all.Missing = missing
			return all, known
		}
		if try == 5 {
			w.Fatalf("Observe says %v %+v of instance %s, Inspect says %v %+v", known, all, id, found, one)
		}
	}
}

// exits waits for the process's end and returns the instance's state then.
func (w *world) exits(id string, p runtime.Process) runtime.InstanceState {
	w.Helper()
	w.must(w.h.WaitExit(w.ctx, id, p))
	s := w.state(id)
	if s.Alive {
		w.Fatalf("after WaitExit, instance %s is alive: %+v", id, s)
	}
	return s
}

func (w *world) stop(id string) *runtime.Outcome {
	w.Helper()
	out, err := w.h.Stop(w.ctx, id, runtime.StopOptions{Grace: bound})
	w.must(err)
	return out
}

// run executes a command inside and returns its code and standard output.
func (w *world) run(id string, command []string) (int, string) {
	w.Helper()
	code, out, _ := w.exec(id, runtime.Exec{Args: command})
	return code, out
}

// exec runs e to its end and returns its code and both outputs.
func (w *world) exec(id string, e runtime.Exec) (code int, stdout, stderr string) {
	w.Helper()
	read := func(to **os.File) (func() string, *os.File) {
		r, wr, err := os.Pipe()
		w.must(err)
		*to = wr
		text := make(chan string, 1)
		go func() {
			defer r.Close()
			b, _ := io.ReadAll(r)
			text <- string(b)
		}()
		return func() string { return <-text }, wr
	}
	outText, outEnd := read(&e.Stdout)
	errText, errEnd := read(&e.Stderr)
	p, err := w.h.Exec(w.ctx, id, e)
	if err == nil {
		code, err = p.Wait()
	}
	outEnd.Close()
	errEnd.Close()
	stdout, stderr = outText(), errText()
	if err != nil {
		w.Fatalf("exec %q: %v", e.Args, err)
	}
	return code, stdout, stderr
}

// reads asserts what a file inside holds.
func (w *world) reads(id, path, want string) {
	w.Helper()
	if code, got := w.run(id, w.Commands.Cat(path)); code != 0 || got != want {
		w.Errorf("%s holds %q (code %d), want %q", path, got, code, want)
	}
}

// absent asserts that a file inside does not exist.
func (w *world) absent(id, path string) {
	w.Helper()
	if code, got := w.run(id, w.Commands.Cat(path)); code == 0 {
		w.Errorf("%s is there and holds %q", path, got)
	}
}

func (w *world) writes(id, path, text string) {
	w.Helper()
	if code, _ := w.run(id, w.Commands.Write(path, text)); code != 0 {
		w.Fatalf("writing %s ended with code %d", path, code)
	}
}

func (w *world) log(id string) string {
	w.Helper()
	f, err := w.h.OpenLog(w.ctx, id)
	w.must(err)
	defer f.Close()
	b, err := io.ReadAll(f)
	w.must(err)
	return string(b)
}

// eventually polls the condition.
func (w *world) eventually(what string, cond func() bool) {
	w.Helper()
	for !cond() {
		if w.ctx.Err() != nil {
			w.Fatalf("still not so after %s: %s", bound, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func random(n int64) int64 {
	v, err := rand.Int(rand.Reader, big.NewInt(n))
	if err != nil {
		panic(fmt.Sprintf("no random numbers: %v", err))
	}
	return v.Int64()
}

func randomHex(n int) string {
	b := make([]byte, n/2)
	rand.Read(b)
	return hex.EncodeToString(b)
}
