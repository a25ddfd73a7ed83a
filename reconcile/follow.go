package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"pinfold/config"
)

const (
	// followEvery is how often a followed directory is looked at, and how far apart
	// two looks must agree before its content is believed: one alone may see files
	// that are still being written.
	followEvery = 2 * time.Second
	// A digest whose apply failed is tried again after this, doubling up to the
	// longest: what it failed for may heal.
	retryMin = followEvery
	retryMax = 5 * time.Minute

	// metaOverride is the digest of the followed directory at the moment an apply
	// with -override went past it; following rests while the directory has it.
	metaOverride = "override"
)

// follower applies what a directory declares, whenever that changes and has
// come to rest. A nil follower follows nothing.
type follower struct {
	e            *Engine
	dir          string // real path
	inputs       config.Inputs
	allowDestroy []string

	mu      sync.Mutex
	stamp   string         // names, sizes and times of the files, taken before source was loaded
	source  *config.Source // what they said; nil: they did not load
	settled bool           // two looks agreed on source
	refused string         // digest that is not to be tried again: the prune guard
	failed  string         // digest whose apply failed
	fails   int
	retryAt time.Time
}

func newFollower(e *Engine, dir string, in config.Inputs, allowDestroy []string) (*follower, error) {
	real, err := filepath.Abs(dir)
	if err == nil {
		real, err = filepath.EvalSymlinks(real)
	}
	if err != nil {
		return nil, &Error{Kind: Invalid, Message: fmt.Sprintf("cannot follow %s: %v", dir, err)}
	}
	if err := e.bound(real, false); err != nil {
		return nil, err
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

// look applies the directory when this look and the one before agree on what it
// says, and that was not applied yet.
func (f *follower) look(ctx context.Context) {
	if gitBusy(f.dir) {
		f.mu.Lock()
		f.settled, f.stamp = false, ""
		f.mu.Unlock()
		return
	}
	stamp := f.stampNow()
	f.mu.Lock()
	// What could not be applied may want files that the stamp does not know of,
	// because they were not there to be read.
	if !f.settled || stamp != f.stamp || f.failed != "" {
		f.load(stamp)
	}
	source, settled := f.source, f.settled
	f.mu.Unlock()
	if settled {
		f.apply(ctx, source)
	}
}

// load reads the directory. What it says is believed when the look before said
// the same.
func (f *follower) load(stamp string) {
	moved := stamp != f.stamp
	loaded, diags := config.Load(f.dir, f.inputs)
	if diags.HasErrors() {
		if moved {
			f.complain(diags)
		}
		f.source, f.settled, f.stamp = nil, false, stamp
		return
	}
	f.settled = f.source != nil && f.source.Digest() == loaded.Digest()
	f.source, f.stamp = loaded, stamp
}

// gitBusy tells whether git is changing the work tree the directory is in.
func gitBusy(dir string) bool {
	for {
		git := filepath.Join(dir, ".git")
		if st, err := os.Lstat(git); err == nil {
			if !st.IsDir() { // a worktree or submodule: the file names the real place
				if text, err := os.ReadFile(git); err == nil {
					if to, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "gitdir: "); ok {
						if !filepath.IsAbs(to) {
							to = filepath.Join(dir, to)
						}
						git = to
					}
				}
			}
			_, err := os.Lstat(filepath.Join(git, "index.lock"))
			return err == nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return false
		}
		dir = up
	}
}

func (f *follower) complain(diags config.Diagnostics) {
	for _, d := range diags {
		where := ""
		if d.Range != nil {
			where = fmt.Sprintf("%s:%d", d.Range.File, d.Range.Start.Line)
		}
		f.e.log.Error("the followed directory cannot be applied; nothing is changed on its behalf",
			"dir", f.dir, "at", where, "error", d.Summary, "detail", d.Detail)
	}
}

func (f *follower) apply(ctx context.Context, source *config.Source) {
	digest := source.Digest()
	now := f.e.now()
	if digest != f.refused {
		f.refused = "" // one that comes back after something else is judged anew
	}
	if digest == f.e.meta(metaDigest) || digest == f.refused || digest == f.e.meta(metaOverride) ||
		(digest == f.failed && now.Before(f.retryAt)) {
		return
	}
	err := f.e.applyFollowed(ctx, f, source)
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		f.failed, f.fails = "", 0
		f.e.content(f.dir)
		f.e.log.Info("applied the followed directory", "dir", f.dir, "digest", digest)
		return
	}
	if errors.Is(err, errGuard) {
		f.refused = digest
	} else {
		if f.failed != digest {
			f.fails = 0
		}
		f.failed = digest
		f.retryAt = f.e.now().Add(min(retryMin<<min(f.fails, 10), retryMax))
		f.fails++
	}
	first := f.e.complain(f.dir, "the followed directory is not applied", err, "digest", digest)
	ev := Event{Address: f.dir, Type: "error", Reason: "not applied", Message: err.Error()}
	if commit := f.e.as(byAgent).commit((&write{}).event(ev)); commit != nil {
		f.e.log.Error("cannot record", "error", commit)
	}
	var e *Error
	if errors.As(err, &e) && first {
		f.complain(e.Diagnostics)
	}
}

