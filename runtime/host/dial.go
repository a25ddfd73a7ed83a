package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// Dial implements runtime.Host.
func (h *Host) Dial(ctx context.Context, id, protocol string, port uint16) (net.Conn, error) {
	rec, err := h.mustRecord(id)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (net.Conn, error) {
		return nil, fmt.Errorf("cannot connect to %s port %d of instance %s: %w", protocol, port, id, err)
	}
	if protocol != "tcp" && protocol != "udp" || port == 0 {
		return fail(errors.New("the protocol must be tcp or udp, the port 1 to 65535"))
	}
	p, err := h.dialTarget(id)
	if err != nil {
		return fail(err)
	}
	dial := func(addr netip.Addr) (c net.Conn, err error) {
		var d net.Dialer
		c, err = d.DialContext(ctx, protocol+"4", netip.AddrPortFrom(addr, port).String())
		if ctx.Err() != nil && err != nil {
			err = ctx.Err()
		}
		return c, err
	}
	var c net.Conn
	if rec.Instance.Net != nil {
		c, err = dial(rec.Instance.Net.Address.Addr())
	} else {
		c, err = h.dialInside(p, dial)
	}
	if err == nil {
		return c, nil
	}
	if ok, aerr := h.alive(p); aerr == nil && !ok {
		err = runtime.ErrNotRunning
	}
	return fail(err)
}

// dialTarget returns PID 1 of an instance that can answer.
func (h *Host) dialTarget(id string) (runtime.Process, error) {
	r, err := h.loadProcess(id)
	if err != nil {
		return r.Process, err
	}
	ok, err := h.alive(r.Process)
	if err != nil {
		return r.Process, err
	}
	out, err := h.readOutcome(id)
	if err != nil {
		return r.Process, err
	}
	if !ok || !out.started {
		return r.Process, runtime.ErrNotRunning
	}
	tree, err := h.cgroupsOf(id)
	if err != nil {
		return r.Process, err
	}
	frozen, err := tree.frozen(id)
	if err == nil && frozen {
		err = runtime.ErrPaused
	}
	return r.Process, err
}

// dialInside dials from within the process's network namespace. A socket stays in
// the one it was made in, so the connection can be used from anywhere.
func (h *Host) dialInside(p runtime.Process, dial func(netip.Addr) (net.Conn, error)) (c net.Conn, err error) {
	ns, err := h.openOf(p, "ns/net", unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	err = onThrowawayThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("cannot enter its network namespace: %w", err)
		}
		// For one numeric address the dialer makes its socket on this very thread.
		c, err = dial(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		return err
	})
	return c, err
}

// openOf opens a file of the process's directory in /proc, and never another
// process's that has got its PID. runtime.ErrNotRunning when it has ended.
func (h *Host) openOf(p runtime.Process, name string, flags int) (*os.File, error) {
	f, err := os.OpenFile("/proc/"+strconv.Itoa(p.PID)+"/"+name, flags|unix.O_CLOEXEC, 0)
	gone := errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
	if err != nil && !gone {
		return nil, err
	}
	// That it lives now proves that it has had its PID all the time.
	ok, aerr := h.alive(p)
	switch {
	case aerr != nil:
		err = aerr
	case !ok || gone:
		err = runtime.ErrNotRunning
	default:
		return f, nil
	}
	f.Close() // harmless on nil
	return nil, err
}
