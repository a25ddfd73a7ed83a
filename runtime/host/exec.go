package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/utils"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
	"pinfold/runtime/host/starter"
)

// Exec implements runtime.Host. The new process passes through PID 1's program,
// which puts it under the same seccomp filter.
func (h *Host) Exec(ctx context.Context, id string, e runtime.Exec) (runtime.ExecProcess, error) {
	rec, err := h.mustRecord(id)
	if err != nil {
		return nil, err
	}
	if len(e.Args) == 0 || e.Args[0] == "" {
		return nil, fmt.Errorf("exec in instance %s: no command given: %w", id, runtime.ErrCommand)
	}
	for k, v := range e.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return nil, fmt.Errorf("exec in instance %s: environment variable %q cannot be set", id, k)
		}
	}
	if err := h.ready(); err != nil {
		return nil, err
	}
	tree, err := h.cgroupsOf(id)
	if err != nil {
		return nil, err
	}
	tree.warm()
	filter, err := h.filter(rec.Instance)
	if err != nil {
		return nil, err
	}
	g := h.gate(id)
	g.Lock()
	defer g.Unlock()
	p, err := h.execTarget(id, tree)
	if err != nil {
		return nil, err
	}
	rd, wr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	defer wr.Close()
	root, err := h.entrance(id, tree)
	if err != nil {
		return nil, fmt.Errorf("exec in instance %s: %w", id, err)
	}
	procs, err := os.OpenFile(filepath.Join(tree.dir(id, "pids"), "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("exec in instance %s: %w", id, err)
	}
	defer procs.Close()
	fds := make(descriptors, 3) // the first three are connected below
	process := &libcontainer.Process{Cwd: workingDir(rec.Instance), LogLevel: "2"}
	process.Args = append([]string{"/proc/self/fd/" + fds.add(h.pinit), "exec", fds.add(filter), fds.add(wr), fds.add(procs)}, e.Args...)
	process.ExtraFiles = fds[3:]
	if e.WorkingDir != "" {
		process.Cwd = e.WorkingDir
	}
	if err := h.execUser(rec.Instance, e, p.PID, process); err != nil {
		return nil, err
	}
	run := &execProcess{process: process}
	console, closeFiles, err := connect(e, run)
	if err != nil {
		return nil, fmt.Errorf("exec in instance %s: %w", id, err)
	}
	defer closeFiles()
	began := false
	defer func() {
		if !began {
			run.streams.abandon()
		}
	}()
	err = h.stage.run(func() error {
		c, err := libcontainer.Load(root, id)
		if err != nil {
			return err
		}
		// libcontainer starts its helper in the root's place of old.
		err = failpoint.Step("host.exec.place", func() error { return os.MkdirAll(h.stage.rootfs(id), 0o755) })
		if err != nil {
			return err
		}
		defer h.stage.clear(id)
		return failpoint.Step("host.exec.start", func() error { return starter.Within(h.enterBound, c, process) })
	})
	if err != nil {
		if pid, perr := process.Pid(); perr == nil {
			run.pid = pid
			run.abandon()
		}
		if ok, aerr := h.alive(p); aerr == nil && !ok {
			return nil, fmt.Errorf("exec in instance %s: %w", id, runtime.ErrNotRunning)
		}
		if strings.Contains(err.Error(), "chdir to cwd") {
			return nil, fmt.Errorf("exec in instance %s: working directory %s cannot be entered: %w: %w", id, process.Cwd, runtime.ErrCommand, err)
		}
		return nil, fmt.Errorf("exec in instance %s: %w", id, err)
	}
	wr.Close()
	if run.pid, err = process.Pid(); err != nil {
		return nil, fmt.Errorf("exec in instance %s: %w", id, err)
	}
	if e.TTY {
		process.ConsoleSocket.Close() // or a sender that dies would not be noticed
		if run.console, err = h.receiveConsole(ctx, console); err != nil {
			run.abandon()
			return nil, fmt.Errorf("exec in instance %s: no terminal came: %w", id, err)
		}
	}
	// The pipe is closed by the exec of the command, or carries why there was none.
	bounded, cancel := context.WithTimeout(ctx, h.enterBound)
	defer cancel()
	verdict, err := readVerdict(bounded, rd)
	if err == nil && verdict == "" {
		began = true
		run.streams.started()
		run.streams.begin()
		return run, nil
	}
	run.abandon()
	if err != nil {
		return nil, fmt.Errorf("exec in instance %s: %w", id, err)
	}
	if errno, ok := strings.CutPrefix(strings.TrimSpace(verdict), "exec "); ok {
		if n, err := strconv.Atoi(errno); err == nil {
			return nil, commandError(rec.Instance.Image, e.Args[0], unix.Errno(n))
		}
	}
	return nil, fmt.Errorf("exec in instance %s: %s", id, strings.TrimSpace(verdict))
}

