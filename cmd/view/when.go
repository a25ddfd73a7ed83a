package view

import (
	"fmt"
	"time"
)

// span writes a length of time in its two largest units: 3d4h, 7h59m, 12m30s, 9s.
func span(d time.Duration) string {
	if d < 0 {
		d = -d
	}
	switch day := 24 * time.Hour; {
	case d >= 100*day:
		return fmt.Sprintf("%dd", d/day)
	case d >= day:
		return two(d, day, "d", time.Hour, "h")
	case d >= time.Hour:
		return two(d, time.Hour, "h", time.Minute, "m")
	case d >= time.Minute:
		return two(d, time.Minute, "m", time.Second, "s")
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

func two(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	if rest := d % big / small; rest > 0 {
		return fmt.Sprintf("%d%s%d%s", d/big, bigName, rest, smallName)
	}
	return fmt.Sprintf("%d%s", d/big, bigName)
}

// ago tells an instant relative to now: "in 7h59m", "3m ago".
func ago(t, now time.Time) string {
	if d := t.Sub(now); d > 0 {
		return "in " + span(d)
	}
	return span(now.Sub(t)) + " ago"
}

// instant writes t in UTC to the second, with its distance from now.
func instant(t, now time.Time) string {
	return t.UTC().Format(time.RFC3339) + " (" + ago(t, now) + ")"
}
