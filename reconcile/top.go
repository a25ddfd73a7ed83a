package reconcile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// StatsResult is one look at what sandboxes use. Two of them make a TopResult.
type StatsResult struct {
	At        time.Time      `json:"at"`
	Sandboxes []SandboxStats `json:"sandboxes"` // by address
}

// SandboxStats is what one uses. Stats is nil for one without a process, and where it
// could not be told, which Unknown explains.
type SandboxStats struct {
	Address   string         `json:"address"`
	Instance  string         `json:"instance,omitempty"`
	Phase     plan.Phase     `json:"phase"`
	StartedAt time.Time      `json:"started_at,omitzero"`
	CPULimit  float64        `json:"cpu_limit,omitempty"` // cores; 0: none
	Stats     *runtime.Stats `json:"stats,omitempty"`
	Unknown   string         `json:"unknown,omitempty"`
}

// TopResult is what sandboxes use: amounts as they are at the end, rates over the time
// between two looks. Absent things are null.
type TopResult struct {
	FormatVersion string       `json:"format_version"`
	At            time.Time    `json:"at"`
	Seconds       float64      `json:"interval_seconds"` // between the two looks
	Sandboxes     []SandboxTop `json:"sandboxes"`
}

// SandboxTop is one line of it.
type SandboxTop struct {
	Address     string      `json:"address"`
	InstanceID  *string     `json:"instance_id"`
	Phase       plan.Phase  `json:"phase"`
	StartedAt   *time.Time  `json:"started_at"`
	CPUPercent  *float64    `json:"cpu_percent"` // of one core; null where it was not there at both looks
	CPUSeconds  *float64    `json:"cpu_seconds"` // since the process was made
	CPULimit    *float64    `json:"cpu_limit"`   // cores
	Memory      *int64      `json:"memory"`      // bytes, without the file cache that is dropped first
	MemoryLimit *int64      `json:"memory_limit"`
	PIDs        *int64      `json:"pids"` // processes and threads
	PIDsLimit   *int64      `json:"pids_limit"`
	Network     *TopTraffic `json:"network"` // null: it has none
	Unknown     *string     `json:"unknown"` // why it could not be looked at
}

// TopTraffic is bytes over a sandbox's link, as seen from inside.
type TopTraffic struct {
	Received          uint64   `json:"received"`
	Sent              uint64   `json:"sent"`
	ReceivedPerSecond *float64 `json:"received_per_second"`
	SentPerSecond     *float64 `json:"sent_per_second"`
}

// statsParallel bounds how many sandboxes are looked at at once.
const statsParallel = 8

// Stats tells what the sandboxes with a process use now; with addresses only those,
// whatever their phase. It takes no lane.
func (e *Engine) Stats(ctx context.Context, addresses ...string) (*StatsResult, error) {
	var recs []*plan.Sandbox
	for _, word := range addresses {
		address, err := e.resolve(word)
		if err != nil {
			return nil, errorOf(err)
		}
		if rec := e.current(address); rec != nil && !slices.Contains(recs, rec) {
			recs = append(recs, rec)
		}
	}
	if len(addresses) == 0 {
		for _, rec := range e.snapshot().Sandboxes {
			if live(rec) {
				recs = append(recs, rec)
			}
		}
	}
	slices.SortFunc(recs, func(a, b *plan.Sandbox) int { return cmp.Compare(a.Address, b.Address) })
	res := &StatsResult{At: e.now(), Sandboxes: make([]SandboxStats, 0, len(recs))}
	all := make([]SandboxStats, len(recs))
	var looks sync.WaitGroup
	slots := make(chan struct{}, statsParallel)
	for i, rec := range recs {
		slots <- struct{}{}
		looks.Go(func() {
			all[i] = e.statsOf(ctx, rec)
			<-slots
		})
	}
	looks.Wait()
	if err := ctx.Err(); err != nil {
		return nil, errorOf(err)
	}
	for _, s := range all {
		if s.Stats != nil || s.Unknown != "" || len(addresses) > 0 {
			res.Sandboxes = append(res.Sandboxes, s)
		}
	}
	return res, nil
}

// statsOf looks at one. What is on record of its phase gives way to what is seen.
func (e *Engine) statsOf(ctx context.Context, rec *plan.Sandbox) SandboxStats {
	s := SandboxStats{Address: rec.Address, Phase: phaseOf(rec), CPULimit: rec.Spec.Resources.CPU}
	if rec.Instance == nil {
		return s
	}
	s.Instance, s.StartedAt = rec.Instance.ID, rec.Instance.StartedAt
	if !live(rec) {
		return s
	}
	used, err := e.host.Stats(ctx, s.Instance)
	switch {
	case err == nil:
		s.Stats = &used
		switch {
		case used.Frozen:
			s.Phase = plan.Paused
		case s.Phase == plan.Paused:
			s.Phase = plan.Running
		}
	case errors.Is(err, runtime.ErrNotRunning), errors.Is(err, runtime.ErrNotFound):
		// It has ended, and that is not on record yet.
		if now, err := e.glance(ctx, rec); err == nil {
			s.Phase = now.status(rec, e.now()).Phase
		}
	default:
		s.Unknown = err.Error()
	}
	return s
}

// Since makes rates of two looks, of which the other was the earlier one. What was
// not there then, or is another process by now, has none.
func (r *StatsResult) Since(before *StatsResult) *TopResult {
	top := &TopResult{FormatVersion: "1", At: r.At, Seconds: max(0, r.At.Sub(before.At).Seconds()), Sandboxes: []SandboxTop{}}
	earlier := map[string]*runtime.Stats{}
	for i := range before.Sandboxes {
		s := &before.Sandboxes[i]
		earlier[s.Instance+s.StartedAt.UTC().Format(time.RFC3339Nano)] = s.Stats
	}
	for i := range r.Sandboxes {
		s := &r.Sandboxes[i]
		x := SandboxTop{
			Address: s.Address, Phase: s.Phase, InstanceID: orNil(s.Instance), CPULimit: orNil(s.CPULimit), Unknown: orNil(s.Unknown),
		}
		if now := s.Stats; now != nil {
			x.StartedAt = orNil(s.StartedAt)
			seconds := now.CPU.Seconds()
			x.CPUSeconds, x.Memory, x.MemoryLimit = &seconds, &now.Memory, orNil(now.MemoryLimit)
			x.PIDs, x.PIDsLimit = &now.PIDs, orNil(now.PIDsLimit)
			was := earlier[s.Instance+s.StartedAt.UTC().Format(time.RFC3339Nano)]
			if was == nil {
				was = &runtime.Stats{At: now.At} // no time has passed: no rate
			}
			x.CPUPercent = rate(100*was.CPU.Seconds(), 100*seconds, now.At.Sub(was.At))
			if now.Net != nil {
				x.Network = &TopTraffic{Received: now.Net.Received, Sent: now.Net.Sent}
				if was.Net != nil {
					x.Network.ReceivedPerSecond = rate(float64(was.Net.Received), float64(now.Net.Received), now.At.Sub(was.At))
					x.Network.SentPerSecond = rate(float64(was.Net.Sent), float64(now.Net.Sent), now.At.Sub(was.At))
				}
			}
		}
		top.Sandboxes = append(top.Sandboxes, x)
	}
	return top
}

// rate is how much a counter has grown per second; nil when no time has passed, or the
// counter began anew.
func rate(was, is float64, in time.Duration) *float64 {
	if in <= 0 || is < was {
		return nil
	}
	per := (is - was) / in.Seconds()
	return &per
}

// orNil is a pointer to v, nil for the zero value.
func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
