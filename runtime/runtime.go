// Package runtime is the host: the interface through which everything above it
// creates, watches and removes sandboxes, networks, volumes and images.
//
// Two implementations exist: runtime/host drives the real kernel, runtime/sim
// keeps the same promises in memory. runtime/conformance holds both to one
// suite. The package decides nothing: which instance should exist, and why, is
// the caller's affair. It never touches an object that does not bear the mark
// (lineage, sandbox uid, instance id) it was opened with.
package runtime

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// Host is one machine, opened for one lineage. Every method may be called
// again after a crash at any instant: creating what exists and removing what is
// gone both succeed. Methods on different instances may run at the same time;
// calls for one instance are serialised by the caller, except Exec, Dial, DialInside,
// CopyOut, CopyIn, Observe, Stats and WaitExit, which may run beside anything.
type Host interface {
	// Info tells what this kernel is and what it lacks. It changes nothing.
	Info(ctx context.Context) (Info, error)

	// PrepareImage makes the image's root usable as a lower layer and returns
	// what it is. ErrNotFound when the source does not exist.
	PrepareImage(ctx context.Context, src ImageSource) (Image, error)
	// HiddenBy tells what of an image's root sandboxes do not see, as it would be for
	// one that is created now. It changes nothing.
	HiddenBy(ctx context.Context, src ImageSource) (Hidden, error)

	// EnsureNetwork makes the network's bridge, gateway address and rules, or
	// mends what is missing or differs. ErrTaken when the range overlaps an
	// address or route that is not ours.
	EnsureNetwork(ctx context.Context, n Network) error
	// RemoveNetwork removes them. A network still in use by an instance is an error.
	RemoveNetwork(ctx context.Context, n Network) error
	// PrefixesInUse lists the address ranges the host itself uses (interface
	// addresses and routes), so that a new network can avoid them.
	PrefixesInUse(ctx context.Context) ([]netip.Prefix, error)
	// CheckPort reports ErrTaken when a socket on the host already listens on
	// this address and port. Port 0 asks for a free one, which is returned.
	CheckPort(ctx context.Context, addr netip.Addr, port uint16, protocol string) (uint16, error)

	// EnsureVolume makes the volume's directory.
	EnsureVolume(ctx context.Context, v Volume) error
	// RemoveVolume deletes the volume and its data. In use by a live instance is an error.
	RemoveVolume(ctx context.Context, id string) error
	// VolumeUsage counts what a volume's files take, under the hands of those who use
	// it; nothing is changed, no link followed, and what is mounted below is left out.
	// When ctx ends first, Usage is what was counted until then. ErrNotFound when the
	// volume is not there.
	VolumeUsage(ctx context.Context, id string) (Usage, error)

	// Create brings an instance to `created`: root mounted, namespaces, cgroup,
	// network and volumes ready, PID 1 waiting to be started. With a directory
	// from an earlier Create of the same ID it reuses the writable layer. A
	// failed Create leaves nothing behind except the writable layer it found.
	// ErrForeign when something that is not ours has a name that the instance needs;
	// neither Create, Stop nor Remove touches it.
	Create(ctx context.Context, in Instance) (Process, error)
	// Start lets a created instance's PID 1 run its command. ErrCommand when the
	// command cannot be executed; the instance then has no process.
	Start(ctx context.Context, id string) error
	// Pause freezes every process of the instance; Resume thaws them.
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	// Stop takes the process down and releases cgroup, network namespace and
	// ports; writable layer, log and outcome stay. A frozen or merely created
	// instance is killed without running again. Returns the outcome, nil when
	// the process left none. ErrBusy when something did not die within the bound.
	Stop(ctx context.Context, id string, how StopOptions) (*Outcome, error)
	// Update applies the parts of in that can change under a running process:
	// resource limits and published ports.
	Update(ctx context.Context, in Instance) error
	// Repair re-makes what Observe reported missing of a live instance, in place.
	Repair(ctx context.Context, in Instance) error
	// Remove releases everything of the instance, writable layer and log
	// included. A live process is killed first. An unknown ID succeeds.
	Remove(ctx context.Context, id string) error
	// Signal sends sig (a number) to the instance's main process. It is the
	// sandbox's own affair: the outcome's Outside does not have it, but for SIGKILL,
	// which ends the main process alone: Signal and Outside both say 9 then, as after
	// nothing else. ErrUnsupported for what cannot be sent: SIGSTOP, which is Pause's,
	// and 64. ErrNotRunning when the command does not run.
	Signal(ctx context.Context, id string, sig int) error

	// Exec starts a process inside a running instance. ErrPaused on a frozen
	// one, ErrNotRunning on one without a process, ErrCommand when the command
	// cannot be executed.
	Exec(ctx context.Context, id string, e Exec) (ExecProcess, error)
	// Dial connects to a port inside: protocol "tcp" or "udp", at the instance's
	// network address, or at 127.0.0.1 of its own network namespace when it has no
	// network. ErrPaused on a frozen one, ErrNotRunning on one whose command does
	// not run. That nobody listens is syscall.ECONNREFUSED, with udp not before the
	// first Read. The connection outlives ctx; a tcp one has CloseWrite.
	Dial(ctx context.Context, id, protocol string, port uint16) (net.Conn, error)
	// DialInside is Dial as a process inside would connect, by the instance's own
	// loopback, links and routes, whether or not it has a network: what listens on
	// loopback only is reached too. addr has a port and no zone.
	DialInside(ctx context.Context, id, protocol string, addr netip.AddrPort) (net.Conn, error)

	// CopyOut writes a tar of the file or directory at path, as a process inside
	// would find it, volumes included. Names begin with the last part of path, or
	// with "." for "/" and a path that ends in "/."; owners are the ids inside.
	// Links stay links; path itself is followed only with a "/" at its end. Left
	// out: sockets, device nodes, and what lies in proc, sysfs and their kin.
	// A running, frozen, created or stopped instance will do; ErrNotFound when it
	// or the path does not exist. When the process ends meanwhile, so does the copy,
	// with ErrNotRunning; Create and Remove end that of a stopped one, with ErrBusy.
	// Copies of one that is stopped wait for each other. A Write that does not return
	// is the caller's to end.
	CopyOut(ctx context.Context, id, path string, w io.Writer) error
	// CopyIn unpacks a tar into the directory at path, as CopyOut would have found
	// it. The directory is looked at before anything is read from r: ErrNotFound when
	// it does not exist, syscall.ENOTDIR when it is none. Owners are ids inside; one
	// the instance does not have is an error, and so are device nodes, names with
	// ".." and links on the way of a name that lead out of the directory. Directories
	// are merged, anything else replaces what has its name, each file whole or not at
	// all. An error leaves what was unpacked before it. /proc, /sys, /dev and what is
	// mounted read-only cannot be written to. A Read that does not return is the
	// caller's to end.
	CopyIn(ctx context.Context, id, path string, r io.Reader) error
	// Publish listens on a host port in this process and joins each connection with
	// one that open gives, until the closer is closed; it is for ports whose use has
	// to be seen. open may take its time: nothing the client sent meanwhile is lost.
	// active is told when a connection begins and, at a bounded rate, when bytes pass.
	// Close of the closer ends all connections and the context of what is being opened,
	// and returns at once with the port free; it may be called from anywhere, open and
	// active included, which may still be running when it returns.
	// ErrTaken when the port is in use.
	Publish(f Forward, open func(context.Context) (net.Conn, error), active func()) (io.Closer, error)

	// Note keeps a document of the caller's beside an instance's files, where it
	// outlives the caller's own store and goes with the instance. The last one counts;
	// a power cut may lose it. An instance that does not exist is ErrNotFound.
	Note(ctx context.Context, id string, doc []byte) error
	// Notes gives what was noted of each instance that has files here.
	Notes(ctx context.Context) (map[string]Noted, error)
	// Release gives an instance up: it stays as it is and bears a mark that says so,
	// and nobody who respects Released touches it again.
	Release(ctx context.Context, id string) error
	// Reclaim takes that back: the instance bears no such mark any more, and nothing
	// else of it is touched.
	Reclaim(ctx context.Context, id string) error

	// OpenLog opens the instance's output (standard output and error together)
	// for reading.
	OpenLog(ctx context.Context, id string) (*os.File, error)

	// Observe looks at everything that bears this lineage's mark. An error of
	// the whole look is returned; what could not be seen of one instance is in
	// its Unknown field.
	Observe(ctx context.Context) (Observation, error)
	// Inspect is Observe for one instance, and as true, at a cost that does not
	// depend on how many others there are. False: nothing of it is on the host.
	// Missing may leave out what only a dump of all rules or links could tell.
	Inspect(ctx context.Context, id string) (InstanceState, bool, error)
	// Stats tells what a live instance uses of the host, also a created or frozen one.
	// ErrNotRunning for one without a process.
	Stats(ctx context.Context, id string) (Stats, error)
	// Recall tells which PID 1 the caller has on record for an instance. It stands
	// in for the host's own note where that is lost or cannot be read, for as long
	// as this Host is open; nothing is stored.
	Recall(id string, p Process, m Mark)
	// WaitExit returns when the given process of the instance is gone (at once
	// if it already is), or with ctx's error.
	WaitExit(ctx context.Context, id string, p Process) error

	// Close releases what this process holds. Sandboxes live on. Host objects
	// nobody uses any more (nft table, cgroup parent) are removed.
	Close() error
}

