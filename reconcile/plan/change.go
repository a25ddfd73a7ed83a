package plan

import (
	"encoding/json"
	"time"

	"pinfold/config"
)

// Action is what a change does.
type Action string

const (
	ActCreate   Action = "create"
	ActUpdate   Action = "update"  // in place, keeps running
	ActRestart  Action = "restart" // new process, same files
	ActReplace  Action = "replace" // new instance, writable layer lost
	ActDelete   Action = "delete"
	ActStart    Action = "start"
	ActStop     Action = "stop"
	ActSuspend  Action = "suspend"
	ActPause    Action = "pause"
	ActResume   Action = "resume"
	ActExpire   Action = "expire"
	ActRecreate Action = "recreate" // after a loss; layer carried over unless recreate-fresh
	ActRepair   Action = "repair"   // re-make host objects under a running process
	ActMove     Action = "move"     // another address, of the same thing
	ActImport   Action = "import"   // what is on the host without a record gets one
	ActRelease  Action = "release"  // drop a hold
	ActForget   Action = "forget"   // drop a record: its objects are gone, or stay and are given up (Reason Released)
	ActNoop     Action = "noop"     // the status is taken over, and what an ended process left is released; never counted
)

// Why a change is planned decides where the summary counts it.
type Origin string

const (
	FromFiles Origin = "files" // the configuration or a flag
	FromHost  Origin = "host"  // drift, loss, expiry, back-off: convergence
)

// Change is one step on one resource. The plan prints it and the executor runs
// it: there is no second list. Several changes of one address run in order.
//
// A change that has After adopts the declared spec (Adopt) besides what its
// action does. Of several changes of one address only the first has it.
type Change struct {
	Address     string `json:"address"`
	Kind        string `json:"kind"` // sandbox, network, volume, image, output
	Action      Action `json:"action"`
	Origin      Origin `json:"origin"`
	Cause       string `json:"cause"`       // "image changed", "process gone: killed from outside"
	Consequence string `json:"consequence"` // what will be, after "will be": "updated in place, keeps running"

	// From is the address that a move leaves behind, empty for every other action.
	From string `json:"previous_address,omitempty"`

	Before   json.RawMessage `json:"before,omitempty"` // recorded spec
	After    json.RawMessage `json:"after,omitempty"`  // desired spec; unknown values absent
	Unknown  []string        `json:"unknown,omitempty"`
	Defaults []string        `json:"defaults,omitempty"` // create: paths of After that nobody wrote
	Diff     []Diff          `json:"diff,omitempty"`     // leaf differences of Before and After, by path
	// Sensitive are paths in Before and After whose values are to be shown to nobody;
	// "value" of an output's whole value.
	Sensitive    []string `json:"sensitive,omitempty"`
	ReplacePaths []string `json:"replace_paths,omitempty"`

	// DependsOn names addresses, each with a change that stands before this one
	// in the plan: this change waits for all their earlier changes, and is skipped
	// when one of them failed. For what is made these are the things it refers to;
	// for what is deleted, those that referred to it.
	DependsOn []string `json:"depends_on,omitempty"`
	Notes     []string `json:"notes,omitempty"` // printed under the change: both deadlines of a replace, memory lost

	// For the executor, decided here:
	Instance string    `json:"instance,omitempty"`  // the instance this step is about, as recorded
	NewLease bool      `json:"new_lease,omitempty"` // this replace starts a new ttl
	Deadline time.Time `json:"deadline,omitzero"`   // expire: the deadline that passed
	Reason   string    `json:"reason,omitempty"`    // tombstone or condition reason
	Revive   bool      `json:"revive,omitempty"`    // this change clears Expired
	// Then is where the change ends. create, replace, recreate, restart: the mode
	// (created, running, paused, suspended); a create that ends created leaves a
	// hold of that name. expire: "stopped", "paused" (frozen, with a hold by expiry),
	// "destroyed" (leaving an Ended), or empty when there is nothing to take down and
	// only Expired is recorded. noop: "failed" when restarts are used up.
	Then    string   `json:"then,omitempty"`
	Missing []string `json:"missing,omitempty"` // repair
	// Hold is recorded with the step: by pause and suspend of the idle rule, by
	// expire that ends paused unless an operator's hold stands already, and by release
	// of a hold that lay over another.
	Hold *Hold `json:"hold,omitempty"`
	// Wake is a release out of an expiry by pause: the lease runs on as after a
	// resume, and it is no longer expired.
	Wake bool `json:"wake,omitempty"`
	// Warn is the deadline that is near: the step is an event and nothing else.
	Warn  time.Time `json:"warn,omitzero"`
	Fresh bool      `json:"fresh,omitempty"` // recreate without the old layer
	// CreateFirst is a replace whose new instance is ready before the old one is
	// deposed. Deposed is the instance beside the sandbox's own that a delete is about.
	CreateFirst bool     `json:"create_first,omitempty"`
	Deposed     string   `json:"deposed,omitempty"`
	Volumes     []string `json:"volumes,omitempty"` // delete: data that goes
}

