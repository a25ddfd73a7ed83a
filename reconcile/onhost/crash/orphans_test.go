//go:build failpoints

package crash

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A killed process leaves its children to the host's PID 1, which reaps them at once
// on most hosts, and on some only every other second. Here this process takes its
// place, so that thousands of runs do not wait for that.

// adoptOrphans makes this process the one that orphans below it come to, and reaps them.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	go func() {
		seen := map[int]time.Time{}
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-died:
			case <-tick.C:
			}
			reap(seen)
		}
	}()
	return nil
}

// ownWait is how long a zombie that may be somebody's own child is left to whoever
// started it.
const ownWait = 2 * time.Second

// reap reaps zombies that nobody in this process waits for: those of PID 1s at
// once, others when they have been seen for a while.
func reap(seen map[int]time.Time) {
	now := map[int]time.Time{}
	for _, pid := range childrenOf("self") {
		if !zombie(pid) {
			continue
		}
		first, again := seen[pid]
		if !again {
			first = time.Now()
		}
		if isInit(pid) || time.Since(first) > ownWait {
			unix.Wait4(pid, nil, unix.WNOHANG, nil)
			continue
		}
		now[pid] = first
	}
	clear(seen)
	for pid, first := range now {
		seen[pid] = first
	}
}

// childrenOf lists the children of all threads of a process.
func childrenOf(process string) (pids []int) {
	lists, _ := filepath.Glob("/proc/" + process + "/task/*/children")
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread has ended: no children
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func zombie(pid int) bool {
	state, _ := statOf(pid)
	return state == "Z"
}

var firstInside = regexp.MustCompile(`(?m)^NSpid:\s+\d+\s+1$`)

// isInit tells whether a process is PID 1 of a sandbox: whoever starts one is another
// process, so it is nobody's child here.
func isInit(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && firstInside.Match(text)
}
