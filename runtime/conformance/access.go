package conformance

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"pinfold/runtime"
)

// port is where the suite's commands serve inside.
const port = 7007

var dial = []test{
	{"with a network", func(w *world) {
		in := w.instance(w.Commands.Serve(port))
		attach(&in, w.network(), 0)
		w.ready(in)
		w.echoes(in.ID)
	}},
	{"without a network", func(w *world) {
		in := w.instance(w.Commands.Serve(port))
		w.ready(in)
		w.echoes(in.ID)
	}},
	{"from inside", func(w *world) {
		for _, networked := range []bool{true, false} {
			in := w.instance(w.Commands.Serve(port))
			if networked {
				attach(&in, w.network(), 0)
			}
			w.ready(in)
			addrs := []netip.Addr{loopback}
			if networked {
				addrs = append(addrs, in.Net.Address.Addr())
			}
			for _, a := range addrs {
				w.echoesBy(func(protocol string) net.Conn { return w.dialInside(in.ID, protocol, netip.AddrPortFrom(a, port)) })
				_, err := w.h.DialInside(w.ctx, in.ID, "tcp", netip.AddrPortFrom(a, port+1))
				w.fails("DialInside of a port on which nobody listens", err, syscall.ECONNREFUSED)
			}
		}
	}},
	{"what listens on loopback only is reached from inside only", func(w *world) {
		in := w.instance(w.Commands.ServeLoopback(port))
		attach(&in, w.network(), 0)
		w.ready(in)
		w.echoesBy(func(protocol string) net.Conn {
			return w.dialInside(in.ID, protocol, netip.AddrPortFrom(loopback, port))
		})
		_, err := w.h.Dial(w.ctx, in.ID, "tcp", port)
		w.fails("Dial", err, syscall.ECONNREFUSED)
		_, err = w.h.DialInside(w.ctx, in.ID, "tcp", netip.AddrPortFrom(in.Net.Address.Addr(), port))
		w.fails("DialInside of its own address", err, syscall.ECONNREFUSED)
	}},
	{"a port on which nobody listens", func(w *world) {
		in := w.instance(w.Commands.Serve(port))
		w.ready(in)
		_, err := w.h.Dial(w.ctx, in.ID, "tcp", port+1)
		w.fails("Dial", err, syscall.ECONNREFUSED)
		c := w.dial(in.ID, "udp", port+1)
		_, err = c.Write([]byte("x"))
		w.must(err)
		_, err = c.Read(make([]byte, 1))
		w.fails("Read", err, syscall.ECONNREFUSED)
		_, err = w.h.Dial(w.ctx, in.ID, "sctp", port)
		w.fails("Dial of a protocol that is not known", err, nil)
		_, err = w.h.Dial(w.ctx, in.ID, "tcp", 0)
		w.fails("Dial of port 0", err, nil)
		for _, bad := range []netip.AddrPort{{}, netip.AddrPortFrom(loopback, 0), netip.AddrPortFrom(netip.Addr{}, port), netip.MustParseAddrPort("[fe80::1%lo]:7007")} {
			_, err = w.h.DialInside(w.ctx, in.ID, "tcp", bad)
			w.fails("DialInside of "+bad.String(), err, nil)
		}
		_, err = w.h.DialInside(w.ctx, in.ID, "sctp", netip.AddrPortFrom(loopback, port))
		w.fails("DialInside of a protocol that is not known", err, nil)
	}},
	{"only what runs can be dialled", func(w *world) {
		in := w.instance(w.Commands.Serve(port))
		fails := func(what, id string, want error) {
			w.Helper()
			_, err := w.h.Dial(w.ctx, id, "tcp", port)
			w.fails("Dial of "+what, err, want)
			_, err = w.h.DialInside(w.ctx, id, "tcp", netip.AddrPortFrom(loopback, port))
			w.fails("DialInside of "+what, err, want)
		}
		w.create(in)
		fails("a created one", in.ID, runtime.ErrNotRunning)
		w.must(w.h.Start(w.ctx, in.ID))
		w.eventually("it is ready", func() bool { return w.log(in.ID) == "ready\n" })
		w.must(w.h.Pause(w.ctx, in.ID))
		fails("a frozen one", in.ID, runtime.ErrPaused)
		w.stop(in.ID)
		fails("a stopped one", in.ID, runtime.ErrNotRunning)
		fails("an unknown one", randomHex(12), runtime.ErrNotFound)
	}},
	{"a connection waits while it is frozen, and ends with the process", func(w *world) {
		in := w.instance(w.Commands.Serve(port))
		w.ready(in)
		c := w.dial(in.ID, "tcp", port)
		w.must(w.h.Pause(w.ctx, in.ID))
		_, err := c.Write([]byte("early"))
		w.must(err)
		w.must(c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)))
		var late net.Error
		if n, err := c.Read(make([]byte, 8)); !errors.As(err, &late) || !late.Timeout() {
			w.Errorf("frozen, it answers with %d bytes, %v", n, err)
		}
		w.must(w.h.Resume(w.ctx, in.ID))
		w.must(c.SetReadDeadline(time.Now().Add(bound)))
		b := make([]byte, 8)
		if n, err := c.Read(b); err != nil || string(b[:n]) != "early" {
			w.Errorf("thawed, it answers %q, %v", b[:n], err)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
		if n, err := c.Read(b); err == nil || errors.As(err, &late) && late.Timeout() {
			w.Errorf("of one that is removed: %d bytes, %v", n, err)
		}
	}},
}

