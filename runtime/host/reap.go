package host

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// startIn starts a process of a container, inside stage.run. libcontainer goes
// through two intermediate processes, which become our children too, and does not
// wait for all of them when it fails: one of them left unreaped in a PID namespace
// would hold up that namespace's end for as long as we live.
func startIn(c *libcontainer.Container, process *libcontainer.Process) error {
	err := c.Start(process)
	if err != nil {
		reapThread()
	}
	return err
}

// reapThread kills and waits for all children that the calling thread has made.
// A thread of stage.run makes no others than those of one start, so that nobody
// else's are among them.
func reapThread() {
	// Where the kernel does not list them (no CONFIG_PROC_CHILDREN) they end by
	// themselves: what they talk to is gone.
	list, _ := os.ReadFile("/proc/thread-self/children")
	for _, f := range strings.Fields(string(list)) {
		if pid, err := strconv.Atoi(f); err == nil {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
	for end := time.Now().Add(killBound); time.Now().Before(end); {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case err == unix.EINTR || pid > 0:
		case err != nil:
			return // no more children
		default:
			time.Sleep(time.Millisecond)
		}
	}
}

// reap waits for a process we are the parent of, so that it does not stay a
// zombie. It costs a parked goroutine, no thread.
func (h *Host) reap(pid int, process *libcontainer.Process) {
	p, err := h.identify(pid)
	if err != nil {
		process.Wait() // gone already
		return
	}
	fd, err := h.openPidfd(p)
	go func() {
		if err == nil {
			fd.wait(context.Background())
			fd.Close()
		}
		process.Wait()
	}()
}
