package plan

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Every consequence goes on from "ADDRESS will be": it begins with what is done
// and says nothing twice.
func TestConsequencesAreSentences(t *testing.T) {
	begin := []string{
		"created", "updated", "restarted", "replaced", "destroyed", "started", "suspended", "paused", "resumed", "expired",
		"recreated", "repaired", "released", "forgotten", "marked", "made", "given", "taken", "resolved",
	}
	seen := map[string]bool{}
	for name, build := range scenarios {
		for _, c := range Make(build().Input).Changes {
			if c.Action == ActNoop || c.Kind == "output" {
				continue
			}
			words := strings.FieldsFunc(c.Consequence, func(r rune) bool { return r == ' ' || r == ',' || r == ':' })
			if len(words) == 0 || !slices.Contains(begin, words[0]) {
				t.Errorf("%s: %s will be %q", name, c.Address, c.Consequence)
				continue
			}
			seen[words[0]] = true
			for i, word := range words {
				if strings.HasSuffix(word, "ed") && slices.Contains(words[i+1:], word) {
					t.Errorf("%s: %q says %q twice", name, c.Consequence, word)
				}
			}
		}
	}
	for _, word := range begin {
		if !seen[word] {
			t.Errorf("no scenario has anything %s", word)
		}
	}
}

func TestStamps(t *testing.T) {
	for _, c := range []struct {
		a, b   time.Time
		wa, wb string
	}{
		{t0, t0.Add(time.Second), "2026-12-01T08:30:00Z", "2026-12-01T08:30:01Z"},
		{t0, t0, "2026-12-01T08:30:00Z", "2026-12-01T08:30:00Z"},
		{t0.Add(1), t0.Add(1), "2026-12-01T08:30:00Z", "2026-12-01T08:30:00Z"},
		{t0, t0.Add(time.Millisecond), "2026-12-01T08:30:00Z", "2026-12-01T08:30:00.001Z"},
		{t0.In(time.FixedZone("", 3600)), t0.Add(time.Hour), "2026-12-01T08:30:00Z", "2026-12-01T09:30:00Z"},
	} {
		if a, b := stamps(c.a, c.b); a != c.wa || b != c.wb {
			t.Errorf("stamps(%v, %v) = %s, %s", c.a, c.b, a, b)
		}
	}
}
