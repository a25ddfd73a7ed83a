package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"time"

	"pinfold/runtime"
	"pinfold/runtime/network"
)

// Observe implements runtime.Host. Per instance it reads a few small files, on all
// processors; what the host has of the network is read in one dump for all.
func (h *Host) Observe(ctx context.Context) (runtime.Observation, error) {
	o := runtime.Observation{
		BootID: h.boot, At: time.Now(),
		Instances: map[string]runtime.InstanceState{}, Networks: map[string]runtime.NetworkState{}, Volumes: map[string]bool{},
	}
	trees, err := h.cgroupTrees()
	if err != nil {
		return o, err
	}
	seen, err := h.net.Observe(ctx)
	if err != nil {
		return o, fmt.Errorf("cannot look at the network: %w", err)
	}
	for id, n := range seen.Networks {
		o.Networks[id] = n
	}
	ids, err := h.everyInstance(trees, seen)
	if err != nil {
		return o, err
	}
	var looks sync.WaitGroup
	var mu sync.Mutex
	next := make(chan string)
	for range min(goruntime.GOMAXPROCS(0), len(ids)) {
		looks.Go(func() {
			for id := range next {
				s, err := h.look(id, &seen)
				if err != nil {
					s = runtime.InstanceState{ID: id, Unknown: err.Error(), Mark: s.Mark, Released: s.Released}
				}
				mu.Lock()
				o.Instances[id] = s
				mu.Unlock()
			}
		})
	}
	for id := range ids {
		if ctx.Err() != nil {
			break
		}
		next <- id
	}
	close(next)
	looks.Wait()
	if err := ctx.Err(); err != nil {
		return o, err
	}
	volumes, err := os.ReadDir(filepath.Join(h.opts.StateDir, "volumes"))
	if err != nil {
		return o, fmt.Errorf("cannot list volumes: %w", err)
	}
	for _, v := range volumes {
		if v.IsDir() {
			o.Volumes[v.Name()] = true
		}
	}
	return o, nil
}

// recorded lists the instances that have a directory.
func (h *Host) recorded() ([]string, error) {
	return listIDs(filepath.Join(h.opts.StateDir, "instances"))
}

func listIDs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list instances: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if isInstanceID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// everyInstance also finds those of which only a part is left.
func (h *Host) everyInstance(trees []*cgroupTree, seen network.Observed) (map[string]bool, error) {
	ids := map[string]bool{}
	list := func(into map[string]bool, dirs ...string) error {
		for _, dir := range dirs {
			list, err := listIDs(dir)
			// Whoever clears the run directory takes its directories along.
			if err != nil && !(errors.Is(err, os.ErrNotExist) && within(h.opts.RunDir, dir)) {
				return err
			}
			for _, id := range list {
				into[id] = true
			}
		}
		return nil
	}
	if err := list(ids, filepath.Join(h.opts.StateDir, "instances"), filepath.Join(h.opts.RunDir, "instances"), h.containers()); err != nil {
		return nil, err
	}
	for id := range seen.Instances {
		ids[id] = true
	}
	names := map[string]bool{}
	if err := list(names, filepath.Join(h.opts.RunDir, "netns")); err != nil {
		return nil, err
	}
	for _, t := range trees {
		grouped, err := t.instances()
		if err != nil {
			return nil, err
		}
		for _, id := range grouped {
			names[id] = true
		}
	}
	for id := range names {
		if ids[id] {
			continue
		}
		ours, err := h.remains(id)
		if err != nil {
			return nil, err
		}
		if ours {
			ids[id] = true
		}
	}
	return ids, nil
}

// Inspect implements runtime.Host. It leaves out what is missing of the network.
func (h *Host) Inspect(ctx context.Context, id string) (runtime.InstanceState, bool, error) {
	if err := checkID(id); err != nil {
		return runtime.InstanceState{}, false, err
	}
	found := false
	for _, path := range []string{h.instanceDir(id), h.runDir(id), filepath.Join(h.containers(), id)} {
		var err error
		if found, err = there(path); err != nil {
			return runtime.InstanceState{}, false, err
		}
		if found {
			break
		}
	}
	if !found {
		var err error
		if found, err = h.remains(id); err != nil || !found {
			return runtime.InstanceState{}, false, err
		}
	}
	s, err := h.look(id, nil)
	if err != nil {
		s = runtime.InstanceState{ID: id, Unknown: err.Error(), Mark: s.Mark, Released: s.Released}
	}
	return s, true, nil
}

