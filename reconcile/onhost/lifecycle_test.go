package onhost

import (
	"fmt"
	"io"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// soon is an instant a little ahead, as the language writes it.
func soon(d time.Duration) (time.Time, string) {
	at := time.Now().Add(d).UTC()
	return at, at.Format(time.RFC3339Nano)
}

// TestNeverEarlyHundredSandboxes: a hundred deadlines at one instant; each is acted
// on, none before it.
func TestNeverEarlyHundredSandboxes(t *testing.T) {
	w := newWorld(t)
	const n = 100
	many := func(at string) string {
		return fmt.Sprintf("sandbox \"s\" {\n count = %d\n image = image.base\n command = [\"sleep\", \"infinity\"]\n shutdown_time = %q\n}\n", n, at)
	}
	_, far := soon(time.Hour)
	w.apply(many(far)) // all are up before the instant is chosen
	at, near := soon(5 * time.Second)
	w.apply(many(near))
	for i := range n {
		name := fmt.Sprintf("sandbox.s[%d]", i)
		v := w.phase(name, plan.Stopped)
		if c := condition(v, "Expired"); c.Status != "True" || c.Reason != "ShutdownTime" {
			t.Errorf("%s: condition %+v", name, c)
		}
		if v.Outcome == nil || v.Outcome.Reason != "shutdown_time" || v.Outcome.At.Before(at) {
			t.Errorf("%s: outcome %+v, deadline %s", name, v.Outcome, at)
		}
		for _, ev := range w.events(name, "expired", "stop") {
			if ev.At.Before(at) {
				t.Errorf("%s: %s %s before its deadline", name, ev.Type, at.Sub(ev.At))
			}
		}
	}
}

// TestHalfASecondLeftIsAlive: shortly before its deadline a sandbox still runs.
func TestHalfASecondLeftIsAlive(t *testing.T) {
	w := newWorld(t)
	w.apply(box("a", "exec sleep 1000", ""))
	at, text := soon(4 * time.Second)
	w.apply(box("a", "exec sleep 1000", fmt.Sprintf("shutdown_time = %q", text)))
	for {
		v := w.view("a")
		if now := time.Now(); now.Before(at) && v.Phase != plan.Running {
			t.Fatalf("%s %s before its deadline", v.Phase, at.Sub(now))
		} else if now.After(at) {
			break
		}
	}
	w.phase("a", plan.Stopped)
}

// TestFinishedAndKeptWithItsOutcome: a command that ends by itself stays ended,
// through passes, an agent crash and its deadline.
func TestFinishedAndKeptWithItsOutcome(t *testing.T) {
	w := newWorld(t)
	_, at := soon(6 * time.Second)
	w.apply(box("a", "echo done > /result; exit 3", fmt.Sprintf("shutdown_time = %q", at)))
	v := w.phase("a", plan.Stopped)
	w.kill()
	w.serve()
	v = w.until("a", "expired", func(v reconcile.SandboxView) bool { return condition(v, "Expired").Status == "True" })
	if c := condition(v, "Finished"); c.Status != "True" || c.Reason != "Failed" {
		t.Errorf("condition %+v", c)
	}
	if v.Outcome == nil || v.Outcome.ExitCode != 3 || v.Outcome.Reason != "exited" {
		t.Errorf("outcome %+v", v.Outcome)
	}
}

// TestExitWhileNothingRan: the process ends while no agent is there; its code is found.
func TestExitWhileNothingRan(t *testing.T) {
	w := newWorld(t)
	w.apply(box("a", "while [ ! -e /data/go ]; do sleep 0.05; done; exit 42", "volume \"data\" { path = \"/data\" }"))
	pid := *w.phase("a", plan.Running).PID
	w.kill()
	volumes, err := filepath.Glob(filepath.Join(w.dir, "state", "volumes", "*"))
	if err != nil || len(volumes) != 1 {
		t.Fatalf("volumes %v, %v", volumes, err)
	}
	w.must(os.WriteFile(filepath.Join(volumes[0], "go"), nil, 0o644))
	// A zombie is dead, but stays until the host's PID 1 reaps it.
	for end := time.Now().Add(20 * time.Second); !dead(pid) && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
	}
	w.serve()
	v := w.phase("a", plan.Stopped)
	if v.Outcome == nil || v.Outcome.ExitCode != 42 || v.Outcome.Reason != "exited" {
		t.Errorf("outcome %+v", v.Outcome)
	}
	if c := condition(v, "Finished"); c.Status != "True" || c.Reason != "Failed" {
		t.Errorf("condition %+v", c)
	}
}

