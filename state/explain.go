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
	return fmt.Errorf("cannot open state %s: %w: %w; nothing was changed: put a backup in its place, or move it away", path, ErrNotState, why)
}

func schemaLater(path string, schema int) error {
	return fmt.Errorf("cannot open state %s: %w: it has schema %d, this pinfold reads schema %d; a newer pinfold wrote it: upgrade pinfold on this host, or use another -state-dir; nothing was changed", path, ErrSchema, schema, Schema)
}

func damaged(path, what string) error {
	return fmt.Errorf("cannot read state %s: %w: %s; put a backup in its place", path, ErrDamaged, what)
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
