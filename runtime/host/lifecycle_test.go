package host

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

func TestFilesLogAndOutcomeOutliveTheProcess(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "echo first $(cat /kept 2>/dev/null); echo here > /kept; exit 7")
	for range 2 {
		p := w.start(in)
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		s := w.state(in.ID)
		if s.Alive || s.Outcome == nil || s.Outcome.ExitCode != 7 || s.Outcome.Signal != 0 || s.Outcome.Outside != 0 {
			t.Fatalf("after the end: %+v, outcome %+v", s, s.Outcome)
		}
		out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		if out == nil || out.ExitCode != 7 || out.At.IsZero() {
			t.Fatalf("outcome %+v", out)
		}
	}
	if got := w.log(in.ID); got != "first\nfirst here\n" {
		t.Errorf("log %q", got)
	}
}

// TestLogIsWholeAndNotTheWorkloads: programs open /dev/stdout anew, as another
// user too, and write a lot right before they end.
func TestLogIsWholeAndNotTheWorkloads(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, `echo one
echo two > /dev/stderr
echo three >> /dev/stdout
chroot --userspec=1000:1000 / sh -c 'echo four > /proc/self/fd/2'
truncate -s 0 /proc/self/fd/1 2>/dev/null
perl -e 'print "x" x 99, "\n" for 1..5000'
(sleep 1000 &)
echo last`)
	p := w.start(in)
	w.must(w.h.WaitExit(w.ctx, in.ID, p))
	want := "one\ntwo\nthree\nfour\n" + strings.Repeat(strings.Repeat("x", 99)+"\n", 5000) + "last\n"
	if got := w.log(in.ID); got != want {
		t.Errorf("log of %d bytes, want %d: %.80q", len(got), len(want), got)
	}
	var st unix.Stat_t
	w.must(unix.Stat(filepath.Join(w.h.instanceDir(in.ID), "log"), &st))
	if st.Uid != 0 || st.Mode&0o777 != 0o600 {
		t.Errorf("the log belongs to %d, mode %o", st.Uid, st.Mode)
	}
}

func TestStopAsksThenKills(t *testing.T) {
	w := newWorld(t)
	polite := w.instance(1, "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done")
	stubborn := w.instance(2, "trap '' TERM; echo ready; while :; do sleep 0.01; done")
	usr1 := w.instance(3, "trap 'exit 4' USR1; trap '' TERM; echo ready; while :; do sleep 0.01; done")
	usr1.StopSignal = int(unix.SIGUSR1)
	for _, in := range []runtime.Instance{polite, stubborn, usr1} {
		w.start(in)
		w.waitLog(in.ID, "ready")
	}
	out, err := w.h.Stop(w.ctx, polite.ID, runtime.StopOptions{Grace: 30 * time.Second})
	if err != nil || out == nil || out.ExitCode != 3 || out.Outside != int(unix.SIGTERM) || !strings.Contains(w.log(polite.ID), "bye") {
		t.Errorf("polite: %+v, %v, log %q", out, err, w.log(polite.ID))
	}
	out, err = w.h.Stop(w.ctx, usr1.ID, runtime.StopOptions{Grace: 30 * time.Second})
	if err != nil || out == nil || out.ExitCode != 4 || out.Outside != int(unix.SIGUSR1) {
		t.Errorf("own stop signal: %+v, %v", out, err)
	}
	out, err = w.h.Stop(w.ctx, stubborn.ID, runtime.StopOptions{Grace: 50 * time.Millisecond})
	if err != nil || out != nil {
		t.Errorf("stubborn: %+v, %v; want killed without an outcome", out, err)
	}
	for _, in := range []runtime.Instance{polite, stubborn, usr1} {
		if s := w.state(in.ID); s.Alive || s.Dying || !s.Layer {
			t.Errorf("stopped: %+v", s)
		}
	}
}

func TestSignalFromInsideIsNotOutside(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "kill -TERM $$; sleep 1000")
	p := w.start(in)
	w.must(w.h.WaitExit(w.ctx, in.ID, p))
	if s := w.state(in.ID); s.Outcome == nil || s.Outcome.Signal != int(unix.SIGTERM) || s.Outcome.ExitCode != 143 || s.Outcome.Outside != 0 {
		t.Errorf("outcome %+v", s.Outcome)
	}
}

