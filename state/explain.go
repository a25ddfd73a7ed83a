package state

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

func noState(path string) error {
	return fmt.Errorf("%w: there is no %s; apply a configuration first, or give the right -state-dir", ErrNoState, path)
}

func notState(path string, why error) error {
	return fmt.Errorf("cannot open state %s: %w: %w; nothing was changed: %s", path, ErrNotState, why, advice(path))
}

func schemaLater(path string, schema int) error {
	return fmt.Errorf("cannot open state %s: %w: it has schema %d, this pinfold reads schema %d; a newer pinfold wrote it: upgrade pinfold on this host, or use another -state-dir; nothing was changed", path, ErrSchema, schema, Schema)
}

func damaged(path, what string) error {
	return fmt.Errorf("cannot read state %s: %w: %s; %s", path, ErrDamaged, what, advice(path))
}

// advice says what to do about a state that cannot be read.
func advice(path string) string {
	dir := filepath.Dir(path)
	return "'pinfold state verify' tells all that is wrong with it; " + Recovery(dir, NewestSound(dir))
}

// Recovery says how a state comes back, from its newest sound backup if there is
// one.
func Recovery(stateDir string, backup *Report) string {
	const anew = "'pinfold state rebuild' makes the records anew from what is on this host"
	if backup == nil {
		return fmt.Sprintf("there is no sound backup in %s; %s, or put a backup from elsewhere in its place with 'pinfold state restore FILE'", filepath.Join(stateDir, backupsName), anew)
	}
	return fmt.Sprintf("'pinfold state restore %s' puts the newest sound backup in its place; without it, %s", backup.Path, anew)
}

// explain wraps an error of bbolt or of the disk with what could not be done.
func explain(path, what string, err error) error {
	if isFull(err) {
		return fmt.Errorf("cannot %s state %s: %w (%v); free space on the file system of %s and try again; what was recorded is still there", what, path, ErrDiskFull, err, filepath.Dir(path))
	}
	return fmt.Errorf("cannot %s state %s: %w", what, path, err)
}

// isFull tells a full disk or an exhausted quota. bbolt passes the text only when
// it is growing the file that fails.
func isFull(err error) bool {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return true
	}
	text := err.Error()
	return strings.Contains(text, unix.ENOSPC.Error()) || strings.Contains(text, unix.EDQUOT.Error())
}

// bare drops the path from an error whose wrapper names it already.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
