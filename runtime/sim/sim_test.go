package sim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pinfold/runtime"
	"pinfold/runtime/sim"
)

var ctx = context.Background()

const idA = "00000000000a"

func spec(id string, command ...string) runtime.Instance {
	return runtime.Instance{
		ID:      id,
		Mark:    runtime.Mark{UID: "uid-" + id, Address: "sandbox." + id},
		Image:   runtime.Image{ImageSource: runtime.ImageSource{Kind: "host"}, Digest: "host"},
		Command: command,
		Seccomp: "default",
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func up(t *testing.T, h *sim.Host, in runtime.Instance) runtime.Process {
	t.Helper()
	p, err := h.Create(ctx, in)
	must(t, err)
	must(t, h.Start(ctx, in.ID))
	return p
}

func state(t *testing.T, h *sim.Host, id string) runtime.InstanceState {
	t.Helper()
	o, err := h.Observe(ctx)
	must(t, err)
	one, found, err := h.Inspect(ctx, id)
	must(t, err)
	all, known := o.Instances[id]
	if found != known || !reflect.DeepEqual(one, all) {
		t.Fatalf("Inspect says %+v, %v; Observe says %+v, %v", one, found, all, known)
	}
	return all
}

func empty(t *testing.T, w *sim.World) {
	t.Helper()
	if left := w.Leftovers(); len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

// Virtual time: the exit comes at its instant, not before.
func TestScriptRunsOnTheBubblesClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sim.New()
		h := w.Open("l1")
		begin := time.Now()
		p := up(t, h, spec(idA, "sim", "after=2h", "exit=3"))
		time.Sleep(2*time.Hour - 1)
		synctest.Wait()
		if s := state(t, h, idA); !s.Alive || s.Outcome != nil {
			t.Fatalf("before its time: %+v", s)
		}
		must(t, h.WaitExit(ctx, idA, p))
		s := state(t, h, idA)
		if s.Alive || s.Outcome == nil || s.Outcome.ExitCode != 3 || !s.Outcome.At.Equal(begin.Add(2*time.Hour)) {
			t.Fatalf("after it: %+v, outcome %+v", s, s.Outcome)
		}
	})
}

func TestFrozenTimeCountsButNothingRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := sim.New().Open("l1")
		p := up(t, h, spec(idA, "sim", "after=1m", "exit=4"))
		must(t, h.Pause(ctx, idA))
		must(t, h.Signal(ctx, idA, 10))
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := state(t, h, idA); !s.Alive || !s.Frozen || s.Process != p {
			t.Fatalf("frozen: %+v", s)
		}
		must(t, h.Resume(ctx, idA))
		// The signal that waited comes before the timer that rang.
		if s := state(t, h, idA); s.Alive || s.Outcome.Signal != 10 || s.Outcome.Outside != 0 {
			t.Fatalf("thawed: %+v %+v", s, s.Outcome)
		}
	})
}

func TestStopTakesTheGraceAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sim.New()
		h := w.Open("l1")
		up(t, h, spec(idA, "sim", "ignore=TERM"))
		begin := time.Now()
		out, err := h.Stop(ctx, idA, runtime.StopOptions{Grace: 10 * time.Second})
		must(t, err)
		if took := time.Since(begin); out != nil || took != 10*time.Second {
			t.Errorf("stop left %+v after %s", out, took)
		}

		up(t, h, spec(idA, "sim", "ignore=TERM"))
		w.Stick(idA)
		begin = time.Now()
		_, err = h.Stop(ctx, idA, runtime.StopOptions{Grace: time.Second})
		if took := time.Since(begin); !errors.Is(err, runtime.ErrBusy) || took != time.Second+sim.KillBound {
			t.Errorf("stop of a stuck one: %v after %s", err, took)
		}
		if s := state(t, h, idA); s.Alive || !s.Dying {
			t.Errorf("a stuck one is %+v", s)
		}
		if _, err := h.Create(ctx, spec(idA, "x")); !errors.Is(err, runtime.ErrBusy) {
			t.Errorf("create over a dying one: %v", err)
		}
		w.Unstick(idA)
		must(t, h.Remove(ctx, idA))
		must(t, h.Close())
		empty(t, w)
	})
}

func TestTheWorldOutlivesItsHandles(t *testing.T) {
	w := sim.New()
	p := up(t, w.Open("l1"), spec(idA, "sleeper"))
	again := w.Open("l1")
	if s := state(t, again, idA); !s.Alive || !s.Started || s.Process != p {
		t.Fatalf("re-adopted: %+v", s)
	}
	o, err := w.Open("l2").Observe(ctx)
	must(t, err)
	if len(o.Instances) != 0 {
		t.Fatalf("another lineage sees %v", o.Instances)
	}
}

