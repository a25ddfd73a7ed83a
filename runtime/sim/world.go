// Package sim is a host in memory. It keeps the promises of runtime.Host with
// state machines instead of a kernel: layers, processes with PIDs and start
// times that are never reused, freezing, outcomes, networks, volumes, ports and
// marks.
//
// A World is the machine; World.Open gives a process's handle on it. The world
// outlives its handles, so a test can crash one "process" and go on with the
// next. Besides the interface a world has controls that break things the way
// operators, kernels and power cuts do (Kill, OOM, Reboot, Break, Foreign),
// faults to order (Fail, Delay, Crash, Unknown) and books to check afterwards
// (Ops, ReadOnly, Leftovers).
//
// It uses the time package and channels only in ways that suit a
// testing/synctest bubble: no goroutine of its own outlives a call, and it does
// no I/O but what Exec's and OpenLog's files ask for. A world used in a bubble
// must be made in it. What commands do is scripted; see Script.
//
// It must never touch the real host.
package sim

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"pinfold/runtime"
)

// World is one simulated machine. Its methods may be called from any goroutine.
type World struct {
	mu sync.Mutex

	boots    int       // how often it was started
	bootedAt time.Time // of this boot
	lastPID  int
	lastTick uint64
	nextPort uint16
	lacking  []string

	lineages  map[string]*lineage
	ports     map[portKey][]holder  // published ports
	sockets   map[socket]bool       // listening sockets
	published map[socket]*published // those of them that are ours
	prefixes  []netip.Prefix        // ranges of the host's own interfaces
	missing   map[string]bool       // paths that do not exist on this host
	hostDirs  map[string]files      // what scripts wrote through mounts of kind "host", by source
	links     map[string]string     // symbolic links of the host: absolute path to target
	foreign   map[foreignKey]bool   // objects of others that carry our names
	inCall    map[string]Op         // calls under way, by lineage and instance

	faults   []*fault
	crashes  []*crash
	delays   map[Op]time.Duration
	ops      []Call
	readOnly Reporter
}

// lineage is what bears one lineage's mark.
type lineage struct {
	name      string
	instances map[string]*instance
	networks  map[string]*network
	volumes   map[string]files
	table     bool // its nft table exists
	parent    bool // its cgroup parent exists
}

// New returns a machine that has just booted, with a loopback interface and one
// network card in 192.0.2.0/24.
func New() *World {
	return &World{
		boots:     1,
		bootedAt:  time.Now(),
		lastPID:   1000,
		nextPort:  32768,
		lineages:  map[string]*lineage{},
		ports:     map[portKey][]holder{},
		sockets:   map[socket]bool{},
		published: map[socket]*published{},
		prefixes:  []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24")},
		missing:   map[string]bool{},
		hostDirs:  map[string]files{},
		links:     map[string]string{},
		foreign:   map[foreignKey]bool{},
		inCall:    map[string]Op{},
		delays:    map[Op]time.Duration{},
	}
}

// Open gives a handle on the machine for one lineage. Opening changes nothing.
// Several handles of one lineage may exist, as after a crash.
func (w *World) Open(name string) *Host {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.lineages[name]
	if l == nil {
		l = &lineage{
			name:      name,
			instances: map[string]*instance{},
			networks:  map[string]*network{},
			volumes:   map[string]files{},
		}
		w.lineages[name] = l
	}
	return &Host{w: w, l: l, recalled: map[string]runtime.Process{}}
}

func (w *World) bootID() string {
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", w.boots)
}

// newProcess gives an identity that no process of this world had before.
func (w *World) newProcess() runtime.Process {
	w.lastPID++
	tick := uint64(time.Since(w.bootedAt) / (10 * time.Millisecond))
	w.lastTick = max(w.lastTick+1, tick)
	return runtime.Process{PID: w.lastPID, StartTime: w.lastTick, BootID: w.bootID()}
}

// now is the wall clock without a monotonic part, so that it survives storing.
func now() time.Time { return time.Now().Round(0) }
