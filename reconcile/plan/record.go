package plan

import (
	"net/netip"
	"time"

	"pinfold/config"
)

// Phase is where an instance is in its life.
type Phase string

const (
	Pending   Phase = "pending"
	Created   Phase = "created"
	Running   Phase = "running"
	Paused    Phase = "paused"
	Stopped   Phase = "stopped"
	Failed    Phase = "failed"
	Lost      Phase = "lost"
	Destroyed Phase = "destroyed"
)

// Records is everything state holds that a plan depends on.
type Records struct {
	Lineage   string                    `json:"lineage"`
	Serial    uint64                    `json:"serial"`
	Sandboxes map[string]*Sandbox       `json:"sandboxes"` // by address
	Networks  map[string]*Network       `json:"networks"`
	Volumes   map[string]*Volume        `json:"volumes"`
	Images    map[string]*Image         `json:"images"`
	Outputs   map[string]*config.Output `json:"outputs"`
	Ended     map[string]*Ended         `json:"ended"` // sandboxes that stay ended while their block is declared, by address
	// Cycles are the groups of moved blocks that form a cycle and were gone through.
	// They are remembered while the files have them, so that it is done once.
	Cycles []string `json:"cycles,omitempty"`
}

// Sandbox is the record of one sandbox: what was declared, when it ends, what
// is reserved for it and what was last seen, side by side.
type Sandbox struct {
	Address    string `json:"address"`
	UID        string `json:"uid"`
	Generation int64  `json:"generation"` // grows with each change of Spec

	Spec      config.Sandbox             `json:"spec"`
	Lifecycle config.Lifecycle           `json:"lifecycle,omitzero"`
	DependsOn []string                   `json:"depends_on,omitempty"`
	Sources   map[string]config.Position `json:"sources,omitempty"`
	// Sensitive are the paths of the spec that are not to be shown nor kept in clear,
	// as config.Resource has them.
	Sensitive []string `json:"sensitive,omitempty"`
	// Unreadable are members of the spec that are kept sealed, by name, whose key is
	// lost: the spec has their zero values. The files give them anew.
	Unreadable map[string]string `json:"-"`

	Lease Lease `json:"lease,omitzero"`
	Hold  *Hold `json:"hold,omitempty"`
	// LastActivity is the last instant at which somebody used it, stored coarsely.
	LastActivity time.Time `json:"last_activity,omitzero"`
	// Warned is the deadline that an event has warned of.
	Warned time.Time `json:"warned,omitzero"`

	// Reserved from creation to destroy, through stop, recreate and replace.
	IDs   IDRange           `json:"ids,omitzero"`
	Net   *Net              `json:"net,omitempty"`
	Ports map[string]Port   `json:"ports,omitempty"`
	Claim map[string]string `json:"claims,omitempty"` // volume id by claim name

	Instance   *Instance   `json:"instance,omitempty"` // nil: pending
	Expired    *Expired    `json:"expired,omitempty"`
	Conditions []Condition `json:"conditions"` // always all six, in Types order
	Retry      Retry       `json:"retry,omitzero"`
	Restarts   Retry       `json:"restarts,omitzero"` // the series of restarts by the restart block; Error stays empty
	CreatedAt  time.Time   `json:"created_at"`

	// CarryFrom is the gone instance whose writable layer the next create takes
	// over; Doomed are instances of ours still to be removed from the host.
	CarryFrom string   `json:"carry_from,omitempty"`
	Doomed    []string `json:"doomed,omitempty"`
	// Deposed are to go as well, and have reservations of their own until then.
	Deposed []Deposed `json:"deposed,omitempty"`
}

