// Package examples_test runs every example on this host with the program as it
// is built, and shows what each one promises.
package examples_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pinfold/reconcile"
	"pinfold/runtime/leftovers"
)

// bound is how long a test waits for anything before it fails.
const bound = 30 * time.Second

// program is the pinfold that the tests run.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the examples make real sandboxes: run the tests as root")
		return 1
	}
	dir, err := os.MkdirTemp("", "pinfold-examples-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "pinfold")
	build := exec.Command("go", "build", "-o", program, "pinfold/cmd/pinfold")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot build pinfold:", err)
		return 1
	}
	return m.Run()
}

// shows is what an example promises beyond that it can be applied and destroyed.
var shows = map[string]func(*example){
	"deadline":   showDeadline,
	"farm":       showFarm,
	"lifecycle":  showLifecycle,
	"modules":    showModules,
	"quickstart": showQuickstart,
	"service":    showService,
}

// TestExamples runs the directories one after the other: quickstart has an
// address range of its own, and two of them at a time would make their failures
// hard to read.
func TestExamples(t *testing.T) {
	dirs, err := filepath.Glob("*/main.hcl")
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) != len(shows) {
		t.Fatalf("%d examples, but %d are told here what they show", len(dirs), len(shows))
	}
	for _, main := range dirs {
		name := filepath.Dir(main)
		t.Run(name, func(t *testing.T) {
			show := shows[name]
			if show == nil {
				t.Fatalf("nothing is told here about what examples/%s shows", name)
			}
			e := newExample(t, name)
			e.ok("fmt", "-check")
			e.ok("validate")
			e.exits(2, "plan", "-detailed-exitcode")
			e.ok("apply", "-auto-approve")
			e.exits(0, "plan", "-detailed-exitcode")
			show(e)
			e.ok("destroy", "-auto-approve")
			if left := e.list(); len(left) != 0 {
				t.Errorf("after destroy: %v", left)
			}
			e.clean()
		})
	}
}

// showDeadline lets the deadlines pass under an agent.
func showDeadline(e *example) {
	if s := e.sandbox("sandbox.day"); s.ExpiresAt != nil {
		e.t.Errorf("sandbox.day expires at %v without a shutdown_time", s.ExpiresAt)
	}
	e.agent()
	end := time.Now().Add(1000 * time.Hour).UTC().Truncate(time.Second)
	e.ok("apply", "-auto-approve", "-var", "ttl=1s", "-var", "shutdown_time="+end.Format(time.RFC3339))
	if s := e.sandbox("sandbox.day"); s.ExpiresAt == nil || !s.ExpiresAt.Equal(end) {
		e.t.Errorf("sandbox.day expires at %v, want %v", s.ExpiresAt, end)
	}
	e.ok("wait", "-for=Expired", "-timeout", bound.String(), "report")
	e.ok("wait", "-for=phase=stopped", "-timeout", bound.String(), "report")
	e.ok("wait", "-for=phase=destroyed", "-timeout", bound.String(), "scratch")
	e.exits(0, "plan", "-detailed-exitcode", "-var", "ttl=1s", "-var", "shutdown_time="+end.Format(time.RFC3339))

	// A longer ttl starts what was kept again, and makes what was deleted anew.
	e.ok("apply", "-auto-approve")
	e.ok("wait", "-for=Ready", "-timeout", bound.String(), "report", "scratch", "day")
	e.ok("exec", "report", "test", "-s", "/result")
}

// showFarm changes the map of workers.
func showFarm(e *example) {
	small, large := e.sandbox(`sandbox.worker["small"]`), e.sandbox(`sandbox.worker["large"]`)
	if small.Phase != "running" || large.Phase != "running" || small.Address == large.Address {
		e.t.Errorf("workers: %+v, %+v", small, large)
	}
	var outputs struct {
		Outputs map[string]struct {
			Value any `json:"value"`
		} `json:"outputs"`
	}
	e.decode(&outputs, "output", "-json")
	addresses, _ := outputs.Outputs["addresses"].Value.(map[string]any)
	if len(addresses) != 2 || addresses["small"] != small.Address || addresses["large"] != large.Address {
		e.t.Errorf("output addresses is %v, the workers have %s and %s", addresses, small.Address, large.Address)
	}
	if out := e.ok("exec", `worker["large"]`, "cat", "/work/journal"); out != "large began\n" {
		e.t.Errorf("the large worker's journal is %q", out)
	}
	e.ok("apply", "-auto-approve", "-var", "workers={ large = {}, third = {} }")
	if s := e.sandbox(`sandbox.worker["large"]`); s.PID != large.PID || s.Address != large.Address {
		e.t.Errorf("new limits did not leave the large worker running: %+v, before %+v", s, large)
	}
	if list := e.list(); len(list) != 2 || list[1].Name != `sandbox.worker["third"]` {
		e.t.Errorf("workers now: %+v", list)
	}
}

