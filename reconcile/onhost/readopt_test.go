package onhost

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// upper answers each line on port 7000 in capitals.
const upper = `exec python3 -c "
import socketserver
class H(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer((\"0.0.0.0\", 7000), H).serve_forever()
"`

// counting writes one number after the other, each on a line.
const counting = `exec python3 -c "
import itertools, time
for i in itertools.count():
    print(i, flush=True)
    time.sleep(0.002)
"`

// TestAdoptedAfterAKill: the agent is killed; the next one finds every sandbox as it
// was, and what happened in between.
func TestAdoptedAfterAKill(t *testing.T) { adoption(t, false) }

// TestAdoptedByAnotherProgram: the same when the next agent is another file, and the
// old one's is gone from the disk.
func TestAdoptedByAnotherProgram(t *testing.T) { adoption(t, true) }

func adoption(t *testing.T, upgrade bool) {
	program := func(w *world, name string) {
		w.program = filepath.Join(w.dir, name)
		copyProgram(w, w.program)
	}
	w := newWorld(t, func(w *world) {
		if upgrade {
			program(w, "old")
		}
	})
	const idle = "lifetime {\n idle_timeout = \"3s\"\n}\n"
	conf := func(due string) string {
		return "network \"n\" {}\n" +
			box("writer", counting, "") +
			box("frozen", counting, "") +
			box("off", "exec sleep 1000", "") +
			box("plain", upper, "network { name = network.n }\nport \"p\" { container = 7000 }") +
			box("relayed", upper, "port \"p\" { container = 7000 }") +
			box("ends", "while [ ! -e /data/go ]; do sleep 0.05; done; exit 42", "volume \"data\" { path = \"/data\" }") +
			box("killed", "echo x >> /log; exec sleep 1000", "") +
			box("idler", "exec sleep 1000", idle) +
			box("due", "exec sleep 1000", fmt.Sprintf("shutdown_time = %q", due))
	}
	_, far := soon(time.Hour)
	w.apply(conf(far))
	w.act("pause", "frozen")
	w.act("stop", "off")
	made := box("made", "echo started > /begun; exec sleep 1000", "")
	w.must(os.WriteFile(filepath.Join(w.dir, "config", "main.hcl"), []byte("image \"base\" { source = \"host\" }\n"+conf(far)+made), 0o644))
	res, err := w.Apply(w.ctx, reconcile.ApplyRequest{PlanRequest: reconcile.PlanRequest{Source: w.source(), Options: plan.Options{NoStart: true}}, AutoApprove: true}, nil, nil)
	if err != nil || len(res.Failures) > 0 {
		t.Fatalf("apply: %v, %+v", err, res)
	}
	w.until("killed", "written", func(reconcile.SandboxView) bool {
		out, err := w.sh("killed", "cat /log")
		return err == nil && out == "x\n"
	})
	w.served("plain")
	w.served("relayed")
	deadline, near := soon(6 * time.Second)
	w.apply(conf(near) + made)
	before := map[string]reconcile.SandboxView{}
	list, err := w.List(w.ctx)
	w.must(err)
	for _, v := range list.Sandboxes {
		before[strings.TrimPrefix(v.Address, "sandbox.")] = v
	}
	if p := before["made"].Phase; p != plan.Created {
		t.Fatalf("made is %s", p)
	}
	seq := w.newest()

	w.kill()
	gone := time.Now()
	if upgrade {
		old := w.program
		program(w, "new")
		w.must(os.Remove(old))
	}
	if err := hello(before["plain"].Ports["p"].Host, 20*time.Second); err != nil {
		t.Errorf("a port that the kernel forwards, without an agent: %v", err)
	}
	volumes, err := filepath.Glob(filepath.Join(w.dir, "state", "volumes", "*"))
	if err != nil || len(volumes) != 1 {
		t.Fatalf("volumes %v, %v", volumes, err)
	}
	w.must(os.WriteFile(filepath.Join(volumes[0], "go"), nil, 0o644))
	first := *before["killed"].PID
	w.must(killMain(w.lineage(), *before["killed"].InstanceID, first))
	// All that is to happen meanwhile has happened; the deadline and the idle time too.
	for name, pid := range map[string]int{"ends": *before["ends"].PID, "killed": first} {
		if !within(30*time.Second, func() bool { return dead(pid) }) {
			t.Fatalf("process %d of %s lives", pid, name)
		}
	}
	for _, at := range []time.Time{deadline, before["idler"].LastActivity.Add(4 * time.Second)} {
		time.Sleep(time.Until(at))
	}
	back := time.Now()
	w.serve()

	for _, name := range []string{"writer", "frozen", "plain", "relayed", "made"} {
		v, was := w.view(name), before[name]
		if v.Phase != was.Phase || v.PID == nil || *v.PID != *was.PID || *v.InstanceID != *was.InstanceID {
			t.Errorf("%s was %s with process %d, is %s with %v", name, was.Phase, *was.PID, v.Phase, v.PID)
		}
	}
	if v := w.view("off"); v.Phase != plan.Stopped || v.Hold == nil || v.Hold.By != "operator" || *v.InstanceID != *before["off"].InstanceID {
		t.Errorf("off: %+v", v)
	}
	v := w.phase("ends", plan.Stopped)
	if v.Outcome == nil || v.Outcome.ExitCode != 42 || v.Outcome.Reason != "exited" || v.Outcome.At.Before(gone) || v.Outcome.At.After(back) {
		t.Errorf("ends: outcome %+v, it ended between %s and %s", v.Outcome, gone, back)
	}
	if v := w.phase("killed", plan.Running); *v.InstanceID != *before["killed"].InstanceID || *v.PID == first {
		t.Errorf("killed: %+v", v)
	}
	killed := w.events("killed", "exited")
	if len(killed) != 1 || killed[0].Message != "signal 9" {
		t.Errorf("history of killed: %+v", killed)
	}
	v = w.phase("due", plan.Stopped)
	if c := condition(v, "Expired"); c.Status != "True" || v.Outcome == nil || v.Outcome.Reason != "shutdown_time" {
		t.Errorf("due: %+v, outcome %+v", c, v.Outcome)
	}
	expired := w.events("due", "expired")
	if len(expired) != 1 || expired[0].At.Before(back) {
		t.Errorf("history of due: %+v", expired)
	} else {
		t.Logf("a deadline that had passed is acted on %s after the agent began", expired[0].At.Sub(back).Round(time.Millisecond))
	}
	v = w.phase("idler", plan.Paused)
	held := w.events("idler", "held")
	if len(held) != 1 || v.Hold == nil || v.Hold.By != "idle" || v.LastActivity.After(gone) {
		t.Errorf("idler: hold %+v, last used %s, the agent died at %s", v.Hold, v.LastActivity, gone)
	}

	w.served("plain")
	w.served("relayed")
	w.says("writer", "echo well", "well\n")
	w.act("resume", "frozen")
	if v := w.phase("frozen", plan.Running); *v.PID != *before["frozen"].PID {
		t.Errorf("frozen goes on as process %d, was %d", *v.PID, *before["frozen"].PID)
	}
	w.act("start", "made")
	if v := w.phase("made", plan.Running); *v.PID != *before["made"].PID {
		t.Errorf("made was started as process %d, was %d", *v.PID, *before["made"].PID)
	}
	w.until("made", "begun", func(reconcile.SandboxView) bool { _, err := w.sh("made", "cat /begun"); return err == nil })
	w.act("start", "off")
	if v := w.phase("off", plan.Running); *v.InstanceID != *before["off"].InstanceID {
		t.Errorf("off came back as %s", *v.InstanceID)
	}
	for _, name := range []string{"writer", "frozen"} {
		w.unbroken(name)
	}
	for _, e := range w.since(seq) {
		if slices.Contains([]string{"lost", "recreate", "restart", "repair", "error", "undone"}, e.Type) {
			t.Errorf("adopted with %s of %s: %s %s", e.Type, e.Address, e.Reason, e.Message)
		}
	}
}