var loopback = netip.MustParseAddr("127.0.0.1")

func (w *world) dial(id, protocol string, port uint16) net.Conn {
	w.Helper()
	return w.connected(func(ctx context.Context) (net.Conn, error) { return w.h.Dial(ctx, id, protocol, port) })
}

func (w *world) dialInside(id, protocol string, addr netip.AddrPort) net.Conn {
	w.Helper()
	return w.connected(func(ctx context.Context) (net.Conn, error) { return w.h.DialInside(ctx, id, protocol, addr) })
}

func (w *world) connected(dial func(context.Context) (net.Conn, error)) net.Conn {
	w.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	c, err := dial(ctx)
	cancel() // the connection outlives it
	w.must(err)
	w.Cleanup(func() { c.Close() })
	w.must(c.SetDeadline(time.Now().Add(bound)))
	return c
}

// echoes asserts that the port answers, and that a connection ends each way by itself.
func (w *world) echoes(id string) {
	w.Helper()
	w.echoesBy(func(protocol string) net.Conn { return w.dial(id, protocol, port) })
}

func (w *world) echoesBy(connect func(protocol string) net.Conn) {
	w.Helper()
	for _, protocol := range []string{"tcp", "udp"} {
		c := connect(protocol)
		for _, text := range []string{"one", "another"} {
			_, err := c.Write([]byte(text))
			w.must(err)
			b := make([]byte, len(text))
			if _, err := io.ReadFull(c, b); err != nil || string(b) != text {
				w.Errorf("%s: %q came back as %q, %v", protocol, text, b, err)
			}
		}
		if half, ok := c.(interface{ CloseWrite() error }); protocol == "tcp" {
			if !ok {
				w.Fatalf("a tcp connection is a %T, which has no CloseWrite", c)
			}
			w.must(half.CloseWrite())
			if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
				w.Errorf("after the end: %q, %v", rest, err)
			}
		}
		w.must(c.Close())
	}
}

var publish = []test{
	{"a served port leads where open leads, and is told of use", func(w *world) {
		for _, protocol := range []string{"tcp", "udp"} {
			in := w.instance(w.Commands.Serve(port))
			w.ready(in)
			free, err := w.h.CheckPort(w.ctx, w.loopback, 0, protocol)
			w.must(err)
			f := runtime.Forward{Name: "p", Protocol: protocol, HostAddr: w.loopback, HostPort: free, ContainerPort: port}
			var opened, used atomic.Int64
			open := func(ctx context.Context) (net.Conn, error) {
				if used.Load() == 0 {
					w.Error("open is called before active")
				}
				opened.Add(1)
				return w.h.Dial(ctx, in.ID, protocol, port)
			}
			served, err := w.h.Publish(f, open, func() { used.Add(1) })
			w.must(err)
			_, err = w.h.Publish(f, open, func() {})
			w.fails("Publish of a port that is served", err, runtime.ErrTaken)
			_, err = w.h.CheckPort(w.ctx, w.loopback, free, protocol)
			w.fails("CheckPort of a port that is served", err, runtime.ErrTaken)

			c, err := w.Controls.Connect(w.T, netip.AddrPortFrom(w.loopback, free), protocol)
			w.must(err)
			w.must(c.SetDeadline(time.Now().Add(bound)))
			_, err = c.Write([]byte("through"))
			w.must(err)
			b := make([]byte, 7)
			if _, err := io.ReadFull(c, b); err != nil || string(b) != "through" {
				w.Errorf("%s: %q came back, %v", protocol, b, err)
			}
			w.must(c.Close())
			if n := opened.Load(); n != 1 {
				w.Errorf("%s: one client has opened %d ways", protocol, n)
			}
			for range 2 {
				w.must(served.Close())
			}
			_, err = w.h.CheckPort(w.ctx, w.loopback, free, protocol)
			w.must(err)
			again, err := w.h.Publish(f, open, func() { used.Add(1) })
			w.must(err)
			w.must(again.Close())
		}
	}},
}

