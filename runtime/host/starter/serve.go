package starter

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync"

	_ "github.com/opencontainers/cgroups/devices" // or device rules are refused
	"github.com/opencontainers/runc/libcontainer"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// What the starter is spawned with: the socket on which it is asked, its own program,
// and the lock that says it is there.
const (
	ControlFD = 3 + iota
	ProgramFD
	LockFD
)

// maxFiles is how many descriptors come with one request, the first of which is
// the request's own line. unix(7) allows 253.
const maxFiles = 64

// Serve answers requests until whoever spawned this process closes its end.
func Serve() error {
	logrus.SetOutput(io.Discard) // failures are answered
	for fd := ControlFD; fd <= LockFD; fd++ {
		unix.CloseOnExec(fd)
	}
	control := os.NewFile(ControlFD, "control")
	conn, err := net.FileConn(control)
	if err != nil {
		return err
	}
	control.Close()
	var inits children
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go func() {
		for range ended {
			inits.reap()
		}
	}()
	// Caught, not ignored: that would be inherited.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP)

	var starts sync.WaitGroup
	defer starts.Wait()
	for {
		var word [1]byte
		oob := make([]byte, unix.CmsgSpace(4*maxFiles))
		n, oobn, flags, _, err := conn.(*net.UnixConn).ReadMsgUnix(word[:], oob)
		if err != nil || n == 0 {
			return err
		}
		files := received(oob[:oobn])
		if flags&unix.MSG_CTRUNC != 0 || len(files) == 0 {
			// unix(7): what finds no descriptor is left out.
			refuse(files, unix.EMFILE)
			continue
		}
		starts.Go(func() { answer(files, &inits) })
	}
}

// refuse answers a request that came without all of its files. Where not even the
// line for the answer came, its end says so.
func refuse(files []*os.File, why error) {
	if len(files) > 0 {
		json.NewEncoder(files[0]).Encode(reply{Error: "the process that starts sandboxes: " + why.Error()})
	}
	for _, f := range files {
		f.Close()
	}
}

// received are the files of a request, none of one that is none.
func received(oob []byte) []*os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil
	}
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "passed")
	}
	return files
}

func answer(files []*os.File, inits *children) {
	// Never unlocked: the thread ends with the request, and until then its
	// children are those of this start alone.
	runtime.LockOSThread()
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	var a reply
	pid, err := start(files)
	if err == nil {
		a.PID = pid
		inits.add(pid)
	} else {
		a.Error = err.Error()
	}
	json.NewEncoder(files[0]).Encode(a)
}

func start(files []*os.File) (pid int, err error) {
	var r Request
	if err := json.NewDecoder(files[0]).Decode(&r); err != nil {
		return 0, err
	}
	if len(files) < 4 {
		return 0, fmt.Errorf("%d files came with a request, want at least 4", len(files))
	}
	c, err := libcontainer.Create(r.Root, r.ID, r.Config)
	if err != nil {
		return 0, err
	}
	p := &libcontainer.Process{
		Init: true, Args: r.Args, Env: r.Env, Cwd: r.Cwd, UID: r.UID, GID: r.GID, AdditionalGroups: r.Groups, LogLevel: "2",
		Stdin: files[1], Stdout: files[2], Stderr: files[3], ExtraFiles: files[4:],
	}
	if err := Within(r.Bound, c, p); err != nil {
		return 0, err
	}
	return p.Pid()
}

// children are inits that have been started and not been reaped yet.
type children struct {
	mu   sync.Mutex
	pids map[int]bool
}

func (c *children) add(pid int) {
	c.mu.Lock()
	if c.pids == nil {
		c.pids = map[int]bool{}
	}
	c.pids[pid] = true
	c.mu.Unlock()
	c.reap() // it may have ended before it was known
}

func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid := range c.pids {
		got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if got == pid || err == unix.ECHILD {
			delete(c.pids, pid)
		}
	}
}
