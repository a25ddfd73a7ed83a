package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/capability"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// undo is a list of releases, run backwards.
type undo []func() error

func (u *undo) add(f func() error) { *u = append(*u, f) }

// run ends with the first that fails: what was made before stands for as long as what
// was made of it.
func (u undo) run() error {
	for _, f := range slices.Backward(u) {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// Create implements runtime.Host. Called again for an instance that lives, it
// returns its process and changes nothing.
func (h *Host) Create(ctx context.Context, in runtime.Instance) (p runtime.Process, err error) {
	if err := check(in); err != nil {
		return p, err
	}
	rec, err := h.loadRecord(in.ID)
	damaged := errors.Is(err, errDamaged)
	if err != nil && !damaged && !errors.Is(err, os.ErrNotExist) {
		return p, err
	}
	if err == nil && rec.Instance.Mark.UID != in.Mark.UID {
		return p, fmt.Errorf("instance %s is sandbox %s's, not %s's: %w", in.ID, rec.Instance.Mark.UID, in.Mark.UID, runtime.ErrForeign)
	}
	known := err == nil
	running, err := h.loadProcess(in.ID)
	if err != nil {
		return p, err
	}
	if ok, err := h.alive(running.Process); err != nil || ok && !running.Creating {
		return running.Process, err
	}
	defer h.files.claim(in.ID)()
	defer h.files.claim(in.CarryFrom)()
	if err := h.ready(); err != nil {
		return p, err
	}
	if err := h.starters.settle(ctx); err != nil {
		return p, err
	}
	tree, err := h.cgroups()
	if err != nil {
		return p, err
	}
	if err := h.refuseForeign(in.ID); err != nil {
		return p, fmt.Errorf("cannot create %w", err)
	}
	tree.warm()
	if err := h.noteParent(tree); err != nil {
		return p, err
	}
	// Making the user namespace takes longer than the layer: it goes on beside it.
	ids := beside(func() (*os.File, error) { return newUserNamespace(h.pinit, in.IDs) })
	defer func() {
		if ns, err := ids(); err == nil {
			ns.Close() // harmless on nil
		}
	}()
	was, err := h.cgroupsOf(in.ID)
	if err != nil {
		return p, err
	}
	if known || damaged || running.Process.PID != 0 || was.exists(in.ID) {
		// What an earlier life, or a Create that was cut off, has left.
		if err := h.takeDown(ctx, in.ID, runtime.Process{}); err != nil {
			return p, err
		}
	}

	var u undo
	defer func() {
		if err == nil {
			return
		}
		if uerr := u.run(); uerr != nil {
			err = fmt.Errorf("%w; undoing it failed too: %w", err, uerr)
		}
	}()
	t := time.Now()
	layer, err := h.makeLayer(in, known, rec, &u)
	if err != nil {
		return p, err
	}
	h.phase("layer", t)
	u.add(func() error { return h.takeDown(context.WithoutCancel(ctx), in.ID, runtime.Process{}) })
	p, err = h.launch(ctx, in, ids, tree, layer.fresh)
	if err != nil {
		return p, err
	}
	t = time.Now()
	if err := h.nameRun(in.ID, p); err != nil {
		return p, fmt.Errorf("cannot write whose outcome file that of instance %s is: %w", in.ID, err)
	}
	err = failpoint.Step("host.outcome.place", func() error { return os.Rename(h.outcomePath(in.ID)+".next", h.outcomePath(in.ID)) })
	if err != nil {
		return p, fmt.Errorf("cannot put the outcome file of instance %s in place: %w", in.ID, err)
	}
	if layer.carried {
		if err := failpoint.Step("host.carry.end", func() error { return h.saveRecord(in, "") }); err != nil {
			return p, fmt.Errorf("cannot write down that instance %s has the files of %s: %w", in.ID, in.CarryFrom, err)
		}
	}
	ns, err := namespaceOf(p.PID)
	if err != nil {
		return p, err
	}
	err = failpoint.Step("host.process.settle", func() error {
		return h.saveProcess(in.ID, processRecord{Process: p, Mark: in.Mark, Netns: ns})
	})
	if err != nil {
		return p, fmt.Errorf("cannot write down the process of instance %s: %w", in.ID, err)
	}
	h.phase("record", t)
	return p, nil
}

func check(in runtime.Instance) error {
	if err := checkID(in.ID); err != nil {
		return err
	}
	switch {
	case in.CarryFrom != "" && !isInstanceID(in.CarryFrom):
		return fmt.Errorf("instance %s: id %q to carry from must be 12 lower-case hex characters", in.ID, in.CarryFrom)
	case in.CarryFrom == in.ID:
		return fmt.Errorf("instance %s cannot carry its files over from itself", in.ID)
	case len(in.Command) == 0 || in.Command[0] == "":
		return fmt.Errorf("instance %s: no command given; set command: %w", in.ID, runtime.ErrCommand)
	case (in.IDs.Base == 0) != (in.IDs.Size == 0):
		return fmt.Errorf("instance %s: id range %d+%d is neither empty nor whole", in.ID, in.IDs.Base, in.IDs.Size)
	case uint64(in.IDs.Base)+uint64(in.IDs.Size) > 1<<32-1:
		return fmt.Errorf("instance %s: id range %d+%d is too high", in.ID, in.IDs.Base, in.IDs.Size)
	case len(hostname(in)) > 64:
		return fmt.Errorf("instance %s: host name %q is longer than 64 characters", in.ID, in.Hostname)
	}
	for _, c := range in.Capabilities {
		if !slices.ContainsFunc(capability.ListKnown(), func(k capability.Cap) bool { return "CAP_"+strings.ToUpper(k.String()) == c }) {
			return fmt.Errorf("instance %s: capability %q is not known; use names such as CAP_NET_ADMIN", in.ID, c)
		}
	}
	for _, s := range in.Command {
		if strings.ContainsRune(s, 0) {
			return fmt.Errorf("instance %s: command holds a zero byte", in.ID)
		}
	}
	for k, v := range in.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return fmt.Errorf("instance %s: environment variable %q cannot be set", in.ID, k)
		}
	}
	for _, m := range in.Mounts {
		if m.Kind == "volume" && !isName(m.Source) {
			return fmt.Errorf("instance %s: volume id %q is not valid", in.ID, m.Source)
		}
		if m.Kind == "host" && !(filepath.IsAbs(m.Root) && within(filepath.Clean(m.Root), filepath.Clean(m.Source))) {
			return fmt.Errorf("instance %s: host path %q is not below %q, the directory of allow_host_paths it is to come from", in.ID, m.Source, m.Root)
		}
		if !filepath.IsAbs(m.Path) {
			return fmt.Errorf("instance %s: mount point %q is not absolute", in.ID, m.Path)
		}
	}
	return nil
}

