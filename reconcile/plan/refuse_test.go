package plan

import (
	"testing"
	"time"

	"pinfold/config"
)

// A refusal points at the line of the files that caused it.
func TestRefusalsPointAtTheirPlace(t *testing.T) {
	const file = "main.hcl"
	at := func(line int) config.Position { return config.Position{File: file, Line: line} }
	places := func(r *config.Resource[config.Sandbox]) {
		r.Source = at(1)
		r.Blocks = map[string]config.Position{"volume.work": at(10), "port.http": at(20)}
		r.Sources = map[string]config.Position{
			"volume.work.path": at(11), "shutdown_time": at(30), "lifetime.ttl": at(31), "lifecycle.prevent_destroy": at(40),
		}
	}
	prevented := func(r *config.Resource[config.Sandbox]) { places(r); r.Lifecycle.PreventDestroy = true }
	elsewhere := claim("work")
	moved := func(s *config.Sandbox) { elsewhere(s); s.Volumes["work"] = config.Claim{Path: "/moved"} }
	limit := func(w *world) *world { w.Limits.MaxLifetime = time.Hour; return w }

	for name, c := range map[string]struct {
		world *world
		line  int
	}{
		"claim added":      {newWorld().record("sandbox.a", spec()).declare("sandbox.a", spec(claim("work")), places), 10},
		"claim moved":      {newWorld().record("sandbox.a", spec(claim("work"))).declare("sandbox.a", spec(moved), places), 11},
		"claim removed":    {newWorld().record("sandbox.a", spec(claim("old"))).declare("sandbox.a", spec(), places), 1},
		"no deadline":      {limit(newWorld().declare("sandbox.a", spec(), places)), 1},
		"ttl too long":     {limit(newWorld().declare("sandbox.a", spec(ttl(2*time.Hour)), places)), 31},
		"time too late":    {limit(newWorld().declare("sandbox.a", spec(shutdown(t0.Add(2*time.Hour))), places)), 30},
		"time passed":      {newWorld().declare("sandbox.a", spec(shutdown(t0.Add(-time.Hour))), places), 30},
		"not replaced":     {newWorld().record("sandbox.a", spec()).declare("sandbox.a", spec(userns(false)), prevented), 40},
		"not destroyed":    {newWorld().record("sandbox.a", spec()).declare("sandbox.a", spec(), prevented).with(func(o *Options) { o.Destroy = true }), 40},
		"block is no more": {newWorld().record("sandbox.a", spec(), func(s *Sandbox, _ *Seen) { s.Lifecycle.PreventDestroy = true }), 0},
	} {
		diags := Make(c.world.Input).Diags
		if len(diags) != 1 {
			t.Errorf("%s: %v", name, diags)
			continue
		}
		switch r := diags[0].Range; {
		case r == nil && c.line == 0:
		case r == nil || r.File != file || r.Start.Line != c.line:
			t.Errorf("%s: at %+v, want line %d", name, r, c.line)
		}
	}
}
