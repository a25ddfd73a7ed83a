package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/config"
)

// Client hands calls to a running agent.
type Client struct {
	socket string
	// patience is how long an agent may take to say who it is; 0: greetWait, or
	// aliveWait for one that is at work for us.
	patience time.Duration
	// every is how often it is asked that while it is at work; 0: aliveEvery.
	every time.Duration
}

const (
	// greetWait bounds the wait for an agent to say who it is, which it does without
	// waiting for anything: one that does not is stopped, or hangs.
	greetWait = 20 * time.Second
	// aliveWait is the same for an agent that is at work for us. It is longer, for
	// giving up has a price there: it ends what the agent does.
	aliveWait = time.Minute
	// aliveEvery is how often a caller that waits asks.
	aliveEvery = 20 * time.Second
)

var _ Service = (*Client)(nil)

// dial connects to the agent of a run dir. ok is false when none runs there.
func dial(runDir string) (c *Client, ok bool, err error) {
	c = &Client{socket: filepath.Join(runDir, SocketName)}
	conn, err := net.DialTimeout("unix", c.socket, 2*time.Second)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("cannot reach the agent at %s: %w", c.socket, err)
	}
	conn.Close()
	return c, true, nil
}

// Close has nothing to let go of: each call is a connection of its own.
func (c *Client) Close() error { return nil }

// call is one exchange. on handles frames before the last; nil ignores them.
func (c *Client) call(ctx context.Context, method string, body, result any, on func(*wire, *frame) error, files ...*os.File) error {
	_, err := c.exchange(ctx, method, body, result, on, files...)
	return err
}

func (c *Client) exchange(ctx context.Context, method string, body, result any, on func(*wire, *frame) error, files ...*os.File) (*frame, error) {
	w, err := c.open(method, body, files...)
	if err != nil {
		return nil, err
	}
	defer w.conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = w.send("cancel", "", nil) })
	defer stop()
	silent := c.watch(w)
	defer silent()
	for {
		f, err := w.receive()
		if err != nil {
			if said := silent(); said != nil {
				return nil, &Error{Kind: Locked, Message: fmt.Sprintf("%v; %s is taken as interrupted once it goes on, finished or undone when it starts again", said, method)}
			}
			return nil, &Error{Kind: Internal, Message: fmt.Sprintf("the agent went away during %s: %v; what it had begun is finished or undone when it starts again", method, err)}
		}
		switch f.Type {
		case "result", "error":
			return f, decodeEnd(f, result)
		default:
			f.close()
			if on != nil {
				if err := on(w, f); err != nil {
					return nil, errorOf(err)
				}
			}
		}
	}
}

// watch asks the agent now and then who it is while it works for w, until end is
// called. When it does not answer, receiving from w ends, and end says why.
func (c *Client) watch(w *wire) (end func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var silent error
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(cmp.Or(c.every, aliveEvery))
		defer tick.Stop()
		for silent == nil {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			var e *Error
			if _, err := c.status(ctx, cmp.Or(c.patience, aliveWait)); errors.As(err, &e) && e.Kind == Locked {
				silent = err
				_ = w.conn.SetReadDeadline(time.Now())
			}
		}
	})
	return func() error {
		cancel()
		watching.Wait()
		return silent
	}
}

// ask is a call with one answer.
func ask[T any](ctx context.Context, c *Client, method string, body any) (*T, error) {
	res := new(T)
	if err := c.call(ctx, method, body, res, nil); err != nil {
		return nil, err
	}
	return res, nil
}

func (c *Client) open(method string, body any, files ...*os.File) (*wire, error) {
	conn, err := net.DialTimeout("unix", c.socket, 10*time.Second)
	if err != nil {
		return nil, &Error{Kind: Internal, Message: fmt.Sprintf("cannot reach the agent at %s: %v", c.socket, err)}
	}
	w := &wire{conn: conn.(*net.UnixConn)}
	if err := w.send("call", method, body, files...); err != nil {
		conn.Close()
		if e, ok := err.(*Error); ok {
			return nil, e
		}
		return nil, &Error{Kind: Internal, Message: fmt.Sprintf("cannot send to the agent: %v", err)}
	}
	return w, nil
}

// failure is an error frame: the error, and what was known before it.
type failure struct {
	Error  *Error          `json:"error"`
	Result json.RawMessage `json:"result,omitempty"`
}

