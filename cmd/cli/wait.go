package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// waitEvery is how often wait looks.
const waitEvery = 200 * time.Millisecond

// goal is what wait waits for: a condition's status, or a phase.
type goal struct {
	condition, status string
	phase             plan.Phase
}

func (g goal) String() string {
	if g.phase != "" {
		return "phase=" + string(g.phase)
	}
	return g.condition + "=" + g.status
}

var (
	conditionTypes = []string{"Ready", "Suspended", "Paused", "Expired", "Finished", "Drifted"}
	statuses       = []string{"True", "False", "Unknown"}
	phases         = []string{"pending", "created", "running", "paused", "stopped", "failed", "lost", "destroyed"}
)

// parseGoal reads Ready, Ready=False or phase=stopped; upper and lower case are one.
func parseGoal(text string) (goal, error) {
	name, value, given := strings.Cut(text, "=")
	pick := func(what, word string, from []string) (string, error) {
		for _, x := range from {
			if strings.EqualFold(x, word) {
				return x, nil
			}
		}
		return "", fmt.Errorf("%q is not a %s (%s)%s", word, what, strings.Join(from, ", "), didYouMean(word, from, ""))
	}
	if strings.EqualFold(name, "phase") {
		phase, err := pick("phase", value, phases)
		return goal{phase: plan.Phase(phase)}, err
	}
	condition, err := pick("condition", name, conditionTypes)
	if err != nil {
		return goal{}, err
	}
	if !given {
		value = "True"
	}
	status, err := pick("status", value, statuses)
	return goal{condition: condition, status: status}, err
}

// reached tells whether a sandbox is there, and in words how it is.
func (g goal) reached(x *reconcile.SandboxView) (bool, string) {
	if g.phase != "" {
		return x.Phase == g.phase, "phase=" + string(x.Phase)
	}
	i := slices.IndexFunc(x.Conditions, func(c plan.Condition) bool { return c.Type == g.condition })
	if i < 0 {
		return false, "without the condition " + g.condition
	}
	c := x.Conditions[i]
	return c.Status == g.status, fmt.Sprintf("%s=%s (%s)", c.Type, c.Status, c.Reason)
}

func (r *run) waitCommand() *cli.Command {
	goalText := "Ready"
	var timeout *config.Duration
	var lockWait time.Duration
	return &cli.Command{
		Name: "wait", Usage: "wait until sandboxes are in a condition or phase", UsageText: "pinfold wait [flags] SANDBOX...", Category: "look",
		Description: "Waits until every sandbox named is as asked: a condition (Ready, Suspended, Paused, Expired, Finished, Drifted) with a status, or a phase (pending, created, running, paused, stopped, failed, lost, destroyed).\n\nExit codes: 0 they are; 1 the time is up, or an error; 130 interrupted.",
		Flags: []cli.Flag{
			stringFlag(&goalText, "for", "wait for `CONDITION[=True|False|Unknown]`, True where nothing is said, or for phase=PHASE"),
			lengthFlag(&timeout, "timeout", "give up after `DURATION`; by default it waits for ever"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold wait -for=Ready -timeout 30s py", "sudo pinfold wait -for=phase=stopped py"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, -1)
			if err != nil {
				return err
			}
			want, err := parseGoal(goalText)
			if err != nil {
				return usage(cmd, "-for: %v", err)
			}
			var names []string
			for _, text := range args {
				address, err := sandboxAddress(text)
				if err != nil {
					return err
				}
				names = append(names, address)
			}
			if timeout != nil {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(*timeout))
				defer cancel()
			}
			return r.wait(ctx, want, names, timeout, lockWait)
		},
	}
}

func (r *run) wait(ctx context.Context, want goal, names []string, timeout *config.Duration, lockWait time.Duration) error {
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	how := "not seen yet"
	pending := names[0]
	for {
		seen, who, state, err := r.look(ctx, want, names, lockWait)
		var failed *reconcile.Error
		switch {
		case err == nil && who == "":
			if r.json {
				return view.ListJSON(r.out, &reconcile.ListResult{Sandboxes: seen})
			}
			for _, name := range names {
				r.out.Linef("%s: %s\n", inFull(name), want)
			}
			return nil
		case err == nil:
			pending, how = who, state
		case errors.As(err, &failed) && failed.Kind == reconcile.Locked:
			how = "not seen: " + failed.Message // somebody else has the state; look again
		case ctx.Err() == nil:
			return err
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return failure(fmt.Sprintf("waited %s for %s of %s", timeout, want, pending), "It is %s.", how)
		}
		return errInterrupted
	}
}

// look sees the sandboxes once, holding the state no longer than that. who is
// the first that is not as wanted, state how it is.
func (r *run) look(ctx context.Context, want goal, names []string, lockWait time.Duration) (seen []reconcile.SandboxView, who, state string, err error) {
	service, err := r.open(ctx, need{verb: "wait", does: "look at sandboxes", lockWait: lockWait})
	if err != nil {
		return nil, "", "", err
	}
	defer service.Close()
	for _, name := range names {
		list, err := service.List(ctx, name)
		var failed *reconcile.Error
		if errors.As(err, &failed) && failed.Kind == reconcile.NotFound && want.phase == plan.Destroyed {
			continue
		}
		if err != nil {
			return nil, "", "", suggest(ctx, service, name, err)
		}
		for i := range list.Sandboxes {
			x := &list.Sandboxes[i]
			if ok, how := want.reached(x); !ok && who == "" {
				who, state = x.Address, how
			}
			seen = append(seen, *x)
		}
	}
	return seen, who, state, nil
}
