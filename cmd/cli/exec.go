package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"pinfold/reconcile"
)

func (r *run) execCommand() *cli.Command {
	var request reconcile.ExecRequest
	var interactive bool
	var lockWait time.Duration
	one := 1
	return &cli.Command{
		Name: "exec", Usage: "run a command in a sandbox", UsageText: "pinfold exec [flags] SANDBOX [--] COMMAND [ARGUMENT]...", Category: "act",
		Description: "Runs a further command inside a running sandbox and exits with that command's code: 128+N after signal N, 127 when there is no such command, 126 when it cannot be run. Flags stand before SANDBOX; all after it belongs to the command.",
		Flags: []cli.Flag{
			boolFlag(&interactive, "interactive", "pass this standard input to the command; without it the command has none", "i"),
			boolFlag(&request.TTY, "tty", "give the command a terminal; -it for a shell", "t"),
			custom("env", "set the environment variable `NAME=VALUE` for the command; NAME alone takes its value from here; may be repeated", func(s string) error {
				name, value, given := strings.Cut(s, "=")
				if name == "" {
					return fmt.Errorf("%q is not NAME=VALUE", s)
				}
				if !given {
					value = r.getenv(name)
				}
				if request.Env == nil {
					request.Env = map[string]string{}
				}
				request.Env[name] = value
				return nil
			}, "e"),
			stringFlag(&request.WorkingDir, "workdir", "start in `DIR` inside the sandbox; by default in its working_dir", "w"),
			stringFlag(&request.User, "user", "run as `USER[:GROUP]`, names or numbers inside the sandbox; by default as its user", "u"),
			lockFlag(&lockWait),
		},
		UseShortOptionHandling: true,
		StopOnNthArg:           &one,
		Metadata:               example("sudo pinfold exec -it py sh", "sudo pinfold exec -e DEBUG=1 py env"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args := cmd.Args().Slice()
			if len(args) > 1 && args[1] == "--" {
				args = append(args[:1:1], args[2:]...)
			}
			if len(args) < 2 {
				return usage(cmd, "exec needs a sandbox and a command: %s", cmd.UsageText)
			}
			address, err := sandboxAddress(args[0])
			if err != nil {
				return err
			}
			request.Address, request.Args = address, args[1:]
			err = r.exec(ctx, &request, interactive, lockWait)
			var failed *reconcile.Error
			if strings.HasPrefix(args[1], "-") && errors.As(err, &failed) && failed.Code != 0 {
				// No such command: flags of ours may be meant, which stand before.
				failed.Message += fmt.Sprintf("; flags of exec stand before the sandbox: pinfold exec %s %s ...", args[1], args[0])
			}
			return err
		},
	}
}

func (r *run) exec(ctx context.Context, request *reconcile.ExecRequest, interactive bool, lockWait time.Duration) error {
	if request.TTY {
		if interactive && !isTerminal(r.In) {
			return failure("-t needs a terminal, and standard input is none", "Use -i without -t in a pipe or script.")
		}
		r.terminalOf(request)
	} else {
		request.Stdout, request.Stderr = r.Out, r.Err
		if interactive {
			request.Stdin = r.In
		}
	}
	// It may wake the sandbox and renew its lease.
	service, err := r.open(ctx, need{verb: "exec", does: "run commands in sandboxes", changes: true, lockWait: lockWait})
	if err != nil {
		return err
	}
	session, err := service.Exec(ctx, *request)
	if err != nil {
		err = suggest(ctx, service, request.Address, err)
		service.Close()
		return err
	}
	// The command may run for long; nobody else has to wait for it.
	if err := service.Close(); err != nil {
		return fmt.Errorf("cannot let go of the state: %w", err)
	}
	var code int
	if request.TTY {
		code, err = r.attachTerminal(session, interactive)
	} else {
		r.interrupts.takeOver(func(s os.Signal) { forward(session, s) }, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
		code, err = session.Wait()
	}
	if err != nil {
		return err
	}
	if code != 0 {
		return exitWith(code)
	}
	return nil
}

func forward(session reconcile.ExecSession, s os.Signal) {
	if n, ok := s.(syscall.Signal); ok {
		// The command may have ended this moment; its code is on the way.
		_ = session.Signal(int(n))
	}
}

// terminalOf gives the command this terminal's size and kind.
func (r *run) terminalOf(request *reconcile.ExecRequest) {
	for _, f := range []*os.File{r.In, r.Out} {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil {
			request.Width, request.Height = uint16(width), uint16(height)
			break
		}
	}
	if _, given := request.Env["TERM"]; !given {
		if kind := r.getenv("TERM"); kind != "" {
			if request.Env == nil {
				request.Env = map[string]string{}
			}
			request.Env["TERM"] = kind
		}
	}
}

// attachTerminal joins this terminal with the command's until it ends.
func (r *run) attachTerminal(session reconcile.ExecSession, interactive bool) (int, error) {
	console := session.Console()
	if console == nil {
		return 0, fmt.Errorf("cannot attach: the command has no terminal")
	}
	defer console.Close()
	if interactive {
		in := int(r.In.Fd())
		before, err := term.MakeRaw(in)
		if err != nil {
			return 0, fmt.Errorf("cannot set the terminal to raw mode: %w", err)
		}
		restore := func() { _ = term.Restore(in, before) }
		r.interrupts.onExit(restore)
		defer restore()
		go func() { _, _ = io.Copy(console, r.In) }() // ends with this process
	}
	r.interrupts.takeOver(func(s os.Signal) {
		if s == syscall.SIGWINCH {
			r.resize(console)
			return
		}
		forward(session, s)
	}, syscall.SIGWINCH, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	r.resize(console) // it may have changed since the request

	var copied atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// The master side reads EIO when the last process has let go (pty(7)).
		_, _ = io.Copy(io.MultiWriter(r.out, counter{&copied}), console)
	}()
	code, err := session.Wait()
	drained(ended, &copied)
	return code, err
}

// drained waits for the last output of a command that has ended: until the
// terminal is closed, or, when something left behind keeps it open, until
// nothing more comes.
func drained(ended <-chan struct{}, copied *atomic.Int64) {
	const quiet = 200 * time.Millisecond
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	last := copied.Load()
	for {
		select {
		case <-ended:
			return
		case <-timer.C:
			now := copied.Load()
			if now == last {
				return
			}
			last = now
			timer.Reset(quiet)
		}
	}
}

// counter counts what passes.
type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// resize gives the console this terminal's size.
func (r *run) resize(console *os.File) {
	for _, f := range []*os.File{r.In, r.Out} {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			_ = unix.IoctlSetWinsize(int(console.Fd()), unix.TIOCSWINSZ, size)
			return
		}
	}
}
