package conformance

import (
	"slices"

	"pinfold/runtime"
)

var loss = []test{
	{"PID 1 killed from outside leaves no outcome", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		w.Controls.KillInit(w.T, w.state(in.ID))
		s := w.exits(in.ID, p)
		if s.Outcome != nil || !s.Layer || s.Mark != in.Mark {
			w.Errorf("lost: %+v, outcome %+v", s, s.Outcome)
		}
		_, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: w.Commands.Exit(0)})
		w.fails("Exec on a lost one", err, runtime.ErrNotRunning)
		if out := w.stop(in.ID); out != nil {
			w.Errorf("Stop found an outcome: %+v", out)
		}
		if again := w.up(in); again == p {
			w.Error("the new process is the lost one")
		}
	}},
	{"the same in created", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.create(in)
		w.Controls.KillInit(w.T, w.state(in.ID))
		if s := w.exits(in.ID, p); s.Outcome != nil || !s.Layer {
			w.Errorf("lost: %+v, outcome %+v", s, s.Outcome)
		}
		w.fails("Start", w.h.Start(w.ctx, in.ID), runtime.ErrNotRunning)
		w.up(in)
	}},
	{"create mends a loss without a stop", func(w *world) {
		n := w.network()
		in := w.instance(w.Commands.Forever)
		attach(&in, n, 0)
		p := w.up(in)
		w.writes(in.ID, "/kept", "yes")
		w.Controls.KillInit(w.T, w.state(in.ID))
		w.exits(in.ID, p)
		w.eventually("nothing of the lost process is left", func() bool { return !w.state(in.ID).Dying })
		again := w.up(in)
		if s := w.state(in.ID); again == p || s.Process != again || len(s.Missing) > 0 {
			w.Errorf("after create: %+v, before %+v", s, p)
		}
		w.reads(in.ID, "/kept", "yes")
	}},
	{"an outcome does not survive into a loss", func(w *world) {
		in := w.instance(w.Commands.Exit(3))
		w.exits(in.ID, w.up(in))
		w.stop(in.ID)
		in.Command = w.Commands.Forever
		p := w.up(in)
		w.Controls.KillInit(w.T, w.state(in.ID))
		if s := w.exits(in.ID, p); s.Outcome != nil {
			w.Errorf("the lost one has the outcome of the one before: %+v", s.Outcome)
		}
	}},
	{"the command killed from outside leaves one", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		w.Controls.KillMain(w.T, w.state(in.ID), 9)
		s := w.exits(in.ID, p)
		if o := s.Outcome; o == nil || o.ExitCode != 137 || o.Signal != 9 || o.OOM {
			w.Errorf("outcome %+v", o)
		}
	}},
	{"killed while frozen", func(w *world) {
		in := w.instance(w.Commands.OnSignal(15, "/got", "TERM"))
		w.ready(in)
		w.must(w.h.Pause(w.ctx, in.ID))
		w.Controls.KillInit(w.T, w.state(in.ID))
		w.stop(in.ID)
		if s := w.state(in.ID); s.Alive || s.Dying || !s.Layer {
			w.Errorf("stopped: %+v", s)
		}
		in.Command = w.Commands.Forever
		w.up(in)
		w.absent(in.ID, "/got")
	}},
	{"what is missing is seen and mended in place", func(w *world) {
		n := w.network()
		in := w.instance(w.Commands.Forever)
		attach(&in, n, 0)
		in.Limits = runtime.Limits{Memory: 256 << 20, PIDs: 100}
		p := w.up(in)
		for _, part := range w.Controls.Breakable {
			w.Controls.Break(w.T, in, w.state(in.ID), part)
			s := w.state(in.ID)
			if !s.Alive || !slices.Contains(s.Missing, part) {
				w.Errorf("without its %s: %+v", part, s)
			}
			for range 2 {
				w.must(w.h.Repair(w.ctx, in))
			}
			if s := w.state(in.ID); !s.Alive || s.Process != p || len(s.Missing) > 0 {
				w.Errorf("its %s repaired: %+v", part, s)
			}
		}
	}},
	{"what the caller recalls stands in for a cleared run dir", func(w *world) {
		n := w.network()
		in := w.instance(w.Commands.OnSignal(15, "/got", "TERM"))
		attach(&in, n, 0)
		p := w.ready(in)
		w.Controls.Break(w.T, in, w.state(in.ID), "rundir")

		w.h = w.open()
		if s := w.state(in.ID); s.Alive || !s.Dying {
			w.Errorf("nobody can tell which process it has: %+v", s)
		}
		other := p
		other.StartTime++
		w.h.Recall(in.ID, other, in.Mark)
		if s := w.state(in.ID); s.Alive {
			w.Errorf("another process of that number counts as its own: %+v", s)
		}
		w.h.Recall(in.ID, p, in.Mark)
		if s := w.state(in.ID); !s.Alive || !s.Started || s.Process != p || s.Mark != in.Mark || !slices.Contains(s.Missing, "rundir") {
			w.Errorf("recalled: %+v", s)
		}
		w.must(w.h.Repair(w.ctx, in))

		w.h = w.open()
		if s := w.state(in.ID); !s.Alive || s.Process != p || len(s.Missing) > 0 {
			w.Errorf("repaired: %+v", s)
		}
		w.writes(in.ID, "/exec", "works")
		w.must(w.h.Pause(w.ctx, in.ID))
		w.must(w.h.Resume(w.ctx, in.ID))
		if out := w.stop(in.ID); out == nil || out.ExitCode != 0 {
			w.Errorf("stopped by its signal: %+v", out)
		}
	}},
	{"a cleared run dir does not keep an instance from being taken down", func(w *world) {
		for _, recall := range []bool{true, false} {
			in := w.instance(w.Commands.Forever)
			p := w.up(in)
			w.Controls.Break(w.T, in, w.state(in.ID), "rundir")
			w.h = w.open()
			if recall {
				w.h.Recall(in.ID, p, in.Mark)
			}
			w.must(w.h.Remove(w.ctx, in.ID))
			w.must(w.h.WaitExit(w.ctx, in.ID, p))
		}
	}},
	{"one that waits for its start is made again after its run dir was cleared", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.create(in)
		w.Controls.Break(w.T, in, w.state(in.ID), "rundir")
		w.h = w.open()
		w.h.Recall(in.ID, p, in.Mark)
		if s := w.state(in.ID); !s.Alive || s.Started {
			w.Errorf("recalled: %+v", s)
		}
		w.fails("Start", w.h.Start(w.ctx, in.ID), nil)
		w.stop(in.ID)
		if again := w.up(in); again == p {
			w.Error("the new process is the old one")
		}
	}},
	{"a broken network is mended under its members", func(w *world) {
		n := w.network()
		in := w.instance(w.Commands.Forever)
		attach(&in, n, 0)
		p := w.up(in)
		for _, part := range w.Controls.NetworkBreakable {
			w.Controls.BreakNetwork(w.T, n, part)
			o, err := w.h.Observe(w.ctx)
			w.must(err)
			if s := o.Networks[n.ID]; s.Exists && len(s.Missing) == 0 {
				w.Errorf("without its %s: %+v", part, s)
			}
			w.must(w.h.EnsureNetwork(w.ctx, n))
			w.must(w.h.Repair(w.ctx, in))
			if o, err = w.h.Observe(w.ctx); err != nil {
				w.Fatal(err)
			}
			if s := o.Networks[n.ID]; !s.Exists || len(s.Missing) > 0 {
				w.Errorf("its %s repaired: %+v", part, s)
			}
			if s := o.Instances[in.ID]; !s.Alive || s.Process != p || len(s.Missing) > 0 {
				w.Errorf("the member after its network's %s was repaired: %+v", part, s)
			}
		}
	}},
}
