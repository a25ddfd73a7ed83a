package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
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

// bindNetns gives the network namespace of a process the instance's name. It is
// no error when it has it already.
func (h *Host) bindNetns(id string, pid int) error {
	path := h.netns(id)
	if same, err := h.netnsBound(id, pid); err != nil || same {
		return err
	}
	if err := h.releaseNetns(id); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return fmt.Errorf("cannot name the network namespace of instance %s: %w", id, err)
	}
	f.Close()
	if err := unix.Mount("/proc/"+strconv.Itoa(pid)+"/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		os.Remove(path)
		return fmt.Errorf("cannot bind the network namespace of instance %s: %w", id, err)
	}
	return nil
}

// netnsBound tells whether the name stands for the namespace of the process. One
// that is ending has let go of its namespace just before it is seen to be dead
// (do_exit in kernel/exit.c): nothing is missing of it.
func (h *Host) netnsBound(id string, pid int) (bool, error) {
	var name, own unix.Stat_t
	if err := unix.Stat(h.netns(id), &name); err != nil {
		if err == unix.ENOENT {
			return false, nil
		}
		return false, &os.PathError{Op: "stat", Path: h.netns(id), Err: err}
	}
	if err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/ns/net", &own); err != nil {
		if err == unix.ENOENT || err == unix.ESRCH {
			return true, nil
		}
		return false, fmt.Errorf("cannot look at the network namespace of process %d: %w", pid, err)
	}
	return name.Dev == own.Dev && name.Ino == own.Ino, nil
}

func (h *Host) releaseNetns(id string) error {
	path := h.netns(id)
	for {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if err == unix.EINVAL || err == unix.ENOENT {
			break
		}
		if err != nil {
			return fmt.Errorf("cannot release the network namespace of instance %s: %w", id, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot release the network namespace of instance %s: %w", id, err)
	}
	return nil
}