// layer is what makeLayer found or made.
type layer struct {
	fresh   bool // nothing has been written to it yet
	carried bool // another instance still has a claim to it
}

// makeLayer makes the instance's directory with a writable layer: the one it
// has, the one carried over, or a new one.
func (h *Host) makeLayer(in runtime.Instance, known bool, rec record, u *undo) (l layer, err error) {
	dir := h.instanceDir(in.ID)
	upper := filepath.Join(dir, "upper")
	_, err = os.Lstat(upper)
	had := err == nil
	switch {
	case had && !known:
		if err := checkOwner(upper, in.IDs); err != nil {
			return l, fmt.Errorf("the writable layer of instance %s cannot be used: %w; replace the sandbox", in.ID, err)
		}
	case had && rec.Instance.IDs != in.IDs:
		return l, fmt.Errorf("the writable layer of instance %s belongs to ids from %d, not from %d; replace the sandbox", in.ID, rec.Instance.IDs.Base, in.IDs.Base)
	}
	carrying := ""
	if had {
		carrying = rec.Carrying
		u.add(func() error { return h.restoreLayer(in.ID, known, rec) })
	} else {
		u.add(func() error { return h.unmakeLayer(in.ID, carrying) })
	}
	if err := failpoint.Step("host.instance.make", func() error { return os.MkdirAll(dir, 0o700) }); err != nil {
		return l, fmt.Errorf("cannot make the directory of instance %s: %w", in.ID, err)
	}
	if !had && in.CarryFrom != "" {
		ok, err := h.mayCarry(in)
		if err != nil {
			return l, err
		}
		if ok {
			carrying = in.CarryFrom
			if err := h.carry(in); err != nil {
				return l, err
			}
		}
	}
	// Not waiting for the disk, which would make every start slower by some
	// milliseconds: what a power cut soon after leaves of it counts as damaged.
	if err := failpoint.Step("host.record.put", func() error { return h.putRecord(in, carrying) }); err != nil {
		return l, fmt.Errorf("cannot write down instance %s: %w", in.ID, err)
	}
	l = layer{fresh: !had && carrying == "", carried: carrying != ""}
	if l.fresh {
		if err := makeUpper(upper, int(in.IDs.Base)); err != nil {
			return l, fmt.Errorf("cannot make the writable layer of instance %s: %w", in.ID, err)
		}
	}
	if err := makeWork(filepath.Join(dir, "work"), int(in.IDs.Base), !l.fresh); err != nil {
		return l, fmt.Errorf("cannot make the work directory of instance %s: %w", in.ID, err)
	}
	run := h.runDir(in.ID)
	u.add(func() error { return h.removeRun(in.ID) })
	if err := makeRun(run); err != nil {
		return l, fmt.Errorf("cannot make the run directory of instance %s: %w", in.ID, err)
	}
	return l, nil
}

