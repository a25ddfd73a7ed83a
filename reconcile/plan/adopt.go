package plan

import (
	"maps"
	"slices"

	"pinfold/config"
)

// Adopt is what a change that carries After does to the record, beside what its
// action does to the host: the declared spec becomes the recorded one, its
// generation grows, the lease follows an edited ttl. r is the declaration with
// everything known. Attributes under ignore_changes keep their recorded values, once
// there is an instance that was made with them.
//
// A process that goes on running (an update in place) has the new generation;
// one that is to be restarted or started gets it from whoever starts it.
func Adopt(rec *Sandbox, r *config.Resource[config.Sandbox], c *Change) {
	spec, _ := ignore(&rec.Spec, &r.Spec, ignored(rec, r.Lifecycle), nil)
	if !sameSandbox(&rec.Spec, spec) {
		restart := false
		for _, d := range diffSandbox(&rec.Spec, spec) {
			restart = restart || d.class >= Restart
		}
		rec.Generation++
		if i := rec.Instance; i != nil && !restart && i.RunningSpec == rec.Generation-1 {
			i.RunningSpec = rec.Generation
		}
		rec.Retry, rec.Restarts = Retry{}, Retry{}
	}
	rec.Lease = rec.Lease.WithTTL(spec.Lifetime.TTL)
	rec.Spec, rec.Lifecycle, rec.DependsOn, rec.Sources = *spec, r.Lifecycle, r.DependsOn, r.Sources
	adoptSensitive(rec, r)
	if c.Revive {
		Revive(rec)
	}
}

// ignored are the attributes whose changes are not taken over. What has no instance,
// not yet or because it could not be made, is made as it is declared.
func ignored(rec *Sandbox, l config.Lifecycle) []string {
	if rec.Instance == nil {
		return nil
	}
	return l.IgnoreChanges
}

// adoptSensitive takes over what is sensitive in the declared spec. Where a value
// stays as recorded (ignore_changes), it stays as sensitive, and as unreadable.
func adoptSensitive(rec *Sandbox, r *config.Resource[config.Sandbox]) {
	names := ignored(rec, r.Lifecycle)
	kept := func(path string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return name == "all" || covers(name, path) })
	}
	sensitive := slices.Clone(r.Sensitive)
	for _, path := range rec.Sensitive {
		if kept(path) && !slices.Contains(sensitive, path) {
			sensitive = append(sensitive, path)
		}
	}
	slices.Sort(sensitive)
	rec.Sensitive = sensitive
	unreadable := maps.Clone(rec.Unreadable)
	maps.DeleteFunc(unreadable, func(name, _ string) bool { return !kept(name) })
	rec.Unreadable = unreadable
}

// Revive is what a change with Revive does to the record, with a declared spec
// (Adopt does it then) or without: the sandbox is no longer expired.
func Revive(rec *Sandbox) {
	EndPause(rec)
	rec.Expired, rec.Retry = nil, Retry{}
}

// EndPause is what becomes of a record when its sandbox is not paused by expiry
// any more, without having been resumed: the files revived it, or it is stopped or
// destroyed. Its lease is what it was before the pause, expiry's hold goes. It
// changes nothing of any other record.
func EndPause(rec *Sandbox) {
	if rec.Expired == nil || !rec.Expired.Paused {
		return
	}
	ex := *rec.Expired
	ex.Paused = false
	rec.Expired, rec.Hold, rec.Lease = &ex, rec.Hold.without("expiry"), rec.Lease.unpaused()
}

// without is the hold that is left when one by the given party ends: the one
// that it lies over.
func (h *Hold) without(by string) *Hold {
	for h != nil && h.By == by {
		h = h.Under
	}
	return h
}