// TestFrozenAndCreatedNeverRunWhenStopped: a process writing all the time is
// frozen, its file measured, and the instance stopped.
func TestFrozenAndCreatedNeverRunWhenStopped(t *testing.T) {
	w := newWorld(t)
	w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "count"}))
	for range 5 {
		in := w.instance(1, "echo ready; while :; do echo x >> /count/file; done")
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: "count", Path: "/count"}}
		w.start(in)
		file := filepath.Join(w.h.volumeDir("count"), "file")
		w.wait("the workload to write", func() bool { st, err := os.Stat(file); return err == nil && st.Size() > 0 })
		w.must(w.h.Pause(w.ctx, in.ID))
		if s := w.state(in.ID); !s.Frozen || !s.Alive {
			t.Fatalf("paused: %+v", s)
		}
		before, err := os.ReadFile(file)
		w.must(err)
		_, err = w.h.Stop(w.ctx, in.ID, runtime.StopOptions{Grace: 10 * time.Second})
		w.must(err)
		after, err := os.ReadFile(file)
		w.must(err)
		if len(before) != len(after) {
			t.Errorf("the frozen workload wrote %d bytes while it was stopped", len(after)-len(before))
		}
		w.must(os.Remove(file))
	}
	in := w.instance(2, "echo ran")
	w.create(in)
	out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{Grace: 10 * time.Second})
	if err != nil || out != nil || w.log(in.ID) != "" {
		t.Errorf("created: %+v, %v, log %q", out, err, w.log(in.ID))
	}
}

func TestPausedRefusesExecAtOnce(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	w.start(in)
	w.must(w.h.Pause(w.ctx, in.ID))
	w.must(w.h.Pause(w.ctx, in.ID))
	if _, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"true"}}); !errors.Is(err, runtime.ErrPaused) {
		t.Errorf("exec into a paused instance: %v", err)
	}
	w.must(w.h.Resume(w.ctx, in.ID))
	w.must(w.h.Resume(w.ctx, in.ID))
	if code, _ := w.sh(in.ID, "exit 5"); code != 5 {
		t.Errorf("exec after resume: %d", code)
	}
	_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	if _, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"true"}}); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("exec into a stopped instance: %v", err)
	}
	if err := w.h.Pause(w.ctx, in.ID); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("pause of a stopped instance: %v", err)
	}
}

func TestCommandThatCannotBeExecuted(t *testing.T) {
	w := newWorld(t)
	for command, word := range map[string]string{
		"no-such-program": "PATH", "/no/such": "no such program", "/etc/passwd": "not executable", "/": "not executable",
	} {
		in := w.instance(1, "")
		in.Command = []string{command}
		w.create(in)
		err := w.h.Start(w.ctx, in.ID)
		if !errors.Is(err, runtime.ErrCommand) || !strings.Contains(err.Error(), command) || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), `"host"`) {
			t.Errorf("%s: %v", command, err)
		}
		if s := w.state(in.ID); s.Alive || s.Dying || s.Outcome == nil {
			t.Errorf("%s: state %+v", command, s)
		}
		if err := w.h.Start(w.ctx, in.ID); !errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("%s: second start: %v", command, err)
		}
	}
	in := w.instance(2, "exec sleep 1000")
	w.start(in)
	if _, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"no-such-program"}}); !errors.Is(err, runtime.ErrCommand) || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("exec: %v", err)
	}
	if code, _ := w.sh(in.ID, "exit 127"); code != 127 {
		t.Errorf("a command's own 127 came out as %d", code)
	}
}

func TestExecWithTerminal(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	w.start(in)
	p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"sh", "-c", "tty; stty size; read x; stty size; exit 9"}, TTY: true, Width: 91, Height: 31})
	w.must(err)
	console := p.Console()
	defer console.Close()
	var seen strings.Builder
	until := func(want string) {
		buf := make([]byte, 4096)
		for !strings.Contains(seen.String(), want) {
			n, err := console.Read(buf)
			seen.Write(buf[:n])
			if err != nil {
				t.Fatalf("%v, seen %q", err, seen.String())
			}
		}
	}
	until("31 91")
	w.must(unix.IoctlSetWinsize(int(console.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 40, Col: 100}))
	_, err = console.WriteString("\n")
	w.must(err)
	until("40 100")
	if !strings.Contains(seen.String(), "/dev/pts/") {
		t.Errorf("no terminal: %q", seen.String())
	}
	if code, err := p.Wait(); err != nil || code != 9 {
		t.Errorf("exit %d, %v", code, err)
	}
}

