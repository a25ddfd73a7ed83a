package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a length of time, written as Go does with d (24h) and w (7d) on
// top: 1w2d, 1h30m. Its JSON form is that text.
type Duration time.Duration

const (
	day  = 24 * time.Hour
	week = 7 * day
)

var durationUnits = map[string]time.Duration{
	"ns": time.Nanosecond,
	"us": time.Microsecond,
	"µs": time.Microsecond, // U+00B5
	"μs": time.Microsecond, // U+03BC
	"ms": time.Millisecond,
	"s":  time.Second,
	"m":  time.Minute,
	"h":  time.Hour,
	"d":  day,
	"w":  week,
}

// ParseDuration reads a duration such as "90s", "1h30m" or "2w". A number
// without a unit is refused, except "0". A leading "-" is accepted: whether a
// negative length makes sense is the caller's to say.
func ParseDuration(text string) (Duration, error) {
	rest := strings.TrimSpace(text)
	bad := func(why string) (Duration, error) {
		return 0, fmt.Errorf("%q is not a duration: %s; write a number with a unit, such as 90s, 15m, 8h, 1d12h or 2w", text, why)
	}
	negative := strings.HasPrefix(rest, "-")
	if negative || strings.HasPrefix(rest, "+") {
		rest = rest[1:]
	}
	if rest == "0" {
		return 0, nil
	}
	if rest == "" {
		return bad("it is empty")
	}
	var total time.Duration
	for rest != "" {
		digits := strings.IndexFunc(rest, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if digits == -1 {
			return bad("the unit is missing")
		}
		if digits == 0 {
			return bad("a number is missing")
		}
		number := rest[:digits]
		rest = rest[digits:]
		end := strings.IndexAny(rest, "0123456789.")
		if end == -1 {
			end = len(rest)
		}
		unit, known := durationUnits[rest[:end]]
		if !known {
			return bad(fmt.Sprintf("unit %q is unknown", rest[:end]))
		}
		rest = rest[end:]
		part, err := scale(number, unit)
		if err != nil {
			return bad(err.Error())
		}
		if total > math.MaxInt64-part {
			return bad("it is longer than 292 years")
		}
		total += part
	}
	if negative {
		total = -total
	}
	return Duration(total), nil
}

// scale multiplies a decimal number by a unit without losing whole nanoseconds.
func scale(number string, unit time.Duration) (time.Duration, error) {
	whole, fraction, _ := strings.Cut(number, ".")
	if whole == "" && fraction == "" || strings.Contains(fraction, ".") {
		return 0, fmt.Errorf("%q is not a number", number)
	}
	var total time.Duration
	if whole != "" {
		n, err := strconv.ParseInt(whole, 10, 64)
		if err != nil || n > math.MaxInt64/int64(unit) {
			return 0, errors.New("it is longer than 292 years")
		}
		total = time.Duration(n) * unit
	}
	step := unit
	for _, digit := range fraction {
		// Digits beyond a nanosecond add nothing: step reaches zero.
		part := time.Duration(digit-'0') * step / 10
		if total > math.MaxInt64-part {
			return 0, errors.New("it is longer than 292 years")
		}
		total += part
		step /= 10
	}
	return total, nil
}

// String writes the duration in its largest units: 36h is "1d12h". Less than a
// second is written as Go does ("1.5ms"). ParseDuration reads it back exactly.
func (d Duration) String() string {
	if d == 0 {
		return "0s"
	}
	var out strings.Builder
	left := uint64(d)
	if d < 0 {
		out.WriteByte('-')
		left = -left
	}
	for _, u := range []struct {
		name string
		unit time.Duration
	}{{"w", week}, {"d", day}, {"h", time.Hour}, {"m", time.Minute}} {
		if n := left / uint64(u.unit); n > 0 {
			fmt.Fprintf(&out, "%d%s", n, u.name)
			left %= uint64(u.unit)
		}
	}
	if left > 0 {
		out.WriteString(time.Duration(left).String())
	}
	return out.String()
}

// MarshalText is String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := ParseDuration(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}
