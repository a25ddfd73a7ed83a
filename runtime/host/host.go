// Package host is the real kernel behind runtime.Host: libcontainer, overlayfs,
// cgroups and namespaces, driven from this process without any helper that
// outlives it. Sandboxes live on when it ends; the next process finds them by
// what lies in the state and run directories.
//
// A program that uses this package must import pinfold/runtime/host/boot.
//
// State directory, kept over reboots:
//
//	lineage                whose directory this is
//	instances/ID/          instance.json, upper and work (the writable layer), log, outcome, files,
//	                       note.json (see Note), released (an empty file; see Release)
//	volumes/ID/            a volume's files
//
// PID 1 itself bounds the log: it keeps the newest 16 MiB at least and 1 MiB more
// at most, whatever else runs. Older output is a hole at the file's beginning, so
// offsets keep their meaning: a reader starts at SEEK_DATA, skips to the next line
// when that is not 0, and does the same again wherever it meets a hole.
//
// Run directory, gone after a reboot:
//
//	lineage
//	cgroup-parents         below which cgroups ours may be
//	instances/ID/          process.json (who PID 1 is, and its network namespace) and status (how starting it went)
//	containers/ID/         libcontainer's own state
//	netns/ID               the network namespace, bound to a name
//
// Cgroups are PARENT-SHORT/ID in every hierarchy, below the parent that was set when
// the instance was created. Mounts of sandboxes are made
// in a mount namespace of this process (see stage) and never show on the host.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
	"pinfold/runtime/host/memfd"
	"pinfold/runtime/host/pinit"
	"pinfold/runtime/host/seccomp"
	"pinfold/runtime/network"
)

// Options say what to open. All but CgroupParent and Trace are required.
type Options struct {
	StateDir     string // absolute; made when absent
	RunDir       string // absolute; made when absent
	Lineage      string // whose objects these are
	ShortID      string // 6 hex characters of the lineage; part of every name on the host
	CgroupParent string // default "pinfold"; "-" and ShortID are added. Another one than before holds for what is created from now on

	// Trace, when set, is told how long each phase of Create and Start took.
	// It is called from the goroutines that do the work.
	Trace func(phase string, d time.Duration)
}

// Host implements runtime.Host.
type Host struct {
	opts      Options
	boot      string
	net       *network.Net
	resolvers []string // files that name the host's name servers, the best first

	writing sync.Mutex // held while an instance.json changes
	files   resting

	waits atomic.Int64 // calls of WaitExit under way

	enterBound time.Duration // see enterBound; shorter in tests

	readyMu  sync.Mutex
	stage    *stage
	pinit    *os.File
	starters starters

	mu         sync.Mutex
	tree       *cgroupTree
	olderTrees []*cgroupTree          // of other cgroup parents, still in use
	noted      bool                   // that the tree's parent is in use
	filters    map[string]*os.File    // by sorted capabilities
	gates      map[string]*sync.Mutex // by instance: keeps Exec and Pause apart
	records    map[string]cachedRecord
	recalled   map[string]processRecord // by instance: who PID 1 is, should process.json be lost
	images     map[runtime.ImageSource]*lowerLayers
}

// Open opens the host for one lineage. It makes the directories and nothing
// else. runtime.ErrForeign when they belong to another lineage.
func Open(o Options) (*Host, error) {
	if o.CgroupParent == "" {
		o.CgroupParent = "pinfold"
	}
	switch {
	case !filepath.IsAbs(o.StateDir) || !filepath.IsAbs(o.RunDir):
		return nil, fmt.Errorf("state directory %q and run directory %q must be absolute paths", o.StateDir, o.RunDir)
	case o.Lineage == "":
		return nil, errors.New("a lineage is required")
	case !isHex(o.ShortID, 6):
		return nil, fmt.Errorf("short id %q must be 6 lower-case hex characters", o.ShortID)
	case !isName(o.CgroupParent):
		return nil, fmt.Errorf("cgroup parent %q must be one plain name", o.CgroupParent)
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: sandboxes need root (euid is %d); run as root or through the agent", runtime.ErrUnsupported, os.Geteuid())
	}
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	if err := makeDir(o.StateDir, o.Lineage, "instances", "volumes"); err != nil {
		return nil, err
	}
	if err := makeRunDir(o); err != nil {
		return nil, err
	}
	net, err := network.Open(o.ShortID)
	if err != nil {
		return nil, err
	}
	// libcontainer reports failures both as errors and through this logger.
	logrus.SetOutput(io.Discard)
	return &Host{
		opts: o, boot: boot, net: net, starters: starters{path: filepath.Join(o.RunDir, "starter.lock")}, enterBound: enterBound, resolvers: hostResolvers,
		filters: map[string]*os.File{}, gates: map[string]*sync.Mutex{},
		records: map[string]cachedRecord{}, recalled: map[string]processRecord{}, images: map[runtime.ImageSource]*lowerLayers{},
	}, nil
}

