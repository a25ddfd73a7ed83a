package reconcile

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"pinfold/config"
	"pinfold/runtime"
	"pinfold/runtime/host"
	"pinfold/state"
)

// Where things are when nothing else is said.
const (
	DefaultStateDir = "/var/lib/pinfold"
	DefaultRunDir   = "/run/pinfold"
	DefaultLockWait = 10 * time.Second
)

// NoLockWait, for a LockWait in options and requests, is not to wait at all: what
// is in use is told at once. 0 means DefaultLockWait there.
const NoLockWait time.Duration = -1

// OpenOptions say which state and host to serve.
type OpenOptions struct {
	StateDir string // default DefaultStateDir
	RunDir   string // default DefaultRunDir
	Settings config.Settings
	LockWait time.Duration // for another process that has the state; 0: DefaultLockWait, NoLockWait: none
	Verb     string        // what the caller is about to do, told to whoever waits
	ReadOnly bool          // look only: nothing is stored, recovered or made
	// Waiting, when set, is told once, in words, for whom the state is waited for,
	// if that takes longer than a moment.
	Waiting func(text string)
	// Warn, when set, is told in words what went wrong and stops nothing.
	Warn    func(text string)
	Version string
	Log     hclog.Logger
}

func (o *OpenOptions) fill() error {
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.RunDir == "" {
		o.RunDir = DefaultRunDir
	}
	o.LockWait = lockWait(o.LockWait)
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	for _, dir := range []*string{&o.StateDir, &o.RunDir} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		*dir = abs
	}
	return nil
}

// Open gives the engine: the agent's, when one serves the run dir, else one in
// this process, which then holds the state until Close.
func Open(ctx context.Context, o OpenOptions) (Service, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	c, ok, err := dial(o.RunDir)
	if err == nil && !ok {
		var e *Engine
		if e, err = openEngine(ctx, o, byApply); err == nil {
			return e, nil
		}
		if errors.Is(err, errServed) {
			c, ok, err = dial(o.RunDir)
		}
	}
	switch {
	case err != nil:
		return nil, errorOf(err)
	case !ok:
		return nil, &Error{Kind: Internal, Message: fmt.Sprintf("the agent in %s ended as soon as it had begun; try again", o.RunDir)}
	}
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	if real(st.StateDir) != real(o.StateDir) {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf(
			"the agent in %s serves state %s, not %s; give -run-dir and -state-dir that belong together", o.RunDir, st.StateDir, o.StateDir)}
	}
	return c, nil
}

// real is the path without symbolic links, as far as it exists.
func real(path string) string {
	if r, err := filepath.EvalSymlinks(path); err == nil {
		return r
	}
	parent, name := filepath.Split(filepath.Clean(path))
	if name == "" {
		return path
	}
	return filepath.Join(real(parent), name)
}

// openEngine opens state and host in this process.
func openEngine(ctx context.Context, o OpenOptions, by string) (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("cannot %s: pinfold needs root for sandboxes, or access to a running agent's socket in %s; run it with sudo", o.Verb, o.RunDir)}
	}
	if err := bereft(o.StateDir); err != nil {
		return nil, err
	}
	store, err := openStore(ctx, o)
	if errors.Is(err, state.ErrNoState) {
		store, err = emptyStore{path: statePath(o.StateDir)}, nil
	}
	if err != nil {
		return nil, servedElsewhere(err, o)
	}
	if err := bindRunDir(store, o); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	h, err := openHost(o, store.Lineage())
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	e, err := NewEngine(ctx, EngineOptions{
		Store: store, Host: h, Settings: o.Settings, Log: o.Log, By: by, ReadOnly: o.ReadOnly,
		Status: ServiceStatus{Agent: by == byAgent, PID: os.Getpid(), Version: o.Version, Since: time.Now(), StateDir: o.StateDir},
	})
	if err != nil {
		return nil, errors.Join(err, h.Close(), store.Close())
	}
	return e, nil
}

func statePath(stateDir string) string { return filepath.Join(stateDir, "state.db") }

// errServed: while the state was waited for, an agent came up that serves it.
var errServed = errors.New("an agent serves the state now")

// socketPoll is how often somebody who waits for the state looks whether the one
// who has it is an agent that answers by now.
const socketPoll = 100 * time.Millisecond

// openStore opens the state, or fails with errServed.
func openStore(ctx context.Context, o OpenOptions) (state.Store, error) {
	ctx, stop := context.WithCancelCause(ctx)
	var polling sync.WaitGroup
	defer polling.Wait()
	defer stop(nil)
	polling.Go(func() {
		tick := time.NewTicker(socketPoll)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if _, ok, err := dial(o.RunDir); ok && err == nil {
				stop(errServed)
			}
		}
	})
	options := state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait, ReadOnly: o.ReadOnly}
	options.Warn = func(err error) {
		o.Log.Warn(err.Error())
		if o.Warn != nil {
			o.Warn(err.Error())
		}
	}
	if o.Waiting != nil {
		options.Waiting = func(h state.Holder) {
			who := "another process"
			if h.PID != 0 {
				verb, _, _ := strings.Cut(h.Verb, " ")
				who = fmt.Sprintf("%s (pid %d)", verb, h.PID)
			}
			o.Waiting(fmt.Sprintf("waiting for %s, at most %s ...", who, o.LockWait))
		}
	}
	return state.Open(ctx, options)
}

// agentVerb is what an agent notes beside the state it holds, with its run dir
// behind it.
const agentVerb = "agent -run-dir "

