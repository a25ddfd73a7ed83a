package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func TestEventsFlags(t *testing.T) {
	now := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		args []string
		want reconcile.EventsRequest
	}{
		{nil, reconcile.EventsRequest{}},
		{[]string{"py"}, reconcile.EventsRequest{Address: "py"}},
		{[]string{"w[a]", "-last", "3"}, reconcile.EventsRequest{Address: `w["a"]`, Last: 3}},
		{[]string{"network.agents", "-since", "1h30m"}, reconcile.EventsRequest{Address: "network.agents", Since: now.Add(-90 * time.Minute)}},
		{[]string{"-since=2026-12-01T00:00:00Z", "-type", "exited,lost", "-type=held"}, reconcile.EventsRequest{Since: now.Add(-12 * time.Hour), Types: []string{"exited", "lost", "held"}}},
	} {
		e := &engine{happened: func(reconcile.EventsRequest) (*reconcile.EventsResult, error) {
			return &reconcile.EventsResult{Events: []reconcile.Event{{Seq: 7, At: now, Address: "sandbox.py", Type: "exited", Reason: "exit"}}, Next: 7}, nil
		}}
		r := invoke(t, e, append([]string{"events"}, c.args...)...)
		if r.code != 0 || len(e.events) != 1 || !strings.Contains(r.out, "sandbox.py  2026-12-01T12:00:00Z  exited  exit") {
			t.Errorf("events %v: exit %d\n%s%s", c.args, r.code, r.out, r.err)
			continue
		}
		if diff := cmp.Diff(c.want, e.events[0]); diff != "" {
			t.Errorf("events %v (-want +got):\n%s", c.args, diff)
		}
		if !e.opened.ReadOnly {
			t.Errorf("events %v opened to change something", c.args)
		}
	}
}

