package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
	"pinfold/runtime/host/boot"
	"pinfold/runtime/host/starter"
)

// beside runs f at once on a goroutine of its own; the returned function waits
// for what it returns and may be called again.
func beside[T any](f func() (T, error)) func() (T, error) {
	var v T
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		v, err = f()
	}()
	return func() (T, error) {
		<-done
		return v, err
	}
}

// launch starts libcontainer's init, which is PID 1 from then on and waits to be
// told to run the command. Until init is up (cloned, in its namespaces, its
// runtime loaded) the root is put together beside it; while init then moves into
// the root, its network is furnished:
//
//	init     ├─ clone, namespaces, load ─┤ready  hold├─ mounts, pivot, capabilities ─┤
//	root     ├─ sources, overlay, mounts ─────────┤go
//	network                              ├─ record, netns, veth, rules ─────┤
//
// init's mount namespace is a slave of the stage (see stage.prepare): what is
// mounted for the instance there arrives in it.
func (h *Host) launch(ctx context.Context, in runtime.Instance, ids func() (*os.File, error), tree *cgroupTree, fresh bool) (p runtime.Process, err error) {
	filter, err := h.filter(in)
	if err != nil {
		return p, err
	}
	who, known, err := h.imageUser(in, fresh)
	if err != nil {
		return p, err
	}
	files, err := h.openPinitFiles(in, tree)
	if err != nil {
		return p, err
	}
	defer files.Close()
	hold, err := newHold()
	if err != nil {
		return p, err
	}
	defer hold.Close()

	client, err := h.starters.get(ctx, h.stage)
	if err != nil {
		return p, err
	}
	defer h.starters.put()
	defer func() {
		t := time.Now()
		if cerr := h.stage.run(func() error { return h.stage.clear(in.ID) }); err == nil {
			err = cerr
		}
		h.phase("clear", t)
	}()
	var null *os.File
	err = h.stage.run(func() (err error) {
		if err = h.stage.clear(in.ID); err == nil {
			err = h.stage.prepare(in.ID)
		}
		if err == nil {
			null, err = os.Open(filepath.Join(h.stage.devDir(), "null"))
		}
		return err
	})
	if err != nil {
		return p, err
	}
	defer null.Close()
	fds := descriptors{null, files.log, files.log}
	if fds.add(hold.theirs) != strconv.Itoa(boot.HoldFD) {
		return p, errors.New("init's hold is not where it looks for it")
	}
	args := append([]string{
		"/proc/self/fd/" + fds.add(h.pinit), "init", fds.add(files.outcome), fds.add(filter),
		fds.add(files.status), fds.add(files.limit), fds.add(files.max),
	}, in.Command...)
	t := time.Now()
	rooted := beside(func() (identity, error) {
		who, err := h.furnish(in, ids)
		if err == nil {
			err = failpoint.Step("host.init.root", hold.release)
		}
		if err != nil {
			hold.end() // and with it init
			err = fmt.Errorf("cannot give instance %s its root: %w", in.ID, err)
		}
		return who, err
	})
	defer rooted()
	if !known {
		if who, err = rooted(); err != nil {
			return p, err
		}
	}
	connected := beside(func() (runtime.Process, error) { return h.connect(ctx, in, hold) })
	pid, err := h.startInit(client, in, tree, who, fds, args)
	if err != nil {
		hold.end() // and with it connected
	}
	h.phase("init", t)
	t = time.Now()
	p, cerr := connected()
	h.phase("network", t)
	if _, rerr := rooted(); rerr != nil {
		return p, rerr // init has ended for want of a root
	}
	if err == nil {
		err = cerr
	}
	if err == nil && p.PID != pid {
		err = fmt.Errorf("PID 1 of instance %s is process %d and says it is %d", in.ID, pid, p.PID)
	}
	return p, err
}

// startInit has the starter make libcontainer's init.
func (h *Host) startInit(c *starter.Client, in runtime.Instance, tree *cgroupTree, who identity, fds descriptors, args []string) (pid int, err error) {
	request := starter.Request{
		Root: h.containers(), ID: in.ID, Config: h.containerConfig(in, tree),
		Args: args, Env: environment(in.Env, nil, who), Cwd: workingDir(in), UID: who.uid, GID: who.gid, Groups: who.groups,
		Bound: h.enterBound,
	}
	pid, err = failpoint.Get("host.init.start", func() (int, error) { return c.Start(request, fds) })
	if err != nil {
		return 0, fmt.Errorf("cannot start PID 1 of instance %s: %w", in.ID, err)
	}
	return pid, nil
}

// descriptors are what a new process gets, by number.
type descriptors []*os.File

// add gives the process one more and returns its number, "-" for no file.
func (d *descriptors) add(f *os.File) string {
	if f == nil {
		return "-"
	}
	*d = append(*d, f)
	return strconv.Itoa(len(*d) - 1)
}

// imageUser looks up in the image who the command runs as. known is false where
// the finished root may say otherwise: the writable layer has been written to,
// there are several layers, or the host's own files are hidden.
func (h *Host) imageUser(in runtime.Instance, fresh bool) (who identity, known bool, err error) {
	layers, err := h.lower(in.Image)
	if err != nil || !fresh || len(layers.dirs) != 1 {
		return who, false, err
	}
	for _, path := range []string{"/etc", "/etc/passwd", "/etc/group"} {
		if _, hidden := layers.cover[path]; hidden {
			return who, false, nil
		}
	}
	root, err := openRoot(layers.dirs[0], 0, 0)
	if err != nil {
		return who, false, nil // opening the sources says what is wrong with the image
	}
	defer root.Close()
	who, err = resolveUser(root, in.User, in.IDs)
	return who, true, err
}

