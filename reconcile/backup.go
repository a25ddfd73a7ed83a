package reconcile

import (
	"os"

	"pinfold/state"
)

func (s emptyStore) Verify(state.Check) (*state.Report, error)        { return nil, s.Update(nil) }
func (s emptyStore) BackupDaily() (*state.Report, error)              { return nil, nil }
func (s emptyStore) Backup() (*state.Report, error)                   { return nil, s.Update(nil) }
func (s emptyStore) BackupTo(*os.File, string) (*state.Report, error) { return nil, s.Update(nil) }
