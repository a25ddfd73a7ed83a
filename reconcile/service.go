package reconcile

import (
	"context"
	"os"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
)

// Service is what the command line asks of the engine. *Engine implements it in
// this process; *Client hands each call to a running agent, whose Engine answers
// with the same values. Requests and answers are plain data.
//
// Every error is, or wraps, an *Error.
type Service interface {
	// Plan evaluates the source and compares it with record and host. It changes nothing.
	Plan(ctx context.Context, r PlanRequest) (*PlanResult, error)
	// Apply makes a plan (or takes the saved one) and runs it. confirm is called
	// with the plan before anything is touched, unless r.AutoApprove without r.Show; progress
	// with each step's begin and end.
	Apply(ctx context.Context, r ApplyRequest, confirm func(*PlanResult) (bool, error), progress func(Progress)) (*ApplyResult, error)
	// List tells all sandboxes, observed afresh; with addresses only those.
	List(ctx context.Context, addresses ...string) (*ListResult, error)
	// Stats tells what sandboxes with a process use of the host now; with addresses
	// those, whatever their phase.
	Stats(ctx context.Context, addresses ...string) (*StatsResult, error)
	// Describe tells everything about one sandbox.
	Describe(ctx context.Context, address string) (*Description, error)
	// Act runs an operator verb: start, stop, pause, resume, release, kill.
	Act(ctx context.Context, r ActRequest) (*ActResult, error)
	// Renew changes the lease.
	Renew(ctx context.Context, r RenewRequest) (*ActResult, error)
	// Exec starts a process in a sandbox. The request's files are used directly.
	Exec(ctx context.Context, r ExecRequest) (ExecSession, error)
	// OpenLog opens the sandbox's output for reading.
	OpenLog(ctx context.Context, address string) (*os.File, error)
	// Attach is a session that lasts as long as the sandbox's process, whose signals
	// go to that process and whose code is its own. It counts as use. The output is
	// OpenLog's.
	Attach(ctx context.Context, address string) (ExecSession, error)
	// CopyOut writes a tar archive of what is at the path in the sandbox to the
	// request's file; CopyIn unpacks one there.
	CopyOut(ctx context.Context, r CopyRequest) error
	CopyIn(ctx context.Context, r CopyRequest) error
	// Touch counts as use of the sandbox.
	Touch(ctx context.Context, address string) (*ActResult, error)
	// Events tells what happened.
	Events(ctx context.Context, r EventsRequest) (*EventsResult, error)
	// Outputs are the values kept by the last apply, without those of sensitive ones.
	Outputs(ctx context.Context) ([]config.Output, error)
	// Output is one of them with its value, also a sensitive one's.
	Output(ctx context.Context, name string) (*config.Output, error)
	// Records are what is recorded of everything.
	Records(ctx context.Context) (*RecordsResult, error)
	// Volumes tells of every volume and claim with what they take on disk, Volume of
	// one, by its address or a short name. Counting ends with ctx, and has a bound.
	Volumes(ctx context.Context) (*VolumesResult, error)
	Volume(ctx context.Context, name string) (*VolumeDescription, error)
	// Images tells of every image on record, Image of one.
	Images(ctx context.Context) (*ImagesResult, error)
	Image(ctx context.Context, name string) (*ImageDescription, error)
	// Drift tells how the host differs from what is recorded.
	Drift(ctx context.Context, r DriftRequest) (*DriftResult, error)
	// Pull reads the whole state.
	Pull(ctx context.Context) (*StateDocument, error)
	// Verify reads the whole state file and tells what is wrong with it. What is
	// wrong is no error.
	Verify(ctx context.Context) (*VerifyResult, error)
	// Backup copies the state, into its backups or to the request's file.
	Backup(ctx context.Context, r BackupRequest) (*BackupResult, error)
	// GC removes what the journal proves half-made, and tells of what has this state's
	// mark without a record, or a record without being on the host.
	GC(ctx context.Context, r GCRequest) (*GCResult, error)
	// StateMove gives records other addresses, StateRemove forgets some and leaves what
	// they speak of on the host. Neither touches a process.
	StateMove(ctx context.Context, r StateMoveRequest) (*StateMoveResult, error)
	StateRemove(ctx context.Context, r StateRemoveRequest) (*StateRemoveResult, error)
	// Status tells who serves: this process or an agent.
	Status(ctx context.Context) (*ServiceStatus, error)
	Close() error
}

// PlanRequest carries the configuration and what was asked of it.
type PlanRequest struct {
	// Source is nil for a destroy of what is recorded.
	Source   *config.Source `json:"source,omitempty"`
	Options  plan.Options   `json:"options"`
	TakeOver bool           `json:"take_over,omitempty"` // bind the state to Source.Dir
	Save     bool           `json:"save,omitempty"`      // Plan: the result is to be saved, too
	LockWait time.Duration  `json:"lock_wait,omitempty"` // 0: DefaultLockWait, NoLockWait: none
}

