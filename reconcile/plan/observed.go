package plan

import (
	"time"

	"pinfold/config"
)

// Observed is one look at the host, in the planner's words.
type Observed struct {
	BootID    string
	Instances map[string]Seen        // by instance id
	Networks  map[string]SeenNetwork // by network id
	Volumes   map[string]bool        // by volume id
}

// Seen is what is true of one instance now.
type Seen struct {
	UID       string
	Address   string // its sandbox's, as its mark says; for words only
	Unknown   string // not empty: could not be looked at, and why
	Released  bool   // it was given up: nobody's survivor, and not to be touched
	Layer     bool   // the writable layer exists
	Alive     bool   // its PID 1 lives (identity proven)
	PID       int
	StartTime uint64
	Started   bool
	Frozen    bool
	Dying     bool
	Outcome   *Outcome // left by the last process; Reason not filled in
	OOMKills  uint64
	Health    *Health  // what probes say of its process; nil: nobody probes it
	Missing   []string // cgroup, rootfs, netns, link, address, rules, limits
	Network   string   // of one that was released: id of the network it is on
	Volumes   []string // of one that was released: ids of what it mounts
}

// Health is the standing of a running process with its probe.
type Health struct {
	Status  string // "starting" until the first result that counts, "passing", "failing"
	Message string // of the last failure
}

// Activity is what this process knows of a sandbox's use beyond the record.
type Activity struct {
	Last time.Time
	Busy bool // something that counts as use goes on now
}

// SeenNetwork is what is true of one network now.
type SeenNetwork struct {
	Exists  bool
	Missing []string // bridge, address, rules
}

// Trigger says on whose behalf a plan is made.
type Trigger string

const (
	Apply Trigger = "apply" // a user's plan, apply or destroy, or a directory followed
	Keep  Trigger = "keep"  // the agent keeping what was applied
)

// Input is all a plan depends on.
type Input struct {
	// Desired is nil when only what is recorded is to be kept.
	Desired  *config.Desired
	Records  Records
	Observed Observed
	Activity map[string]Activity // by sandbox address; nil: nobody watches what is used, and nothing is idle
	// Imports is what was found of the ids that Desired.Imports names, by id. One
	// that is on record may be left out.
	Imports map[string]Candidate
	Now     time.Time
	Trigger Trigger
	Options Options
	Limits  Limits
	// Triggered are sandboxes that a plan of more than these records has found to be
	// replaced by replace_triggered_by, and what for (Change.TriggeredBy).
	Triggered map[string]string
}

// Limits are the host settings a plan obeys.
type Limits struct {
	MaxLifetime   time.Duration // 0: none
	ExpiryWarning time.Duration // 0: no warning
}

// Options are what the user asked for beside the files.
type Options struct {
	Destroy      bool     `json:"destroy,omitempty"`      // plan the end of everything
	Targets      []string `json:"targets,omitempty"`      // only these addresses and what they depend on (with Destroy: what depends on them)
	Excludes     []string `json:"excludes,omitempty"`     // not these, nor what depends on them
	Replace      []string `json:"replace,omitempty"`      // replace these sandboxes
	RefreshOnly  bool     `json:"refresh_only,omitempty"` // only take over what was observed
	NoRefresh    bool     `json:"no_refresh,omitempty"`   // believe the last seen status
	ReleaseHolds bool     `json:"release_holds,omitempty"`
	NoStart      bool     `json:"no_start,omitempty"` // leave new sandboxes created
}
