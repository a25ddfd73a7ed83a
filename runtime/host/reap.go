package host

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// enterBound is how long a start or exec may take until the kernel executes the
// command: far longer than any honest one takes, also on an emulated machine.
const enterBound = 30 * time.Second

// startIn starts a process of a container, inside stage.run. libcontainer goes
// through two intermediate processes, which become our children too, and does not
// wait for all of them when it fails: one of them left unreaped in a PID namespace
// would hold up that namespace's end for as long as we live.
//
// The workload can stop what enters its PID namespace: after bound all of it
// is killed, which ends the start with an error.
func startIn(c *libcontainer.Container, process *libcontainer.Process, bound time.Duration) error {
	thread := unix.Gettid()
	var late atomic.Bool
	watchdog := time.AfterFunc(bound, func() {
		late.Store(true)
		killChildren("/proc/self/task/" + strconv.Itoa(thread) + "/children")
	})
	err := c.Start(process)
	watchdog.Stop()
	if err != nil && late.Load() {
		err = fmt.Errorf("not started within %s and given up: %w", bound, err)
	}
	if err != nil {
		reapThread()
	}
	return err
}

// reapThread kills and waits for all children that the calling thread has made.
// A thread of stage.run makes no others than those of one start, so that nobody
// else's are among them.
func reapThread() {
	killChildren("/proc/thread-self/children")
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

// killChildren kills what is listed in a thread's file of children. Where the
// kernel has none (no CONFIG_PROC_CHILDREN) they end by themselves once what they
// talk to is gone.
func killChildren(list string) {
	pids, _ := os.ReadFile(list)
	for _, f := range strings.Fields(string(pids)) {
		if pid, err := strconv.Atoi(f); err == nil {
			unix.Kill(pid, unix.SIGKILL)
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
