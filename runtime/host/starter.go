package host

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
	"pinfold/runtime/host/memfd"
	"pinfold/runtime/host/starter"
)

//go:embed starter/program/starter.bin
var starterProgram []byte

// starterRest is how long the starter stays when there is nothing to start. It
// comes back in some milliseconds; resting, it would take as many megabytes.
const starterRest = 5 * time.Second

// enterBound is how long a start or exec may take until the kernel executes the
// command: far longer than any honest one takes, also on an emulated machine.
const enterBound = 30 * time.Second

// starters keeps one starter process while there is something to start.
type starters struct {
	// path is a file that a starter keeps locked (flock(2)) as long as it lives. One
	// whose owner was killed needs some milliseconds to end what it was about.
	path string

	mu      sync.Mutex
	program *os.File
	client  *starter.Client
	users   int
	rest    *time.Timer
}

// orphanBound is how long the starter of a killed process may take to end.
const orphanBound = 15 * time.Second

// settle waits until no starter of an earlier process is left: it might still make
// what is just being taken down.
func (s *starters) settle(ctx context.Context) error {
	lock, err := s.await(ctx, unix.LOCK_EX)
	if lock != nil {
		lock.Close()
	}
	return err
}

// await returns the lock once no other starter has it in its way, or nil when there
// is one of ours: before it there was none.
func (s *starters) await(ctx context.Context, kind int) (*os.File, error) {
	if s.ours() {
		return nil, nil
	}
	f, err := failpoint.Get("host.starter.lock", func() (*os.File, error) { return os.OpenFile(s.path, os.O_RDWR|os.O_CREATE, 0o600) })
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock of the process that starts sandboxes: %w", err)
	}
	for end := time.Now().Add(orphanBound); ; {
		err := unix.Flock(int(f.Fd()), kind|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("an earlier process that starts sandboxes (pinfold-starter) still holds %s: %w", s.path, runtime.ErrBusy)
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			f.Close()
			return nil, err
		}
		if s.ours() {
			return nil, f.Close()
		}
	}
}

func (s *starters) ours() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetGone()
	return s.client != nil
}

// get returns a starter, spawned when there is none, for use until put.
func (s *starters) get(ctx context.Context, st *stage) (*starter.Client, error) {
	for {
		lock, err := s.await(ctx, unix.LOCK_SH)
		if err != nil {
			return nil, err
		}
		c, err := s.use(lock, st)
		if lock != nil {
			lock.Close()
		}
		if c != nil || err != nil {
			return c, err
		}
	}
}

// use counts a user of our starter, which is spawned with the lock when there is none;
// nil when there is none and no lock.
func (s *starters) use(lock *os.File, st *stage) (*starter.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetGone()
	if s.client == nil {
		if lock == nil {
			return nil, nil // it has just ended
		}
		if err := s.spawn(lock, st); err != nil {
			return nil, err
		}
	}
	s.users++
	return s.client, nil
}

func (s *starters) spawn(lock *os.File, st *stage) error {
	if s.program == nil {
		f, err := memfd.Sealed("pinfold-starter", starterProgram, 0o755)
		if err != nil {
			return err
		}
		s.program = f
		dropPages(starterProgram)
	}
	return st.run(func() (err error) {
		s.client, err = failpoint.Get("host.starter.spawn", func() (*starter.Client, error) { return starter.Spawn(s.program, lock) })
		return err
	})
}

// forgetGone lets a starter go that does not answer any more.
func (s *starters) forgetGone() {
	if s.client != nil && s.client.Gone() {
		s.client.Close()
		s.client = nil
	}
}

// dropPages takes pages of an embedded file out of this process's memory. They are
// part of the program's own file and come back when they are read.
func dropPages(b []byte) {
	const page = 4096
	start := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	first := (page - start%page) % page
	if whole := (uintptr(len(b)) - first) / page * page; uintptr(len(b)) > first && whole > 0 {
		_ = unix.Madvise(b[first:first+whole], unix.MADV_DONTNEED) // no more than advice
	}
}

func (s *starters) put() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	if s.rest == nil {
		s.rest = time.AfterFunc(starterRest, s.retire)
	}
	s.rest.Reset(starterRest)
}

// retire lets an unused starter go.
func (s *starters) retire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users > 0 {
		return // put comes again
	}
	if s.client != nil {
		s.client.Close()
		s.client = nil
	}
	if s.program != nil {
		s.program.Close()
		s.program = nil
	}
}

// Close lets the starter go. Nothing may be starting.
func (s *starters) Close() {
	s.mu.Lock()
	if s.rest != nil {
		s.rest.Stop()
	}
	s.mu.Unlock()
	s.retire()
}
