// Package onhost tests the engine on the real kernel: an agent in a process of
// its own, which tests may kill, and a client of it. Each test has its own state,
// run dir and lineage, and proves at its end that nothing of it is left.
package onhost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "pinfold/runtime/host/boot"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
	"pinfold/runtime/leftovers"
)

// agentOf names the directory of the agent that a test's child process is.
const agentOf = "PINFOLD_TEST_AGENT_OF"

func TestMain(m *testing.M) {
	if dir := os.Getenv(agentOf); dir != "" {
		w := &world{dir: dir}
		err := reconcile.RunAgent(context.Background(), w.agentOptions())
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "these tests make real sandboxes: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// world is one state with its agent and a client.
type world struct {
	*testing.T
	dir   string
	ctx   context.Context
	agent *exec.Cmd
	reconcile.Service

	program string   // what the agent is; empty: this binary
	env     []string // more of its environment, see agentOptions
	log     *os.File // where it writes; nil: standard error
	attr    *syscall.SysProcAttr
}

var number atomic.Int32

// newWorld makes one. prepare is called before its agent starts; what it registers
// for the end happens when everything else is gone.
func newWorld(t *testing.T, prepare ...func(*world)) *world {
	t.Helper()
	t.Parallel()
	w := &world{T: t, dir: t.TempDir(), ctx: t.Context()}
	for _, d := range []string{"config", "state"} {
		w.must(os.Mkdir(filepath.Join(w.dir, d), 0o755))
	}
	pool := fmt.Sprintf("10.%d.%d.0/24", 200+os.Getpid()%50, number.Add(1))
	w.must(os.WriteFile(filepath.Join(w.dir, "pool"), []byte(pool), 0o644))
	for _, do := range prepare {
		do(w)
	}
	t.Cleanup(w.end)
	w.serve()
	return w
}

func (w *world) options(verb string) reconcile.OpenOptions {
	settings := config.DefaultSettings()
	if pool, err := os.ReadFile(filepath.Join(w.dir, "pool")); err == nil {
		settings.AddressPools = []string{string(pool)}
	}
	return reconcile.OpenOptions{StateDir: filepath.Join(w.dir, "state"), RunDir: filepath.Join(w.dir, "run"), Settings: settings, Verb: verb}
}

// serve starts an agent and opens a client of it.
func (w *world) serve() {
	w.Helper()
	w.start()
	var err error
	w.Service, err = reconcile.Open(w.ctx, w.options("test"))
	w.must(err)
}

// start starts an agent and waits until it is ready.
func (w *world) start() {
	w.Helper()
	c := exec.Command(cmp.Or(w.program, "/proc/self/exe"))
	c.Env = append(append(os.Environ(), agentOf+"="+w.dir), w.env...)
	c.Stderr, c.SysProcAttr = os.Stderr, w.attr
	if w.log != nil {
		c.Stderr = w.log
	}
	out, err := c.StdoutPipe()
	w.must(err)
	w.must(c.Start())
	w.agent = c
	slow := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	defer slow.Stop()
	word := make([]byte, 6)
	if _, err := out.Read(word); err != nil || string(word) != "ready\n" {
		w.Fatalf("the agent said %q, %v", word, err)
	}
}

// kill ends the agent as a crash would.
func (w *world) kill() {
	w.Helper()
	w.must(w.agent.Process.Kill())
	w.agent.Wait()
	w.agent = nil
}

// end destroys everything and looks for what is left.
func (w *world) end() {
	ctx := context.Background()
	if w.agent != nil {
		w.agent.Process.Signal(syscall.SIGKILL)
		w.agent.Wait()
	}
	s, err := reconcile.Open(ctx, w.options("destroy"))
	if err != nil {
		w.Errorf("open for the end: %v", err)
		return
	}
	defer s.Close()
	st, err := s.Status(ctx)
	if err != nil {
		w.Error(err)
		return
	}
	res, err := s.Apply(ctx, reconcile.ApplyRequest{PlanRequest: reconcile.PlanRequest{Options: plan.Options{Destroy: true}}, AutoApprove: true}, nil, nil)
	if err != nil || len(res.Failures) > 0 {
		w.Errorf("destroy: %v, %+v", err, res)
	}
	if err := s.Close(); err != nil {
		w.Error(err)
	}
	left, err := leftovers.Settled(reconcile.ShortID(st.Lineage), filepath.Join(w.dir, "state"), filepath.Join(w.dir, "run"))
	if err != nil || len(left) > 0 {
		w.Errorf("left behind: %v, %v", left, err)
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// apply writes the configuration and applies it.
func (w *world) apply(text string) *reconcile.ApplyResult {
	w.Helper()
	res, err := w.tryApply(text)
	if err != nil || len(res.Failures) > 0 {
		w.Fatalf("apply: %v, %+v", err, res)
	}
	return res
}

func (w *world) tryApply(text string) (*reconcile.ApplyResult, error) {
	w.Helper()
	conf := filepath.Join(w.dir, "config")
	w.must(os.WriteFile(filepath.Join(conf, "main.hcl"), []byte("image \"base\" { source = \"host\" }\n"+text), 0o644))
	src, diags := config.Load(conf, config.Inputs{})
	if diags.HasErrors() {
		w.Fatal(diags)
	}
	return w.Apply(w.ctx, reconcile.ApplyRequest{PlanRequest: reconcile.PlanRequest{Source: src}, AutoApprove: true}, nil, nil)
}

// box is a sandbox with a shell script as its command.
func box(name, script, extra string) string {
	return fmt.Sprintf("sandbox %q {\n  image = image.base\n  command = [\"sh\", \"-c\", %q]\n%s\n}\n", name, script, extra)
}

func (w *world) view(name string) reconcile.SandboxView {
	w.Helper()
	res, err := w.List(w.ctx, name)
	w.must(err)
	return res.Sandboxes[0]
}

// until waits for a sandbox to be as ok says.
func (w *world) until(name, what string, ok func(reconcile.SandboxView) bool) reconcile.SandboxView {
	w.Helper()
	var v reconcile.SandboxView
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if v = w.view(name); ok(v) {
			return v
		}
	}
	w.Fatalf("%s is not %s after a minute: %+v", name, what, v)
	return v
}

func (w *world) phase(name string, p plan.Phase) reconcile.SandboxView {
	w.Helper()
	return w.until(name, string(p), func(v reconcile.SandboxView) bool { return v.Phase == p })
}

func (w *world) act(verb, name string) {
	w.Helper()
	if _, err := w.Act(w.ctx, reconcile.ActRequest{Verb: verb, Address: name}); err != nil {
		w.Fatalf("%s %s: %v", verb, name, err)
	}
}

// sh runs a script in a sandbox and returns its output.
func (w *world) sh(name, script string) (string, error) {
	w.Helper()
	r, out, err := os.Pipe()
	w.must(err)
	defer r.Close()
	s, err := w.Exec(w.ctx, reconcile.ExecRequest{Address: name, Args: []string{"sh", "-c", script}, Stdout: out, Stderr: out})
	out.Close()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			break
		}
	}
	code, err := s.Wait()
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, b.String())
	}
	return b.String(), err
}

func (w *world) says(name, script, want string) {
	w.Helper()
	if got, err := w.sh(name, script); err != nil || got != want {
		w.Errorf("%s: %q says %q, %v, want %q", name, script, got, err, want)
	}
}

func condition(v reconcile.SandboxView, typ string) plan.Condition {
	for _, c := range v.Conditions {
		if c.Type == typ {
			return c
		}
	}
	return plan.Condition{}
}

func (w *world) events(name string, types ...string) []reconcile.Event {
	w.Helper()
	res, err := w.Events(w.ctx, reconcile.EventsRequest{Address: name, Types: types})
	w.must(err)
	return res.Events
}

func refused(err error, kind reconcile.ErrorKind, words string) error {
	var e *reconcile.Error
	if !errors.As(err, &e) || e.Kind != kind || !strings.Contains(e.Message, words) {
		return fmt.Errorf("error is %v, want %s with %q", err, kind, words)
	}
	return nil
}

// dead tells whether a process is gone, or a zombie that nobody has reaped yet.
func dead(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}
