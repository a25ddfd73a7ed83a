package reconcile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// This file is where the planner's words become the host's and back.

// defaultPath is what a command finds without an env of its own (the value that
// login shells and container engines give root).
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// defaultGrace is how long a process may take to end on its stop signal.
const defaultGrace = 10 * time.Second

// instanceOf says how the instance id of rec is to be made.
func (e *Engine) instanceOf(rec *plan.Sandbox, id string) (runtime.Instance, error) {
	spec := &rec.Spec
	img, ok := e.image(spec.Image)
	if !ok {
		return runtime.Instance{}, fmt.Errorf("cannot create %s: %s does not exist yet", rec.Address, spec.Image)
	}
	in := runtime.Instance{
		ID:           id,
		Mark:         runtime.Mark{UID: rec.UID, Address: rec.Address},
		Image:        runtime.Image{ImageSource: imageSource(img.Spec), Digest: img.Digest},
		CarryFrom:    rec.CarryFrom,
		ReadOnlyRoot: spec.Security.ReadOnlyRoot,
		Command:      spec.Command,
		Env:          clone(spec.Env),
		WorkingDir:   spec.WorkingDir,
		User:         spec.User,
		Hostname:     spec.Hostname,
		IDs:          runtime.IDRange(rec.IDs),
		Capabilities: spec.Security.Capabilities(),
		Seccomp:      "default",
		Limits:       runtime.Limits{CPU: spec.Resources.CPU, Memory: spec.Resources.Memory, PIDs: spec.Resources.PIDs},
	}
	if _, ok := in.Env["PATH"]; !ok {
		in.Env["PATH"] = defaultPath
	}
	if in.Hostname == "" {
		in.Hostname = config.DefaultHostname(rec.Address)
	}
	if spec.StopSignal != "" {
		in.StopSignal = int(unix.SignalNum(spec.StopSignal))
		if in.StopSignal == 0 {
			return in, fmt.Errorf("%s: stop_signal %q is not a signal", rec.Address, spec.StopSignal)
		}
	}
	var err error
	if in.Mounts, err = e.mountsOf(rec); err != nil {
		return in, err
	}
	for _, path := range sortedKeys(spec.Files) {
		f := spec.Files[path]
		mode := uint64(0o644)
		if f.Mode != "" {
			if mode, err = strconv.ParseUint(f.Mode, 8, 32); err != nil {
				return in, fmt.Errorf("%s: file %q: mode %q is not octal", rec.Address, path, f.Mode)
			}
		}
		in.Files = append(in.Files, runtime.File{Path: path, Content: []byte(f.Content), Mode: uint32(mode)})
	}
	if rec.Net != nil {
		n, ok := e.network(rec.Net.Network)
		if !ok {
			return in, fmt.Errorf("cannot create %s: %s does not exist yet", rec.Address, rec.Net.Network)
		}
		in.Net = &runtime.Attachment{
			Network: networkOf(n),
			Address: netip.PrefixFrom(rec.Net.Address, n.CIDR.Bits()),
			Hosts:   []runtime.HostEntry{{Address: rec.Net.Address, Names: []string{in.Hostname}}},
		}
	}
	if relayed(spec) {
		return in, nil // the agent serves them
	}
	for _, name := range sortedKeys(rec.Ports) {
		f, err := forwardOf(rec.Address, name, rec.Ports[name])
		if err != nil {
			return in, err
		}
		in.Forwards = append(in.Forwards, f)
	}
	return in, nil
}

func forwardOf(address, name string, p plan.Port) (runtime.Forward, error) {
	ip, err := netip.ParseAddr(p.Address)
	if err != nil {
		return runtime.Forward{}, fmt.Errorf("%s: port %q: %w", address, name, err)
	}
	return runtime.Forward{
		Name: name, Protocol: p.Protocol, HostAddr: ip, HostPort: uint16(p.Host), ContainerPort: uint16(p.Container),
	}, nil
}

// mountsOf lists claims, volumes, host paths and tmpfs, outer paths first.
func (e *Engine) mountsOf(rec *plan.Sandbox) ([]runtime.Mount, error) {
	var all []runtime.Mount
	for _, name := range sortedKeys(rec.Spec.Volumes) {
		c := rec.Spec.Volumes[name]
		all = append(all, runtime.Mount{Kind: "volume", Source: rec.Claim[name], Path: c.Path, ReadOnly: c.ReadOnly})
	}
	for _, m := range rec.Spec.Mounts {
		switch {
		case m.Volume != "":
			v, ok := e.volume(m.Volume)
			if !ok {
				return nil, fmt.Errorf("cannot create %s: %s does not exist yet", rec.Address, m.Volume)
			}
			all = append(all, runtime.Mount{Kind: "volume", Source: v.ID, Path: m.Path, ReadOnly: m.ReadOnly})
		case m.Host != "":
			root, err := e.hostPathRoot(m.Host)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", rec.Address, err)
			}
			all = append(all, runtime.Mount{Kind: "host", Source: m.Host, Root: root, Path: m.Path, ReadOnly: m.ReadOnly})
		default:
			all = append(all, runtime.Mount{Kind: "tmpfs", Path: m.Path, Size: m.Size, ReadOnly: m.ReadOnly})
		}
	}
	slices.SortStableFunc(all, func(a, b runtime.Mount) int {
		return strings.Count(a.Path, "/") - strings.Count(b.Path, "/")
	})
	return all, nil
}

