package state

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// store is the Store on a bbolt file.
type store struct {
	path     string
	file     *os.File // bbolt's own descriptor, which has the lock
	info     os.FileInfo
	db       *bolt.DB
	readOnly bool
	served   bool // by an agent, which keeps it open
	reads    int  // the schema
	lineage  string
	holder   announcement

	queue  queue         // what waits for the writer
	done   chan struct{} // closed when the writer has ended
	views  sync.RWMutex  // held shared by each View, exclusively while closing
	closed atomic.Bool
	broken atomic.Pointer[error] // set once the file must not be trusted any more
	stuck  atomic.Bool           // bbolt kept its locks, so its Close would hang
}

func (s *store) Lineage() string { return s.lineage }
func (s *store) Path() string    { return s.path }

func (s *store) View(fn func(Tx) error) error {
	s.views.RLock()
	defer s.views.RUnlock()
	if err := s.usable(); err != nil {
		return err
	}
	return s.view(func(b *bolt.Tx) error {
		return (&tx{store: s, bolt: b}).run(fn)
	})
}

// view runs fn in a bbolt transaction for reading. A fault or panic of bbolt's own
// breaks the store down; one of fn passes.
func (s *store) view(fn func(*bolt.Tx) error) (err error) {
	inside := false
	defer func() {
		if inside {
			return
		}
		if p := recover(); p != nil {
			s.stuck.Store(true)
			err = s.breakDown(p)
		}
	}()
	defer faultsPanic()()
	return s.db.View(func(b *bolt.Tx) error {
		inside = true
		err := fn(b)
		inside = false
		return err
	})
}

func (s *store) usable() error {
	if s.closed.Load() {
		return fmt.Errorf("cannot use state %s: %w", s.path, ErrClosed)
	}
	if err := s.broken.Load(); err != nil {
		return *err
	}
	return s.inPlace()
}

// inPlace tells whether the file that is open is still what it was opened as.
func (s *store) inPlace() error {
	if err := s.gone(); err != nil {
		return err
	}
	return s.short()
}

// gone tells whether the path still means the file that is open for writing. A
// reader's answers are true of the moment it opened the file at.
func (s *store) gone() error {
	if s.readOnly {
		return nil
	}
	now, err := os.Lstat(s.path)
	if err == nil && os.SameFile(now, s.info) {
		return nil
	}
	pid := os.Getpid()
	return fmt.Errorf("%w: %s is not the file that pid %d has open, and nothing is recorded any more; stop that process, put the file back, and start again (until it ends, /proc/%d/fd/%d is what was there)",
		ErrGone, s.path, pid, pid, s.file.Fd())
}

// short tells whether somebody cut the file: it only ever grows. bbolt must not
// come near one that is, for it reads where the file was mapped.
func (s *store) short() error {
	now, err := s.file.Stat()
	if err != nil {
		return fmt.Errorf("cannot look at state %s: %w", s.path, bare(err))
	}
	if was := s.info.Size(); now.Size() < was {
		return s.damaged(fmt.Sprintf("somebody cut it from %d bytes to %d while it was open", was, now.Size()))
	}
	return nil
}

func (s *store) Close() error {
	if !s.closed.CompareAndSwap(false, true) {
		return nil
	}
	if s.done != nil {
		s.queue.close()
		<-s.done
	}
	if s.stuck.Load() { // and whoever waits for bbolt's locks waits on
		s.holder.withdraw()
		release(s.file)
		return nil
	}
	s.views.Lock()
	defer s.views.Unlock()
	s.holder.withdraw() // while we have the lock: the next holder must not find us
	if err := s.closeBolt(); err != nil {
		return fmt.Errorf("cannot close state %s: %w", s.path, err)
	}
	return nil
}

// closeBolt closes bbolt and the file. bbolt unlocks what it can write itself.
func (s *store) closeBolt() error {
	if s.readOnly {
		unlock(s.file)
	}
	return s.db.Close()
}

// breakDown makes the store answer with ErrOutcome from now on.
func (s *store) breakDown(why any) error {
	err := fmt.Errorf("cannot go on with state %s: %w: %v; whether the last change is kept shows when it is opened again", s.path, ErrOutcome, why)
	s.broken.CompareAndSwap(nil, &err)
	return err
}

// transact runs fn in a bbolt transaction and commits it, in the writer's
// goroutine. An error of fn comes back as it is, one of the commit with words.
func (s *store) transact(fn func(*bolt.Tx) error) (err error) {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	if err := s.short(); err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			s.stuck.Store(true)
			err = s.breakDown(p)
		}
	}()
	defer faultsPanic()()
	var id int
	var mine error
	err = s.db.Update(func(b *bolt.Tx) error {
		id = b.ID()
		if mine = fn(b); mine == nil {
			mine = s.gone()
		}
		return mine
	})
	switch {
	case mine != nil:
		return err
	case err == nil:
		if gone := s.inPlace(); gone != nil {
			return s.breakDown(gone)
		}
		return nil
	}
	// The commit failed. If the new meta page can be seen in the file although
	// the disk refused it, memory shows a change that may vanish.
	var now int
	if verr := s.db.View(func(b *bolt.Tx) error { now = b.ID(); return nil }); verr != nil {
		return s.breakDown(errors.Join(err, verr))
	}
	if now >= id {
		return s.breakDown(err)
	}
	return explain(s.path, "write", err)
}

// faultsPanic makes a bad access to the mapped file (a disk that cannot be read,
// a file cut short by someone else) a panic in this goroutine instead of the
// process's end, until what it returns is called.
func faultsPanic() (restore func()) {
	old := debug.SetPanicOnFault(true)
	return func() { debug.SetPanicOnFault(old) }
}
