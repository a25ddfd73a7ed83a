package network

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Traffic is how many bytes the sandbox of a process has received and sent over its
// link, as proc_net_dev tells it.
func Traffic(pid int) (received, sent uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	if err != nil {
		return 0, 0, fmt.Errorf("cannot look into a network namespace: %w", err)
	}
	return trafficOf(string(text))
}

// trafficOf finds the sandbox's link in /proc/PID/net/dev. Its line is the name, a
// colon, eight counters of what came in and eight of what went out, bytes first. Of one
// that is gone there is nothing to count.
func trafficOf(table string) (received, sent uint64, err error) {
	for line := range strings.Lines(table) {
		name, counters, ok := strings.Cut(line, ":")
		if !ok || strings.TrimSpace(name) != insideName {
			continue
		}
		f := strings.Fields(counters)
		if len(f) < 9 {
			return 0, 0, fmt.Errorf("the counters of %s have an unknown form: %q", insideName, line)
		}
		if received, err = strconv.ParseUint(f[0], 10, 64); err == nil {
			sent, err = strconv.ParseUint(f[8], 10, 64)
		}
		return received, sent, err
	}
	return 0, 0, nil
}
