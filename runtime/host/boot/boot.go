// Package boot turns the program into libcontainer's init when it is started
// as such. Whoever creates or enters sandboxes with package host must import
// it, in the main package and in the TestMain of tests alike:
//
//	import _ "pinfold/runtime/host/boot"
//
// It also binds the main goroutine to the process's first thread.
//
// The work is done while packages are initialised, before main and before the
// packages that do not have to be up for it. Its imports stay lean because each
// of them is loaded once more at every start of a sandbox.
package boot

import (
	"os"
	"runtime"

	// Joining namespaces has to happen before the Go runtime is up; this
	// package does it in C.
	_ "github.com/opencontainers/runc/libcontainer/nsenter"

	"github.com/opencontainers/runc/libcontainer"
	"golang.org/x/sys/unix"
)

// HoldFD is the descriptor, in a sandbox's init, of the line on which it says that
// it is up and is told that its root is there.
const HoldFD = 3

// hold waits for the root. When the line ends, whoever wanted this init is gone.
func hold() {
	unix.CloseOnExec(HoldFD)
	var word [1]byte
	if _, err := unix.Write(HoldFD, word[:]); err != nil {
		os.Exit(1)
	}
	for {
		n, err := unix.Read(HoldFD, word[:])
		if err == unix.EINTR {
			continue
		}
		if n != 1 {
			os.Exit(1)
		}
		return
	}
}

func init() {
	// libcontainer passes its own descriptors by these variables; a user who
	// types "pinfold init" has none of them.
	if len(os.Args) == 2 && os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "" {
		if os.Getenv("_LIBCONTAINER_INITTYPE") == "standard" { // not one that joins a sandbox
			hold()
		}
		libcontainer.Init()
	}
	// Work in other mount namespaces is done on threads that end with it. The
	// process's first thread cannot end and is what /proc/PID shows, so it is kept
	// for the main goroutine.
	runtime.LockOSThread()
}