// TestRetainAndRevival: a retained expiry keeps files and volume and frees process,
// cgroup and network namespace; a later deadline brings it back on the same files.
func TestRetainAndRevival(t *testing.T) {
	w := newWorld(t)
	conf := func(at string) string {
		return box("a", "echo x >> /log; echo v >> /data/log; exec sleep 1000",
			fmt.Sprintf("shutdown_time = %q\nvolume \"data\" { path = \"/data\" }\n", at))
	}
	_, far := soon(time.Hour)
	w.apply(conf(far))
	v := w.phase("a", plan.Running)
	id, pid := *v.InstanceID, *v.PID
	w.until("a", "writing", func(reconcile.SandboxView) bool {
		out, err := w.sh("a", "cat /log /data/log")
		return err == nil && out == "x\nv\n"
	})
	_, near := soon(2 * time.Second)
	w.apply(conf(near))
	v = w.phase("a", plan.Stopped)
	if v.PID != nil || *v.InstanceID != id {
		t.Errorf("pid %v, instance %s, want none and %s", v.PID, *v.InstanceID, id)
	}
	// It is stopped as soon as its process has ended; what that held goes with it.
	held := func() (left []string) {
		if !dead(pid) {
			left = append(left, fmt.Sprintf("process %d", pid))
		}
		for _, pattern := range []string{"/sys/fs/cgroup/*/*/" + id, "/sys/fs/cgroup/*/" + id, filepath.Join(w.dir, "run", "netns", id)} {
			found, _ := filepath.Glob(pattern)
			left = append(left, found...)
		}
		return left
	}
	for end := time.Now().Add(10 * time.Second); len(held()) > 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
	}
	if left := held(); len(left) > 0 {
		t.Errorf("kept: %v", left)
	}
	if _, err := w.Act(w.ctx, reconcile.ActRequest{Verb: "start", Address: "a"}); refused(err, reconcile.Conflict, "expired") != nil {
		t.Error(refused(err, reconcile.Conflict, "expired"))
	}
	_, later := soon(time.Hour)
	w.apply(conf(later))
	v = w.phase("a", plan.Running)
	if *v.InstanceID != id || condition(v, "Expired").Status != "False" {
		t.Errorf("instance %s, expired %+v", *v.InstanceID, condition(v, "Expired"))
	}
	w.until("a", "writing again", func(reconcile.SandboxView) bool {
		out, err := w.sh("a", "cat /log /data/log")
		return err == nil && out == "x\nx\nv\nv\n"
	})
}

// TestSlowToDieShowsTerminating: while a process that ignores SIGTERM is given its
// grace, the sandbox is not said to be suspended.
func TestSlowToDieShowsTerminating(t *testing.T) {
	w := newWorld(t)
	conf := func(mode string) string {
		return box("a", `trap "" TERM; touch /ready; while :; do sleep 1; done`, fmt.Sprintf("operating_mode = %q\nstop_grace = \"2s\"", mode))
	}
	w.apply(conf("running"))
	w.until("a", "ready", func(reconcile.SandboxView) bool { _, err := w.sh("a", "test -e /ready"); return err == nil })
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.apply(conf("suspended"))
	}()
	seen := map[string]bool{}
	for done := false; !done; {
		select {
		case <-over:
			done = true
		default:
		}
		v := w.view("a")
		c := condition(v, "Suspended")
		seen[c.Status+"/"+c.Reason] = true
		if v.PID != nil && c.Status == "True" {
			t.Fatalf("suspended with process %d", *v.PID)
		}
	}
	w.phase("a", plan.Stopped)
	if !seen["False/Terminating"] {
		t.Errorf("never seen terminating: %v", seen)
	}
	if c := condition(w.view("a"), "Suspended"); c.Status != "True" {
		t.Errorf("at the end %+v", c)
	}
}

