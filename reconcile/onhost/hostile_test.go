package onhost

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// neighbour is a sandbox that has done nothing; well demands that it is as it was.
type neighbour struct {
	*world
	name string
	pid  int
}

func (w *world) neighbour(name string) neighbour {
	w.Helper()
	return neighbour{w, name, *w.phase(name, plan.Running).PID}
}

func (n neighbour) well() {
	n.Helper()
	if v := n.view(n.name); v.Phase != plan.Running || v.PID == nil || *v.PID != n.pid {
		n.Errorf("the neighbour was process %d, is %s with %v", n.pid, v.Phase, v.PID)
	}
	n.says(n.name, "echo well", "well\n")
}

// python is a sandbox whose command is a Python program.
func python(name, program, extra string) string {
	return fmt.Sprintf("sandbox %q {\n image = image.base\n command = [\"python3\", \"-c\", %q]\n%s\n}\n", name, program, extra)
}

// TestMemoryHogIsKilledAlone: who wants more memory than its limit is killed for it;
// nobody else is.
func TestMemoryHogIsKilledAlone(t *testing.T) {
	w := newWorld(t, logged)
	const hog = "b = []\nwhile True:\n    b.append(bytearray(1 << 20))\n"
	w.apply(box("b", "exec sleep 1000", "resources { memory = \"32MiB\" }"))
	b := w.neighbour("b")
	w.apply(box("b", "exec sleep 1000", "resources { memory = \"32MiB\" }") + python("a", hog, "resources { memory = \"64MiB\" }"))
	v := w.phase("a", plan.Stopped)
	if v.Outcome == nil || !v.Outcome.OOM {
		t.Errorf("outcome %+v", v.Outcome)
	}
	if c := condition(v, "Finished"); c.Status != "True" || c.Reason != "OOMKilled" {
		t.Errorf("condition %+v", c)
	}
	b.well()
}

// TestDiskFillerHurtsOnlyItself: one that fills the disk with pinfold's own state on it
// cannot be helped; its neighbours run on, what cannot be done is said in words, and
// when there is space again everything works.
func TestDiskFillerHurtsOnlyItself(t *testing.T) {
	w := newWorld(t, logged, onSmallDisk(96))
	const filler = `
import os, time
while not os.path.exists("/go"):
    time.sleep(0.05)
f = os.open("/full", os.O_WRONLY | os.O_CREAT)
block = bytes(1 << 20)
while True:
    try:
        os.write(f, block)
    except OSError:
        if len(block) == 1:
            time.sleep(0.05)
        block = bytes(max(1, len(block) // 2))
`
	const quiet = "exec sleep 1000"
	w.apply(box("b", quiet, "") + box("c", quiet, "") + python("a", filler, ""))
	b, c := w.neighbour("b"), w.neighbour("c")
	w.must(w.exec("a", ": > /go")) // once all are on record
	state := filepath.Join(w.dir, "state")
	if !within(time.Minute, func() bool {
		var st unix.Statfs_t
		return unix.Statfs(state, &st) == nil && st.Bavail < 4
	}) {
		t.Fatal("the disk does not get full")
	}
	b.well()
	c.well()
	// A new sandbox needs space. The one that is asked to pause may or may not.
	res, err := w.tryApply(box("b", quiet, "") + box("c", quiet, "") + python("a", filler, "") + box("d", quiet, ""))
	words := failures(res, err)
	if len(words) == 0 || !slices.ContainsFunc(words, func(s string) bool { return strings.Contains(s, "no space left") }) {
		t.Errorf("a new sandbox on a full disk: %q", words)
	}
	paused := true
	if _, err := w.Act(w.ctx, reconcile.ActRequest{Verb: "pause", Address: "b"}); err != nil {
		paused = false
		if !strings.Contains(err.Error(), "no space left") {
			t.Errorf("pause: %v", err)
		}
	}
	if v := w.view("b"); *v.PID != b.pid {
		t.Errorf("the neighbour was process %d, is %d", b.pid, *v.PID)
	}
	c.well()

	// Space again, by the sandbox's own hand; it does not take it back.
	if err := w.exec("a", "pkill -STOP -x python3 && : > /full"); err != nil {
		t.Errorf("exec on a full disk: %v", err)
		full, _ := filepath.Glob(filepath.Join(state, "instances", "*", "upper", "full"))
		for _, f := range full {
			w.must(os.Truncate(f, 0))
		}
	}
	var last error
	if !within(time.Minute, func() bool {
		res, err := w.tryApply(box("b", quiet, "") + box("c", quiet, "") + box("d", quiet, ""))
		last = err
		if err == nil && len(res.Failures) > 0 {
			last = fmt.Errorf("%+v", res.Failures)
		}
		return last == nil
	}) {
		t.Errorf("with space again: %v", last)
	}
	if paused {
		w.act("resume", "b")
	}
	b.well()
	c.well()
	w.neighbour("d").well()
}

