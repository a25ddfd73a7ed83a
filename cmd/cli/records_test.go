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

func (e *engine) Drift(_ context.Context, r reconcile.DriftRequest) (*reconcile.DriftResult, error) {
	e.drift = &r
	return &reconcile.DriftResult{Drift: e.differs}, e.err
}

func (e *engine) Pull(context.Context) (*reconcile.StateDocument, error) {
	return &reconcile.StateDocument{FormatVersion: "1", Lineage: "l"}, e.err
}
