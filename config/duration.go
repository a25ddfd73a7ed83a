package config

import "time"

// Duration is a length of time, written as Go does with d (24h) and w (7d) on
// top: 1w2d, 1h30m. Its JSON form is that text.
type Duration time.Duration