// Mark is what ties a host object to a record.
type Mark struct {
	UID     string `json:"uid"`     // the sandbox's, stable over instances
	Address string `json:"address"` // for people; never used to decide ownership
}

// Info describes the machine.
type Info struct {
	BootID  string   `json:"boot_id"`           // /proc/sys/kernel/random/boot_id
	Cgroups string   `json:"cgroups"`           // "v1", "hybrid", "v2" or "none"
	Kernel  string   `json:"kernel"`            // uname -r
	Lacking []string `json:"lacking,omitempty"` // in words, what the kernel or our privileges do not offer
}

// ImageSource says where a root file system comes from.
type ImageSource struct {
	Kind string `json:"kind"`           // "host" or "dir"
	Path string `json:"path,omitempty"` // absolute, for "dir"
}

// Image is a root file system that can be a lower layer.
type Image struct {
	ImageSource
	Digest string `json:"digest"` // "host", or "dir:" and the real path
}

// Network is one bridge with its address range.
type Network struct {
	ID       string       `json:"id"`                     // 8 lower-case base32 or hex characters, unique in the lineage
	Address  string       `json:"address_name,omitempty"` // network.NAME, for people
	CIDR     netip.Prefix `json:"cidr"`
	Gateway  netip.Addr   `json:"gateway"`  // the bridge's own address
	Internet bool         `json:"internet"` // may sandboxes leave the host? masquerade then
}

