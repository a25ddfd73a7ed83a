package plan

import "pinfold/config"

// fail and warn add a diagnostic about address, at the place that caused it.
func (w *walk) fail(address, summary, detail string, at config.Position) {
	w.diagnose("error", address, summary, detail, at)
}

func (w *walk) warn(address, summary, detail string, at config.Position) {
	w.diagnose("warning", address, summary, detail, at)
}

func (w *walk) diagnose(severity, address, summary, detail string, at config.Position) {
	w.plan.Diags = append(w.plan.Diags, diagnostic(severity, address, summary, detail, at))
}

func diagnostic(severity, address, summary, detail string, at config.Position) config.Diagnostic {
	d := config.Diagnostic{Severity: severity, Summary: summary, Detail: detail, Address: address}
	if at.File != "" {
		p := config.Pos{Line: at.Line, Column: 1}
		d.Range = &config.Range{File: at.File, Start: p, End: p}
	}
	return d
}

// guarded refuses to destroy what prevent_destroy protects, and reports whether it did.
func (w *walk) guarded(address string, l config.Lifecycle, what, cause string, at config.Position) bool {
	if !l.PreventDestroy {
		return false
	}
	w.fail(address, address+" may not be "+what,
		"It would be "+what+" ("+cause+"), but lifecycle.prevent_destroy is set. Set prevent_destroy to false and apply first, or leave it out with -exclude="+address+".", at)
	return true
}

// onlyOfSandboxes refuses what only the replacement of a sandbox can be told.
func (w *walk) onlyOfSandboxes() {
	refuse := func(a string, l config.Lifecycle, sources map[string]config.Position, block config.Position) {
		at := func(argument string) config.Position {
			if p, ok := sources["lifecycle."+argument]; ok {
				return p
			}
			return block
		}
		if l.CreateBeforeDestroy {
			w.fail(a, "create_before_destroy of "+a+" is not supported", "Only a sandbox can be replaced after the new one is there. Leave it out.", at("create_before_destroy"))
		}
		if len(l.ReplaceTriggeredBy) > 0 {
			w.fail(a, "replace_triggered_by of "+a+" is not supported", "Only a sandbox can be replaced for a change of something else. Leave it out.", at("replace_triggered_by"))
		}
	}
	for a, d := range w.images {
		refuse(a, d.Lifecycle, d.Sources, d.Source)
	}
	for a, d := range w.networks {
		refuse(a, d.Lifecycle, d.Sources, d.Source)
	}
	for a, d := range w.volumes {
		refuse(a, d.Lifecycle, d.Sources, d.Source)
	}
}

// lifecycle is what guards a resource: the word of the files while it is
// declared, of the record when its block is gone.
func lifecycle[T any](d *config.Resource[T], recorded config.Lifecycle) config.Lifecycle {
	if d != nil {
		return d.Lifecycle
	}
	return recorded
}

// refuseClaims reports claims that differ on an existing sandbox.
func (w *walk) refuseClaims(address string, ds []difference, r *config.Resource[config.Sandbox]) {
	for _, d := range ds {
		if d.class != Refused {
			continue
		}
		name, what := claimName(d.Path), "changed"
		switch {
		case d.Before == nil && !d.Unknown && name == d.Path[len("volume."):]:
			what = "added"
		case d.After == nil && !d.Unknown && name == d.Path[len("volume."):]:
			what = "removed"
		}
		at, written := r.Sources[d.Path]
		if !written {
			if at, written = r.Blocks["volume."+name]; !written {
				at = r.Source
			}
		}
		w.fail(address, "volume claim \""+name+"\" of "+address+" cannot be "+what,
			"A claim is made with its sandbox and cannot change afterwards. Declare a replacement sandbox with the claims it is to have, move the data, then delete "+address+".", at)
	}
}

// claimName is the claim a path below `volume` speaks of.
func claimName(path string) string {
	if len(path) <= len("volume.") {
		return path
	}
	name := path[len("volume."):]
	for _, attribute := range []string{".path", ".read_only"} {
		if n := len(name) - len(attribute); n > 0 && name[n:] == attribute {
			return name[:n]
		}
	}
	return name
}
