package view

import (
	"io"
	"strings"
	"time"

	"pinfold/reconcile"
)

// VerifyJSON writes `state verify -json`.
func VerifyJSON(w io.Writer, r *reconcile.VerifyResult) error { return JSON(w, r) }

// BackupJSON writes `state backup -json`.
func BackupJSON(w io.Writer, r *reconcile.BackupResult) error { return JSON(w, r) }

// RestoreJSON writes `state restore -json`.
func RestoreJSON(w io.Writer, r *reconcile.RestoreResult) error {
	doc := *r
	doc.FormatVersion, doc.Unrecorded = FormatVersion, list(r.Unrecorded)
	return JSON(w, doc)
}

// RebuildJSON writes `state rebuild -json`.
func RebuildJSON(w io.Writer, r *reconcile.RebuildResult) error {
	doc := *r
	doc.FormatVersion, doc.Records, doc.Unknown = FormatVersion, list(r.Records), list(r.Unknown)
	return JSON(w, doc)
}

// GCJSON writes `gc -json`.
func GCJSON(w io.Writer, r *reconcile.GCResult) error {
	doc := *r
	doc.FormatVersion, doc.Orphans = FormatVersion, list(r.Orphans)
	return JSON(w, doc)
}

// recorded are the kinds of records that people ask for, as the state has them.
var recorded = []struct{ bucket, one, many string }{
	{"sandboxes", "sandbox", "sandboxes"},
	{"networks", "network", "networks"},
	{"volumes", "volume", "volumes"},
	{"images", "image", "images"},
	{"outputs", "output", "outputs"},
	{"ended", "ended sandbox", "ended sandboxes"},
	{"journal", "unfinished step", "unfinished steps"},
	{"history", "event", "events"},
}

// records counts what a state file holds, in words.
func records(documents map[string]int) string {
	var parts []string
	for _, kind := range recorded {
		if n := documents[kind.bucket]; n > 0 {
			parts = append(parts, plural(n, kind.one, kind.many))
		}
	}
	switch n := len(parts); n {
	case 0:
		return "nothing"
	case 1:
		return parts[0]
	default:
		return strings.Join(parts[:n-1], ", ") + " and " + parts[n-1]
	}
}

// Verified tells whether a state file is sound, and else what is wrong with it and
// what can be done.
func (s *Screen) Verified(r *reconcile.VerifyResult) {
	path := printable(r.Path)
	if r.Sound {
		s.Linef("%s %s: schema %d, lineage %s, serial %d, %d bytes.\n", path, s.paint(green, "is sound"), r.Schema, printable(r.Lineage), r.Serial, r.Size)
		s.Linef("It records %s.\n", records(r.Documents))
	} else {
		s.Linef("%s %s:\n", path, s.paint(red, "is not sound"))
		for _, problem := range r.Problems {
			s.Linef("  - %s\n", oneLine(problem))
		}
	}
	if r.Backup != nil {
		s.Linef("Newest sound backup: %s\n", printable(*r.Backup))
	}
	if r.Advice != "" {
		s.Linef("%s\n", s.paint(bold, "What can be done:"))
		for line := range strings.Lines(r.Advice) {
			s.Linef("  %s\n", oneLine(line))
		}
	}
}

// BackedUp tells where a backup is.
func (s *Screen) BackedUp(r *reconcile.BackupResult) {
	s.Linef("Backed up to %s: lineage %s, serial %d, %s.\n", printable(r.Path), printable(r.Lineage), r.Serial, records(r.Documents))
}

// WouldRestore tells what a restore would do, and what it would forget.
func (s *Screen) WouldRestore(r *reconcile.RestoreResult, now time.Time) {
	s.Linef("%s would be what %s records: %s; lineage %s.\n", printable(r.Path), printable(r.Backup), records(r.Documents), printable(r.Lineage))
	s.forgotten(r, now)
}

// forgotten tells what is on no record after a restore.
func (s *Screen) forgotten(r *reconcile.RestoreResult, now time.Time) {
	since := "it was made"
	if r.BackupAt != nil {
		since = instant(*r.BackupAt, now)
	}
	s.Linef("What was changed, renewed or held since %s is forgotten.\n", since)
	what := "What was created since then is"
	if n := len(r.Unrecorded); n > 0 {
		what = plural(n, "instance on this host is", "instances on this host are")
	}
	s.Linef("%s without a record: 'pinfold gc -dry-run' tells, 'pinfold gc -adopt ID' takes it back.\n", what)
}

