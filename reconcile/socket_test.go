package reconcile

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/sim"
	"pinfold/state"
)

// serve runs a whole agent in this process, over the simulated host, and returns
// a client of its socket.
func (l *lab) serve() (c *Client, e *Engine, runDir string, stop func()) {
	l.t.Helper()
	runDir = l.t.TempDir()
	e = l.open("agent")
	e.info.StateDir = l.state
	ctx, cancel := context.WithCancel(context.Background())
	ready, over := make(chan struct{}), make(chan error, 1)
	o := AgentOptions{OpenOptions: OpenOptions{RunDir: runDir, StateDir: l.state}, Ready: func() { close(ready) }}
	go func() { over <- e.serveAgent(ctx, o) }()
	select {
	case <-ready:
	case err := <-over:
		l.t.Fatalf("agent: %v", err)
	}
	c, ok, err := dial(runDir)
	if err != nil || !ok {
		l.t.Fatalf("dial: %v %v", ok, err)
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-over:
			if err != nil {
				l.t.Errorf("agent: %v", err)
			}
		case <-time.After(20 * time.Second):
			l.t.Error("the agent does not end")
		}
		e.nudge = nil
	}
	l.t.Cleanup(stop)
	return c, e, runDir, stop
}

// eventually polls a condition with a bound.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func TestSocketSaysWhatTheEngineSays(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": twoSandboxes})
	c, e, runDir, stop := l.serve()
	ctx := context.Background()
	st, err := os.Stat(filepath.Join(runDir, SocketName))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v", st.Mode(), err)
	}
	p, err := c.Plan(ctx, PlanRequest{Source: l.source()})
	if err != nil || p.Plan.Summary.Add != 5 {
		t.Fatalf("plan %+v, %v", p, err)
	}
	var asked *PlanResult
	var progress []string
	r := ApplyRequest{PlanRequest: PlanRequest{Source: l.source()}}
	res, err := c.Apply(ctx, r, func(p *PlanResult) (bool, error) { asked = p; return false, nil }, nil)
	if err != nil || !res.Declined || asked.Plan.Summary.Add != 5 {
		t.Fatalf("declined: %+v, %v", res, err)
	}
	_, err = c.Apply(ctx, r, func(*PlanResult) (bool, error) { return false, &Error{Kind: Invalid, Message: "no terminal"} }, nil)
	l.refused(err, Invalid, "no terminal")
	res, err = c.Apply(ctx, r, func(*PlanResult) (bool, error) { return true, nil }, func(p Progress) { progress = append(progress, p.Address+" "+p.State) })
	if err != nil || res.Applied.Add != 5 || len(res.Outputs) != 1 {
		t.Fatalf("apply: %+v, %v", res, err)
	}
	for _, want := range []string{"sandbox.a started", "sandbox.a done", "network.n done"} {
		if !slices.Contains(progress, want) {
			t.Errorf("progress %v lacks %s", progress, want)
		}
	}
	// Every answer is the same through the socket and without it.
	same := func(what string, a, b any, errA, errB error) {
		t.Helper()
		ja, _ := json.Marshal(a)
		jb, _ := json.Marshal(b)
		if errA != nil || errB != nil || !bytes.Equal(ja, jb) {
			t.Errorf("%s: %s %v\nthrough the socket %s %v", what, ja, errA, jb, errB)
		}
	}
	la, ea := e.List(ctx)
	lb, eb := c.List(ctx)
	same("list", la, lb, ea, eb)
	la, ea = e.List(ctx, "a")
	lb, eb = c.List(ctx, "a")
	same("list a", la, lb, ea, eb)
	da, ea := e.Describe(ctx, "a")
	db, eb := c.Describe(ctx, "a")
	same("describe", da, db, ea, eb)
	oa, ea := e.Outputs(ctx)
	ob, eb := c.Outputs(ctx)
	same("outputs", oa, ob, ea, eb)
	// Nor does a pass of the agent between the two, which is why they are asked again.
	alike := func(what string, ask func(Service) (any, error)) {
		t.Helper()
		for range 5 {
			a, ea := ask(e)
			b, eb := ask(c)
			ja, _ := json.Marshal(a)
			if jb, _ := json.Marshal(b); ea == nil && eb == nil && bytes.Equal(ja, jb) {
				return
			}
		}
		a, ea := ask(e)
		b, eb := ask(c)
		same(what, a, b, ea, eb)
	}
	alike("plan", func(s Service) (any, error) {
		p, err := s.Plan(ctx, PlanRequest{Source: l.source(), Options: plan.Options{Replace: []string{"sandbox.a"}}})
		if err == nil && p.Plan.Summary.Replace != 1 {
			err = fmt.Errorf("the plan replaces nothing: %+v", p.Plan.Summary)
		}
		return p, err
	})
	alike("records", func(s Service) (any, error) {
		r, err := s.Records(ctx)
		if err == nil && len(r.Records.Sandboxes) != 2 {
			err = fmt.Errorf("records of %d sandboxes", len(r.Records.Sandboxes))
		}
		return r, err
	})
	alike("pull", func(s Service) (any, error) { return s.Pull(ctx) })
	for _, r := range []EventsRequest{{}, {Address: "sandbox.a"}, {Last: 2}, {Types: []string{"create"}}} {
		alike(fmt.Sprintf("events %+v", r), func(s Service) (any, error) {
			v, err := s.Events(ctx, r)
			if err == nil && len(v.Events) == 0 {
				err = errors.New("there are none")
			}
			return v, err
		})
	}
	for _, r := range []DriftRequest{{}, {Ignore: []string{"sandbox.a"}}} {
		alike(fmt.Sprintf("drift %+v", r), func(s Service) (any, error) {
			if now, err := e.Drift(ctx, DriftRequest{}); err == nil && !now.Drifted() { // not yet, or mended
				l.world.Break(l.id(e, "sandbox.a"), "link")
			}
			d, err := s.Drift(ctx, r)
			if err == nil && d.Drifted() != (len(r.Ignore) == 0) {
				err = fmt.Errorf("it tells %+v", d.Drift)
			}
			return d, err
		})
	}
	sa, ea := e.Status(ctx)
	sb, eb := c.Status(ctx)
	same("status", sa, sb, ea, eb)
	if a, err := c.Act(ctx, ActRequest{Verb: "pause", Address: "a"}); err != nil || a.Sandbox.Phase != plan.Paused {
		t.Errorf("pause: %+v, %v", a, err)
	}
	_, err = c.Act(ctx, ActRequest{Verb: "pause", Address: "a"})
	l.refused(err, Conflict, "is paused, cannot pause")
	_, err = c.Act(ctx, ActRequest{Verb: "pause", Address: "nobody"})
	l.refused(err, NotFound, "nobody")
	d := config.Duration(time.Hour)
	if a, err := c.Renew(ctx, RenewRequest{Address: "a", In: &d}); err != nil || a.Sandbox.ExpiresAt == nil {
		t.Errorf("renew: %+v, %v", a, err)
	}
	_, err = c.Plan(ctx, PlanRequest{})
	l.refused(err, Invalid, "needs a configuration")
	bad := *l.source()
	bad.Files = map[string][]byte{"main.hcl": []byte("sandbox \"a\" { image = image.none }")}
	_, err = c.Plan(ctx, PlanRequest{Source: &bad})
	l.refused(err, Invalid, "")
	var x *Error
	if !errors.As(err, &x) || !x.Diagnostics.HasErrors() {
		t.Errorf("diagnostics are lost: %+v", x)
	}
	// What failed comes with what was done.
	l.main(twoSandboxes + "\nsandbox \"c\" {\n image = image.base\n command = [\"sim\", \"exec-fails\"]\n}")
	res, err = c.Apply(ctx, ApplyRequest{PlanRequest: PlanRequest{Source: l.source()}, AutoApprove: true}, nil, nil)
	l.refused(err, Internal, "1 of the planned changes failed")
	if res == nil || len(res.Failures) != 1 || res.Failures[0].Address != "sandbox.c" {
		t.Errorf("result with the error: %+v", res)
	}
	if _, err := c.Apply(ctx, ApplyRequest{PlanRequest: PlanRequest{Source: l.source(), Options: plan.Options{Destroy: true}}, AutoApprove: true}, nil, nil); err != nil {
		t.Error(err)
	}
	stop()
	if _, err := os.Lstat(filepath.Join(runDir, SocketName)); !os.IsNotExist(err) {
		t.Errorf("the socket stays: %v", err)
	}
	l.close(e)
	l.clean()
}