// replaceFile writes a file whole or not at all.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	tmp := path + ".new"
	err := failpoint.Step("host.file.write", func() error { return os.WriteFile(tmp, data, mode) })
	if err == nil {
		err = failpoint.Step("host.file.place", func() error { return os.Rename(tmp, path) })
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// ready makes what is needed to start processes, once.
func (h *Host) ready() error {
	h.readyMu.Lock()
	defer h.readyMu.Unlock()
	if err := h.keepRunDir(); err != nil {
		return err
	}
	if h.pinit == nil {
		f, err := pinit.Open()
		if err != nil {
			return err
		}
		h.pinit = f
	}
	if h.stage == nil {
		s, err := newStage(h.opts.StateDir, h.opts.RunDir)
		if err != nil {
			return err
		}
		h.stage = s
	}
	return nil
}

// Close releases descriptors and removes cgroup parents and network tables
// when nothing uses them any more.
func (h *Host) Close() error {
	h.starters.Close()
	h.readyMu.Lock()
	if h.stage != nil {
		h.stage.Close()
		h.stage = nil
	}
	if h.pinit != nil {
		h.pinit.Close()
		h.pinit = nil
	}
	h.readyMu.Unlock()
	h.mu.Lock()
	for k, f := range h.filters {
		f.Close()
		delete(h.filters, k)
	}
	h.mu.Unlock()
	return errors.Join(h.removeParents(), h.net.Close())
}

func (h *Host) instanceDir(id string) string { return filepath.Join(h.opts.StateDir, "instances", id) }
func (h *Host) runDir(id string) string      { return filepath.Join(h.opts.RunDir, "instances", id) }
func (h *Host) containers() string           { return filepath.Join(h.opts.RunDir, "containers") }
func (h *Host) netns(id string) string       { return filepath.Join(h.opts.RunDir, "netns", id) }
func (h *Host) volumeDir(id string) string   { return filepath.Join(h.opts.StateDir, "volumes", id) }

// gate is held while an Exec begins and while a Pause freezes: a process that
// is frozen on its way in would never report back.
func (h *Host) gate(id string) *sync.Mutex {
	h.mu.Lock()
	defer h.mu.Unlock()
	g := h.gates[id]
	if g == nil {
		g = new(sync.Mutex)
		h.gates[id] = g
	}
	return g
}

// filter returns a file with the seccomp program for these capabilities.
func (h *Host) filter(in runtime.Instance) (*os.File, error) {
	switch in.Seccomp {
	case "unconfined":
		return nil, nil
	case "default":
	default:
		return nil, fmt.Errorf("seccomp profile %q is not known; use \"default\" or \"unconfined\"", in.Seccomp)
	}
	caps := slices.Clone(in.Capabilities)
	slices.Sort(caps)
	key := strings.Join(caps, ",")
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.filters[key]; f != nil {
		return f, nil
	}
	program, err := seccomp.Default(caps)
	if err != nil {
		return nil, err
	}
	f, err := memfd.Sealed("seccomp", program, 0o400)
	if err != nil {
		return nil, err
	}
	h.filters[key] = f
	return f, nil
}

// phase reports the time since t to Trace and returns the time now.
func (h *Host) phase(name string, t time.Time) time.Time {
	now := time.Now()
	if h.opts.Trace != nil {
		h.opts.Trace(name, now.Sub(t))
	}
	return now
}

// isHex tells whether s is n lower-case hex characters.
func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}

func isInstanceID(s string) bool { return isHex(s, 12) }

// isName tells whether s can be one component of a path and looks like a name.
func isName(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return s != "" && len(s) <= 64 && strings.Trim(s, letters+"_.-") == "" && strings.Contains(letters, s[:1])
}

func checkID(id string) error {
	if !isInstanceID(id) {
		return fmt.Errorf("instance id %q must be 12 lower-case hex characters", id)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var _ runtime.Host = (*Host)(nil)
