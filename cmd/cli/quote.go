package cli

import (
	"context"
	"errors"

	"pinfold/config"
	"pinfold/reconcile"
)

// quoting shows the lines of the configuration that the engine speaks of: it
// plans from values and knows only where they were written.
type quoting struct {
	reconcile.Service
	source *config.Source
}

func (q quoting) Plan(ctx context.Context, r reconcile.PlanRequest) (*reconcile.PlanResult, error) {
	result, err := q.Service.Plan(ctx, r)
	q.plan(result)
	return result, q.error(err)
}

func (q quoting) Apply(ctx context.Context, r reconcile.ApplyRequest, confirm func(*reconcile.PlanResult) (bool, error), progress func(reconcile.Progress)) (*reconcile.ApplyResult, error) {
	result, err := q.Service.Apply(ctx, r, func(p *reconcile.PlanResult) (bool, error) {
		q.plan(p)
		return confirm(p)
	}, progress)
	if result != nil {
		q.plan(&result.PlanResult)
	}
	return result, q.error(err)
}

func (q quoting) plan(r *reconcile.PlanResult) {
	if r == nil {
		return
	}
	r.Diagnostics = q.source.WithSnippets(r.Diagnostics)
	if r.Plan != nil {
		r.Plan.Diags = q.source.WithSnippets(r.Plan.Diags)
	}
}

func (q quoting) error(err error) error {
	if e := (*reconcile.Error)(nil); errors.As(err, &e) {
		e.Diagnostics = q.source.WithSnippets(e.Diagnostics)
	}
	return err
}
