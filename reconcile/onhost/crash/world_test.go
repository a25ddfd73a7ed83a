//go:build failpoints

package crash

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
	"pinfold/runtime/leftovers"
	"pinfold/state"
)

// bound is how long anything may take that is waited for.
const bound = 30 * time.Second

// world is one state, run dir and lineage, with a range of addresses of its own.
type world struct {
	*testing.T
	dir  string
	nets [2]string // the ranges that network.n has, and may get
	reconcile.Service
	givenUp string    // the instance that was left on the host without a record
	agent   *exec.Cmd // the one that is being talked to; nil: the engine is in this process
}

var number atomic.Int32

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, dir: t.TempDir()}
	net := fmt.Sprintf("10.%d.%d", 100+os.Getpid()%50, number.Add(1)%256)
	w.nets = [2]string{net + ".0/25", net + ".128/25"}
	for _, d := range []string{"config", "shared"} {
		w.must(os.Mkdir(filepath.Join(w.dir, d), 0o755))
	}
	t.Cleanup(w.end)
	return w
}

// shared is a directory of the host that sandboxes may use.
func shared(dir string) string { return filepath.Join(dir, "shared") }

func options(dir, verb string) reconcile.OpenOptions {
	settings := config.DefaultSettings()
	settings.AllowHostPaths = []string{shared(dir)}
	return reconcile.OpenOptions{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(dir, "run"), Settings: settings, Verb: verb,
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// open opens the state in this process.
func (w *world) open(verb string) {
	w.Helper()
	s, err := reconcile.Open(context.Background(), options(w.dir, verb))
	w.must(err)
	w.Service = s
}

func (w *world) close() {
	w.Helper()
	s := w.Service
	w.Service = nil
	w.must(s.Close())
	if w.agent != nil {
		w.agent.Process.Kill()
		w.agent.Wait()
		w.agent = nil
	}
}

// end destroys everything and looks for what is left.
func (w *world) end() {
	if w.agent != nil {
		w.agent.Process.Kill()
		w.agent.Wait()
		w.agent = nil
	}
	if w.Service != nil {
		w.Service.Close()
	}
	ctx := context.Background()
	w.takeBack(ctx)
	s, err := reconcile.Open(ctx, options(w.dir, "destroy"))
	if err != nil {
		w.Errorf("open for the end: %v", err)
		return
	}
	st, err := s.Status(ctx)
	if err != nil {
		w.Error(err)
	}
	destroy := reconcile.ApplyRequest{PlanRequest: reconcile.PlanRequest{Options: plan.Options{Destroy: true}}, AutoApprove: true}
	res, err := s.Apply(ctx, destroy, nil, nil)
	if err != nil && strings.Contains(tellOf(res, err).Error, runtime.ErrBusy.Error()) {
		// Where thousands of namespaces come and go, the kernel may take its time.
		w.Logf("once more: %+v", tellOf(res, err))
		res, err = s.Apply(ctx, destroy, nil, nil)
	}
	if err != nil || len(res.Failures) > 0 {
		w.Errorf("destroy: %v, %+v", err, tellOf(res, err))
	}
	if err := s.Close(); err != nil {
		w.Error(err)
	}
	short := reconcile.ShortID(st.Lineage)
	left, err := leftovers.Settled(short, filepath.Join(w.dir, "state"), filepath.Join(w.dir, "run"))
	if err != nil || len(left) > 0 {
		w.Errorf("left behind: %v, %v", left, err)
	}
	if left, err := (&ground{dir: w.dir, short: short}).settled(nil); err != nil || len(left) > 0 {
		w.Errorf("left behind: %v, %v", left, err)
	}
}

// takeBack puts on record what was left on the host for good, so that it can be
// destroyed. Nothing of pinfold takes a mark away without being asked to; here it is
// done by hand.
func (w *world) takeBack(ctx context.Context) {
	marks, err := filepath.Glob(filepath.Join(w.dir, "state", "instances", "*", "released"))
	if err != nil || len(marks) == 0 {
		return
	}
	s, err := reconcile.Open(ctx, options(w.dir, "gc"))
	if err != nil {
		w.Errorf("open for the end: %v", err)
		return
	}
	defer func() {
		if err := s.Close(); err != nil {
			w.Error(err)
		}
	}()
	for _, mark := range marks {
		if err := os.Remove(mark); err != nil {
			w.Error(err)
		}
		id := filepath.Base(filepath.Dir(mark))
		if _, err := s.GC(ctx, reconcile.GCRequest{Adopt: []string{id}}); err != nil {
			w.Errorf("take back %s: %v", id, err)
		}
	}
}

// files writes the configuration; an empty one stands for a base without sandboxes.
func (w *world) files(text string) {
	w.Helper()
	text = strings.NewReplacer("NET0", w.nets[0], "NET1", w.nets[1], "SHARED", shared(w.dir), "GIVENUP", w.givenUp).Replace(text)
	w.must(os.WriteFile(filepath.Join(w.dir, "config", "main.hcl"), []byte(text), 0o644))
}

func requestOf(dir string) (reconcile.PlanRequest, error) {
	src, diags := config.Load(filepath.Join(dir, "config"), config.Inputs{})
	if diags.HasErrors() {
		return reconcile.PlanRequest{}, &reconcile.Error{Kind: reconcile.Invalid, Message: "the configuration is not valid", Diagnostics: diags}
	}
	return reconcile.PlanRequest{Source: src}, nil
}

// applyFiles is an apply of the world's files, one sandbox after the other, so that
// each run passes the same points in the same order.
func applyFiles(ctx context.Context, s reconcile.Service, dir string) (*reconcile.ApplyResult, error) {
	return applyWith(ctx, s, dir, plan.Options{})
}

func applyWith(ctx context.Context, s reconcile.Service, dir string, o plan.Options) (*reconcile.ApplyResult, error) {
	req, err := requestOf(dir)
	if err != nil {
		return nil, err
	}
	req.Options = o
	return s.Apply(ctx, reconcile.ApplyRequest{PlanRequest: req, AutoApprove: true, Parallelism: 1}, nil, nil)
}

// apply applies the files and wants it to succeed.
func (w *world) apply() {
	w.Helper()
	res, err := applyFiles(context.Background(), w.Service, w.dir)
	if err != nil || len(res.Failures) > 0 {
		w.Fatalf("apply: %+v", tellOf(res, err))
	}
}

// todo lists what a plan of the files would do.
func (w *world) todo() (list []string) {
	w.Helper()
	req, err := requestOf(w.dir)
	w.must(err)
	p, err := w.Plan(context.Background(), req)
	w.must(err)
	for _, c := range p.Plan.Changes {
		if c.Action != plan.ActNoop {
			list = append(list, fmt.Sprintf("%s %s (%s)", c.Action, c.Address, c.Cause))
		}
	}
	return list
}

// within waits for ok, and fails with words where it does not come.
func (w *world) within(what string, ok func() bool) {
	w.Helper()
	for end := time.Now().Add(bound); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("not after %s: %s", bound, what)
		}
	}
}