func TestExecUserEnvironmentAndSignals(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	in.Env, in.User, in.WorkingDir = map[string]string{"A": "1", "B": "2"}, "nobody", "/work/here"
	w.start(in)
	_, out := w.sh(in.ID, "id -un; echo $A$B; pwd; touch mine && stat -c %U .")
	if out != "nobody\n12\n/work/here\nnobody\n" {
		t.Errorf("defaults: %q", out)
	}
	_, out = w.run(in.ID, runtime.Exec{Args: []string{"sh", "-c", "id -u; id -g; echo $A$B; pwd"}, User: "12:34", Env: map[string]string{"B": "9"}, WorkingDir: "/usr"})
	if out != "12\n34\n19\n/usr\n" {
		t.Errorf("own: %q", out)
	}
	p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"sleep", "1000"}})
	w.must(err)
	w.must(p.Signal(int(unix.SIGTERM)))
	if code, err := p.Wait(); err != nil || code != 143 {
		t.Errorf("signalled exec: %d, %v", code, err)
	}
	if _, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: []string{"true"}, User: "no-such-user"}); err == nil {
		t.Error("an unknown user was accepted")
	}
}

func TestLimitsHoldAndChange(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	in.Limits = runtime.Limits{CPU: 0.5, Memory: 64 << 20, PIDs: 32}
	w.start(in)
	tree, err := w.h.cgroups()
	w.must(err)
	for _, l := range []runtime.Limits{in.Limits, {CPU: 1.5, Memory: 128 << 20, PIDs: 64}, {}, {Memory: 32 << 20}} {
		in.Limits = l
		w.must(w.h.Update(w.ctx, in))
		if ok, err := tree.limitsHold(in.ID, l, true); err != nil || !ok {
			t.Errorf("limits %+v do not hold: %v", l, err)
		}
		if s := w.state(in.ID); len(s.Missing) > 0 {
			t.Errorf("limits %+v: missing %v", l, s.Missing)
		}
	}
	w.must(tree.setLimits(in.ID, runtime.Limits{Memory: 16 << 20}, true))
	if s := w.state(in.ID); strings.Join(s.Missing, " ") != "limits" {
		t.Errorf("changed from outside: missing %v", s.Missing)
	}
	w.must(w.h.Repair(w.ctx, in))
	if s := w.state(in.ID); len(s.Missing) > 0 {
		t.Errorf("repaired: missing %v", s.Missing)
	}
}

func TestOutOfMemoryIsToldApart(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "echo ready; head -c 100000000 /dev/zero | tail -c 90000000 >/dev/null; echo survived")
	in.Command = []string{"perl", "-e", `$| = 1; my $x = "a" x 200_000_000; print "survived\n"; sleep 1000`}
	in.Limits.Memory = 32 << 20
	p := w.start(in)
	w.must(w.h.WaitExit(w.ctx, in.ID, p))
	if s := w.state(in.ID); s.Outcome == nil || !s.Outcome.OOM || s.OOMKills == 0 || s.Outcome.Signal != int(unix.SIGKILL) || s.Outcome.Outside != 0 {
		t.Errorf("state %+v, outcome %+v", s, s.Outcome)
	}
	out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	if err != nil || out == nil || !out.OOM || out.ExitCode != 137 {
		t.Errorf("after the cgroup is gone: %+v, %v", out, err)
	}
}

