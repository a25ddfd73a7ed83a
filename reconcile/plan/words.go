package plan

import (
	"strconv"
	"strings"
	"time"

	"pinfold/config"
)

// stamp words an instant, to the second.
func stamp(t time.Time) string {
	return t.UTC().Format(time.RFC3339)
}

// exact words an instant with its fraction of a second.
func exact(t time.Time) string {
	return t.UTC().Format(time.RFC3339Nano)
}

// stamps words two instants so that they can be told apart.
func stamps(a, b time.Time) (string, string) {
	if x, y := stamp(a), stamp(b); x != y || a.Equal(b) {
		return x, y
	}
	return exact(a), exact(b)
}

// ends words what follows on a start, by the mode it ends in.
func ends(mode string) string {
	switch mode {
	case "paused":
		return ", then frozen"
	case "suspended", "created":
		return ", not started"
	}
	return ""
}

// keeps words what an update in place leaves as it is.
func keeps(p Phase) string {
	switch p {
	case Running:
		return ", keeps running"
	case Paused:
		return ", stays paused"
	}
	return ""
}

// lost words what happens to the data of claims that are gone.
func lost(claims []string) string {
	if len(claims) == 1 {
		return "its data is lost"
	}
	return "their data is lost"
}

// clock words an instant shortly: the time of day, with the date when it is not today's.
func clock(t, now time.Time) string {
	t, now = t.UTC(), now.UTC()
	if t.Year() == now.Year() && t.YearDay() == now.YearDay() {
		return t.Format("15:04")
	}
	return t.Format("2006-01-02 15:04")
}

// words gives a duration without the zero units at its end: 8h, 1m30s.
func words(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// from words a position: " (main.hcl:12)", or nothing when it is not known.
func from(p config.Position) string {
	if p.File == "" {
		return ""
	}
	return " (" + p.File + ":" + strconv.Itoa(p.Line) + ")"
}

// volumes words claims: `volume "work"`, `volumes "a", "b"`.
func volumes(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = strconv.Quote(n)
	}
	if len(names) == 1 {
		return "volume " + quoted[0]
	}
	return "volumes " + strings.Join(quoted, ", ")
}

// listed words addresses, the first few of many.
func listed(addresses []string) string {
	const few = 5
	if n := len(addresses); n > few {
		return strings.Join(addresses[:few], ", ") + " and " + strconv.Itoa(n-few) + " more"
	}
	return strings.Join(addresses, ", ")
}
