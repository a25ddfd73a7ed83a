package starter

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// killBound is how long killed helpers may take to be gone.
const killBound = 5 * time.Second

// Within starts a process of a container, on a locked thread that has no other
// children. libcontainer goes through two intermediate processes, which become our
// children too, and does not wait for all of them when it fails: one of them left
// unreaped in a PID namespace would hold up that namespace's end for as long as we
// live.
//
// The workload can stop what enters its PID namespace: after bound all of it
// is killed, which ends the start with an error.
func Within(bound time.Duration, c *libcontainer.Container, process *libcontainer.Process) error {
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
