package reconcile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"pinfold/runtime/failpoint"
	"pinfold/runtime/host"
	"pinfold/state"
)

// A state belongs to one state dir and, while its sandboxes live, to one run dir:
// what is there of a sandbox that lives is found and released nowhere else.

// metaRunDir is where the state's sandboxes have what lives in a run dir.
const metaRunDir = "run_dir"

// bindRunDir makes the run dir and records it in the state. Another one than
// recorded is refused while anything may live in that one.
func bindRunDir(store state.Store, o OpenOptions) error {
	if store.Lineage() == "" {
		return nil // nothing is there, and nothing will be made
	}
	if err := atOdds(o.StateDir, store.Lineage()); err != nil {
		return err
	}
	var have string
	if err := store.View(func(tx state.Tx) error { have = tx.Meta(metaRunDir); return nil }); err != nil {
		return err
	}
	want := real(o.RunDir)
	if have != "" && have != want {
		lives, err := living(store)
		if err != nil {
			return err
		}
		if len(lives) > 0 {
			return &Error{Kind: Invalid, Message: fmt.Sprintf(
				"state %s belongs to run dir %s, not %s, as long as anything lives there: %s; give -run-dir %s, or stop them there first",
				o.StateDir, have, want, some(lives), have)}
		}
	}
	if o.ReadOnly {
		return nil
	}
	if err := failpoint.Step("engine.rundir.make", func() error { return os.MkdirAll(o.RunDir, 0o700) }); err != nil {
		return fmt.Errorf("cannot make the run dir: %w", err)
	}
	if have == want {
		return nil
	}
	return failpoint.Step("engine.rundir.record", func() error {
		return store.Update(func(tx state.Tx) error { return tx.SetMeta(metaRunDir, want) })
	})
}

// living lists the sandboxes of which something may live on this boot.
func living(store state.Store) ([]string, error) {
	boot, err := host.BootID()
	if err != nil {
		return nil, err
	}
	e := &Engine{store: store}
	if err := e.load(); err != nil {
		return nil, err
	}
	var lives []string
	for address, rec := range e.records.Sandboxes {
		if live(rec) && rec.Instance.BootID == boot || len(rec.Past()) > 0 {
			lives = append(lives, address)
		}
	}
	slices.Sort(lives)
	return lives, nil
}

// some names the first few of a list.
func some(list []string) string {
	const shown = 3
	if more := len(list) - shown; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:shown], ", "), more)
	}
	return strings.Join(list, ", ")
}

// bereft refuses a state dir whose state.db is gone while instances or volumes of
// its lineage are there: a new state would neither know nor own them.
func bereft(stateDir string) error {
	left, what, err := bereaved(stateDir)
	if err != nil || what == "" {
		return err
	}
	return &Error{Kind: Invalid, Message: fmt.Sprintf(
		"%s is missing, but %s are in %s (lineage %s); nothing was changed\n%s\nor begin beside them with another -state-dir and -run-dir",
		statePath(stateDir), what, stateDir, left.Lineage, state.Recovery(stateDir, state.NewestSound(stateDir), false))}
}

// bereaved says what is left in a state dir whose state.db is gone; what is empty
// where state.db is there, or nothing is left.
func bereaved(stateDir string) (left host.Left, what string, err error) {
	path := statePath(stateDir)
	missing := func() bool { _, err := os.Lstat(path); return errors.Is(err, fs.ErrNotExist) }
	if !missing() {
		return left, "", nil
	}
	left, err = host.LeftIn(stateDir)
	if err != nil || len(left.Instances)+left.Volumes == 0 || !missing() { // somebody may just have made it
		return left, "", err
	}
	if len(left.Instances) > 0 {
		return left, "instances of " + some(left.Instances) + ", which may be running,", nil
	}
	return left, "data of its volumes", nil
}

// atOdds refuses a state dir whose file lineage names another state than state.db
// is, while instances or volumes are there: whose they are is not certain.
func atOdds(stateDir, lineage string) error {
	owner, err := host.Owner(stateDir)
	if err != nil || lineage == "" || owner == "" || owner == lineage {
		return err
	}
	left, err := host.LeftIn(stateDir)
	if err != nil || len(left.Instances)+left.Volumes == 0 {
		return err
	}
	file, path := filepath.Join(stateDir, "lineage"), statePath(stateDir)
	return &Error{Kind: Invalid, Message: fmt.Sprintf(`%s and %s disagree: the one says %q, the other is lineage %s; nothing was changed
if somebody changed the file lineage, put back what it said: echo %s >%s
if somebody put another state's state.db there, move that away: 'pinfold state restore FILE' or 'pinfold state rebuild' then brings back the right one`,
		file, path, owner, lineage, lineage, file)}
}
