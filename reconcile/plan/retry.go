package plan

import (
	"cmp"
	"time"

	"pinfold/config"
)

// Restarted is the Reason of a start by the restart block.
const Restarted = "restarted"

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
	r = r.paced(backoffMin, backoffMax, now, jitter)
	r.Error = msg
	return r
}

// RestartBackoff is the series of restarts after one more restart at now by the
// sandbox's restart block. up is how long the process had been up before it
// ended; one that was up for the block's window starts a new series. The distance
// to the next one doubles from backoff_min to backoff_max; jitter is Backoff's.
func RestartBackoff(r Retry, spec *config.Sandbox, up time.Duration, now time.Time, jitter float64) Retry {
	p := restartPolicy(spec)
	if up >= time.Duration(p.Window) {
		r = Retry{}
	}
	return r.paced(time.Duration(p.BackoffMin), time.Duration(p.BackoffMax), now, jitter)
}

// restartPolicy is the restart block with what is not written filled in.
func restartPolicy(spec *config.Sandbox) config.Restart {
	p := spec.Restart
	p.Mode = cmp.Or(p.Mode, "never")
	p.Window = cmp.Or(p.Window, config.Duration(StableWindow))
	p.BackoffMin = cmp.Or(p.BackoffMin, config.Duration(backoffMin))
	p.BackoffMax = max(cmp.Or(p.BackoffMax, config.Duration(backoffMax)), p.BackoffMin)
	return p
}

// paced is r after one more attempt: the distance to the next doubles from least to most.
func (r Retry) paced(least, most time.Duration, now time.Time, jitter float64) Retry {
	if r.Since.IsZero() {
		r.Since = now
	}
	d := least
	for i := 0; i < r.Attempts && d < most; i++ {
		d *= 2
	}
	d = min(d, most)
	r.Attempts++
	r.NextAt = now.Add(d - time.Duration(jitter*float64(d)/2))
	return r
}

// GiveUp reports whether a sandbox that could not be brought up since the
// series' beginning is to be failed: lifetime.start_timeout has passed since.
func GiveUp(r Retry, spec *config.Sandbox, now time.Time) bool {
	limit := ReadyWithin(spec)
	return r.Error != "" && !r.Since.IsZero() && !now.Before(r.Since.Add(limit))
}
