package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"pinfold/reconcile"
	"pinfold/runtime/leftovers"
)

// bound is how long a script waits for anything before it fails.
const bound = 30 * time.Second

var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){
	"serve":     serve,
	"agent":     startAgent,
	"agentstop": stopAgent,
	"exitcode":  exitCode,
	"until":     until,
	"json":      checkJSON,
	"schema":    schemaCommand,
	"signal":    signalSandbox,
	"begin":     begin,
	"printed":   printed,
	"ended":     ended,
	"logged":    logged,
	"looks":     looks,
	"listen":    listen,
	"link":      link,
	"nobody":    nobody,
	"tmpfs":     tmpfs,
	"hostclean": hostClean,
}

var agentKey = new(int)

// agentProcess is the agent a script runs, if any.
type agentProcess struct {
	cmd  *exec.Cmd
	log  said
	read int // how much of the log `logged` has gone through
}

// said is output that can be read while it is written.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// serve starts an agent in the runs that are with one.
func serve(ts *testscript.TestScript, neg bool, args []string) {
	if ts.Getenv("MODE") == "agent" {
		startAgent(ts, neg, args)
	}
}

// agent [FLAG]...: starts an agent and waits until its socket answers.
func startAgent(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("unsupported: ! agent")
	}
	a := ts.Value(agentKey).(*agentProcess)
	if a.cmd != nil {
		ts.Fatalf("an agent runs already")
	}
	program, err := lookPath(ts, "pinfold")
	ts.Check(err)
	a.log, a.read = said{}, 0
	a.cmd = exec.Command(program, append([]string{"agent"}, args...)...)
	a.cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "PINFOLD_HOST_CONFIG", "PINFOLD_STATE_DIR", "PINFOLD_RUN_DIR", "PINFOLD_VAR_word"} {
		a.cmd.Env = append(a.cmd.Env, name+"="+ts.Getenv(name))
	}
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	ts.Check(a.cmd.Start())
	socket := filepath.Join(ts.Getenv("PINFOLD_RUN_DIR"), "agent.sock")
	for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("unix", socket)
		if err == nil {
			ts.Check(c.Close())
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("the agent does not serve: %v\n%s", err, a.end(syscall.SIGKILL))
		}
	}
}

// end ends the agent and returns what it said.
func (a *agentProcess) end(sig syscall.Signal) string {
	if a.cmd == nil {
		return ""
	}
	_ = a.cmd.Process.Signal(sig) // it may be gone already
	timer := time.AfterFunc(bound, func() { _ = a.cmd.Process.Kill() })
	err := a.cmd.Wait()
	timer.Stop()
	a.cmd = nil
	if err != nil {
		fmt.Fprintf(&a.log, "(ended: %v)\n", err)
	}
	return a.log.String()
}

// agentstop [-kill]: ends the agent in order, or kills it. What it said can be
// matched with stderr.
func stopAgent(ts *testscript.TestScript, neg bool, args []string) {
	a := ts.Value(agentKey).(*agentProcess)
	sig := syscall.SIGTERM
	if len(args) > 0 && args[0] == "-kill" {
		sig = syscall.SIGKILL
	}
	if neg || a.cmd == nil {
		ts.Fatalf("no agent runs")
	}
	said := a.end(sig)
	ts.Logf("[agent]\n%s", said)
	if sig == syscall.SIGTERM && strings.Contains(said, "(ended:") {
		ts.Fatalf("the agent did not end in order")
	}
}

func lookPath(ts *testscript.TestScript, name string) (string, error) {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 && !info.IsDir() {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in PATH", name)
}

// exitcode N COMMAND...: runs it and checks its exit code.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode N COMMAND [ARGUMENT]...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// until PATTERN COMMAND...: runs it again and again until its standard output
// matches. With ! until it no longer matches.
func until(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: until PATTERN COMMAND [ARGUMENT]...")
	}
	pattern, err := regexp.Compile(`(?m)` + args[0])
	ts.Check(err)
	for end := time.Now().Add(bound); ; time.Sleep(50 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		out := ts.ReadFile("stdout")
		if err == nil && pattern.MatchString(out) != neg {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("after %s: %v", bound, err)
		}
	}
}