// TestKilledFromOutsideIsRecreatedNeverSuspended: PID 1 is killed; the sandbox is
// lost, made again on its files, and is at no time said to be suspended.
func TestKilledFromOutsideIsRecreatedNeverSuspended(t *testing.T) {
	w := newWorld(t)
	w.apply(box("a", "echo x >> /log; exec sleep 1000", ""))
	before := w.phase("a", plan.Running)
	w.until("a", "written", func(reconcile.SandboxView) bool {
		out, err := w.sh("a", "cat /log")
		return err == nil && out == "x\n"
	})
	w.must(syscall.Kill(*before.PID, syscall.SIGKILL))
	w.until("a", "recreated", func(v reconcile.SandboxView) bool {
		if condition(v, "Suspended").Status == "True" {
			t.Fatal("said to be suspended")
		}
		return v.Phase == plan.Running && *v.InstanceID != *before.InstanceID
	})
	w.until("a", "on its old files", func(reconcile.SandboxView) bool {
		out, err := w.sh("a", "cat /log")
		return err == nil && out == "x\nx\n"
	})
	if !slices.ContainsFunc(w.events("a", "lost"), func(e reconcile.Event) bool { return e.Instance == *before.InstanceID }) {
		t.Errorf("history: %+v", w.events("a"))
	}
}

// TestPausedSurvivesTheAgentsDeath: frozen processes stay frozen, the same ones, and
// go on when resumed.
func TestPausedSurvivesTheAgentsDeath(t *testing.T) {
	w := newWorld(t)
	w.apply(box("a", "exec sleep 1000", ""))
	pid := *w.phase("a", plan.Running).PID
	w.act("pause", "a")
	w.kill()
	w.serve()
	v := w.phase("a", plan.Paused)
	if *v.PID != pid || v.Hold == nil || v.Hold.By != "operator" {
		t.Errorf("pid %d, hold %+v, want %d and the operator's", *v.PID, v.Hold, pid)
	}
	if p := w.view("a"); p.Phase != plan.Paused {
		t.Errorf("after a pass: %s", p.Phase)
	}
	w.act("resume", "a")
	if v := w.phase("a", plan.Running); *v.PID != pid {
		t.Errorf("resumed as %d, want %d", *v.PID, pid)
	}
	w.says("a", "echo alive", "alive\n")
}

// TestPausedIsDestroyedWithoutHanging also by expiry; the workload never runs again.
func TestPausedIsDestroyedWithoutHanging(t *testing.T) {
	w := newWorld(t)
	w.apply(box("a", "while :; do echo x >> /data/log; done", "volume \"data\" { path = \"/data\" }") + box("b", "exec sleep 1000", ""))
	w.phase("a", plan.Running)
	w.act("pause", "a")
	w.act("pause", "b")
	logs, err := filepath.Glob(filepath.Join(w.dir, "state", "volumes", "*", "log"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs %v, %v", logs, err)
	}
	f, err := os.Open(logs[0])
	w.must(err)
	defer f.Close()
	size := func() int64 {
		st, err := f.Stat()
		w.must(err)
		return st.Size()
	}
	before := size()
	begun := time.Now()
	w.apply(box("b", "exec sleep 1000", ""))
	if took := time.Since(begun); took > 8*time.Second { // the grace is ten
		t.Errorf("destroying a paused sandbox took %s: it was given its grace", took)
	}
	if after := size(); after != before {
		t.Errorf("it wrote %d bytes on its way down", after-before)
	}
	if v := w.view("b"); v.Phase != plan.Paused {
		t.Errorf("the neighbour is %s", v.Phase)
	}
}

// TestForkBombIsKilledWhole: a sandbox full of processes that fork goes down whole.
func TestForkBombIsKilledWhole(t *testing.T) {
	w := newWorld(t)
	const bomb = `exec python3 -c "
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
"`
	w.apply(box("a", bomb, "stop_grace = \"1s\"\nresources { pids = 200 }") + box("b", "exec sleep 1000", ""))
	id := *w.phase("a", plan.Running).InstanceID
	procs := func() int {
		n := 0
		files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
		for _, f := range files {
			if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), id) {
				n++
			}
		}
		return n
	}
	for end := time.Now().Add(30 * time.Second); procs() < 100 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
	}
	if n := procs(); n < 50 {
		t.Fatalf("only %d processes: no bomb", n)
	}
	w.act("stop", "a")
	if n := procs(); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	w.says("b", "echo well", "well\n")
}

