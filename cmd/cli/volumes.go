package cli

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// group is a command that only has others under it.
func (r *run) group(cmd *cli.Command) *cli.Command {
	cmd.Action = func(_ context.Context, cmd *cli.Command) error {
		if cmd.Args().Present() {
			return unknownCommand(cmd, cmd.Args().First())
		}
		r.printHelp(cmd)
		return nil
	}
	return cmd
}

func (r *run) volumeCommand() *cli.Command {
	return r.group(&cli.Command{
		Name: "volume", Usage: "look at volumes: what they take, who mounts them", UsageText: "pinfold volume COMMAND [flags] [arguments]", Category: "data",
		Description: "Shows the volumes and the claims of sandboxes, with what they take on disk and who uses them. They are made and destroyed by plan and apply, as the volume blocks in the files say.",
		Metadata:    example("sudo pinfold volume list", "sudo pinfold volume show models"),
		Commands:    []*cli.Command{r.volumeListCommand(), r.volumeShowCommand()},
	})
}

func (r *run) volumeListCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "list", Usage: "list volumes and claims with their size and users", UsageText: "pinfold volume list [flags]",
		Description: "Lists every volume and every sandbox's claim: the disk space it takes, whether a sandbox has it mounted now, who mounts it where by the files as they were applied ('(ro)': read-only), whether prevent_destroy protects it (a claim is protected with its sandbox), its age, its id and where its files lie on the host. Files are counted as they are now, one of several names once; the list takes at most 15 s, and a size with a plus is of what was counted until then.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold volume list", "sudo pinfold volume list -json | jq '.volumes[].used.bytes'"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			all, err := call(ctx, r, need{verb: "volume list", does: "look at volumes", lockWait: lockWait}, func(s reconcile.Service) (*reconcile.VolumesResult, error) { return s.Volumes(ctx) })
			switch {
			case err != nil:
				return err
			case r.json:
				return view.VolumesJSON(r.out, all)
			}
			r.out.Volumes(all, r.Now())
			return nil
		},
	}
}

func (r *run) volumeShowCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "show", Usage: "tell everything about a volume or claim", UsageText: "pinfold volume show [flags] VOLUME",
		Description: "Shows one volume or claim: where its files lie, what they take (counting takes at most a minute), who mounts it, which instances have it mounted now, and the last events of a volume. VOLUME is an address, such as volume.models, or a claim as the list writes it, sandbox.db volume \"work\"; models or work alone will do where nothing else has that name.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold volume show models", `sudo pinfold volume show sandbox.db volume work`),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, 3)
			if err != nil {
				return err
			}
			name, err := volumeName(args)
			if err != nil {
				return err
			}
			d, err := call(ctx, r, need{verb: "volume show", does: "look at volumes", lockWait: lockWait}, func(s reconcile.Service) (*reconcile.VolumeDescription, error) {
				d, err := s.Volume(ctx, name)
				return d, likeOne(ctx, s, "volume", name, err)
			})
			switch {
			case err != nil:
				return err
			case r.json:
				return view.VolumeJSON(r.out, d)
			}
			r.out.Volume(d, r.Now())
			return nil
		},
	}
}

func (r *run) imageCommand() *cli.Command {
	return r.group(&cli.Command{
		Name: "image", Usage: "look at images: what they hide, who is made of them", UsageText: "pinfold image COMMAND [flags] [arguments]", Category: "data",
		Description: "Shows the images that sandboxes are made of. They are the image blocks in the files: nothing is pulled or stored, the host's own root or a directory is used where it lies.",
		Metadata:    example("sudo pinfold image list", "sudo pinfold image show base"),
		Commands:    []*cli.Command{r.imageListCommand(), r.imageShowCommand()},
	})
}

func (r *run) imageListCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "list", Usage: "list images and who uses them", UsageText: "pinfold image list [flags]",
		Description: "Lists every image that is recorded: its source, how many paths of it sandboxes do not see, the sandboxes that are declared with it, and its digest.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold image list"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			all, err := call(ctx, r, need{verb: "image list", does: "look at images", lockWait: lockWait}, func(s reconcile.Service) (*reconcile.ImagesResult, error) { return s.Images(ctx) })
			switch {
			case err != nil:
				return err
			case r.json:
				return view.ImagesJSON(r.out, all)
			}
			r.out.Images(all)
			return nil
		},
	}
}