func TestCreateThatFailsLeavesNothing(t *testing.T) {
	w := newWorld(t)
	good := w.instance(1, "true")
	broken := func(change func(*runtime.Instance)) runtime.Instance {
		in := w.instance(1, "true")
		change(&in)
		return in
	}
	for name, in := range map[string]runtime.Instance{
		"image":  broken(func(in *runtime.Instance) { in.Image.ImageSource = runtime.ImageSource{Kind: "dir", Path: "/no/such"} }),
		"volume": broken(func(in *runtime.Instance) { in.Mounts = []runtime.Mount{{Kind: "volume", Source: "none", Path: "/v"}} }),
		"host path": broken(func(in *runtime.Instance) {
			in.Mounts = []runtime.Mount{{Kind: "host", Source: "/no/such", Root: "/", Path: "/v"}}
		}),
		"mount point": broken(func(in *runtime.Instance) { in.Mounts = []runtime.Mount{{Kind: "tmpfs", Path: "/etc/passwd"}} }),
		"over proc":   broken(func(in *runtime.Instance) { in.Mounts = []runtime.Mount{{Kind: "tmpfs", Path: "/bin/../proc/x"}} }),
		"user":        broken(func(in *runtime.Instance) { in.User = "no-such-user" }),
		"user's id":   broken(func(in *runtime.Instance) { in.User = "70000" }),
		"capability":  broken(func(in *runtime.Instance) { in.Capabilities = []string{"CAP_NO_SUCH"} }),
		"limit":       broken(func(in *runtime.Instance) { in.Limits.Memory = 4096 }),
		"network": broken(func(in *runtime.Instance) {
			in.Net = &runtime.Attachment{Network: runtime.Network{ID: "00000000"}}
		}),
	} {
		_, failure := w.h.Create(w.ctx, in)
		if failure == nil {
			t.Errorf("%s: created", name)
		}
		if s, there, err := w.h.Inspect(w.ctx, in.ID); there || err != nil {
			t.Errorf("%s: left %+v, %v; Create said %v", name, s, err, failure)
			w.must(w.h.Remove(w.ctx, in.ID))
		}
	}
	// With a layer from before, that stays, and its record with it.
	first := w.instance(1, "echo kept > /kept")
	p := w.start(first)
	w.must(w.h.WaitExit(w.ctx, first.ID, p))
	_, err := w.h.Stop(w.ctx, first.ID, runtime.StopOptions{})
	w.must(err)
	bad := first
	bad.Mounts = []runtime.Mount{{Kind: "volume", Source: "none", Path: "/v"}}
	if _, err := w.h.Create(w.ctx, bad); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("create with a missing volume: %v", err)
	}
	if s := w.state(first.ID); !s.Layer || s.Alive || s.Outcome == nil {
		t.Errorf("after a failed create: %+v", s)
	}
	good.Command = []string{"cat", "/kept"}
	p = w.start(good)
	w.must(w.h.WaitExit(w.ctx, good.ID, p))
	if got := w.log(good.ID); got != "kept\n" {
		t.Errorf("log %q", got)
	}
}

func TestFilesAreCarriedOverOrGivenBack(t *testing.T) {
	w := newWorld(t)
	old := w.instance(1, "echo old; echo text > /kept")
	p := w.start(old)
	w.must(w.h.WaitExit(w.ctx, old.ID, p))
	_, err := w.h.Stop(w.ctx, old.ID, runtime.StopOptions{})
	w.must(err)

	next := w.instance(2, "cat /kept")
	next.Mark, next.CarryFrom = old.Mark, old.ID
	bad := next
	bad.User = "no-such-user"
	if _, err := w.h.Create(w.ctx, bad); err == nil {
		t.Fatal("created with an unknown user")
	}
	if s := w.state(old.ID); !s.Layer {
		t.Fatal("a failed create kept the files it carried")
	}
	foreign := next
	foreign.Mark.UID = "somebody else"
	if _, err := w.h.Create(w.ctx, foreign); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("carrying another sandbox's files: %v", err)
	}
	p = w.start(next)
	w.must(w.h.WaitExit(w.ctx, next.ID, p))
	if got := w.log(next.ID); got != "old\ntext\n" {
		t.Errorf("log %q", got)
	}
	if s := w.state(old.ID); s.Layer {
		t.Error("the old instance has its files still")
	}
}

