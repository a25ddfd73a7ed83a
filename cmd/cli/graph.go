package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// graphing are the flags of graph.
type graphing struct {
	in       config.Inputs
	html     bool
	plan     bool
	lockWait time.Duration
}

func (r *run) graphCommand() *cli.Command {
	var g graphing
	return &cli.Command{
		Name: "graph", Usage: "draw what depends on what", UsageText: "pinfold graph [flags]\n       pinfold graph -html [flags] [FILE]", Category: "config",
		Description: "Prints the dependency graph of the files here in the language of Graphviz (dot), a node for each block and a cluster for each module. With -html it writes a page instead, to standard output or to FILE, with every instance, its phase and what is known of it; the page needs no other file and loads nothing.\n\nPhases come from the state and the host where both can be looked at; without root and without access to the agent's socket the files alone are drawn. With -plan the colours say what the plan would do, which needs both. Nothing is changed.",
		Flags: append([]cli.Flag{
			boolFlag(&g.html, "html", "write a page for a browser"),
			boolFlag(&g.plan, "plan", "colour by what a plan would do instead of by phase"),
			lockFlag(&g.lockWait),
		}, r.inputFlags(&g.in)...),
		Metadata: example("pinfold graph | dot -Tsvg > graph.svg", "sudo pinfold graph -html graph.html"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			most := 0
			if g.html {
				most = 1
			}
			args, err := arguments(cmd, 0, most)
			if err != nil {
				return err
			}
			graph, title, err := r.graph(ctx, &g)
			if err != nil {
				return err
			}
			if !g.html {
				r.out.DOT(graph)
				return nil
			}
			if len(args) == 0 {
				r.out.HTML(graph, title, r.Now())
				return nil
			}
			return r.writePage(args[0], graph, title)
		},
	}
}

// graph puts together what can be known, and says once what cannot.
func (r *run) graph(ctx context.Context, g *graphing) (*view.Graph, string, error) {
	settings, err := r.settings()
	if err != nil {
		return nil, "", err
	}
	src, diags, err := source(g.in)
	if err != nil {
		return nil, "", err
	}
	known, err := r.graphRecords(ctx, g, src)
	var found *diagnosed
	switch {
	case err != nil && g.plan:
		return nil, "", err
	case errors.As(err, &found) && len(found.all) == 1:
		diags = append(diags, config.Diagnostic{Severity: "warning", Summary: "phases are left out of the graph", Detail: sentence(found.all[0].Summary) + ". " + found.all[0].Detail})
	case err != nil:
		diags = append(diags, config.Diagnostic{Severity: "warning", Summary: "phases are left out of the graph", Detail: sentence(err.Error()) + "."})
	}
	var exports config.Exports
	if known.recorded != nil {
		exports = known.recorded.Exports
	}
	desired, wrong := src.Evaluate(settings, exports)
	if diags = append(diags, wrong...); wrong.HasErrors() {
		return nil, "", &diagnosed{all: diags}
	}
	r.complain(diags)
	return view.GraphOf(desired, known.recorded, known.seen, known.plan, r.Now()), filepath.Base(src.Dir), nil
}

// graphed is what is known beside the files.
type graphed struct {
	recorded *reconcile.RecordsResult
	seen     []reconcile.SandboxView
	plan     *plan.Plan
}

func (r *run) graphRecords(ctx context.Context, g *graphing, src *config.Source) (known graphed, err error) {
	service, err := r.open(ctx, need{verb: "graph", does: "look at sandboxes", lockWait: g.lockWait})
	if err != nil {
		return known, err
	}
	defer service.Close()
	recorded, err := service.Records(ctx)
	switch {
	case err != nil:
		return known, err
	case recorded.Dir != "" && recorded.Dir != src.Dir:
		return known, fmt.Errorf("the state in %s serves %s, and this is %s", r.global.stateDir, recorded.Dir, src.Dir)
	}
	list, err := service.List(ctx)
	if err != nil {
		return known, err
	}
	known = graphed{recorded: recorded, seen: list.Sandboxes}
	if !g.plan {
		return known, nil
	}
	result, err := quoting{service, src}.Plan(ctx, reconcile.PlanRequest{Source: src, LockWait: g.lockWait})
	if err != nil {
		return known, err
	}
	if all := view.PlanDiagnostics(result); all.HasErrors() {
		return known, &diagnosed{all: all}
	}
	known.plan = result.Plan
	return known, nil
}

// writePage writes the page that -html asked for.
func (r *run) writePage(path string, graph *view.Graph, title string) error {
	var page bytes.Buffer
	screen := &view.Screen{W: &page}
	screen.HTML(graph, title, r.Now())
	if err := errors.Join(screen.Err(), writeOut(path, page.Bytes(), 0o644)); err != nil {
		return fmt.Errorf("cannot write the page %s: %w", path, err)
	}
	r.out.Printf("Wrote %s\n", view.Printable(path))
	return nil
}