func TestEventsOfNothing(t *testing.T) {
	if r := invoke(t, &engine{}, "events"); r.code != 0 || r.out != "No events.\n" {
		t.Errorf("exit %d %q", r.code, r.out)
	}
	there := []reconcile.SandboxView{{Address: "sandbox.python"}}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"events", "pyton"}, 1, "did you mean sandbox.python?"},
		{[]string{"history", "pyton"}, 1, "did you mean sandbox.python?"},
		{[]string{"events", "-f", "pyton"}, 1, "did you mean sandbox.python?"},
		{[]string{"events", "network.n"}, 1, "nothing is known of network.n"},
		{[]string{"events", "python"}, 0, "No events."},
		{[]string{"history", "python"}, 0, "No sandboxes so far."},
	} {
		r := invoke(t, &engine{list: there}, c.args...)
		if r.code != c.code || !strings.Contains(r.out+r.err, c.want) {
			t.Errorf("%v: exit %d\n%s%s", c.args, r.code, r.out, r.err)
		}
	}
	// One that is no more was heard of, though not of this type.
	gone := &engine{happened: func(q reconcile.EventsRequest) (*reconcile.EventsResult, error) {
		if q.Types != nil {
			return &reconcile.EventsResult{}, nil
		}
		return &reconcile.EventsResult{Events: []reconcile.Event{{Type: "destroyed"}}}, nil
	}}
	if r := invoke(t, gone, "events", "-type", "lost", "old"); r.code != 0 {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

// Following asks for what comes after what was printed, waits where an agent does
// that, keeps nothing open between, and outlives a state that somebody else has.
func TestFollowEvents(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	event := func(seq uint64) reconcile.Event {
		return reconcile.Event{Seq: seq, At: at, Address: "sandbox.py", Type: "start", Reason: "started"}
	}
	answers := []func() (*reconcile.EventsResult, error){
		func() (*reconcile.EventsResult, error) {
			return &reconcile.EventsResult{Events: []reconcile.Event{event(4), event(5)}, Next: 9}, nil
		},
		func() (*reconcile.EventsResult, error) {
			return nil, &reconcile.Error{Kind: reconcile.Locked, Message: "in use"}
		},
		func() (*reconcile.EventsResult, error) {
			return &reconcile.EventsResult{Events: []reconcile.Event{event(10)}, Next: 10}, nil
		},
		func() (*reconcile.EventsResult, error) {
			self(t, syscall.SIGINT)
			return &reconcile.EventsResult{Next: 10}, nil
		},
	}
	e := &engine{}
	e.happened = func(reconcile.EventsRequest) (*reconcile.EventsResult, error) {
		next := answers[0]
		answers = answers[1:]
		return next()
	}
	r := invoke(t, e, "events", "-f", "-json", "-last", "2", "-since", "1h", "-type", "start", "py")
	if r.code != exitInterrupted || r.err != "" {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	var seqs []uint64
	for line := range strings.Lines(r.out) {
		var x reconcile.Event
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Errorf("%v: %q", err, line)
		}
		seqs = append(seqs, x.Seq)
	}
	if !slices.Equal(seqs, []uint64{4, 5, 10}) {
		t.Errorf("printed %v", seqs)
	}
	then := reconcile.EventsRequest{Address: "py", Types: []string{"start"}, After: 9, Wait: eventsWait}
	last := then
	last.After = 10
	want := []reconcile.EventsRequest{{Address: "py", Types: []string{"start"}, Since: at.Add(-time.Hour), Last: 2}, then, then, last}
	if diff := cmp.Diff(want, e.events); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
	if e.opens != 4 {
		t.Errorf("opened %d times", e.opens)
	}
}

// -last 0 begins with what is to come.
func TestFollowFromNow(t *testing.T) {
	asked := 0
	e := &engine{}
	e.happened = func(q reconcile.EventsRequest) (*reconcile.EventsResult, error) {
		if asked++; asked == 2 {
			if q.After != 5 {
				t.Errorf("asked for what comes after %d", q.After)
			}
			self(t, syscall.SIGTERM)
		}
		res := &reconcile.EventsResult{Next: 5}
		if asked <= 2 {
			res.Events = []reconcile.Event{{Seq: 4 + uint64(asked), Type: "start", Address: "sandbox.py"}}
		}
		return res, nil
	}
	if r := invoke(t, e, "events", "-f", "-json", "-last=0"); r.code != exitInterrupted || strings.Contains(r.out, `"seq":5,`) || !strings.Contains(r.out, `"seq":6,`) {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
}

// An error that stays ends it.
func TestFollowGivesUp(t *testing.T) {
	e := &engine{}
	e.happened = func(reconcile.EventsRequest) (*reconcile.EventsResult, error) {
		if len(e.events) == 1 {
			return &reconcile.EventsResult{}, nil
		}
		return nil, &reconcile.Error{Kind: reconcile.Internal, Message: "the file is broken"}
	}
	if r := invoke(t, e, "events", "-f"); r.code != 1 || !strings.Contains(r.err, "the file is broken") || len(e.events) != 1+eventsTries {
		t.Errorf("exit %d after %d looks\n%s", r.code, len(e.events), r.err)
	}
}

func TestHistoryCommand(t *testing.T) {
	e := &engine{happened: func(reconcile.EventsRequest) (*reconcile.EventsResult, error) {
		return &reconcile.EventsResult{Events: []reconcile.Event{
			{Seq: 1, Address: "sandbox.py", UID: "u", Instance: "i", Type: "create"},
			{Seq: 2, Address: "sandbox.py", UID: "u", Instance: "i", Type: "start"},
			{Seq: 3, Address: "sandbox.py", UID: "u", Instance: "i", Type: "destroyed", Reason: "config_removed"},
		}}, nil
	}}
	r := invoke(t, e, "history", "-json", "py")
	var doc struct {
		Sandboxes []struct {
			Address, Reason string
			Instances       []struct{ Runs []struct{ Reason string } }
		}
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.code != 0 || len(doc.Sandboxes) != 1 || doc.Sandboxes[0].Reason != "config_removed" {
		t.Errorf("exit %d, %v\n%s%s", r.code, err, r.out, r.err)
	}
	if e.events[0].Address != "py" {
		t.Errorf("asked for %q", e.events[0].Address)
	}
}

func TestTouch(t *testing.T) {
	e := &engine{}
	if r := invoke(t, e, "touch", "py", "w[a]"); r.code != 0 || r.out != "py: running\nw[\"a\"]: running\n" || !slices.Equal(e.touched, []string{"py", `w["a"]`}) {
		t.Errorf("exit %d, touched %q\n%s%s", r.code, e.touched, r.out, r.err)
	}
	if e.opened.ReadOnly {
		t.Error("opened for looking only")
	}
	// Each is tried, and each that failed is told.
	e = &engine{err: &reconcile.Error{Kind: reconcile.Conflict, Message: "in progress"}}
	if r := invoke(t, e, "touch", "py", "sky"); r.code != 1 || strings.Count(r.err, "in progress") != 2 || len(e.touched) != 2 {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

// Every type that the engine gives an event can be asked for.
func TestEventTypes(t *testing.T) {
	files, err := filepath.Glob("../../reconcile/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	given := regexp.MustCompile(`(?:eventOf\([^,()]*, |Event\{[^}]*Type: |\btyp = |\bof\()"([a-z]+)"`)
	seen := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range given.FindAllStringSubmatch(string(text), -1) {
			seen++
			if !slices.Contains(eventTypes, m[1]) {
				t.Errorf("%s gives events of type %q", name, m[1])
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d events found", seen)
	}
	for _, phase := range []plan.Phase{plan.Running, plan.Paused, plan.Created, plan.Lost, plan.Failed} {
		if !slices.Contains(eventTypes, string(phase)) {
			t.Errorf("a phase that was noticed, %q, is not there", phase)
		}
	}
}

// attached is an engine with a log and a process that ends as told.
func attached(t *testing.T, before string, during func(log *os.File, signals chan int) (int, error)) *engine {
	path := filepath.Join(t.TempDir(), "log")
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if _, err := w.WriteString(before); err != nil {
		t.Fatal(err)
	}
	signals := make(chan int, 8)
	e := &engine{log: func() (*os.File, error) { return os.Open(path) }}
	e.live = &live{signals, func() (int, error) { return during(w, signals) }}
	return e
}

// live is a session whose process does something.
type live struct {
	signals chan int
	wait    func() (int, error)
}

func (l live) Console() *os.File { return nil }
func (l live) Signal(n int) error {
	l.signals <- n
	return nil
}
func (l live) Wait() (int, error) { return l.wait() }

func TestAttach(t *testing.T) {
	e := attached(t, "before\n", func(log *os.File, _ chan int) (int, error) {
		_, err := log.WriteString("one\ntwo\n")
		return 7, err
	})
	if r := invoke(t, e, "attach", "py"); r.code != 7 || r.out != "one\ntwo\n" || r.err != "" || e.attached != "py" || e.opened.ReadOnly {
		t.Errorf("exit %d of %q\n%s%s", r.code, e.attached, r.out, r.err)
	}
	e = attached(t, "", func(*os.File, chan int) (int, error) { return 0, nil })
	if r := invoke(t, e, "attach", "py"); r.code != 0 || r.out != "" {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	e = attached(t, "", func(*os.File, chan int) (int, error) {
		return -1, &reconcile.Error{Kind: reconcile.Conflict, Message: "sandbox.py was paused"}
	})
	if r := invoke(t, e, "attach", "py"); r.code != 1 || !strings.Contains(r.err, "was paused") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	if r := invoke(t, &engine{err: &reconcile.Error{Kind: reconcile.NotFound, Message: "sandbox: not found: py"}}, "attach", "py"); r.code != 1 || !strings.Contains(r.err, "not found") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

// Ctrl-C lets go and signals nobody; with -signal-proxy it goes to the process.
func TestAttachAndCtrlC(t *testing.T) {
	released := make(chan struct{})
	t.Cleanup(func() { close(released) })
	e := attached(t, "", func(_ *os.File, signals chan int) (int, error) {
		self(t, syscall.SIGINT)
		select {
		case n := <-signals:
			t.Errorf("signal %d came through", n)
		case <-released:
		}
		return 0, nil
	})
	if r := invoke(t, e, "attach", "py"); r.code != exitInterrupted || r.err != "" {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	e = attached(t, "", func(_ *os.File, signals chan int) (int, error) {
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGUSR1} {
			self(t, s)
			if n := within(t, signals, s.String()); n != int(s) {
				t.Errorf("signal %d came through, not %d", n, s)
			}
		}
		return 130, nil
	})
	if r := invoke(t, e, "attach", "-signal-proxy", "py"); r.code != 130 {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	// A terminal that is closed takes nothing with it.
	e = attached(t, "", func(_ *os.File, signals chan int) (int, error) {
		self(t, syscall.SIGHUP)
		select {
		case n := <-signals:
			t.Errorf("signal %d came through", n)
		case <-released:
		}
		return 0, nil
	})
	if r := invoke(t, e, "attach", "-signal-proxy", "py"); r.code != exitInterrupted {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}
