package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockWait is one Open's patience.
type lockWait struct {
	path, dir         string
	started, deadline time.Time
	waiting           func(Holder) // told after waitingAfter, once; nil: nobody is
}

// waitingAfter is how long a wait for the lock is before it is worth a word.
const waitingAfter = 300 * time.Millisecond

// acquire takes the flock how (LOCK_EX or LOCK_SH) on f. The kernel cannot wait
// for a flock with a bound, so it is tried, first often and then every 50 ms.
func (l lockWait) acquire(ctx context.Context, f *os.File, how int) error {
	pause := 2 * time.Millisecond
	for {
		err := tryFlock(f, how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("cannot lock state %s: %w", l.path, err)
		}
		left := time.Until(l.deadline)
		if left <= 0 {
			return l.locked()
		}
		if l.waiting != nil && time.Since(l.started) >= waitingAfter {
			h, gone := whoHolds(l.dir)
			if gone {
				h = Holder{}
			}
			l.waiting(h)
			l.waiting = nil
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("gave up waiting for it: %w (%w)", l.locked(), context.Cause(ctx))
		case <-timer.C:
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// acquireDir takes the lock under which state.db and state.holder are made and
// changed. It is held for moments only, so even an Open that tries once gives it
// a second.
func (l lockWait) acquireDir(ctx context.Context, d *os.File) error {
	if least := time.Now().Add(time.Second); l.deadline.Before(least) {
		l.deadline = least
	}
	l.waiting = nil
	return l.acquire(ctx, d, unix.LOCK_EX)
}

func (l lockWait) locked() *LockedError {
	h, gone := whoHolds(l.dir)
	return &LockedError{Path: l.path, Holder: h, Gone: gone, Waited: time.Since(l.started)}
}

// tryFlock locks without waiting.
func tryFlock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err != unix.EINTR {
			return err
		}
	}
}

// unlock lets the lock go at once. Closing f alone does not when this process is
// starting a child just then: between fork and exec the child has f too.
func unlock(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// release unlocks and closes f, which may be closed already.
func release(f *os.File) {
	unlock(f)
	f.Close()
}

// Error names the holder, how long it has had the file by now, and what to do.
func (e *LockedError) Error() string {
	verb := e.Holder.Verb
	if verb == "" {
		verb = "unknown"
	}
	switch {
	case e.Holder.PID == 0:
		return fmt.Sprintf("state %s is in use, by which process could not be told (fuser %s may know); wait for it, or raise -lock-timeout", e.Path, e.Path)
	case e.Gone:
		return fmt.Sprintf("state %s is in use by an unknown process: pid %d (%s), which noted itself, is gone (fuser %s may know more); wait for it, or raise -lock-timeout", e.Path, e.Holder.PID, verb, e.Path)
	}
	age := max(0, time.Since(e.Holder.Since)).Round(time.Second)
	return fmt.Sprintf("state %s is in use by pid %d (%s) for %s; wait for it, or raise -lock-timeout", e.Path, e.Holder.PID, verb, age)
}

func (e *LockedError) Unwrap() error { return ErrLocked }
