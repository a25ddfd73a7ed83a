package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"pinfold/reconcile"
)

// leftOf is what a look (leftovers.Of, leftovers.Settled) finds of a state dir's
// lineage.
func leftOf(look func(short, stateDir, runDir string) ([]string, error), stateDir, runDir string) ([]string, error) {
	lineage, err := os.ReadFile(filepath.Join(stateDir, "lineage"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // nothing was ever made
	}
	if err != nil {
		return nil, err
	}
	return look(reconcile.ShortID(strings.TrimSpace(string(lineage))), stateDir, runDir)
}
