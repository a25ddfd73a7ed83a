package conformance

import (
	"os"
	"time"

	"pinfold/runtime"
)

var stats = []test{
	{"a busy command's processor time grows, and not while it is frozen", func(w *world) {
		in := w.instance(w.Commands.Busy)
		w.ready(in)
		first := w.stats(in.ID)
		w.eventually("it has had another tenth of a second", func() bool { return w.stats(in.ID).CPU >= first.CPU+100*time.Millisecond })
		if s := w.stats(in.ID); s.Frozen || s.At.Before(first.At) {
			w.Errorf("%+v after %+v", s, first)
		}
		w.must(w.h.Pause(w.ctx, in.ID))
		frozen := w.stats(in.ID)
		if !frozen.Frozen || frozen.CPU <= first.CPU {
			w.Errorf("frozen: %+v", frozen)
		}
		w.eventually("time passes", func() bool { return time.Since(frozen.At) > 50*time.Millisecond })
		if s := w.stats(in.ID); s.CPU != frozen.CPU {
			w.Errorf("while frozen it has had %s more", s.CPU-frozen.CPU)
		}
		w.must(w.h.Resume(w.ctx, in.ID))
		w.eventually("it runs again", func() bool { return w.stats(in.ID).CPU > frozen.CPU })
	}},
	{"memory and its limit", func(w *world) {
		const size = 24 << 20
		small, big := w.instance(w.Commands.Stubborn), w.instance(w.Commands.Hold(size))
		big.Limits = runtime.Limits{Memory: 128 << 20}
		w.ready(small)
		w.ready(big)
		if s := w.stats(big.ID); s.Memory < size || s.Memory > size+16<<20 || s.MemoryLimit != big.Limits.Memory {
			w.Errorf("with %d bytes in use: %+v", size, s)
		}
		if s := w.stats(small.ID); s.Memory <= 0 || s.Memory >= size || s.MemoryLimit != 0 {
			w.Errorf("without: %+v", s)
		}
	}},
	{"processes and their limit", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.Limits = runtime.Limits{PIDs: 50}
		w.create(in)
		if s := w.stats(in.ID); s.PIDs < 1 { // an init that waits may have threads
			w.Errorf("created: %+v", s)
		}
		w.must(w.h.Start(w.ctx, in.ID))
		if s := w.stats(in.ID); s.PIDs != 2 || s.PIDsLimit != 50 {
			w.Errorf("started: %+v", s)
		}
		r, input, err := os.Pipe()
		w.must(err)
		defer r.Close()
		p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: w.Commands.CopyInput, Stdin: r})
		w.must(err)
		w.eventually("there is one process more", func() bool { return w.stats(in.ID).PIDs == 3 })
		input.Close()
		_, err = p.Wait()
		w.must(err)
		w.eventually("it is gone", func() bool { return w.stats(in.ID).PIDs == 2 })
	}},
	{"traffic is counted where there is a network", func(w *world) {
		alone := w.instance(w.Commands.Forever)
		w.up(alone)
		if s := w.stats(alone.ID); s.Net != nil {
			w.Errorf("without a network: %+v", s.Net)
		}
		in := w.instance(w.Commands.Serve(7))
		attach(&in, w.network(), 0)
		w.ready(in)
		if w.stats(in.ID).Net == nil {
			w.Error("no traffic is told of one with a network")
		}
	}},
	{"without a process there is nothing to tell", func(w *world) {
		in := w.instance(w.Commands.Forever)
		_, err := w.h.Stats(w.ctx, in.ID)
		w.fails("Stats of nothing", err, runtime.ErrNotFound)
		w.up(in)
		w.stop(in.ID)
		_, err = w.h.Stats(w.ctx, in.ID)
		w.fails("Stats of a stopped one", err, runtime.ErrNotRunning)
		gone := w.instance(w.Commands.Exit(0))
		w.exits(gone.ID, w.up(gone))
		_, err = w.h.Stats(w.ctx, gone.ID)
		w.fails("Stats of one that exited", err, runtime.ErrNotRunning)
	}},
}

func (w *world) stats(id string) runtime.Stats {
	w.Helper()
	s, err := w.h.Stats(w.ctx, id)
	w.must(err)
	return s
}