// unmakeLayer undoes what a Create that fails has made of a writable layer where it
// found none.
func (h *Host) unmakeLayer(id, carrying string) error {
	if carrying != "" {
		if err := h.giveBack(id, carrying); err != nil {
			return err
		}
	}
	return h.forget(id)
}

// restoreLayer undoes what a Create that fails has done to a writable layer which
// it found.
func (h *Host) restoreLayer(id string, known bool, rec record) error {
	err := failpoint.Step("host.outcome.discard", func() error { return os.Remove(h.outcomePath(id) + ".next") })
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if known {
		err = errors.Join(err, failpoint.Step("host.record.restore", func() error { return h.saveRecord(rec.Instance, rec.Carrying) }))
	}
	return err
}

// makeUpper makes the directory of a new writable layer, which the ids from base own.
// Its attributes are what sandboxes see of their root. It has its name only when it has
// all of them: what bears the name is taken for a layer with files in it.
func makeUpper(upper string, base int) error {
	tmp := upper + ".new"
	err := failpoint.Step("host.layer.make", func() error { return os.Mkdir(tmp, 0o755) })
	if errors.Is(err, os.ErrExist) {
		err = nil // of one that was cut off here
	}
	if err == nil {
		err = failpoint.Step("host.layer.mode", func() error { return os.Chmod(tmp, 0o755) })
	}
	if err == nil {
		err = failpoint.Step("host.layer.own", func() error { return os.Lchown(tmp, base, base) })
	}
	if err == nil {
		err = failpoint.Step("host.layer.place", func() error { return os.Rename(tmp, upper) })
	}
	return err
}

// makeWork makes the directory that overlayfs wants beside a layer. What an earlier
// mount left in it means nothing to a new one.
func makeWork(work string, base int, used bool) error {
	if used {
		if err := failpoint.Step("host.work.clear", func() error { return os.RemoveAll(work) }); err != nil {
			return err
		}
	}
	if err := failpoint.Step("host.work.make", func() error { return os.MkdirAll(work, 0o700) }); err != nil {
		return err
	}
	return failpoint.Step("host.work.own", func() error { return os.Lchown(work, base, base) })
}

// makeRun makes an instance's run directory with the pipe on which PID 1 tells how
// starting the command went.
func makeRun(run string) error {
	if err := failpoint.Step("host.run.make", func() error { return os.MkdirAll(run, 0o700) }); err != nil {
		return err
	}
	status := filepath.Join(run, "status")
	err := failpoint.Step("host.status.clear", func() error { return os.Remove(status) })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := failpoint.Step("host.status.make", func() error { return unix.Mkfifo(status, 0o600) }); err != nil {
		return &os.PathError{Op: "mkfifo", Path: status, Err: err}
	}
	return nil
}

// checkOwner stands in for a record that is lost: the layer's root belongs to the
// first of the sandbox's ids.
func checkOwner(upper string, r runtime.IDRange) error {
	var st unix.Stat_t
	if err := unix.Lstat(upper, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: upper, Err: err}
	}
	if st.Uid != r.Base {
		return fmt.Errorf("%s belongs to id %d, not to %d", upper, st.Uid, r.Base)
	}
	return nil
}