func decodeEnd(f *frame, result any) error {
	if f.Type == "result" {
		if result == nil {
			return nil
		}
		return json.Unmarshal(f.Body, result)
	}
	var x failure
	if err := json.Unmarshal(f.Body, &x); err != nil {
		return err
	}
	if result != nil && len(x.Result) > 0 {
		if err := json.Unmarshal(x.Result, result); err != nil {
			return err
		}
	}
	if x.Error == nil {
		return &Error{Kind: Internal, Message: "the agent answered with an error that cannot be read"}
	}
	return x.Error
}

func (c *Client) Plan(ctx context.Context, r PlanRequest) (*PlanResult, error) {
	return ask[PlanResult](ctx, c, "plan", r)
}

// Apply's error may come with a result: what was done before it.
func (c *Client) Apply(ctx context.Context, r ApplyRequest, confirm func(*PlanResult) (bool, error), progress func(Progress)) (*ApplyResult, error) {
	res := new(ApplyResult)
	var refused error
	on := func(w *wire, f *frame) error {
		switch f.Type {
		case "progress":
			var p Progress
			if err := json.Unmarshal(f.Body, &p); err != nil {
				return err
			}
			if progress != nil {
				progress(p)
			}
		case "confirm":
			p := new(PlanResult)
			if err := json.Unmarshal(f.Body, p); err != nil {
				return err
			}
			yes := confirm == nil
			if confirm != nil {
				yes, refused = confirm(p)
			}
			return w.send("answer", "", yes && refused == nil)
		}
		return nil
	}
	f, err := c.exchange(ctx, "apply", r, res, on)
	if err == nil && refused != nil {
		err = refused
	}
	if f == nil {
		return nil, err
	}
	return res, err
}

func (c *Client) List(ctx context.Context, addresses ...string) (*ListResult, error) {
	return ask[ListResult](ctx, c, "list", addresses)
}

func (c *Client) Stats(ctx context.Context, addresses ...string) (*StatsResult, error) {
	res := new(StatsResult)
	if err := c.call(ctx, "stats", addresses, res, nil); err != nil {
		return nil, err
	}
	return res, nil
}

func (c *Client) Describe(ctx context.Context, address string) (*Description, error) {
	return ask[Description](ctx, c, "describe", address)
}

func (c *Client) Act(ctx context.Context, r ActRequest) (*ActResult, error) {
	return ask[ActResult](ctx, c, "act", r)
}

func (c *Client) Renew(ctx context.Context, r RenewRequest) (*ActResult, error) {
	return ask[ActResult](ctx, c, "renew", r)
}

func (c *Client) Output(ctx context.Context, name string) (*config.Output, error) {
	return ask[config.Output](ctx, c, "output", name)
}

func (c *Client) Outputs(ctx context.Context) ([]config.Output, error) {
	var res []config.Output
	return res, c.call(ctx, "outputs", nil, &res, nil)
}

// Status asks the agent who it is, with a bound: every use of an agent begins with it.
func (c *Client) Status(ctx context.Context) (*ServiceStatus, error) {
	return c.status(ctx, cmp.Or(c.patience, greetWait))
}

func (c *Client) status(ctx context.Context, patience time.Duration) (*ServiceStatus, error) {
	w, err := c.open("status", nil)
	if err != nil {
		return nil, err
	}
	defer w.conn.Close()
	if err := w.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, errorOf(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = w.conn.SetReadDeadline(time.Now()) })
	defer stop()
	f, err := w.receive()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil:
		return nil, &Error{Kind: Interrupted, Message: "interrupted while waiting for the agent's answer"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &Error{Kind: Locked, Message: c.silent(w, patience)}
	case err != nil:
		return nil, &Error{Kind: Internal, Message: fmt.Sprintf("the agent went away before it answered: %v; try again", err)}
	}
	f.close()
	res := new(ServiceStatus)
	if err := decodeEnd(f, res); err != nil {
		return nil, errorOf(err)
	}
	return res, nil
}

// silent says which agent does not answer, and what can be done about it.
func (c *Client) silent(w *wire, patience time.Duration) string {
	pid := peer(w.conn)
	switch {
	case pid == 0:
		return fmt.Sprintf("the agent at %s has not answered for %s; restart it: sandboxes live on", c.socket, patience)
	case stopped(pid):
		return fmt.Sprintf("the agent (pid %d) at %s does not answer: its process is stopped; 'kill -CONT %d' lets it go on", pid, c.socket, pid)
	}
	return fmt.Sprintf("the agent (pid %d) at %s has not answered for %s; if it does not by itself, restart it (kill -9 %d, then start it again): sandboxes live on", pid, c.socket, patience, pid)
}

