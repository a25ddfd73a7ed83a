package host

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"pinfold/runtime"
	_ "pinfold/runtime/host/boot"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "role:") {
		os.Exit(playRole(strings.TrimPrefix(os.Args[1], "role:"), os.Args[2:]))
	}
	os.Exit(m.Run())
}

// dockerCapabilities are the 14 that Docker leaves a container.
var dockerCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

func testInstance(id string, img runtime.Image) runtime.Instance {
	return runtime.Instance{
		ID: id, Mark: runtime.Mark{UID: "uid-" + id, Address: "sandbox." + id}, Image: img,
		IDs: runtime.IDRange{Base: 1 << 20, Size: 65536}, Capabilities: dockerCapabilities, Seccomp: "default",
	}
}

// openTest opens a host with directories and a lineage of its own. When the
// test ends it checks that nothing bearing the lineage's mark is left.
func openTest(t testing.TB, trace func(string, time.Duration)) (*Host, string) {
	t.Helper()
	dir := t.TempDir()
	o := testOptions(t, dir)
	o.Trace = trace
	h, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		removeAll(t, h)
		if err := h.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		checkClean(t, o)
	})
	return h, dir
}

func testOptions(t testing.TB, dir string) Options {
	var id [16]byte
	rand.Read(id[:])
	s := hex.EncodeToString(id[:])
	return Options{StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Lineage: s, ShortID: s[:6], CgroupParent: "pfhosttest"}
}

// removeAll removes what Observe still finds.
func removeAll(t testing.TB, h *Host) {
	t.Helper()
	ctx := context.Background()
	o, err := h.Observe(ctx)
	if err != nil {
		t.Errorf("observe: %v", err)
		return
	}
	for id := range o.Instances {
		if err := h.Remove(ctx, id); err != nil {
			t.Errorf("remove %s: %v", id, err)
		}
	}
	for id := range o.Volumes {
		if err := h.RemoveVolume(ctx, id); err != nil {
			t.Errorf("remove volume %s: %v", id, err)
		}
	}
	if o, err := h.Observe(ctx); err != nil || len(o.Instances) > 0 || len(o.Volumes) > 0 {
		t.Errorf("after removing everything: %+v, %v", o, err)
	}
}

// checkClean looks past the package, at the host itself.
func checkClean(t testing.TB, o Options) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		t.Error(err)
	}
	for _, m := range mounts {
		if within(o.StateDir, m.Mountpoint) || within(o.RunDir, m.Mountpoint) {
			t.Errorf("mount left: %s", m.Mountpoint)
		}
	}
	for _, dir := range []string{"instances", "containers", "netns"} {
		if left, _ := filepath.Glob(filepath.Join(o.RunDir, dir, "*")); len(left) > 0 {
			t.Errorf("left in the run directory: %v", left)
		}
	}
	for _, dir := range []string{"instances", "volumes"} {
		if left, _ := filepath.Glob(filepath.Join(o.StateDir, dir, "*")); len(left) > 0 {
			t.Errorf("left in the state directory: %v", left)
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup/*/*"} {
		left, _ := filepath.Glob(pattern)
		for _, p := range left {
			if strings.Contains(p, o.ShortID) {
				t.Errorf("cgroup left: %s", p)
			}
		}
	}
	links, _ := os.ReadDir("/sys/class/net")
	for _, l := range links {
		if strings.Contains(l.Name(), o.ShortID) {
			t.Errorf("link left: %s", l.Name())
		}
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && strings.Contains(string(b), o.CgroupParent+"-"+o.ShortID) {
			if state, _, err := procStat(atoi(filepath.Base(filepath.Dir(p)))); err == nil && state != 'Z' {
				t.Errorf("process left: %s: %s", p, b)
			}
		}
	}
}

func atoi(s string) int {
	n := 0
	for _, c := range s {
		n = 10*n + int(c-'0')
	}
	return n
}

// world is a host with the host image, for tests that run sandboxes.
type world struct {
	t   *testing.T
	h   *Host
	dir string
	img runtime.Image
	ctx context.Context
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	h, dir := openTest(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // an emulated machine needs minutes
	t.Cleanup(cancel)
	img, err := h.PrepareImage(ctx, runtime.ImageSource{Kind: "host"})
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, h, dir, img, ctx}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// instance is one that runs the given shell script.
func (w *world) instance(n int, script string) runtime.Instance {
	in := testInstance(fmt.Sprintf("%012x", n), w.img)
	in.Command = []string{"sh", "-c", script}
	return in
}

func (w *world) create(in runtime.Instance) runtime.Process {
	w.t.Helper()
	p, err := w.h.Create(w.ctx, in)
	w.must(err)
	return p
}

func (w *world) start(in runtime.Instance) runtime.Process {
	w.t.Helper()
	p := w.create(in)
	w.must(w.h.Start(w.ctx, in.ID))
	return p
}

func (w *world) state(id string) runtime.InstanceState {
	w.t.Helper()
	s, ok, err := w.h.Inspect(w.ctx, id)
	w.must(err)
	if !ok || s.Unknown != "" {
		w.t.Fatalf("instance %s: there %v, unknown %q", id, ok, s.Unknown)
	}
	return s
}

func (w *world) log(id string) string {
	w.t.Helper()
	b, err := os.ReadFile(filepath.Join(w.h.instanceDir(id), "log"))
	w.must(err)
	return string(b)
}

// wait polls a condition.
func (w *world) wait(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited in vain: %s", what)
		}
	}
}

func (w *world) waitLog(id, want string) {
	w.t.Helper()
	w.wait(fmt.Sprintf("%q in the log", want), func() bool { return strings.Contains(w.log(id), want) })
}

// run runs a command in a sandbox to its end.
func (w *world) run(id string, e runtime.Exec) (code int, out string) {
	w.t.Helper()
	rd, wr, err := os.Pipe()
	w.must(err)
	defer rd.Close()
	e.Stdout, e.Stderr = wr, wr
	p, err := w.h.Exec(w.ctx, id, e)
	wr.Close()
	w.must(err)
	b, err := io.ReadAll(rd)
	w.must(err)
	code, err = p.Wait()
	w.must(err)
	return code, string(b)
}

func (w *world) sh(id, script string) (int, string) {
	w.t.Helper()
	return w.run(id, runtime.Exec{Args: []string{"sh", "-c", script}})
}