func (w *world) act(verb, name string) {
	w.Helper()
	_, err := w.Act(context.Background(), reconcile.ActRequest{Verb: verb, Address: name})
	w.must(err)
}

func (w *world) view(name string) reconcile.SandboxView {
	w.Helper()
	res, err := w.List(context.Background(), name)
	w.must(err)
	return res.Sandboxes[0]
}

// child is a process of this world with an armed point, or with a log of what it
// passes.
func (w *world) child(role, arm, log string) *exec.Cmd {
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), dirVar+"="+w.dir, roleVar+"="+role, "PINFOLD_FAILPOINT="+arm, "PINFOLD_FAILPOINT_LOG="+log)
	return c
}

// do runs a verb in a child and returns what that said, or the signal that ended it.
func (w *world) do(v *verb, arm, log string) (t told, killed syscall.Signal) {
	w.Helper()
	if v.agent {
		return w.doAgent(v, arm, log)
	}
	var out, words bytes.Buffer
	c := w.child(v.name, arm, log)
	c.Stdout, c.Stderr = &out, &words
	w.must(c.Start())
	watchdog := time.AfterFunc(bound, func() { c.Process.Signal(syscall.SIGABRT) })
	err := c.Wait()
	if !watchdog.Stop() {
		w.Fatalf("%s does not end within %s:\n%s", v.name, bound, words.String())
	}
	return w.toldBy(c, err, out.Bytes(), words.String())
}

func (w *world) toldBy(c *exec.Cmd, err error, out []byte, words string) (t told, killed syscall.Signal) {
	w.Helper()
	if st, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && st.Signaled() {
		return t, st.Signal()
	}
	if err != nil {
		w.Fatalf("the child ended with %v:\n%s%s", err, out, words)
	}
	if err := json.Unmarshal(out, &t); err != nil {
		w.Fatalf("the child said %q: %v\n%s", out, err, words)
	}
	return t, 0
}

