package config

import (
	"time"
)

// Desired is a configuration evaluated: what the user wants, as plain data that
// can be stored, compared and sent. Slices are sorted by address.
//
// A value that depends on something not yet made is unknown: its attribute path
// is listed in the resource's Unknown and the field holds its zero value. After
// the things it depends on exist, the same Source is evaluated again with their
// exports known.
type Desired struct {
	Images    []Resource[Image]   `json:"images,omitempty"`
	Networks  []Resource[Network] `json:"networks,omitempty"`
	Volumes   []Resource[Volume]  `json:"volumes,omitempty"`
	Sandboxes []Resource[Sandbox] `json:"sandboxes,omitempty"`
	Outputs   []Output            `json:"outputs,omitempty"`

	Moves    []Move    `json:"moves,omitempty"`
	Imports  []Import  `json:"imports,omitempty"`
	Removals []Removal `json:"removals,omitempty"`
	Checks   []Check   `json:"checks,omitempty"`
}

// Move is a `moved` block: what was recorded at From is the same thing at To. Both
// are addresses of a resource, with or without a key, or of a module (module.ci,
// module.ci["a"]), from the root module's point of view.
type Move struct {
	From   string   `json:"from"`
	To     string   `json:"to"`
	Source Position `json:"source,omitzero"`
}

// Import is an `import` block: the instance or volume with this id, which bears the
// state's mark and is on no record, becomes the record of To.
type Import struct {
	To     string   `json:"to"` // full address of a sandbox or volume that is declared
	ID     string   `json:"id"`
	Source Position `json:"source,omitzero"`
}

// Removal is a `removed` block: what is recorded at From (as in Move) is declared no
// more. Without Destroy its record goes, and what is on the host stays, left alone
// for ever.
type Removal struct {
	From    string   `json:"from"`
	Destroy bool     `json:"destroy"`
	Source  Position `json:"source,omitzero"`
}

// Check is a condition of the configuration that was evaluated: an assert of a check
// block, a precondition or a postcondition. A failed condition that is not of a check
// block is an error among the diagnostics; one of a check block is a warning there.
type Check struct {
	Address string   `json:"address"`           // check.NAME, or of the resource instance or output whose condition it is
	Kind    string   `json:"kind"`              // assert, precondition, postcondition
	Status  string   `json:"status"`            // pass, fail, unknown (until applied)
	Message string   `json:"message,omitempty"` // the error_message of one that failed
	Source  Position `json:"source,omitzero"`
}

// Resource is one declared thing with what the engine needs to know around it.
type Resource[T any] struct {
	Address   string   `json:"address"` // sandbox.py["a"], network.agents
	Spec      T        `json:"spec"`
	Unknown   []string `json:"unknown,omitempty"`    // attribute paths known only after apply, sorted: env.NET, command[2]
	DependsOn []string `json:"depends_on,omitempty"` // addresses of resources it refers to or names in depends_on, sorted; whole resources, all keys of a for_each when the reference does not name one
	// Sensitive are the attribute paths of the spec, as in Unknown, whose values are
	// not to be shown nor kept in clear; each also covers what lies below it. Sorted.
	Sensitive []string  `json:"sensitive,omitempty"`
	Lifecycle Lifecycle `json:"lifecycle,omitzero"`
	Source    Position  `json:"source,omitzero"` // the block's header
	// Sources tells for each attribute path of the spec where its value comes
	// from: file position, "host settings", a policy, or absent for a default.
	Sources map[string]Position `json:"sources,omitempty"`
	// Blocks tells where labelled blocks (port.http, volume.work) begin. It serves
	// diagnostics of this evaluation and is not stored.
	Blocks map[string]Position `json:"-"`
}

// Lifecycle is Terraform's block of that name, as far as it is enforced.
type Lifecycle struct {
	PreventDestroy bool     `json:"prevent_destroy,omitempty"`
	IgnoreChanges  []string `json:"ignore_changes,omitempty"` // top-level attribute names
	// CreateBeforeDestroy makes the new instance of a replace before the old one goes.
	CreateBeforeDestroy bool `json:"create_before_destroy,omitempty"`
	// ReplaceTriggeredBy are the things whose change replaces this one.
	ReplaceTriggeredBy []Trigger `json:"replace_triggered_by,omitempty"`
}