// showLifecycle lets sandboxes rest, wakes them, and lets one fail.
func showLifecycle(e *example) {
	e.agent()
	e.ok("apply", "-auto-approve", "-var", "idle=1s")
	e.ok("wait", "-for=Paused", "-timeout", bound.String(), "shell")
	before := e.sandbox("sandbox.shell")
	e.ok("wait", "-for=Suspended", "-timeout", bound.String(), "site")
	if s := e.sandbox("sandbox.site"); s.PID != 0 {
		e.t.Errorf("sandbox.site rests with a process: %+v", s)
	}
	e.exits(0, "plan", "-detailed-exitcode", "-var", "idle=1s")

	// Whoever comes wakes them: the same process, and a fresh one.
	e.ok("exec", "shell", "touch", "/here")
	if s := e.sandbox("sandbox.shell"); s.PID != before.PID || s.Instance != before.Instance {
		e.t.Errorf("exec woke another process: %+v, before %+v", s, before)
	}
	url := strings.TrimSpace(e.ok("output", "-raw", "url"))
	res, err := (&http.Client{Timeout: bound}).Get(url)
	if err != nil {
		e.t.Fatalf("the first connection to what rests: %v", err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "awake\n" {
		e.t.Errorf("the site says %q, %v", body, err)
	}

	// A deadline that passes freezes it, and the next who comes goes on.
	e.ok("apply", "-auto-approve", "-var", "idle=never", "-var", "ttl=1s")
	e.ok("wait", "-for=Expired", "-timeout", bound.String(), "shell")
	e.ok("wait", "-for=Paused", "-timeout", bound.String(), "shell")
	e.ok("exec", "shell", "test", "-e", "/here")
	if s := e.sandbox("sandbox.shell"); s.PID != before.PID || s.ExpiresAt == nil || time.Until(*s.ExpiresAt) < 50*time.Minute {
		e.t.Errorf("after it woke: %+v", s)
	}

	// A failure is followed by a start on the same files.
	e.ok("exec", "worker", "touch", "/fail")
	e.until("a second run of the worker", func() (bool, string) {
		out, code := e.pinfold("exec", "worker", "cat", "/journal")
		return code == 0 && out == "began\nbegan\n", out
	})
	if out := e.ok("history", "worker"); !strings.Contains(out, "exit (exit code 1)") || !strings.Contains(out, "Restarts:  1") {
		e.t.Errorf("history tells of the worker:\n%s", out)
	}
}

// showModules looks through two levels of modules, and takes a team away.
func showModules(e *example) {
	board := e.sandbox(`module.team["red"].sandbox.board`)
	worker := e.sandbox(`module.team["red"].module.worker[1].sandbox.this`)
	if out := e.ok("exec", worker.Name, "sh", "-c", "echo $BOARD"); out != board.Address+"\n" {
		e.t.Errorf("the worker's board is %q, its address is %s", out, board.Address)
	}
	e.until("the worker's words", func() (bool, string) {
		out := e.ok("logs", worker.Name)
		return out == "I am worker-1.\n", out
	})
	if list := e.list(); len(list) != 5 {
		e.t.Errorf("two teams have %d sandboxes: %+v", len(list), list)
	}
	e.ok("apply", "-auto-approve", "-var", "teams={ red = {} }")
	if list := e.list(); len(list) != 3 {
		e.t.Errorf("one team has %d sandboxes: %+v", len(list), list)
	}
	if s := e.sandbox(worker.Name); s.PID != worker.PID {
		e.t.Errorf("the other team's end restarted a worker: %+v, before %+v", s, worker)
	}
	e.ok("apply", "-auto-approve")
}

func showQuickstart(e *example) {
	if body := e.get(); body != "hello from a sandbox\n" {
		e.t.Errorf("the service says %q", body)
	}
	if list := e.list(); len(list) != 5 {
		e.t.Errorf("%d sandboxes: %+v", len(list), list)
	}
}

func showService(e *example) {
	const greeting = "hello from the service\n"
	if body := e.get(); body != greeting {
		e.t.Errorf("the service says %q", body)
	}
	e.until("the client's answer", func() (bool, string) {
		out := e.ok("logs", "client")
		return strings.HasSuffix(out, greeting), out
	})
	before := e.sandbox("sandbox.service")
	e.ok("apply", "-auto-approve", "-var", "greeting=good evening")
	if body := e.get(); body != "good evening\n" {
		e.t.Errorf("with another greeting the service says %q", body)
	}
	if s := e.sandbox("sandbox.service"); s.PID == before.PID || s.Address != before.Address || s.Instance != before.Instance {
		e.t.Errorf("a new file did not just restart the service: %+v, before %+v", s, before)
	}
	// Replaced, it has another address, which the client has as well.
	before = e.sandbox("sandbox.service")
	e.ok("apply", "-auto-approve", "-var", "greeting=good night", "-replace=sandbox.service")
	if s := e.sandbox("sandbox.service"); s.Address == before.Address || s.Instance == before.Instance {
		e.t.Errorf("the replacement did not come first: %+v, before %+v", s, before)
	}
	if body := e.get(); body != "good night\n" {
		e.t.Errorf("the replacement says %q", body)
	}
	e.until("the client asks the replacement", func() (bool, string) {
		out := e.ok("logs", "client")
		return strings.HasSuffix(out, "good night\n"), out
	})
}

// example is one directory with a state of its own.
type example struct {
	t          *testing.T
	dir        string
	state, run string
	env        []string
	resident   *exec.Cmd
}

func newExample(t *testing.T, dir string) *example {
	tmp := t.TempDir()
	e := &example{t: t, dir: dir, state: filepath.Join(tmp, "state"), run: filepath.Join(tmp, "run")}
	// Ranges that this process has to itself: others test on this host as well.
	settings := filepath.Join(tmp, "host.hcl")
	pool := fmt.Sprintf("address_pools = [\"10.%d.%d.0/24\"]\n", 64+os.Getpid()%32, os.Getpid()/32%256)
	if err := os.WriteFile(settings, []byte(pool), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PINFOLD_") {
			e.env = append(e.env, v)
		}
	}
	e.env = append(e.env, "PINFOLD_STATE_DIR="+e.state, "PINFOLD_RUN_DIR="+e.run, "PINFOLD_HOST_CONFIG="+settings)
	t.Cleanup(func() {
		e.stopAgent()
		if t.Failed() {
			out, code := e.pinfold("destroy", "-auto-approve")
			t.Logf("destroy after the failure: exit %d\n%s", code, out)
		}
	})
	return e
}

// pinfold runs a command in the example's directory. out is its standard output,
// followed by its standard error when it fails.
func (e *example) pinfold(args ...string) (out string, code int) {
	e.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = e.dir, e.env
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.t.Fatal(err)
	}
	if err != nil {
		return stdout.String() + stderr.String(), exit.ExitCode()
	}
	return stdout.String(), 0
}