// Name is the address, with the deposed instance that the change is about.
func (c *Change) Name() string { return NameOf(c.Address, c.Deposed) }

// NameOf is what people read of a thing: its address, and which deposed instance of
// it is meant, if one is.
func NameOf(address, deposed string) string {
	if deposed == "" {
		return address
	}
	return address + " (deposed object " + deposed + ")"
}

// Diff is one attribute that differs.
type Diff struct {
	Path    string          `json:"path"`             // shutdown_time, env.WHO, port.http.host
	Before  json.RawMessage `json:"before,omitempty"` // absent: newly written
	After   json.RawMessage `json:"after,omitempty"`  // absent: removed, or unknown
	Unknown bool            `json:"unknown,omitempty"`
	Replace bool            `json:"replace,omitempty"` // forces replacement
	// Sensitive: it differs, and neither value is told.
	Sensitive bool `json:"sensitive,omitempty"`
}

// Drift explains a difference between record and host.
type Drift struct {
	Address string `json:"address"`
	What    string `json:"what"` // "link missing", "process gone: killed from outside"
}

// Plan is the whole decision.
type Plan struct {
	Changes []Change           `json:"changes"` // in execution order where there is one, else by address
	Drift   []Drift            `json:"drift"`
	Notes   []string           `json:"notes"`
	Summary Summary            `json:"summary"`
	WakeAt  time.Time          `json:"wake_at,omitzero"` // the planner wants to look again then; zero: nothing is due
	Diags   config.Diagnostics `json:"diagnostics"`      // refused changes, caps; with an error nothing may be applied
	// RefreshOnly: only what was seen is to be recorded; there are no changes. Refresh
	// lists the sandboxes of which the record says something else, by address.
	RefreshOnly bool     `json:"refresh_only,omitempty"`
	Refresh     []string `json:"refresh,omitempty"`
	// Records are those that the plan speaks of: the input's, after its moves and
	// imports, which come first among Changes and are carried out before all else.
	Records Records `json:"-"`
	// Cycles are the groups of moved blocks to be remembered (Records.Cycles), once
	// the moves are made.
	Cycles []string          `json:"-"`
	Status map[string]Status `json:"-"` // what is now true of each recorded sandbox, to be stored when it differs
}

// Summary counts changes: each address once per column; outputs,
// noops and the taking down that is part of a replace not at all.
type Summary struct {
	Add      int `json:"add"`
	Change   int `json:"change"`
	Replace  int `json:"replace"`
	Destroy  int `json:"destroy"`
	Converge int `json:"converge"`
}

// Noted counts, each address once, what Summary has in a column of another name: what
// only gets another address, in Change, and what is not destroyed but left on the host,
// in Destroy.
type Noted struct {
	Moved   int `json:"moved"`
	GivenUp int `json:"given_up"`
}

// Status is the observed side of a record: phase, outcome, conditions.
type Status struct {
	Phase      Phase
	StoppedBy  string
	Outcome    *Outcome
	Conditions []Condition
	PID        int
	StartTime  uint64
	Rebind     string // another instance of this uid lives and is the sandbox now
}