// execTarget returns PID 1 of an instance that can be entered.
func (h *Host) execTarget(id string, tree *cgroupTree) (runtime.Process, error) {
	p, err := h.answering(id)
	if err != nil {
		return p, fmt.Errorf("exec in instance %s: %w", id, err)
	}
	limit, full, err := tree.full(id)
	if err == nil && full {
		err = fmt.Errorf("exec in instance %s: sandbox is at its limit of %d processes (resources.pids); raise it or end some", id, limit)
	}
	return p, err
}

func (h *Host) execUser(in runtime.Instance, e runtime.Exec, pid int, process *libcontainer.Process) error {
	root, err := openRoot(pidPath(pid, "root"), 0, 0)
	if err != nil {
		return fmt.Errorf("cannot look into instance %s: %w", in.ID, err)
	}
	defer root.Close()
	spec := in.User
	if e.User != "" {
		spec = e.User
	}
	who, err := resolveUser(root, spec, in.IDs)
	if err != nil {
		return err
	}
	process.UID, process.GID, process.AdditionalGroups = who.uid, who.gid, who.groups
	process.Env = environment(in.Env, e.Env, who)
	if e.TTY {
		if _, set := e.Env["TERM"]; !set {
			process.Env = append(process.Env, "TERM=xterm")
		}
	}
	return nil
}

// connect sets up the streams. done closes what only the start of a terminal needs.
func connect(e runtime.Exec, run *execProcess) (console *os.File, done func(), err error) {
	process := run.process
	if e.TTY {
		ours, theirs, err := utils.NewSockPair("console")
		if err != nil {
			return nil, nil, err
		}
		run.streams = &streams{}
		process.ConsoleSocket, process.ConsoleWidth, process.ConsoleHeight = theirs, e.Width, e.Height
		return ours, func() { ours.Close(); theirs.Close() }, nil
	}
	if run.streams, err = newStreams(e); err != nil {
		return nil, nil, err
	}
	given := run.streams.given
	process.Stdin, process.Stdout, process.Stderr = given[0], given[1], given[2]
	return nil, func() {}, nil
}

// receiveConsole waits for the terminal that a process of ours, but in the sandbox,
// sends on its way to the command.
func (h *Host) receiveConsole(ctx context.Context, socket *os.File) (*os.File, error) {
	bound := unix.NsecToTimeval(int64(h.enterBound))
	if err := unix.SetsockoptTimeval(int(socket.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &bound); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		unix.Shutdown(int(socket.Fd()), unix.SHUT_RD) // ends the wait
	})
	f, err := utils.RecvFile(socket)
	if !stop() {
		<-over // the socket's number may be another file's soon
	}
	switch {
	case err == nil:
		return f, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, unix.EAGAIN):
		return nil, fmt.Errorf("nothing within %s: %w", h.enterBound, runtime.ErrBusy)
	}
	return nil, err
}

func readVerdict(ctx context.Context, rd *os.File) (string, error) {
	var all []byte
	buf := make([]byte, 256)
	for {
		n, err := readUntil(ctx, rd, buf)
		all = append(all, buf[:n]...)
		switch {
		case errors.Is(err, io.EOF):
			return string(all), nil
		case err != nil && ctx.Err() != nil:
			return "", ctx.Err()
		case err != nil:
			return "", err
		}
	}
}

type execProcess struct {
	process *libcontainer.Process
	pid     int // which leads its own session and group: libcontainer's nsexec calls setsid
	console *os.File
	streams *streams

	mu     sync.Mutex
	reaped bool // its PID may be another's
}

func (p *execProcess) Console() *os.File { return p.console }

func (p *execProcess) Signal(sig int) error {
	err := failpoint.Step("host.exec.signal", func() error { return p.process.Signal(syscall.Signal(sig)) })
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot send signal %d to process %d: %w", sig, p.pid, err)
	}
	return nil
}

// Kill implements runtime.ExecProcess. As long as the leader is not reaped, nobody
// else can have its PID as a process or group.
func (p *execProcess) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return nil
	}
	if err := failpoint.Step("host.exec.kill", func() error { return killGroup(p.pid) }); err != nil {
		return fmt.Errorf("cannot kill the process group %d: %w", p.pid, err)
	}
	return nil
}

// killGroup kills a process group, or its leader where that has not made it yet.
func killGroup(leader int) error {
	err := unix.Kill(-leader, unix.SIGKILL)
	if err == unix.ESRCH {
		err = unix.Kill(leader, unix.SIGKILL)
	}
	if err == unix.ESRCH {
		return nil
	}
	return err
}

func (p *execProcess) Wait() (int, error) {
	state, err := p.reap()
	copied := p.streams.end()
	if state == nil {
		return -1, fmt.Errorf("cannot wait for the process: %w", err)
	}
	ws := state.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal()), copied
	}
	return ws.ExitStatus(), copied
}

// reap waits without Kill being shut out, and reaps with it.
func (p *execProcess) reap() (*os.ProcessState, error) {
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			break // another error is the next call's too
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
	return p.process.Wait()
}

// abandon ends a process that nobody will get to see, and what it has started.
func (p *execProcess) abandon() {
	p.Kill()
	p.reap()
	if p.console != nil {
		p.console.Close()
	}
}
