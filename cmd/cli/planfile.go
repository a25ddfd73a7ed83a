package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"pinfold/reconcile"
)

// maxPlan bounds a saved plan that is read, in bytes: it holds the files of its
// configuration twice over, with what functions read.
const maxPlan = 1 << 30

// writeOut writes what a command was asked to put at a path. A file is replaced whole or
// not at all, the one that a symbolic link leads to, not the link. What is there and is
// no file, such as a pipe or /dev/null, is written to and stays what it is.
func writeOut(path string, content []byte, mode fs.FileMode) error {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	info, err := os.Stat(path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && info.IsDir():
		return &fs.PathError{Op: "write", Path: path, Err: errors.New("it is a directory")}
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(content)
		return errors.Join(err, f.Close())
	}
	return renameio.WriteFile(path, content, mode)
}

// writePlan saves a plan.
func writePlan(path string, saved *reconcile.PlanFile) error {
	content, err := json.Marshal(saved)
	if err == nil {
		err = writeOut(path, append(content, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot save the plan: %w", err)
	}
	return nil
}

// readPlan reads what writePlan wrote.
func readPlan(path string) (*reconcile.PlanFile, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, failure(path+" is a directory, not a saved plan", "To work in another directory write 'pinfold -chdir=%s apply'.", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the saved plan: %w", err)
	}
	defer f.Close()
	return decodePlan(path, f)
}

// decodePlan reads a saved plan, and nothing that is not just that.
func decodePlan(path string, from io.Reader) (*reconcile.PlanFile, error) {
	no := failure(path+" is not a saved plan", "Make one with 'pinfold plan -out FILE'.")
	from = &io.LimitedReader{R: from, N: maxPlan}
	var start [1]byte // not more than that of what is something else, such as /dev/zero
	if _, err := io.ReadFull(from, start[:]); err != nil || start[0] != '{' {
		return nil, no
	}
	var saved reconcile.PlanFile
	decoder := json.NewDecoder(io.MultiReader(bytes.NewReader(start[:]), from))
	err := decoder.Decode(&saved)
	switch {
	case err != nil, saved.FormatVersion == "", saved.Result.Plan == nil:
		return nil, no
	case saved.FormatVersion != reconcile.PlanFileVersion:
		return nil, failure(fmt.Sprintf("%s is a saved plan of format %q", path, saved.FormatVersion), "This pinfold reads format %q; make the plan again with it.", reconcile.PlanFileVersion)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, no
	}
	return &saved, nil
}