var copies = []test{
	{"out and in, whatever the phase", func(w *world) {
		in := w.instance(w.Commands.Forever)
		v := w.volume()
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: v, Path: "/data"}}
		in.Files = []runtime.File{{Path: "/data/declared", Content: []byte("d"), Mode: 0o644}}
		w.create(in)
		w.copyIn(in.ID, "/data", "sub/", "", "sub/created", "1")
		w.must(w.h.Start(w.ctx, in.ID))
		w.reads(in.ID, "/data/sub/created", "1")
		w.copyIn(in.ID, "/data/sub", "running", "2")
		w.reads(in.ID, "/data/sub/running", "2")
		w.must(w.h.Pause(w.ctx, in.ID))
		w.copyIn(in.ID, "/data", "sub/frozen", "3")
		w.holds(in.ID, "/data/sub/frozen", "frozen", "3")
		w.stop(in.ID)
		w.copyIn(in.ID, "/data", "sub/stopped", "4", "sub/created", "one")
		all := []string{"data/", "", "data/declared", "d", "data/sub/", "", "data/sub/created", "one", "data/sub/frozen", "3", "data/sub/running", "2", "data/sub/stopped", "4"}
		w.holds(in.ID, "/data", all...)
		w.up(in)
		w.reads(in.ID, "/data/sub/stopped", "4")
		w.holds(in.ID, "/data", all...)
		w.holds(in.ID, "/data/sub/../sub/.", "./", "", "./created", "one", "./frozen", "3", "./running", "2", "./stopped", "4")
		w.must(w.h.Remove(w.ctx, in.ID))
		w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: v}))
	}},
	{"into the writable layer", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.WorkingDir = "/work"
		w.up(in)
		w.copyIn(in.ID, "/work", "deep/er/f", "x")
		w.reads(in.ID, "/work/deep/er/f", "x")
		w.writes(in.ID, "/work/deep/er/f", "y")
		w.holds(in.ID, "/work/deep/er/f", "f", "y")
		w.stop(in.ID)
		w.holds(in.ID, "/work/deep", "deep/", "", "deep/er/", "", "deep/er/f", "y")
		w.up(in)
		w.reads(in.ID, "/work/deep/er/f", "y")
	}},
	{"what is not there", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		w.writes(in.ID, "/file", "x")
		for range 2 {
			w.fails("CopyOut of nothing", w.h.CopyOut(w.ctx, in.ID, "/none", io.Discard), runtime.ErrNotFound)
			w.fails("CopyOut of a file as a directory", w.h.CopyOut(w.ctx, in.ID, "/file/.", io.Discard), syscall.ENOTDIR)
			w.fails("CopyIn to nothing", w.h.CopyIn(w.ctx, in.ID, "/none", unread{w}), runtime.ErrNotFound)
			w.fails("CopyIn to a file", w.h.CopyIn(w.ctx, in.ID, "/file", unread{w}), syscall.ENOTDIR)
			w.fails("CopyIn to no path", w.h.CopyIn(w.ctx, in.ID, "", unread{w}), nil)
			w.stop(in.ID)
		}
		w.fails("CopyOut of an unknown one", w.h.CopyOut(w.ctx, randomHex(12), "/", io.Discard), runtime.ErrNotFound)
		w.fails("CopyIn to an unknown one", w.h.CopyIn(w.ctx, randomHex(12), "/", unread{w}), runtime.ErrNotFound)
	}},
	{"what cannot be copied to", func(w *world) {
		in := w.instance(w.Commands.Forever)
		v := w.volume()
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: v, Path: "/data"}, {Kind: "volume", Source: v, Path: "/ro", ReadOnly: true}}
		in.Files = []runtime.File{{Path: "/etc/declared.conf", Content: []byte("a = 1\n"), Mode: 0o644}}
		w.up(in)
		w.copyIn(in.ID, "/data", "dir/", "", "file", "x")
		for _, c := range []struct{ to, name, data string }{
			{"/proc", "f", "x"}, {"/sys", "f", "x"}, {"/dev", "f", "x"}, {"/ro", "f", "x"}, {"/etc", "declared.conf", "x"},
			{"/data", "../f", "x"}, {"/data", "dir", "x"}, {"/data", "file/", ""},
		} {
			w.fails("CopyIn of "+c.name+" to "+c.to, w.h.CopyIn(w.ctx, in.ID, c.to, archive(w, c.name, c.data)), nil)
		}
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		w.must(tw.WriteHeader(&tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}))
		w.must(tw.Close())
		w.fails("CopyIn of a device", w.h.CopyIn(w.ctx, in.ID, "/data", &b), nil)
		b.Reset()
		tw = tar.NewWriter(&b)
		w.must(tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Uid: 0x10000}))
		w.must(tw.Close())
		w.fails("CopyIn of a file of nobody inside", w.h.CopyIn(w.ctx, in.ID, "/data", &b), nil)
		w.fails("CopyIn of no archive", w.h.CopyIn(w.ctx, in.ID, "/data", bytes.NewReader(make([]byte, 100))), nil)
		w.reads(in.ID, "/etc/declared.conf", "a = 1\n")
		w.holds(in.ID, "/data", "data/", "", "data/dir/", "", "data/file", "x")
		w.fails("CopyOut of /proc", w.h.CopyOut(w.ctx, in.ID, "/proc", io.Discard), nil)
	}},
	{"a context that has ended", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		ctx, cancel := context.WithCancel(w.ctx)
		cancel()
		w.fails("CopyOut", w.h.CopyOut(ctx, in.ID, "/etc", io.Discard), context.Canceled)
		w.fails("CopyIn", w.h.CopyIn(ctx, in.ID, "/etc", archive(w, "never", "x")), context.Canceled)
		w.absent(in.ID, "/etc/never")
	}},
}

