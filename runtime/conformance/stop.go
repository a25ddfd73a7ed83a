package conformance

import (
	"time"

	"pinfold/runtime"
)

var stop = []test{
	{"graceful", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		out := w.stop(in.ID)
		if out == nil || out.ExitCode != 143 || out.Signal != 15 || out.Outside != 15 {
			w.Errorf("outcome %+v", out)
		}
		s := w.state(in.ID)
		if s.Alive || s.Dying || !s.Layer || s.Outcome == nil || s.Outcome.ExitCode != 143 {
			w.Errorf("stopped: %+v", s)
		}
		if again := w.stop(in.ID); again == nil || again.ExitCode != 143 {
			w.Errorf("stopped again: %+v", again)
		}
		_, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: w.Commands.Exit(0)})
		w.fails("Exec on a stopped one", err, runtime.ErrNotRunning)
		w.fails("Pause on a stopped one", w.h.Pause(w.ctx, in.ID), runtime.ErrNotRunning)
		w.fails("Start on a stopped one", w.h.Start(w.ctx, in.ID), runtime.ErrNotRunning)
	}},
	{"the stop signal is the instance's own, or the caller's", func(w *world) {
		in := w.instance(w.Commands.OnSignal(12, "/got", "USR2"))
		in.StopSignal = 12
		w.ready(in)
		if out := w.stop(in.ID); out == nil || out.ExitCode != 0 || out.Outside != 12 {
			w.Errorf("outcome %+v", out)
		}
		in.Command = w.Commands.OnSignal(10, "/got", "USR1")
		in.StopSignal = 0
		w.must(w.h.Remove(w.ctx, in.ID))
		w.ready(in)
		out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{Signal: 10, Grace: bound})
		w.must(err)
		if out == nil || out.ExitCode != 0 || out.Outside != 10 {
			w.Errorf("outcome %+v", out)
		}
	}},
	{"a command that ignores the signal is killed after the grace", func(w *world) {
		in := w.instance(w.Commands.Stubborn)
		p := w.ready(in)
		out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{Grace: 50 * time.Millisecond})
		w.must(err)
		if out != nil && out.Signal != 9 {
			w.Errorf("outcome %+v", out)
		}
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		if s := w.state(in.ID); s.Alive || s.Dying || !s.Layer {
			w.Errorf("stopped: %+v", s)
		}
	}},
	{"no grace kills at once", func(w *world) {
		in := w.instance(w.Commands.OnSignal(15, "/got", "TERM"))
		w.ready(in)
		out, err := w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
		w.must(err)
		if out != nil && out.Signal != 9 {
			w.Errorf("outcome %+v", out)
		}
		in.Command = w.Commands.Forever
		w.up(in)
		w.absent(in.ID, "/got")
	}},
	{"a frozen one never runs again", func(w *world) {
		in := w.instance(w.Commands.OnSignal(15, "/got", "TERM"))
		p := w.ready(in)
		w.must(w.h.Pause(w.ctx, in.ID))
		out := w.stop(in.ID)
		if out != nil && out.Signal != 9 {
			w.Errorf("outcome %+v", out)
		}
		w.must(w.h.WaitExit(w.ctx, in.ID, p))
		if s := w.state(in.ID); s.Alive || s.Dying || s.Frozen || !s.Layer {
			w.Errorf("stopped: %+v", s)
		}
		in.Command = w.Commands.Forever
		w.up(in)
		w.absent(in.ID, "/got")
	}},
	{"a created one never runs", func(w *world) {
		in := w.instance(w.Commands.Write("/ran", "yes"))
		w.create(in)
		if out := w.stop(in.ID); out != nil {
			w.Errorf("outcome %+v of a command that was not started", out)
		}
		if s := w.state(in.ID); s.Alive || s.Dying || s.Outcome != nil || !s.Layer {
			w.Errorf("stopped: %+v", s)
		}
		w.fails("Start", w.h.Start(w.ctx, in.ID), runtime.ErrNotRunning)
		in.Command = w.Commands.Forever
		w.up(in)
		w.absent(in.ID, "/ran")
	}},
	{"one that ended by itself keeps its outcome", func(w *world) {
		in := w.instance(w.Commands.Exit(5))
		w.exits(in.ID, w.up(in))
		for range 2 {
			if out := w.stop(in.ID); out == nil || out.ExitCode != 5 || out.Outside != 0 {
				w.Errorf("outcome %+v", out)
			}
		}
	}},
	{"network and port are free afterwards", func(w *world) {
		n := w.network()
		port, err := w.h.CheckPort(w.ctx, w.loopback, 0, "tcp")
		w.must(err)
		one := w.instance(w.Commands.Forever)
		attach(&one, n, 0)
		one.Forwards = []runtime.Forward{{Name: "web", Protocol: "tcp", HostAddr: w.loopback, HostPort: port, ContainerPort: 80}}
		w.up(one)
		w.stop(one.ID)
		two := w.instance(w.Commands.Forever)
		two.Net, two.Forwards = one.Net, one.Forwards
		w.up(two)
		if s := w.state(two.ID); !s.Alive || len(s.Missing) > 0 {
			w.Errorf("the one that took them over: %+v", s)
		}
		w.must(w.h.Remove(w.ctx, one.ID))
		if s := w.state(two.ID); !s.Alive || len(s.Missing) > 0 {
			w.Errorf("after the former holder was removed: %+v", s)
		}
		w.stop(two.ID)
		w.must(w.h.RemoveNetwork(w.ctx, n))
	}},
}
