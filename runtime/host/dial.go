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
	var c net.Conn
	if err = checkTarget(protocol, port); err == nil {
		if rec.Instance.Net != nil {
			c, err = h.dial(id, func(runtime.Process) (net.Conn, error) {
				return dial(ctx, protocol, netip.AddrPortFrom(rec.Instance.Net.Address.Addr(), port))
			})
		} else {
			c, err = h.dialInside(ctx, id, protocol, netip.AddrPortFrom(loopback, port))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s port %d of instance %s: %w", protocol, port, id, err)
	}
	return c, nil
}

// DialInside implements runtime.Host.
func (h *Host) DialInside(ctx context.Context, id, protocol string, addr netip.AddrPort) (net.Conn, error) {
	if _, err := h.mustRecord(id); err != nil {
		return nil, err
	}
	err := checkTarget(protocol, addr.Port())
	if err == nil && (!addr.Addr().IsValid() || addr.Addr().Zone() != "") {
		err = errors.New("the address must be a plain one of IPv4 or IPv6, without a zone")
	}
	var c net.Conn
	if err == nil {
		c, err = h.dialInside(ctx, id, protocol, addr)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s %s inside instance %s: %w", protocol, addr, id, err)
	}
	return c, nil
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

func checkTarget(protocol string, port uint16) error {
	if protocol != "tcp" && protocol != "udp" || port == 0 {
		return errors.New("the protocol must be tcp or udp, the port 1 to 65535")
	}
	return nil
}

// dial connects from the network namespace of the calling thread: for one numeric
// address the dialer makes its socket on that very thread.
func dial(ctx context.Context, protocol string, addr netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, protocol, addr.String())
	if ctx.Err() != nil && err != nil {
		err = ctx.Err()
	}
	return c, err
}

// dial calls connect with PID 1 of an instance that can answer.
func (h *Host) dial(id string, connect func(runtime.Process) (net.Conn, error)) (net.Conn, error) {
	p, err := h.answering(id)
	if err != nil {
		return nil, err
	}
	c, err := connect(p)
	if err != nil {
		if ok, aerr := h.alive(p); aerr == nil && !ok {
			err = runtime.ErrNotRunning
		}
	}
	return c, err
}

// answering returns PID 1 of an instance that can answer.
func (h *Host) answering(id string) (runtime.Process, error) {
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

// dialInside dials from within the instance's network namespace. A socket stays in
// the one it was made in, so the connection can be used from anywhere.
func (h *Host) dialInside(ctx context.Context, id, protocol string, addr netip.AddrPort) (net.Conn, error) {
	return h.dial(id, func(p runtime.Process) (c net.Conn, err error) {
		ns, err := h.openOf(p, "ns/net", unix.O_RDONLY)
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		err = onThrowawayThread(func() error {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("cannot enter its network namespace: %w", err)
			}
			c, err = dial(ctx, protocol, addr)
			return err
		})
		return c, err
	})
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
