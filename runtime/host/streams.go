package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// lingering is how long what a command has left running may still write to a file
// of the caller's after the command has ended.
const lingering = 2 * time.Second

// streams join a command with the caller's files. Pipes, sockets and character
// devices are the process's own. Anything else that can be read or written is copied
// through a pipe, here: a process that has a file or directory as a descriptor can
// open it anew through /proc/self/fd, for writing too, and walk from a directory to
// all of the host's.
type streams struct {
	given [3]*os.File // what the process gets
	start []*os.File  // what only its start needs
	in    *feed
	out   []*drain
}

var streamNames = [3]string{"standard input", "standard output", "standard error"}

// newStreams prepares the streams of e. Nothing is copied before begin.
func newStreams(e runtime.Exec) (s *streams, err error) {
	s = &streams{}
	defer func() {
		if err != nil {
			s.abandon()
		}
	}()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return s, err
	}
	s.start = append(s.start, null)
	for i, f := range []*os.File{e.Stdin, e.Stdout, e.Stderr} {
		if f == nil {
			s.given[i] = null
			continue
		}
		copied, err := mustCopy(f)
		switch {
		case err != nil:
			return s, fmt.Errorf("%s %w", streamNames[i], err)
		case !copied:
			s.given[i] = f
		case i == 2 && e.Stdout != nil && sameOpenFile(e.Stdout, f):
			s.given[2] = s.given[1] // one pipe keeps their order
		default:
			if s.given[i], err = s.join(f, i); err != nil {
				return s, fmt.Errorf("cannot join the %s: %w", streamNames[i], err)
			}
		}
	}
	return s, nil
}

// mustCopy tells whether a file of the caller's is not to be given away.
func mustCopy(f *os.File) (bool, error) {
	var st unix.Stat_t
	err := control(f, func(fd int) error { return unix.Fstat(fd, &st) })
	if err != nil {
		return false, fmt.Errorf("cannot be looked at: %w", err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR:
		return false, nil
	case unix.S_IFREG, unix.S_IFBLK:
		return true, nil
	case unix.S_IFDIR:
		return false, errors.New("is a directory; give a file, a pipe or a terminal")
	}
	return false, errors.New("is nothing that can be read or written; give a file, a pipe or a terminal")
}

// sameOpenFile tells whether two descriptors share one offset (kcmp(2)).
func sameOpenFile(a, b *os.File) bool {
	if a == b {
		return true
	}
	const kcmpFile = 0
	different := true
	control(a, func(x int) error {
		return control(b, func(y int) error {
			pid := uintptr(os.Getpid())
			r, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, uintptr(x), uintptr(y), 0)
			different = errno != 0 || r != 0
			return nil
		})
	})
	return !different
}

// join makes the pipe between a file of the caller's and the process, and returns
// the process's end.
func (s *streams) join(f *os.File, stream int) (theirs *os.File, err error) {
	// The caller may close its own; the copy has the same offset and flags.
	fd := -1
	err = control(f, func(from int) error {
		fd, err = unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(fd), f.Name())
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		file.Close()
		return nil, os.NewSyscallError("pipe2", err)
	}
	ours, other := p[0], p[1]
	if stream == 0 {
		ours, other = p[1], p[0]
	}
	unix.SetNonblock(ours, true) // so that waiting for it can be ended
	pipe := os.NewFile(uintptr(ours), "pipe")
	theirs = os.NewFile(uintptr(other), "pipe")
	s.start = append(s.start, theirs)
	c := copying{file: file, pipe: pipe, name: streamNames[stream], done: make(chan struct{})}
	if stream == 0 {
		s.in = &feed{c}
	} else {
		s.out = append(s.out, &drain{c})
	}
	return theirs, nil
}

// started closes what the process has now.
func (s *streams) started() {
	for _, f := range s.start {
		f.Close()
	}
	s.start = nil
}

// begin copies from now on.
func (s *streams) begin() {
	if s.in != nil {
		go s.in.run()
	}
	for _, d := range s.out {
		go d.run()
	}
}

// end returns when all that the command, which has ended, wrote has been copied. What
// it left running is cut off when it is not done within lingering: nobody is there to
// copy for it once the caller has gone.
func (s *streams) end() error {
	var all []error
	until := time.Now().Add(lingering)
	for _, d := range s.out {
		d.pipe.SetReadDeadline(until)
	}
	if s.in != nil {
		s.in.pipe.SetWriteDeadline(time.Unix(1, 0))
		<-s.in.done
		all = append(all, s.in.err)
	}
	for _, d := range s.out {
		<-d.done
		all = append(all, d.err)
	}
	return errors.Join(all...)
}

// abandon closes everything, where begin was not called.
func (s *streams) abandon() {
	s.started()
	if s.in != nil {
		s.in.close()
	}
	for _, d := range s.out {
		d.close()
	}
	s.in, s.out = nil, nil
}

// copying is a file of the caller's and our end of its pipe.
type copying struct {
	file, pipe *os.File
	name       string
	done       chan struct{} // closed when it has ended, and err is set
	err        error
}

func (c *copying) close() {
	c.file.Close()
	c.pipe.Close()
}

// copySize is what a pipe holds by default (pipe(7)).
const copySize = 64 << 10

// feed copies to the process. It reads and writes plainly: what io.Copy would use
// instead (splice, copy_file_range) refuses some files.
type feed struct{ copying }

func (c *feed) run() {
	defer close(c.done)
	defer c.close()
	buf := make([]byte, copySize)
	for {
		n, err := c.file.Read(buf)
		if _, werr := c.pipe.Write(buf[:n]); werr != nil {
			return // it reads no more
		}
		if err != nil {
			if err != io.EOF {
				c.err = fmt.Errorf("cannot read the %s: %w", c.name, err)
			}
			return
		}
	}
}

// drain copies from the process.
type drain struct{ copying }

// run ends when the last writer does, or at the deadline; and when the file takes no
// more, which the process then sees as a broken pipe.
func (c *drain) run() {
	defer close(c.done)
	defer c.close()
	buf := make([]byte, copySize)
	for {
		n, err := c.pipe.Read(buf)
		if c.write(buf[:n]); c.err != nil || err == io.EOF {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.rest(buf)
			return
		}
		if err != nil {
			c.err = fmt.Errorf("cannot read the command's %s: %w", c.name, err)
			return
		}
	}
}

// rest copies what is in the pipe, and so all that the command itself wrote, though
// others go on writing.
func (c *drain) rest(buf []byte) {
	control(c.pipe, func(fd int) error {
		left, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
		for err == nil && left > 0 && c.err == nil {
			var n int
			n, err = syscall.Read(fd, buf[:min(left, len(buf))])
			if err == syscall.EINTR {
				err = nil
				continue
			}
			if n <= 0 {
				return nil
			}
			c.write(buf[:n])
			left -= n
		}
		return nil
	})
}

func (c *drain) write(b []byte) {
	if len(b) == 0 {
		return
	}
	if _, err := c.file.Write(b); err != nil {
		c.err = fmt.Errorf("cannot write the command's %s, which is lost from there on: %w", c.name, err)
	}
}

// control calls f with the file's descriptor, which stays as it is: Fd may change
// whether it blocks.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}