// servedElsewhere turns the refusal of a state that an agent with another run dir
// holds, for which waiting is no use, into one that names the run dir.
func servedElsewhere(err error, o OpenOptions) error {
	var locked *state.LockedError
	if !errors.As(err, &locked) || locked.Gone {
		return err
	}
	dir, is := strings.CutPrefix(locked.Holder.Verb, agentVerb)
	if !is || real(dir) == real(o.RunDir) {
		return err
	}
	return &Error{Kind: Invalid, Message: fmt.Sprintf(
		"state %s is served by an agent (pid %d, since %s) whose run dir is %s, not %s; give -run-dir %s to reach it, or stop it first",
		o.StateDir, locked.Holder.PID, locked.Holder.Since.UTC().Format(time.RFC3339), dir, o.RunDir, dir)}
}

// openHost opens the real host; a state that does not exist yet has none to
// look at, and looking must not make anything.
func openHost(o OpenOptions, lineage string) (runtime.Host, error) {
	if lineage == "" {
		return noHost{}, nil
	}
	return host.Open(host.Options{
		StateDir: o.StateDir, RunDir: o.RunDir, Lineage: lineage,
		ShortID: ShortID(lineage), CgroupParent: o.Settings.CgroupParent,
	})
}

// ShortID is the part of a lineage that names on the host carry: its first six
// hex digits.
func ShortID(lineage string) string {
	return strings.ReplaceAll(lineage, "-", "")[:6]
}

// RunAgent serves until ctx ends. Sandboxes live on when it returns.
func RunAgent(ctx context.Context, o AgentOptions) error {
	if err := o.fill(); err != nil {
		return err
	}
	o.Verb = agentVerb + o.RunDir
	if os.Geteuid() == 0 {
		if c, ok, err := dial(o.RunDir); err == nil && ok {
			return errorOf(secondAgent(ctx, c, o.RunDir))
		}
	}
	// Libraries say there what a probed workload may have put into their mouths.
	stdlog.SetOutput(o.Log.StandardWriter(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}))
	e, err := openEngine(ctx, o.OpenOptions, byAgent)
	if errors.Is(err, errServed) {
		return errorOf(secondAgent(ctx, &Client{socket: filepath.Join(o.RunDir, SocketName)}, o.RunDir))
	}
	if err != nil {
		return errorOf(err)
	}
	err = e.serveAgent(ctx, o)
	return errorOf(errors.Join(err, e.Close()))
}

func secondAgent(ctx context.Context, c *Client, runDir string) error {
	who := ""
	if st, err := c.Status(ctx); err == nil {
		who = fmt.Sprintf(" (pid %d, since %s)", st.PID, st.Since.UTC().Format(time.RFC3339))
	}
	return &Error{Kind: Locked, Message: "another agent already serves " + runDir + who + "; stop it first, or give this one its own -run-dir and -state-dir"}
}

// serveAgent runs the loop, the follower and the socket side by side.
func (e *Engine) serveAgent(ctx context.Context, o AgentOptions) error {
	l, err := listen(o.RunDir)
	if err != nil {
		return err
	}
	a := newAgent(e)
	if o.ConfigDir != "" {
		if e.following, err = newFollower(e, o.ConfigDir, o.Inputs, o.AllowDestroy); err != nil {
			l.Close()
			return err
		}
	}
	for _, lack := range e.lacking(ctx) {
		e.log.Warn("this host: " + lack)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{e: e, runDir: o.RunDir}
	var parts sync.WaitGroup
	errs := make(chan error, 2)
	parts.Go(func() { errs <- s.serve(ctx, l); cancel() })
	parts.Go(func() {
		errs <- a.loop(ctx, o.Ready)
		cancel()
	})
	if e.following != nil {
		parts.Go(func() { e.following.loop(ctx) })
	}
	parts.Wait()
	return errors.Join(<-errs, <-errs)
}

// emptyStore is what a read-only look sees where no state exists.
type emptyStore struct{ path string }

func (s emptyStore) View(fn func(state.Tx) error) error { return fn(emptyTx{}) }
func (s emptyStore) Update(func(state.Tx) error) error {
	return fmt.Errorf("%s: %w", s.path, state.ErrNoState)
}
func (s emptyStore) Lineage() string { return "" }
func (s emptyStore) Path() string    { return s.path }
func (s emptyStore) Close() error    { return nil }

type emptyTx struct{}

func (emptyTx) Get(string, string) []byte                     { return nil }
func (emptyTx) Put(string, string, []byte) error              { return state.ErrNoState }
func (emptyTx) Delete(string, string) error                   { return state.ErrNoState }
func (emptyTx) Each(string, func(string, []byte) error) error { return nil }
func (emptyTx) Append(string, []byte) (uint64, error)         { return 0, state.ErrNoState }
func (emptyTx) Trim(string, int) error                        { return state.ErrNoState }
func (emptyTx) Meta(string) string                            { return "" }
func (emptyTx) SetMeta(string, string) error                  { return state.ErrNoState }
func (emptyTx) Serial() uint64                                { return 0 }
func (emptyTx) Bump() error                                   { return state.ErrNoState }

// noHost is the host of a state that does not exist: nothing of it is there.
type noHost struct{ runtime.Host }

func (noHost) Observe(context.Context) (runtime.Observation, error) {
	return runtime.Observation{}, nil
}
func (noHost) PrefixesInUse(context.Context) ([]netip.Prefix, error) { return nil, nil }
func (noHost) Close() error                                          { return nil }

var _ Service = (*Engine)(nil)
