package config

import (
	"strings"
	"testing"
)

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]int{
		"SIGKILL": 9, "KILL": 9, "kill": 9, "sigTerm": 15, "9": 9, "1": 1, "64": 64, "33": 33, "USR1": 10,
		"RTMIN": 34, "SIGRTMIN+3": 37, "rtmax": 64, "RTMAX-1": 63, "SIGRTMIN+0": 34, "SIGRTMAX-30": 34,
	} {
		if got, err := ParseSignal(text); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"SIGTREM": "Did you mean", "trem": `"SIGTERM"`, "0": "from 1 to 64", "65": "from 1 to 64", "-9": "from 1 to 64",
		"": "not a signal", "SIG": "not a signal", "RTMIN+31": "not a signal", "RTMIN-1": "not a signal", "9x": "not a signal",
	} {
		if got, err := ParseSignal(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d, %v; want an error with %q", text, got, err, want)
		}
	}
}

// Each signal is known by its name.
func TestSignalNames(t *testing.T) {
	for n := 1; n <= lastSignal; n++ {
		name := SignalName(n)
		if got, err := ParseSignal(name); err != nil || got != n {
			t.Errorf("%d is %s, which is %d, %v", n, name, got, err)
		}
	}
	names := SignalNames()
	if len(names) != 31 || names[8] != "SIGKILL" {
		t.Errorf("%d names: %v", len(names), names)
	}
}