// TestForeignObjectsAreRefusedAndLeftAlone: what has the name of a stopped sandbox's
// own objects and is not ours is neither taken over nor removed. Starting says what is
// in the way, and works once it is gone.
func TestForeignObjectsAreRefusedAndLeftAlone(t *testing.T) {
	w := newWorld(t)
	w.apply(box("a", "echo x >> /log; exec sleep 1000", ""))
	id := *w.phase("a", plan.Running).InstanceID
	st, err := w.Status(w.ctx)
	w.must(err)
	netns := filepath.Join(w.dir, "run", "netns", id)
	// Under a name that no sandbox of ours has, nothing is even looked at.
	stray := filepath.Join(w.dir, "run", "netns", "ffffffffffff")
	w.must(os.WriteFile(stray, []byte("mine"), 0o600))
	strayDir := filepath.Join(w.dir, "state", "instances", "ffffffffffff")
	w.must(os.Mkdir(strayDir, 0o755))
	w.must(os.WriteFile(filepath.Join(strayDir, "keep"), []byte("mine"), 0o644))

	starts := 1
	for _, c := range []struct {
		name string
		put  func() (words string, untouched func() error, remove func())
	}{
		{"network namespace", func() (string, func() error, func()) {
			ns := foreignNetns(w, netns)
			return netns, func() error {
				if now, err := inode(netns); err != nil || now != ns {
					return fmt.Errorf("it is %d, was %d: %v", now, ns, err)
				}
				return nil
			}, func() { w.must(unix.Unmount(netns, 0)); w.must(os.Remove(netns)) }
		}},
		{"file", func() (string, func() error, func()) {
			w.must(os.WriteFile(netns, []byte("mine"), 0o600))
			return netns, func() error {
				if b, err := os.ReadFile(netns); err != nil || string(b) != "mine" {
					return fmt.Errorf("it holds %q: %v", b, err)
				}
				return nil
			}, func() { w.must(os.Remove(netns)) }
		}},
		{"cgroup", func() (string, func() error, func()) {
			dir := foreignCgroup(w, reconcile.ShortID(st.Lineage), id)
			other := osexec.Command("sleep", "1000")
			w.must(other.Start())
			t.Cleanup(func() { other.Process.Kill() })
			pid := strconv.Itoa(other.Process.Pid)
			procs := filepath.Join(dir, "cgroup.procs")
			w.must(os.WriteFile(procs, []byte(pid), 0))
			return dir, func() error {
				if b, err := os.ReadFile(procs); err != nil || strings.TrimSpace(string(b)) != pid || dead(other.Process.Pid) {
					return fmt.Errorf("it holds %q, the process is dead: %v, %v", b, dead(other.Process.Pid), err)
				}
				return nil
			}, func() { w.must(other.Process.Kill()); other.Wait() }
		}},
	} {
		w.act("stop", "a")
		w.phase("a", plan.Stopped)
		words, untouched, remove := c.put()
		for _, anew := range []bool{false, true} {
			if anew {
				w.kill()
				w.serve()
			}
			began := time.Now()
			_, err := w.Act(w.ctx, reconcile.ActRequest{Verb: "start", Address: "a"})
			if err == nil || !strings.Contains(err.Error(), "does not bear this lineage's mark") || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "left alone") {
				t.Errorf("%s: start says %v, which is to name %s", c.name, err, words)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s: it took %s", c.name, took)
			}
			if v := w.view("a"); v.Phase != plan.Stopped || *v.InstanceID != id || v.PID != nil {
				t.Errorf("%s: refused, it is %+v", c.name, v)
			}
			if err := untouched(); err != nil {
				t.Errorf("foreign %s: %v", c.name, err)
			}
		}
		remove()
		w.act("start", "a")
		if got := *w.phase("a", plan.Running).InstanceID; got != id {
			t.Errorf("%s: instance %s, want %s", c.name, got, id)
		}
		starts++
		w.until("a", "written", func(reconcile.SandboxView) bool {
			out, err := w.sh("a", "cat /log")
			return err == nil && out == strings.Repeat("x\n", starts)
		})
	}

	w.apply(box("b", "exec sleep 1000", "")) // removes a
	for _, f := range []string{stray, filepath.Join(strayDir, "keep")} {
		if b, err := os.ReadFile(f); err != nil || string(b) != "mine" {
			t.Errorf("%s: %q, %v", f, b, err)
		}
	}
	w.must(os.Remove(stray))
	w.must(os.RemoveAll(strayDir))
}

