package conformance

import (
	"pinfold/runtime"
)

var notes = []test{
	{"a note lives and goes with its instance", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.fails("Note before Create", w.h.Note(w.ctx, in.ID, []byte(`{"n":0}`)), runtime.ErrNotFound)
		w.up(in)
		for _, doc := range []string{`{"n":1}`, `{"n":2}`} {
			w.must(w.h.Note(w.ctx, in.ID, []byte(doc)))
		}
		w.stop(in.ID)
		all, err := w.h.Notes(w.ctx)
		w.must(err)
		if !w.state(in.ID).Noted {
			w.Error("it does not say that it is noted")
		}
		n := all[in.ID]
		if string(n.Doc) != `{"n":2}` || n.At.IsZero() || n.Made == nil || n.Made.Mark != in.Mark || n.Made.Image != in.Image {
			w.Errorf("noted %s at %s of %+v", n.Doc, n.At, n.Made)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
		all, err = w.h.Notes(w.ctx)
		w.must(err)
		if _, there := all[in.ID]; there {
			w.Error("the note of a removed instance is there")
		}
	}},
	{"one without a note is listed with what it was made from", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.create(in)
		all, err := w.h.Notes(w.ctx)
		w.must(err)
		if n := all[in.ID]; w.state(in.ID).Noted || n.Doc != nil || n.Made == nil || n.Made.Mark != in.Mark {
			w.Errorf("noted %s of %+v", n.Doc, n.Made)
		}
	}},
	{"what is released says so and stays as it is", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.fails("Release before Create", w.h.Release(w.ctx, in.ID), runtime.ErrNotFound)
		p := w.up(in)
		if w.state(in.ID).Released {
			w.Error("released before Release")
		}
		w.must(w.h.Release(w.ctx, in.ID))
		w.must(w.h.Release(w.ctx, in.ID))
		if s := w.state(in.ID); !s.Released || !s.Alive || s.Process != p || len(s.Missing) > 0 {
			w.Errorf("released: %+v", s)
		}
		w.must(w.h.Reclaim(w.ctx, in.ID))
		w.must(w.h.Reclaim(w.ctx, in.ID))
		if s := w.state(in.ID); s.Released || !s.Alive || s.Process != p || len(s.Missing) > 0 {
			w.Errorf("reclaimed: %+v", s)
		}
		w.must(w.h.Release(w.ctx, in.ID))
		w.stop(in.ID)
		if s := w.state(in.ID); !s.Released || !s.Layer {
			w.Errorf("released and stopped: %+v", s)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
		w.fails("Reclaim after Remove", w.h.Reclaim(w.ctx, in.ID), runtime.ErrNotFound)
	}},
	{"what is released keeps its network and volume", func(w *world) {
		n, v := w.network(), w.volume()
		in := w.instance(w.Commands.Forever)
		attach(&in, n, 0)
		in.Mounts = append(in.Mounts, runtime.Mount{Kind: "volume", Source: v, Path: "/data"})
		p := w.up(in)
		w.must(w.h.Release(w.ctx, in.ID))
		w.fails("RemoveNetwork", w.h.RemoveNetwork(w.ctx, n), runtime.ErrBusy)
		w.fails("RemoveVolume", w.h.RemoveVolume(w.ctx, v), runtime.ErrBusy)
		s := w.state(in.ID)
		if s.Network != n.ID || len(s.Mounts) == 0 || s.Mounts[len(s.Mounts)-1].Source != v || s.Process != p || len(s.Missing) > 0 {
			w.Errorf("released: %+v", s)
		}
	}},
}
