package reconcile

import (
	"pinfold/state"
)

func (s emptyStore) Verify(state.Check) (*state.Report, error) {
	return nil, s.Update(nil)
}
