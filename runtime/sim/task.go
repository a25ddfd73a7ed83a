package sim

import (
	"cmp"
	"time"
)

// task is one simulated command at work: an instance's main process or an Exec.
// The world's lock guards it.
type task struct {
	w      *World
	p      *process
	script Script
	env    []map[string]string // later ones win
	dir    string
	user   string

	pc       int
	timer    *time.Timer
	due      bool // the timer rang while frozen
	awaiting int
	ignored  map[int]bool
	queued   []int // signals that came while frozen

	output func(text string, stderr bool)
	stdin  func() bool // asks for a copy of standard input; false: there is none
	ended  bool
	onEnd  func(code, sig int)
}

// run goes on with the script as far as it can without waiting.
func (t *task) run() {
	for !t.ended && !t.p.frozen && t.pc < len(t.script) {
		st := t.script[t.pc]
		switch st.word {
		case "after":
			if t.timer == nil {
				t.timer = time.AfterFunc(st.wait, t.ring)
			}
			return
		case "await":
			t.awaiting = st.num
			return
		case "stdin":
			if t.stdin != nil && t.stdin() {
				return
			}
		case "exit":
			t.end(st.num&0xff, 0)
			return
		case "signal":
			t.end(128+st.num, st.num)
			return
		case "ignore":
			if t.ignored == nil {
				t.ignored = map[int]bool{}
			}
			t.ignored[st.num] = true
		case "print":
			t.output(st.value+"\n", false)
		case "err":
			t.output(st.value+"\n", true)
		case "serve", "serve-loopback":
			t.p.serves[uint16(st.num)] = st.word == "serve"
		case "env":
			t.output(t.variable(st.value)+"\n", false)
		case "pwd":
			t.output(t.dir+"\n", false)
		case "user":
			t.output(t.user+"\n", false)
		case "hostname":
			t.output(cmp.Or(t.p.in.spec.Hostname, t.p.in.spec.ID)+"\n", false)
		case "busy":
			t.p.count()
			t.p.busy = true
		case "memory":
			t.p.held = int64(st.num)
		case "oom":
			t.p.in.ooms++
			t.end(128+sigKILL, sigKILL)
			return
		case "cat":
			text, ok := t.p.in.read(t.w, st.path)
			if !ok {
				t.output("cat: "+st.path+": no such file\n", true)
				t.end(1, 0)
				return
			}
			t.output(text, false)
		case "write", "append":
			if err := t.p.in.write(t.w, st.path, st.value, st.word == "append"); err != nil {
				t.output(err.Error()+"\n", true)
				t.end(1, 0)
				return
			}
		}
		t.pc++
	}
}

// next leaves the step that the script waited in.
func (t *task) next() {
	t.pc++
	t.run()
}

func (t *task) ring() {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	if t.ended {
		return
	}
	t.timer = nil
	if t.p.frozen {
		t.due = true
		return
	}
	t.next()
}

func (t *task) thaw() {
	queued := t.queued
	t.queued = nil
	for _, sig := range queued {
		t.signal(sig)
	}
	if t.due && !t.ended {
		t.due = false
		t.next()
		return
	}
	t.run()
}

func (t *task) signal(sig int) {
	switch {
	case t.ended:
	case sig == sigKILL:
		t.end(128+sig, sig)
	case t.p.frozen:
		t.queued = append(t.queued, sig)
	case t.awaiting == sig:
		t.awaiting = 0
		t.next()
	case t.ignored[sig] || !endsByDefault(sig):
	default:
		t.end(128+sig, sig)
	}
}

func (t *task) end(code, sig int) {
	if t.ended {
		return
	}
	t.ended = true
	if t.timer != nil {
		t.timer.Stop()
	}
	t.onEnd(code, sig)
}

func (t *task) variable(name string) string {
	for i := len(t.env) - 1; i >= 0; i-- {
		if v, ok := t.env[i][name]; ok {
			return v
		}
	}
	return ""
}

const (
	sigKILL = 9
	sigTERM = 15
	sigSTOP = 19
	// keptSignal is the one that PID 1 keeps for itself.
	keptSignal = 64
)
