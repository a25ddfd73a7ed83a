package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
)

// anyName is the address of a thing or of a module, in the form that records have.
func anyName(text string) (string, error) {
	address, err := oneThing(text)
	if err != nil {
		if module, again := parseModule(text); again == nil {
			return module, nil
		}
	}
	return address, err
}

// oneThing is the address of a thing or of all instances of a block, in the form that
// records have.
func oneThing(text string) (string, error) {
	address, err := parseAddress(text)
	if err != nil {
		return "", err
	}
	return address.String(), nil
}

func (r *run) stateListCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "list", Usage: "list the addresses of what is recorded", UsageText: "pinfold state list [flags] [ADDRESS]...",
		Description: "Prints the address of everything that is recorded, one a line: images, networks, sandboxes and volumes. With ADDRESS it prints those that it names: one thing, all instances of a block, or what is in a module. The host is not looked at.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold state list", "sudo pinfold state list sandbox.w"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			var names []string
			for _, text := range cmd.Args().Slice() {
				name, err := anyName(text)
				if err != nil {
					return err
				}
				names = append(names, name)
			}
			recorded, err := r.records(ctx, "state list", "read what is recorded", lockWait)
			if err != nil {
				return err
			}
			all, err := chosen(view.ResourcesOf(&recorded.Records), names)
			switch {
			case err != nil:
				return err
			case r.json:
				return view.ResourcesJSON(r.out, &recorded.Records, all)
			}
			r.out.Resources(all)
			return nil
		},
	}
}

// chosen are those of all that a name covers; each name must cover one.
func chosen(all []view.Resource, names []string) ([]view.Resource, error) {
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(x view.Resource) bool { return config.Covers(name, x.Address) }) {
			return nil, unrecorded(name, all)
		}
	}
	return slices.DeleteFunc(all, func(x view.Resource) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return config.Covers(name, x.Address) })
	}), nil
}

// unrecorded is the error where nothing has the address: the instances of the block
// that it names, or what is most like it.
func unrecorded(name string, all []view.Resource) error {
	var names, instances []string
	for _, x := range all {
		names = append(names, x.Address)
		if config.Covers(name, x.Address) {
			instances = append(instances, x.Address)
		}
	}
	if len(instances) > 0 {
		return failure("nothing is recorded of "+name+" itself", "Name one of its instances: %s.", view.Some(instances))
	}
	return failure("nothing is recorded of "+name+didYouMean(name, withWhole(names), ""), "'pinfold state list' shows what is.")
}

func (r *run) stateShowCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "show", Usage: "show what is recorded of one thing", UsageText: "pinfold state show [flags] ADDRESS",
		Description: "Prints what is recorded of a sandbox, network, volume or image: what was reserved and last seen of it, and its spec as it was applied. Sensitive values are left out. The host is not looked at; 'pinfold describe' does that for a sandbox.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold state show sandbox.py", "sudo pinfold state show -json network.agents"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, 1)
			if err != nil {
				return err
			}
			address, err := parseAddress(args[0])
			if err != nil {
				return err
			}
			recorded, err := r.records(ctx, "state show", "read what is recorded", lockWait)
			if err != nil {
				return err
			}
			one, there := view.RecordOf(recorded, address.String())
			switch {
			case !there:
				return unrecorded(address.String(), view.ResourcesOf(&recorded.Records))
			case r.json:
				return view.RecordJSON(r.out, one)
			}
			r.out.Record(one)
			return nil
		},
	}
}

func (r *run) statePullCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "pull", Usage: "print the whole state as JSON", UsageText: "pinfold state pull [flags]",
		Description: "Prints everything that is recorded, history included, as one JSON document with the state's lineage and serial, for 'pinfold state push' or for reading. What is sensitive is encrypted in it, as in the state, with the key in state.key; all else that sandboxes were given is not. A copy for safety's sake is better made with 'pinfold state backup'.",
		Flags:       []cli.Flag{lockFlag(&lockWait), boolFlag(&r.json, "json", "the document is JSON anyway; errors are, too")},
		Metadata:    example("sudo pinfold state pull > state.json"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			service, err := r.open(ctx, need{verb: "state pull", does: "read the state", lockWait: lockWait})
			if err != nil {
				return err
			}
			defer service.Close()
			doc, err := service.Pull(ctx)
			if err != nil {
				return err
			}
			return view.StateJSON(r.out, doc)
		},
	}
}

