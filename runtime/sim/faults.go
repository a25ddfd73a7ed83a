package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Op names a method of runtime.Host.
type Op string

// The methods of runtime.Host.
const (
	OpInfo          Op = "Info"
	OpPrepareImage  Op = "PrepareImage"
	OpHiddenBy      Op = "HiddenBy"
	OpEnsureNetwork Op = "EnsureNetwork"
	OpRemoveNetwork Op = "RemoveNetwork"
	OpPrefixesInUse Op = "PrefixesInUse"
	OpCheckPort     Op = "CheckPort"
	OpEnsureVolume  Op = "EnsureVolume"
	OpRemoveVolume  Op = "RemoveVolume"
	OpVolumeUsage   Op = "VolumeUsage"
	OpCreate        Op = "Create"
	OpStart         Op = "Start"
	OpPause         Op = "Pause"
	OpResume        Op = "Resume"
	OpStop          Op = "Stop"
	OpUpdate        Op = "Update"
	OpRepair        Op = "Repair"
	OpRemove        Op = "Remove"
	OpSignal        Op = "Signal"
	OpExec          Op = "Exec"
	OpDial          Op = "Dial"
	OpDialInside    Op = "DialInside"
	OpCopyOut       Op = "CopyOut"
	OpCopyIn        Op = "CopyIn"
	OpNote          Op = "Note"
	OpNotes         Op = "Notes"
	OpRelease       Op = "Release"
	OpReclaim       Op = "Reclaim"
	OpOpenLog       Op = "OpenLog"
	OpObserve       Op = "Observe"
	OpInspect       Op = "Inspect"
	OpStats         Op = "Stats"
	OpWaitExit      Op = "WaitExit"
	OpClose         Op = "Close"

	AnyOp Op = "*" // in Fail: every method
)

// Writes tells whether the method changes the host. These are the ones that Ops
// logs, Crash counts and ReadOnly forbids. Close is none: all it takes away is
// what nobody uses; nor is Note, of which nothing but a rebuild takes notice.
func (o Op) Writes() bool {
	switch o {
	case OpInfo, OpHiddenBy, OpVolumeUsage, OpPrefixesInUse, OpCheckPort, OpDial, OpDialInside, OpCopyOut, OpNote, OpNotes, OpOpenLog, OpObserve, OpInspect, OpStats, OpWaitExit, OpClose:
		return false
	}
	return true
}

// When is the moment within a call at which a fault strikes.
type When int

const (
	Before When = iota // nothing has happened yet
	Midway             // in Create, Stop and Remove: half of it is done. Elsewhere as After
	After              // all of it is done, but the caller does not learn it
)

// Always is the number of times for a fault that stays.
const Always = -1

type fault struct {
	op    Op
	id    string
	err   error
	when  When
	times int
}

type crash struct {
	after int
	when  When
}

// ErrCrashed is what a handle answers after the crash of its process.
var ErrCrashed = errors.New("sim: this process has crashed")

// errClosed is what a handle answers after Close.
var errClosed = errors.New("sim: handle is closed")

// Fail makes calls of op fail with err: those about id (an instance, network or
// volume ID, an image's path or "host"), or all for an empty id; times often, or
// Always. Faults of earlier Fail calls strike first. A Create that fails Midway
// cleans up behind itself, as it has promised.
func (w *World) Fail(op Op, id string, err error, when When, times int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, &fault{op, id, err, when, times})
}

// ClearFaults takes back every Fail, Delay and Crash that has not struck.
func (w *World) ClearFaults() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults, w.crashes = nil, nil
	clear(w.delays)
}

// Crash lets the process that makes the nth writing call from now (1 is the
// next) die in it: at once, midway without any clean-up, or when all is done.
// That call and every later one on the same handle, Observe included, return
// ErrCrashed and do nothing. Other handles go on.
func (w *World) Crash(n int, when When) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.crashes = append(w.crashes, &crash{n, when})
}

// Delay makes every call of op take d longer, before it does anything. Zero
// takes the delay back. The context ends the wait.
func (w *World) Delay(op Op, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delays[op] = d
}

// strike returns the error due at this moment of a call.
func (w *World) strike(op Op, id string, when When) error {
	for i, f := range w.faults {
		if (f.op == op || f.op == AnyOp) && (f.id == "" || f.id == id) && f.when == when {
			if f.times > 0 {
				if f.times--; f.times == 0 {
					w.faults = slices.Delete(w.faults, i, i+1)
				}
			}
			return fmt.Errorf("%s %s: %w", op, id, f.err)
		}
	}
	return nil
}

// crashing counts a writing call and returns when its process dies in it.
func (w *World) crashing() (when When, dies bool) {
	keep := w.crashes[:0]
	for _, c := range w.crashes {
		if c.after--; c.after == 0 {
			when, dies = c.when, true
			continue
		}
		keep = append(keep, c)
	}
	w.crashes = keep
	return when, dies
}

// Call is one writing call, with what it returned.
type Call struct {
	Op      Op
	Lineage string
	ID      string
	Err     error
}

func (c Call) String() string {
	if c.Err != nil {
		return fmt.Sprintf("%s %s: %v", c.Op, c.ID, c.Err)
	}
	return fmt.Sprintf("%s %s", c.Op, c.ID)
}

// Ops lists the writing calls in the order in which they ended.
func (w *World) Ops() []Call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ops)
}

// ClearOps empties the list.
func (w *World) ClearOps() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ops = nil
}

// Reporter is the part of testing.TB that ReadOnly needs.
type Reporter interface {
	Errorf(format string, args ...any)
}

// ReadOnly makes every writing call from now on fail the test, without effect,
// until ReadWrite.
func (w *World) ReadOnly(t Reporter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readOnly = t
}

// ReadWrite ends ReadOnly.
func (w *World) ReadWrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readOnly = nil
}
