package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// BootID is the kernel's name for the time since it was started.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot read this boot's id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// procStat reads the state letter and the start time (fields 3 and 22 of
// proc_pid_stat(5)) of a process. os.ErrNotExist when there is none.
func procStat(pid int) (state byte, start uint64, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = os.ErrNotExist
		}
		return 0, 0, err
	}
	s := string(b)
	i := strings.LastIndexByte(s, ')') // the name may hold anything
	if i < 0 {
		return 0, 0, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	fields := strings.Fields(s[i+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat has an unknown form", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], start, err
}

// alive tells whether exactly this process runs. A zombie is dead.
func (h *Host) alive(p runtime.Process) (bool, error) {
	if p.PID <= 0 || p.BootID != h.boot {
		return false, nil
	}
	state, start, err := procStat(p.PID)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look at process %d: %w", p.PID, err)
	}
	return start == p.StartTime && state != 'Z' && state != 'X', nil
}

// pidfd is a process that cannot be mistaken for another.
type pidfd struct{ f *os.File }

// openPidfd returns os.ErrProcessDone when the process is gone or a zombie.
func (h *Host) openPidfd(p runtime.Process) (pidfd, error) {
	if p.PID <= 0 {
		return pidfd{}, os.ErrProcessDone
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return pidfd{}, os.ErrProcessDone
	}
	if err != nil {
		return pidfd{}, fmt.Errorf("cannot open process %d: %w", p.PID, err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	// Only now is the PID held fast, so only now can it be checked.
	if ok, err := h.alive(p); err != nil || !ok {
		f.Close()
		if err == nil {
			err = os.ErrProcessDone
		}
		return pidfd{}, err
	}
	return pidfd{f}, nil
}

func (p pidfd) Close() error { return p.f.Close() }

// signal is kill(2).
func (p pidfd) signal(sig int) error { return p.send(sig, nil) }

// queue sends a signal as sigqueue(3) does (si_code SI_QUEUE), which PID 1 hands on
// without noting it as one that ended the command from outside.
func (p pidfd) queue(sig int) error {
	const siQueue = -1 // sigaction(2)
	return p.send(sig, &unix.Siginfo{Signo: int32(sig), Code: siQueue})
}

// forward sends PID 1 what is for the command.
func (p pidfd) forward(sig int) error {
	if sig == killRequest {
		return p.signal(sig) // it is heard from outside only
	}
	return p.queue(sig)
}

func (p pidfd) send(sig int, info *unix.Siginfo) error {
	conn, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = unix.PidfdSendSignal(int(fd), unix.Signal(sig), info, 0) }); err != nil {
		return err
	}
	if errors.Is(serr, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return serr
}

// wait returns nil once the process has ended, or the context's error. It parks
// in Go's poller and occupies no thread.
func (p pidfd) wait(ctx context.Context) error {
	conn, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	if err := p.f.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		p.f.SetReadDeadline(time.Unix(1, 0))
		close(expired)
	})
	defer func() {
		if !stop() {
			<-expired // or it would cut off the next wait
		}
	}()
	var perr error
	err = conn.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		if err != nil && err != unix.EINTR {
			perr = err
			return true
		}
		return n > 0
	})
	switch {
	case perr != nil:
		return perr
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	}
	return err
}

// WaitExit implements runtime.Host. Each process that is waited for costs a
// descriptor, as long as no more than half of those that this process may have go
// into that; the rest are looked at every second.
func (h *Host) WaitExit(ctx context.Context, id string, p runtime.Process) error {
	defer h.waits.Add(-1)
	if h.waits.Add(1) > mostWaits() {
		return h.pollExit(ctx, id, p)
	}
	fd, err := h.openPidfd(p)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return nil
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return h.pollExit(ctx, id, p)
	case err != nil:
		return fmt.Errorf("instance %s: %w", id, err)
	}
	defer fd.Close()
	return fd.wait(ctx)
}

func mostWaits() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int64(min(limit.Cur/2, 1<<30))
}

func (h *Host) pollExit(ctx context.Context, id string, p runtime.Process) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		switch there, err := h.alive(p); {
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		case err != nil:
			return fmt.Errorf("instance %s: %w", id, err)
		case !there:
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Signal implements runtime.Host.
func (h *Host) Signal(ctx context.Context, id string, sig int) error {
	if _, err := h.mustRecord(id); err != nil {
		return err
	}
	r, err := h.loadProcess(id)
	if err != nil {
		return err
	}
	fd, err := h.openPidfd(r.Process)
	if errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot signal instance %s: %w", id, runtime.ErrNotRunning)
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	out, err := h.readOutcome(id)
	if err != nil {
		return err
	}
	if !out.started {
		return fmt.Errorf("cannot signal instance %s, its command has not been started: %w", id, runtime.ErrNotRunning)
	}
	// PID 1 hands signals on to the command. SIGKILL it would never see.
	switch {
	case unix.Signal(sig) == unix.SIGKILL:
		sig = killRequest
	case sig == killRequest:
		return fmt.Errorf("signal %d cannot be sent to instance %s, PID 1 keeps it for itself: %w", sig, id, runtime.ErrUnsupported)
	case unix.Signal(sig) == unix.SIGSTOP:
		return fmt.Errorf("SIGSTOP cannot be sent to instance %s; use pause: %w", id, runtime.ErrUnsupported)
	}
	err = failpoint.Step("host.process.signal", func() error { return fd.forward(sig) })
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot send signal %d to instance %s: %w", sig, id, err)
	}
	return nil
}

// killRequest is KILL_REQUEST of pinit.c.
const killRequest = 64
