package reconcile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/state"
)

// followEvery is how often a followed directory is looked at, and how far apart
// two looks must agree before its content is believed (contract 4.8).
const followEvery = 2 * time.Second

// follower applies what a directory declares, whenever that changes and has
// come to rest. A nil follower follows nothing.
type follower struct {
	e            *Engine
	dir          string // real path
	inputs       config.Inputs
	allowDestroy []string

	mu        sync.Mutex
	stamp     string         // names, sizes and times of the files at the last look
	source    *config.Source // loaded at that look; nil: it did not load
	tried     string         // digest already handed to apply, or refused
	suspended string         // stamp at which -override was given; following rests until it changes
}

func newFollower(e *Engine, dir string, in config.Inputs, allowDestroy []string) (*follower, error) {
	real, err := filepath.Abs(dir)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("cannot follow %s: %v", dir, err)}
	}
	return &follower{e: e, dir: real, inputs: in, allowDestroy: allowDestroy}, nil
}

// loop looks at the directory until ctx ends.
func (f *follower) loop(ctx context.Context) {
	t := time.NewTicker(followEvery)
	defer t.Stop()
	for {
		f.look(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// look applies the directory when it has not changed since the last look and
// what it says was not applied yet.
func (f *follower) look(ctx context.Context) {
	stamp := f.stampNow()
	f.mu.Lock()
	same := stamp == f.stamp
	if f.suspended != "" {
		if stamp == f.suspended {
			f.mu.Unlock()
			return
		}
		f.suspended = ""
	}
	source := f.source
	f.stamp = stamp
	f.mu.Unlock()
	if !same || source == nil {
		loaded, diags := config.Load(f.dir, f.inputs)
		f.mu.Lock()
		f.source = nil
		if !diags.HasErrors() {
			f.source = loaded
		} else if !same {
			f.complain(diags)
		}
		f.mu.Unlock()
		return // believed only at the next look, if nothing moved
	}
	if _, err := os.Stat(filepath.Join(f.dir, ".git", "index.lock")); err == nil {
		return
	}
	f.apply(ctx, source)
}

func (f *follower) complain(diags config.Diagnostics) {
	for _, d := range diags {
		where := ""
		if d.Range != nil {
			where = fmt.Sprintf("%s:%d", d.Range.File, d.Range.Start.Line)
		}
		f.e.log.Error("the followed directory does not load; nothing is changed on its behalf",
			"dir", f.dir, "at", where, "error", d.Summary, "detail", d.Detail)
	}
}

func (f *follower) apply(ctx context.Context, source *config.Source) {
	digest := source.Digest()
	if digest == f.e.appliedDigest() || digest == f.tried {
		return
	}
	f.tried = digest
	req := ApplyRequest{PlanRequest: PlanRequest{Source: source, LockWait: time.Minute}, AutoApprove: true}
	p, err := f.e.prepare(ctx, req.PlanRequest)
	if err == nil && p.Diagnostics.HasErrors() {
		err = &Error{Kind: Invalid, Message: "the plan cannot be applied", Diagnostics: p.Diagnostics}
	}
	if err == nil {
		err = f.guard(p, digest)
	}
	if err == nil {
		_, err = f.e.applyFollowed(ctx, req)
	}
	if err != nil {
		f.e.log.Error("the followed directory is not applied", "dir", f.dir, "digest", digest, "error", err)
		ev := Event{Address: f.dir, Type: "error", Reason: "not applied", Message: err.Error(), By: byAgent}
		if commit := f.e.commit((&write{}).event(ev)); commit != nil {
			f.e.log.Error("cannot record", "error", commit)
		}
		var diags config.Diagnostics
		if x, ok := errorOf(err).(*Error); ok {
			diags = x.Diagnostics
		}
		f.complain(diags)
		return
	}
	f.e.log.Info("applied the followed directory", "dir", f.dir, "digest", digest)
}

// guard is the prune guard (contract 4.9): one change of the directory may not
// delete or replace more than max_destroy of what is recorded.
func (f *follower) guard(p *prepared, digest string) error {
	going := 0
	for _, c := range p.Plan.Changes {
		if (c.Kind == "sandbox" || c.Kind == "volume") && c.Origin == plan.FromFiles &&
			(c.Action == plan.ActDelete || c.Action == plan.ActReplace) {
			going++
		}
	}
	total := len(p.records.Sandboxes) + len(p.records.Volumes)
	if float64(going) <= f.e.settings.MaxDestroy*float64(total) || slices.Contains(f.allowDestroy, digest) {
		return nil
	}
	return &Error{Kind: Conflict, Message: fmt.Sprintf(
		"it would delete or replace %d of %d sandboxes and volumes, more than max_destroy (%g) allows; run pinfold apply in %s, or start the agent with -allow-destroy=%s",
		going, total, f.e.settings.MaxDestroy, f.dir, digest)}
}

// stampNow tells cheaply whether anything in the directory may have changed.
func (f *follower) stampNow() string {
	var b strings.Builder
	add := func(path string) {
		if st, err := os.Stat(path); err == nil {
			fmt.Fprintf(&b, "%s %d %d\n", path, st.Size(), st.ModTime().UnixNano())
		} else {
			fmt.Fprintf(&b, "%s absent\n", path)
		}
	}
	for _, pattern := range []string{"*.hcl", "*.pfvars"} {
		names, _ := filepath.Glob(filepath.Join(f.dir, pattern))
		for _, n := range names {
			add(n)
		}
	}
	f.mu.Lock()
	source := f.source
	f.mu.Unlock()
	if source != nil {
		for _, path := range sortedKeys(source.Reads) {
			if !filepath.IsAbs(path) {
				path = filepath.Join(f.dir, path)
			}
			add(path)
		}
	}
	for _, v := range f.inputs.VarFiles {
		add(v)
	}
	return b.String()
}

// allows refuses an apply that the followed directory would undo at once.
func (f *follower) allows(r *ApplyRequest) error {
	if f == nil || r.Options.RefreshOnly {
		return nil
	}
	if r.Override {
		f.mu.Lock()
		f.suspended = f.stamp
		f.mu.Unlock()
		return nil
	}
	source := r.Source
	if r.Saved != nil {
		source = r.Saved.Source
	}
	if source != nil && source.Dir == f.dir {
		now, diags := config.Load(f.dir, f.inputs)
		if !diags.HasErrors() && now.Digest() == source.Digest() && !r.Options.Destroy {
			return nil
		}
	}
	return &Error{Kind: Conflict, Message: fmt.Sprintf(
		"the agent follows %s and would undo this; change the files there, or use -override to suspend following until they change", f.dir)}
}

// applyFollowed is Apply on behalf of the follower itself.
func (e *Engine) applyFollowed(ctx context.Context, r ApplyRequest) (*ApplyResult, error) {
	if err := e.takeTurn(ctx, r.LockWait); err != nil {
		return nil, err
	}
	defer func() { <-e.applies }()
	p, err := e.prepare(ctx, r.PlanRequest)
	if err != nil {
		return nil, err
	}
	res := &ApplyResult{PlanResult: p.PlanResult}
	return res, e.execute(ctx, p, r, nil, res)
}

func (e *Engine) appliedDigest() string {
	var d string
	_ = e.store.View(func(tx state.Tx) error { d = tx.Meta(metaDigest); return nil })
	return d
}