func (r *run) statePushCommand() *cli.Command {
	var request reconcile.PushRequest
	var lockWait time.Duration
	autoApprove, input := false, true
	return &cli.Command{
		Name: "push", Usage: "put a document that was pulled in the place of the state", UsageText: "pinfold state push [flags] FILE | -",
		Description: "Checks the document, as 'pinfold state pull' printed it, and makes the state of it; with - it is read from standard input, which needs -auto-approve. The old state is kept beside it as state.db.bad-TIME. It refuses a document of another state, one that is older than the state, and anything wrong in it; and it refuses while an agent or another command has the state: stop the agent first. Sandboxes and data on the host are left as they are: what the document does not know is without a record then, and 'pinfold plan' shows the rest.\n\nExit codes: 0 done; 1 error, or you did not approve.",
		Flags: []cli.Flag{
			boolFlag(&request.Force, "force", "also take a document that is older, or of another state where nothing that this one made is left"),
			boolFlag(&request.DryRun, "dry-run", "tell what would be, and change nothing"),
			boolFlag(&autoApprove, "auto-approve", "do it without asking"),
			boolFlag(&input, "input", "never ask: needs -auto-approve, else it is an error"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold state push state.json", "sudo pinfold state push -dry-run state.json"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, 1)
			if err != nil {
				return err
			}
			ask := !request.DryRun && !autoApprove
			if ask {
				if args[0] == "-" {
					return failure("state push - needs -auto-approve", "The answer cannot be read from where the document comes from. See what it would do with -dry-run first.")
				}
				if err := r.canAsk("state push", input, "Add -auto-approve, or see what it would do with -dry-run."); err != nil {
					return err
				}
			}
			o, err := r.offline("state push", "push the state", lockWait)
			if err != nil {
				return err
			}
			if request.Name, request.Document, err = r.readState(args[0]); err != nil {
				return err
			}
			return r.push(ctx, o, request, ask)
		},
	}
}

// push says first what would be, when it is to ask.
func (r *run) push(ctx context.Context, o reconcile.OpenOptions, request reconcile.PushRequest, ask bool) error {
	if ask {
		try := request
		try.DryRun = true
		would, err := r.Push(ctx, o, try)
		if err != nil {
			return err
		}
		r.out.WouldPush(would, request.Name)
		if err := r.approved("Do you want to push this state?", "pinfold will put it in the place of the state, which is kept aside."); err != nil {
			return err
		}
	}
	result, err := r.Push(ctx, o, request)
	switch {
	case err != nil:
		return err
	case r.json:
		return view.PushJSON(r.out, result)
	case request.DryRun:
		r.out.WouldPush(result, request.Name)
	default:
		r.out.Pushed(result, request.Name)
	}
	return nil
}

// readState reads what state pull printed, and what to call it.
func (r *run) readState(path string) (name string, doc *reconcile.StateDocument, err error) {
	var content []byte
	if name = path; path == "-" {
		name = "standard input"
		content, err = io.ReadAll(r.In)
	} else {
		content, err = os.ReadFile(path)
	}
	if err != nil {
		return name, nil, fmt.Errorf("cannot read the state: %w", err)
	}
	doc = new(reconcile.StateDocument)
	decoder := json.NewDecoder(strings.NewReader(string(content)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(doc); err != nil {
		return name, nil, failure(name+" is not a state", "'pinfold state pull' prints one; 'pinfold state restore' takes backups. (%v)", err)
	}
	if decoder.More() {
		return name, nil, failure(name+" is not a state", "More follows its document.")
	}
	return name, doc, nil
}
