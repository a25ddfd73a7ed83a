package view

import (
	"testing"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func TestDriftView(t *testing.T) {
	p := everyAction().Plan
	some := &reconcile.DriftResult{Drift: p.Drift, Changes: []plan.Change{p.Changes[0], p.Changes[12]}, Ignored: 2, Notes: []string{"instance x is alive"}}
	golden(t, "drift.txt", shown(false, 0, func(s *Screen) { s.Drift(some) }))
	golden(t, "drift_none.txt", shown(false, 0, func(s *Screen) { s.Drift(&reconcile.DriftResult{}) }))
	golden(t, "drift_left.txt", shown(false, 0, func(s *Screen) { s.Drift(&reconcile.DriftResult{Drift: p.Drift[:1], Ignored: 1}) }))
}

// recorded are records of each kind.
func recordedResult() *reconcile.RecordsResult {
	s := &plan.Sandbox{
		Address: `sandbox.w["a"]`, UID: "8b123ff9267987f5", Generation: 3, CreatedAt: now.Add(-2e12),
		Spec:      config.Sandbox{Image: "image.base", Command: []string{"sleep", "1d"}, Env: map[string]string{"WHO": "a"}, OperatingMode: "running", Files: map[string]config.File{"/etc/a": {Content: "one\ntwo\n"}}},
		DependsOn: []string{"image.base", "network.n"}, Lifecycle: config.Lifecycle{PreventDestroy: true},
		Hold: &plan.Hold{Mode: "suspended", By: "operator", At: now.Add(-1e12)}, Lease: plan.Lease{Start: now.Add(-2e12), Until: now.Add(1e12)},
		Ports: map[string]plan.Port{"http": {Container: 80, Host: 40001, Address: "127.0.0.1", Protocol: "tcp"}}, Claim: map[string]string{"work": "c0ffee00"},
		Instance: &plan.Instance{ID: "05f77f0c63b6", Phase: plan.Stopped, CreatedAt: now.Add(-2e12), StartedAt: now.Add(-2e12), StoppedBy: "stop", Outcome: &plan.Outcome{Signal: 15, Reason: "stopped", At: now}},
	}
	return &reconcile.RecordsResult{
		Records: plan.Records{
			Lineage: "l", Serial: 9,
			Sandboxes: map[string]*plan.Sandbox{s.Address: s, "sandbox.w[10]": {Address: "sandbox.w[10]"}, "sandbox.w[9]": {Address: "sandbox.w[9]"}},
			Networks:  map[string]*plan.Network{"network.n": {Address: "network.n", ID: "e061a335", Spec: config.Network{Internet: true}}},
			Volumes:   map[string]*plan.Volume{"volume.v": {Address: "volume.v", ID: "0badf00d"}},
			Images:    map[string]*plan.Image{"image.base": {Address: "image.base", Digest: "host", Spec: config.Image{Source: "host"}}},
		},
		Exports: config.Exports{
			s.Address:   {InstanceID: "05f77f0c63b6", Address: "10.88.0.2", Ports: map[string]config.ExportPort{"http": {Container: 80, Host: 40001}}},
			"network.n": {CIDR: "10.88.0.0/24", Gateway: "10.88.0.1"}, "image.base": {Digest: "host"},
		},
	}
}

func TestRecordView(t *testing.T) {
	r := recordedResult()
	golden(t, "records.txt", shown(false, 0, func(s *Screen) {
		all := ResourcesOf(&r.Records)
		s.Resources(all)
		for _, x := range all {
			d, ok := RecordOf(r, x.Address)
			if !ok {
				t.Fatalf("no record of %s", x.Address)
			}
			s.Printf("\n")
			s.Record(d)
		}
		d, _ := RecordOf(r, `sandbox.w["a"]`)
		d.Spec, d.Sensitive = config.Redact("", d.Spec, []string{"env"}), []string{"env"}
		s.Printf("\n")
		s.Record(d)
	}))
	if _, ok := RecordOf(r, "sandbox.none"); ok {
		t.Error("a record of nothing")
	}
}
