package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// Report is what reading a whole state file found: each page, each document's
// checksum, and what the caller's Check says of the document.
type Report struct {
	Path      string
	Size      int64
	Schema    int // 0: not known
	Lineage   string
	Serial    uint64
	Created   time.Time
	At        time.Time      // of a backup, when it was made, as its name says; zero: not known
	Documents map[string]int // how many are sound, by bucket
	Problems  []string       // empty: nothing is wrong with it

	reads int // the schema of who looked
}

// Check tells what is wrong with a document, or nil. It is called in the order of
// buckets and keys, and may be nil.
type Check func(bucket, key string, doc []byte) error

// maxProblems bounds the list of a file of which little is left.
const maxProblems = 100

// Sound tells that nothing is wrong with the file.
func (r *Report) Sound() bool { return len(r.Problems) == 0 }

// later tells of a file that a newer pinfold wrote, which is not damage.
func (r *Report) later() bool { return r.Schema > r.reads }

func (r *Report) problem(format string, args ...any) {
	if len(r.Problems) < maxProblems {
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	}
}

// Verify reads the whole state.db of o.Dir beside other readers and changes
// nothing. An error says that it could not be looked at.
func Verify(ctx context.Context, o Options, check Check) (*Report, error) {
	lock, err := o.prepare(true)
	if err != nil {
		return nil, err
	}
	if why, err := irregular(lock.path); err != nil {
		return nil, err
	} else if why != "" {
		return &Report{Path: lock.path, Documents: map[string]int{}, Problems: []string{why}, reads: Schema}, nil
	}
	f, err := openLocked(ctx, lock, true)
	if err != nil {
		return nil, err
	}
	defer release(f)
	holder := announce(lock.dir, o.Verb)
	defer holder.withdraw()
	return report(f, lock.path, Schema, check), nil
}

// VerifyFile is Verify of a file that is no state dir's, such as a backup. One that
// somebody writes to is ErrLocked.
func VerifyFile(path string, check Check) (*Report, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	defer release(f)
	r := report(f, path, Schema, check)
	if b, ok := backupFile(path); ok {
		r.At = b.At
	}
	return r, nil
}

// irregular tells why what is at a path is no file; empty where it is one, or
// nothing is there.
func irregular(path string) (why string, err error) {
	fi, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("cannot look at state %s: %w", path, bare(err))
	case fi.Mode()&fs.ModeSymlink != 0:
		return isLink, nil
	case !fi.Mode().IsRegular():
		return isNoFile, nil
	}
	return "", nil
}

// What stands where state.db should be.
const (
	isLink   = "it is a symbolic link"
	isNoFile = "it is not a regular file"
)

