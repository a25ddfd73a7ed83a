package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// killBound is how long killed processes may take to be gone. Host init systems
// that reap orphans late hold up the end of a PID namespace for seconds.
const killBound = 15 * time.Second

// Stop implements runtime.Host. An instance that is not there is stopped.
func (h *Host) Stop(ctx context.Context, id string, how runtime.StopOptions) (*runtime.Outcome, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	rec, err := h.loadRecord(id)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, errDamaged) {
		return nil, err
	}
	running, err := h.loadProcess(id)
	if err != nil {
		return nil, err
	}
	if how.Grace > 0 {
		if how.Signal == 0 {
			how.Signal = rec.Instance.StopSignal
		}
		if err := h.ask(ctx, id, running.Process, how); err != nil {
			return nil, err
		}
	}
	if err := h.takeDown(ctx, id, running.Process); err != nil {
		return nil, err
	}
	out, err := h.readOutcome(id)
	return out.of(running.Process).result, err
}

// ask sends the stop signal and waits up to the grace for the process to end.
// One that is frozen or has not been started is not asked: it would have to run.
func (h *Host) ask(ctx context.Context, id string, p runtime.Process, how runtime.StopOptions) error {
	fd, err := h.openPidfd(p)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer fd.Close()
	tree, err := h.cgroupsOf(id)
	if err != nil {
		return err
	}
	frozen, err := tree.frozen(id)
	if err != nil {
		return err
	}
	out, err := h.readOutcome(id)
	if err != nil {
		return err
	}
	if frozen || !out.started {
		return nil
	}
	if how.Signal == 0 {
		how.Signal = int(unix.SIGTERM)
	}
	if unix.Signal(how.Signal) == unix.SIGKILL {
		return nil
	}
	if err := failpoint.Step("host.process.ask", func() error { return fd.signal(how.Signal) }); err != nil {
		if errors.Is(err, os.ErrProcessDone) {
			return nil
		}
		return fmt.Errorf("cannot send signal %d to instance %s: %w", how.Signal, id, err)
	}
	bounded, cancel := context.WithTimeout(ctx, how.Grace)
	defer cancel()
	if err := fd.wait(bounded); err != nil && ctx.Err() != nil {
		return fmt.Errorf("instance %s is still ending: %w", id, ctx.Err())
	}
	return nil
}

// kill ends all processes of an instance and waits until they are gone.
func (h *Host) kill(ctx context.Context, id string, p runtime.Process) error {
	tree, err := h.cgroupsOf(id)
	if err != nil {
		return err
	}
	fd, err := h.openPidfd(p)
	switch {
	case err == nil:
		defer fd.Close()
	case !errors.Is(err, os.ErrProcessDone):
		return err
	}
	living := err == nil
	if living {
		frozen, err := tree.frozen(id)
		if err != nil {
			return err
		}
		// The end of PID 1 is the end of its whole PID namespace. Where a cgroup is
		// frozen, all must have their signal before any of them is thawed.
		if !frozen {
			err := failpoint.Step("host.process.kill", func() error { return fd.signal(int(unix.SIGKILL)) })
			if err != nil && !errors.Is(err, os.ErrProcessDone) {
				return fmt.Errorf("cannot kill PID 1 of instance %s: %w", id, err)
			}
		}
	}
	bounded, cancel := context.WithTimeout(ctx, killBound)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if err := tree.killAll(id); err != nil {
			return err
		}
		if living {
			short, stop := context.WithTimeout(bounded, 20*pause)
			living = fd.wait(short) != nil
			stop()
		}
		if !living {
			left, err := tree.pids(id)
			if err != nil {
				return err
			}
			if len(left) == 0 {
				return nil
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("instance %s is still ending: %w", id, ctx.Err())
		}
		if bounded.Err() != nil {
			left, _ := tree.pids(id)
			if len(left) == 0 {
				left = []int{p.PID}
			}
			return fmt.Errorf("instance %s: processes %v did not end within %s of being killed; they may hang in the kernel (see /proc/PID/stack): %w", id, left, killBound, runtime.ErrBusy)
		}
		if !living {
			sleep(bounded, pause)
		}
	}
}

// takeDown kills what runs of the instance and releases everything but its
// files. It may be called in any state and again. What has its names and is not
// ours stays.
func (h *Host) takeDown(ctx context.Context, id string, p runtime.Process) error {
	if err := h.starters.settle(ctx); err != nil {
		return err
	}
	if p.PID == 0 {
		r, err := h.loadProcess(id)
		if err != nil {
			return err
		}
		p = r.Process
	}
	o, err := h.ownOf(id)
	if err != nil {
		return err
	}
	foreign := h.foreignProcesses(id, o)
	if foreign != nil && !errors.Is(foreign, runtime.ErrForeign) {
		return foreign
	}
	if foreign == nil {
		if err := h.kill(ctx, id, p); err != nil {
			return err
		}
		tree, err := h.cgroupsOf(id)
		if err != nil {
			return err
		}
		if kills, err := tree.oomKills(id); err == nil {
			if err := h.noteOOM(id, kills); err != nil {
				return err
			}
		}
	}
	// The namespace goes first: its end of the veth pair takes the link along.
	if err := h.releaseNetns(id, o); err != nil && !errors.Is(err, runtime.ErrForeign) {
		return err
	}
	if err := h.net.Detach(ctx, id, nil, nil); err != nil {
		return fmt.Errorf("cannot release the network of instance %s: %w", id, err)
	}
	trees, err := h.cgroupTrees()
	if err != nil {
		return err
	}
	for _, t := range trees {
		if foreign != nil {
			break
		}
		if err := t.remove(id, killBound); err != nil {
			return err
		}
	}
	err = failpoint.Step("host.container.remove", func() error { return os.RemoveAll(filepath.Join(h.containers(), id)) })
	if err != nil {
		return fmt.Errorf("cannot remove libcontainer's state of instance %s: %w", id, err)
	}
	if err := h.removeRun(id); err != nil {
		return err
	}
	h.mu.Lock()
	delete(h.recalled, id)
	h.mu.Unlock()
	return nil
}

// removeRun removes an instance's run directory.
func (h *Host) removeRun(id string) error {
	if err := failpoint.Step("host.run.remove", func() error { return os.RemoveAll(h.runDir(id)) }); err != nil {
		return fmt.Errorf("cannot remove the run directory of instance %s: %w", id, err)
	}
	return nil
}

// Remove implements runtime.Host.
func (h *Host) Remove(ctx context.Context, id string) error {
	if err := checkID(id); err != nil {
		return err
	}
	defer h.files.claim(id)()
	rec, err := h.loadRecord(id)
	if errors.Is(err, runtime.ErrForeign) {
		return err
	}
	known := err == nil
	if err := h.takeDown(ctx, id, runtime.Process{}); err != nil {
		return err
	}
	if known && rec.Carrying != "" {
		if err := h.giveBack(id, rec.Carrying); err != nil {
			return err
		}
	}
	h.mu.Lock()
	delete(h.gates, id)
	h.mu.Unlock()
	return h.forget(id)
}