func TestMountsAndFiles(t *testing.T) {
	w := newWorld(t)
	w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "data"}))
	w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "data"}))
	shared := t.TempDir()
	w.must(os.WriteFile(filepath.Join(shared, "hello"), []byte("from the host\n"), 0o644))
	w.must(os.Chmod(shared, 0o755))
	in := w.instance(1, "exec sleep 1000")
	in.User = "1000:1000"
	in.Mounts = []runtime.Mount{
		{Kind: "tmpfs", Path: "/a/b/scratch", Size: 1 << 20},
		{Kind: "volume", Source: "data", Path: "/a/b"},
		{Kind: "host", Source: shared, Root: shared, Path: "/shared", ReadOnly: true},
		{Kind: "host", Source: filepath.Join(shared, "hello"), Root: "/", Path: "/one/file", ReadOnly: true},
	}
	in.Files = []runtime.File{{Path: "/etc/app.toml", Content: []byte("x = 1\n"), Mode: 0o640}, {Path: "/etc/hosts", Content: []byte("mine\n"), Mode: 0o644}}
	w.start(in)
	for script, want := range map[string]string{
		"cat /shared/hello /one/file":                 "from the host\nfrom the host\n",
		"touch /shared/x 2>/dev/null || echo refused": "refused\n",
		"echo data > /a/b/f && stat -c %u:%g /a/b/f":  "1000:1000\n",
		"stat -c %u:%g:%a /etc/app.toml":              "0:0:640\n",
		"cat /etc/hosts":                              "mine\n",
		"cat /etc/hostname":                           in.ID + "\n",
		"stat -f -c %T /a/b/scratch":                  "tmpfs\n",
		"dd if=/dev/zero of=/a/b/scratch/big bs=1M count=2 2>/dev/null || echo full": "full\n",
	} {
		if _, out := w.sh(in.ID, script); out != want {
			t.Errorf("`%s`: %q, want %q", script, out, want)
		}
	}
	var st unix.Stat_t
	w.must(unix.Stat(filepath.Join(w.h.volumeDir("data"), "f"), &st))
	if st.Uid != 1000 {
		t.Errorf("on the host the volume's file belongs to %d, not to the id inside", st.Uid)
	}
	if err := w.h.RemoveVolume(w.ctx, "data"); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("removing a volume in use: %v", err)
	}
}

// TestHostPathIsOfNoUseToSetuidAndDevices: sandbox root writes on a host path as root
// and may make a setuid program there, but no mount of ours lets one be used.
func TestHostPathIsOfNoUseToSetuidAndDevices(t *testing.T) {
	for name, ids := range map[string]runtime.IDRange{"user namespace": {Base: 1 << 20, Size: 65536}, "none": {}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			shared := t.TempDir()
			w.must(unix.Mknod(filepath.Join(shared, "mem"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
			in := w.instance(1, "exec sleep 1000")
			in.IDs = ids
			in.Mounts = []runtime.Mount{{Kind: "host", Source: shared, Root: shared, Path: "/shared"}}
			w.start(in)
			_, line := w.sh(in.ID, "grep ' /shared ' /proc/self/mountinfo")
			options := strings.Split(strings.Fields(line + " - - - - - -")[5], ",")
			for _, o := range []string{"rw", "nosuid", "nodev"} {
				if !slices.Contains(options, o) {
					t.Errorf("the mount is not %s: %s", o, line)
				}
			}
			if code, _ := w.sh(in.ID, "head -c 1 /shared/mem"); code == 0 {
				t.Error("a device of the host path could be opened")
			}
			if code, out := w.sh(in.ID, "cp /bin/true /shared/prog && chmod 4755 /shared/prog"); code != 0 {
				t.Fatalf("cannot write to the host path: %s", out)
			}
			var st unix.Stat_t
			w.must(unix.Stat(filepath.Join(shared, "prog"), &st))
			if st.Uid != 0 || st.Mode&0o7777 != 0o4755 {
				t.Errorf("on the host the file belongs to %d, mode %o; docs/isolation.md says root, setuid as made", st.Uid, st.Mode)
			}
		})
	}
}

// TestLinksInAnImageDoNotLeadOut: an image may be hostile.
func TestLinksInAnImageDoNotLeadOut(t *testing.T) {
	w := newWorld(t)
	image, outside := t.TempDir(), t.TempDir()
	w.must(os.Chmod(image, 0o755))
	w.must(os.Mkdir(filepath.Join(image, "etc"), 0o755))
	// The image's only program needs no libraries.
	src := filepath.Join(t.TempDir(), "main.c")
	w.must(os.WriteFile(src, []byte(`#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void)
{
	char b[4096];
	FILE *f = fopen("/etc/hosts", "r");
	puts(getcwd(b, sizeof b));
	fputs(f ? fgets(b, sizeof b, f) : "no hosts\n", stdout);
	return open("/dir/y", O_CREAT | O_WRONLY, 0644) < 0;
}
`), 0o600))
	if out, err := exec.Command("gcc", "-static", "-o", filepath.Join(image, "program"), src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	for name, target := range map[string]string{
		"dir": outside, "up": "../../../../../.." + outside, "etc/hosts": outside + "/hosts", "etc/resolv.conf": "../run/stub/resolv.conf", "work": outside,
	} {
		w.must(os.Symlink(target, filepath.Join(image, name)))
	}
	img, err := w.h.PrepareImage(w.ctx, runtime.ImageSource{Kind: "dir", Path: image})
	w.must(err)
	in := testInstance("00000000000a", img)
	in.Command, in.WorkingDir = []string{"/program"}, "/work/deep"
	in.Mounts = []runtime.Mount{{Kind: "tmpfs", Path: "/dir/mount"}, {Kind: "tmpfs", Path: "/up/mount"}}
	p := w.start(in)
	w.must(w.h.WaitExit(w.ctx, in.ID, p))
	if got, want := w.log(in.ID), outside+"/deep\n127.0.0.1\tlocalhost\n"; got != want {
		t.Errorf("log %q, want %q", got, want)
	}
	if s := w.state(in.ID); s.Outcome == nil || s.Outcome.ExitCode != 0 {
		t.Errorf("outcome %+v", s.Outcome)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("made outside of the root: %v, %v", left, err)
	}
}

func TestForeignObjectsAreLeftAlone(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "true")
	dir := w.h.instanceDir(in.ID)
	w.must(os.MkdirAll(filepath.Join(dir, "upper"), 0o755))
	o := w.h.opts
	o.Lineage = "another"
	if _, err := Open(o); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("open of another lineage's directory: %v", err)
	}
	w.must(os.WriteFile(filepath.Join(dir, "instance.json"), []byte(`{"version":1,"lineage":"another","instance":{"id":"`+in.ID+`"}}`), 0o600))
	if _, err := w.h.Create(w.ctx, in); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("create: %v", err)
	}
	if err := w.h.Remove(w.ctx, in.ID); !errors.Is(err, runtime.ErrForeign) {
		t.Errorf("remove: %v", err)
	}
	if s, _, _ := w.h.Inspect(w.ctx, in.ID); s.Unknown == "" {
		t.Errorf("inspect: %+v", s)
	}
	w.must(os.RemoveAll(dir))
}