// exec runs a script and throws its output away.
func (w *world) exec(name, script string) error {
	s, err := w.Exec(w.ctx, reconcile.ExecRequest{Address: name, Args: []string{"sh", "-c", script}})
	if err != nil {
		return err
	}
	code, err := s.Wait()
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	return err
}

// TestOutputIsBoundedAndWhole: of one that writes without end the newest output is
// kept, each line once; of one that writes a line of 100 MB, what follows it; neither
// takes more of the disk than is promised, nor of the agent's memory.
func TestOutputIsBoundedAndWhole(t *testing.T) {
	w := newWorld(t, logged)
	const lines = 4 << 20
	flood := fmt.Sprintf("import time\nfor i in range(%d):\n    print(f\"{i:015d}\")\nprint(\"the end\", flush=True)\ntime.sleep(1000)\n", lines)
	const line = "import sys, time\nfor i in range(100):\n    sys.stdout.write(\"x\" * 1000000)\nprint(flush=True)\nfor i in range(1000):\n    print(f\"{i:015d}\")\nprint(\"the end\", flush=True)\ntime.sleep(1000)\n"
	w.apply(box("b", "exec sleep 1000", "") + python("flood", flood, "") + python("line", line, ""))
	b := w.neighbour("b")
	for name, rest := range map[string]int{"flood": lines, "line": 1000} {
		log, err := w.OpenLog(w.ctx, name)
		w.must(err)
		defer log.Close()
		var most int64
		if !within(2*time.Minute, func() bool {
			var st unix.Stat_t
			w.must(unix.Fstat(int(log.Fd()), &st))
			most = max(most, st.Blocks*512)
			tail := make([]byte, 8)
			n, _ := log.ReadAt(tail, max(0, st.Size-8))
			return string(tail[:n]) == "the end\n"
		}) {
			t.Fatalf("%s does not come to its end", name)
		}
		// host.go: the newest 16 MiB at least, 1 MiB more at most.
		if most > 18<<20 {
			t.Errorf("%s: the log took %d bytes of the disk", name, most)
		}
		first, next := w.numbers(log)
		if next != rest || rest == lines && next-first < 16<<20/16 {
			t.Errorf("%s: lines %d to %d are kept, want 16 MiB of them up to %d", name, first, next-1, rest-1)
		}
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.agent.Process.Pid))
	w.must(err)
	for l := range strings.Lines(string(status)) {
		if kib, is := strings.CutPrefix(l, "VmHWM:"); is {
			if n, err := strconv.Atoi(strings.Fields(kib)[0]); err != nil || n > 200<<10 {
				t.Errorf("the agent had %s of memory", strings.TrimSpace(kib))
			}
		}
	}
	b.well()
}

// numbers reads the numbered lines of a log, which has to have each once, up to "the
// end". What is left of a line at the log's beginning is skipped.
func (w *world) numbers(log *os.File) (first, next int) {
	w.Helper()
	from, err := unix.Seek(int(log.Fd()), 0, unix.SEEK_DATA)
	w.must(err)
	_, err = log.Seek(from, io.SeekStart)
	w.must(err)
	r := bufio.NewReader(log)
	first = -1
	for {
		line, err := r.ReadString('\n')
		w.must(err)
		if line == "the end\n" {
			return max(0, first), next
		}
		n, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
		switch {
		case first < 0 && (err != nil || len(line) != 16): // the rest of a line
		case first < 0:
			first, next = n, n+1
		case n != next || err != nil:
			w.Errorf("%.40q follows line %d", line, next-1)
			return first, next
		default:
			next++
		}
	}
}

