package view

import (
	"testing"

	"pinfold/reconcile"
)

func TestStateRecords(t *testing.T) {
	moved := &reconcile.StateMoveResult{Moved: []reconcile.Readdress{
		{Kind: "image", From: "module.ci.image.base", To: "module.build.image.base"},
		{Kind: "sandbox", From: `module.ci.sandbox.a["x"]`, To: `module.build.sandbox.a["x"]`, ID: "8b2e41f0a7c3"},
	}, Serial: 17}
	removed := &reconcile.StateRemoveResult{Removed: []reconcile.Removed{
		{Kind: "sandbox", Address: "sandbox.a", ID: "8b2e41f0a7c3"}, {Kind: "volume", Address: "volume.models", ID: "3f2a9c01d4e7"},
	}, Serial: 18}
	golden(t, "state_mv.txt", shown(false, 0, func(s *Screen) { s.Moved(moved) }))
	golden(t, "state_rm.txt", shown(false, 0, func(s *Screen) { s.Forgotten(removed) }))
	moved.DryRun, removed.DryRun = true, true
	golden(t, "state_mv_dry.txt", shown(false, 0, func(s *Screen) { s.Moved(moved) }))
	golden(t, "state_rm_dry.txt", shown(false, 0, func(s *Screen) { s.Forgotten(removed) }))
	golden(t, "state_rm.json", shown(false, 0, func(s *Screen) {
		if err := StateRemoveJSON(s, removed); err != nil {
			t.Error(err)
		}
	}))
	golden(t, "state_mv.json", shown(false, 0, func(s *Screen) {
		if err := StateMoveJSON(s, &reconcile.StateMoveResult{}); err != nil {
			t.Error(err)
		}
	}))
}