func TestReboot(t *testing.T) {
	w := sim.New()
	h := w.Open("l1")
	n := runtime.Network{ID: "net00001", CIDR: netip.MustParsePrefix("10.9.0.0/24"), Gateway: netip.MustParseAddr("10.9.0.1")}
	must(t, h.EnsureNetwork(ctx, n))
	must(t, h.EnsureVolume(ctx, runtime.Volume{ID: "v1"}))
	in := spec(idA, "sim", "write=/v/a:kept", "write=/b:kept too", "await=QUIT")
	in.Mounts = []runtime.Mount{{Kind: "volume", Source: "v1", Path: "/v"}}
	in.Net = &runtime.Attachment{Network: n, Address: netip.MustParsePrefix("10.9.0.2/24")}
	before := up(t, h, in)
	info, err := h.Info(ctx)
	must(t, err)

	w.Reboot()

	now, err := h.Info(ctx)
	must(t, err)
	if now.BootID == info.BootID {
		t.Error("the boot id stayed")
	}
	if s := state(t, h, idA); s.Alive || s.Outcome != nil || !s.Layer || s.Mark != in.Mark {
		t.Errorf("after the reboot: %+v", s)
	}
	want := []string{"layer " + idA, "record " + idA, "volume v1"}
	if got := w.Leftovers(); !slices.Equal(got, want) {
		t.Errorf("what stays is %q, want %q", got, want)
	}
	if _, err := h.Create(ctx, in); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("create without its bridge: %v", err)
	}
	must(t, h.EnsureNetwork(ctx, n))
	after := up(t, h, in)
	if after.PID == before.PID || after.BootID == before.BootID {
		t.Errorf("the new process %+v is like the old %+v", after, before)
	}
	if text, _ := w.VolumeFile("v1", "/a"); text != "kept" {
		t.Errorf("the volume has %q", text)
	}
	if text, _ := w.LayerFile(idA, "/b"); text != "kept too" {
		t.Errorf("the layer has %q", text)
	}
}

func TestWaysToDie(t *testing.T) {
	tests := map[string]struct {
		kill func(*sim.World)
		want *runtime.Outcome
		ooms uint64
	}{
		"PID 1 from outside":           {func(w *sim.World) { w.Kill(idA) }, nil, 0},
		"main by SIGKILL":              {func(w *sim.World) { w.KillMain(idA, 9) }, &runtime.Outcome{ExitCode: 137, Signal: 9}, 0},
		"main by SIGTERM from outside": {func(w *sim.World) { w.KillMain(idA, 15) }, &runtime.Outcome{ExitCode: 143, Signal: 15, Outside: 15}, 0},
		"main by the OOM killer":       {func(w *sim.World) { w.OOM(idA) }, &runtime.Outcome{ExitCode: 137, Signal: 9, OOM: true}, 1},
		"PID 1 by the OOM killer":      {func(w *sim.World) { w.OOMInit(idA) }, nil, 1},
		"some child by the OOM killer, then by itself": {func(w *sim.World) { w.OOMChild(idA); w.KillMain(idA, 9) },
			&runtime.Outcome{ExitCode: 137, Signal: 9, OOM: true}, 1},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			w := sim.New()
			h := w.Open("l1")
			up(t, h, spec(idA, "sleeper"))
			c.kill(w)
			s := state(t, h, idA)
			if s.Outcome != nil {
				s.Outcome.At = time.Time{}
			}
			if s.Alive || s.OOMKills != c.ooms || (s.Outcome == nil) != (c.want == nil) || s.Outcome != nil && *s.Outcome != *c.want {
				t.Errorf("state %+v, outcome %+v, want %+v", s, s.Outcome, c.want)
			}
			if !slices.Contains(w.Leftovers(), "cgroup "+idA) {
				t.Errorf("its cgroup went by itself: %q", w.Leftovers())
			}
			if _, err := h.Stop(ctx, idA, runtime.StopOptions{}); err != nil {
				t.Error(err)
			}
			if want := []string{"cgroup parent of l1", "layer " + idA, "record " + idA}; !slices.Equal(w.Leftovers(), want) {
				t.Errorf("after Stop: %q", w.Leftovers())
			}
		})
	}
}