// Restored tells what a restore did, and what to look at then.
func (s *Screen) Restored(r *reconcile.RestoreResult, now time.Time) {
	s.Linef("Restored %s from %s: lineage %s, serial %d, %s.\n", printable(r.Path), printable(r.Backup), printable(r.Lineage), r.Serial, records(r.Documents))
	if r.Aside != nil {
		s.Linef("What was there is now %s.\n", printable(*r.Aside))
	}
	s.forgotten(r, now)
	s.Linef("'pinfold plan' shows what the files and the host are beyond it.\n")
}

// WouldRebuild lists what a rebuild would record.
func (s *Screen) WouldRebuild(r *reconcile.RebuildResult) {
	s.Linef("Of lineage %s %s can be recorded anew.\n", printable(r.Lineage), plural(len(r.Records), "thing", "things"))
	s.rebuilt(r)
}

// Rebuilt tells what a rebuild did; whole: with what it recorded.
func (s *Screen) Rebuilt(r *reconcile.RebuildResult, whole bool) {
	s.Linef("%s: lineage %s, %s.\n", s.paint(green, "The state was made anew"), printable(r.Lineage), plural(len(r.Records), "record", "records"))
	if whole {
		s.rebuilt(r)
	}
	if r.Aside != "" {
		s.Linef("What was there is now %s.\n", printable(r.Aside))
	}
	s.Linef("'pinfold plan' shows what differs from the files; 'pinfold apply' records the rest.\n")
}

func (s *Screen) rebuilt(r *reconcile.RebuildResult) {
	if len(r.Records) > 0 {
		rows := make([][]string, len(r.Records))
		for i, x := range r.Records {
			rows[i] = []string{x.Address, x.Kind, x.ID, x.Phase, x.From}
		}
		s.Linef("\n")
		s.table(2, []column{{"ADDRESS", 0}, {"KIND", 3}, {"ID", 2}, {"PHASE", 1}, {"FROM", 4}}, rows)
	}
	if len(r.Unknown) > 0 {
		s.Linef("\n%s\n", s.paint(amber, "What could not be known:"))
		for _, text := range r.Unknown {
			s.Linef("  - %s\n", oneLine(text))
		}
	}
	if len(r.Records)+len(r.Unknown) > 0 {
		s.Linef("\n")
	}
}

// done words what gc did about an orphan.
var done = map[string]struct {
	text  string
	color style
}{
	reconcile.OrphanRemoved:     {"removed", green},
	reconcile.OrphanWouldRemove: {"would be removed", amber},
	reconcile.OrphanAdopted:     {"taken back", green},
	reconcile.OrphanReported:    {"left as it is", amber},
	reconcile.OrphanKept:        {"released, left alone", dim},
}

// Collected tells what gc found, and what it did about each.
func (s *Screen) Collected(r *reconcile.GCResult) {
	counts := map[string]int{}
	for _, o := range r.Orphans {
		counts[o.Action]++
		name := o.Kind
		for _, text := range []string{o.Address, o.ID} {
			if text != "" {
				name += " " + oneLine(text)
			}
		}
		d := done[o.Action]
		s.Linef("%s: %s\n  %s\n", s.paint(bold, name), s.paint(d.color, d.text), oneLine(o.Found))
		if o.Hint != "" {
			s.Linef("  %s\n", oneLine(o.Hint))
		}
	}
	if len(r.Orphans) == 0 {
		s.Linef("Nothing was left behind: what is on the host and what is recorded agree.\n")
		return
	}
	var parts []string
	for _, action := range []string{reconcile.OrphanRemoved, reconcile.OrphanWouldRemove, reconcile.OrphanAdopted, reconcile.OrphanReported, reconcile.OrphanKept} {
		if n := counts[action]; n > 0 {
			parts = append(parts, plural(n, done[action].text, done[action].text))
		}
	}
	s.Linef("\n%s.\n", strings.Join(parts, ", "))
}
