package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime/host"
	"pinfold/state"
)

// VerifyResult is `state verify -json`.
type VerifyResult struct {
	FormatVersion string         `json:"format_version"`
	Path          string         `json:"path"`
	Sound         bool           `json:"sound"`
	Size          int64          `json:"size"`
	Schema        int            `json:"schema"`
	Lineage       string         `json:"lineage"`
	Serial        uint64         `json:"serial"`
	Documents     map[string]int `json:"documents"` // how many are sound, by bucket
	Problems      []string       `json:"problems"`
	// Backup is the newest sound one of the state dir; null when there is none, or
	// another file than the state was verified.
	Backup *string `json:"backup"`
	// Advice says what to do about a state that is not sound.
	Advice string `json:"advice,omitempty"`
}

// BackupRequest asks for a copy of the state.
type BackupRequest struct {
	// Path names File in words; empty: the copy goes into the state dir's backups.
	Path string   `json:"path,omitempty"`
	File *os.File `json:"-"` // empty, open for reading and writing
}

// BackupResult is `state backup -json`.
type BackupResult struct {
	FormatVersion string         `json:"format_version"`
	Path          string         `json:"path"`
	Size          int64          `json:"size"`
	Schema        int            `json:"schema"`
	Lineage       string         `json:"lineage"`
	Serial        uint64         `json:"serial"`
	Documents     map[string]int `json:"documents"`
}

// RestoreRequest asks to put a backup in the place of the state.
type RestoreRequest struct {
	File  string
	Force bool // also one of another lineage, where nothing of this one is left
}

// RestoreResult is `state restore -json`.
type RestoreResult struct {
	FormatVersion string         `json:"format_version"`
	Path          string         `json:"path"`
	Backup        string         `json:"backup"`
	Lineage       string         `json:"lineage"`
	Serial        uint64         `json:"serial"` // beyond the backup's and the old one's
	Documents     map[string]int `json:"documents"`
	Aside         *string        `json:"aside"` // where the old file is now; null: there was none
}

// documentCheck tells which documents cannot be read as what they are.
func documentCheck() state.Check {
	known := blocks{known: map[string]*block{}}
	as := func(doc []byte, v any) error { return json.Unmarshal(doc, v) }
	return func(bucket, key string, doc []byte) error {
		switch bucket {
		case state.Blocks: // they come before the sandboxes
			var s storedBlock
			if err := as(doc, &s); err != nil {
				return err
			}
			b, err := blockOf(s)
			known.known[key] = b
			return err
		case state.Sandboxes:
			return known.decode(doc, new(plan.Sandbox))
		case state.Networks:
			return as(doc, new(plan.Network))
		case state.Volumes:
			return as(doc, new(plan.Volume))
		case state.Images:
			return as(doc, new(plan.Image))
		case state.Outputs:
			return as(doc, new(config.Output))
		case state.Ended:
			return as(doc, new(plan.Ended))
		case state.Journal:
			return as(doc, new(Intent))
		case state.History:
			return as(doc, new(Event))
		}
		return nil
	}
}

// Verify reads the whole state file, by the agent that has it open or here, or
// with file another one. It changes nothing.
func Verify(ctx context.Context, o OpenOptions, file string) (*VerifyResult, error) {
	if file != "" {
		r, err := state.VerifyFile(file, documentCheck())
		if err != nil {
			return nil, errorOf(err)
		}
		return verified(r), nil
	}
	if err := o.fill(); err != nil {
		return nil, errorOf(err)
	}
	if agentServes(o) {
		service, err := Open(ctx, o)
		if err != nil {
			return nil, err
		}
		defer service.Close()
		return service.Verify(ctx)
	}
	if err := bereft(o.StateDir); err != nil {
		return nil, errorOf(err)
	}
	r, err := state.Verify(ctx, state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait}, documentCheck())
	if err != nil {
		return nil, errorOf(servedElsewhere(err, o))
	}
	return verifiedState(r), nil
}

// agentServes tells whether an agent answers in the run dir.
func agentServes(o OpenOptions) bool {
	_, ok, err := dial(o.RunDir)
	return ok && err == nil
}

// Verify reads the state file as it is on disk now, whatever memory says.
func (e *Engine) Verify(context.Context) (*VerifyResult, error) {
	r, err := e.store.Verify(documentCheck())
	if err != nil {
		return nil, errorOf(err)
	}
	return verifiedState(r), nil
}