// doAgent runs an agent until it has nothing left to do, and then asks it to end.
func (w *world) doAgent(v *verb, arm, log string) (t told, killed syscall.Signal) {
	w.Helper()
	var words bytes.Buffer
	c := w.child("agent", arm, log)
	c.Stderr = &words
	r, err := c.StdoutPipe()
	w.must(err)
	w.must(c.Start())
	watchdog := time.AfterFunc(bound, func() { c.Process.Signal(syscall.SIGABRT) })
	defer watchdog.Stop()
	out := bufio.NewReader(r)
	var said []byte
	if line, err := out.ReadString('\n'); line == "ready\n" {
		if w.converges(v, c) {
			c.Process.Signal(syscall.SIGTERM)
		}
	} else if err == nil {
		said = []byte(line) // it could not begin
	}
	rest, _ := io.ReadAll(out)
	err = c.Wait()
	return w.toldBy(c, err, append(said, rest...), words.String())
}

// converges waits until an agent has nothing to do; false: it died first.
func (w *world) converges(v *verb, c *exec.Cmd) bool {
	req, err := requestOf(w.dir)
	w.must(err)
	o := options(w.dir, "test")
	o.ReadOnly = true
	for end := time.Now().Add(bound / 2); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if gone(c.Process.Pid) {
			return false
		}
		s, err := reconcile.Open(context.Background(), o)
		if err != nil {
			continue
		}
		p, err := s.Plan(context.Background(), req)
		s.Close()
		if err == nil && p.Plan.Summary == (plan.Summary{}) && (v.until == nil || v.until(w)) {
			return true
		}
	}
	return true // the checks tell what is still to do
}

// serve starts an agent and talks to it from then on.
func (w *world) serve() {
	w.Helper()
	c := w.child("agent", "", "")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	w.must(err)
	w.must(c.Start())
	w.agent = c
	watchdog := time.AfterFunc(bound, func() { c.Process.Kill() })
	defer watchdog.Stop()
	word := make([]byte, 6)
	if _, err := io.ReadFull(out, word); err != nil || string(word) != "ready\n" {
		w.Fatalf("the agent said %q, %v", word, err)
	}
	w.open("test")
}

// gone tells whether a process has ended, reaped or not.
func gone(pid int) bool {
	state, _ := statOf(pid)
	return state == "" || state == "Z" || state == "X"
}

// statOf is a process's state and start time; an empty state: there is none.
func statOf(pid int) (state, start string) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", ""
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // proc_pid_stat(5): from the third on
	return fields[0], fields[19]
}

// neighbour is sandbox.b as somebody sees it who talks to it all the time.
type neighbour struct {
	pid   int
	start string
	conn  net.Conn
	lines *bufio.Reader
}

// meet opens a connection to sandbox.b, which stays open over all that happens.
func (w *world) meet() *neighbour {
	w.Helper()
	v := w.view("b")
	n := &neighbour{pid: *v.PID}
	_, n.start = statOf(n.pid)
	w.within("sandbox.b listens", func() (ok bool) {
		c, err := net.DialTimeout("tcp", *v.AddressV4+":7", time.Second)
		n.conn = c
		return err == nil
	})
	w.Cleanup(func() { n.conn.Close() })
	n.lines = bufio.NewReader(n.conn)
	if err := n.talk("before"); err != nil {
		w.Fatal(err)
	}
	return n
}

func (n *neighbour) talk(word string) error {
	n.conn.SetDeadline(time.Now().Add(bound / 2))
	if _, err := io.WriteString(n.conn, word+"\n"); err != nil {
		return fmt.Errorf("sandbox.b's connection: %w", err)
	}
	if got, err := n.lines.ReadString('\n'); err != nil || got != word+"\n" {
		return fmt.Errorf("sandbox.b's connection answers %q, %v, to %q", got, err, word)
	}
	return nil
}

// well tells whether the neighbour is the same process, and still there.
func (n *neighbour) well() error {
	if state, start := statOf(n.pid); start != n.start {
		return fmt.Errorf("sandbox.b's process %d, started at %s, is %q, started at %q", n.pid, n.start, state, start)
	}
	return n.talk("after")
}

// journal lists the intents that nobody has ended.
func (w *world) journal() (open []string) {
	w.Helper()
	st, err := state.Open(context.Background(), state.Options{Dir: filepath.Join(w.dir, "state"), ReadOnly: true, Wait: bound})
	w.must(err)
	defer st.Close()
	w.must(st.View(func(tx state.Tx) error {
		return tx.Each(state.Journal, func(_ string, doc []byte) error {
			open = append(open, string(doc))
			return nil
		})
	}))
	return open
}