// json PATH VALUE: the last standard output is JSON, and at PATH (keys and
// indexes with dots between) it has VALUE, written as JSON or as a bare word.
func checkJSON(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: json PATH VALUE")
	}
	d := json.NewDecoder(strings.NewReader(ts.ReadFile("stdout")))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		ts.Fatalf("standard output is not JSON: %v", err)
	}
	if d.More() {
		ts.Fatalf("standard output is more than one JSON document")
	}
	for step := range strings.SplitSeq(args[0], ".") {
		switch x := v.(type) {
		case map[string]any:
			var ok bool
			if v, ok = x[step]; !ok {
				ts.Fatalf("%s: there is no %q", args[0], step)
			}
		case []any:
			if step == "len" {
				v = json.Number(strconv.Itoa(len(x)))
				continue
			}
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(x) {
				ts.Fatalf("%s: no element %s of %d", args[0], step, len(x))
			}
			v = x[i]
		default:
			ts.Fatalf("%s: nothing below %v", args[0], v)
		}
	}
	got, err := json.Marshal(v)
	ts.Check(err)
	text, isText := v.(string)
	same := string(got) == args[1] || isText && text == args[1]
	if same == neg {
		ts.Fatalf("%s is %s", args[0], got)
	}
}

// signal SIG SANDBOX: sends a signal from the host to the sandbox's PID 1.
func signalSandbox(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signal NUMBER SANDBOX")
	}
	sig, err := strconv.Atoi(args[0])
	ts.Check(err)
	ts.Check(ts.Exec("pinfold", "list", "-json", args[1]))
	var list reconcile.ListResult
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &list))
	if len(list.Sandboxes) != 1 || list.Sandboxes[0].PID == nil {
		ts.Fatalf("%s has no process", args[1])
	}
	ts.Check(syscall.Kill(*list.Sandboxes[0].PID, syscall.Signal(sig)))
}

// background is the command that begin started, if any.
type background struct {
	cmd      *exec.Cmd
	out, err string // files
}

var backgroundKey = new(int)

// begin PATTERN COMMAND...: starts a command and waits until its standard output
// matches. ended collects it.
func begin(ts *testscript.TestScript, neg bool, args []string) {
	b := ts.Value(backgroundKey).(*background)
	if neg || len(args) < 2 || b.cmd != nil {
		ts.Fatalf("usage: begin PATTERN COMMAND [ARGUMENT]..., one at a time")
	}
	pattern, err := regexp.Compile(`(?m)` + args[0])
	ts.Check(err)
	program, err := lookPath(ts, args[1])
	ts.Check(err)
	dir, err := os.MkdirTemp(ts.Getenv("WORK"), "begun")
	ts.Check(err)
	b.out, b.err = filepath.Join(dir, "stdout"), filepath.Join(dir, "stderr")
	b.cmd = exec.Command(program, args[2:]...)
	b.cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "PINFOLD_HOST_CONFIG", "PINFOLD_STATE_DIR", "PINFOLD_RUN_DIR", jsonRuns, schemasAt} {
		b.cmd.Env = append(b.cmd.Env, name+"="+ts.Getenv(name))
	}
	out, err := os.Create(b.out)
	ts.Check(err)
	defer out.Close()
	stderr, err := os.Create(b.err)
	ts.Check(err)
	defer stderr.Close()
	b.cmd.Stdout, b.cmd.Stderr = out, stderr
	if err := b.cmd.Start(); err != nil {
		b.cmd = nil
		ts.Fatalf("%v", err)
	}
	for end := time.Now().Add(bound); !pattern.MatchString(ts.ReadFile(b.out)); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.end()
			ts.Fatalf("its output never matched %s:\n%s%s", pattern, ts.ReadFile(b.out), ts.ReadFile(b.err))
		}
	}
}

// end kills what still runs.
func (b *background) end() {
	if b.cmd != nil {
		_ = b.cmd.Process.Kill() // it may be gone already
		_ = b.cmd.Wait()
		b.cmd = nil
	}
}

// printed PATTERN: what began prints a line like this within the bound.
func printed(ts *testscript.TestScript, neg bool, args []string) {
	b := ts.Value(backgroundKey).(*background)
	if neg || len(args) != 1 || b.cmd == nil {
		ts.Fatalf("usage: printed PATTERN, after begin")
	}
	pattern, err := regexp.Compile(`(?m)` + args[0])
	ts.Check(err)
	for end := time.Now().Add(bound); !pattern.MatchString(ts.ReadFile(b.out)); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("not printed within %s: %s\n%s", bound, pattern, ts.ReadFile(b.out))
		}
	}
}