// Trigger is one reference of replace_triggered_by.
type Trigger struct {
	Address string `json:"address"`        // a resource instance, or a whole resource for any of its instances
	Path    string `json:"path,omitempty"` // attribute path of its spec; empty: any update or replace of it
}

// Position is a place in a file; Policy names the policy block it came through, if any.
type Position struct {
	File   string `json:"file,omitempty"` // relative to the configuration's directory, or the absolute path of the host settings
	Line   int    `json:"line,omitempty"`
	Policy string `json:"policy,omitempty"` // policy.untrusted
}

// Image is an `image` block.
type Image struct {
	Source string `json:"source"` // "host" or "dir:PATH" with PATH absolute
}

// Network is a `network` block.
type Network struct {
	CIDR     string `json:"cidr,omitempty"` // canonical prefix; empty: chosen from the host's address_pools at creation
	Internet bool   `json:"internet"`
}

// Volume is a `volume` resource.
type Volume struct{}

// Sandbox is a `sandbox` block with its policies and the host's defaults merged
// in: the effective values. JSON names are the language's attribute names, and a
// change is found and classed by them.
type Sandbox struct {
	Image      string            `json:"image"` // address of the image block
	Command    []string          `json:"command"`
	Env        map[string]string `json:"env,omitempty"`
	WorkingDir string            `json:"working_dir,omitempty"`
	User       string            `json:"user,omitempty"`
	Hostname   string            `json:"hostname,omitempty"` // only when written; else derived at each start
	Labels     map[string]string `json:"labels,omitempty"`

	OperatingMode  string    `json:"operating_mode"`            // running, paused, suspended
	ShutdownTime   time.Time `json:"shutdown_time,omitzero"`    // zero: never
	ShutdownPolicy string    `json:"shutdown_policy,omitempty"` // retain, delete, pause
	StopSignal     string    `json:"stop_signal,omitempty"`     // SIGTERM by default
	StopGrace      Duration  `json:"stop_grace,omitempty"`      // 10s by default

	Lifetime  Lifetime         `json:"lifetime,omitzero"`
	Restart   Restart          `json:"restart,omitzero"`
	Health    *Health          `json:"health,omitempty"`
	Resources Resources        `json:"resources,omitzero"`
	Security  Security         `json:"security"`
	Network   *Attachment      `json:"network,omitempty"`
	Ports     map[string]Port  `json:"port,omitempty"`
	Volumes   map[string]Claim `json:"volume,omitempty"` // claims, by name
	Mounts    []Mount          `json:"mount,omitempty"`
	Files     map[string]File  `json:"file,omitempty"` // by path inside
}

// Lifetime is the `lifetime` block.
type Lifetime struct {
	TTL          Duration `json:"ttl,omitempty"`           // 0: none
	OnLost       string   `json:"on_lost,omitempty"`       // recreate (default), recreate-fresh, retain, delete
	StartTimeout Duration `json:"start_timeout,omitempty"` // 5m by default
	Clock        string   `json:"clock,omitempty"`         // always (default), or running: pausing stops the lease

	IdleTimeout      Duration `json:"idle_timeout,omitempty"` // 0: never idle
	IdleAction       string   `json:"idle_action,omitempty"`  // pause (default), suspend
	ResumeOnAccess   bool     `json:"resume_on_access,omitempty"`
	RenewOnAccess    Duration `json:"renew_on_access,omitempty"`    // 0: access renews nothing
	RenewMinInterval Duration `json:"renew_min_interval,omitempty"` // between two such renewals; 60s by default
}

// Restart is the `restart` block: what follows when the process ends by itself.
type Restart struct {
	Mode        string   `json:"mode,omitempty"`         // never (default), on-failure, always
	MaxAttempts int      `json:"max_attempts,omitempty"` // restarts in one series; 0: no limit
	Window      Duration `json:"window,omitempty"`       // up this long, the next end begins a new series; 10m by default
	BackoffMin  Duration `json:"backoff_min,omitempty"`  // 1s by default
	BackoffMax  Duration `json:"backoff_max,omitempty"`  // 5m by default
}

