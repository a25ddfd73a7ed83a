package view

import (
	"fmt"
	"io"
	"time"

	"pinfold/reconcile"
)

// Events writes events as a table, oldest first.
func (s *Screen) Events(events []reconcile.Event) {
	if len(events) == 0 {
		s.Linef("No events.\n")
		return
	}
	rows := make([][]string, 0, len(events))
	for _, e := range events {
		rows = append(rows, []string{e.Address, e.At.UTC().Format(time.RFC3339), e.Type, e.Reason, e.By, e.Message})
	}
	s.table(0, []column{{"ADDRESS", 0}, {"AT", 0}, {"TYPE", 0}, {"REASON", 1}, {"BY", 3}, {"MESSAGE", 2}}, rows)
}

// EventLines writes each event on a line of its own, whatever stands on the
// others: more may come.
func (s *Screen) EventLines(events []reconcile.Event) {
	for _, e := range events {
		line := fmt.Sprintf("%s  %-9s  %s", e.At.UTC().Format(time.RFC3339), oneLine(e.Type), s.paint(bold, oneLine(e.Address)))
		if e.Reason != "" && e.Reason != e.Type {
			line += ": " + oneLine(e.Reason)
		}
		if e.Message != "" {
			line += "; " + oneLine(e.Message)
		}
		if e.By != "" {
			line += "  " + s.paint(dim, "("+oneLine(e.By)+")")
		}
		s.Linef("%s\n", line)
	}
}

// eventsDocument is `events -json`.
type eventsDocument struct {
	FormatVersion string      `json:"format_version"`
	Events        []eventJSON `json:"events"`
	Next          uint64      `json:"next"` // seq after which what comes later is new
}

// EventsJSON writes `events -json`.
func EventsJSON(w io.Writer, r *reconcile.EventsResult) error {
	return JSON(w, eventsDocument{FormatVersion, eventsOf(r.Events), r.Next})
}

// EventJSON writes one event on one line, for `events -f -json`.
func EventJSON(w io.Writer, e reconcile.Event) error {
	return JSONLine(w, eventOf(e))
}
