package cli

import (
	"context"
	"errors"
	"slices"

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
	q.plan(ctx, &r, result)
	return result, q.error(ctx, &r, err)
}

func (q quoting) Apply(ctx context.Context, r reconcile.ApplyRequest, confirm func(*reconcile.PlanResult) (bool, error), progress func(reconcile.Progress)) (*reconcile.ApplyResult, error) {
	result, err := q.Service.Apply(ctx, r, func(p *reconcile.PlanResult) (bool, error) {
		q.plan(ctx, &r.PlanRequest, p)
		return confirm(p)
	}, progress)
	if result != nil {
		q.plan(ctx, &r.PlanRequest, &result.PlanResult)
	}
	return result, q.error(ctx, &r.PlanRequest, err)
}

func (q quoting) plan(ctx context.Context, asked *reconcile.PlanRequest, r *reconcile.PlanResult) {
	if r == nil {
		return
	}
	r.Diagnostics = q.source.WithSnippets(r.Diagnostics)
	lists := []config.Diagnostics{r.Diagnostics}
	if r.Plan != nil {
		r.Plan.Diags = q.source.WithSnippets(r.Plan.Diags)
		lists = append(lists, r.Plan.Diags)
	}
	q.suggest(ctx, asked, lists...)
}

// suggest adds to errors about addresses of -target and its like that name nothing
// the most alike of what is declared and recorded.
func (q quoting) suggest(ctx context.Context, asked *reconcile.PlanRequest, lists ...config.Diagnostics) {
	given := slices.Concat(asked.Options.Targets, asked.Options.Excludes, asked.Options.Replace)
	hints := map[string]string{} // by summary: several lists may have the same error
	var names, sandboxes []string
	for _, all := range lists {
		for i := range all {
			summary := all[i].Summary
			at := slices.IndexFunc(given, func(a string) bool {
				return summary == "there is no "+a || summary == "there is no sandbox "+a
			})
			if at < 0 {
				continue
			}
			if names == nil {
				names, sandboxes = q.names(ctx)
			}
			if _, known := hints[summary]; !known {
				fit := names
				if summary == "there is no sandbox "+given[at] {
					fit = sandboxes
				}
				hints[summary] = didYouMean(given[at], fit, "")
			}
			all[i].Summary += hints[summary]
		}
	}
}

// names are the addresses of what is declared and of the sandboxes that are
// recorded, those of several instances without their key, too, and of the modules
// they are in; sandboxes those of the sandboxes alone.
func (q quoting) names(ctx context.Context) (names, sandboxes []string) {
	var others []string
	if desired, _ := q.source.Evaluate(config.Settings{}, nil); desired != nil {
		sandboxes, others = addressesOf(desired, true), addressesOf(desired, false)
	}
	if all, err := q.List(ctx); err == nil {
		for _, x := range all.Sandboxes {
			sandboxes = append(sandboxes, x.Address)
		}
	}
	all := slices.Concat(sandboxes, others)
	return append(withWhole(all), modulesOver(all)...), withWhole(sandboxes)
}

// withWhole adds to addresses those without their keys.
func withWhole(names []string) []string {
	all := slices.Clone(names)
	for _, name := range names {
		if address, err := config.ParseAddress(name); err == nil && address.Key != nil {
			all = append(all, address.Whole())
		}
	}
	return all
}

// modulesOver are the modules that things are in, each once, as what names them all
// and as what names one.
func modulesOver(addresses []string) (out []string) {
	for _, address := range addresses {
		out = append(out, config.ModulesOver(address)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (q quoting) error(ctx context.Context, asked *reconcile.PlanRequest, err error) error {
	if e := (*reconcile.Error)(nil); errors.As(err, &e) {
		e.Diagnostics = q.source.WithSnippets(e.Diagnostics)
		q.suggest(ctx, asked, e.Diagnostics)
	}
	return err
}
