package view

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"pinfold/reconcile"
)

// Volumes writes volumes and claims as a table.
func (s *Screen) Volumes(r *reconcile.VolumesResult, now time.Time) {
	if len(r.Volumes) == 0 {
		s.Linef("No volumes.\n")
		return
	}
	cols := []column{
		{"VOLUME", 0}, {"USED", 0}, {"IN USE", 0}, {"MOUNTED BY", 1}, {"PROTECTED", 3}, {"AGE", 2}, {"ID", 4}, {"PATH", 5},
	}
	var rows [][]string
	short := 0
	for _, v := range slices.SortedStableFunc(slices.Values(r.Volumes), func(a, b reconcile.VolumeView) int { return addresses(a.Address, b.Address) }) {
		if v.Used != nil && !v.Used.Complete {
			short++
		}
		rows = append(rows, []string{
			v.Address, usedOf(&v), yesNo(len(v.Users) > 0), mountsOf(&v), yesNo(v.PreventDestroy),
			orDash(v.CreatedAt, func(t time.Time) string { return span(now.Sub(t)) }), v.ID, orDash(v.Path, func(p string) string { return p }),
		})
	}
	s.table(0, cols, rows)
	if short > 0 {
		s.Linef("%s %s not counted to the end; pinfold volume show takes longer for one\n", s.paint(bold, "Note:"), plural(short, "volume was", "volumes were"))
	}
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// usedOf is what a volume takes; with a plus where there is more.
func usedOf(v *reconcile.VolumeView) string {
	switch {
	case v.Path == nil:
		return "gone"
	case v.Used == nil:
		return "?"
	case !v.Used.Complete:
		return amount(v.Used.Bytes) + "+"
	}
	return amount(v.Used.Bytes)
}

// mountsOf names who mounts a volume where. Whose claim it is its address says.
func mountsOf(v *reconcile.VolumeView) string {
	var all []string
	for _, m := range v.Mounts {
		text := m.Path
		if v.Sandbox == nil {
			text = m.Sandbox + ":" + text
		}
		if m.ReadOnly {
			text += " (ro)"
		}
		all = append(all, text)
	}
	return firstOf(all)
}

// firstOf are the first few of many.
func firstOf(all []string) string {
	const few = 2
	switch n := len(all); {
	case n == 0:
		return "-"
	case n > few:
		return strings.Join(all[:few], ", ") + " and " + strconv.Itoa(n-few) + " more"
	}
	return strings.Join(all, ", ")
}

// amount writes bytes as people read them, in steps of 1024: 0B, 12KiB, 1.5GiB.
func amount(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%dB", n)
	}
	x, unit := float64(n), 0
	for x >= 1023.5 && unit < 4 {
		x, unit = x/1024, unit+1
	}
	name := []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit]
	if x < 9.95 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", x), ".0") + name
	}
	return fmt.Sprintf("%.0f%s", x, name)
}

// Volume writes everything about one.
func (s *Screen) Volume(d *reconcile.VolumeDescription, now time.Time) {
	v := &d.Volume
	s.Linef("%s\n", s.paint(bold, printable(v.Address)))
	head := section{}
	head.add("ID", v.ID)
	switch {
	case v.Path == nil:
		head.add("Path", "gone from the host; the next apply makes it again, empty")
	default:
		head.add("Path", *v.Path)
	}
	switch u := v.Used; {
	case u == nil && v.Path != nil:
		head.add("Used", "could not be counted; the log tells why")
	case u != nil:
		text := amount(u.Bytes) + " on disk in " + plural(int(u.Files), "file", "files")
		if !u.Complete {
			text = "more than " + text + ", not counted to the end"
		}
		head.add("Used", text)
	}
	head.add("Created", at(v.CreatedAt, now))
	if v.Sandbox != nil {
		head.add("Claim", "of "+*v.Sandbox+", with which it goes")
	}
	if v.PreventDestroy {
		head.add("Protected", "by prevent_destroy")
	}
	head.add("Depends on", strings.Join(d.DependsOn, ", "))
	s.section(head)

	mounts := section{title: "Mounted by"}
	for _, m := range v.Mounts {
		text := m.Path
		if m.ReadOnly {
			text += ", read-only"
		}
		mounts.add(m.Sandbox, text)
	}
	s.section(mounts)

	if len(v.Users) > 0 {
		s.Linef("\n%s\n", s.paint(bold, "In use by"))
		var rows [][]string
		for _, u := range v.Users {
			rows = append(rows, []string{u.Sandbox, u.InstanceID, string(u.Phase) + besideRecord(u.Standing), strconv.Itoa(u.PID), u.Path})
		}
		s.table(2, []column{{"SANDBOX", 0}, {"INSTANCE", 3}, {"PHASE", 0}, {"PID", 1}, {"PATH", 2}}, rows)
	}
	s.eventTable(d.Events)
	if v.Sandbox != nil {
		s.Linef("\n%s pinfold events %s tells what happened to its sandbox\n", s.paint(bold, "Note:"), *v.Sandbox)
	}
}

