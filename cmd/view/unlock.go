package view

import (
	"io"
	"time"

	"pinfold/reconcile"
)

// UnlockJSON writes `force-unlock -json`.
func UnlockJSON(w io.Writer, r *reconcile.UnlockResult) error {
	doc := *r
	doc.FormatVersion, doc.Unfinished = FormatVersion, list(r.Unfinished)
	return JSON(w, doc)
}

// WouldUnlock tells who has the state.
func (s *Screen) WouldUnlock(r *reconcile.UnlockResult, now time.Time) {
	s.Linef("Process %d (%s) has had the state since %s.\n", r.PID, oneLine(r.Verb), instant(r.Since, now))
}

// Unlocked tells how the process ended and what is to be finished or undone.
func (s *Screen) Unlocked(r *reconcile.UnlockResult) {
	how := "SIGKILL"
	if r.Signal != nil {
		how = *r.Signal
	}
	s.Linef("Process %d (%s) has ended, by %s. Sandboxes live on.\n", r.PID, oneLine(r.Verb), how)
	if len(r.Unfinished) == 0 {
		s.Linef("Nothing that it did was cut off.\n")
		return
	}
	s.Linef("What was cut off is finished or undone by the next command that changes something, such as apply:\n")
	for _, u := range r.Unfinished {
		s.Linef("  - %s of %s\n", oneLine(u.Step), oneLine(u.Address))
	}
}
