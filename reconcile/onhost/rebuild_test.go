package onhost

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// rest ends the agent in order and opens the state in this process instead.
func (w *world) rest() {
	w.Helper()
	w.must(w.Service.Close())
	w.kill()
}

// The state is lost under running sandboxes: what lies beside them and what the
// kernel says makes it again. No process is touched, and the plan is empty.
func TestALostStateIsMadeAnew(t *testing.T) {
	w := newWorld(t)
	files := "network \"n\" {}\nvolume \"v\" {}\n" +
		box("a", "echo one > /data/f; exec sleep 1000", "network { name = network.n }\nmount {\n volume = volume.v\n path = \"/data\"\n}\nlifetime { ttl = \"8h\" }") +
		box("b", "exec sleep 1000", "") + box("c", "exit 4", "") + box("d", "exec sleep 1000", "")
	w.apply(files)
	w.act("pause", "b")
	w.act("stop", "d")
	w.phase("c", plan.Stopped)
	before := map[string]reconcile.SandboxView{}
	for _, name := range []string{"a", "b", "c", "d"} {
		before[name] = w.view(name)
	}
	w.rest()
	db := filepath.Join(w.dir, "state", "state.db")
	w.must(os.WriteFile(db, bytes.Repeat([]byte("gone "), 5000), 0o600))

	if _, err := reconcile.Open(w.ctx, w.options("list")); err == nil {
		t.Fatal("a damaged state was opened")
	}
	other := w.options("state rebuild")
	other.RunDir += "-another"
	if _, err := reconcile.Rebuild(w.ctx, other, reconcile.RebuildRequest{}); err == nil || !strings.Contains(err.Error(), "give -run-dir "+filepath.Join(w.dir, "run")) {
		t.Errorf("a rebuild with another run dir: %v", err)
	}
	w.must(os.RemoveAll(other.RunDir))
	res, err := reconcile.Rebuild(w.ctx, w.options("state rebuild"), reconcile.RebuildRequest{})
	w.must(err)
	if len(res.Records) != 7 || res.Aside == "" {
		t.Errorf("rebuilt %+v, damaged file at %q", res.Records, res.Aside)
	}
	if _, err := reconcile.Rebuild(w.ctx, w.options("state rebuild"), reconcile.RebuildRequest{}); err == nil || !strings.Contains(err.Error(), "in order") {
		t.Errorf("a second rebuild: %v", err)
	}
	w.serve()
	for name, want := range before {
		got := w.view(name)
		if got.Phase != want.Phase || *got.InstanceID != *want.InstanceID || (want.PID != nil && (got.PID == nil || *got.PID != *want.PID)) {
			t.Errorf("%s is %+v, was %+v", name, got, want)
		}
		if (got.ExpiresAt == nil) != (want.ExpiresAt == nil) || want.ExpiresAt != nil && !got.ExpiresAt.Equal(*want.ExpiresAt) {
			t.Errorf("%s ends at %v, was to end at %v", name, got.ExpiresAt, want.ExpiresAt)
		}
	}
	src, diags := config.Load(filepath.Join(w.dir, "config"), config.Inputs{})
	if diags.HasErrors() {
		t.Fatal(diags)
	}
	p, err := w.Plan(w.ctx, reconcile.PlanRequest{Source: src})
	w.must(err)
	if !p.Plan.Empty() {
		t.Errorf("after a rebuild there is something to do:\n%s", p.Plan)
	}
	w.says("a", "cat /data/f", "one\n")
}

// gc on the kernel: what bears the lineage's mark and is on no record is told of,
// what does not is never touched, also under our names.
func TestGCTouchesNothingUnmarked(t *testing.T) {
	w := newWorld(t)
	w.apply(box("a", "exec sleep 1000", ""))
	stranger := filepath.Join(w.dir, "state", "instances", "0123456789ab")
	w.must(os.MkdirAll(stranger, 0o755))
	w.must(os.WriteFile(filepath.Join(stranger, "mine"), []byte("keep"), 0o644))
	t.Cleanup(func() { os.RemoveAll(stranger) })
	if _, err := w.sh("a", "true"); err != nil {
		t.Fatal(err)
	}
	res, err := w.GC(w.ctx, reconcile.GCRequest{})
	w.must(err)
	if slices.ContainsFunc(res.Orphans, func(o reconcile.Orphan) bool { return o.Action == reconcile.OrphanRemoved }) {
		t.Errorf("gc removed %+v", res.Orphans)
	}
	if b, err := os.ReadFile(filepath.Join(stranger, "mine")); err != nil || string(b) != "keep" {
		t.Errorf("the stranger's file says %q, %v", b, err)
	}
	w.phase("a", plan.Running)
}
