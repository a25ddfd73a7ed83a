// Package state keeps what pinfold knows: one bbolt file of JSON documents,
// changed only in transactions. It knows neither the documents' meaning nor the
// host; reconcile gives them types.
//
// # The bucket tree
//
//	meta        schema, lineage, serial, created, config_dir, digest, override
//	            (one key each)
//	sandboxes   ADDRESS → reconcile.storedSandbox   a plan.Sandbox without what its
//	            block has for all its instances
//	blocks      HASH    → reconcile.storedBlock     never changed; without a sandbox
//	            it goes at the next opening
//	networks    ADDRESS → plan.Network
//	volumes     ADDRESS → plan.Volume
//	images      ADDRESS → plan.Image
//	outputs     NAME    → config.Output
//	ended       ADDRESS → plan.Ended          sandboxes that stay ended while declared
//	journal     SEQ     → reconcile.Intent    what was begun and not yet finished
//	history     SEQ     → reconcile.Event     bounded; oldest go first
//
// SEQ is a big-endian uint64, so keys sort by age. Every value but meta's schema
// is followed by four bytes of checksum (seal.go), because bbolt keeps none for
// data pages and a flipped bit must not become another path, PID or address.
// meta's schema is plain decimal, so that every release can read it.
//
// # The files
//
//	state.db       the bbolt file, mode 0600, locked by flock: one writer, or readers
//	state.holder   who has state.db open, for the words of LockedError; never
//	               decides anything (holder.go)
//	state.db.new   a state.db under construction, renamed when whole (create.go)
//	state.db.bad-* what stood in its place before a restore or rebuild (place.go)
//	backups        copies of state.db (backup.go)
package state

import (
	"encoding/binary"
	"errors"
	"os"
	"time"
)

// Schema is the version of the bucket tree and of the documents in it. A file
// with an older number is converted where it can be (migrate.go); any other is
// refused, never misread.
const Schema = 1

// Buckets.
const (
	Sandboxes = "sandboxes"
	Blocks    = "blocks"
	Networks  = "networks"
	Volumes   = "volumes"
	Images    = "images"
	Outputs   = "outputs"
	Ended     = "ended"
	Journal   = "journal"
	History   = "history"
)

// Store is a transactional document store with one writer process.
//
// fn must not call View or Update of the same store: an Update inside an Update
// waits for itself. A Tx is good until fn returns and panics afterwards. Bytes
// that turn out damaged while fn reads them end fn at that call, and View or
// Update returns ErrDamaged; so no method of Tx can hand out a misread document.
type Store interface {
	// View runs fn on a consistent snapshot.
	View(fn func(Tx) error) error
	// Update runs fn in a transaction that is durable when Update returns nil,
	// and has changed nothing when it returns an error (ErrOutcome excepted).
	// Updates of several goroutines may share one commit, in the order of their
	// arrival; fn runs in the caller's goroutine and may run more than once, so
	// it must set, not add to, what it leaves outside the transaction.
	Update(fn func(Tx) error) error
	// Lineage is the file's identity, made once, a UUID.
	Lineage() string
	// Path is the file.
	Path() string
	// BackupDaily makes today's backup, unless there is one or nothing is recorded
	// yet; nil without an error: it was not needed. Opening for writing does it too.
	BackupDaily() (*Report, error)
	// Backup makes one that stays until the user deletes it.
	Backup() (*Report, error)
	// BackupTo writes one to an empty file; path is for the words.
	BackupTo(f *os.File, path string) (*Report, error)
	// Verify reads the whole file as it is on disk now. An error says that it could
	// not be looked at.
	Verify(check Check) (*Report, error)
	// Close waits for running transactions and lets the file go. Later calls of
	// View and Update return ErrClosed; a second Close does nothing.
	Close() error
}

// Tx is one transaction, for one goroutine. Byte slices it returns are the
// caller's to keep. A bucket that is none of those above is an error: of the call
// where it returns one, else of View or Update. meta is reached by Meta and
// SetMeta only.
type Tx interface {
	Get(bucket, key string) []byte // nil when absent
	Put(bucket, key string, doc []byte) error
	Delete(bucket, key string) error
	// Each visits documents in key order until fn returns an error, which it
	// returns. fn may change the bucket; what it puts behind the current key is
	// visited too.
	Each(bucket string, fn func(key string, doc []byte) error) error
	// Append stores doc under the next sequence number of the bucket.
	Append(bucket string, doc []byte) (seq uint64, err error)
	// Trim deletes the oldest documents of bucket until at most keep are left.
	Trim(bucket string, keep int) error

	Meta(key string) string // "" when absent
	// SetMeta refuses schema, lineage, serial and created: they are the file's own.
	SetMeta(key, value string) error
	// Serial counts changes of spec, instance and hold, not of activity or status.
	Serial() uint64
	// Bump adds one to the serial.
	Bump() error
}

// SeqOf is the seq of a key that SeqKey gave, 0 of any other.
func SeqOf(key string) uint64 {
	if len(key) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64([]byte(key))
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
	Dir string // state dir; made with mode 0700 when absent
	// Verb is what the caller is doing, told to whoever waits for the file. That of
	// an agent begins with "agent": it keeps the file open, so whoever is to mend
	// that must stop it first.
	Verb string
	// Wait is how long to wait for another process that has the file open.
	Wait time.Duration
	// Waiting, when set, is told once who has the file, if that takes longer than a
	// moment. A zero PID: it could not be told.
	Waiting func(Holder)
	// Warn, when set, is told what went wrong and stops nothing: a backup that could
	// not be made.
	Warn func(error)
	// ReadOnly opens an existing file for looking only and shares it with
	// other readers; ErrNoState when there is none.
	ReadOnly bool
}

// Holder tells who has the file open. PID is seen from the holder.
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
	// ErrDamaged: a part of an opened file cannot be read as it was written.
	ErrDamaged = errors.New("the state file is damaged")
	// ErrReadable: Rebuild where there is a state that can be read.
	ErrReadable = errors.New("the state can be read")
	// ErrLineage: Restore of another state's backup.
	ErrLineage = errors.New("the backup is of another state")
	// ErrReadOnly: Update on a store opened with Options.ReadOnly.
	ErrReadOnly = errors.New("state is open for reading only")
	ErrClosed   = errors.New("state is closed")
	// ErrGone: the path means another file, or none, since this one was opened for
	// writing. What would be recorded in it nobody would ever see.
	ErrGone = errors.New("the state file was removed or replaced")
	// ErrOutcome: the disk failed during a commit, so it is not known whether the
	// change will be there when the file is opened again. The store answers with
	// it until it is closed.
	ErrOutcome = errors.New("the state file could not be written safely")
)

// LockedError names who has the file. errors.Is(err, ErrLocked) holds for it.
type LockedError struct {
	Path   string
	Holder Holder // zero PID: could not be told
	Gone   bool   // Holder's process has ended, yet something holds the file
	Waited time.Duration
}
