package cli

import (
	"context"

	"pinfold/reconcile"
)

func (e *engine) Records(context.Context) (*reconcile.RecordsResult, error) {
	if e.recorded == nil {
		return &reconcile.RecordsResult{}, e.err
	}
	return e.recorded, e.err
}
