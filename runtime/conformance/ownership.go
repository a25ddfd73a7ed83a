package conformance

var ownership = []test{
	{"another lineage is invisible and untouched", func(w *world) {
		in := w.instance(w.Commands.Forever)
		n := w.network()
		v := w.volume()
		attach(&in, n, 0)
		p := w.up(in)
		other := w.openOther()
		o, err := other.Observe(w.ctx)
		w.must(err)
		if len(o.Instances)+len(o.Networks)+len(o.Volumes) > 0 {
			w.Errorf("the other lineage sees %+v", o)
		}
		if _, found, err := other.Inspect(w.ctx, in.ID); found || err != nil {
			w.Errorf("the other lineage finds it: %v, %v", found, err)
		}
		w.must(other.Remove(w.ctx, in.ID))
		w.must(other.RemoveVolume(w.ctx, v))
		// Whether removing a network of somebody else is refused or finds
		// nothing is the host's to choose; that it stays is not.
		_ = other.RemoveNetwork(w.ctx, n)
		w.close(other)
		if s := w.state(in.ID); !s.Alive || s.Process != p || len(s.Missing) > 0 {
			w.Errorf("the instance: %+v", s)
		}
		if o, err = w.h.Observe(w.ctx); err != nil || !o.Networks[n.ID].Exists || !o.Volumes[v] {
			w.Errorf("network and volume: %+v, %v", o, err)
		}
	}},
	{"sandboxes outlive the process that made them", func(w *world) {
		in := w.instance(w.Commands.OnSignal(15, "/got", "TERM"))
		n := w.network()
		attach(&in, n, 0)
		p := w.ready(in)
		created := w.instance(w.Commands.Exit(3))
		q := w.create(created)
		w.close(w.h)
		w.h = w.open()
		if s := w.state(in.ID); !s.Alive || !s.Started || s.Process != p || s.Mark != in.Mark || len(s.Missing) > 0 {
			w.Errorf("the running one: %+v, before %+v", s, p)
		}
		if s := w.state(created.ID); !s.Alive || s.Started || s.Process != q {
			w.Errorf("the created one: %+v, before %+v", s, q)
		}
		if code, _ := w.run(in.ID, w.Commands.Exit(7)); code != 7 {
			w.Errorf("exec: code %d", code)
		}
		w.must(w.h.Start(w.ctx, created.ID))
		if s := w.exits(created.ID, q); s.Outcome == nil || s.Outcome.ExitCode != 3 {
			w.Errorf("outcome %+v", s.Outcome)
		}
		w.must(w.h.Pause(w.ctx, in.ID))
		w.h = w.open()
		if s := w.state(in.ID); !s.Frozen {
			w.Errorf("the frozen one: %+v", s)
		}
		w.must(w.h.Resume(w.ctx, in.ID))
		if out := w.stop(in.ID); out == nil || out.ExitCode != 0 || out.Outside != 15 {
			w.Errorf("outcome %+v", out)
		}
	}},
	{"an exit while nobody looks is found later", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		s := w.state(in.ID)
		w.close(w.h)
		w.Controls.KillMain(w.T, s, 15)
		w.h = w.open()
		if s := w.exits(in.ID, p); s.Outcome == nil || s.Outcome.Signal != 15 {
			w.Errorf("outcome %+v", s.Outcome)
		}
	}},
}