// besideRecord says what an instance is that is not its sandbox's own.
func besideRecord(standing string) string {
	if standing == "own" {
		return ""
	}
	return " (" + standing + ")"
}

// VolumesJSON writes `volume list -json`.
func VolumesJSON(w io.Writer, r *reconcile.VolumesResult) error { return JSON(w, r) }

// volumeDocument is `volume show -json`.
type volumeDocument struct {
	FormatVersion string               `json:"format_version"`
	Volume        reconcile.VolumeView `json:"volume"`
	DependsOn     []string             `json:"depends_on"`
	Events        []eventJSON          `json:"events"` // the last 20, oldest first; none of a claim: they are its sandbox's
}

// VolumeJSON writes `volume show -json`.
func VolumeJSON(w io.Writer, d *reconcile.VolumeDescription) error {
	return JSON(w, volumeDocument{FormatVersion, d.Volume, list(d.DependsOn), eventsOf(d.Events)})
}

// Images writes images as a table.
func (s *Screen) Images(r *reconcile.ImagesResult) {
	if len(r.Images) == 0 {
		s.Linef("No images.\n")
		return
	}
	var rows [][]string
	for _, v := range slices.SortedStableFunc(slices.Values(r.Images), func(a, b reconcile.ImageView) int { return addresses(a.Address, b.Address) }) {
		hidden := "nothing"
		if v.Hidden != nil {
			hidden = plural(len(v.Hidden.Absent)+len(v.Hidden.Empty), "path", "paths")
		}
		var users []string
		for _, u := range v.Users {
			users = append(users, u.Sandbox)
		}
		rows = append(rows, []string{v.Address, v.Source, hidden, firstOf(users), orDash(v.Digest, func(d string) string { return d })})
	}
	s.table(0, []column{{"IMAGE", 0}, {"SOURCE", 0}, {"HIDDEN", 2}, {"USED BY", 1}, {"DIGEST", 3}}, rows)
}

// Image writes everything about one.
func (s *Screen) Image(d *reconcile.ImageDescription) {
	v := &d.Image
	s.Linef("%s\n", s.paint(bold, printable(v.Address)))
	head := section{}
	head.add("Source", v.Source)
	head.add("Root", orDash(v.Path, func(p string) string { return p }))
	head.add("Digest", orDash(v.Digest, func(d string) string { return d }))
	if v.PreventDestroy {
		head.add("Protected", "by prevent_destroy")
	}
	head.add("Depends on", strings.Join(d.DependsOn, ", "))
	s.section(head)
	if len(v.Users) > 0 {
		s.Linef("\n%s\n", s.paint(bold, "Used by"))
		var rows [][]string
		for _, u := range v.Users {
			made := "-"
			switch {
			case u.Digest == nil:
			case v.Digest != nil && *u.Digest != *v.Digest:
				made = "of " + *u.Digest + "; the next apply replaces it"
			default:
				made = "of this image"
			}
			rows = append(rows, []string{u.Sandbox, string(u.Phase), orDash(u.InstanceID, func(id string) string { return id }), made})
		}
		s.table(2, []column{{"SANDBOX", 0}, {"PHASE", 0}, {"INSTANCE", 2}, {"MADE", 1}}, rows)
	}
	if v.Hidden != nil {
		s.paths("Not there for sandboxes", v.Hidden.Absent)
		s.paths("Empty for sandboxes", v.Hidden.Empty)
	}
	s.eventTable(d.Events)
}

// paths writes one a line.
func (s *Screen) paths(title string, all []string) {
	if len(all) == 0 {
		return
	}
	s.Linef("\n%s\n", s.paint(bold, title))
	for _, p := range all {
		s.Linef("  %s\n", oneLine(p))
	}
}

// ImagesJSON writes `image list -json`.
func ImagesJSON(w io.Writer, r *reconcile.ImagesResult) error { return JSON(w, r) }

// imageDocument is `image show -json`.
type imageDocument struct {
	FormatVersion string              `json:"format_version"`
	Image         reconcile.ImageView `json:"image"`
	DependsOn     []string            `json:"depends_on"`
	Events        []eventJSON         `json:"events"` // the last 20, oldest first
}

// ImageJSON writes `image show -json`.
func ImageJSON(w io.Writer, d *reconcile.ImageDescription) error {
	return JSON(w, imageDocument{FormatVersion, d.Image, list(d.DependsOn), eventsOf(d.Events)})
}