func (e *example) exits(want int, args ...string) string {
	e.t.Helper()
	out, code := e.pinfold(args...)
	if code != want {
		e.t.Fatalf("pinfold %s: exit %d, want %d\n%s", strings.Join(args, " "), code, want, out)
	}
	return out
}

func (e *example) ok(args ...string) string {
	e.t.Helper()
	return e.exits(0, args...)
}

func (e *example) decode(into any, args ...string) {
	e.t.Helper()
	if err := json.Unmarshal([]byte(e.ok(args...)), into); err != nil {
		e.t.Fatalf("pinfold %s: %v", strings.Join(args, " "), err)
	}
}

// sandbox is what the tests read of `list -json`.
type sandbox struct {
	Name      string     `json:"address"`
	Instance  string     `json:"instance_id"`
	Phase     string     `json:"phase"`
	PID       int        `json:"pid"`
	Address   string     `json:"address_v4"`
	ExpiresAt *time.Time `json:"expires_at"`
}

func (e *example) list() []sandbox {
	e.t.Helper()
	var l struct {
		Sandboxes []sandbox `json:"sandboxes"`
	}
	e.decode(&l, "list", "-json")
	return l.Sandboxes
}

func (e *example) sandbox(name string) sandbox {
	e.t.Helper()
	for _, s := range e.list() {
		if s.Name == name {
			return s
		}
	}
	e.t.Fatalf("there is no %s", name)
	return sandbox{}
}

// get asks the service at output url until it answers.
func (e *example) get() (body string) {
	e.t.Helper()
	url := strings.TrimSpace(e.ok("output", "-raw", "url"))
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	e.until("an answer of "+url, func() (bool, string) {
		res, err := client.Get(url)
		if err != nil {
			return false, err.Error()
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		body = string(b)
		return err == nil, fmt.Sprint(err)
	})
	return body
}

// until waits for a condition of the world.
func (e *example) until(what string, look func() (ok bool, seen string)) {
	e.t.Helper()
	deadline := time.Now().Add(bound)
	for {
		ok, seen := look()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("waited %v in vain for %s: %s", bound, what, seen)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// agent starts an agent, which clean stops.
func (e *example) agent() {
	e.t.Helper()
	cmd := exec.Command(program, "agent")
	cmd.Dir, cmd.Env = e.dir, e.env
	log := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.resident = cmd
	e.t.Cleanup(func() {
		if e.t.Failed() {
			e.t.Logf("the agent said:\n%s", log)
		}
	})
	e.until("the agent's socket", func() (bool, string) {
		_, err := os.Stat(filepath.Join(e.run, "agent.sock"))
		return err == nil, fmt.Sprint(err)
	})
}

func (e *example) stopAgent() {
	if e.resident == nil {
		return
	}
	cmd := e.resident
	e.resident = nil
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		e.t.Errorf("cannot end the agent: %v", err)
	}
	if err := cmd.Wait(); err != nil {
		e.t.Errorf("the agent ended badly: %v", err)
	}
}

// clean checks that the host holds nothing of the example any more.
func (e *example) clean() {
	e.t.Helper()
	e.stopAgent()
	lineage, err := os.ReadFile(filepath.Join(e.state, "lineage"))
	if err != nil {
		e.t.Fatal(err)
	}
	short := reconcile.ShortID(strings.TrimSpace(string(lineage)))
	left, err := leftovers.Settled(short, e.state, e.run)
	if err != nil || len(left) > 0 {
		e.t.Errorf("left on the host: %q, %v", left, err)
	}
}
