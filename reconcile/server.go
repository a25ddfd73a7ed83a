package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

// server answers calls on the agent's socket with its engine.
type server struct {
	e      *Engine
	runDir string
	conns  sync.WaitGroup
}

// listen makes the socket, readable and writable by root alone. A stale one of
// a dead agent is replaced, a living agent's is refused.
func listen(runDir string) (*net.UnixListener, error) {
	path := filepath.Join(runDir, SocketName)
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return nil, &Error{Kind: Locked, Message: "another agent already serves " + path + "; stop it first, or give this one its own -run-dir and -state-dir"}
	} else if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("cannot use %s: %w", path, err)
	}
	err := failpoint.Step("engine.socket.remove", func() error { return os.Remove(path) })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("cannot make way for the socket: %w", err)
	}
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	var l *net.UnixListener
	err = failpoint.Step("engine.socket.listen", func() (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		return err
	})
	if err != nil {
		if l != nil {
			l.Close()
		}
		return nil, fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	return l, nil
}

// socketCheck is how often the socket is looked for.
const socketCheck = time.Second

// serve accepts calls until ctx ends, then waits for those that run: each is
// cancelled as by one Ctrl-C. A socket that somebody removed with the run dir is
// made again.
func (s *server) serve(ctx context.Context, l *net.UnixListener) error {
	defer s.conns.Wait()
	for l != nil {
		if err := s.accept(ctx, l); err != nil || ctx.Err() != nil {
			return err
		}
		if l = s.listenAgain(ctx); l != nil {
			s.e.log.Warn("the socket was gone, as when the run dir is cleared, and is made again", "socket", l.Addr())
			s.e.wake() // what else was in the run dir is gone too
		}
	}
	return nil
}

// listenAgain tries until there is a socket; nil when ctx ends before.
func (s *server) listenAgain(ctx context.Context) *net.UnixListener {
	for {
		err := failpoint.Step("engine.rundir.keep", func() error { return os.MkdirAll(s.runDir, 0o700) })
		if err == nil {
			var l *net.UnixListener
			if l, err = listen(s.runDir); err == nil {
				return l
			}
		}
		s.e.complain("", "cannot make the socket again", err)
		select {
		case <-time.After(socketCheck):
		case <-ctx.Done():
			return nil
		}
	}
}

// accept serves the listener until ctx ends or its socket is gone.
func (s *server) accept(ctx context.Context, l *net.UnixListener) error {
	path := filepath.Join(s.runDir, SocketName)
	made, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	gone, lost := context.WithCancel(ctx)
	defer lost()
	stop := context.AfterFunc(gone, func() { l.Close() })
	defer stop()
	s.conns.Go(func() {
		tick := time.NewTicker(socketCheck)
		defer tick.Stop()
		for {
			select {
			case <-gone.Done():
				return
			case <-tick.C:
			}
			if now, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(made, now) {
				l.SetUnlinkOnClose(false) // what is there now is not ours
				lost()
				return
			}
		}
	})
	spare := openSpare()
	defer func() { spare.Close() }()
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			if gone.Err() != nil {
				return nil
			}
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				s.e.log.Error("too many open files; a caller is sent away", "error", err)
				spare.Close()
				s.sendAway(l, err)
				spare = openSpare()
				select {
				case <-time.After(100 * time.Millisecond):
					continue
				case <-ctx.Done():
					return nil
				}
			}
			return fmt.Errorf("socket: %w", err)
		}
		s.conns.Go(func() { s.one(ctx, &wire{conn: conn}) })
	}
}

// openSpare keeps a descriptor for when there is none: with it a caller can be told.
func openSpare() *os.File {
	f, err := os.Open(os.DevNull)
	if err != nil {
		return nil // Close of it does nothing
	}
	return f
}

// sendAway answers one caller, on the descriptor that was kept for that, that there
// is none for it.
func (s *server) sendAway(l *net.UnixListener, full error) {
	_ = l.SetDeadline(time.Now().Add(time.Second)) // it may have been given up meanwhile
	defer func() { _ = l.SetDeadline(time.Time{}) }()
	conn, err := l.AcceptUnix()
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	w := &wire{conn: conn}
	if call, err := w.receive(); err == nil {
		call.close()
	}
	(&session{w: w}).fail(&Error{Kind: Internal, Message: fmt.Sprintf(
		"the agent cannot open another file (%v); raise its limit (LimitNOFILE= of its unit, ulimit -n) and start it again: sandboxes live on", full)}, nil)
}