// TestManyAreAdopted: none of many is restarted. How long it takes is printed; the
// bench part has the number that counts.
func TestManyAreAdopted(t *testing.T) {
	w := newWorld(t)
	const n = 40
	w.apply(fmt.Sprintf("sandbox \"s\" {\n count = %d\n image = image.base\n command = [\"sleep\", \"infinity\"]\n}\n", n))
	pids := func() map[string]int {
		list, err := w.List(w.ctx)
		w.must(err)
		all := map[string]int{}
		for _, v := range list.Sandboxes {
			if v.Phase == plan.Running {
				all[*v.InstanceID] = *v.PID
			}
		}
		return all
	}
	before, seq := pids(), w.newest()
	if len(before) != n {
		t.Fatalf("%d of %d run", len(before), n)
	}
	w.kill()
	begun := time.Now()
	w.serve()
	t.Logf("%d adopted %s after the agent began", n, time.Since(begun).Round(time.Millisecond))
	after := pids()
	for id, pid := range before {
		if after[id] != pid || dead(pid) {
			t.Errorf("instance %s was process %d, is %d", id, pid, after[id])
		}
	}
	if all := w.since(seq); len(all) > 0 {
		t.Errorf("the history of a restart of the agent: %+v", all)
	}
}

// copyProgram puts a copy of this test's binary at path.
func copyProgram(w *world, path string) {
	w.Helper()
	from, err := os.Open("/proc/self/exe")
	w.must(err)
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	w.must(err)
	_, err = io.Copy(to, from)
	w.must(err)
	w.must(to.Close())
}