// furnish puts the root together in the stage and returns who the command runs as.
func (h *Host) furnish(in runtime.Instance, ids func() (*os.File, error)) (who identity, err error) {
	t := time.Now()
	ns, err := ids()
	if err != nil {
		return who, err
	}
	src, err := h.openSources(in, ns)
	if err != nil {
		return who, err
	}
	defer src.Close()
	t = h.phase("sources"+besideInit, t)
	err = h.stage.run(func() error {
		who, err = h.build(in, src)
		return err
	})
	h.phase("root"+besideInit, t)
	return who, err
}

// besideInit marks phases that cost no time of their own.
const besideInit = ", beside init"

// connect waits until init is up, records it, and furnishes its network.
func (h *Host) connect(ctx context.Context, in runtime.Instance, hold *hold) (p runtime.Process, err error) {
	pid, err := hold.ready()
	if err != nil {
		return p, fmt.Errorf("PID 1 of instance %s did not come up: %w", in.ID, err)
	}
	failpoint.Hit("host.init.up")
	t := time.Now()
	p, err = h.identify(pid)
	if err != nil {
		return p, err
	}
	ns, err := namespaceOf(pid)
	if err != nil {
		return p, err
	}
	err = failpoint.Step("host.process.note", func() error {
		return h.saveProcess(in.ID, processRecord{Process: p, Mark: in.Mark, Netns: ns, Creating: true})
	})
	if err != nil {
		return p, fmt.Errorf("cannot write down the process of instance %s: %w", in.ID, err)
	}
	if err := h.bindNetns(in.ID, pid, ns); err != nil {
		return p, err
	}
	t = h.phase("netns"+besideInit, t)
	if in.Net != nil {
		err = h.net.Attach(ctx, in.ID, h.netns(in.ID), *in.Net, in.Forwards)
	} else {
		err = h.net.Loopback(h.netns(in.ID))
	}
	h.phase("network"+besideInit, t)
	return p, err
}

// hold is the line on which init says that it is up and waits for its root. Its
// end, however it comes about, ends an init that waits.
type hold struct {
	ours   *net.UnixConn
	theirs *os.File
}

func newHold() (*hold, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	f, theirs := os.NewFile(uintptr(fds[0]), "hold"), os.NewFile(uintptr(fds[1]), "hold")
	defer f.Close() // FileConn has made a copy
	err = os.NewSyscallError("setsockopt", errors.Join(
		unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1), unix.SetNonblock(fds[1], false)))
	var c net.Conn
	if err == nil {
		c, err = net.FileConn(f)
	}
	if err != nil {
		theirs.Close()
		return nil, err
	}
	return &hold{c.(*net.UnixConn), theirs}, nil
}

func (h *hold) Close() {
	h.end()
	h.theirs.Close()
}

// end ends the line. What init has, or is just being given, of it stays a descriptor:
// its number must not become another file's on the way.
func (h *hold) end() { h.ours.Close() }

// ready waits for init and returns its PID as this process sees it, by what the
// kernel says of the sender (SCM_CREDENTIALS, unix(7)).
func (h *hold) ready() (int, error) {
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	_, n, _, _, err := h.ours.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return 0, errors.New("its line ended")
	}
	who, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return 0, err
	}
	return int(who.Pid), nil
}

func (h *hold) release() error {
	_, err := h.ours.Write([]byte{1})
	if errors.Is(err, unix.EPIPE) || errors.Is(err, net.ErrClosed) {
		return nil // init has ended, or never was; Start says why
	}
	return err
}

// pinitFiles are what PID 1 is given besides its program and filter.
type pinitFiles struct{ log, outcome, status, limit, max *os.File }

func (f *pinitFiles) Close() {
	for _, f := range []*os.File{f.log, f.outcome, f.status, f.limit, f.max} {
		f.Close() // harmless on nil
	}
}

func (h *Host) openPinitFiles(in runtime.Instance, tree *cgroupTree) (f *pinitFiles, err error) {
	f = &pinitFiles{}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	f.log, err = failpoint.Get("host.log.make", func() (*os.File, error) {
		return os.OpenFile(filepath.Join(h.instanceDir(in.ID), "log"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	})
	if err != nil {
		return f, fmt.Errorf("cannot open the log of instance %s: %w", in.ID, err)
	}
	f.outcome, err = failpoint.Get("host.outcome.make", func() (*os.File, error) {
		return os.OpenFile(h.outcomePath(in.ID)+".next", os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_TRUNC, 0o600)
	})
	if err != nil {
		return f, fmt.Errorf("cannot make the outcome file of instance %s: %w", in.ID, err)
	}
	// Room for its few lines, so that they can be written on a full disk too. File
	// systems that cannot promise it take their chance.
	_ = failpoint.Step("host.outcome.reserve", func() error {
		return unix.Fallocate(int(f.outcome.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 4096)
	})
	if f.limit, f.max, err = h.openPIDs(in, tree); err != nil {
		return f, err
	}
	// Opened for both, so that opening does not wait and the line stays readable
	// as long as PID 1 holds it.
	fd, err := unix.Open(filepath.Join(h.runDir(in.ID), "status"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return f, fmt.Errorf("cannot open the status pipe of instance %s: %w", in.ID, err)
	}
	f.status = os.NewFile(uintptr(fd), "status")
	return f, nil
}