// TestIgnoresEverySignal: a process that ignores and blocks all signals is stopped, and
// replaced, within its grace and the kernel's word.
func TestIgnoresEverySignal(t *testing.T) {
	w := newWorld(t, logged)
	const deaf = `
import signal, time
for s in signal.valid_signals():
    try:
        signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
open("/deaf", "a").write("x")
while True:
    time.sleep(1000)
`
	conf := func(env string) string {
		return box("b", "exec sleep 1000", "") + python("a", deaf, "stop_grace = \"1s\"\n env = { X = \""+env+"\" }")
	}
	w.apply(conf("1"))
	b := w.neighbour("b")
	heard := func(starts int) {
		w.until("a", "deaf", func(reconcile.SandboxView) bool {
			out, err := w.sh("a", "cat /deaf")
			return err == nil && out == strings.Repeat("x", starts)
		})
	}
	heard(1)
	pid := *w.phase("a", plan.Running).PID
	w.act("stop", "a")
	if v := w.phase("a", plan.Stopped); !dead(pid) || v.PID != nil {
		t.Errorf("stopped: process %d is dead: %v, %v", pid, dead(pid), v.PID)
	}
	w.act("start", "a")
	heard(2)
	w.apply(conf("2")) // restarts it
	heard(3)
	w.act("pause", "a")
	w.apply(box("b", "exec sleep 1000", "")) // removes it
	b.well()
}

// TestMountsOverItsOwnPaths: what a sandbox does to its own tree by every way that it
// has stays in it, and keeps nobody from using and removing it.
func TestMountsOverItsOwnPaths(t *testing.T) {
	w := newWorld(t, logged)
	const over = `
for try in "" "unshare -m" "unshare -rm" "unshare -Urm --propagation shared"; do
  for at in /etc /proc /sys /dev /d /bin / /run; do
    $try mount -t tmpfs over $at && touch $at/over
    $try mount --bind /tmp $at
    $try mount --move $at /mnt
    $try umount -l $at
    $try mount -o remount,rw $at
  done
done 2>>/tries
mkdir -p /d/x; ln -s / /d/x/root; mv /etc/hostname /etc/elsewhere; rm -rf /d/x/root/dev/null
: > /done
exec sleep 1000
`
	conf := func(root string) string {
		return box("b", "exec sleep 1000", "") +
			box("a", over, "volume \"d\" { path = \"/d\" }\nsecurity { user_namespace = "+root+" }")
	}
	for _, userns := range []string{"true", "false"} {
		before := hostMounts(w)
		w.apply(conf(userns))
		b := w.neighbour("b")
		w.until("a", "done", func(reconcile.SandboxView) bool { return w.exec("a", "test -e /done") == nil })
		if tries, err := w.sh("a", "grep -c . /tries"); err != nil || strings.TrimSpace(tries) == "0" {
			t.Errorf("user_namespace %s: it was refused nothing: %s, %v", userns, tries, err)
		}
		if after := hostMounts(w); after != before {
			t.Errorf("user_namespace %s: the host's mounts were\n%s\nare\n%s", userns, before, after)
		}
		b.well()
		w.nothingToDo()
		w.act("pause", "a")
		w.act("resume", "a")
		w.says("a", "echo in", "in\n")
		w.act("stop", "a")
		w.act("start", "a")
		w.says("a", "echo in", "in\n")
		w.apply(box("b", "exec sleep 1000", ""))
		b.well()
	}
}

// hostMounts are the mount points of the host, without those that come and go with
// other tests.
func hostMounts(w *world) string {
	w.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	w.must(err)
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if !strings.HasPrefix(f[4], os.TempDir()+"/") && !strings.HasPrefix(f[4], "/run/") || strings.HasPrefix(f[4], w.dir) && filepath.Base(filepath.Dir(f[4])) != "netns" {
			fmt.Fprintf(&b, "%s %s %s\n", f[3], f[4], f[5])
		}
	}
	return b.String()
}

// nothingToDo demands an empty plan of the files as they are.
func (w *world) nothingToDo() {
	w.Helper()
	var err error
	if !within(time.Minute, func() bool {
		var list *reconcile.ListResult
		if list, err = w.List(w.ctx); err != nil {
			return false
		}
		var p *reconcile.PlanResult
		if p, err = w.Plan(w.ctx, reconcile.PlanRequest{Source: w.source()}); err != nil {
			return false
		}
		err = w.settled(list.Sandboxes, p.Plan)
		return err == nil
	}) {
		w.Error(err)
	}
}

