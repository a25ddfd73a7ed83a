package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// applying are the flags of apply and destroy beside the planning ones.
type applying struct {
	planning
	autoApprove bool
	input       bool
	override    bool
	parallelism int
	destroy     bool // words: Destroy instead of Apply
}

func (r *run) applyingFlags(a *applying, destroy bool) []cli.Flag {
	a.input, a.destroy = true, destroy
	return append([]cli.Flag{
		boolFlag(&a.autoApprove, "auto-approve", "do it without asking"),
		boolFlag(&a.input, "input", "never ask: needs -auto-approve or a PLANFILE, else it is an error"),
		&cli.IntFlag{Name: "parallelism", Usage: "work on at most `N` sandboxes, networks and volumes at a time", Value: 10, Destination: &a.parallelism, Validator: func(n int) error {
			if n < 1 {
				return fmt.Errorf("%d is less than 1", n)
			}
			return nil
		}},
		r.jsonFlag(),
		boolFlag(&a.override, "override", "go on though the agent follows a directory (agent -config): it stops following until the files there change"),
	}, r.planningFlags(&a.planning, destroy)...)
}

func (r *run) applyCommand() *cli.Command {
	var a applying
	return &cli.Command{
		Name: "apply", Usage: "make the host match the configuration", UsageText: "pinfold apply [flags] [PLANFILE]", Category: "change",
		Description: "Makes a plan, asks, and carries it out. With PLANFILE it does exactly what 'plan -out' saved, without asking, or refuses when that no longer fits. Values of variables are never asked for: give them with -var, -var-file or PINFOLD_VAR_NAME. Ctrl-C finishes what has begun and leaves the rest to the next apply; a second one stops at once.\n\nExit codes: 0 done; 1 error, or something failed; 130 interrupted.",
		Flags:       r.applyingFlags(&a, false),
		Metadata:    example("sudo pinfold apply", "sudo pinfold apply -auto-approve -replace sandbox.py"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 0, 1)
			if err != nil {
				return err
			}
			if err := r.check(cmd, &a.planning); err != nil {
				return err
			}
			a.destroy = a.options.Destroy
			if len(args) == 0 {
				return r.apply(ctx, cmd, &a, nil)
			}
			if name := planningGiven(cmd); name != "" {
				return usage(cmd, "-%s cannot change a saved plan; make a new one with 'pinfold plan'", name)
			}
			saved, err := readPlan(args[0])
			if err != nil {
				return err
			}
			return r.apply(ctx, cmd, &a, saved)
		},
	}
}

// planningGiven is a flag that has no meaning beside a saved plan.
func planningGiven(cmd *cli.Command) string {
	for _, name := range []string{"target", "exclude", "refresh", "destroy", "replace", "refresh-only", "release-holds", "no-start", "take-over", "var", "var-file"} {
		if cmd.IsSet(name) {
			return name
		}
	}
	return ""
}

func (r *run) destroyCommand() *cli.Command {
	var a applying
	return &cli.Command{
		Name: "destroy", Usage: "end everything, data included", UsageText: "pinfold destroy [flags]", Category: "change",
		Description: "Removes all sandboxes, networks and volumes of this state, data included, after asking. Run it in the directory that was applied; its files must load and its variables have values; what they declare does not matter. It is 'apply -destroy'.",
		Flags:       r.applyingFlags(&a, true),
		Metadata:    example("sudo pinfold destroy", "sudo pinfold destroy -auto-approve -target sandbox.py"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			a.options.Destroy = true
			if err := r.check(cmd, &a.planning); err != nil {
				return err
			}
			return r.apply(ctx, cmd, &a, nil)
		},
	}
}