// hostPathRoot checks again what the configuration was checked against: the
// host's settings may have become stricter since. It returns the widest allowed
// directory that path lies in: what lies deeper may be in the hands of sandboxes.
func (e *Engine) hostPathRoot(path string) (string, error) {
	root := ""
	for _, dir := range e.settings.AllowHostPaths {
		if (path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")) && (root == "" || len(dir) < len(root)) {
			root = dir
		}
	}
	if root == "" {
		return "", fmt.Errorf("host path %s may not be mounted: it is not under allow_host_paths of the host settings", path)
	}
	return root, nil
}

func imageSource(spec config.Image) runtime.ImageSource {
	kind, path, _ := strings.Cut(spec.Source, ":")
	return runtime.ImageSource{Kind: kind, Path: path}
}

func networkOf(n *plan.Network) runtime.Network {
	return runtime.Network{ID: n.ID, Address: n.Address, CIDR: n.CIDR, Gateway: n.Gateway, Internet: n.Spec.Internet}
}

func seenOf(s runtime.InstanceState) plan.Seen {
	seen := plan.Seen{
		UID: s.Mark.UID, Address: s.Mark.Address, Unknown: s.Unknown, Released: s.Released, Layer: s.Layer, Alive: s.Alive,
		PID: s.Process.PID, StartTime: s.Process.StartTime, Started: s.Started,
		Frozen: s.Frozen, Dying: s.Dying, OOMKills: s.OOMKills, Missing: s.Missing,
	}
	if s.Released {
		seen.Network = s.Network
		for _, m := range s.Mounts {
			if m.Kind == "volume" {
				seen.Volumes = append(seen.Volumes, m.Source)
			}
		}
	}
	if s.Outcome != nil {
		seen.Outcome = outcomeOf(s.Outcome, "")
	}
	return seen
}

func outcomeOf(o *runtime.Outcome, reason string) *plan.Outcome {
	if o == nil {
		return nil
	}
	return &plan.Outcome{ExitCode: o.ExitCode, Signal: o.Signal, Outside: o.Outside, OOM: o.OOM, Reason: reason, At: o.At}
}

func observedOf(o runtime.Observation) plan.Observed {
	p := plan.Observed{
		BootID:    o.BootID,
		Instances: make(map[string]plan.Seen, len(o.Instances)),
		Networks:  make(map[string]plan.SeenNetwork, len(o.Networks)),
		Volumes:   o.Volumes,
	}
	for id, s := range o.Instances {
		p.Instances[id] = seenOf(s)
	}
	for id, n := range o.Networks {
		p.Networks[id] = plan.SeenNetwork{Exists: n.Exists, Missing: n.Missing}
	}
	return p
}

func (e *Engine) network(address string) (*plan.Network, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, ok := e.records.Networks[address]
	if !ok {
		return nil, false
	}
	c := *n
	return &c, true
}

func (e *Engine) volume(address string) (*plan.Volume, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v, ok := e.records.Volumes[address]
	if !ok {
		return nil, false
	}
	c := *v
	return &c, true
}

func (e *Engine) image(address string) (*plan.Image, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i, ok := e.records.Images[address]
	if !ok {
		return nil, false
	}
	c := *i
	return &c, true
}

// exports are what the configuration may read of what exists.
func (e *Engine) exports() config.Exports {
	e.mu.Lock()
	defer e.mu.Unlock()
	return exportsOf(&e.records)
}

func exportsOf(r *plan.Records) config.Exports {
	x := make(config.Exports, len(r.Sandboxes)+len(r.Networks))
	for a, s := range r.Sandboxes {
		if s.Instance == nil {
			continue
		}
		ex := config.Export{InstanceID: s.Instance.ID}
		if s.Net != nil {
			ex.Address = s.Net.Address.String()
		}
		if len(s.Ports) > 0 {
			ex.Ports = make(map[string]config.ExportPort, len(s.Ports))
			for name, p := range s.Ports {
				ex.Ports[name] = config.ExportPort(p)
			}
		}
		x[a] = ex
	}
	for a, n := range r.Networks {
		if n.Made {
			x[a] = config.Export{CIDR: n.CIDR.String(), Gateway: n.Gateway.String()}
		}
	}
	for a, i := range r.Images {
		x[a] = config.Export{Digest: i.Digest}
	}
	return x
}