// applyFollowed is Apply on behalf of the follower itself.
func (e *Engine) applyFollowed(ctx context.Context, f *follower, source *config.Source) error {
	r := ApplyRequest{PlanRequest: PlanRequest{Source: source}, AutoApprove: true}
	release, err := e.turn.take(ctx, time.Minute, "apply of "+f.dir)
	if err != nil {
		return err
	}
	defer release()
	p, err := e.prepare(ctx, r.PlanRequest)
	if err != nil {
		return err
	}
	if p.Diagnostics.HasErrors() {
		return &Error{Kind: Invalid, Message: "the plan cannot be applied", Diagnostics: p.Diagnostics}
	}
	if err := f.guard(p); err != nil {
		return err
	}
	return e.execute(ctx, p, r, nil, &ApplyResult{PlanResult: p.PlanResult})
}

// errGuard marks a refusal by the prune guard.
var errGuard = errors.New("max_destroy")

// guard is the prune guard: one change of the directory may not
// delete or replace more than max_destroy of what is recorded.
func (f *follower) guard(p *prepared) error {
	going := p.Plan.Losses()
	total := len(p.records.Sandboxes) + len(p.records.Volumes)
	if float64(going) <= f.e.settings.MaxDestroy*float64(total) || slices.Contains(f.allowDestroy, p.Digest) {
		return nil
	}
	return fmt.Errorf("%w: %w", errGuard, &Error{Kind: Conflict, Message: fmt.Sprintf(
		"it would delete or replace %d of %d sandboxes and volumes, more than max_destroy (%g) allows; run pinfold apply in %s, or start the agent with -allow-destroy=%s",
		going, total, f.e.settings.MaxDestroy, f.dir, p.Digest)})
}

// stampNow tells cheaply whether anything that the directory's meaning depends
// on may have changed.
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
		if len(source.Globs) > 0 {
			// A new file anywhere may change what fileset gives: read it all again.
			fmt.Fprintf(&b, "at %d\n", f.e.now().UnixNano())
		}
	}
	for _, v := range f.inputs.VarFiles {
		add(v)
	}
	return b.String()
}

// allows refuses an apply that the followed directory would undo at once.
func (f *follower) allows(r *PlanRequest, override bool) error {
	if f == nil || r.Options.RefreshOnly || override {
		return nil
	}
	if r.Source != nil && r.Source.Dir == f.dir && !r.Options.Destroy {
		now, diags := config.Load(f.dir, f.inputs)
		if !diags.HasErrors() && now.Digest() == r.Source.Digest() {
			return nil
		}
	}
	return &Error{Kind: Conflict, Message: fmt.Sprintf(
		"the agent follows %s and would undo this; change the files there, or use -override to suspend following until they change", f.dir)}
}

// suspend lets following rest until the directory says something else than now.
func (f *follower) suspend() error {
	if f == nil {
		return nil
	}
	now, diags := config.Load(f.dir, f.inputs)
	digest := "broken" // what does not load is not applied anyway
	if !diags.HasErrors() {
		digest = now.Digest()
	}
	return f.e.as(byApply).commit(&write{meta: map[string]string{metaOverride: digest}})
}