// look sees one instance. seen may be nil: the network is left out then. An
// instance that is made or taken down meanwhile is looked at again: half of
// either would be neither true before nor after.
func (h *Host) look(id string, seen *network.Observed) (s runtime.InstanceState, err error) {
	for range 5 {
		s, err = h.lookOnce(id, seen)
		if err == nil && !s.Alive {
			return s, nil
		}
		// It held throughout if the very process lives that was there at first.
		now, lerr := h.loadProcess(id)
		if lerr != nil || now.Process != s.Process {
			continue
		}
		if ok, aerr := h.alive(now.Process); aerr == nil && ok {
			return s, err
		}
	}
	return s, err
}

func (h *Host) lookOnce(id string, seen *network.Observed) (runtime.InstanceState, error) {
	s := runtime.InstanceState{ID: id}
	rec, damage := h.loadRecord(id)
	if damage != nil && !errors.Is(damage, os.ErrNotExist) && !errors.Is(damage, errDamaged) {
		return s, damage
	}
	known := damage == nil
	tree, err := h.cgroupsOf(id)
	if err != nil {
		return s, err
	}
	running, err := h.loadProcess(id)
	if err != nil {
		return s, err
	}
	if s.Mark = running.Mark; known {
		s.Mark, s.IDs = rec.Instance.Mark, rec.Instance.IDs
		if rec.Instance.Net != nil {
			s.Address, s.Network = rec.Instance.Net.Address.Addr(), rec.Instance.Net.Network.ID
		}
		s.Mounts = rec.Instance.Mounts
	}
	if s.Released, err = there(h.releasedPath(id)); err != nil {
		return s, err
	}
	if s.Noted, err = there(h.notePath(id)); err != nil {
		return s, err
	}
	if _, err := os.Lstat(filepath.Join(h.instanceDir(id), "upper")); err == nil {
		s.Layer = true
	} else if !errors.Is(err, os.ErrNotExist) {
		return s, err
	}
	if s.Alive, err = h.alive(running.Process); err != nil {
		return s, err
	}
	if s.Alive = s.Alive && !running.Creating; s.Alive {
		s.Process = running.Process
	}
	out, err := h.readOutcome(id)
	if err != nil {
		return s, err
	}
	out = out.of(running.Process)
	if s.OOMKills, err = tree.oomKills(id); err != nil {
		return s, err
	}
	if s.Outcome = out.result; s.Outcome != nil && s.OOMKills > 0 {
		s.Outcome.OOM = true
	}
	if !s.Alive {
		// An init that was never let go belongs to a Create that was cut off: nobody
		// has to wait for it.
		if _, err := os.Lstat(filepath.Join(h.containers(), id, "exec.fifo")); err == nil {
			return s, nil
		}
		left, err := tree.pids(id)
		if err != nil || len(left) == 0 {
			return s, err
		}
		o, err := h.ownOf(id)
		s.Dying = o.cgroup
		return s, err
	}
	// One without a process can be told to be just that, whatever became of its
	// record. Of one that lives we would not know what it should have.
	if errors.Is(damage, errDamaged) {
		return s, damage
	}
	s.Started = out.started
	if s.Frozen, err = tree.frozen(id); err != nil {
		return s, err
	}
	if s.Missing, err = h.missing(rec, known, s, tree, seen); err == nil && (running.lost || !h.containerKnown(id)) {
		s.Missing = append(s.Missing, "rundir")
	}
	return s, err
}

func (h *Host) missing(rec record, known bool, s runtime.InstanceState, tree *cgroupTree, seen *network.Observed) ([]string, error) {
	id := s.ID
	var missing []string
	cgroup := tree.complete(id)
	if !cgroup {
		missing = append(missing, "cgroup")
	}
	mounted, err := h.mounted(rec.Instance, id, s.Process.PID)
	if err != nil {
		return nil, err
	}
	if !s.Layer || !mounted {
		missing = append(missing, "rootfs")
	}
	bound, err := h.netnsBound(id, s.Process.PID)
	if err != nil {
		return nil, err
	}
	if !bound {
		missing = append(missing, "netns")
	}
	if !known {
		return missing, nil
	}
	if rec.Instance.Net != nil && seen != nil {
		n := seen.Instances[id]
		if !n.Link {
			missing = append(missing, "link")
		}
		if n.Address {
			if n.Address, err = network.Inside(s.Process.PID, *rec.Instance.Net); err != nil {
				return nil, err
			}
		}
		if !n.Address {
			missing = append(missing, "address")
		}
		if !n.Rules {
			missing = append(missing, "rules")
		}
	}
	if cgroup {
		hold, err := tree.limitsHold(id, rec.Instance.Limits, s.Started)
		if err != nil {
			return nil, fmt.Errorf("cannot read the limits: %w", err)
		}
		if !hold {
			missing = append(missing, "limits")
		}
	}
	return missing, nil
}