// Volume is a directory that outlives instances.
type Volume struct {
	ID string `json:"id"`
}

// Usage is what the files of a volume take on disk.
type Usage struct {
	Path    string // where they lie on the host
	Bytes   int64  // of their blocks, directories included; a file of several names counts once
	Files   int64  // all that is no directory
	Partial bool   // something could not be read, or lies too deep: there is more
}

// Hidden is what sandboxes do not see of an image, by absolute paths, sorted.
type Hidden struct {
	Absent []string // the name is not there
	Empty  []string // directories that have nothing in them
}

// IDRange maps container ids 0..Size-1 onto Base..Base+Size-1 of the host. The
// zero value means no user namespace.
type IDRange struct {
	Base uint32 `json:"base"`
	Size uint32 `json:"size"`
}

// Instance is all that Create needs. It is plain data: stored beside the
// writable layer so that a record can be rebuilt from it.
type Instance struct {
	ID   string `json:"id"` // 12 lower-case hex characters
	Mark Mark   `json:"mark"`

	Image        Image             `json:"image"`
	CarryFrom    string            `json:"carry_from,omitempty"` // instance whose writable layer and log this one takes over (moved, not copied); ignored when it has none
	ReadOnlyRoot bool              `json:"read_only_root,omitempty"`
	Command      []string          `json:"command"`
	Env          map[string]string `json:"env,omitempty"`
	WorkingDir   string            `json:"working_dir,omitempty"` // default "/"; made when absent
	User         string            `json:"user,omitempty"`        // uid[:gid] or name[:group] of the image; default root
	Hostname     string            `json:"hostname,omitempty"`
	StopSignal   int               `json:"stop_signal,omitempty"` // 0: SIGTERM

	IDs          IDRange  `json:"ids"`
	Capabilities []string `json:"capabilities"` // the whole set, CAP_ names
	Seccomp      string   `json:"seccomp"`      // "default" or "unconfined"

	Mounts []Mount `json:"mounts,omitempty"`
	Files  []File  `json:"files,omitempty"`

	Net      *Attachment `json:"net,omitempty"` // nil: loopback only
	Forwards []Forward   `json:"forwards,omitempty"`
	Limits   Limits      `json:"limits"`
}

