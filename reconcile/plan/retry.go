package plan

import (
	"time"

	"pinfold/config"
)

const (
	backoffMin = time.Second
	backoffMax = 5 * time.Minute
	// StableWindow is how long a process must have been up for the next loss to
	// be the first of a new series.
	StableWindow = 10 * time.Minute
	// startTimeout is lifetime.start_timeout's default.
	startTimeout = 5 * time.Minute
)

// Backoff is the retry state after one more attempt at now: the start of a
// killed process, the recreation of a lost one, or a step that failed with msg
// (empty when it succeeded). up is how long the process had been up before; a
// stable one starts a new series. The distance doubles from 1 s to 5 min; jitter,
// in [0,1), shortens it by up to half, so that many do not come back as one.
func Backoff(r Retry, up time.Duration, now time.Time, jitter float64, msg string) Retry {
	if up >= StableWindow {
		r = Retry{}
	}
	if r.Since.IsZero() {
		r.Since = now
	}
	d := backoffMax
	if r.Attempts < 9 {
		d = min(backoffMin<<r.Attempts, backoffMax)
	}
	r.Attempts++
	r.NextAt = now.Add(d - time.Duration(jitter*float64(d)/2))
	r.Error = msg
	return r
}

// GiveUp reports whether a sandbox that could not be brought up since the
// series' beginning is to be failed: lifetime.start_timeout has passed since.
func GiveUp(r Retry, spec *config.Sandbox, now time.Time) bool {
	limit := time.Duration(spec.Lifetime.StartTimeout)
	if limit <= 0 {
		limit = startTimeout
	}
	return r.Error != "" && !r.Since.IsZero() && !now.Before(r.Since.Add(limit))
}