// Health is the `health` block, a probe that the agent makes: exactly one of
// Command, HTTP and TCP is set.
type Health struct {
	Command     []string `json:"command,omitempty"`      // run inside; 0 passes
	HTTP        string   `json:"http,omitempty"`         // URL as seen from inside, http only; 2xx and 3xx pass
	TCP         int      `json:"tcp,omitempty"`          // port that must accept a connection
	Interval    Duration `json:"interval,omitempty"`     // 10s by default
	Timeout     Duration `json:"timeout,omitempty"`      // of one probe; 5s by default
	Retries     int      `json:"retries,omitempty"`      // failures in a row until it counts; 3 by default
	StartPeriod Duration `json:"start_period,omitempty"` // after a start, in which failures do not count
}

// Resources is the `resources` block. Zero: no limit.
type Resources struct {
	CPU    float64 `json:"cpu,omitempty"`    // cores
	Memory int64   `json:"memory,omitempty"` // bytes
	PIDs   int64   `json:"pids,omitempty"`
}

// Security is the `security` block.
type Security struct {
	UserNamespace    bool     `json:"user_namespace"`              // true by default
	DropCapabilities []string `json:"drop_capabilities,omitempty"` // names without CAP_, or ALL; sorted
	ReadOnlyRoot     bool     `json:"read_only_root,omitempty"`
}

// Attachment is a sandbox's `network` block.
type Attachment struct {
	Name string `json:"name"` // address of the network block
}

// Port is a `port` block.
type Port struct {
	Container int    `json:"container"`
	Host      int    `json:"host"`               // 0: any free one
	Address   string `json:"address,omitempty"`  // 127.0.0.1 by default
	Protocol  string `json:"protocol,omitempty"` // tcp by default
}

// Claim is a `volume` block inside a sandbox.
type Claim struct {
	Path      string `json:"path"`
	ReadOnly  bool   `json:"read_only,omitempty"`
	OnDestroy string `json:"on_destroy,omitempty"` // "" or delete: goes with the sandbox
}

// Mount is a `mount` block: exactly one of Volume, Host and Tmpfs.
type Mount struct {
	Volume   string `json:"volume,omitempty"` // address of a volume resource
	Host     string `json:"host,omitempty"`   // absolute path on the host
	Tmpfs    bool   `json:"tmpfs,omitempty"`
	Size     int64  `json:"size,omitempty"` // bytes; tmpfs only
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// File is a `file` block.
type File struct {
	Content string `json:"content"`
	Mode    string `json:"mode,omitempty"` // octal digits; 0644 by default
}

// Output is an `output` block. Value is JSON; absent while unknown.
type Output struct {
	Name        string `json:"name"`
	Value       []byte `json:"value,omitempty"` // JSON
	Type        []byte `json:"type,omitempty"`  // cty's JSON form of the type
	Unknown     bool   `json:"unknown,omitempty"`
	Description string `json:"description,omitempty"`
	Sensitive   bool   `json:"sensitive,omitempty"` // not to be shown unless asked for by name, nor kept in clear
}

// Exports are what other blocks may read of a resource that exists, by address
// of the resource: the values behind sandbox.py.address and the like. A
// resource without an entry has unknown exports.
type Exports map[string]Export

// Export holds the exported attributes of one resource; which are set depends
// on its kind. A sandbox without a network has a null address.
type Export struct {
	// sandbox
	InstanceID string                `json:"instance_id,omitempty"`
	Address    string                `json:"address,omitempty"` // IPv4
	Ports      map[string]ExportPort `json:"ports,omitempty"`
	// network
	CIDR    string `json:"cidr,omitempty"`
	Gateway string `json:"gateway,omitempty"`
	// image
	Digest string `json:"digest,omitempty"`
}

// ExportPort is one published port: sandbox.py.ports.http.host.
type ExportPort struct {
	Container int    `json:"container"`
	Host      int    `json:"host"`
	Address   string `json:"address"`
	Protocol  string `json:"protocol"`
}