func TestSocketExecAndLog(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": strings.Replace(one(""), `"append=/log:x"`, `"print=hello"`, 1)})
	c, e, _, stop := l.serve()
	ctx := context.Background()
	l.apply(e, plan.Options{})
	log, err := c.OpenLog(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(log); err != nil || string(b) != "hello\n" {
		t.Errorf("log %q, %v", b, err)
	}
	log.Close()

	exec := func(stdin string, args ...string) (int, string, string, error) {
		t.Helper()
		in, inW, _ := os.Pipe()
		outR, out, _ := os.Pipe()
		errR, errW, _ := os.Pipe()
		inW.WriteString(stdin)
		inW.Close()
		s, err := c.Exec(ctx, ExecRequest{Address: "a", Args: args, Stdin: in, Stdout: out, Stderr: errW})
		in.Close()
		out.Close()
		errW.Close()
		if err != nil {
			outR.Close()
			errR.Close()
			return 0, "", "", err
		}
		code, err := s.Wait()
		o, _ := io.ReadAll(outR)
		x, _ := io.ReadAll(errR)
		outR.Close()
		errR.Close()
		return code, string(o), string(x), err
	}
	code, out, errOut, err := exec("typed", "sim", "print=out", "err=err", "stdin", "exit=7")
	if err != nil || code != 7 || out != "out\ntyped" || errOut != "err\n" {
		t.Errorf("exec: %d %q %q %v", code, out, errOut, err)
	}
	_, _, _, err = exec("", "sim", "exec-fails")
	var x *Error
	if !errors.As(err, &x) || x.Code == 0 {
		t.Errorf("a command that cannot be executed: %+v", x)
	}
	// A signal reaches it; a client that goes hangs it up.
	s, err := c.Exec(ctx, ExecRequest{Address: "a", Args: []string{"sim", "await=USR1", "exit=4"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Signal(int(syscall.SIGUSR1)); err != nil {
		t.Error(err)
	}
	if code, err := s.Wait(); err != nil || code != 4 {
		t.Errorf("after USR1: %d, %v", code, err)
	}
	gone, err := c.Exec(ctx, ExecRequest{Address: "a", Args: []string{"sim", "await=HUP", "write=/hup:yes", "exit=0"}})
	if err != nil {
		t.Fatal(err)
	}
	gone.(*remoteExec).w.conn.Close()
	eventually(t, "the command is hung up", func() bool {
		text, _ := l.world.LayerFile(l.id(e, "sandbox.a"), "/hup")
		return text == "yes"
	})
	cctx, cancel := context.WithCancel(ctx)
	s, err = c.Exec(cctx, ExecRequest{Address: "a", Args: []string{"sleep"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if code, err := s.Wait(); err != nil || code != 128+1 {
		t.Errorf("a cancelled exec ends with %d, %v", code, err)
	}
	if _, err := c.Act(ctx, ActRequest{Verb: "pause", Address: "a"}); err != nil {
		t.Fatal(err)
	}
	_, _, _, err = exec("", "sim", "exit=0")
	l.refused(err, Conflict, "is paused, cannot exec")
	l.act(e, "resume", "a")
	l.act(e, "stop", "a")
	_, _, _, err = exec("", "sim", "exit=0")
	l.refused(err, Conflict, "is stopped, cannot exec")
	if n := openFiles(t); n > 200 {
		t.Errorf("%d descriptors open", n)
	}
	stop()
	l.end(e)
}

func openFiles(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestSocketClientThatVanishesInterrupts(t *testing.T) {
	for _, how := range []string{"cancel", "vanish", "vanish while asked"} {
		t.Run(how, func(t *testing.T) {
			l := newLab(t, map[string]string{"main.hcl": `
image "base" { source = "host" }
sandbox "s" {
  count   = 6
  image   = image.base
  command = ["sleep"]
}`})
			c, e, _, stop := l.serve()
			l.world.Delay(sim.OpCreate, 200*time.Millisecond)
			r := ApplyRequest{PlanRequest: PlanRequest{Source: l.source()}, AutoApprove: how != "vanish while asked", Parallelism: 1}
			switch how {
			case "cancel":
				ctx, cancel := context.WithCancel(context.Background())
				res, err := c.Apply(ctx, r, nil, func(p Progress) {
					if p.Address == "sandbox.s[0]" && p.State == "done" {
						cancel()
					}
				})
				cancel()
				if err != nil || !res.Interrupted || res.Applied.Add < 2 || res.Applied.Add > 3 {
					t.Errorf("%+v, %v", res, err)
				}
			default:
				w, err := c.open("apply", r)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := w.receive(); err != nil {
					t.Fatal(err)
				}
				w.conn.Close()
			}
			l.world.ClearFaults()
			eventually(t, "the next apply gets its turn", func() bool {
				release, err := e.turn.take(context.Background(), time.Millisecond, "test")
				if err == nil {
					release()
				}
				return err == nil
			})
			if n := len(l.phases(e)); n >= 6 || (how == "vanish while asked" && n != 0) {
				t.Errorf("%d of 6 were made for a client that is gone", n)
			}
			l.tidy(e)
			stop()
			l.end(e)
		})
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	_, e, runDir, stop := l.serve()
	_, err := listen(runDir)
	l.refused(err, Locked, "another agent already serves")
	err = RunAgent(context.Background(), AgentOptions{OpenOptions: OpenOptions{RunDir: runDir, StateDir: t.TempDir()}})
	l.refused(err, Locked, "another agent already serves")
	err = RunAgent(context.Background(), AgentOptions{OpenOptions: OpenOptions{RunDir: t.TempDir(), StateDir: l.state, LockWait: 10 * time.Millisecond}})
	l.refused(err, Locked, "")
	// Somebody with another state dir is told, not served.
	_, err = Open(context.Background(), OpenOptions{RunDir: runDir, StateDir: t.TempDir()})
	l.refused(err, Invalid, "serves state")
	s, err := Open(context.Background(), OpenOptions{RunDir: runDir, StateDir: e.info.StateDir})
	if _, ok := s.(*Client); err != nil || !ok {
		t.Errorf("open gives %T, %v", s, err)
	}
	stop()
	l.end(e)
}

func TestStateOfAnAgentWithAnotherRunDir(t *testing.T) {
	dir, runDir := t.TempDir(), t.TempDir()
	store, err := state.Open(context.Background(), state.Options{Dir: dir, Verb: agentVerb + runDir})
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t}
	_, err = Open(context.Background(), OpenOptions{RunDir: t.TempDir(), StateDir: dir, LockWait: NoLockWait, Verb: "plan"})
	l.refused(err, Invalid, "give -run-dir "+runDir+" to reach it")
	err = RunAgent(context.Background(), AgentOptions{OpenOptions: OpenOptions{RunDir: t.TempDir(), StateDir: dir, LockWait: NoLockWait}})
	l.refused(err, Invalid, "give -run-dir "+runDir+" to reach it")
	// The same run dir: its agent is just coming or going.
	_, err = Open(context.Background(), OpenOptions{RunDir: runDir, StateDir: dir, LockWait: NoLockWait, Verb: "plan"})
	l.refused(err, Locked, "(agent -run-dir "+runDir+")")
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	dir := t.TempDir()
	l, err := listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close() // as a killed agent leaves it
	if _, ok, err := dial(dir); ok || err != nil {
		t.Errorf("a dead socket answers: %v %v", ok, err)
	}
	l, err = listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestGarbageDoesNotHurt(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	c, e, runDir, stop := l.serve()
	l.apply(e, plan.Options{})
	path := filepath.Join(runDir, SocketName)
	send := func(b []byte, files ...*os.File) []byte {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		u := conn.(*net.UnixConn)
		var oob []byte
		for _, f := range files {
			oob = append(oob, unix.UnixRights(int(f.Fd()))...)
		}
		if _, _, err := u.WriteMsgUnix(b, oob, nil); err != nil {
			return nil
		}
		u.CloseWrite()
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		answer, err := io.ReadAll(conn)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("no end to the answer for %.60q", b)
		}
		return answer
	}
	frameOf := func(s string) []byte {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(s)))
		return append(b, s...)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	answer := send(binary.BigEndian.AppendUint32(nil, 1<<30))
	if !bytes.Contains(answer, []byte("is too long")) {
		t.Errorf("an oversized frame is answered with %q", answer)
	}
	before := openFiles(t)
	for _, s := range []string{
		"", "{", "null", "[]", `{"type":"call"}`, `{"type":"call","method":"nonsense"}`, `{"type":"call","method":"plan","body":7}`,
		`{"type":"call","method":"apply","body":{"source":{}}}`, `{"type":"call","method":"exec","body":{"streams":[0,1,2,9]}}`,
		`{"type":"call","method":"exec","body":{"address":"a","args":["sim","exit=0"],"streams":[5]}}`,
		`{"type":"call","method":"act","body":{"verb":"stop"}}`, `{"type":"answer","body":true}`, `{"type":"call","method":"list","body":["\u0000"]}`,
		`{"type":"call","method":"log","body":"nobody"}`, `{"type":"call","method":"renew","body":{"address":"a","until":"never"}}`,
		`{"type":"call","method":"apply","body":{"saved":{}}}`, `{"type":"call","method":"describe"}`,
	} {
		send(frameOf(s))
		send(frameOf(s), null)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	good := frameOf(`{"type":"call","method":"list","body":["a"]}`)
	for range 300 {
		b := slices.Clone(good)
		switch rng.IntN(3) {
		case 0:
			b = b[:rng.IntN(len(b))]
		case 1:
			b[4+rng.IntN(len(b)-4)] = byte(rng.IntN(256))
		default:
			for i := range b[4:] {
				b[4+i] = byte(rng.IntN(256))
			}
		}
		send(b)
	}
	if _, err := c.List(context.Background()); err != nil {
		t.Errorf("after garbage: %v", err)
	}
	l.phase(e, "sandbox.a", plan.Running)
	eventually(t, "descriptors that came with garbage are closed", func() bool { return openFiles(t) <= before })
	stop()
	l.end(e)
}

func TestManyClients(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": "image \"base\" { source = \"host\" }\n" + box("a", "") + box("b", "") + box("c", "")})
	c, e, _, stop := l.serve()
	l.apply(e, plan.Options{})
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			for n := range 10 {
				address := string(rune('a' + (i+n)%3))
				verb := []string{"pause", "resume", "stop", "start"}[(i*7+n)%4]
				if _, err := c.Act(context.Background(), ActRequest{Verb: verb, Address: address}); err != nil {
					var x *Error
					if !errors.As(err, &x) || x.Kind != Conflict {
						t.Errorf("%s %s: %v", verb, address, err)
					}
				}
				if _, err := c.List(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	l.apply(e, plan.Options{ReleaseHolds: true})
	l.nothingToDo(e)
	for a, p := range l.phases(e) {
		if p != plan.Running {
			t.Errorf("%s is %s", a, p)
		}
	}
	l.tidy(e)
	stop()
	l.end(e)
}

func TestAgentEndsWithIdleConnections(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	_, e, runDir, stop := l.serve()
	conn, err := net.Dial("unix", filepath.Join(runDir, SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	began := time.Now()
	stop() // fails by itself when it takes too long
	if d := time.Since(began); d > 15*time.Second {
		t.Errorf("it took %s", d)
	}
	l.end(e)
}
