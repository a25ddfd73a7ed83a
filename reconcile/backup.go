package reconcile

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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
	// Advice says what to do about a state that is not sound, in lines.
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
	File   string
	Force  bool // also one of another lineage, where nothing of this one is left
	DryRun bool // say what would be, change nothing
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
	// BackupAt is when the backup was made, or the last that it tells of happened
	// where its name does not say; null: not known. What was changed, renewed or
	// held since then is forgotten.
	BackupAt *time.Time `json:"backup_at"`
	// Unrecorded are the instances on this host that it knows nothing of.
	Unrecorded []string `json:"unrecorded"`
}

// documentCheck tells which documents cannot be read as what they are.
func documentCheck() state.Check {
	known := newDocuments()
	return func(bucket, key string, doc []byte) error {
		_, err := known.read(bucket, key, doc)
		return err
	}
}

// documents reads those of a whole state, in the order in which they lie there:
// blocks come before the sandboxes that stand on them.
type documents struct{ blocks blocks }

func newDocuments() *documents { return &documents{blocks{known: map[string]*block{}}} }

// read returns the document as what it is in its bucket; nil in one that is not known.
func (d *documents) read(bucket, key string, doc []byte) (v any, err error) {
	switch bucket {
	case state.Blocks:
		var s storedBlock
		if err := json.Unmarshal(doc, &s); err != nil {
			return nil, err
		}
		d.blocks.known[key], err = blockOf(s, nil)
		return nil, err
	case state.Sandboxes:
		rec := new(plan.Sandbox)
		return rec, d.blocks.decode(doc, rec)
	case state.Networks:
		v = new(plan.Network)
	case state.Volumes:
		v = new(plan.Volume)
	case state.Images:
		v = new(plan.Image)
	case state.Outputs:
		out := new(config.Output)
		return out, decodeOutput(nil, doc, out)
	case state.Ended:
		v = new(plan.Ended)
	case state.Journal:
		v = new(Intent)
	case state.History:
		v = new(Event)
	default:
		return nil, nil
	}
	return v, json.Unmarshal(doc, v)
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
	if left, what, err := bereaved(o.StateDir); err != nil {
		return nil, errorOf(err)
	} else if what != "" {
		return verifiedState(&state.Report{
			Path: statePath(o.StateDir), Lineage: left.Lineage, Documents: map[string]int{},
			Problems: []string{"it is missing, but " + what + " are in " + o.StateDir},
		}, false), nil
	}
	r, err := state.Verify(ctx, state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait}, documentCheck())
	if err != nil {
		return nil, errorOf(servedElsewhere(err, o))
	}
	res := verifiedState(r, false)
	if err := atOdds(o.StateDir, r.Lineage); err != nil {
		problem, advice, _ := strings.Cut(err.Error(), "\n")
		res.Sound, res.Problems = false, append(res.Problems, problem)
		res.Advice = strings.TrimPrefix(res.Advice+"\n"+advice, "\n")
	}
	return res, nil
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
	return verifiedState(r, e.by == byAgent), nil
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

// verifiedState adds what can be done for the state; served: an agent has it.
func verifiedState(r *state.Report, served bool) *VerifyResult {
	res := verified(r)
	dir := filepath.Dir(r.Path)
	backup := state.NewestSound(dir)
	if backup != nil {
		res.Backup = &backup.Path
	}
	if !res.Sound {
		res.Advice = state.Recovery(dir, backup, served)
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
	file, err := filepath.Abs(r.File)
	if err != nil {
		return nil, errorOf(fmt.Errorf("cannot tell where %s is: %w", r.File, err))
	}
	here, err := instancesIn(o.StateDir)
	if err != nil {
		return nil, errorOf(err)
	}
	var told testimony
	done, err := state.Restore(ctx, state.Options{Dir: o.StateDir, Verb: o.Verb, Wait: o.LockWait}, state.Restoration{
		Backup: r.File, Lineage: lineage, Force: r.Force, DryRun: r.DryRun, Check: told.check(),
		Fill: func(tx state.Tx) error { return told.restored(tx, file, time.Now()) },
	})
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
	if at := cmp.Or(done.Backup.At, told.last); !at.IsZero() {
		at = at.UTC()
		res.BackupAt = &at
	}
	res.Unrecorded = told.unrecorded(here)
	return res, nil
}

// testimony is what a backup tells of, heard while it is checked.
type testimony struct {
	sandboxes []plan.Sandbox
	last      time.Time // the newest event
}

func (x *testimony) check() state.Check {
	hear := x.hear()
	return func(bucket, key string, doc []byte) error {
		_, err := hear(bucket, key, doc)
		return err
	}
}

// hear reads documents, blocks first.
func (x *testimony) hear() func(bucket, key string, doc []byte) (any, error) {
	known := newDocuments()
	return func(bucket, key string, doc []byte) (any, error) {
		into, err := known.read(bucket, key, doc)
		if err != nil {
			return nil, err
		}
		switch v := into.(type) {
		case *plan.Sandbox:
			x.sandboxes = append(x.sandboxes, *v)
		case *Event:
			if v.At.After(x.last) {
				x.last = v.At
			}
		}
		return into, nil
	}
}

// restored notes in the history of each sandbox that its record is an older one.
func (x *testimony) restored(tx state.Tx, file string, now time.Time) error {
	for _, rec := range x.sandboxes {
		ev := Event{At: now, Type: "restored", Address: rec.Address, UID: rec.UID, Reason: "state restored", Message: "its record is that of " + file, By: byOperator}
		if rec.Instance != nil {
			ev.Instance = rec.Instance.ID
		}
		doc, err := json.Marshal(ev)
		if err != nil {
			return err
		}
		if _, err := tx.Append(state.History, doc); err != nil {
			return err
		}
	}
	return nil
}

// unrecorded are those of the instances that no sandbox has.
func (x *testimony) unrecorded(instances []string) []string {
	known := map[string]bool{}
	for _, rec := range x.sandboxes {
		if rec.Instance != nil {
			known[rec.Instance.ID] = true
		}
		for _, id := range rec.Past() {
			known[id] = true
		}
	}
	ids := []string{}
	for _, id := range instances {
		if !known[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

// instancesIn lists the instances that have a directory in the state dir.
func instancesIn(stateDir string) (ids []string, err error) {
	dir := filepath.Join(stateDir, "instances")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot list what is in %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.IsDir() && instanceName.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// instanceName is the name of an instance's directory; others there are not ours.
var instanceName = regexp.MustCompile(`^[0-9a-f]{12}$`)

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
	if r.Lineage == "" { // a damaged one is refused with its own words
		return left.Lineage, nil
	}
	return left.Lineage, ownLineage(stateDir, file, r.Lineage)
}

// ownLineage refuses to restore what is of another lineage than the instances and
// volumes that lie in the state dir.
func ownLineage(stateDir, file, lineage string) error {
	left, err := host.LeftIn(stateDir)
	if err != nil || len(left.Instances)+left.Volumes == 0 || left.Lineage == lineage {
		return err
	}
	return &Error{Kind: Invalid, Message: fmt.Sprintf(
		"cannot restore %s: it is of lineage %s, but in %s are instances or volumes of lineage %s, which it would neither know nor own; take a backup of that one, or give another -state-dir and -run-dir; nothing was changed",
		file, lineage, stateDir, left.Lineage)}
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
			e.complain("state", "daily backup", err)
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

// Backups are those of a state dir, newest first.
func Backups(stateDir string) ([]state.BackupFile, error) { return state.Backups(stateDir) }