// Mount is one file system inside the sandbox.
type Mount struct {
	Kind     string `json:"kind"`             // "volume", "host" or "tmpfs"
	Source   string `json:"source,omitempty"` // volume id, or absolute host path
	Root     string `json:"root,omitempty"`   // host only: the directory Source was allowed with, absolute. No symbolic link on the way from it to Source may lead out of it, and none may be absolute
	Path     string `json:"path"`             // inside
	ReadOnly bool   `json:"read_only,omitempty"`
	Size     int64  `json:"size,omitempty"` // bytes, tmpfs only; 0: the kernel's default
}

// File is a file the declaration puts inside, owned by root, read-only to the workload.
type File struct {
	Path    string `json:"path"`
	Content []byte `json:"content"`
	Mode    uint32 `json:"mode"` // permission bits
}

// Attachment is the sandbox's place on a network.
type Attachment struct {
	Network Network      `json:"network"`
	Address netip.Prefix `json:"address"`         // with the network's prefix length
	Hosts   []HostEntry  `json:"hosts,omitempty"` // extra lines for /etc/hosts
}

// HostEntry is one line of /etc/hosts.
type HostEntry struct {
	Address netip.Addr `json:"address"`
	Names   []string   `json:"names"`
}

// Forward publishes a port of the sandbox on the host.
type Forward struct {
	Name          string     `json:"name"`
	Protocol      string     `json:"protocol"` // "tcp" or "udp"
	HostAddr      netip.Addr `json:"host_addr"`
	HostPort      uint16     `json:"host_port"`
	ContainerPort uint16     `json:"container_port"`
}

// Limits bound the whole instance. Zero means no limit.
type Limits struct {
	CPU    float64 `json:"cpu,omitempty"`    // cores
	Memory int64   `json:"memory,omitempty"` // bytes, swap included
	PIDs   int64   `json:"pids,omitempty"`
}

// Process identifies a PID 1 beyond doubt on one boot.
type Process struct {
	PID       int    `json:"pid"`        // as seen from the host
	StartTime uint64 `json:"start_time"` // field 22 of /proc/PID/stat, clock ticks since boot (proc_pid_stat(5))
	BootID    string `json:"boot_id"`
}

// StopOptions bound a Stop.
type StopOptions struct {
	Signal int           // first signal; 0: the instance's stop signal
	Grace  time.Duration // how long the process may take; 0 kills at once
}

// Outcome is how the main process ended, as PID 1 wrote it down.
type Outcome struct {
	ExitCode int       `json:"exit_code"`         // 128+n after signal n
	Signal   int       `json:"signal,omitempty"`  // the signal that ended it
	Outside  int       `json:"outside,omitempty"` // the last signal that came from outside its PID namespace (si_pid 0) before the end
	OOM      bool      `json:"oom,omitempty"`     // the cgroup's oom_kill counter had risen
	At       time.Time `json:"at"`
}

// Noted is what an instance's own directory tells of it.
type Noted struct {
	Doc  []byte    // the last Note; nil: none that can be read
	At   time.Time // when it was noted
	Made *Instance // what Create was told, or Update since; nil: damaged
}

