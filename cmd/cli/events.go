package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
)

const (
	// eventsWait is how long an agent is asked to wait for the next event.
	eventsWait = 30 * time.Second
	// eventsEvery is how often the record is looked at where no agent tells of news.
	eventsEvery = time.Second
	// eventsTries is how many failed looks in a row end following.
	eventsTries = 5
)

// eventTypes are the types of events: what was done, and what was noticed.
var eventTypes = []string{
	"create", "start", "stop", "pause", "resume", "update", "restart", "recreate", "repair", "release", "kill", "forget",
	"held", "renewed", "expiring", "expired", "deposed", "destroyed", "failed", "error", "undone",
	"exited", "lost", "created", "running", "paused", "rebound",
	"orphan", "gc", "rebuilt", "restored", "adopted",
}

func (r *run) eventsCommand() *cli.Command {
	var request reconcile.EventsRequest
	var follow bool
	var lockWait time.Duration
	last := -1
	return &cli.Command{
		Name: "events", Usage: "tell what happened, and what happens", UsageText: "pinfold events [flags] [ADDRESS]", Category: "look",
		Description: "Tells what was done and noticed, oldest first, of everything or of one address, also one that is no more. The newest 10,000 events are kept. With -f it then goes on until you press Ctrl-C (-last 0 begins with what is to come); 'pinfold history' sums up what became of each sandbox.",
		Flags: []cli.Flag{
			boolFlag(&follow, "follow", "go on as more happens", "f"),
			custom("since", "only what happened since `WHEN`: an instant (2026-12-01T18:00:00Z) or so long ago (15m, 2d)", func(s string) (err error) {
				request.Since, err = r.since(s)
				return err
			}),
			custom("type", "only events of `TYPE`, such as exited, expired or held; several with commas between, or repeated", func(s string) error {
				for name := range strings.SplitSeq(s, ",") {
					if !slices.Contains(eventTypes, name) {
						return fmt.Errorf("there is no event of type %q%s; 'pinfold events' shows the types", name, didYouMean(name, eventTypes, ""))
					}
					request.Types = append(request.Types, name)
				}
				return nil
			}),
			custom("last", "only the newest `N`; with -f, 0 begins with what is to come", func(s string) error {
				n, err := strconv.Atoi(s)
				if err != nil || n < 0 {
					return fmt.Errorf("%q is not a number of events", s)
				}
				last = n
				return nil
			}, "n"),
			lockFlag(&lockWait),
			boolFlag(&r.json, "json", "for programs: write one JSON document to standard output, with -f one event a line; errors included"),
		},
		Metadata: example("sudo pinfold events -since 1h", "sudo pinfold events -f -type exited,lost,expired -json"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 0, 1)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				if request.Address, err = anyAddress(args[0]); err != nil {
					return err
				}
			}
			if follow {
				return r.follow(ctx, request, last, lockWait)
			}
			res, err := r.happened(ctx, request, last, lockWait)
			if err != nil {
				return err
			}
			if r.json {
				return view.EventsJSON(r.out, res)
			}
			r.out.Events(res.Events)
			return nil
		},
	}
}

func (r *run) historyCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "history", Usage: "tell what became of sandboxes", UsageText: "pinfold history [flags] [SANDBOX]", Category: "look",
		Description: "Tells of each sandbox, also of those that are no more, when it came and went and why, each instance it had, each time its process ran and how that ended, who held it and when it was renewed. It is summed up from the newest 10,000 events; what is older is forgotten.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold history", "sudo pinfold history py"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 0, 1)
			if err != nil {
				return err
			}
			var request reconcile.EventsRequest
			if len(args) == 1 {
				name, err := sandboxAddress(args[0])
				if err != nil {
					return err
				}
				request.Address = name
			}
			n := needEvents
			n.lockWait = lockWait
			service, err := r.open(ctx, n)
			if err != nil {
				return err
			}
			defer service.Close()
			res, err := happened(ctx, service, request)
			if err != nil {
				return err
			}
			seen, err := service.List(ctx)
			if err != nil {
				return err
			}
			all := view.HistoryOf(res.Events)
			view.Observe(all, seen.Sandboxes)
			if r.json {
				return view.HistoryJSON(r.out, all)
			}
			r.out.History(all, r.Now())
			return nil
		},
	}
}