func TestFaults(t *testing.T) {
	w := sim.New()
	h := w.Open("l1")
	boom := errors.New("boom")

	w.Fail(sim.OpCreate, idA, boom, sim.Before, 1)
	w.Fail(sim.OpCreate, idA, boom, sim.Midway, 1)
	for range 2 {
		if _, err := h.Create(ctx, spec(idA, "x")); !errors.Is(err, boom) {
			t.Fatalf("create: %v", err)
		}
		if s := state(t, h, idA); s.Layer {
			t.Fatalf("a failed create left %+v", s)
		}
	}
	w.Fail(sim.OpCreate, "", boom, sim.After, 1)
	if _, err := h.Create(ctx, spec(idA, "x")); !errors.Is(err, boom) {
		t.Fatalf("create: %v", err)
	}
	if s := state(t, h, idA); !s.Alive {
		t.Fatal("a fault after the deed undid it")
	}
	w.Fail(sim.AnyOp, "", boom, sim.Before, sim.Always)
	for range 3 {
		if _, err := h.Observe(ctx); !errors.Is(err, boom) {
			t.Fatalf("observe: %v", err)
		}
	}
	w.ClearFaults()
	must(t, h.Start(ctx, idA))
	var log []string
	for _, c := range w.Ops() {
		log = append(log, fmt.Sprint(c.Op, " ", c.ID, " ", c.Err != nil))
	}
	want := []string{"Create " + idA + " true", "Create " + idA + " true", "Create " + idA + " true", "Start " + idA + " false"}
	if !slices.Equal(log, want) {
		t.Errorf("ops %q, want %q", log, want)
	}
	w.Unknown(idA, "no permission")
	if s := state(t, h, idA); s.Unknown != "no permission" || s.Alive {
		t.Errorf("unknown: %+v", s)
	}
}

func TestLayerGoesBackWhenItsNewOwnerIsNotMade(t *testing.T) {
	const idB = "00000000000b"
	boom := errors.New("boom")
	for _, crash := range []bool{false, true} {
		w := sim.New()
		h := w.Open("l1")
		up(t, h, spec(idA, "sim", "write=/f:mine", "await=QUIT"))
		_, err := h.Stop(ctx, idA, runtime.StopOptions{})
		must(t, err)
		heir := spec(idB, "x")
		heir.CarryFrom = idA
		want := boom
		if crash {
			w.Crash(1, sim.Midway)
			want = sim.ErrCrashed
		} else {
			w.Fail(sim.OpCreate, idB, boom, sim.Midway, 1)
		}
		if _, err := h.Create(ctx, heir); !errors.Is(err, want) {
			t.Fatalf("create: %v", err)
		}
		h = w.Open("l1")
		if a, b := state(t, h, idA), state(t, h, idB); a.Layer == crash || b.Layer != crash {
			t.Errorf("crash %v: the old one %+v, the new one %+v", crash, a, b)
		}
		must(t, h.Remove(ctx, idB))
		if text, _ := w.LayerFile(idA, "/f"); text != "mine" {
			t.Errorf("crash %v: the old layer has %q", crash, text)
		}
	}
}

func TestCrashLeavesHalfOfIt(t *testing.T) {
	for when, want := range map[sim.When]struct{ layer, alive bool }{
		sim.Before: {false, false},
		sim.Midway: {true, false},
		sim.After:  {true, true},
	} {
		w := sim.New()
		h := w.Open("l1")
		must(t, h.EnsureVolume(ctx, runtime.Volume{ID: "v1"}))
		w.Crash(2, when)
		must(t, h.EnsureVolume(ctx, runtime.Volume{ID: "v2"}))
		if _, err := h.Create(ctx, spec(idA, "x")); !errors.Is(err, sim.ErrCrashed) {
			t.Fatalf("create: %v", err)
		}
		if _, err := h.Observe(ctx); !errors.Is(err, sim.ErrCrashed) {
			t.Fatalf("a dead process observes: %v", err)
		}
		next := w.Open("l1")
		if s := state(t, next, idA); s.Layer != want.layer || s.Alive != want.alive {
			t.Errorf("crash at %d: %+v", when, s)
		}
		up(t, next, spec(idA, "x"))
		must(t, next.Remove(ctx, idA))
		must(t, next.RemoveVolume(ctx, "v1"))
		must(t, next.RemoveVolume(ctx, "v2"))
		must(t, next.Close())
		empty(t, w)
	}
}

type reports []string

func (r *reports) Errorf(format string, args ...any) { *r = append(*r, fmt.Sprintf(format, args...)) }