// unread fails the test when it is read.
type unread struct{ *world }

func (u unread) Read([]byte) (int, error) {
	u.Error("the archive was read")
	return 0, io.EOF
}

// archive is a tar of names, a directory's with a "/" at its end, and what they hold.
func archive(w *world, pairs ...string) io.Reader {
	w.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for pair := range slices.Chunk(pairs, 2) {
		head := &tar.Header{Typeflag: tar.TypeReg, Name: pair[0], Mode: 0o644, Size: int64(len(pair[1]))}
		if pair[0][len(pair[0])-1] == '/' {
			head.Typeflag, head.Mode = tar.TypeDir, 0o755
		}
		w.must(tw.WriteHeader(head))
		_, err := io.WriteString(tw, pair[1])
		w.must(err)
	}
	w.must(tw.Close())
	return &b
}

func (w *world) copyIn(id, path string, pairs ...string) {
	w.Helper()
	w.must(w.h.CopyIn(w.ctx, id, path, archive(w, pairs...)))
}

// holds asserts what CopyOut gives for a path, as archive takes it, sorted by name.
func (w *world) holds(id, path string, want ...string) {
	w.Helper()
	var b bytes.Buffer
	w.must(w.h.CopyOut(w.ctx, id, path, &b))
	var got [][]string
	for tr := tar.NewReader(&b); ; {
		head, err := tr.Next()
		if err == io.EOF {
			break
		}
		w.must(err)
		data, err := io.ReadAll(tr)
		w.must(err)
		got = append(got, []string{head.Name, string(data)})
	}
	slices.SortFunc(got, slices.Compare)
	if all := slices.Concat(got...); !slices.Equal(all, want) {
		w.Errorf("%s holds %q, want %q", path, all, want)
	}
}
