package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/state"
)

// UnlockRequest names the process that is to let the state go.
type UnlockRequest struct {
	PID    int
	Agent  bool // also an agent
	DryRun bool // say who it is, end nobody
}

// UnlockResult is `force-unlock -json`.
type UnlockResult struct {
	FormatVersion string    `json:"format_version"`
	PID           int       `json:"pid"`
	Verb          string    `json:"verb"`   // what it was doing
	Since         time.Time `json:"since"`  // when it got the state
	Signal        *string   `json:"signal"` // that ended it, SIGTERM or SIGKILL; null: it was not ended
	// Unfinished are the steps that were cut off. The next command that changes
	// something finishes or undoes each.
	Unfinished []UnfinishedStep `json:"unfinished"`
}

// UnfinishedStep is a step of the journal without an end.
type UnfinishedStep struct {
	Step    string `json:"step"` // create, stop, …
	Address string `json:"address"`
}

// How long a process may take to end.
const (
	termGrace    = 10 * time.Second // after SIGTERM: what has begun is finished
	killPatience = 5 * time.Second
)

// ForceUnlock ends the process that has the state. A lock ends with its process and
// cannot outlive it, so there is no other way to take it. It refuses a PID that does
// not prove to be a holder: by its note, its start time and the file that it has open.
func ForceUnlock(ctx context.Context, o OpenOptions, r UnlockRequest) (*UnlockResult, error) {
	if err := o.fill(); err != nil {
		return nil, errorOf(err)
	}
	if os.Geteuid() != 0 {
		return nil, &Error{Kind: Invalid, Message: "cannot end who has the state: it is root's; run it with sudo"}
	}
	// What the descriptor means does not change when a PID is used again, so it is
	// opened before anything is looked at.
	fd, err := unix.PidfdOpen(r.PID, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return nil, errorOf(fmt.Errorf("cannot look at process %d: %w", r.PID, err))
	}
	if err == nil {
		defer unix.Close(fd)
	}
	h, err := holderOf(o.StateDir, r.PID)
	if err != nil {
		return nil, err
	}
	agent := strings.HasPrefix(h.Verb, agentVerb)
	if agent && !r.Agent && !r.DryRun {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf(
			"pid %d is an agent, which keeps the state while it runs; commands go through its socket: give the -run-dir that it serves (%s), or stop it (systemctl stop pinfold); -force ends it all the same, and sandboxes live on",
			r.PID, strings.TrimPrefix(h.Verb, agentVerb))}
	}
	verb := h.Verb
	if agent {
		verb = "agent"
	}
	res := &UnlockResult{FormatVersion: "1", PID: h.PID, Verb: verb, Since: h.Since, Unfinished: []UnfinishedStep{}}
	if r.DryRun {
		return res, nil
	}
	signal, err := endProcess(ctx, fd, termGrace, killPatience)
	if err != nil {
		return nil, errorOf(fmt.Errorf("pid %d (%s): %w", r.PID, verb, err))
	}
	res.Signal = &signal
	res.Unfinished, err = unfinished(ctx, o)
	return res, errorOf(err)
}

// holderOf proves that the process has the state.
func holderOf(stateDir string, pid int) (state.Holder, error) {
	all := state.Holders(stateDir)
	for _, h := range all {
		if h.PID == pid && hasOpen(pid, statePath(stateDir)) {
			return h, nil
		}
	}
	who, then := "nobody has it open by now", "so nobody is kept from it"
	if len(all) > 0 {
		verb, _, _ := strings.Cut(all[0].Verb, " -")
		who = fmt.Sprintf("pid %d (%s) has it, since %s", all[0].PID, verb, all[0].Since.UTC().Format(time.RFC3339))
		then = fmt.Sprintf("'pinfold force-unlock %d' ends that one", all[0].PID)
	}
	return state.Holder{}, &Error{Kind: Invalid, Message: fmt.Sprintf("pid %d does not have the state %s; %s; nobody was ended, %s", pid, statePath(stateDir), who, then)}
}

// hasOpen tells whether the process has the file open.
func hasOpen(pid int, path string) bool {
	want, err := os.Stat(path)
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if got, err := os.Stat(filepath.Join(dir, e.Name())); err == nil && os.SameFile(got, want) {
			return true
		}
	}
	return false
}

// endProcess asks the process to end, then ends it, and tells which signal did it.
func endProcess(ctx context.Context, fd int, grace, patience time.Duration) (string, error) {
	for _, step := range []struct {
		name string
		sig  unix.Signal
		wait time.Duration
	}{{"SIGTERM", unix.SIGTERM, grace}, {"SIGKILL", unix.SIGKILL, patience}} {
		err := unix.PidfdSendSignal(fd, step.sig, nil, 0)
		if errors.Is(err, unix.ESRCH) {
			return step.name, nil // it ended by itself just now
		}
		if err != nil {
			return "", fmt.Errorf("cannot be sent %s: %w", step.name, err)
		}
		if step.sig == unix.SIGTERM { // one that is stopped would never see it
			_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
		}
		over, err := ended(ctx, fd, step.wait)
		if err != nil || over {
			return step.name, err
		}
	}
	return "", fmt.Errorf("it does not die within %s of SIGKILL: the kernel holds it, as when a disk does not answer; only a reboot ends such a process", patience)
}

// ended waits for a process's end, at most so long.
func ended(ctx context.Context, fd int, wait time.Duration) (bool, error) {
	for end := time.Now().Add(wait); ; {
		left := min(time.Until(end), 100*time.Millisecond)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(0, left).Milliseconds()))
		switch {
		case n > 0:
			return true, nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("cannot be waited for: %w", err)
		case ctx.Err() != nil:
			return false, &Error{Kind: Interrupted, Message: "interrupted while waiting for its end, which it was asked for"}
		case !time.Now().Before(end):
			return false, nil
		}
	}
}

// unfinished are the steps that wait for their end in the journal.
func unfinished(ctx context.Context, o OpenOptions) ([]UnfinishedStep, error) {
	out := []UnfinishedStep{}
	s, err := state.Open(ctx, state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait, ReadOnly: true})
	if err != nil {
		return out, fmt.Errorf("it was ended; what it left begun cannot be told: %w", err)
	}
	defer s.Close()
	err = s.View(func(tx state.Tx) error {
		out = out[:0]
		return tx.Each(state.Journal, func(_ string, doc []byte) error {
			var in Intent
			if err := json.Unmarshal(doc, &in); err != nil {
				return err
			}
			out = append(out, UnfinishedStep{Step: string(in.Op), Address: in.Address})
			return nil
		})
	})
	return out, err
}

// Holders are those who have the state of a directory, as they noted themselves.
func Holders(stateDir string) []state.Holder { return state.Holders(stateDir) }
