package sim

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"pinfold/runtime"
)

// The controls do to the host what others do to it: none of them is a call of
// runtime.Host, none is logged, counted or forbidden. One that names something
// that does not exist panics: the test is wrong.

type foreignKey struct{ kind, id string }

func (w *World) find(id string) *instance {
	for _, l := range w.lineages {
		if in := l.instances[id]; in != nil {
			return in
		}
	}
	panic(fmt.Sprintf("sim: no instance %s", id))
}

func (w *World) findLive(id string) *instance {
	in := w.find(id)
	if !in.live() {
		panic(fmt.Sprintf("sim: instance %s has no process", id))
	}
	return in
}

func (w *World) findNetwork(id string) *network {
	for _, l := range w.lineages {
		if n := l.networks[id]; n != nil {
			return n
		}
	}
	panic(fmt.Sprintf("sim: no network %s", id))
}

// Kill ends the instance's PID 1 from outside with SIGKILL: it vanishes without
// an outcome, and its cgroup, network and ports stay until Stop or Remove.
func (w *World) Kill(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.findLive(id).proc.vanish()
}

// KillMain is a signal from outside to the started main process. SIGKILL hits
// it directly, and its outcome says signal 9. Any other signal goes through
// PID 1, which notes it in Outcome.Outside.
func (w *World) KillMain(id string, sig int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.findLive(id)
	if !in.proc.started {
		panic(fmt.Sprintf("sim: instance %s has no main process yet", id))
	}
	in.proc.signal(sig)
}

// OOM lets the kernel's OOM killer end the started main process: the counter
// rises, and PID 1 leaves an outcome.
func (w *World) OOM(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.findLive(id)
	if !in.proc.started {
		panic(fmt.Sprintf("sim: instance %s has no main process yet", id))
	}
	in.ooms++
	in.proc.main.signal(sigKILL)
}

// OOMInit lets the OOM killer end PID 1: the counter rises, and there is no outcome.
func (w *World) OOMInit(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.findLive(id)
	in.ooms++
	in.proc.vanish()
}

// OOMChild lets the OOM killer end some other process of the instance: only the
// counter rises.
func (w *World) OOMChild(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.findLive(id).ooms++
}

// Stick makes the instance's processes outlive SIGKILL, as those in an
// uninterruptible sleep do: after PID 1's end they are seen as Dying, and Stop
// and Remove fail with runtime.ErrBusy after KillBound. Unstick lets them go.
func (w *World) Stick(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.findLive(id).stuck = true
}

// Unstick ends Stick.
func (w *World) Unstick(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.find(id).stuck = false
}

// Unknown makes Observe and Inspect unable to look at the instance, for this reason; an
// empty one ends it.
func (w *World) Unknown(id, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.find(id).unknown = why
}

// Answer makes every Exec in the instance do this script, such as "exit=1", instead
// of its command: a probe's command then fails, passes or hangs as a test likes. No
// steps take it back.
func (w *World) Answer(id string, steps ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	script, err := parse(append([]string{"sim"}, steps...))
	if err != nil {
		panic(err)
	}
	if len(steps) == 0 {
		script = nil
	}
	w.find(id).answer = script
}

// Reboot is a power cut and a new boot. Processes, cgroups, mounts, network
// namespaces, bridges, nft tables and listening sockets are gone; layers, logs,
// outcomes, volumes and host directories stay.
func (w *World) Reboot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lineages {
		for _, in := range l.instances {
			if in.live() {
				in.proc.vanish()
			}
			w.release(in)
		}
		clear(l.networks)
		l.table, l.parent = false, false
	}
	clear(w.sockets)
	w.boots++
	w.bootedAt = now()
	w.lastTick = 0
}

// Break takes one part of an instance away by hand: "cgroup", "rootfs",
// "netns" (its name), "rundir", "link", "address", "rules" or "limits". A link
// takes its address along, the run dir the netns's name, and the way to start what
// has not been started.
func (w *World) Break(id, part string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.findLive(id)
	have := in.parts.named(part)
	if have == nil || !*have {
		panic(fmt.Sprintf("sim: instance %s has no %s", id, part))
	}
	*have = false
	switch part {
	case "link":
		in.parts.address = false
	case "rundir":
		in.parts.netns = false
		in.proc.stranded = !in.proc.started
	}
}

// BreakNetwork takes one part of a network away by hand: "bridge", "address" or
// "rules". A bridge takes its address along and leaves the sandboxes on it
// without a link to anything.
func (w *World) BreakNetwork(id, part string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.findNetwork(id)
	switch part {
	case "bridge":
		n.bridge, n.address = false, false
		for _, in := range n.members {
			in.parts.link = false
		}
	case "address":
		n.address = false
	case "rules":
		n.rules = false
	default:
		panic(fmt.Sprintf("sim: a network has no part %q", part))
	}
}

