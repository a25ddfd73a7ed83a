package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"pinfold/runtime/failpoint"
)

// within runs fn on a thread that is in the network namespace at path and nowhere
// else. The thread goes back afterwards; if it cannot, it ends with its goroutine
// and nothing else ever runs on it.
func within(path string, fn func(ns *os.File) error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		stay, err := visit(path, fn)
		if !stay {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// visit enters the namespace, calls fn and returns. stuck tells that the thread is
// still inside.
func visit(path string, fn func(ns *os.File) error) (stuck bool, err error) {
	ns, err := os.Open(path)
	if err != nil {
		return false, fmt.Errorf("cannot open network namespace: %w", err)
	}
	defer ns.Close()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return false, fmt.Errorf("cannot open own network namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return false, fmt.Errorf("cannot enter network namespace %s: %w", path, err)
	}
	err = fn(ns)
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		return true, errors.Join(err, fmt.Errorf("cannot leave network namespace %s: %w", path, back))
	}
	return false, err
}

// loopbackIndex is the interface index of lo, the first link of every namespace.
const loopbackIndex = 1

// Loopback brings lo up in the namespace at netnsPath. Attach does so too.
func (n *Net) Loopback(netnsPath string) error {
	return within(netnsPath, func(*os.File) error {
		r, err := openRoute()
		if err != nil {
			return err
		}
		defer r.close()
		if err := failpoint.Step("network.loopback.up", func() error { return r.set(loopbackIndex, true) }); err != nil {
			return fmt.Errorf("cannot bring lo up in network namespace %s: %w", netnsPath, err)
		}
		return nil
	})
}

// setSysctl writes a value below /proc/sys/net of the calling thread's namespace,
// unless it is there already. A kernel without that knob has nothing to set.
func setSysctl(name, value string) error {
	path := "/proc/sys/net/" + name
	have, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && string(have) == value+"\n" {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		return fmt.Errorf("cannot set net/%s to %s: %w", name, value, err)
	}
	return nil
}

// inside is what Attach finds or makes in the sandbox's namespace.
type inside struct {
	index int // of the link, in the sandbox
	peer  int // its other end's index, on the host
}

// look finds the sandbox's link, if it has one.
func look(netnsPath string) (in inside, found bool, err error) {
	err = within(netnsPath, func(*os.File) error {
		r, err := openRoute()
		if err != nil {
			return err
		}
		defer r.close()
		l, ok, err := r.link(insideName)
		in, found = inside{l.index, l.peer}, ok
		return err
	})
	return in, found, err
}

// furnish gives the sandbox's link its address and default route and brings it
// and lo up. It runs in the sandbox's namespace.
func furnish(r *route, mac net.HardwareAddr, addr netip.Prefix, gateway netip.Addr) error {
	// Before the link is up, or it would get a link-local IPv6 address.
	err := failpoint.Step("network.inside.setting", func() error { return setSysctl("ipv6/conf/"+insideName+"/disable_ipv6", "1") })
	if err != nil {
		return err
	}
	l, found, err := r.link(insideName)
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("interface %s is gone", insideName)
	}
	if l.mac.String() != mac.String() {
		err := failpoint.Step("network.inside.mac", func() error { return r.set(l.index, false, raw(unix.IFLA_ADDRESS, mac)) })
		if err != nil {
			return fmt.Errorf("cannot set the hardware address of %s: %w", insideName, err)
		}
	}
	if err := failpoint.Step("network.inside.loopback", func() error { return r.set(loopbackIndex, true) }); err != nil {
		return fmt.Errorf("cannot bring lo up: %w", err)
	}
	have, err := r.addresses()
	if err != nil {
		return err
	}
	had := slices.Contains(have, address{l.index, addr})
	for _, a := range have {
		if a.index == l.index && a.prefix != addr {
			err := failpoint.Step("network.inside.dropaddress", func() error { return r.deleteAddress(l.index, a.prefix) })
			if err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
				return fmt.Errorf("cannot remove the address %s from %s: %w", a.prefix, insideName, err)
			}
		}
	}
	if err := failpoint.Step("network.inside.address", func() error { return r.addAddress(l.index, addr) }); err != nil {
		return fmt.Errorf("cannot give %s the address %s: %w", insideName, addr, err)
	}
	if err := failpoint.Step("network.inside.up", func() error { return r.set(l.index, true) }); err != nil {
		return fmt.Errorf("cannot bring %s up: %w", insideName, err)
	}
	if had {
		if err := failpoint.Step("network.inside.ownroute", func() error { return r.setOwnRoute(l.index, addr) }); err != nil {
			return fmt.Errorf("cannot set the route to %s: %w", addr.Masked(), err)
		}
	}
	if err := failpoint.Step("network.inside.route", func() error { return r.setDefaultRoute(l.index, gateway) }); err != nil {
		return fmt.Errorf("cannot set the default route to %s: %w", gateway, err)
	}
	return nil
}
