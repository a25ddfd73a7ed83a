//go:build failpoints

package reconcile

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

var failpointHits atomic.Int64

// failpoint kills this process with SIGKILL when PINFOLD_FAILPOINT is NAME, or
// NAME:N for the N-th time it is passed.
func failpoint(name string) {
	want, nth, counted := strings.Cut(os.Getenv("PINFOLD_FAILPOINT"), ":")
	if want != name {
		return
	}
	n := 1
	if counted {
		n, _ = strconv.Atoi(nth)
	}
	if failpointHits.Add(1) == int64(n) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