// Instance is one incarnation on the host.
type Instance struct {
	ID        string `json:"id"`
	Phase     Phase  `json:"phase"`
	PID       int    `json:"pid,omitempty"`
	StartTime uint64 `json:"start_time,omitempty"` // clock ticks since boot, proc_pid_stat(5)
	BootID    string `json:"boot_id,omitempty"`
	// Image is the digest of the image it was made from; when the image's record
	// has another one, the sandbox is replaced. Empty: not known, not compared.
	Image     string    `json:"image,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	StartedAt time.Time `json:"started_at,omitzero"`
	Outcome   *Outcome  `json:"outcome,omitempty"`
	// RunningSpec is the generation whose restart-class attributes the process
	// has; smaller than the record's while such changes wait for the next start.
	// An update in place raises it too (Adopt does): a live process with an older
	// generation is restarted. 0: not known, not compared.
	RunningSpec int64  `json:"running_spec"`
	StoppedBy   string `json:"stopped_by,omitempty"` // why phase is stopped: "exit", "stop", "suspend", "expiry", "killed", "oom"
	OOMKills    uint64 `json:"oom_kills,omitempty"`
	FailReason  string `json:"fail_reason,omitempty"`
}

// Lease says when the sandbox ends: absolute instants.
type Lease struct {
	Start   time.Time       `json:"start,omitzero"` // the first instance became created
	TTL     config.Duration `json:"ttl,omitempty"`  // the ttl Until was computed from; renewals leave it
	Until   time.Time       `json:"until,omitzero"` // zero: none
	Renewed bool            `json:"renewed,omitempty"`
	// EndedAt is the deadline that pausing cleared, by expiry or because the clock
	// runs only while the sandbox does.
	EndedAt time.Time `json:"ended_at,omitzero"`
	// ActedOn is the shutdown_time at which the sandbox was paused; the same one
	// ends it no second time.
	ActedOn time.Time `json:"acted_on,omitzero"`
	// AccessRenewedAt is when access last renewed it.
	AccessRenewedAt time.Time `json:"access_renewed_at,omitzero"`
}

// Hold is a word over the declared mode: an operator's, the idle rule's, or that
// of an expiry by pause.
type Hold struct {
	Mode   string    `json:"mode"` // running, paused, suspended, created
	By     string    `json:"by"`   // operator, apply, idle, expiry
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
	// Under is the operator's hold that one by idle or expiry lies over; it comes
	// back when that ends.
	Under *Hold `json:"under,omitempty"`
}

// Expired latches an expiry to the deadline that passed.
type Expired struct {
	Deadline time.Time `json:"deadline"`
	Reason   string    `json:"reason"` // TTLExpiry or ShutdownTime
	At       time.Time `json:"at"`
	Done     bool      `json:"done"`             // teardown finished
	Paused   bool      `json:"paused,omitempty"` // it was frozen instead (shutdown_policy pause); a resume clears it
}

// Retry paces what failed or was killed.
type Retry struct {
	Attempts int       `json:"attempts,omitempty"`
	NextAt   time.Time `json:"next_at,omitzero"` // not before
	Since    time.Time `json:"since,omitzero"`   // first failure of this series
	Error    string    `json:"error,omitempty"`
}

// Outcome is how the main process ended.
type Outcome struct {
	ExitCode int       `json:"exit_code"`
	Signal   int       `json:"signal,omitempty"`
	Outside  int       `json:"outside,omitempty"` // last signal from outside the PID namespace before the end
	OOM      bool      `json:"oom"`
	Reason   string    `json:"reason"` // exited, signalled, killed, oom, stopped, suspended, ttl_expiry, shutdown_time, start_failed
	At       time.Time `json:"at"`
}

// IDRange maps container ids 0..Size-1 to Base.. on the host; zero: no user namespace.
type IDRange struct {
	Base uint32 `json:"base"`
	Size uint32 `json:"size"`
}

// Net is the recorded place on a network.
type Net struct {
	Network string     `json:"network"` // address of the network
	Address netip.Addr `json:"address"`
}

// Port is a published port with its host port chosen.
type Port struct {
	Container int    `json:"container"`
	Host      int    `json:"host"`
	Address   string `json:"address"`
	Protocol  string `json:"protocol"`
}

// Condition is one of the six that Types lists.
type Condition struct {
	Type       string    `json:"type"`
	Status     string    `json:"status"` // True, False, Unknown
	Reason     string    `json:"reason"`
	Message    string    `json:"message,omitempty"`
	Since      time.Time `json:"since"` // moves only when Status flips
	Generation int64     `json:"generation"`
}

// Network, Volume and Image are the records of the other kinds.
type Network struct {
	Address   string           `json:"address"`
	ID        string           `json:"id"`
	Spec      config.Network   `json:"spec"`
	CIDR      netip.Prefix     `json:"cidr"` // declared or chosen
	Gateway   netip.Addr       `json:"gateway"`
	Lifecycle config.Lifecycle `json:"lifecycle,omitzero"`
	DependsOn []string         `json:"depends_on,omitempty"`
	Made      bool             `json:"made"` // the create finished
}

type Volume struct {
	Address   string           `json:"address"`
	ID        string           `json:"id"`
	Spec      config.Volume    `json:"spec"`
	Lifecycle config.Lifecycle `json:"lifecycle,omitzero"`
	DependsOn []string         `json:"depends_on,omitempty"`
	Made      bool             `json:"made"`
	CreatedAt time.Time        `json:"created_at,omitzero"` // zero: recorded before this was kept
}

type Image struct {
	Address   string           `json:"address"`
	Spec      config.Image     `json:"spec"`
	Digest    string           `json:"digest"`
	Lifecycle config.Lifecycle `json:"lifecycle,omitzero"`
	DependsOn []string         `json:"depends_on,omitempty"`
}

// Ended remembers a sandbox that was deleted by expiry or loss and stays ended
// while its block is still declared.
type Ended struct {
	Address  string    `json:"address"`
	UID      string    `json:"uid"`
	Instance string    `json:"instance_id,omitempty"`
	Reason   string    `json:"reason"`            // ttl_expiry, shutdown_time, lost
	Deadline time.Time `json:"deadline,omitzero"` // that passed
	// ShutdownTime and TTL as declared then: only a later or removed one makes the sandbox again.
	ShutdownTime time.Time       `json:"shutdown_time,omitzero"`
	TTL          config.Duration `json:"ttl,omitempty"`
	At           time.Time       `json:"at"`
	Outcome      *Outcome        `json:"outcome,omitempty"`
}
