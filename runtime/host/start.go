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
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// startBound is how long a waiting init may take from being told to go until
// its command runs: an exec and a filter, milliseconds on an idle machine.
const startBound = 30 * time.Second

// Start implements runtime.Host.
func (h *Host) Start(ctx context.Context, id string) error {
	rec, err := h.mustRecord(id)
	if err != nil {
		return err
	}
	running, err := h.loadProcess(id)
	if err != nil {
		return err
	}
	init, err := h.openPidfd(running.Process)
	if errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot start instance %s: %w", id, runtime.ErrNotRunning)
	}
	if err != nil {
		return err
	}
	defer init.Close()
	out, err := h.readOutcome(id)
	if err != nil {
		return err
	}
	if out.started {
		h.dropFifo(id) // a Start that was cut off may have left it
		return nil
	}
	tree, err := h.cgroupsOf(id)
	if err != nil {
		return err
	}
	if frozen, err := tree.frozen(id); err != nil || frozen {
		if err == nil {
			err = fmt.Errorf("cannot start instance %s: %w", id, runtime.ErrPaused)
		}
		return err
	}
	t := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, startBound,
		fmt.Errorf("instance %s did not run its command within %s: %w", id, startBound, runtime.ErrBusy))
	defer cancel()
	verdict, err := h.release(ctx, id, init)
	if err != nil {
		return err
	}
	h.phase("exec", t)
	switch word := strings.Fields(verdict); {
	case len(word) == 1 && word[0] == "ok":
		return nil
	case len(word) == 2 && word[0] == "exec":
		errno, err := strconv.Atoi(word[1])
		if err != nil {
			break
		}
		cause := commandError(rec.Instance.Image, rec.Instance.Command[0], unix.Errno(errno))
		if err := h.takeDown(context.WithoutCancel(ctx), id, running.Process); err != nil {
			return fmt.Errorf("%w; taking the instance down failed too: %w", cause, err)
		}
		return cause
	}
	verdict = strings.TrimSpace(verdict)
	if verdict == "" {
		verdict = "it ended before its command ran"
	}
	err = fmt.Errorf("cannot start instance %s: PID 1 says: %s", id, verdict)
	if verdict == fmt.Sprintf("fail fork %d", unix.EAGAIN) && rec.Instance.Limits.PIDs > 0 {
		err = fmt.Errorf("cannot start instance %s: a limit of %d processes (resources.pids) has no room for the command beside PID 1; raise it to 2 or more", id, rec.Instance.Limits.PIDs)
	}
	if derr := h.takeDown(context.WithoutCancel(ctx), id, running.Process); derr != nil {
		err = fmt.Errorf("%w; taking the instance down failed too: %w", err, derr)
	}
	return err
}

// release lets init out of its wait and returns the line that PID 1 writes once
// the command runs or cannot, "" when it ended without one.
func (h *Host) release(ctx context.Context, id string, init pidfd) (string, error) {
	// Opened before init is let go, so that the line is not lost.
	status, err := os.OpenFile(filepath.Join(h.runDir(id), "status"), unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("cannot open the status pipe of instance %s: %w", id, err)
	}
	defer status.Close()
	gone, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		init.wait(gone)
		stop()
	}()
	// Read from now on, so that an init which a Start that was cut off has let go is
	// not waited for at the pipe below.
	told, tell := context.WithCancel(gone)
	verdict := beside(func() (string, error) {
		defer tell()
		return h.readStatus(ctx, gone, id, status)
	})
	if err := h.letGo(told, id); err != nil {
		stop()
		verdict()
		return "", err
	}
	failpoint.Hit("host.init.gone")
	return verdict()
}

// letGo lets init out of its wait, unless it has been or ctx ends before.
func (h *Host) letGo(ctx context.Context, id string) error {
	err := failpoint.Step("host.init.exec", func() error { return passFifo(ctx, h.fifoPath(id)) })
	if errors.Is(err, os.ErrNotExist) {
		return nil // let go by a Start that was cut off
	}
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("cannot pass the start pipe of instance %s: %w", id, err)
	}
	h.dropFifo(id)
	return nil
}

func (h *Host) fifoPath(id string) string { return filepath.Join(h.containers(), id, "exec.fifo") }

// dropFifo removes the pipe at which init waited. If it stays, it goes with the instance.
func (h *Host) dropFifo(id string) {
	_ = failpoint.Step("host.fifo.remove", func() error { return os.Remove(h.fifoPath(id)) })
}

// passFifo opens the pipe that init blocks in opening for writing, and takes the byte
// that init then writes. Between the two there must be nothing: an init whose byte
// nobody can read any more ends.
func passFifo(ctx context.Context, path string) error {
	// For both ends: our read waits for the byte instead of seeing no writer.
	f, err := os.OpenFile(path, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = readUntil(ctx, f, make([]byte, 1))
	return err
}

// readStatus waits for the line that PID 1 writes, or for its end.
func (h *Host) readStatus(ctx, gone context.Context, id string, status *os.File) (string, error) {
	buf := make([]byte, 256)
	n, err := readUntil(gone, status, buf)
	switch {
	case n > 0:
		return string(buf[:n]), nil
	case err == nil, errors.Is(err, io.EOF):
		return "", nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case gone.Err() != nil:
		// It may have written and ended in one go.
		if n, _ := unix.Read(int(status.Fd()), buf); n > 0 {
			return string(buf[:n]), nil
		}
		return "", nil
	}
	return "", fmt.Errorf("cannot read the status pipe of instance %s: %w", id, err)
}

// readUntil reads once, giving up when the context ends.
func readUntil(ctx context.Context, f *os.File, buf []byte) (int, error) {
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	return f.Read(buf)
}
