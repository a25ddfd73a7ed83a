package plan

// Verb is what may happen to an instance.
type Verb string

const (
	VerbCreate  Verb = "create"
	VerbStart   Verb = "start"
	VerbPause   Verb = "pause"
	VerbResume  Verb = "resume"
	VerbStop    Verb = "stop"    // the operator's
	VerbSuspend Verb = "suspend" // also how the engine takes a process down
	VerbExit    Verb = "exit"    // the process ended by itself or was killed
	VerbExpire  Verb = "expire"
	VerbRestart Verb = "restart" // the stop half; start follows
	VerbDestroy Verb = "destroy"
	VerbFail    Verb = "fail"
	VerbLose    Verb = "lose"
)

// VerbKill moves nothing by itself: the process may take the signal or not, and its
// end is an exit. It needs one that runs.
const VerbKill Verb = "kill"

// Killable refuses a signal to a sandbox without a process that could take it now.
func Killable(address string, phase Phase) error {
	if phase == Running {
		return nil
	}
	return &TransitionError{Address: address, Phase: phase, Verb: VerbKill}
}

// Phases and Verbs list every value, in the order of a life.
var (
	Phases = []Phase{Pending, Created, Running, Paused, Stopped, Failed, Lost, Destroyed}
	Verbs  = []Verb{VerbCreate, VerbStart, VerbPause, VerbResume, VerbStop, VerbSuspend, VerbExit, VerbExpire, VerbRestart, VerbDestroy, VerbFail, VerbLose}
)

// transitions holds every legal move; what is absent is refused.
var transitions = map[Phase]map[Verb]Phase{
	Pending: {VerbCreate: Created, VerbFail: Failed, VerbDestroy: Destroyed},
	Created: {VerbStart: Running, VerbSuspend: Stopped, VerbExpire: Stopped,
		VerbDestroy: Destroyed, VerbFail: Failed, VerbLose: Lost},
	Running: {VerbPause: Paused, VerbStop: Stopped, VerbSuspend: Stopped, VerbExit: Stopped, VerbExpire: Stopped, VerbRestart: Stopped,
		VerbDestroy: Destroyed, VerbFail: Failed, VerbLose: Lost},
	Paused: {VerbResume: Running, VerbSuspend: Stopped, VerbExpire: Stopped, VerbRestart: Stopped,
		VerbDestroy: Destroyed, VerbFail: Failed, VerbLose: Lost},
	Stopped:   {VerbStart: Running, VerbFail: Failed, VerbDestroy: Destroyed},
	Failed:    {VerbDestroy: Destroyed},
	Lost:      {VerbDestroy: Destroyed},
	Destroyed: {},
}

// TransitionOf is the state machine: the phase that verb leads to from phase from,
// or a *TransitionError about the sandbox at address.
func TransitionOf(address string, from Phase, v Verb) (Phase, error) {
	if to, ok := transitions[from][v]; ok {
		return to, nil
	}
	return from, &TransitionError{Address: address, Phase: from, Verb: v}
}

// TransitionError refuses a verb: 409 for the API, 404 when Phase is Destroyed.
type TransitionError struct {
	Address string
	Phase   Phase
	Verb    Verb
}

// way is what an operator can do instead.
func (e *TransitionError) way() string {
	switch e.Phase {
	case Pending, Failed, Lost:
		return "apply brings it up"
	case Created, Stopped:
		if e.Verb == VerbPause || e.Verb == VerbResume {
			return "start it first"
		}
	case Paused:
		if e.Verb == VerbStart || e.Verb == VerbStop || e.Verb == VerbKill {
			return "resume it first"
		}
	}
	return ""
}

func (e *TransitionError) Error() string {
	if e.Phase == Destroyed {
		return "sandbox: not found: " + e.Address
	}
	text := "sandbox: invalid state transition: " + e.Address + " is " + string(e.Phase) + ", cannot " + string(e.Verb)
	if way := e.way(); way != "" {
		text += "; " + way
	}
	return text
}

// live reports whether an instance in this phase has a PID 1.
func (p Phase) live() bool {
	return p == Created || p == Running || p == Paused
}

// phase is the recorded phase of the sandbox's instance. A sandbox whose
// instance was destroyed without a successor is pending again.
func (s *Sandbox) phase() Phase {
	if s.Instance == nil || s.Instance.Phase == "" || s.Instance.Phase == Destroyed {
		return Pending
	}
	return s.Instance.Phase
}