// peer is the process that listens at the other end; 0 when it cannot be told.
func peer(conn *net.UnixConn) (pid int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// stopped tells whether a signal or a tracer keeps the process from running.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The name, in parentheses, may hold any byte; the state follows it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 0 && bytes.ContainsAny(fields[0], "Tt")
}

func (c *Client) OpenLog(ctx context.Context, address string) (*os.File, error) {
	f, err := c.exchange(ctx, "log", address, nil, nil)
	if err != nil {
		return nil, err
	}
	if len(f.files) != 1 {
		f.close()
		return nil, &Error{Kind: Internal, Message: "the agent sent no log"}
	}
	return f.files[0], nil
}

// Exec passes the caller's own files to the agent; with a terminal, the agent
// passes its master side back. No output goes through the socket.
func (c *Client) Exec(ctx context.Context, r ExecRequest) (ExecSession, error) {
	call := execCall{ExecRequest: r}
	var files []*os.File
	for i, f := range []*os.File{r.Stdin, r.Stdout, r.Stderr} {
		if f != nil && !r.TTY {
			call.Streams = append(call.Streams, i)
			files = append(files, f)
		}
	}
	return c.session(ctx, "exec", call, files...)
}

// Attach begins a session with the sandbox's own process.
func (c *Client) Attach(ctx context.Context, address string) (ExecSession, error) {
	return c.session(ctx, "attach", address)
}

func (c *Client) CopyOut(ctx context.Context, r CopyRequest) error {
	return c.call(ctx, "copy-out", r, nil, nil, r.Archive)
}

func (c *Client) CopyIn(ctx context.Context, r CopyRequest) error {
	return c.call(ctx, "copy-in", r, nil, nil, r.Archive)
}

func (c *Client) Touch(ctx context.Context, address string) (*ActResult, error) {
	return ask[ActResult](ctx, c, "touch", address)
}

func (c *Client) Events(ctx context.Context, r EventsRequest) (*EventsResult, error) {
	return ask[EventsResult](ctx, c, "events", r)
}

func (c *Client) Verify(ctx context.Context) (*VerifyResult, error) {
	return ask[VerifyResult](ctx, c, "verify", nil)
}

func (c *Client) Backup(ctx context.Context, r BackupRequest) (*BackupResult, error) {
	var files []*os.File
	if r.File != nil {
		files = append(files, r.File)
	}
	res := new(BackupResult)
	if err := c.call(ctx, "backup", r, res, nil, files...); err != nil {
		return nil, err
	}
	return res, nil
}

func (c *Client) GC(ctx context.Context, r GCRequest) (*GCResult, error) {
	return ask[GCResult](ctx, c, "gc", r)
}

func (c *Client) StateMove(ctx context.Context, r StateMoveRequest) (*StateMoveResult, error) {
	return ask[StateMoveResult](ctx, c, "state-move", r)
}

func (c *Client) StateRemove(ctx context.Context, r StateRemoveRequest) (*StateRemoveResult, error) {
	return ask[StateRemoveResult](ctx, c, "state-remove", r)
}

// session begins what has signals and a code.
func (c *Client) session(ctx context.Context, method string, body any, files ...*os.File) (ExecSession, error) {
	w, err := c.open(method, body, files...)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = w.send("cancel", "", nil) })
	f, err := w.receive()
	if err != nil {
		stop()
		w.conn.Close()
		return nil, &Error{Kind: Internal, Message: fmt.Sprintf("the agent went away during %s: %v", method, err)}
	}
	if f.Type != "started" {
		stop()
		w.conn.Close()
		return nil, decodeEnd(f, nil)
	}
	s := &remoteExec{w: w, stop: stop}
	if len(f.files) == 1 {
		s.console = f.files[0]
	}
	return s, nil
}

type execCall struct {
	ExecRequest
	Streams []int `json:"streams"` // which of stdin, stdout, stderr ride on the frame, in order
}

type remoteExec struct {
	w       *wire
	console *os.File
	stop    func() bool
}

func (s *remoteExec) Console() *os.File { return s.console }

func (s *remoteExec) Signal(sig int) error { return s.w.send("signal", "", sig) }

func (s *remoteExec) Wait() (int, error) {
	defer s.w.conn.Close()
	defer s.stop()
	f, err := s.w.receive()
	if err != nil {
		return 0, &Error{Kind: Internal, Message: fmt.Sprintf("the agent went away while the command ran: %v", err)}
	}
	var code int
	err = decodeEnd(f, &code)
	return code, err
}
