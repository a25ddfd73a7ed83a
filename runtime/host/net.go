package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// EnsureNetwork implements runtime.Host. Instances on the network learn what has
// changed of it; those that run have the new name servers at once.
func (h *Host) EnsureNetwork(ctx context.Context, n runtime.Network) error {
	if err := h.net.EnsureNetwork(ctx, n); err != nil {
		return err
	}
	ids, err := h.recorded()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if rec, err := h.loadRecord(id); err == nil && rec.Instance.Net != nil && rec.Instance.Net.Network.ID == n.ID {
			errs = append(errs, h.editRecord(id, func(in *runtime.Instance) { joined(in, n) }))
		}
	}
	return errors.Join(errs...)
}

// joined puts what the network is now into an instance that is on it.
func joined(in *runtime.Instance, n runtime.Network) {
	if in.Net != nil && in.Net.Network.ID == n.ID {
		net := *in.Net // others read the old one
		net.Network = n
		in.Net = &net
	}
}

// RemoveNetwork implements runtime.Host.
func (h *Host) RemoveNetwork(ctx context.Context, n runtime.Network) error {
	return h.net.RemoveNetwork(ctx, n)
}

// PrefixesInUse implements runtime.Host.
func (h *Host) PrefixesInUse(ctx context.Context) ([]netip.Prefix, error) {
	return h.net.PrefixesInUse(ctx)
}

// CheckPort implements runtime.Host.
func (h *Host) CheckPort(ctx context.Context, addr netip.Addr, port uint16, protocol string) (uint16, error) {
	return h.net.CheckPort(ctx, addr, port, protocol)
}

// netnsMode is that of the file to which a network namespace is bound.
const netnsMode = 0o400

// bindNetns gives the network namespace of a process, ns, the instance's name. It is
// no error when it has it already. runtime.ErrForeign when something else has.
func (h *Host) bindNetns(id string, pid int, ns namespaceID) error {
	path := h.netns(id)
	state, err := h.netnsAt(id, own{netns: ns})
	if err != nil || state == nameBound {
		return err
	}
	if state == nameFree {
		f, err := failpoint.Get("host.netns.name", func() (*os.File, error) { return os.OpenFile(path, os.O_CREATE|os.O_EXCL, netnsMode) })
		if err != nil {
			return fmt.Errorf("cannot name the network namespace of instance %s: %w", id, err)
		}
		f.Close()
	}
	err = failpoint.Step("host.netns.bind", func() error { return unix.Mount(pidPath(pid, "ns/net"), path, "", unix.MS_BIND, "") })
	if err != nil {
		return fmt.Errorf("cannot bind the network namespace of instance %s: %w", id, err)
	}
	return nil
}

// netnsBound tells whether the name stands for the namespace of the process. One
// that is ending has let go of its namespace just before it is seen to be dead
// (do_exit in kernel/exit.c): nothing is missing of it.
func (h *Host) netnsBound(id string, pid int) (bool, error) {
	var name unix.Stat_t
	if err := unix.Stat(h.netns(id), &name); err != nil {
		if err == unix.ENOENT {
			return false, nil
		}
		return false, &os.PathError{Op: "stat", Path: h.netns(id), Err: err}
	}
	ns, err := namespaceOf(pid)
	return err == nil && (ns == namespaceID{} || ns == namespaceID{name.Dev, name.Ino}), err
}

// releaseNetns takes the name away. runtime.ErrForeign when it is not ours.
func (h *Host) releaseNetns(id string, o own) error {
	path := h.netns(id)
	fail := func(err error) error {
		return fmt.Errorf("cannot release the network namespace of instance %s: %w", id, err)
	}
	for {
		switch state, err := h.netnsAt(id, o); {
		case err != nil || state == nameFree:
			return err
		case state == nameBound:
			err := failpoint.Step("host.netns.unbind", func() error { return unix.Unmount(path, unix.MNT_DETACH) })
			if err != nil {
				return fail(err)
			}
		default:
			err := failpoint.Step("host.netns.remove", func() error { return os.Remove(path) })
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fail(err)
			}
			return nil
		}
	}
}
