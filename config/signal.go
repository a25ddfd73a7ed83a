package config

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The real-time signals, as kill(1) counts them: the C library keeps the first two.
const (
	firstRealTime = 34
	lastSignal    = 64
)

// ParseSignal reads a signal as kill(1) does: its name in any case, with or without
// SIG, RTMIN+N and RTMAX-N, or its number.
func ParseSignal(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > lastSignal {
			return 0, fmt.Errorf("%q is not a signal: they go from 1 to %d", s, lastSignal)
		}
		return n, nil
	}
	name := "SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if n := int(unix.SignalNum(name)); n != 0 {
		return n, nil
	}
	for n := firstRealTime; n <= lastSignal; n++ {
		if name == SignalName(n) || name == fmt.Sprintf("SIGRTMAX-%d", lastSignal-n) || name == fmt.Sprintf("SIGRTMIN+%d", n-firstRealTime) {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%q is not a signal; write a name such as SIGTERM or HUP, or a number%s", s, didYouMean(name, SignalNames()))
}

// SignalName is a signal's name, SIGKILL for 9; its number where it has none.
func SignalName(n int) string {
	switch name := unix.SignalName(unix.Signal(n)); {
	case name != "":
		return name
	case n == firstRealTime:
		return "SIGRTMIN"
	case n == lastSignal:
		return "SIGRTMAX"
	case n > firstRealTime && n < lastSignal:
		return fmt.Sprintf("SIGRTMIN+%d", n-firstRealTime)
	}
	return strconv.Itoa(n)
}

// SignalNames are the signals with a name of their own, by their numbers.
func SignalNames() (names []string) {
	for n := range firstRealTime {
		if name := unix.SignalName(unix.Signal(n)); name != "" {
			names = append(names, name)
		}
	}
	return names
}
