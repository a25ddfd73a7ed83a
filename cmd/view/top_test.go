package view

import (
	"bytes"
	"testing"
	"time"

	"pinfold/reconcile"
)

func someTop() *reconcile.TopResult {
	return &reconcile.TopResult{FormatVersion: "1", At: now, Seconds: 2, Sandboxes: []reconcile.SandboxTop{
		{
			Address: `sandbox.worker["a"]`, InstanceID: ptr("0123456789ab"), Phase: "running", StartedAt: ptr(now.Add(-26 * time.Hour)),
			CPUPercent: ptr(12.34), CPUSeconds: ptr(99.5), CPULimit: ptr(0.5), Memory: ptr(int64(24 << 20)), MemoryLimit: ptr(int64(256 << 20)),
			PIDs: ptr(int64(12)), PIDsLimit: ptr(int64(128)),
			Network: &reconcile.TopTraffic{Received: 4096, Sent: 9, ReceivedPerSecond: ptr(2048.0), SentPerSecond: ptr(0.0)},
		},
		{
			Address: "sandbox.db", Phase: "paused", StartedAt: ptr(now.Add(-90 * time.Second)),
			CPUPercent: ptr(0.0), Memory: ptr(int64(1 << 30)), PIDs: ptr(int64(3)),
		},
		{Address: "sandbox.new", Phase: "running", StartedAt: ptr(now), Memory: ptr(int64(512)), PIDs: ptr(int64(200))},
		{Address: "sandbox.off", Phase: "stopped"},
		{Address: "sandbox.bad", Phase: "running", Unknown: ptr("the cgroup\x1b[2J is gone")},
	}}
}

func TestTop(t *testing.T) {
	for name, width := range map[string]int{"top": 0, "top-80": 80, "top-40": 40} {
		var out bytes.Buffer
		s := &Screen{W: &out, Width: width}
		s.Top(someTop())
		golden(t, name+".txt", out.Bytes())
	}
	var out bytes.Buffer
	(&Screen{W: &out}).Top(&reconcile.TopResult{})
	if out.String() != "No sandbox has a process.\n" {
		t.Errorf("%q", out.String())
	}
}

func TestSortTop(t *testing.T) {
	for order, want := range map[string]string{
		"name":   `sandbox.bad sandbox.db sandbox.new sandbox.off sandbox.worker["a"] `,
		"cpu":    `sandbox.worker["a"] sandbox.db sandbox.bad sandbox.new sandbox.off `,
		"memory": `sandbox.db sandbox.worker["a"] sandbox.new sandbox.bad sandbox.off `,
		"pids":   `sandbox.new sandbox.worker["a"] sandbox.db sandbox.bad sandbox.off `,
	} {
		top, got := someTop(), ""
		SortTop(top, order)
		for _, x := range top.Sandboxes {
			got += x.Address + " "
		}
		if got != want {
			t.Errorf("%s: %s, want %s", order, got, want)
		}
	}
}
