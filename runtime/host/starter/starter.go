// Package starter starts the inits of sandboxes from a small process of its own.
//
// Each of libcontainer's inits is a copy of the program that starts it, and what
// a program weighs is paid at every start: its pages, its packages'
// initialisation, and a mount that keeps the sandbox from writing to it. The
// starter is a program with libcontainer and nothing else, in a sealed memory
// file that needs no such mount. It lives no longer than whoever spawned it,
// decides nothing, and keeps nothing: the inits go on without it.
package starter

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"
)

// Request is one init to start.
type Request struct {
	Root, ID string // of the container's state, as libcontainer.Create takes them
	Config   *configs.Config

	Args, Env []string
	Cwd       string
	UID, GID  int
	Groups    []int

	// Bound is how long the start may take before it is given up.
	Bound time.Duration
}

type reply struct {
	PID   int
	Error string
}

// ErrGone says that the starter process has ended.
var ErrGone = errors.New("the process that starts sandboxes has ended")

// Client speaks with a starter process.
type Client struct {
	control *net.UnixConn
	gone    atomic.Bool
}

// Spawn runs the program, which must be a sealed memory file, in the calling
// thread's mount namespace. The process ends with Close, and with the caller's end;
// until it has, it keeps lock open.
func Spawn(program, lock *os.File) (*Client, error) {
	ours, theirs, err := socketpair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Cmd{
		Path: "/proc/self/fd/" + strconv.Itoa(ProgramFD), Args: []string{"pinfold-starter"}, Dir: "/", Env: []string{},
		ExtraFiles: []*os.File{theirs, program, lock},
		// A session of its own: what the terminal sends is not for it.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("cannot run the process that starts sandboxes: %w", err)
	}
	c := &Client{control: ours}
	go func() {
		cmd.Wait()
		c.gone.Store(true)
	}()
	return c, nil
}

// Gone tells whether the process is known to have ended.
func (c *Client) Gone() bool { return c.gone.Load() }

// Close lets the process end, once the starts under way are done.
func (c *Client) Close() error { return c.control.Close() }

// Start starts an init and returns its PID once it waits at the exec fifo. files
// are its standard input, output and error, and the descriptors from 3 on.
// ErrGone when the starter ended meanwhile; the init may have been made.
func (c *Client) Start(r Request, files []*os.File) (pid int, err error) {
	ours, theirs, err := socketpair(unix.SOCK_STREAM)
	if err != nil {
		return 0, err
	}
	defer ours.Close()
	fds := []int{int(theirs.Fd())}
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err = c.control.WriteMsgUnix([]byte{1}, unix.UnixRights(fds...), nil)
	theirs.Close()
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) {
		c.gone.Store(true)
		return 0, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot ask the process that starts sandboxes: %w", err)
	}
	// The starter keeps to the bound itself; this is for one that does not.
	ours.SetDeadline(time.Now().Add(r.Bound + 10*time.Second))
	var a reply
	asked := json.NewEncoder(ours).Encode(r) // one that refuses does not read it
	if err := json.NewDecoder(ours).Decode(&a); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrGone, errors.Join(asked, err))
	}
	if a.Error != "" {
		return 0, errors.New(a.Error)
	}
	return a.PID, nil
}

// socketpair returns our end, for Go's poller, and a blocking one to give away.
func socketpair(kind int) (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "starter"), os.NewFile(uintptr(fds[1]), "starter")
	defer ours.Close() // FileConn makes a copy
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}
