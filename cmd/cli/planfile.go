package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/renameio/v2"

	"pinfold/reconcile"
)

// writePlan saves a plan, whole or not at all.
func writePlan(path string, saved *reconcile.PlanFile) error {
	content, err := json.Marshal(saved)
	if err != nil {
		return fmt.Errorf("cannot save the plan: %w", err)
	}
	if err := renameio.WriteFile(path, append(content, '\n'), 0o600, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("cannot save the plan: %w", err)
	}
	return nil
}

// readPlan reads what writePlan wrote.
func readPlan(path string) (*reconcile.PlanFile, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return nil, failure(path+" is a directory, not a saved plan", "To work in another directory write 'pinfold -chdir=%s apply'.", path)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the saved plan: %w", err)
	}
	var saved reconcile.PlanFile
	decoder := json.NewDecoder(bytes.NewReader(content))
	err = decoder.Decode(&saved)
	switch {
	case err != nil, saved.FormatVersion == "", saved.Result.Plan == nil:
		return nil, failure(path+" is not a saved plan", "Make one with 'pinfold plan -out FILE'.")
	case saved.FormatVersion != reconcile.PlanFileVersion:
		return nil, failure(fmt.Sprintf("%s is a saved plan of format %q", path, saved.FormatVersion), "This pinfold reads format %q; make the plan again with it.", reconcile.PlanFileVersion)
	}
	return &saved, nil
}
