package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"time"

	"pinfold/runtime"
)

// KillBound is how long Stop and Remove wait for killed processes to be gone.
const KillBound = 5 * time.Second

// instance is all that bears one instance ID. The world's lock guards it.
type instance struct {
	l        *lineage
	spec     runtime.Instance
	layer    files // nil: no writable layer
	tmpfs    map[string]files
	log      *log
	outcome  *runtime.Outcome // of the last incarnation
	proc     *process         // nil: released
	parts    parts
	ooms     uint64
	carrying string         // instance whose files a Create that has not ended moved here
	stuck    bool           // its processes do not die
	stats    *runtime.Stats // what Stats says instead of what the script does
	unknown  string         // why Observe cannot see it
	note     []byte         // the last Note
	notedAt  time.Time
	released bool
	answer   Script // what every Exec does instead of its command
}

// parts are the host objects of one incarnation.
type parts struct {
	cgroup, rootfs, netns, runDir, link, address, rules, limits bool
}

func (in *instance) live() bool { return in.proc != nil && !in.proc.dead }

// alive tells whether the instance has a process and this handle can say which.
func (h *Host) alive(in *instance) bool {
	return in.live() && (in.parts.runDir || h.recalled[in.spec.ID] == in.proc.id)
}

// holdsHost tells whether anything besides files is left of it.
func (in *instance) holdsHost() bool { return in.proc != nil || in.parts != parts{} }

func (h *Host) instance(id string) (*instance, error) {
	in := h.l.instances[id]
	if in == nil {
		return nil, fmt.Errorf("instance %s: %w", id, runtime.ErrNotFound)
	}
	return in, nil
}

// running returns the instance if it has a process.
func (h *Host) running(id string) (*instance, error) {
	in, err := h.instance(id)
	if err != nil {
		return nil, err
	}
	if !h.alive(in) {
		return nil, fmt.Errorf("instance %s: %w", id, runtime.ErrNotRunning)
	}
	return in, nil
}

// started returns the instance if its command was started and still runs.
func (h *Host) started(id string) (*instance, error) {
	in, err := h.running(id)
	if err == nil && !in.proc.started {
		return nil, fmt.Errorf("instance %s: created but not started: %w", id, runtime.ErrNotRunning)
	}
	return in, err
}

// Create implements runtime.Host.
func (h *Host) Create(ctx context.Context, spec runtime.Instance) (p runtime.Process, err error) {
	err = h.call(ctx, OpCreate, spec.ID, func(mid midway) error {
		made, hadLayer, err := h.create(spec)
		if err != nil || !made {
			if err == nil {
				p = h.process(spec.ID)
			}
			return err
		}
		if err := mid(); err != nil {
			if !errors.Is(err, ErrCrashed) {
				h.uncreate(spec.ID, hadLayer)
			}
			return err
		}
		p = h.boot(spec.ID)
		return nil
	})
	if err != nil {
		return runtime.Process{}, fmt.Errorf("create instance %s of %s: %w", spec.ID, spec.Mark.Address, err)
	}
	return p, nil
}

// create makes everything but the process. made is false when a live one is
// there already.
func (h *Host) create(spec runtime.Instance) (made, hadLayer bool, err error) {
	w, l := h.w, h.l
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := check(spec); err != nil {
		return false, false, err
	}
	in := l.instances[spec.ID]
	if in != nil {
		switch {
		case in.spec.Mark.UID != spec.Mark.UID:
			return false, false, fmt.Errorf("instance %s belongs to another sandbox: %w", spec.ID, runtime.ErrForeign)
		case h.alive(in):
			return false, true, nil
		case in.stuck && in.proc != nil:
			return false, true, fmt.Errorf("processes of its last run have not died: %w", runtime.ErrBusy)
		}
	}
	if in != nil {
		if in.proc != nil {
			in.proc.vanish()
		}
		w.release(in)
	}
	if err := h.available(spec); err != nil {
		return false, false, err
	}
	if in == nil {
		in = &instance{l: l, log: &log{}}
		l.instances[spec.ID] = in
	}
	in.spec = clone(spec)
	for i, m := range in.spec.Mounts {
		if m.Kind == "host" {
			// What is mounted stays mounted, wherever its links lead later.
			if in.spec.Mounts[i].Source, err = w.beneath(m.Root, m.Source); err != nil {
				return false, false, err
			}
		}
	}
	in.outcome = nil
	if from := l.instances[spec.CarryFrom]; from != nil && from != in && from.layer != nil && in.layer == nil {
		in.carrying = spec.CarryFrom
		in.swapFiles(from)
	}
	hadLayer = in.layer != nil
	if !hadLayer {
		in.layer = files{}
	}
	l.parent = true
	l.table = l.table || spec.Net != nil
	in.parts = complete(&in.spec)
	if spec.Net != nil {
		l.networks[spec.Net.Network.ID].members[spec.Net.Address.Addr()] = in
	}
	w.publish(in)
	return true, hadLayer, nil
}

// uncreate takes back what create made.
func (h *Host) uncreate(id string, hadLayer bool) {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	in := h.l.instances[id]
	h.w.release(in)
	if in.giveBack() || !hadLayer {
		h.l.forget(in)
	}
}

// swapFiles exchanges the writable layers and logs of two instances.
func (in *instance) swapFiles(other *instance) {
	in.layer, other.layer = other.layer, in.layer
	in.log, other.log = other.log, in.log
}

// giveBack returns files that a Create took over but did not get to use.
func (in *instance) giveBack() bool {
	from := in.l.instances[in.carrying]
	in.carrying = ""
	if from == nil || from.layer != nil {
		return false
	}
	in.swapFiles(from)
	return true
}

// boot gives a prepared instance its PID 1.
func (h *Host) boot(id string) runtime.Process {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	in := h.l.instances[id]
	in.carrying = ""
	in.proc = &process{
		in: in, id: h.w.newProcess(), gone: make(chan struct{}),
		execs: map[*task]bool{}, serves: map[uint16]bool{}, conns: map[*conn]bool{},
	}
	h.recalled[id] = in.proc.id
	return in.proc.id
}

func (h *Host) process(id string) runtime.Process {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if in := h.l.instances[id]; in != nil && in.proc != nil {
		return in.proc.id
	}
	return runtime.Process{}
}

// check refuses what no host could make.
func check(spec runtime.Instance) error {
	switch {
	case !isHex(spec.ID, 12):
		return fmt.Errorf("instance id %q is not 12 lower-case hex characters", spec.ID)
	case spec.Mark.UID == "":
		return errors.New("the mark has no sandbox uid")
	case spec.Image.Digest == "":
		return errors.New("the image has no digest; prepare it first")
	case spec.Seccomp != "default" && spec.Seccomp != "unconfined":
		return fmt.Errorf("seccomp profile %q is neither default nor unconfined", spec.Seccomp)
	case len(spec.Forwards) > 0 && spec.Net == nil:
		return fmt.Errorf("ports without a network: %w", runtime.ErrUnsupported)
	}
	if _, err := parse(spec.Command); err != nil {
		return err
	}
	if a := spec.Net; a != nil {
		switch {
		case !usable(a.Network.CIDR, a.Address.Addr()) || a.Address.Bits() != a.Network.CIDR.Bits():
			return fmt.Errorf("address %s is no usable one of network %s", a.Address, a.Network.CIDR)
		case a.Address.Addr() == a.Network.Gateway:
			return fmt.Errorf("address %s is the gateway's", a.Address)
		}
	}
	for _, f := range spec.Forwards {
		if f.HostPort == 0 || f.ContainerPort == 0 || !f.HostAddr.Is4() || f.Protocol != "tcp" && f.Protocol != "udp" {
			return fmt.Errorf("port %q cannot be published: %+v", f.Name, f)
		}
	}
	for _, m := range spec.Mounts {
		if m.Kind != "volume" && m.Kind != "host" && m.Kind != "tmpfs" {
			return fmt.Errorf("mount at %s: unknown kind %q", m.Path, m.Kind)
		}
		if m.Kind == "host" && !(path.IsAbs(m.Root) && under(path.Clean(m.Source), path.Clean(m.Root))) {
			return fmt.Errorf("host path %q is not below %q, the directory of allow_host_paths it is to come from", m.Source, m.Root)
		}
	}
	return nil
}

// available refuses what this host, as it is now, cannot make.
func (h *Host) available(spec runtime.Instance) error {
	w, l := h.w, h.l
	for _, kind := range []string{"link", "cgroup", "netns"} {
		if w.foreign[foreignKey{kind, spec.ID}] {
			return fmt.Errorf("%s of instance %s: %w", kind, spec.ID, runtime.ErrForeign)
		}
	}
	if spec.Image.Kind == "dir" && w.missing[spec.Image.Path] {
		return fmt.Errorf("image directory %s: %w", spec.Image.Path, runtime.ErrNotFound)
	}
	for _, m := range spec.Mounts {
		if m.Kind == "volume" && l.volumes[m.Source] == nil {
			return fmt.Errorf("volume %s: %w", m.Source, runtime.ErrNotFound)
		}
		if m.Kind != "host" {
			continue
		}
		at, err := w.beneath(m.Root, m.Source)
		if err != nil {
			return err
		}
		if w.missing[at] {
			return fmt.Errorf("host path %s: %w", m.Source, runtime.ErrNotFound)
		}
	}
	if from := l.instances[spec.CarryFrom]; from != nil && from.live() && spec.CarryFrom != spec.ID {
		return fmt.Errorf("instance %s, whose layer it takes over, still runs: %w", spec.CarryFrom, runtime.ErrBusy)
	}
	if a := spec.Net; a != nil {
		n := l.networks[a.Network.ID]
		if n == nil || !n.bridge {
			return fmt.Errorf("network %s: no bridge: %w", a.Network.ID, runtime.ErrNotFound)
		}
		if other := n.members[a.Address.Addr()]; other != nil && other.spec.ID != spec.ID {
			return fmt.Errorf("address %s: instance %s has it: %w", a.Address.Addr(), other.spec.ID, runtime.ErrTaken)
		}
	}
	return w.publishable(l.name, spec)
}

// complete is every part that this instance should have.
func complete(spec *runtime.Instance) parts {
	return parts{
		cgroup: true, rootfs: true, netns: true, runDir: true,
		link: spec.Net != nil, address: spec.Net != nil, rules: spec.Net != nil,
		limits: spec.Limits != runtime.Limits{},
	}
}

// release lets go of everything of a dead incarnation but its files.
func (w *World) release(in *instance) {
	if in.spec.Net != nil {
		if n := in.l.networks[in.spec.Net.Network.ID]; n != nil && n.members[in.spec.Net.Address.Addr()] == in {
			delete(n.members, in.spec.Net.Address.Addr())
		}
	}
	w.unpublish(in)
	in.parts = parts{}
	in.proc = nil
	in.tmpfs = nil
	in.ooms = 0
	in.stuck = false
}

func (l *lineage) forget(in *instance) {
	in.log.close()
	delete(l.instances, in.spec.ID)
}

// Start implements runtime.Host.
func (h *Host) Start(ctx context.Context, id string) error {
	err := h.call(ctx, OpStart, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.running(id)
		if err != nil || in.proc.started {
			return err
		}
		if in.proc.frozen {
			return runtime.ErrPaused
		}
		if in.proc.stranded {
			return errors.New("what it waits at is gone")
		}
		script, err := parse(in.spec.Command)
		if err != nil {
			return err
		}
		if script.cannotExecute() {
			in.proc.vanish()
			h.w.release(in)
			return fmt.Errorf("%q: %w", in.spec.Command, runtime.ErrCommand)
		}
		in.proc.start(h.w, script)
		return nil
	})
	return wrap("start", id, err)
}

// Pause implements runtime.Host.
func (h *Host) Pause(ctx context.Context, id string) error {
	err := h.call(ctx, OpPause, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.running(id)
		if err == nil {
			in.proc.freeze()
		}
		return err
	})
	return wrap("pause", id, err)
}

// Resume implements runtime.Host.
func (h *Host) Resume(ctx context.Context, id string) error {
	err := h.call(ctx, OpResume, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.running(id)
		if err == nil {
			in.proc.thaw()
		}
		return err
	})
	return wrap("resume", id, err)
}

// Signal implements runtime.Host.
func (h *Host) Signal(ctx context.Context, id string, sig int) error {
	err := h.call(ctx, OpSignal, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.started(id)
		switch {
		case err != nil:
			return err
		case sig == sigSTOP || sig == keptSignal:
			return fmt.Errorf("signal %d cannot be sent: %w", sig, runtime.ErrUnsupported)
		case sig == sigKILL:
			in.proc.outside = sig
		}
		in.proc.main.signal(sig)
		return nil
	})
	return wrap("signal", id, err)
}

// Stop implements runtime.Host. An unknown ID has nothing to stop and succeeds.
func (h *Host) Stop(ctx context.Context, id string, how runtime.StopOptions) (out *runtime.Outcome, err error) {
	err = h.call(ctx, OpStop, id, func(mid midway) error {
		gone := h.askToEnd(id, how)
		if gone != nil {
			if err := waitGone(ctx, gone, how.Grace); err != nil {
				return err
			}
		}
		if err := h.kill(ctx, id); err != nil {
			return err
		}
		if err := mid(); err != nil {
			return err
		}
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		if in := h.l.instances[id]; in != nil {
			h.w.release(in)
			out = copyOutcome(in.outcome)
		}
		return nil
	})
	if err != nil {
		return nil, wrap("stop", id, err)
	}
	return out, nil
}

// askToEnd sends the stop signal, and returns what to wait for, or nil when
// there is nothing to ask or nothing to wait for.
func (h *Host) askToEnd(id string, how runtime.StopOptions) <-chan struct{} {
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	in := h.l.instances[id]
	if in == nil || !h.alive(in) || !in.proc.started || in.proc.frozen || how.Grace <= 0 {
		return nil
	}
	sig := how.Signal
	if sig == 0 {
		sig = in.spec.StopSignal
	}
	if sig == 0 {
		sig = sigTERM
	}
	gone := in.proc.gone
	in.proc.signal(sig)
	return gone
}

// waitGone waits for the channel at most d; that d has passed is no error.
func waitGone(ctx context.Context, gone <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// kill ends PID 1 and all under it, and waits until they are gone.
func (h *Host) kill(ctx context.Context, id string) error {
	h.w.mu.Lock()
	in := h.l.instances[id]
	if in == nil || in.proc == nil {
		h.w.mu.Unlock()
		return nil
	}
	in.proc.vanish()
	stuck := in.stuck
	h.w.mu.Unlock()
	if !stuck {
		return nil
	}
	if err := wait(ctx, KillBound); err != nil {
		return err
	}
	h.w.mu.Lock()
	defer h.w.mu.Unlock()
	if in.stuck {
		return fmt.Errorf("processes did not die within %s of SIGKILL: %w", KillBound, runtime.ErrBusy)
	}
	return nil
}

// Update implements runtime.Host.
func (h *Host) Update(ctx context.Context, spec runtime.Instance) error {
	err := h.call(ctx, OpUpdate, spec.ID, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.running(spec.ID)
		if err != nil {
			return err
		}
		if len(spec.Forwards) > 0 && in.spec.Net == nil {
			return fmt.Errorf("ports without a network: %w", runtime.ErrUnsupported)
		}
		if err := h.w.publishable(h.l.name, spec); err != nil {
			return err
		}
		h.w.unpublish(in)
		in.spec.Forwards = slices.Clone(spec.Forwards)
		in.spec.Limits = spec.Limits
		in.parts.limits = in.parts.cgroup && spec.Limits != runtime.Limits{}
		h.w.publish(in)
		return nil
	})
	return wrap("update", spec.ID, err)
}

// Repair implements runtime.Host. A cgroup or root file system that is gone
// cannot be made again under a running process: that is an error.
func (h *Host) Repair(ctx context.Context, spec runtime.Instance) error {
	err := h.call(ctx, OpRepair, spec.ID, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.running(spec.ID)
		if err != nil {
			return err
		}
		if a := in.spec.Net; a != nil {
			n := h.l.networks[a.Network.ID]
			if n == nil || !n.bridge {
				return fmt.Errorf("network %s: no bridge: %w", a.Network.ID, runtime.ErrNotFound)
			}
			n.members[a.Address.Addr()] = in
			h.l.table = true
		}
		whole := complete(&in.spec)
		whole.cgroup, whole.rootfs = in.parts.cgroup, in.parts.rootfs
		whole.limits = whole.limits && whole.cgroup
		in.parts = whole
		if !whole.cgroup || !whole.rootfs {
			return fmt.Errorf("its %s is gone and cannot be made again under a running process; stop and create it again", in.missing()[0])
		}
		return nil
	})
	return wrap("repair", spec.ID, err)
}

// Remove implements runtime.Host.
func (h *Host) Remove(ctx context.Context, id string) error {
	err := h.call(ctx, OpRemove, id, func(mid midway) error {
		if err := h.kill(ctx, id); err != nil {
			return err
		}
		h.w.mu.Lock()
		in := h.l.instances[id]
		if in != nil {
			h.w.release(in)
		}
		h.w.mu.Unlock()
		if err := mid(); err != nil {
			return err
		}
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		if in != nil {
			in.giveBack()
			h.l.forget(in)
		}
		delete(h.recalled, id)
		return nil
	})
	return wrap("remove", id, err)
}

// OpenLog implements runtime.Host.
func (h *Host) OpenLog(ctx context.Context, id string) (file *os.File, err error) {
	err = h.call(ctx, OpOpenLog, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.instance(id)
		if err == nil {
			file, err = in.log.open(id)
		}
		return err
	})
	if err != nil {
		if file != nil {
			file.Close()
		}
		return nil, wrap("open the log of", id, err)
	}
	return file, nil
}

// WaitExit implements runtime.Host.
func (h *Host) WaitExit(ctx context.Context, id string, p runtime.Process) error {
	err := h.call(ctx, OpWaitExit, id, func(midway) error {
		h.w.mu.Lock()
		in := h.l.instances[id]
		if in == nil || !in.live() || in.proc.id != p {
			h.w.mu.Unlock()
			return nil
		}
		gone := in.proc.gone
		h.w.mu.Unlock()
		select {
		case <-gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return wrap("wait for", id, err)
}

func wrap(verb, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s instance %s: %w", verb, id, err)
}

func copyOutcome(o *runtime.Outcome) *runtime.Outcome {
	if o == nil {
		return nil
	}
	c := *o
	return &c
}

// clone copies what a caller could change behind our back.
func clone(spec runtime.Instance) runtime.Instance {
	spec.Command = slices.Clone(spec.Command)
	spec.Env = maps.Clone(spec.Env)
	spec.Mounts = slices.Clone(spec.Mounts)
	spec.Files = slices.Clone(spec.Files)
	spec.Forwards = slices.Clone(spec.Forwards)
	if spec.Net != nil {
		net := *spec.Net
		spec.Net = &net
	}
	return spec
}

func isHex(s string, n int) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) == n
}