// DropLayer deletes an instance's directory, with layer, log and outcome, by
// hand. Without any other remains, nothing of it is on the host then.
func (w *World) DropLayer(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := w.find(id)
	in.layer, in.outcome = nil, nil
	if !in.holdsHost() {
		in.l.forget(in)
	}
}

// DropVolume deletes a volume's directory by hand.
func (w *World) DropVolume(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lineages {
		delete(l.volumes, id)
	}
}

// Foreign makes an object of somebody else that has the name one of ours would
// have: kind "bridge" with a network ID, "link", "cgroup" or "netns" with an
// instance ID, "volume" with a volume ID. What needs the name fails with
// runtime.ErrForeign; nothing can change the object.
func (w *World) Foreign(kind, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains([]string{"bridge", "link", "cgroup", "netns", "volume"}, kind) {
		panic(fmt.Sprintf("sim: no foreign objects of kind %q", kind))
	}
	w.foreign[foreignKey{kind, id}] = true
}

// DropForeign takes it away again.
func (w *World) DropForeign(kind, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.foreign, foreignKey{kind, id})
}

// UsePrefix gives the host an interface with this range.
func (w *World) UsePrefix(p netip.Prefix) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.prefixes = append(w.prefixes, p)
}

// Listen makes somebody listen on a port of the host; Unlisten ends it.
func (w *World) Listen(addr netip.AddrPort, protocol string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sockets[socket{addr, protocol}] = true
}

// Unlisten ends Listen.
func (w *World) Unlisten(addr netip.AddrPort, protocol string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sockets, socket{addr, protocol})
}

// Missing makes an absolute path not exist on the host, for images and mounts.
// Without it every absolute path exists.
func (w *World) Missing(p string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missing[path.Clean(p)] = true
}

// Lacking sets what Info says the host lacks.
func (w *World) Lacking(words ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lacking = words
}

// VolumeFile returns a file of a volume by its path in it, such as "/a".
func (w *World) VolumeFile(id, p string) (text string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lineages {
		if v := l.volumes[id]; v != nil {
			text, ok = v[p]
		}
	}
	return text, ok
}

// HostFile makes a file in a directory of the host, for mounts of kind "host".
func (w *World) HostFile(dir, name, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hostDirs[dir] == nil {
		w.hostDirs[dir] = files{}
	}
	w.hostDirs[dir]["/"+name] = text
}

// HostLink puts a symbolic link into a directory of the host.
func (w *World) HostLink(dir, name, target string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links[path.Join(dir, name)] = target
}

// LayerFile returns a file of an instance's writable layer.
func (w *World) LayerFile(id, p string) (text string, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, ok = w.find(id).layer[p]
	return text, ok
}

// Spec returns what the instance was last created or updated with.
func (w *World) Spec(id string) runtime.Instance {
	w.mu.Lock()
	defer w.mu.Unlock()
	return clone(w.find(id).spec)
}

// Uses makes Stats say this of an instance, but for At and Frozen.
func (w *World) Uses(id string, s runtime.Stats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.find(id).stats = &s
}

// Leftovers lists, sorted, everything of every lineage that still exists, one
// object a line, such as "layer 0123456789ab" or "bridge abcd1234". Foreign
// objects are not among it.
func (w *World) Leftovers() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var left []string
	for _, l := range w.lineages {
		if l.table {
			left = append(left, "nft table of "+l.name)
		}
		if l.parent {
			left = append(left, "cgroup parent of "+l.name)
		}
		for id, in := range l.instances {
			left = append(left, in.leftovers(id)...)
		}
		for id, n := range l.networks {
			if n.bridge {
				left = append(left, "bridge "+id)
			}
			if n.rules {
				left = append(left, "network rules "+id)
			}
		}
		for id := range l.volumes {
			left = append(left, "volume "+id)
		}
	}
	for key, held := range w.ports {
		for _, h := range held {
			left = append(left, fmt.Sprintf("%s port %d of %s", key.protocol, key.port, h.in.spec.ID))
		}
	}
	slices.Sort(left)
	return left
}

func (in *instance) leftovers(id string) []string {
	left := []string{"record " + id}
	if in.layer != nil {
		left = append(left, "layer "+id)
	}
	if in.proc != nil && (in.live() || in.stuck) {
		left = append(left, "process "+id)
	}
	for _, part := range partNames {
		if *in.parts.named(part) && part != "limits" {
			left = append(left, part+" "+id)
		}
	}
	return left
}

// String is Leftovers, a line each.
func (w *World) String() string { return strings.Join(w.Leftovers(), "\n") }