// ended N [SIGNAL]...: sends the begun command the signals that are named, each after
// it answered the one before, waits for its end and checks its exit code.
func ended(ts *testscript.TestScript, neg bool, args []string) {
	b := ts.Value(backgroundKey).(*background)
	if neg || len(args) < 1 || b.cmd == nil {
		ts.Fatalf("usage: ended N [SIGNAL]..., after begin")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	for i, arg := range args[1:] {
		sig, err := strconv.Atoi(arg)
		ts.Check(err)
		for end := time.Now().Add(bound); i > 0 && !strings.Contains(ts.ReadFile(b.err), "again to stop at once"); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				ts.Fatalf("the first signal was not answered:\n%s", ts.ReadFile(b.err))
			}
		}
		ts.Check(b.cmd.Process.Signal(syscall.Signal(sig)))
	}
	timer := time.AfterFunc(bound, func() { _ = b.cmd.Process.Kill() })
	_ = b.cmd.Wait() // the exit code is checked
	timer.Stop()
	got := b.cmd.ProcessState.ExitCode()
	b.cmd = nil
	ts.Logf("[stdout]\n%s[stderr]\n%s", ts.ReadFile(b.out), ts.ReadFile(b.err))
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// hostclean: ends the agent, if one runs, and then nothing of this script's
// state is left on the host but its record.
func hostClean(ts *testscript.TestScript, neg bool, _ []string) {
	if neg {
		ts.Fatalf("unsupported: ! hostclean")
	}
	if ts.Value(agentKey).(*agentProcess).cmd != nil {
		stopAgent(ts, false, nil)
	}
	left, err := leftOf(leftovers.Settled, ts.Getenv("PINFOLD_STATE_DIR"), ts.Getenv("PINFOLD_RUN_DIR"))
	ts.Check(err)
	if len(left) > 0 {
		ts.Fatalf("left on the host:\n%s", strings.Join(left, "\n"))
	}
}

// abandon ends what a script leaves, so that a failure does not disturb others,
// and fails nothing: hostclean is what checks.
func abandon(env *testscript.Env) {
	defer env.Values[foreignKey].(*foreign).end(env.T().Log)
	env.Values[backgroundKey].(*background).end()
	if said := env.Values[agentKey].(*agentProcess).end(syscall.SIGTERM); said != "" {
		env.T().Log("[agent]\n" + said)
	}
	left, err := leftOf(leftovers.Of, env.Getenv("PINFOLD_STATE_DIR"), env.Getenv("PINFOLD_RUN_DIR"))
	if err == nil && len(left) == 0 {
		return
	}
	// Any valid configuration will do for a destroy of what is recorded; the
	// script's own may be broken on purpose.
	dir := filepath.Join(env.WorkDir, "abandoned")
	program, err := os.Executable()
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "main.hcl"), []byte("image \"none\" {\n  source = \"host\"\n}\n"), 0o644)
	}
	if err != nil {
		env.T().Log("cannot clean up: ", err)
		return
	}
	pinfold := func(args ...string) ([]byte, error) {
		cmd := exec.Command(program)
		cmd.Args = append([]string{"pinfold"}, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), scriptHelper+"=1", "PINFOLD_STATE_DIR="+env.Getenv("PINFOLD_STATE_DIR"), "PINFOLD_RUN_DIR="+env.Getenv("PINFOLD_RUN_DIR"), "PINFOLD_HOST_CONFIG="+env.Getenv("PINFOLD_HOST_CONFIG"))
		return cmd.CombinedOutput()
	}
	endProcesses(pinfold)
	out, err := pinfold("destroy", "-auto-approve", "-take-over")
	env.T().Log(fmt.Sprintf("left behind: %q; destroy: %v\n%s", left, err, out))
	if left, err := leftOf(leftovers.Settled, env.Getenv("PINFOLD_STATE_DIR"), env.Getenv("PINFOLD_RUN_DIR")); err == nil && len(left) == 0 {
		return
	}
	// The script lost or damaged its state, or has something that is on no record: a
	// state made anew of what is there destroys it.
	err = os.RemoveAll(filepath.Join(env.Getenv("PINFOLD_STATE_DIR"), "state.db"))
	anew, err2 := pinfold("state", "rebuild", "-auto-approve")
	out, err3 := pinfold("destroy", "-auto-approve", "-take-over")
	env.T().Log(fmt.Sprintf("anew: %v\n%s%s", errors.Join(err, err2, err3), anew, out))
	if left, err := leftOf(leftovers.Settled, env.Getenv("PINFOLD_STATE_DIR"), env.Getenv("PINFOLD_RUN_DIR")); err != nil || len(left) > 0 {
		env.T().Log(fmt.Sprintf("STILL on the host: %q, %v", left, err))
	}
}

// endProcesses ends what a script's sandboxes run, so that nothing waits for the grace
// of one that takes no notice of SIGTERM.
func endProcesses(pinfold func(...string) ([]byte, error)) {
	out, err := pinfold("list", "-json")
	var list struct{ Sandboxes []struct{ PID *int } }
	if err != nil || json.Unmarshal(out, &list) != nil {
		return // a damaged state: made anew below
	}
	for _, s := range list.Sandboxes {
		if s.PID != nil {
			_ = syscall.Kill(*s.PID, syscall.SIGKILL)
		}
	}
}