// mayCarry tells whether there is a writable layer to take over from another instance.
// One that must not be taken is an error.
func (h *Host) mayCarry(in runtime.Instance) (bool, error) {
	old := filepath.Join(h.instanceDir(in.CarryFrom), "upper")
	if _, err := os.Lstat(old); errors.Is(err, os.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("cannot carry over the files of instance %s: %w", in.CarryFrom, err)
	}
	rec, err := h.loadRecord(in.CarryFrom)
	damaged := errors.Is(err, errDamaged)
	if damaged {
		err = checkOwner(old, in.IDs)
	}
	if err != nil {
		return false, fmt.Errorf("cannot carry over the files of instance %s: %w", in.CarryFrom, err)
	}
	if !damaged && rec.Instance.Mark.UID != in.Mark.UID {
		return false, fmt.Errorf("cannot carry over the files of instance %s, it is sandbox %s's: %w", in.CarryFrom, rec.Instance.Mark.UID, runtime.ErrForeign)
	}
	if !damaged && rec.Instance.IDs != in.IDs {
		return false, fmt.Errorf("cannot carry over the files of instance %s: they belong to ids from %d, not from %d", in.CarryFrom, rec.Instance.IDs.Base, in.IDs.Base)
	}
	p, err := h.loadProcess(in.CarryFrom)
	if err != nil {
		return false, err
	}
	if ok, err := h.alive(p.Process); err != nil || ok {
		if err == nil {
			err = fmt.Errorf("cannot carry over the files of instance %s while it runs; stop it first: %w", in.CarryFrom, runtime.ErrBusy)
		}
		return false, err
	}
	return true, nil
}

// carry moves the writable layer and log of another instance here. They are its until
// Create has succeeded.
func (h *Host) carry(in runtime.Instance) error {
	// The record first: whoever finds the layer here must know whose it was.
	if err := failpoint.Step("host.carry.begin", func() error { return h.saveRecord(in, in.CarryFrom) }); err != nil {
		return fmt.Errorf("cannot write down that instance %s takes over the files of %s: %w", in.ID, in.CarryFrom, err)
	}
	for _, name := range []string{"log", "upper"} { // upper last: it says that all is here
		err := failpoint.Step("host.carry.move", func() error {
			return os.Rename(filepath.Join(h.instanceDir(in.CarryFrom), name), filepath.Join(h.instanceDir(in.ID), name))
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot carry over the files of instance %s to %s: %w", in.CarryFrom, in.ID, err)
		}
	}
	return nil
}

// giveBack undoes carry, as far as the other instance still exists without a
// layer of its own.
func (h *Host) giveBack(id, from string) error {
	if _, err := os.Lstat(h.recordPath(from)); err != nil {
		return nil
	}
	for _, name := range []string{"upper", "log"} {
		target := filepath.Join(h.instanceDir(from), name)
		if _, err := os.Lstat(target); err == nil {
			continue
		}
		err := failpoint.Step("host.carry.return", func() error { return os.Rename(filepath.Join(h.instanceDir(id), name), target) })
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot give the files of instance %s back: %w", from, err)
		}
	}
	return nil
}

func (h *Host) identify(pid int) (runtime.Process, error) {
	_, start, err := procStat(pid)
	if err != nil {
		return runtime.Process{}, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return runtime.Process{PID: pid, StartTime: start, BootID: h.boot}, nil
}

func workingDir(in runtime.Instance) string {
	if in.WorkingDir == "" {
		return "/"
	}
	return in.WorkingDir
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment merges the given variables over what every process gets.
func environment(base, extra map[string]string, who identity) []string {
	env := map[string]string{"PATH": defaultPath, "HOME": who.home}
	maps.Copy(env, base)
	maps.Copy(env, extra)
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// forget removes an instance's directory in the state directory.
func (h *Host) forget(id string) error {
	h.mu.Lock()
	delete(h.records, id)
	h.mu.Unlock()
	h.writing.Lock()
	// From now on nobody writes there.
	err := failpoint.Step("host.record.remove", func() error { return os.Remove(h.recordPath(id)) })
	h.writing.Unlock()
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = failpoint.Step("host.layer.remove", func() error { return os.RemoveAll(filepath.Join(h.instanceDir(id), "upper")) })
	}
	if err == nil {
		err = failpoint.Step("host.instance.remove", func() error { return os.RemoveAll(h.instanceDir(id)) })
	}
	if err == nil {
		// A record that is gone for good must not leave files that a power cut brings back.
		err = failpoint.Step("host.forgotten.sync", func() error { return syncPath(filepath.Dir(h.instanceDir(id))) })
	}
	if err != nil {
		return fmt.Errorf("cannot remove the files of instance %s: %w", id, err)
	}
	return nil
}

func pidPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }
