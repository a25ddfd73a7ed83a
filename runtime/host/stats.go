package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/opencontainers/cgroups"

	"pinfold/runtime"
	"pinfold/runtime/network"
)

// Stats implements runtime.Host. It reads a dozen small files, none of which takes a
// lock that the sandbox could feel.
func (h *Host) Stats(ctx context.Context, id string) (runtime.Stats, error) {
	rec, err := h.mustRecord(id)
	if err != nil {
		return runtime.Stats{}, err
	}
	running, err := h.loadProcess(id)
	if err != nil {
		return runtime.Stats{}, err
	}
	tree, err := h.cgroupsOf(id)
	if err != nil {
		return runtime.Stats{}, err
	}
	s, err := tree.stats(id)
	if err == nil {
		s.Frozen, err = tree.frozen(id)
	}
	if err == nil && rec.Instance.Net != nil {
		s.Net = &runtime.Traffic{}
		s.Net.Received, s.Net.Sent, err = network.Traffic(running.Process.PID)
	}
	// Last: what was read is this process's if it lives now.
	if alive, aerr := h.alive(running.Process); aerr != nil || !alive || running.Creating {
		return runtime.Stats{}, errors.Join(aerr, fmt.Errorf("instance %s: %w", id, runtime.ErrNotRunning))
	}
	if err != nil {
		return runtime.Stats{}, fmt.Errorf("cannot tell what instance %s uses: %w", id, err)
	}
	return s, nil
}

// stats reads the counters of an instance's cgroup.
func (t *cgroupTree) stats(id string) (runtime.Stats, error) {
	s := runtime.Stats{At: time.Now()}
	if !t.complete(id) { // what is not there would read as zero
		return s, fmt.Errorf("its cgroup is gone")
	}
	m, err := t.manager(id)
	if err != nil {
		return s, err
	}
	read, err := m.Stats(&cgroups.StatsOptions{Controllers: cgroups.CPU | cgroups.Memory | cgroups.Pids})
	if err != nil {
		return s, err
	}
	inactive := "total_inactive_file"
	if t.v2 {
		inactive = "inactive_file"
	}
	memory := &read.MemoryStats
	s.CPU = time.Duration(read.CpuStats.CpuUsage.TotalUsage)
	s.Memory, s.MemoryLimit = working(memory.Usage.Usage, memory.Stats[inactive]), limited(memory.Usage.Limit)
	s.PIDs, s.PIDsLimit = int64(read.PidsStats.Current), limited(read.PidsStats.Limit)
	return s, nil
}

// working is memory in use without the cache that the kernel drops first.
func working(usage, inactive uint64) int64 {
	if inactive > usage {
		return 0
	}
	return int64(usage - inactive)
}

// limited is a limit of the kernel; 0 for none, which version 1 tells by the largest
// number of whole pages.
func limited(n uint64) int64 {
	page := uint64(os.Getpagesize())
	if n >= math.MaxInt64/page*page {
		return 0
	}
	return int64(n)
}