// TestWaitersOccupyNoThreads starts many waits on one process.
func TestWaitersOccupyNoThreads(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	p := w.start(in)
	threads := func() int {
		e, err := os.ReadDir("/proc/self/task")
		w.must(err)
		return len(e)
	}
	before := threads()
	const n = 300
	done := make(chan error, n)
	for range n {
		go func() { done <- w.h.WaitExit(w.ctx, in.ID, p) }()
	}
	short, cancel := context.WithTimeout(w.ctx, 10*time.Millisecond)
	defer cancel()
	if err := w.h.WaitExit(short, in.ID, p); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait that ran out: %v", err)
	}
	if grown := threads() - before; grown > n/3 {
		t.Errorf("%d waits made %d threads", n, grown)
	}
	_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	for range n {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

func TestNetnsIsBoundAndRepaired(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	p := w.start(in)
	if ok, err := w.h.netnsBound(in.ID, p.PID); err != nil || !ok {
		t.Fatalf("bound: %v, %v", ok, err)
	}
	o, err := w.h.ownOf(in.ID)
	w.must(err)
	w.must(w.h.releaseNetns(in.ID, o))
	if s := w.state(in.ID); strings.Join(s.Missing, " ") != "netns" {
		t.Errorf("missing %v", s.Missing)
	}
	w.must(w.h.Repair(w.ctx, in))
	if s := w.state(in.ID); len(s.Missing) > 0 {
		t.Errorf("after repair: missing %v", s.Missing)
	}
}

func TestPIDOfAnotherProcessIsNoSandbox(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	w.start(in)
	_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	me, err := w.h.identify(os.Getpid())
	w.must(err)
	for _, p := range []runtime.Process{
		{PID: me.PID, StartTime: me.StartTime + 1, BootID: me.BootID}, {PID: me.PID, StartTime: me.StartTime, BootID: "another boot"},
	} {
		w.must(os.MkdirAll(w.h.runDir(in.ID), 0o700))
		w.must(w.h.saveProcess(in.ID, processRecord{Process: p}))
		if s := w.state(in.ID); s.Alive {
			t.Errorf("taken for alive: %+v", p)
		}
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		if err := w.h.Signal(w.ctx, in.ID, int(unix.SIGTERM)); !errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("signal: %v", err)
		}
		_, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{Grace: time.Second})
		w.must(err)
	}
}