func (r *run) imageShowCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "show", Usage: "tell everything about an image", UsageText: "pinfold image show [flags] IMAGE",
		Description: "Shows one image: its source and digest, the sandboxes made of it, and what of the host's root they do not see, as it is for one that is made now. IMAGE is an address, such as image.base; base alone will do where nothing else has that name.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold image show base"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, 1)
			if err != nil {
				return err
			}
			name, err := shortName("image", args[0])
			if err != nil {
				return err
			}
			d, err := call(ctx, r, need{verb: "image show", does: "look at images", lockWait: lockWait}, func(s reconcile.Service) (*reconcile.ImageDescription, error) {
				d, err := s.Image(ctx, name)
				return d, likeOne(ctx, s, "image", name, err)
			})
			switch {
			case err != nil:
				return err
			case r.json:
				return view.ImageJSON(r.out, d)
			}
			r.out.Image(d)
			return nil
		},
	}
}

// volumeName reads what a user calls a volume or claim, in one word or as the list
// writes a claim, with or without the quotes that a shell takes away.
func volumeName(args []string) (string, error) {
	text := strings.Join(args, " ")
	i := strings.LastIndex(text, " volume ")
	if i < 0 {
		if len(args) > 1 {
			return "", failure(strconv.Quote(text)+" is no volume", `Name one volume, such as volume.models, or a claim: sandbox.db volume "work".`)
		}
		return shortName("volume", text)
	}
	sandbox, err := sandboxAddress(text[:i])
	if err != nil {
		return "", err
	}
	return reconcile.ClaimAddress(sandbox, strings.Trim(text[i+len(" volume "):], `"`)), nil
}

// shortName reads the address of a thing of this kind, or what is short for it.
func shortName(kind, text string) (string, error) {
	if full, err := parseAddress(text); err == nil {
		if full.Type != kind {
			return "", failure(text+" is not "+article(kind), "Name %s, such as %s.NAME; 'pinfold %s list' shows those that exist.", article(kind), kind, kind)
		}
		return full.String(), nil
	}
	full, err := parseAddress(kind + "." + text)
	if err != nil {
		return "", failure(strconv.Quote(text)+" is no "+kind+"'s address", `Write %s.NAME, %s.NAME["KEY"] or %s.NAME[0]; NAME alone does where it is unambiguous.`, kind, kind, kind)
	}
	return strings.TrimPrefix(full.String(), kind+"."), nil
}

func article(kind string) string {
	if kind == "image" {
		return "an image"
	}
	return "a " + kind
}

// likeOne adds to an engine's "not found" what exists.
func likeOne(ctx context.Context, s reconcile.Service, kind, name string, err error) error {
	var failed *reconcile.Error
	if !errors.As(err, &failed) || failed.Kind != reconcile.NotFound {
		return err
	}
	recorded, broken := s.Records(ctx)
	if broken != nil {
		return err
	}
	names := namesOf(&recorded.Records, kind)
	if len(names) == 0 {
		return explained(err, err.Error(), "There is none here at all; 'pinfold apply' makes those that are declared.")
	}
	full := name
	if !slices.Contains([]string{"volume", "image", "sandbox"}, plan.KindOf(name)) {
		full = kind + "." + name
	}
	return explained(err, err.Error()+didYouMean(full, names, ""), "'pinfold "+kind+" list' shows those that exist.")
}

// namesOf are the addresses of the recorded things of a kind, of volumes with claims.
func namesOf(records *plan.Records, kind string) (out []string) {
	for _, x := range view.ResourcesOf(records) {
		if x.Kind == kind {
			out = append(out, x.Address)
		}
	}
	if kind == "volume" {
		for address, rec := range records.Sandboxes {
			for claim := range rec.Claim {
				out = append(out, reconcile.ClaimAddress(address, claim))
			}
		}
	}
	slices.Sort(out)
	return out
}

// namedCandidates are the recorded things of a kind.
func (r *run) namedCandidates(ctx context.Context, kind, value string) (out []candidate) {
	r.peek(ctx, func(ctx context.Context, s reconcile.Service) {
		recorded, err := s.Records(ctx)
		if err != nil {
			return
		}
		all := namesOf(&recorded.Records, kind)
		for _, name := range all {
			what := kind
			if strings.HasSuffix(name, `"`) {
				what = "claim"
			}
			out = append(out, candidate{name, what})
		}
		for _, name := range all {
			if short, ok := strings.CutPrefix(name, kind+"."); ok && value != "" {
				out = append(out, candidate{short, kind})
			}
		}
	})
	return out
}