// callWait bounds how long a connection may take to say what it wants. One that
// says nothing is only somebody asking whether we live.
const callWait = time.Minute

// session is one call being answered.
type session struct {
	w       *wire
	answers chan bool
	signals chan int
}

func (s *server) one(ctx context.Context, w *wire) {
	defer w.conn.Close()
	_ = w.conn.SetReadDeadline(time.Now().Add(callWait))
	hurry := context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Now()) })
	call, err := w.receive()
	if !hurry() || err != nil || call.Type != "call" {
		ses := &session{w: w}
		var said *Error
		if errors.As(err, &said) {
			ses.fail(said, nil)
		}
		if call != nil {
			call.close()
		}
		return
	}
	defer call.close()
	_ = w.conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithCancel(ctx)
	ses := &session{w: w, answers: make(chan bool, 1), signals: make(chan int, 16)}
	var listening sync.WaitGroup
	listening.Go(func() { ses.listen(ctx, cancel) })
	defer func() {
		cancel()
		w.conn.Close() // ends listen
		listening.Wait()
	}()
	defer func() {
		if p := recover(); p != nil {
			s.e.log.Error("a call failed in an unexpected way", "method", call.Method, "panic", p, "stack", string(debug.Stack()))
			ses.fail(&Error{Kind: Internal, Message: fmt.Sprintf("internal error in %s: %v; this is a bug", call.Method, p)}, nil)
		}
	}()
	s.dispatch(ctx, cancel, ses, call)
}

// listen handles what the client sends while its call runs.
func (ses *session) listen(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	for {
		f, err := ses.w.receive()
		if err != nil {
			return
		}
		f.close()
		switch f.Type {
		case "cancel":
			return
		case "answer":
			var yes bool
			if json.Unmarshal(f.Body, &yes) == nil {
				select {
				case ses.answers <- yes:
				case <-ctx.Done():
				}
			}
		case "signal":
			var sig int
			if json.Unmarshal(f.Body, &sig) == nil {
				select {
				case ses.signals <- sig:
				case <-ctx.Done():
				}
			}
		}
	}
}

func (s *server) dispatch(ctx context.Context, cancel context.CancelFunc, ses *session, call *frame) {
	// A state that cannot be used any more is told of by each call, but by those that
	// tell what is wrong with it and who has it.
	if err := s.e.stored(); err != nil && call.Method != "verify" && call.Method != "status" {
		ses.fail(err, nil)
		return
	}
	switch call.Method {
	case "plan":
		answer(ses, call, func(r PlanRequest) (any, error) { return s.e.Plan(ctx, r) })
	case "apply":
		answer(ses, call, func(r ApplyRequest) (any, error) { return s.apply(ctx, cancel, ses, r) })
	case "list":
		answer(ses, call, func(a []string) (any, error) { return s.e.List(ctx, a...) })
	case "stats":
		answer(ses, call, func(a []string) (any, error) { return s.e.Stats(ctx, a...) })
	case "describe":
		answer(ses, call, func(a string) (any, error) { return s.e.Describe(ctx, a) })
	case "act":
		answer(ses, call, func(r ActRequest) (any, error) { return s.e.Act(ctx, r) })
	case "renew":
		answer(ses, call, func(r RenewRequest) (any, error) { return s.e.Renew(ctx, r) })
	case "outputs":
		answer(ses, call, func(struct{}) (any, error) { return s.e.Outputs(ctx) })
	case "drift":
		answer(ses, call, func(r DriftRequest) (any, error) { return s.e.Drift(ctx, r) })
	case "pull":
		answer(ses, call, func(struct{}) (any, error) { return s.e.Pull(ctx) })
	case "output":
		answer(ses, call, func(name string) (any, error) { return s.e.Output(ctx, name) })
	case "records":
		answer(ses, call, func(struct{}) (any, error) { return s.e.Records(ctx) })
	case "volumes":
		answer(ses, call, func(struct{}) (any, error) { return s.e.Volumes(ctx) })
	case "volume":
		answer(ses, call, func(name string) (any, error) { return s.e.Volume(ctx, name) })
	case "images":
		answer(ses, call, func(struct{}) (any, error) { return s.e.Images(ctx) })
	case "image":
		answer(ses, call, func(name string) (any, error) { return s.e.Image(ctx, name) })
	case "status":
		answer(ses, call, func(struct{}) (any, error) { return s.e.Status(ctx) })
	case "log":
		s.log(ctx, ses, call)
	case "exec":
		s.exec(ctx, ses, call)
	case "attach":
		s.attach(ctx, ses, call)
	case "copy-out":
		s.copy(ctx, ses, call, s.e.CopyOut)
	case "copy-in":
		s.copy(ctx, ses, call, s.e.CopyIn)
	case "touch":
		answer(ses, call, func(a string) (any, error) { return s.e.Touch(ctx, a) })
	case "events":
		answer(ses, call, func(r EventsRequest) (any, error) { return s.e.Events(ctx, r) })
	case "verify":
		answer(ses, call, func(struct{}) (any, error) { return s.e.Verify(ctx) })
	case "backup":
		answer(ses, call, func(r BackupRequest) (any, error) { return s.backup(ctx, call, r) })
	case "gc":
		answer(ses, call, func(r GCRequest) (any, error) { return s.e.GC(ctx, r) })
	case "state-move":
		answer(ses, call, func(r StateMoveRequest) (any, error) { return s.e.StateMove(ctx, r) })
	case "state-remove":
		answer(ses, call, func(r StateRemoveRequest) (any, error) { return s.e.StateRemove(ctx, r) })
	default:
		ses.fail(&Error{Kind: Invalid, Message: fmt.Sprintf("this agent does not know %q; it is another version", call.Method)}, nil)
	}
}

