package conformance

import "pinfold/runtime"

var freeze = []test{
	{"pause and resume, each twice", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		for range 2 {
			w.must(w.h.Pause(w.ctx, in.ID))
			if s := w.state(in.ID); !s.Alive || !s.Started || !s.Frozen || s.Process != p || len(s.Missing) > 0 {
				w.Errorf("paused: %+v", s)
			}
		}
		for range 2 {
			w.must(w.h.Resume(w.ctx, in.ID))
			if s := w.state(in.ID); !s.Alive || !s.Started || s.Frozen || s.Process != p {
				w.Errorf("resumed: %+v", s)
			}
		}
		if code, _ := w.run(in.ID, w.Commands.Exit(6)); code != 6 {
			w.Errorf("exec after resume: code %d", code)
		}
	}},
	{"nothing can be executed in it", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		w.must(w.h.Pause(w.ctx, in.ID))
		_, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: w.Commands.Exit(0)})
		w.fails("Exec on a paused one", err, runtime.ErrPaused)
	}},
	{"a signal waits until it is thawed", func(w *world) {
		in := w.instance(w.Commands.OnSignal(10, "/got", "USR1"))
		p := w.ready(in)
		w.must(w.h.Pause(w.ctx, in.ID))
		w.must(w.h.Signal(w.ctx, in.ID, 10))
		if s := w.state(in.ID); !s.Alive || !s.Frozen || s.Outcome != nil {
			w.Errorf("paused: %+v", s)
		}
		w.must(w.h.Resume(w.ctx, in.ID))
		if s := w.exits(in.ID, p); s.Outcome == nil || s.Outcome.ExitCode != 0 || s.Outcome.Outside != 0 {
			w.Errorf("outcome %+v", s.Outcome)
		}
	}},
	{"limits can change while it is frozen", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		w.must(w.h.Pause(w.ctx, in.ID))
		in.Limits = runtime.Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 100}
		w.must(w.h.Update(w.ctx, in))
		if s := w.state(in.ID); !s.Frozen || s.Process != p || len(s.Missing) > 0 {
			w.Errorf("updated: %+v", s)
		}
	}},
	{"one that was only created", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.create(in)
		w.must(w.h.Pause(w.ctx, in.ID))
		if s := w.state(in.ID); !s.Alive || s.Started || !s.Frozen || s.Process != p {
			w.Errorf("paused: %+v", s)
		}
		w.fails("Start of a frozen one", w.h.Start(w.ctx, in.ID), runtime.ErrPaused)
		w.must(w.h.Resume(w.ctx, in.ID))
		w.must(w.h.Start(w.ctx, in.ID))
		if s := w.state(in.ID); !s.Alive || !s.Started || s.Frozen || s.Process != p {
			w.Errorf("resumed and started: %+v", s)
		}
	}},
	{"without a process there is nothing to freeze or thaw", func(w *world) {
		in := w.instance(w.Commands.Exit(0))
		w.exits(in.ID, w.up(in))
		w.fails("Pause", w.h.Pause(w.ctx, in.ID), runtime.ErrNotRunning)
		w.fails("Resume", w.h.Resume(w.ctx, in.ID), runtime.ErrNotRunning)
	}},
}
