// Package state keeps what pinfold knows: one bbolt file of JSON documents,
// changed only in transactions. It knows neither the documents' meaning nor the
// host; reconcile gives them types.
//
// # The bucket tree
//
//	meta        schema, lineage, serial, created, config_dir, digest   (one key each)
//	sandboxes   ADDRESS → plan.Sandbox
//	networks    ADDRESS → plan.Network
//	volumes     ADDRESS → plan.Volume
//	images      ADDRESS → plan.Image
//	outputs     NAME    → config.Output
//	ended       ADDRESS → plan.Ended          sandboxes that stay ended while declared
//	journal     SEQ     → reconcile.Intent    what was begun and not yet finished
//	history     SEQ     → reconcile.Event     bounded; oldest go first
//
// SEQ is a big-endian uint64, so keys sort by age.
package state

import (
	"errors"
	"time"
)

// Schema is the version of the bucket tree and of the documents in it. A file
// with another number is refused, never misread.
const Schema = 1

// Buckets.
const (
	Sandboxes = "sandboxes"
	Networks  = "networks"
	Volumes   = "volumes"
	Images    = "images"
	Outputs   = "outputs"
	Ended     = "ended"
	Journal   = "journal"
	History   = "history"
)

// Store is a transactional document store with one writer process.
type Store interface {
	// View runs fn on a consistent snapshot.
	View(fn func(Tx) error) error
	// Update runs fn in a transaction that is durable when Update returns nil,
	// and has changed nothing when it returns an error. Updates of several
	// goroutines may share one commit; fn may run more than once.
	Update(fn func(Tx) error) error
	// Lineage is the file's identity, made once, a UUID.
	Lineage() string
	// Path is the file.
	Path() string
	Close() error
}

// Tx is one transaction. Byte slices it returns are the caller's to keep.
type Tx interface {
	Get(bucket, key string) []byte // nil when absent
	Put(bucket, key string, doc []byte) error
	Delete(bucket, key string) error
	// Each visits documents in key order until fn returns an error.
	Each(bucket string, fn func(key string, doc []byte) error) error
	// Append stores doc under the next sequence number of the bucket.
	Append(bucket string, doc []byte) (seq uint64, err error)
	// Trim deletes the oldest documents of bucket until at most keep are left.
	Trim(bucket string, keep int) error

	Meta(key string) string
	SetMeta(key, value string) error
	// Serial counts changes of spec, instance and hold, not of activity or status.
	Serial() uint64
	// Bump adds one to the serial.
	Bump() error
}

// SeqKey is the key under which Append stored seq.
func SeqKey(seq uint64) string {
	b := make([]byte, 8)
	for i := range b {
		b[i] = byte(seq >> (56 - 8*i))
	}
	return string(b)
}

// Options for Open.
type Options struct {
	Dir  string // state dir; made with mode 0700 when absent
	Verb string // what the caller is doing, told to whoever waits for the file
	// Wait is how long to wait for another process that has the file open.
	Wait time.Duration
	// ReadOnly opens an existing file for looking only and shares it with
	// other readers; ErrNoState when there is none.
	ReadOnly bool
}

// Holder tells who has the file open.
type Holder struct {
	PID   int       `json:"pid"`
	Verb  string    `json:"verb"`
	Since time.Time `json:"since"`
}

// Errors. Each is wrapped with the path and what to do.
var (
	ErrNoState  = errors.New("no state yet")
	ErrLocked   = errors.New("state is in use") // wrapped by *LockedError
	ErrNotState = errors.New("not a pinfold state file")
	ErrSchema   = errors.New("state has another schema version")
	ErrDiskFull = errors.New("no space left for the state file")
)

// LockedError names who has the file.
type LockedError struct {
	Path   string
	Holder Holder // zero PID: could not be told
	Waited time.Duration
}
