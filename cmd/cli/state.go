package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"pinfold/cmd/view"
	"pinfold/reconcile"
)

func (r *run) stateCommand() *cli.Command {
	return r.group(&cli.Command{
		Name: "state", Usage: "look at, check, change, back up and restore what is recorded", UsageText: "pinfold state COMMAND [flags] [arguments]", Category: "data",
		Description: "Looks after the state file, in which pinfold records what it made. It is backed up each day by itself; docs/state.md tells what to do when it is damaged or lost.",
		Metadata:    example("sudo pinfold state verify", "pinfold state restore -help"),
		Commands: []*cli.Command{
			r.stateListCommand(), r.stateShowCommand(), r.statePullCommand(), r.statePushCommand(),
			r.stateVerifyCommand(), r.stateBackupCommand(), r.stateRestoreCommand(), r.stateRebuildCommand(),
			r.stateMvCommand(), r.stateRmCommand(),
		},
	})
}

func (r *run) stateVerifyCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "verify", Usage: "read the whole state and tell what is wrong with it", UsageText: "pinfold state verify [flags] [FILE]",
		Description: "Reads every page and every record of the state file, as it is on the disk now, and checks them. With FILE it reads that one, such as a backup. Nothing is changed.\n\nExit codes: 0 nothing is wrong; 1 error, or something is wrong.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold state verify", "sudo pinfold state verify backup.db"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 0, 1)
			if err != nil {
				return err
			}
			file := ""
			if len(args) == 1 {
				file = args[0]
			} else if err := r.privileged("read the state"); err != nil {
				return err
			}
			o, err := r.options(need{verb: "state verify", lockWait: lockWait})
			if err != nil {
				return err
			}
			result, err := r.Verify(ctx, o, file)
			if err != nil {
				return err
			}
			if r.json {
				err = view.VerifyJSON(r.out, result)
			} else {
				r.out.Verified(result)
			}
			if err == nil && !result.Sound {
				err = exitWith(exitError)
			}
			return err
		},
	}
}

func (r *run) stateBackupCommand() *cli.Command {
	var lockWait time.Duration
	return &cli.Command{
		Name: "backup", Usage: "copy the state", UsageText: "pinfold state backup [flags] [FILE]",
		Description: "Copies the state to FILE, or into the directory backups of the state dir, and reads the copy whole. It can be made at any time, and stops nobody's work. pinfold never deletes it; those that it makes by itself it does. The records may hold secrets: the file is its owner's alone.",
		Flags:       []cli.Flag{lockFlag(&lockWait), r.jsonFlag()},
		Metadata:    example("sudo pinfold state backup", "sudo pinfold state backup /mnt/pinfold.db"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 0, 1)
			if err != nil {
				return err
			}
			service, err := r.open(ctx, need{verb: "state backup", does: "back the state up", lockWait: lockWait})
			if err != nil {
				return err
			}
			defer service.Close()
			var result *reconcile.BackupResult
			if len(args) == 1 {
				result, err = backupTo(ctx, service, args[0])
			} else {
				result, err = service.Backup(ctx, reconcile.BackupRequest{})
			}
			if err != nil {
				return err
			}
			if r.json {
				return view.BackupJSON(r.out, result)
			}
			r.out.BackedUp(result)
			return nil
		},
	}
}

// backupTo makes the file, whole or not at all. It overwrites nothing.
func backupTo(ctx context.Context, service reconcile.Service, name string) (*reconcile.BackupResult, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, fmt.Errorf("cannot write the backup: %w", err)
	}
	there := failure(path+" is there already", "Name a file that is not; a backup overwrites nothing.")
	if _, err := os.Lstat(path); err == nil {
		return nil, there
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("cannot write the backup: %w", err)
	}
	defer os.Remove(f.Name()) // gone by then when all went well
	result, err := service.Backup(ctx, reconcile.BackupRequest{Path: path, File: f})
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	err = unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // the file system cannot
		err = os.Rename(f.Name(), path)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil, there
	case err != nil:
		return nil, fmt.Errorf("cannot write the backup %s: %w", path, err)
	}
	return result, syncDir(filepath.Dir(path))
}

// syncDir makes a new name in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot sync %s: %w", dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("cannot sync %s: %w", dir, err)
	}
	return nil
}

