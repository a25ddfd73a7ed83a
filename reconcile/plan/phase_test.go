package plan

import (
	"errors"
	"strings"
	"testing"
)

// The table of legal moves, written down a second time and the other way round:
// per phase, "verb>phase" for every legal move.
var legal = map[Phase]string{
	Pending:   "create>created fail>failed destroy>destroyed",
	Created:   "start>running suspend>stopped expire>stopped destroy>destroyed fail>failed lose>lost",
	Running:   "pause>paused stop>stopped suspend>stopped exit>stopped expire>stopped restart>stopped destroy>destroyed fail>failed lose>lost",
	Paused:    "resume>running suspend>stopped expire>stopped restart>stopped destroy>destroyed fail>failed lose>lost",
	Stopped:   "start>running fail>failed destroy>destroyed",
	Failed:    "destroy>destroyed",
	Lost:      "destroy>destroyed",
	Destroyed: "",
}

func TestTransitionOfEveryPair(t *testing.T) {
	pairs, moves := 0, 0
	for _, p := range Phases {
		want := map[string]string{}
		for _, m := range strings.Fields(legal[p]) {
			verb, to, _ := strings.Cut(m, ">")
			want[verb] = to
			moves++
		}
		for _, v := range Verbs {
			pairs++
			to, err := TransitionOf("sandbox.a", p, v)
			if w, ok := want[string(v)]; ok {
				if err != nil || string(to) != w {
					t.Errorf("%s, %s: %s, %v; want %s", p, v, to, err, w)
				}
				continue
			}
			var refused *TransitionError
			if !errors.As(err, &refused) || to != p {
				t.Errorf("%s, %s: %s, %v; want a refusal", p, v, to, err)
			}
		}
	}
	if pairs != 96 || moves != 30 {
		t.Errorf("walked %d pairs, %d of them legal", pairs, moves)
	}
}

func TestTransitionErrorText(t *testing.T) {
	_, err := TransitionOf(`sandbox.py["a"]`, Stopped, VerbPause)
	if got, want := err.Error(), `sandbox: invalid state transition: sandbox.py["a"] is stopped, cannot pause; start it first`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	_, err = TransitionOf("sandbox.a", Destroyed, VerbStart)
	if got, want := err.Error(), "sandbox: not found: sandbox.a"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if err := Killable("sandbox.a", Running); err != nil {
		t.Error(err)
	}
	for phase, want := range map[Phase]string{
		Paused:  "sandbox: invalid state transition: sandbox.a is paused, cannot kill; resume it first",
		Created: "sandbox: invalid state transition: sandbox.a is created, cannot kill",
		Stopped: "sandbox: invalid state transition: sandbox.a is stopped, cannot kill",
		Pending: "sandbox: invalid state transition: sandbox.a is pending, cannot kill; apply brings it up",
		Lost:    "sandbox: invalid state transition: sandbox.a is lost, cannot kill; apply brings it up",
		Failed:  "sandbox: invalid state transition: sandbox.a is failed, cannot kill; apply brings it up",
	} {
		if err := Killable("sandbox.a", phase); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := TransitionOf("sandbox.a", "nowhere", VerbStart); err == nil {
		t.Error("an unknown phase has a transition")
	}
	if _, err := TransitionOf("sandbox.a", Running, "dance"); err == nil {
		t.Error("an unknown verb has a transition")
	}
}