// anyAddress is that of anything an event may be about, or a sandbox's short name,
// which the engine looks up.
func anyAddress(text string) (string, error) {
	if full, err := parseAddress(text); err == nil {
		return full.String(), nil
	}
	return sandboxAddress(text)
}

// since reads an instant, or how long ago it was.
func (r *run) since(text string) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return t, nil
	}
	d, err := config.ParseDuration(text)
	if err != nil || d < 0 {
		return time.Time{}, fmt.Errorf("%q is neither an RFC 3339 instant, such as 2026-12-01T18:00:00Z, nor a length of time, such as 15m", text)
	}
	return r.Now().Add(-time.Duration(d)), nil
}

var needEvents = need{verb: "events", does: "look at what happened"}

// happened asks once for events, the newest last of them; last < 0: all. Of an
// address that never was it says so.
func (r *run) happened(ctx context.Context, request reconcile.EventsRequest, last int, lockWait time.Duration) (*reconcile.EventsResult, error) {
	n := needEvents
	n.lockWait = lockWait
	service, err := r.open(ctx, n)
	if err != nil {
		return nil, err
	}
	defer service.Close()
	request.Last = max(0, last)
	res, err := happened(ctx, service, request)
	if err != nil {
		return nil, err
	}
	if last == 0 {
		res.Events = nil
	}
	return res, nil
}

func happened(ctx context.Context, s reconcile.Service, request reconcile.EventsRequest) (*reconcile.EventsResult, error) {
	res, err := s.Events(ctx, request)
	if err == nil && len(res.Events) == 0 && request.Address != "" {
		err = known(ctx, s, request.Address)
	}
	return res, err
}

// known fails when nothing was ever heard of the address.
func known(ctx context.Context, s reconcile.Service, address string) error {
	if any, err := s.Events(ctx, reconcile.EventsRequest{Address: address, Last: 1}); err != nil || len(any.Events) > 0 {
		return err
	}
	if !isSandbox(address) {
		return failure("nothing is known of "+address, "'pinfold events' shows of what something is.")
	}
	if _, err := s.List(ctx, address); err != nil {
		return suggest(ctx, s, address, err)
	}
	return nil
}

func isSandbox(address string) bool {
	full, err := parseAddress(inFull(address))
	return err == nil && full.Type == "sandbox"
}

// follow prints events as they come. The state is open only while it is asked.
func (r *run) follow(ctx context.Context, request reconcile.EventsRequest, last int, lockWait time.Duration) error {
	res, err := r.happened(ctx, request, last, lockWait)
	if err != nil {
		return interruptedBy(ctx, err)
	}
	for failed := 0; ; {
		if err := r.printEvents(res.Events); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return exitWith(exitInterrupted)
		}
		request.After, request.Last, request.Since, request.Wait = res.Next, 0, time.Time{}, eventsWait
		began := time.Now()
		next, err := r.askEvents(ctx, request, lockWait)
		switch {
		case err == nil:
			res, failed = next, 0
		case ctx.Err() != nil:
			return exitWith(exitInterrupted)
		default:
			// Somebody has the state, or an agent comes or goes.
			if failed++; failed >= eventsTries && !isKind(err, reconcile.Locked) {
				return err
			}
			res.Events = nil
		}
		if len(res.Events) > 0 || time.Since(began) >= eventsEvery {
			continue
		}
		select {
		case <-ctx.Done():
			return exitWith(exitInterrupted)
		case <-time.After(eventsEvery):
		}
	}
}

// interruptedBy is err, or a quiet end by Ctrl-C.
func interruptedBy(ctx context.Context, err error) error {
	if ctx.Err() != nil && (isKind(err, reconcile.Interrupted) || errors.Is(err, context.Canceled)) {
		return exitWith(exitInterrupted)
	}
	return err
}

func (r *run) askEvents(ctx context.Context, request reconcile.EventsRequest, lockWait time.Duration) (*reconcile.EventsResult, error) {
	n := needEvents
	n.lockWait = lockWait
	service, err := r.open(ctx, n)
	if err != nil {
		return nil, err
	}
	defer service.Close()
	return service.Events(ctx, request)
}

func (r *run) printEvents(events []reconcile.Event) error {
	if !r.json {
		r.out.EventLines(events)
		return r.out.Err()
	}
	for _, e := range events {
		if err := view.EventJSON(r.out, e); err != nil {
			return err
		}
	}
	return nil
}