func (r *run) apply(ctx context.Context, cmd *cli.Command, a *applying, saved *reconcile.PlanFile) error {
	approved := a.autoApprove || saved != nil
	if !approved {
		if err := r.canAsk(cmd.Name, a.input, "Add -auto-approve, or save a plan with 'pinfold plan -out FILE', look at it, and 'pinfold apply FILE'."); err != nil {
			return err
		}
	}
	request := reconcile.ApplyRequest{Saved: saved, AutoApprove: approved, Show: !r.json, Parallelism: a.parallelism, Override: a.override}
	var warned config.Diagnostics
	if saved == nil {
		var err error
		if request.PlanRequest, warned, err = a.request(); err != nil {
			return r.noFiles(ctx, &a.planning, err)
		}
	} else {
		request.LockWait, a.destroy = a.lockWait, saved.Destroy
	}
	service, err := r.open(ctx, need{verb: cmd.Name, does: "change sandboxes", changes: true, lockWait: a.lockWait})
	if err != nil {
		return err
	}
	defer service.Close()

	show := &applyView{r: r, warned: warned, approved: approved, destroy: a.destroy}
	if saved != nil {
		show.steps = view.Steps(saved.Result.Plan)
	}
	defer show.close()
	result, err := quoting{service, request.Source}.Apply(ctx, request, show.confirm, show.step)
	show.close()
	switch {
	case show.refused != nil: // whatever the engine made of it
		return show.refused
	case err != nil && (result == nil || !show.began()):
		if !show.shown {
			err = withWarnings(err, warned)
		}
		return err
	}
	return r.applied(result, warned, a.destroy, err)
}

// noFiles says of a directory without files which it is and which one the state
// serves, and for a destroy what there is to destroy. Other errors stay as they are.
func (r *run) noFiles(ctx context.Context, p *planning, err error) error {
	dir, broken := os.Getwd()
	if broken == nil {
		dir, broken = filepath.EvalSymlinks(dir)
	}
	files, _ := filepath.Glob("*.hcl") // the pattern is well-formed
	if len(files) > 0 || broken != nil {
		return err
	}
	destroy := p.options.Destroy
	summary := "there are no *.hcl files in " + dir
	const begin = "Run 'pinfold init' there for a starter, or point -chdir at the right directory."
	if destroy {
		summary += " that say what to destroy"
	} else {
		err = failure(summary, begin)
	}
	service, closed := r.open(ctx, need{verb: "plan", does: "look at the records", lockWait: p.lockWait})
	if closed != nil {
		return err
	}
	defer service.Close()
	// The engine refuses a directory that the state does not serve, and names the one
	// that it does.
	result, failed := service.Plan(ctx, reconcile.PlanRequest{
		Source: &config.Source{Dir: dir}, Options: plan.Options{Destroy: true, NoRefresh: true}, LockWait: p.lockWait,
	})
	const anyWill = "destroy ends all that is recorded, whatever the files declare"
	switch {
	case !destroy && isKind(failed, reconcile.Invalid):
		return failure(summary, "%s.", sentence(failed.Error()))
	case !destroy:
		return err
	case isKind(failed, reconcile.Invalid):
		return failure(summary, "%s.\n\nIf that directory is gone: %s, so 'pinfold init' in an empty one, then 'pinfold destroy -take-over' there.", sentence(failed.Error()), anyWill)
	case failed != nil:
		return err
	case result.Plan == nil || result.Plan.Empty():
		return failure(summary, "The state in %s records nothing, so there is nothing to destroy.", r.global.stateDir)
	}
	return failure(summary, "The state in %s serves this directory, whose files are gone. Put them back, or run 'pinfold init' here and then 'pinfold destroy': %s.", r.global.stateDir, anyWill)
}

// sentence begins an error's text as a sentence does.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}

// applied shows what became of it. failed is the error beside a result that
// tells how far it came.
func (r *run) applied(result *reconcile.ApplyResult, warned config.Diagnostics, destroy bool, failed error) error {
	code := exitDone
	var wrong config.Diagnostics
	if failed != nil {
		code, wrong = r.classify(r.interrupts.ctx, failed)
	}
	switch {
	case result.Interrupted:
		code = exitInterrupted
	case code == exitDone && (result.Declined || len(result.Failures) > 0):
		code = exitError
	}
	wrong = view.FailureDiagnostics(result.Failures, wrong)
	switch {
	case r.json:
		if err := view.ApplyJSON(r.out, result, view.Merge(warned, wrong)); err != nil {
			return err
		}
	case result.Declined:
		r.out.Linef("\nCancelled: nothing was changed.\n")
	default:
		r.out.Applied(result, destroy)
		r.complain(view.Merge(result.Warnings, wrong))
	}
	if code != exitDone {
		return exitWith(code)
	}
	return nil
}

