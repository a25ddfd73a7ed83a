package state

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func noState(path string) error {
	return fmt.Errorf("%w: there is no %s; apply a configuration first, or give the right -state-dir", ErrNoState, path)
}

func notState(path string, why error) error {
	return fmt.Errorf("cannot open state %s: %w: %w; nothing was changed\n%s", path, ErrNotState, why, advice(path, false))
}

// unsound is of a state of ours that cannot be opened.
func unsound(path, why string) error {
	return fmt.Errorf("cannot open state %s: %w: %s; nothing was changed\n%s", path, ErrDamaged, why, advice(path, false))
}

func schemaLater(path string, schema int) error {
	return fmt.Errorf("cannot open state %s: %w: it has schema %d, this pinfold reads schema %d; a newer pinfold wrote it: upgrade pinfold on this host, or use another -state-dir; nothing was changed", path, ErrSchema, schema, Schema)
}

// damaged is of a state that was opened, and cannot be read as it was written.
func (s *store) damaged(what string) error {
	return fmt.Errorf("cannot read state %s: %w: %s\n%s", s.path, ErrDamaged, what, advice(s.path, s.served))
}

// advice says what to do about a state that cannot be read, in lines.
func advice(path string, served bool) string {
	dir := filepath.Dir(path)
	return "'pinfold state verify' tells all that is wrong with it\n" + Recovery(dir, NewestSound(dir), served)
}

// Recovery says how a state comes back, in lines, the way that loses least first:
// anew from the host, else from its newest sound backup if there is one. served:
// an agent has it.
func Recovery(stateDir string, backup *Report, served bool) string {
	var lines []string
	if served {
		lines = append(lines, "stop the agent first, then")
	}
	lines = append(lines, "'pinfold state rebuild' makes the records anew from what is on this host: it keeps everything that runs, as it is now")
	if backup != nil {
		lines = append(lines, fmt.Sprintf("'pinfold state restore %s' goes back to %s (%s): it forgets what was changed, renewed or held since then",
			backup.Path, backup.At.UTC().Format(time.RFC3339), ago(time.Since(backup.At))))
	} else {
		lines = append(lines, fmt.Sprintf("there is no sound backup in %s; 'pinfold state restore FILE' takes one from elsewhere", filepath.Join(stateDir, backupsName)))
	}
	return strings.Join(lines, "\n")
}

// ago is how old a backup is, in the largest unit that fits twice.
func ago(d time.Duration) string {
	switch {
	case d < 0:
		return "by a clock that was ahead"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds ago", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm ago", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", d/time.Hour)
	}
	return fmt.Sprintf("%d days ago", d/(24*time.Hour))
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