func TestReadOnly(t *testing.T) {
	w := sim.New()
	h := w.Open("l1")
	var said reports
	w.ReadOnly(&said)
	_, err := h.Observe(ctx)
	must(t, err)
	if len(said) != 0 {
		t.Fatalf("reading was reported: %q", said)
	}
	if err := h.EnsureVolume(ctx, runtime.Volume{ID: "v1"}); err == nil || len(said) != 1 {
		t.Fatalf("writing: %v, reported %q", err, said)
	}
	empty(t, w)
	w.ReadWrite()
	must(t, h.EnsureVolume(ctx, runtime.Volume{ID: "v1"}))
}

func TestDelayAndSerialisation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sim.New()
		h := w.Open("l1")
		w.Delay(sim.OpCreate, time.Minute)
		begin := time.Now()
		done := make(chan error)
		go func() {
			_, err := h.Create(ctx, spec(idA, "x"))
			done <- err
		}()
		synctest.Wait()
		if err := h.Remove(ctx, idA); err == nil {
			t.Error("two calls for one instance at the same time were let through")
		}
		must(t, <-done)
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("the delay was %s", took)
		}
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := h.Create(short, spec("00000000000b", "x")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("create under a deadline: %v", err)
		}
		must(t, h.Remove(ctx, idA))
	})
}

func TestForeignObjectsAreLeftAlone(t *testing.T) {
	w := sim.New()
	h := w.Open("l1")
	n := runtime.Network{ID: "net00001", CIDR: netip.MustParsePrefix("10.9.0.0/24"), Gateway: netip.MustParseAddr("10.9.0.1")}
	w.Foreign("bridge", n.ID)
	w.Foreign("volume", "v1")
	w.Foreign("cgroup", idA)
	_, create := h.Create(ctx, spec(idA, "x"))
	for what, err := range map[string]error{
		"EnsureNetwork": h.EnsureNetwork(ctx, n),
		"RemoveNetwork": h.RemoveNetwork(ctx, n),
		"EnsureVolume":  h.EnsureVolume(ctx, runtime.Volume{ID: "v1"}),
		"RemoveVolume":  h.RemoveVolume(ctx, "v1"),
		"Create":        create,
	} {
		if !errors.Is(err, runtime.ErrForeign) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must(t, h.Close())
	empty(t, w)
}

func TestWhatCannotBeMendedInPlaceIsAnError(t *testing.T) {
	for _, part := range []string{"cgroup", "rootfs"} {
		w := sim.New()
		h := w.Open("l1")
		up(t, h, spec(idA, "x"))
		w.Break(idA, part)
		if s := state(t, h, idA); !slices.Equal(s.Missing, []string{part}) {
			t.Errorf("missing %q", s.Missing)
		}
		if err := h.Repair(ctx, spec(idA, "x")); err == nil {
			t.Errorf("repaired a lost %s under a running process", part)
		}
	}
}

func TestLogIsAFileThatGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := sim.New().Open("l1")
		up(t, h, spec(idA, "sim", "print=one", "after=1s", "err=two", "await=TERM"))
		file, err := h.OpenLog(ctx, idA)
		must(t, err)
		defer file.Close()
		read := func() string {
			b, err := io.ReadAll(file)
			must(t, err)
			return string(b)
		}
		if got := read(); got != "one\n" {
			t.Errorf("log %q", got)
		}
		time.Sleep(2 * time.Second)
		if got := read(); got != "two\n" {
			t.Errorf("log grew by %q", got)
		}
		must(t, h.Remove(ctx, idA))
	})
}

func TestExecCopiesAndInherits(t *testing.T) {
	h := sim.New().Open("l1")
	in := spec(idA, "sleeper")
	in.Env = map[string]string{"A": "1", "B": "2"}
	in.WorkingDir = "/w"
	up(t, h, in)
	inR, inW, err := os.Pipe()
	must(t, err)
	outR, outW, err := os.Pipe()
	must(t, err)
	inW.WriteString("typed\n")
	inW.Close()
	p, err := h.Exec(ctx, idA, runtime.Exec{
		Args: []string{"sim", "env=A", "env=B", "pwd", "user", "stdin", "exit=7"},
		Env:  map[string]string{"B": "3"}, User: "u", Stdin: inR, Stdout: outW,
	})
	must(t, err)
	code, err := p.Wait()
	must(t, err)
	outW.Close()
	out, err := io.ReadAll(outR)
	must(t, err)
	if want := "1\n3\n/w\nu\ntyped\n"; code != 7 || string(out) != want {
		t.Errorf("code %d, output %q, want %q", code, out, want)
	}
	if _, err := h.Exec(ctx, idA, runtime.Exec{Args: []string{"sim"}, TTY: true}); !errors.Is(err, runtime.ErrUnsupported) {
		t.Errorf("a terminal: %v", err)
	}
	p, err = h.Exec(ctx, idA, runtime.Exec{Args: []string{"sleeper"}})
	must(t, err)
	must(t, h.Remove(ctx, idA))
	if code, err := p.Wait(); err != nil || code != 137 {
		t.Errorf("exec in a removed instance: %d, %v", code, err)
	}
}