// foreignNetns binds a new network namespace to a name, as ip netns add does, and
// returns its inode.
func foreignNetns(w *world, path string) uint64 {
	w.Helper()
	w.must(os.WriteFile(path, nil, 0o400))
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	w.must(<-done)
	w.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	ns, err := inode(path)
	w.must(err)
	return ns
}

func inode(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return st.Ino, err
}

// foreignCgroup makes the cgroup that an instance would have, in one hierarchy.
func foreignCgroup(w *world, short, id string) string {
	w.Helper()
	parents, err := filepath.Glob("/sys/fs/cgroup/pids/*-" + short)
	w.must(err)
	if len(parents) == 0 {
		parents, err = filepath.Glob("/sys/fs/cgroup/*-" + short)
		w.must(err)
	}
	if len(parents) == 0 {
		w.Fatal("no cgroup parent")
	}
	dir := filepath.Join(parents[0], id)
	w.must(os.Mkdir(dir, 0o755))
	return dir
}

// TestSuspendedTwice: two rounds of suspend and resume, each with a new process on
// the same files, and nothing held in between.
func TestSuspendedTwice(t *testing.T) {
	w := newWorld(t)
	conf := func(mode string) string {
		return box("a", "echo x >> /log; exec sleep 1000", fmt.Sprintf("operating_mode = %q", mode))
	}
	w.apply(conf("running"))
	pids := map[int]bool{}
	for round := 1; round <= 3; round++ {
		pids[*w.phase("a", plan.Running).PID] = true
		w.until("a", "written", func(reconcile.SandboxView) bool {
			out, err := w.sh("a", "cat /log")
			return err == nil && out == strings.Repeat("x\n", round)
		})
		if round == 3 {
			break
		}
		w.apply(conf("suspended"))
		v := w.phase("a", plan.Stopped)
		if c := condition(v, "Suspended"); c.Status != "True" || v.PID != nil {
			t.Errorf("suspended: %+v, pid %v", c, v.PID)
		}
		w.apply(conf("running"))
	}
	if len(pids) != 3 {
		t.Errorf("processes %v, want three", pids)
	}
}

// TestIdleAndTheFirstConnection: a sandbox that the idle rule froze, or suspended,
// answers the first connection to its published port, and nothing is lost of it.
func TestIdleAndTheFirstConnection(t *testing.T) {
	w := newWorld(t)
	const server = `exec python3 -u -c "
import socketserver
class H(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer((\"0.0.0.0\", 7000), H).serve_forever()
"`
	rules := func(action string) string {
		return fmt.Sprintf("port \"p\" { container = 7000 }\nlifetime {\n idle_timeout = \"1s\"\n idle_action = %q\n resume_on_access = true\n}\n", action)
	}
	w.apply("network \"n\" {}\n" +
		box("frozen", server, "network { name = network.n }\n"+rules("pause")) +
		box("off", server, "network { name = network.n }\n"+rules("suspend")) +
		box("alone", server, rules("pause")))
	ask := func(name string) {
		t.Helper()
		port := w.view(name).Ports["p"].Host
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 10*time.Second)
		w.must(err)
		defer c.Close()
		c.SetDeadline(time.Now().Add(40 * time.Second))
		_, err = io.WriteString(c, "hello\n")
		w.must(err)
		w.must(c.(*net.TCPConn).CloseWrite())
		if got, err := io.ReadAll(c); err != nil || string(got) != "HELLO\n" {
			t.Errorf("%s answers %q, %v", name, got, err)
		}
	}
	for _, name := range []string{"frozen", "alone"} {
		v := w.phase(name, plan.Paused)
		if v.Hold == nil || v.Hold.By != "idle" {
			t.Errorf("%s: hold %+v", name, v.Hold)
		}
		pid := *v.PID
		ask(name)
		w.until(name, "the same process", func(v reconcile.SandboxView) bool { return v.PID != nil && *v.PID == pid })
	}
	w.phase("off", plan.Stopped)
	ask("off")
	// The agent dies; ports are back with the next one.
	w.kill()
	w.serve()
	for _, name := range []string{"frozen", "off", "alone"} {
		ask(name)
	}
}