// canAsk checks that there is somebody to approve what a command is about to do.
// instead says how it goes without.
func (r *run) canAsk(name string, input bool, instead string) error {
	switch {
	case r.json:
		return failure(name+" -json cannot ask for approval", "%s", instead)
	case !input:
		return failure(name+" needs approval, and -input=false forbids asking", "%s", instead)
	case !isTerminal(r.In):
		return failure(name+" needs approval, and standard input is no terminal to ask at", "%s", instead)
	}
	return nil
}

// applyView shows an apply while it happens.
type applyView struct {
	r        *run
	warned   config.Diagnostics
	approved bool
	destroy  bool

	shown    bool  // the plan
	refused  error // why there was no answer to the question
	steps    int   // how many it has
	mu       sync.Mutex
	progress *view.Progress
	stop     func()
}

// began tells whether any step was reported or a plan approved.
func (v *applyView) began() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.progress != nil || v.r.json
}

// confirm shows the plan and asks.
func (v *applyView) confirm(result *reconcile.PlanResult) (bool, error) {
	r := v.r
	v.shown = true
	if r.json {
		return true, nil
	}
	r.out.Plan(result, v.destroy)
	r.complain(view.Merge(v.warned, view.PlanDiagnostics(result)))
	v.steps = view.Steps(result.Plan)
	yes := v.approved || (result.Plan == nil || result.Plan.Empty())
	var err error
	if !yes {
		question, what := "Do you want to perform these actions?", "pinfold will do what is described above."
		if v.destroy {
			question, what = "Do you really want to destroy all this?", "Data goes with it; there is no undo."
		}
		yes, err = r.ask(question, what)
		v.refused = err
	}
	if yes {
		v.mu.Lock()
		v.begin()
		v.mu.Unlock()
	}
	return yes, err
}

// begin starts the progress lines.
func (v *applyView) begin() {
	r := v.r
	r.interrupts.say(r.err.Fold("Interrupted: what has begun is finished, the rest is left. Press Ctrl-C again to stop at once."))
	if v.shown && v.steps > 0 {
		r.out.Printf("\n")
	}
	live := r.out.Width > 0 && r.getenv("TERM") != "dumb"
	v.progress = view.NewProgress(r.out, v.steps, live, r.Now)
	progress := v.progress
	if !live {
		return
	}
	ticker := time.NewTicker(time.Second)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				progress.Tick()
			}
		}
	}()
	v.stop = func() {
		ticker.Stop()
		close(done)
	}
}

func (v *applyView) step(p reconcile.Progress) {
	if v.r.json || p.Action == plan.ActNoop {
		return
	}
	v.mu.Lock()
	if v.progress == nil { // a saved plan asks nothing
		v.begin()
	}
	progress := v.progress
	v.mu.Unlock()
	progress.Step(p)
}

func (v *applyView) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stop != nil {
		v.stop()
		v.stop = nil
	}
	if v.progress != nil {
		v.progress.Close()
	}
}

// ask reads an answer from the terminal; Ctrl-C there is an interruption.
func (r *run) ask(question, what string) (bool, error) {
	r.out.Linef("\n%s\n  %s\n  Only 'yes' will be accepted to approve.\n\n  Enter a value: ", question, what)
	type answer struct {
		text string
		err  error
	}
	ch := make(chan answer, 1)
	go func() {
		text, err := bufio.NewReader(r.In).ReadString('\n')
		ch <- answer{text, err}
	}()
	select {
	case <-r.interrupts.ctx.Done():
		return false, errInterrupted
	case a := <-ch:
		if a.err != nil && a.err != io.EOF {
			return false, fmt.Errorf("cannot read the answer: %w", a.err)
		}
		return strings.TrimSpace(a.text) == "yes", nil
	}
}