func TestMisspeltScriptIsAnError(t *testing.T) {
	for _, command := range [][]string{{}, {"sim", "exti=3"}, {"sim", "exit=x"}, {"sim", "await=TREM"}, {"sim", "write=a"}} {
		w := sim.New()
		h := w.Open("l1")
		if _, err := h.Create(ctx, spec(idA, command...)); err == nil {
			t.Errorf("%q was accepted", command)
		}
		empty(t, w)
	}
}

func BenchmarkObserve10000(b *testing.B) {
	w := sim.New()
	h := w.Open("l1")
	n := runtime.Network{ID: "net00001", CIDR: netip.MustParsePrefix("10.0.0.0/16"), Gateway: netip.MustParseAddr("10.0.0.1")}
	if err := h.EnsureNetwork(ctx, n); err != nil {
		b.Fatal(err)
	}
	addr := n.Gateway
	for i := range 10_000 {
		addr = addr.Next()
		in := spec(fmt.Sprintf("%012x", i), "sleeper")
		in.Net = &runtime.Attachment{Network: n, Address: netip.PrefixFrom(addr, 16)}
		if _, err := h.Create(ctx, in); err != nil {
			b.Fatal(err)
		}
		if err := h.Start(ctx, in.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h.Observe(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

func TestAnswerStandsInForACommand(t *testing.T) {
	w := sim.New()
	h := w.Open("one")
	up(t, h, spec(idA, "sleeper"))
	run := func(want int) {
		t.Helper()
		p, err := h.Exec(ctx, idA, runtime.Exec{Args: []string{"sim", "exit=3"}})
		must(t, err)
		if code, err := p.Wait(); err != nil || code != want {
			t.Errorf("code %d, %v; want %d", code, err, want)
		}
	}
	run(3)
	w.Answer(idA, "exit=1")
	run(1)
	w.Answer(idA)
	run(3)
}

func TestDialAndCopyFail(t *testing.T) {
	w := sim.New()
	h := w.Open("one")
	up(t, h, spec(idA, "sim", "serve=80"))
	boom := errors.New("boom")
	for _, when := range []sim.When{sim.Before, sim.After} {
		w.Fail(sim.OpDial, idA, boom, when, 1)
		w.Fail(sim.OpCopyOut, idA, boom, when, 1)
		w.Fail(sim.OpCopyIn, idA, boom, when, 1)
		if c, err := h.Dial(ctx, idA, "tcp", 80); c != nil || !errors.Is(err, boom) {
			t.Errorf("Dial: %v, %v", c, err)
		}
		if err := h.CopyOut(ctx, idA, "/etc", io.Discard); !errors.Is(err, boom) {
			t.Errorf("CopyOut: %v", err)
		}
		if err := h.CopyIn(ctx, idA, "/etc", strings.NewReader("")); !errors.Is(err, boom) {
			t.Errorf("CopyIn: %v", err)
		}
	}
	w.ClearOps()
	c, err := h.Dial(ctx, idA, "tcp", 80)
	must(t, err)
	must(t, c.Close())
	must(t, h.CopyOut(ctx, idA, "/etc", io.Discard))
	must(t, h.CopyIn(ctx, idA, "/etc", strings.NewReader("")))
	if ops := w.Ops(); len(ops) != 1 || ops[0].Op != sim.OpCopyIn {
		t.Errorf("writing calls: %v", ops)
	}
}

// A read waits in the bubble's clock, and no goroutine is left behind.
func TestConnectionsKeepDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := sim.New()
		h := w.Open("one")
		up(t, h, spec(idA, "sim", "serve=80"))
		c, err := h.Dial(ctx, idA, "tcp", 80)
		must(t, err)
		begun := time.Now()
		must(t, c.SetDeadline(begun.Add(time.Hour)))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != time.Hour {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		must(t, c.SetDeadline(time.Time{}))
		time.AfterFunc(time.Minute, func() { w.Kill(idA) })
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("of one that was killed: %v", err)
		}
		must(t, c.Close())
	})
}