// lineage is short, also while no agent runs.
func (w *world) lineage() string {
	w.Helper()
	b, err := os.ReadFile(filepath.Join(w.dir, "state", "lineage"))
	w.must(err)
	return reconcile.ShortID(strings.TrimSpace(string(b)))
}

// served demands an answer on the sandbox's port.
func (w *world) served(name string) {
	w.Helper()
	port := w.view(name).Ports["p"].Host
	var err error
	if !within(30*time.Second, func() bool { err = hello(port, 20*time.Second); return err == nil }) {
		w.Errorf("%s: %v", name, err)
	}
}

// newest is the number of the last event.
func (w *world) newest() uint64 {
	w.Helper()
	res, err := w.Events(w.ctx, reconcile.EventsRequest{Last: 1})
	w.must(err)
	if len(res.Events) == 0 {
		return 0
	}
	return res.Events[0].Seq
}

// since is what happened after that event.
func (w *world) since(seq uint64) []reconcile.Event {
	w.Helper()
	res, err := w.Events(w.ctx, reconcile.EventsRequest{After: seq})
	w.must(err)
	return res.Events
}

// unbroken reads what counting wrote, waits for more of it, and demands each number
// once.
func (w *world) unbroken(name string) {
	w.Helper()
	f, err := w.OpenLog(w.ctx, name)
	w.must(err)
	defer f.Close()
	st, err := f.Stat()
	w.must(err)
	end := st.Size() + 100
	if !within(30*time.Second, func() bool { st, err := f.Stat(); return err == nil && st.Size() > end }) {
		w.Errorf("%s writes no more", name)
	}
	next, lines := 0, bufio.NewReader(io.LimitReader(f, end))
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break // the limit may have cut the last one
		}
		w.must(err)
		if line != strconv.Itoa(next)+"\n" {
			w.Errorf("%s: %q follows %d", name, line, next-1)
			return
		}
		next++
	}
	if next < 20 {
		w.Errorf("%s: only %d lines", name, next)
	}
}