// PlanResult is a plan with what ties it to its moment.
type PlanResult struct {
	Plan        *plan.Plan         `json:"plan"`
	Diagnostics config.Diagnostics `json:"diagnostics,omitempty"` // of the configuration and the plan; errors: nothing may be applied
	Lineage     string             `json:"lineage"`
	Serial      uint64             `json:"serial"`
	Digest      string             `json:"digest"` // of the configuration
	Checks      []config.Check     `json:"checks,omitempty"`
	// Sealed is a SavedPlan that only this state's key opens, when it was asked for.
	Sealed string `json:"sealed,omitempty"`
}

// PlanFile is a plan file: what may be shown to everybody, and the plan itself.
type PlanFile struct {
	FormatVersion string     `json:"format_version"`
	Destroy       bool       `json:"destroy,omitempty"`
	Result        PlanResult `json:"result"` // without what is sensitive, but with Sealed
}

// ApplyRequest asks for changes.
type ApplyRequest struct {
	PlanRequest
	Saved       *PlanFile `json:"saved,omitempty"`        // apply exactly this
	AutoApprove bool      `json:"auto_approve,omitempty"` // whatever is needed, also when that changes meanwhile
	Show        bool      `json:"show,omitempty"`         // with AutoApprove: confirm is called all the same, to see the plan
	Parallelism int       `json:"parallelism,omitempty"`  // lanes at a time; 0: 10
	Override    bool      `json:"override,omitempty"`     // though the agent follows a directory
}

// SavedPlan is all of a plan that is carried out later: also the values of variables
// and what the files had in them, so it is only written sealed.
type SavedPlan struct {
	Source  *config.Source `json:"source,omitempty"`
	Options plan.Options   `json:"options"`
	Result  PlanResult     `json:"result"`
}

// Progress is one line of a running apply.
type Progress struct {
	At      time.Time     `json:"at"`
	Address string        `json:"address"`
	Action  plan.Action   `json:"action"`
	State   string        `json:"state"` // started, running (still, periodically), done, failed, skipped
	Elapsed time.Duration `json:"elapsed,omitempty"`
	Message string        `json:"message,omitempty"` // instance id, or the error
	Deposed string        `json:"deposed,omitempty"` // the deposed instance that the step is about
}

// ApplyResult is what became of it.
type ApplyResult struct {
	PlanResult
	Applied     plan.Summary       `json:"applied"` // what was really done
	Noted       plan.Noted         `json:"noted"`   // of what was really done
	Outputs     []config.Output    `json:"outputs"`
	Failures    []Failure          `json:"failures,omitempty"`
	Declined    bool               `json:"declined,omitempty"`    // confirm said no
	Interrupted bool               `json:"interrupted,omitempty"` // stopped early on request; exit 130
	Warnings    config.Diagnostics `json:"warnings,omitempty"`    // e.g. deadlines nobody watches
}

// Failure is one step that did not succeed, or was skipped for one that did not.
type Failure struct {
	Address string      `json:"address"`
	Action  plan.Action `json:"action"`
	Skipped bool        `json:"skipped,omitempty"`
	Error   string      `json:"error"`
	Deposed string      `json:"deposed,omitempty"` // the deposed instance that the change is about
}

// ListResult is `list -json`.
type ListResult struct {
	FormatVersion string        `json:"format_version"`
	Sandboxes     []SandboxView `json:"sandboxes"`
}

// SandboxView is one sandbox as list shows it. Absent things are null.
type SandboxView struct {
	Address      string               `json:"address"`
	InstanceID   *string              `json:"instance_id"`
	Generation   int64                `json:"generation"`
	Phase        plan.Phase           `json:"phase"`
	Mode         string               `json:"mode"` // effective
	DeclaredMode string               `json:"declared_mode"`
	Hold         *plan.Hold           `json:"hold"`
	PID          *int                 `json:"pid"`
	AddressV4    *string              `json:"address_v4"`
	Ports        map[string]plan.Port `json:"ports"`
	CreatedAt    *time.Time           `json:"created_at"`
	StartedAt    *time.Time           `json:"started_at"`
	ExpiresAt    *time.Time           `json:"expires_at"`
	EndedAt      *time.Time           `json:"ended_at"`
	LastActivity *time.Time           `json:"last_activity"`
	Conditions   []plan.Condition     `json:"conditions"`
	Outcome      *plan.Outcome        `json:"outcome"`
	Labels       map[string]string    `json:"labels"`
	Volumes      map[string]string    `json:"volumes"` // path inside, by claim or volume address
	Deposed      []string             `json:"deposed"` // ids of instances that were replaced and still have to go
}