// answer decodes the request, runs it, and sends result or error.
func answer[R any](ses *session, call *frame, do func(R) (any, error)) {
	var r R
	if len(call.Body) > 0 {
		if err := json.Unmarshal(call.Body, &r); err != nil {
			ses.fail(&Error{Kind: Invalid, Message: "the request cannot be read: " + err.Error()}, nil)
			return
		}
	}
	res, err := do(r)
	if err != nil {
		ses.fail(err, res)
		return
	}
	if err := ses.w.send("result", "", res); err != nil {
		ses.fail(err, nil)
	}
}

func (ses *session) fail(err error, result any) {
	x := failure{}
	x.Error, _ = errorOf(err).(*Error)
	if result != nil {
		x.Result, _ = json.Marshal(result)
	}
	_ = ses.w.send("error", "", x)
}

func (s *server) apply(ctx context.Context, cancel context.CancelFunc, ses *session, r ApplyRequest) (any, error) {
	confirm := func(p *PlanResult) (bool, error) {
		if err := ses.w.send("confirm", "", p); err != nil {
			return false, err
		}
		select {
		case yes := <-ses.answers:
			return yes, nil
		case <-ctx.Done():
			return false, &Error{Kind: Interrupted, Message: "interrupted while waiting for approval"}
		}
	}
	// A client that does not read what it is told counts as one that vanished.
	var gone atomic.Bool
	progress := func(p Progress) {
		if !gone.Load() && ses.w.send("progress", "", p) != nil {
			gone.Store(true)
			cancel()
		}
	}
	res, err := s.e.Apply(ctx, r, confirm, progress)
	if res == nil {
		return nil, err
	}
	return res, err
}

func (s *server) log(ctx context.Context, ses *session, call *frame) {
	var address string
	if err := json.Unmarshal(call.Body, &address); err != nil {
		ses.fail(&Error{Kind: Invalid, Message: err.Error()}, nil)
		return
	}
	f, err := s.e.OpenLog(ctx, address)
	if err != nil {
		ses.fail(err, nil)
		return
	}
	defer f.Close()
	_ = ses.w.send("result", "", nil, f)
}

const (
	// hangupGrace is how long an exec whose client is gone may take to end after its
	// hangup signal.
	hangupGrace = 5 * time.Second
	// killGrace is how long it may take to end after being killed. One that is
	// frozen, or hangs in the kernel, does not: it dies once it can, and the agent's
	// own end must not wait for that.
	killGrace = 2 * time.Second
)