func verified(r *state.Report) *VerifyResult {
	res := &VerifyResult{
		FormatVersion: "1", Path: r.Path, Sound: r.Sound(), Size: r.Size, Schema: r.Schema,
		Lineage: r.Lineage, Serial: r.Serial, Documents: r.Documents, Problems: r.Problems,
	}
	if res.Problems == nil {
		res.Problems = []string{}
	}
	return res
}

// verifiedState adds what can be done for the state.
func verifiedState(r *state.Report) *VerifyResult {
	res := verified(r)
	dir := filepath.Dir(r.Path)
	backup := state.NewestSound(dir)
	if backup != nil {
		res.Backup = &backup.Path
	}
	if !res.Sound {
		res.Advice = state.Recovery(dir, backup)
	}
	return res
}

// Backup copies the last commit, without stopping anybody who changes the state.
func (e *Engine) Backup(_ context.Context, r BackupRequest) (*BackupResult, error) {
	var rep *state.Report
	var err error
	if r.File != nil {
		rep, err = e.store.BackupTo(r.File, r.Path)
	} else {
		rep, err = e.store.Backup()
	}
	if err != nil {
		return nil, errorOf(err)
	}
	return &BackupResult{
		FormatVersion: "1", Path: rep.Path, Size: rep.Size, Schema: rep.Schema,
		Lineage: rep.Lineage, Serial: rep.Serial, Documents: rep.Documents,
	}, nil
}

// Restore puts a backup in the place of the state file, which is moved aside. It
// refuses while an agent or command has the state.
func Restore(ctx context.Context, o OpenOptions, r RestoreRequest) (*RestoreResult, error) {
	if err := o.fill(); err != nil {
		return nil, errorOf(err)
	}
	if os.Geteuid() != 0 {
		return nil, &Error{Kind: Invalid, Message: "cannot restore the state: it is root's; run it with sudo"}
	}
	if agentServes(o) {
		return nil, &Error{Kind: Locked, Message: fmt.Sprintf("an agent in %s has the state %s; stop it, restore, and start it again; nothing was changed", o.RunDir, statePath(o.StateDir))}
	}
	lineage, err := restorable(o.StateDir, r.File)
	if err != nil {
		return nil, errorOf(err)
	}
	done, err := state.Restore(ctx, state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait}, r.File, lineage, r.Force, documentCheck())
	if err != nil {
		return nil, errorOf(servedElsewhere(err, o))
	}
	res := &RestoreResult{
		FormatVersion: "1", Path: statePath(o.StateDir), Backup: r.File,
		Lineage: done.Backup.Lineage, Serial: done.Serial, Documents: done.Backup.Documents,
	}
	if done.Aside != "" {
		res.Aside = &done.Aside
	}
	return res, nil
}

// restorable refuses a backup of another lineage where anything of the state dir's
// own is left, force or not, and returns that lineage.
func restorable(stateDir, file string) (lineage string, err error) {
	left, err := host.LeftIn(stateDir)
	if err != nil {
		return "", err
	}
	if len(left.Instances)+left.Volumes == 0 {
		return left.Lineage, nil
	}
	r, err := state.VerifyFile(file, nil)
	if err != nil {
		return "", err
	}
	if r.Lineage == "" || r.Lineage == left.Lineage { // a damaged one is refused with its own words
		return left.Lineage, nil
	}
	return "", &Error{Kind: Invalid, Message: fmt.Sprintf(
		"cannot restore %s: it is of lineage %s, but in %s are instances or volumes of lineage %s, which it would neither know nor own; take a backup of that one, or give another -state-dir and -run-dir; nothing was changed",
		file, r.Lineage, stateDir, left.Lineage)}
}

// backupTick is how often the agent looks whether a day has begun that has no
// backup yet.
const backupTick = 10 * time.Minute

// keepBackups makes the daily backup while ctx lasts. One that cannot be made is
// complained of, and tried again.
func (e *Engine) keepBackups(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch r, err := e.store.BackupDaily(); {
		case errors.Is(err, state.ErrClosed):
			return
		case err != nil:
			e.complain("state", "no daily backup", err)
		default:
			e.content("state")
			if r != nil {
				e.log.Info("backup made", "path", r.Path, "serial", r.Serial)
			}
		}
	}
}

func (s emptyStore) Verify(state.Check) (*state.Report, error)        { return nil, s.Update(nil) }
func (s emptyStore) BackupDaily() (*state.Report, error)              { return nil, nil }
func (s emptyStore) Backup() (*state.Report, error)                   { return nil, s.Update(nil) }
func (s emptyStore) BackupTo(*os.File, string) (*state.Report, error) { return nil, s.Update(nil) }