// Description is `describe -json`.
type Description struct {
	FormatVersion string                     `json:"format_version"`
	Sandbox       SandboxView                `json:"sandbox"`
	Spec          config.Sandbox             `json:"spec"`
	Sensitive     []string                   `json:"sensitive,omitempty"` // paths of the spec that are not told
	Sources       map[string]config.Position `json:"sources"`
	Lease         plan.Lease                 `json:"lease"`
	Restarts      plan.Retry                 `json:"restarts"` // the series that goes on, by the restart block
	UID           string                     `json:"uid"`
	NextLook      *time.Time                 `json:"next_look"` // when the planner wants to look again
	NextAction    string                     `json:"next_action,omitempty"`
	Events        []Event                    `json:"events"` // the last 20, oldest first
}

// ActRequest is an operator verb.
type ActRequest struct {
	Verb     string           `json:"verb"`
	Address  string           `json:"address"`
	Reason   string           `json:"reason,omitempty"`
	By       string           `json:"by,omitempty"`
	Timeout  *config.Duration `json:"timeout,omitempty"` // resume -timeout: lease.until = now + D
	Signal   int              `json:"signal,omitempty"`  // kill: what to send; 0: SIGKILL
	LockWait time.Duration    `json:"lock_wait,omitempty"`
}

// RenewRequest has exactly one of its forms set.
type RenewRequest struct {
	Address string           `json:"address"`
	Until   *time.Time       `json:"until,omitempty"`
	AtLeast *config.Duration `json:"at_least,omitempty"`
	In      *config.Duration `json:"in,omitempty"`
}

// ActResult shows the sandbox after a verb.
type ActResult struct {
	Sandbox SandboxView `json:"sandbox"`
	Note    string      `json:"note,omitempty"` // "hold taken over from idle"
}

// ExecRequest is one command.
type ExecRequest struct {
	Address    string            `json:"address"`
	Args       []string          `json:"args"`
	Env        map[string]string `json:"env,omitempty"`
	WorkingDir string            `json:"working_dir,omitempty"`
	User       string            `json:"user,omitempty"`
	TTY        bool              `json:"tty,omitempty"`
	Width      uint16            `json:"width,omitempty"`
	Height     uint16            `json:"height,omitempty"`
	Stdin      *os.File          `json:"-"` // without TTY; nil: /dev/null
	Stdout     *os.File          `json:"-"`
	Stderr     *os.File          `json:"-"`
}

// CopyRequest is a copy out of a sandbox or into it.
type CopyRequest struct {
	Address string   `json:"address"`
	Path    string   `json:"path"` // inside, absolute
	Archive *os.File `json:"-"`    // tar; read or written to its end
}

// ExecSession is a running command.
type ExecSession interface {
	Console() *os.File // the terminal's master side with TTY, else nil
	Signal(sig int) error
	Wait() (code int, err error)
}

// Event is one line of history.
type Event struct {
	Seq      uint64    `json:"seq,omitempty"` // grows with each event
	At       time.Time `json:"at"`
	EndedAt  time.Time `json:"ended_at,omitzero"` // of exited: when the process ended, which was noticed at At
	Address  string    `json:"address"`
	UID      string    `json:"uid,omitempty"`
	Instance string    `json:"instance_id,omitempty"`
	Type     string    `json:"type"`   // an action, or exited, lost, expired, destroyed, renewed, held, error, undone
	Reason   string    `json:"reason"` // cause or tombstone reason
	Message  string    `json:"message,omitempty"`
	By       string    `json:"by,omitempty"` // apply, agent, operator
}

// ServiceStatus says who answers.
type ServiceStatus struct {
	Agent     bool      `json:"agent"`
	PID       int       `json:"pid"`
	Version   string    `json:"version"`
	Since     time.Time `json:"since"`
	StateDir  string    `json:"state_dir"`
	Lineage   string    `json:"lineage"`
	Following string    `json:"following,omitempty"` // the directory of agent -config
}

// ErrorKind classes errors for exit codes and, later, HTTP.
type ErrorKind string

const (
	Invalid     ErrorKind = "invalid"     // bad request or configuration
	NotFound    ErrorKind = "not_found"   // 404
	Conflict    ErrorKind = "conflict"    // 409: illegal transition, operation in progress, refused renewal
	Stale       ErrorKind = "stale"       // a saved plan that no longer holds
	Locked      ErrorKind = "locked"      // state in use
	Interrupted ErrorKind = "interrupted" // exit 130
	Internal    ErrorKind = "internal"
)

// Error is what every Service method fails with.
type Error struct {
	Kind        ErrorKind          `json:"kind"`
	Message     string             `json:"message"`
	Diagnostics config.Diagnostics `json:"diagnostics,omitempty"`
	// Code is the exit code of an exec that could not start: 126 or 127.
	Code int `json:"code,omitempty"`
}

func (e *Error) Error() string { return e.Message }