func (s *server) exec(ctx context.Context, ses *session, call *frame) {
	var r execCall
	if err := json.Unmarshal(call.Body, &r); err != nil || len(r.Streams) != len(call.files) {
		ses.fail(&Error{Kind: Invalid, Message: "the request cannot be read"}, nil)
		return
	}
	for i, n := range r.Streams {
		switch n {
		case 0:
			r.Stdin = call.files[i]
		case 1:
			r.Stdout = call.files[i]
		case 2:
			r.Stderr = call.files[i]
		}
	}
	p, err := s.e.exec(ctx, r.ExecRequest)
	if err != nil {
		ses.fail(err, nil)
		return
	}
	var console []*os.File
	if c := p.Console(); c != nil {
		console = append(console, c)
	}
	_ = ses.w.send("started", "", nil, console...) // a client that is gone ends ctx
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() { pass(ctx, p, console, ses.signals, done) })
	code, err := p.Wait()
	close(done)
	passing.Wait()
	if err != nil {
		ses.fail(err, nil)
		return
	}
	_ = ses.w.send("result", "", code)
}

func (s *server) attach(ctx context.Context, ses *session, call *frame) {
	var address string
	if err := json.Unmarshal(call.Body, &address); err != nil {
		ses.fail(&Error{Kind: Invalid, Message: "the request cannot be read"}, nil)
		return
	}
	p, err := s.e.attach(ctx, address)
	if err != nil {
		ses.fail(err, nil)
		return
	}
	// A client that goes only lets go: the process is the sandbox's own.
	stop := context.AfterFunc(ctx, func() { p.close(&Error{Kind: Interrupted, Message: "detached from " + p.address}, true) })
	defer stop()
	_ = ses.w.send("started", "", nil)
	done := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case sig := <-ses.signals:
				_ = p.Signal(sig)
			case <-done:
				return
			}
		}
	})
	code, err := p.Wait()
	close(done)
	passing.Wait()
	if err != nil {
		ses.fail(err, nil)
		return
	}
	_ = ses.w.send("result", "", code)
}

func (s *server) copy(ctx context.Context, ses *session, call *frame, do func(context.Context, CopyRequest) error) {
	var r CopyRequest
	if err := json.Unmarshal(call.Body, &r); err != nil || len(call.files) != 1 {
		ses.fail(&Error{Kind: Invalid, Message: "the request cannot be read"}, nil)
		return
	}
	r.Archive = call.files[0]
	// A client that goes ends the copy: its end of the pipe is gone too.
	if err := do(ctx, r); err != nil {
		ses.fail(err, nil)
		return
	}
	_ = ses.w.send("result", "", nil)
}

// backup writes to the file that came with the call, if one did.
func (s *server) backup(ctx context.Context, call *frame, r BackupRequest) (any, error) {
	if want := min(1, len(r.Path)); len(call.files) != want {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("a backup to %q came with %d files, not %d", r.Path, len(call.files), want)}
	}
	if r.Path != "" {
		r.File = call.files[0]
	}
	return s.e.Backup(ctx, r)
}

// pass forwards the client's signals. When the client goes, or the agent ends, it
// hangs the command up as a closed terminal would, kills it if that is not
// enough, and closes the session if not even that is. It closes the console,
// whose last holder's end hangs the command up; of a command that goes on without
// its client it is kept open and read until that ends.
func pass(ctx context.Context, p *execSession, console []*os.File, signals <-chan int, done <-chan struct{}) {
	defer func() {
		for _, c := range console {
			if p.stays {
				go drain(c)
			} else {
				c.Close()
			}
		}
	}()
	for {
		select {
		case sig := <-signals:
			_ = p.Signal(sig)
			continue
		case <-done:
			return
		case <-ctx.Done():
		}
		break
	}
	for _, c := range console {
		c.Close()
	}
	console = nil
	for _, step := range []struct {
		sig   syscall.Signal
		grace time.Duration
	}{{syscall.SIGHUP, hangupGrace}, {syscall.SIGKILL, killGrace}} {
		_ = p.Signal(int(step.sig))
		t := time.NewTimer(step.grace)
		select {
		case <-done:
			t.Stop()
			return
		case <-t.C:
		}
	}
	p.close(&Error{Kind: Conflict, Message: fmt.Sprintf(
		"the command in %s was killed and does not end; it dies once it can, at resume if its sandbox is frozen", p.address)}, false)
}

// drain reads a terminal that nobody looks at any more, so that the command does
// not stop at a full buffer, until the command lets go of it (EIO, pty(7)).
func drain(console *os.File) {
	_, _ = io.Copy(io.Discard, console)
	console.Close()
}