// Observation is one look at the host.
type Observation struct {
	BootID    string
	At        time.Time
	Instances map[string]InstanceState // by instance ID
	Networks  map[string]NetworkState  // by network ID
	Volumes   map[string]bool          // by volume ID; true: its directory exists
}

// InstanceState is what is true of one instance now.
type InstanceState struct {
	ID      string
	Mark    Mark
	Unknown string // not empty: why it could not be looked at; other fields but Mark and Released mean nothing then
	// IDs and Address are what Create was told to give it; zero: none, or not known.
	IDs      IDRange
	Address  netip.Addr
	Network  string  // id of the network that Create put it on; empty: none, or not known
	Mounts   []Mount // what Create was told to mount; not to be changed
	Released bool    // Release gave it up
	Noted    bool    // a Note lies beside its files
	Layer    bool    // its writable layer exists
	Alive    bool    // PID 1 exists, is no zombie, and is the recorded one
	Process  Process // of the live PID 1
	Started  bool    // the command was started (else: created, waiting)
	Frozen   bool
	Dying    bool     // processes remain after PID 1's end
	Outcome  *Outcome // of the last incarnation, if it left one
	OOMKills uint64   // the cgroup's oom_kill counter
	Missing  []string // what a live instance lacks: "cgroup", "rootfs", "netns", "rundir", "link", "address", "rules", "limits"
}

// Stats is what an instance uses of the host.
type Stats struct {
	At          time.Time     `json:"at"` // when CPU was read
	Frozen      bool          `json:"frozen,omitempty"`
	CPU         time.Duration `json:"cpu"`                    // that its processes have had since it was created
	Memory      int64         `json:"memory"`                 // bytes, without the file cache that is dropped first
	MemoryLimit int64         `json:"memory_limit,omitempty"` // 0: none
	PIDs        int64         `json:"pids"`                   // processes and threads, PID 1 among them
	PIDsLimit   int64         `json:"pids_limit,omitempty"`   // 0: none
	Net         *Traffic      `json:"net,omitempty"`          // nil: it has no network
}

// Traffic is bytes over an instance's link, as seen from inside.
type Traffic struct {
	Received uint64 `json:"received"`
	Sent     uint64 `json:"sent"`
}

// NetworkState is what is true of one network now.
type NetworkState struct {
	ID      string
	Exists  bool         // the bridge is there and ours
	CIDR    netip.Prefix // by what the bridge says of itself; zero: not known
	Missing []string     // "bridge", "address", "rules"
}

// Exec is a further process inside an instance. A pipe, socket or character device
// among its files becomes the process's own; a regular file or block device is copied
// through a pipe, which what the command leaves running may use for 2 s more; a
// directory is an error. The caller may close them when Exec returns.
type Exec struct {
	Args       []string
	Env        map[string]string // on top of the instance's
	WorkingDir string            // default: the instance's
	User       string            // default: the instance's
	TTY        bool              // a new terminal; Console returns its master
	Width      uint16            // initial size with TTY, characters
	Height     uint16
	Stdin      *os.File // without TTY; nil: /dev/null
	Stdout     *os.File
	Stderr     *os.File
}

// ExecProcess is a running Exec. Wait must be called, or the host keeps a zombie.
type ExecProcess interface {
	Console() *os.File // master side with TTY, else nil; the caller closes it
	Signal(sig int) error
	// Kill ends the process and all of its process group with SIGKILL. Once Wait has
	// returned it does nothing. A frozen group may end only when it is thawed.
	Kill() error
	// Wait returns the code, 128+n after signal n. What the command wrote has arrived
	// then; err is what could not be, or what could not be read for it.
	Wait() (code int, err error)
}

// Sentinels. Errors of this package wrap one of them where the caller can do
// something about it, and always name the object.
var (
	ErrNotFound    = errors.New("not found")
	ErrTaken       = errors.New("already in use")
	ErrForeign     = errors.New("exists but does not bear this lineage's mark")
	ErrCommand     = errors.New("command cannot be executed")
	ErrPaused      = errors.New("sandbox is paused")
	ErrNotRunning  = errors.New("sandbox has no process")
	ErrBusy        = errors.New("still busy")
	ErrUnsupported = errors.New("not supported by this host")
)
