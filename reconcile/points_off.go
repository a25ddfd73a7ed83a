//go:build !failpoints

package reconcile

import (
	"pinfold/runtime"
	"pinfold/state"
)

func hostWithPoints(h runtime.Host) runtime.Host { return h }
func storeWithPoints(s state.Store) state.Store  { return s }
