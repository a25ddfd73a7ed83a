package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"pinfold/runtime"
)

var lifecycle = []test{
	{"created waits, started runs, its exit leaves an outcome", func(w *world) {
		in := w.instance(w.Commands.Exit(3))
		before := time.Now()
		p := w.create(in)
		s := w.state(in.ID)
		if !s.Alive || s.Started || s.Frozen || s.Dying || !s.Layer || s.Outcome != nil || len(s.Missing) > 0 {
			w.Errorf("created: %+v", s)
		}
		if s.ID != in.ID || s.Mark != in.Mark || s.Process != p {
			w.Errorf("it is seen as %+v, made as %+v with %+v", s, in.Mark, p)
		}
		w.must(w.h.Start(w.ctx, in.ID))
		s = w.exits(in.ID, p)
		if s.Outcome == nil || s.Outcome.ExitCode != 3 || s.Outcome.Signal != 0 || s.Outcome.Outside != 0 || s.Outcome.OOM {
			w.Fatalf("outcome %+v", s.Outcome)
		}
		// A second of slack: the outcome may have whole seconds.
		if at := s.Outcome.At; at.Before(before.Add(-time.Second)) || at.After(time.Now().Add(time.Second)) {
			w.Errorf("it ended at %s, in a test that began at %s", at, before)
		}
		if !s.Layer {
			w.Error("the layer went with the process")
		}
		if out := w.stop(in.ID); out == nil || !out.At.Equal(s.Outcome.At) || out.ExitCode != 3 {
			w.Errorf("Stop says %+v, Observe said %+v", out, s.Outcome)
		}
	}},
	{"the process is the one of this boot", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		info, err := w.h.Info(w.ctx)
		w.must(err)
		o, err := w.h.Observe(w.ctx)
		w.must(err)
		if info.BootID == "" || o.BootID != info.BootID || p.BootID != info.BootID {
			w.Errorf("boot ids: Info %q, Observe %q, process %q", info.BootID, o.BootID, p.BootID)
		}
		if p.PID <= 1 || p.StartTime == 0 {
			w.Errorf("process %+v", p)
		}
		if info.Kernel == "" || info.Cgroups == "" {
			w.Errorf("info %+v", info)
		}
	}},
	{"create and start again change nothing", func(w *world) {
		in := w.instance(w.Commands.Stubborn)
		p := w.create(in)
		if again := w.create(in); again != p {
			w.Errorf("created again: %+v, before %+v", again, p)
		}
		w.must(w.h.Start(w.ctx, in.ID))
		w.must(w.h.Start(w.ctx, in.ID))
		if again := w.create(in); again != p {
			w.Errorf("created while it runs: %+v, before %+v", again, p)
		}
		w.eventually("the command is ready", func() bool { return w.log(in.ID) != "" })
		if code, _ := w.run(in.ID, w.Commands.Exit(0)); code != 0 {
			w.Errorf("exec: code %d", code)
		}
		if log := w.log(in.ID); log != "ready\n" {
			w.Errorf("the command did not run once; the log is %q", log)
		}
		if s := w.state(in.ID); !s.Alive || !s.Started || s.Process != p || len(s.Missing) > 0 {
			w.Errorf("running: %+v", s)
		}
	}},
	{"a command that cannot be executed leaves only the layer", func(w *world) {
		in := w.instance(w.Commands.Missing)
		p := w.create(in)
		w.fails("Start", w.h.Start(w.ctx, in.ID), runtime.ErrCommand)
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		s := w.state(in.ID)
		if s.Alive || s.Dying || !s.Layer || len(s.Missing) > 0 {
			w.Errorf("after it: %+v", s)
		}
		in.Command = w.Commands.Forever
		if again := w.up(in); again == p {
			w.Error("the new process is the old one")
		}
	}},
	{"a failed create leaves nothing new", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.Mounts = []runtime.Mount{{Kind: "volume", Source: randomHex(12), Path: "/v"}}
		_, err := w.h.Create(w.ctx, in)
		w.fails("Create with a volume that does not exist", err, nil)
		if s, found := w.look(in.ID); found {
			w.Errorf("it left %+v", s)
		}
		w.must(w.h.Remove(w.ctx, in.ID))

		good := w.instance(w.Commands.Forever)
		w.up(good)
		w.writes(good.ID, "/kept", "yes")
		w.stop(good.ID)
		bad := good
		bad.Mounts = in.Mounts
		_, err = w.h.Create(w.ctx, bad)
		w.fails("Create with a volume that does not exist", err, nil)
		if s := w.state(good.ID); s.Alive || !s.Layer {
			w.Errorf("after a failed create over a layer: %+v", s)
		}
		w.up(good)
		w.reads(good.ID, "/kept", "yes")
	}},
	{"an image that does not exist is not found", func(w *world) {
		_, err := w.h.PrepareImage(w.ctx, w.NoImage)
		w.fails("PrepareImage", err, runtime.ErrNotFound)
	}},
	{"signals reach the command, and the outcome says so", func(w *world) {
		in := w.instance(w.Commands.OnSignal(10, "/got", "USR1"))
		p := w.ready(in)
		w.must(w.h.Signal(w.ctx, in.ID, 10))
		s := w.exits(in.ID, p)
		if o := s.Outcome; o == nil || o.ExitCode != 0 || o.Signal != 0 || o.Outside != 0 {
			w.Errorf("outcome %+v", o)
		}
		w.fails("Signal without a process", w.h.Signal(w.ctx, in.ID, 10), nil)
		in.Command = w.Commands.Forever
		w.up(in)
		w.reads(in.ID, "/got", "USR1")
	}},
	{"SIGKILL goes to the command, and PID 1 tells of it", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		w.must(w.h.Signal(w.ctx, in.ID, 9))
		if s := w.exits(in.ID, p); s.Outcome == nil || s.Outcome.ExitCode != 137 || s.Outcome.Signal != 9 || s.Outcome.Outside != 9 {
			w.Errorf("outcome %+v", s.Outcome)
		}
	}},
	{"signals that cannot be sent", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		for _, sig := range []int{19, 64} {
			w.fails(fmt.Sprintf("Signal %d", sig), w.h.Signal(w.ctx, in.ID, sig), runtime.ErrUnsupported)
		}
		if s := w.state(in.ID); !s.Alive || s.Process != p || s.Frozen {
			w.Errorf("after them: %+v", s)
		}
	}},
	{"before the start there is no command to signal", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.create(in)
		w.fails("Signal", w.h.Signal(w.ctx, in.ID, 15), runtime.ErrNotRunning)
		if s := w.state(in.ID); !s.Alive || s.Process != p {
			w.Errorf("after it: %+v", s)
		}
	}},
	{"an end by its own signal", func(w *world) {
		in := w.instance(w.Commands.KillSelf(10))
		s := w.exits(in.ID, w.up(in))
		if o := s.Outcome; o == nil || o.ExitCode != 138 || o.Signal != 10 || o.Outside != 0 {
			w.Errorf("outcome %+v", o)
		}
	}},
	{"the next incarnation has no outcome yet", func(w *world) {
		in := w.instance(w.Commands.Exit(4))
		first := w.up(in)
		w.exits(in.ID, first)
		w.stop(in.ID)
		if s := w.state(in.ID); s.Outcome == nil || s.Outcome.ExitCode != 4 {
			w.Errorf("after Stop, the outcome is %+v", s.Outcome)
		}
		in.Command = w.Commands.Forever
		second := w.create(in)
		if s := w.state(in.ID); s.Outcome != nil || s.Process != second || second == first {
			w.Errorf("the next one: %+v, outcome %+v", s, s.Outcome)
		}
	}},
	{"WaitExit", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		ctx, cancel := context.WithCancel(w.ctx)
		waited := make(chan error, 2)
		go func() { waited <- w.h.WaitExit(ctx, in.ID, p) }()
		cancel()
		w.fails("WaitExit with a cancelled context", <-waited, context.Canceled)
		go func() { waited <- w.h.WaitExit(w.ctx, in.ID, p) }()
		go func() { waited <- w.h.WaitExit(w.ctx, in.ID, p) }()
		w.stop(in.ID)
		w.must(<-waited)
		w.must(<-waited)
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		w.up(in)
		w.must(w.h.WaitExit(w.ctx, in.ID, p)) // of the former incarnation
		w.must(w.h.Remove(w.ctx, in.ID))
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		w.must(w.h.WaitExit(w.ctx, randomHex(12), p))
	}},
	{"out of memory", func(w *world) {
		in := w.instance(w.Commands.Hog)
		in.Limits = runtime.Limits{Memory: 32 << 20}
		s := w.exits(in.ID, w.up(in))
		if o := s.Outcome; o == nil || o.ExitCode != 137 || o.Signal != 9 || o.Outside != 0 || !o.OOM {
			w.Errorf("outcome %+v", o)
		}
		if s.OOMKills == 0 {
			w.Errorf("the counter has not risen: %+v", s)
		}
		if out := w.stop(in.ID); out == nil || !out.OOM {
			w.Errorf("Stop says %+v", out)
		}
		if s := w.state(in.ID); s.Outcome == nil || !s.Outcome.OOM {
			w.Errorf("after Stop, without the cgroup, the outcome is %+v", s.Outcome)
		}
	}},
	{"looking goes on beside everything", func(w *world) {
		n := w.network()
		done := make(chan error)
		ctx, cancel := context.WithCancel(w.ctx)
		defer cancel()
		for range 2 {
			go func() {
				done <- func() error {
					for ctx.Err() == nil {
						o, err := w.h.Observe(w.ctx)
						if err != nil {
							return err
						}
						for id, s := range o.Instances {
							if s.Unknown != "" {
								return fmt.Errorf("instance %s could not be seen: %s", id, s.Unknown)
							}
							if _, _, err := w.h.Inspect(w.ctx, id); err != nil {
								return err
							}
						}
					}
					return nil
				}()
			}()
		}
		for i := range 3 {
			in := w.instance(w.Commands.Forever)
			attach(&in, n, i)
			w.up(in)
			w.must(w.h.Pause(w.ctx, in.ID))
			w.must(w.h.Resume(w.ctx, in.ID))
			w.stop(in.ID)
			w.up(in)
			w.must(w.h.Remove(w.ctx, in.ID))
		}
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				w.Error(err)
			}
		}
	}},
	{"remove in every state", func(w *world) {
		running := w.instance(w.Commands.Forever)
		w.up(running)
		stubborn := w.instance(w.Commands.Stubborn)
		w.ready(stubborn)
		frozen := w.instance(w.Commands.Forever)
		w.up(frozen)
		w.must(w.h.Pause(w.ctx, frozen.ID))
		created := w.instance(w.Commands.Forever)
		w.create(created)
		exited := w.instance(w.Commands.Exit(0))
		w.exits(exited.ID, w.up(exited))
		stopped := w.instance(w.Commands.Forever)
		w.up(stopped)
		w.stop(stopped.ID)
		for name, id := range map[string]string{
			"running": running.ID, "stubborn": stubborn.ID, "frozen": frozen.ID, "created": created.ID,
			"exited": exited.ID, "stopped": stopped.ID, "unknown": randomHex(12),
		} {
			for range 2 {
				if err := w.h.Remove(w.ctx, id); err != nil {
					w.Errorf("remove a %s one: %v", name, err)
				}
			}
			if s, found := w.look(id); found {
				w.Errorf("of a removed %s one there is %+v", name, s)
			}
		}
		_, err := w.h.OpenLog(w.ctx, running.ID)
		w.fails("OpenLog of a removed one", err, runtime.ErrNotFound)
	}},
	{"twenty at the same time", func(w *world) {
		n := w.network()
		ins := make([]runtime.Instance, 20)
		for i := range ins {
			ins[i] = w.instance(w.Commands.Forever)
			attach(&ins[i], n, i)
		}
		errs := make([]error, len(ins))
		all := func(do func(runtime.Instance) error) {
			var group sync.WaitGroup
			for i := range ins {
				group.Go(func() { errs[i] = do(ins[i]) })
			}
			group.Wait()
			w.must(errors.Join(errs...))
		}
		all(func(in runtime.Instance) error {
			_, err := w.h.Create(w.ctx, in)
			return errors.Join(err, w.h.Start(w.ctx, in.ID))
		})
		o, err := w.h.Observe(w.ctx)
		w.must(err)
		pids := map[int]bool{}
		for _, in := range ins {
			s := o.Instances[in.ID]
			if !s.Alive || !s.Started || len(s.Missing) > 0 || s.Unknown != "" || s.Mark != in.Mark {
				w.Errorf("instance %s: %+v", in.ID, s)
			}
			pids[s.Process.PID] = true
		}
		if len(pids) != len(ins) {
			w.Errorf("%d instances have %d PIDs", len(ins), len(pids))
		}
		all(func(in runtime.Instance) error { return w.h.Remove(w.ctx, in.ID) })
		if o, err = w.h.Observe(w.ctx); err != nil || len(o.Instances) > 0 {
			w.Errorf("after all were removed: %+v, %v", o.Instances, err)
		}
	}},
}