// TestExpiryByPauseOnTheHost: frozen at its deadline, thawed by resume -timeout.
func TestExpiryByPauseOnTheHost(t *testing.T) {
	w := newWorld(t)
	at, text := soon(3 * time.Second)
	w.apply(box("a", "exec sleep 1000", fmt.Sprintf("shutdown_time = %q\nshutdown_policy = \"pause\"", text)))
	pid := *w.phase("a", plan.Running).PID
	v := w.phase("a", plan.Paused)
	if time.Now().Before(at) || v.Hold == nil || v.Hold.By != "expiry" || *v.PID != pid {
		t.Errorf("at %s: %+v", time.Now(), v)
	}
	_, err := w.Act(w.ctx, reconcile.ActRequest{Verb: "resume", Address: "a"})
	if err := refused(err, reconcile.Conflict, "-timeout"); err != nil {
		t.Error(err)
	}
	d := config.Duration(time.Hour)
	if _, err := w.Act(w.ctx, reconcile.ActRequest{Verb: "resume", Address: "a", Timeout: &d}); err != nil {
		t.Fatal(err)
	}
	if v := w.phase("a", plan.Running); *v.PID != pid {
		t.Error("not the same process")
	}
	w.says("a", "echo alive", "alive\n")
}

// TestAFailedWakeHurtsNobody: a connection wakes a suspended sandbox whose command is
// gone. The client is sent away; the agent goes on serving everybody else.
func TestAFailedWakeHurtsNobody(t *testing.T) {
	w := newWorld(t)
	_, at := soon(12 * time.Second)
	w.apply("sandbox \"x\" {\n image = image.base\n command = [\"/bin/dash\", \"-c\", \"rm -f /usr/bin/dash; exec sleep 9999\"]\n port \"p\" { container = 8080 }\n" +
		"lifetime {\n idle_timeout = \"1s\"\n idle_action = \"suspend\"\n resume_on_access = true\n }\n}\n" +
		box("other", "exec sleep 1000", fmt.Sprintf("shutdown_time = %q", at)))
	w.phase("x", plan.Stopped)
	port := w.view("x").Ports["p"].Host
	for range 3 {
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 10*time.Second)
		if err != nil {
			continue // its port went with the failed start
		}
		c.SetDeadline(time.Now().Add(40 * time.Second))
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("read %d bytes from what cannot run", n)
		}
		c.Close()
	}
	w.act("pause", "other")
	w.act("resume", "other")
	w.phase("other", plan.Stopped) // at its deadline
}

// TestProbesAreAskedFromInsideAndLeaveNothing: a service on loopback only is healthy
// though its sandbox has a network; a probe that hangs is killed with its children.
func TestProbesAreAskedFromInsideAndLeaveNothing(t *testing.T) {
	w := newWorld(t)
	const server = `exec python3 -c "
import http.server
http.server.HTTPServer((\"127.0.0.1\", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"`
	on := "network { name = network.n }\n"
	w.apply("network \"n\" {}\n" +
		box("http", server, on+"health {\n http = \"http://127.0.0.1:8080/etc/hostname\"\n interval = \"200ms\"\n}\n") +
		box("tcp", server, on+"health {\n tcp = 8080\n interval = \"200ms\"\n}\n") +
		box("none", "exec sleep 1000", on+"health {\n http = \"http://127.0.0.1:8080/\"\n interval = \"200ms\"\n retries = 2\n}\n") +
		box("hangs", "exec sleep 1000", "health {\n command = [\"sh\", \"-c\", \"sleep 545454; true\"]\n interval = \"200ms\"\n timeout = \"300ms\"\n retries = 1\n}\n"))
	for _, name := range []string{"http", "tcp"} {
		w.until(name, "ready", func(v reconcile.SandboxView) bool { return condition(v, "Ready").Status == "True" })
	}
	for _, name := range []string{"none", "hangs"} {
		w.until(name, "degraded", func(v reconcile.SandboxView) bool {
			c := condition(v, "Ready")
			return c.Status == "False" && c.Reason == "Degraded" && c.Message != ""
		})
	}
	// Several probes later there is no more of them than of one.
	id := *w.view("hangs").InstanceID
	sleeps := func() (n int) {
		files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil || !strings.Contains(string(b), id) {
				continue
			}
			if cmd, err := os.ReadFile(filepath.Join(filepath.Dir(f), "cmdline")); err == nil && strings.HasPrefix(string(cmd), "sleep\x00545454") {
				n++
			}
		}
		return n
	}
	most := 0
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		most = max(most, sleeps())
	}
	if most == 0 || most > 2 {
		t.Errorf("%d processes of a probe that hangs at a time, want 1 or 2", most)
	}
}