// TestLinksThatLeadOut: symbolic links that a workload has put on the way of a copy, a
// file block or a mount lead to places inside of it, or nowhere; the host's own files
// of the same names are neither read nor changed.
func TestLinksThatLeadOut(t *testing.T) {
	w := newWorld(t, logged)
	outside := filepath.Join(w.dir, "outside")
	w.must(os.Mkdir(outside, 0o777))
	w.must(os.Chmod(outside, 0o777))
	mine := filepath.Join(outside, "mine")
	w.must(os.WriteFile(mine, []byte("mine"), 0o666))
	secret := filepath.Join(w.dir, "state", "state.db")
	links := map[string]string{
		"/abs": outside, "/rel": strings.Repeat("../", 40) + outside[1:], "/viaproc": "/proc/1/root" + outside, "/viaself": "/proc/self/cwd/.." + outside,
	}
	script := "mkdir -p /way"
	for at, to := range links {
		script += fmt.Sprintf("; ln -sfn %s %s; ln -sfn %s /way%s", to, at, secret, at)
	}
	script += "; : > /done; exec sleep 1000"
	b := box("b", "exec sleep 1000", "")
	w.apply(b + box("a", script, ""))
	n := w.neighbour("b")
	w.until("a", "done", func(reconcile.SandboxView) bool { return w.exec("a", "test -e /done") == nil })
	untouched := func(what string) {
		t.Helper()
		entries, err := os.ReadDir(outside)
		w.must(err)
		if text, err := os.ReadFile(mine); err != nil || string(text) != "mine" || len(entries) != 1 {
			t.Errorf("%s: outside are %v, the file holds %q, %v", what, entries, text, err)
		}
	}
	for at := range links {
		w.copyIn("a", at, "mine", "theirs")
		w.copyIn("a", at+"/", "new", "theirs")
		untouched("cp into " + at)
		for _, path := range []string{at, at + "/", at + "/."} {
			if got := w.copyOut("a", "/way"+path); bytes.Contains(got, []byte(w.lineageMark())) {
				t.Errorf("cp of /way%s gives the host's state", path)
			}
		}
	}
	// Files and mounts below the links, at the next start.
	inside := ""
	for i, at := range sorted(map[string]bool{"/abs": true, "/rel": true}) {
		inside += fmt.Sprintf("file \"%s/placed%d\" { content = \"placed\" }\nmount {\n volume = volume.v\n path = \"%s/vol%d\"\n}\nmount {\n tmpfs = true\n path = \"%s/mem%d\"\n}\n", at, i, at, i, at, i)
	}
	res, err := w.tryApply("volume \"v\" {}\n" + b + box("a", script, inside))
	untouched("file blocks and mounts")
	if words := failures(res, err); len(words) > 0 {
		t.Errorf("files and mounts below links: %q", words)
	} else {
		w.until("a", "placed", func(reconcile.SandboxView) bool {
			out, err := w.sh("a", "cat /abs/placed0")
			return err == nil && out == "placed"
		})
		if err := w.exec("a", "echo x > /abs/vol0/x && echo x > /abs/mem0/x"); err != nil {
			t.Errorf("writing to mounts below links: %v", err)
		}
	}
	untouched("writing to them")
	// What leads through proc cannot be a place for anything.
	res, err = w.tryApply("volume \"v\" {}\n" + b + box("a", script, "file \"/viaproc/placed\" { content = \"placed\" }"))
	t.Logf("a file below a link into /proc: %q", failures(res, err))
	untouched("a file block through proc")
	n.well()
}

func (w *world) lineageMark() string {
	w.Helper()
	st, err := w.Status(w.ctx)
	w.must(err)
	return st.Lineage
}

// copyIn copies one file into a sandbox's directory. What becomes of it is for the
// caller to look at.
func (w *world) copyIn(name, dir, file, content string) error {
	w.Helper()
	var archive bytes.Buffer
	tw := tar.NewWriter(&archive)
	w.must(tw.WriteHeader(&tar.Header{Name: file, Mode: 0o666, Size: int64(len(content))}))
	_, err := io.WriteString(tw, content)
	w.must(err)
	w.must(tw.Close())
	f, err := os.CreateTemp(w.dir, "in")
	w.must(err)
	defer os.Remove(f.Name())
	defer f.Close()
	_, err = f.Write(archive.Bytes())
	w.must(err)
	_, err = f.Seek(0, io.SeekStart)
	w.must(err)
	return w.CopyIn(w.ctx, reconcile.CopyRequest{Address: name, Path: dir, Archive: f})
}

// copyOut is what a copy out of a sandbox gives, as far as it came.
func (w *world) copyOut(name, path string) []byte {
	w.Helper()
	f, err := os.CreateTemp(w.dir, "out")
	w.must(err)
	defer os.Remove(f.Name())
	defer f.Close()
	if err := w.CopyOut(w.ctx, reconcile.CopyRequest{Address: name, Path: path, Archive: f}); err != nil {
		var e *reconcile.Error
		if !errors.As(err, &e) || e.Message == "" {
			w.Errorf("cp of %s: %v", path, err)
		}
	}
	got, err := os.ReadFile(f.Name())
	w.must(err)
	return got
}