func (r *run) stateRestoreCommand() *cli.Command {
	var request reconcile.RestoreRequest
	var lockWait time.Duration
	autoApprove, input := false, true
	return &cli.Command{
		Name: "restore", Usage: "put a backup in the place of the state", UsageText: "pinfold state restore [flags] FILE",
		Description: "Checks the backup FILE and puts a copy of it in the place of the state file, which is kept beside it as state.db.bad-TIME. It refuses a backup with anything wrong in it, one of another state, and while an agent or another command has the state: stop the agent first. Sandboxes and data on the host are left as they are, but what was changed, renewed or held since the backup is forgotten, and what was created since is without a record: 'pinfold gc -dry-run' tells of it, 'pinfold gc -adopt ID' takes it back. 'pinfold state rebuild' forgets less where the state is damaged or lost.\n\nExit codes: 0 done; 1 error, or you did not approve.",
		Flags: []cli.Flag{
			boolFlag(&request.Force, "force", "also take a backup of another state, where nothing that this one made is left"),
			boolFlag(&request.DryRun, "dry-run", "tell what would be restored and what forgotten, and change nothing"),
			boolFlag(&autoApprove, "auto-approve", "do it without asking"),
			boolFlag(&input, "input", "never ask: needs -auto-approve, else it is an error"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold state restore /var/lib/pinfold/backups/state-20261201T080000Z-17.db"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 1, 1)
			if err != nil {
				return err
			}
			request.File = args[0]
			ask := !request.DryRun && !autoApprove
			if ask {
				if err := r.canAsk("state restore", input, "Add -auto-approve, or see what it would do with -dry-run."); err != nil {
					return err
				}
			}
			o, err := r.offline("state restore", "restore the state", lockWait)
			if err != nil {
				return err
			}
			return r.restore(ctx, o, request, ask)
		},
	}
}

// restore says first what will be forgotten, when it is to ask.
func (r *run) restore(ctx context.Context, o reconcile.OpenOptions, request reconcile.RestoreRequest, ask bool) error {
	if ask {
		try := request
		try.DryRun = true
		would, err := r.Restore(ctx, o, try)
		if err != nil {
			return err
		}
		r.out.WouldRestore(would, time.Now())
		if err := r.approved("Do you want to restore this backup?", "pinfold will put it in the place of the state, which is kept aside."); err != nil {
			return err
		}
	}
	result, err := r.Restore(ctx, o, request)
	switch {
	case err != nil:
		return err
	case r.json:
		return view.RestoreJSON(r.out, result)
	case request.DryRun:
		r.out.WouldRestore(result, time.Now())
	default:
		r.out.Restored(result, time.Now())
	}
	return nil
}

// approved asks; without a yes it says that nothing was changed and ends the command.
func (r *run) approved(question, what string) error {
	yes, err := r.ask(question, what)
	if err != nil {
		return err
	}
	if !yes {
		r.out.Linef("\nCancelled: nothing was changed.\n")
		return exitWith(exitError)
	}
	r.out.Printf("\n")
	return nil
}

// offline are the options of a command that works on the state file itself, and so
// not through an agent.
func (r *run) offline(verb, does string, lockWait time.Duration) (reconcile.OpenOptions, error) {
	if r.Euid != 0 {
		return reconcile.OpenOptions{}, failure("pinfold needs root to "+does, "You are user %d. Run it with sudo.", r.Euid)
	}
	return r.options(need{verb: verb, changes: true, lockWait: lockWait})
}

func (r *run) stateRebuildCommand() *cli.Command {
	var request reconcile.RebuildRequest
	var lockWait time.Duration
	autoApprove, input := false, true
	return &cli.Command{
		Name: "rebuild", Usage: "make a lost state anew from what is on the host", UsageText: "pinfold state rebuild [flags]",
		Description: "Makes a new state file where the old one is lost or damaged: from the notes that lie beside each sandbox, which also tell of the network, volumes and image it stands on, and from what the kernel tells. It keeps everything that runs, as it is now, and says what it could not know. A damaged file is kept beside the new one as state.db.bad-TIME; one that is in order is left alone. Nothing else on the host is changed.\n\nExit codes: 0 done; 1 error, or you did not approve.",
		Flags: []cli.Flag{
			boolFlag(&request.DryRun, "dry-run", "tell what would be recorded, and write nothing"),
			boolFlag(&autoApprove, "auto-approve", "do it without asking"),
			boolFlag(&input, "input", "never ask: needs -auto-approve, else it is an error"),
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold state rebuild -dry-run", "sudo pinfold state rebuild"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			if _, err := arguments(cmd, 0, 0); err != nil {
				return err
			}
			ask := !request.DryRun && !autoApprove
			if ask {
				if err := r.canAsk("state rebuild", input, "Add -auto-approve, or see what it would do with -dry-run."); err != nil {
					return err
				}
			}
			o, err := r.offline("state rebuild", "make the state anew", lockWait)
			if err != nil {
				return err
			}
			return r.rebuild(ctx, o, request, ask)
		},
	}
}

// rebuild shows first what it would do, when it is to ask.
func (r *run) rebuild(ctx context.Context, o reconcile.OpenOptions, request reconcile.RebuildRequest, ask bool) error {
	if ask {
		would, err := r.Rebuild(ctx, o, reconcile.RebuildRequest{DryRun: true})
		if err != nil {
			return err
		}
		r.out.WouldRebuild(would)
		if err := r.approved("Do you want to make the state anew?", "pinfold will record what is listed above."); err != nil {
			return err
		}
	}
	result, err := r.Rebuild(ctx, o, request)
	switch {
	case err != nil:
		return err
	case r.json:
		return view.RebuildJSON(r.out, result)
	case request.DryRun:
		r.out.WouldRebuild(result)
	default:
		r.out.Rebuilt(result, !ask)
	}
	return nil
}