// openFile opens a regular file for reading and locks it against writers.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", path, bare(err))
	}
	fi, err := f.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("cannot look at %s: %w", path, bare(err))
	case !fi.Mode().IsRegular():
		err = fmt.Errorf("cannot read %s: %w: it is not a regular file", path, ErrNotState)
	default:
		err = tryFlock(f, unix.LOCK_SH)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("cannot read %s: %w: a process has it open for writing", path, ErrLocked)
		} else if err != nil {
			err = fmt.Errorf("cannot lock %s: %w", path, err)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// report reads the last commit in the locked file f, as one that knows a schema.
func report(f *os.File, path string, schema int, check Check) *Report {
	x := examine(f, path, schema, check)
	if m, err := latest(f); err != nil {
		x.problem("%v", err)
	} else {
		x.read(f, m)
	}
	return x.Report
}

func examine(f *os.File, path string, schema int, check Check) examination {
	r := &Report{Path: path, Documents: map[string]int{}, reads: schema}
	if fi, err := f.Stat(); err == nil {
		r.Size = fi.Size()
	}
	return examination{Report: r, check: check, meta: map[string]string{}}
}

// read reads what hangs on the meta page m.
func (x *examination) read(f *os.File, m metaPage) {
	if err := verifyTree(f, m, x.visit); err != nil {
		x.problem("%v", err)
		return
	}
	x.conclude()
}

// examination is a Report while its file is walked.
type examination struct {
	*Report
	check Check
	meta  map[string]string
}

func (x *examination) visit(bucket string, key, value []byte) {
	if bucket == metaBucket && string(key) == metaSchema {
		x.meta[metaSchema] = string(value)
		return
	}
	doc, ok := unseal(bucket, string(key), value)
	switch {
	case bucket == "":
		x.problem("key %.40q lies outside the buckets", key)
	case !ok:
		x.problem("%s %s: its checksum does not match", bucket, printable(string(key)))
	case bucket == metaBucket:
		x.meta[string(key)] = string(doc)
	default:
		x.document(bucket, string(key), doc)
	}
}

func (x *examination) document(bucket, key string, doc []byte) {
	if x.check != nil {
		if err := x.check(bucket, key, doc); err != nil {
			x.problem("%s %s: %v", bucket, printable(key), err)
			return
		}
	}
	x.Documents[bucket]++
}

// conclude looks at meta, now that all of it was seen.
func (x *examination) conclude() {
	var err error
	x.Lineage = x.meta[metaLineage]
	if x.Schema, err = strconv.Atoi(x.meta[metaSchema]); err != nil {
		x.problem("it is no state of pinfold, or its schema is damaged: %.20q is not a number", x.meta[metaSchema])
		return
	}
	if x.later() {
		x.problem("it has schema %d, this pinfold reads schema %d: a newer pinfold wrote it", x.Schema, x.reads)
		return
	}
	if x.Lineage == "" {
		x.problem("it has no lineage")
	}
	if x.Serial, err = strconv.ParseUint(x.meta[metaSerial], 10, 64); err != nil {
		x.problem("its serial %.20q is not a number", x.meta[metaSerial])
	}
	if x.Created, err = time.Parse(time.RFC3339Nano, x.meta[metaCreated]); err != nil {
		x.problem("when it was made, %.40q, is no instant", x.meta[metaCreated])
	}
	if x.Schema != Schema {
		return // which buckets it has is its converter's to know
	}
	for bucket := range x.Documents {
		if !slices.Contains(documentBuckets, bucket) {
			x.problem("schema %d has no bucket %q", Schema, bucket)
		}
	}
}

// Verify reads the last commit of the open store, whatever is written meanwhile.
func (s *store) Verify(check Check) (*Report, error) {
	s.views.RLock()
	defer s.views.RUnlock()
	if s.closed.Load() {
		return nil, fmt.Errorf("cannot use state %s: %w", s.path, ErrClosed)
	}
	if err := s.gone(); err != nil {
		return nil, err
	}
	if broken := s.broken.Load(); broken != nil {
		r := report(s.file, s.path, s.reads, check)
		r.problem("%v", *broken)
		return r, nil
	}
	if s.short() != nil {
		return report(s.file, s.path, s.reads, check), nil
	}
	// The transaction keeps the pages of its commit from being used again. Its meta
	// page is overwritten by the second commit after it, hence the loop.
	for range 10 {
		var r *Report
		err := s.view(func(b *bolt.Tx) error {
			m, err := metaOf(s.file, uint64(b.ID()))
			if err == nil {
				x := examine(s.file, s.path, s.reads, check)
				x.read(s.file, m)
				r = x.Report
			}
			return err
		})
		if err == nil {
			return r, nil
		}
	}
	return report(s.file, s.path, s.reads, check), nil // its meta pages are damaged
}

var errNoMeta = errors.New("no meta page of this transaction")

// metaOf is the meta page of one transaction.
func metaOf(f *os.File, txid uint64) (metaPage, error) {
	newest, err := latest(f)
	if err != nil {
		return metaPage{}, err
	}
	for page := range int64(2) {
		if m, err := readMeta(f, page*newest.pageSize); err == nil && m.txid == txid {
			return m, nil
		}
	}
	return metaPage{}, errNoMeta
}

// missing tells that nothing is at the path.
func missing(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look at %s: %w", path, bare(err))
	}
	return false, nil
}
