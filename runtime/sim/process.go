package sim

import (
	"cmp"
	"time"

	"pinfold/runtime"
)

// process is an instance's PID 1 with everything under it. It is kept after its
// end until the instance's remains are released.
type process struct {
	in      *instance
	id      runtime.Process
	started bool
	// stranded: the run dir, with what it waits at for its start, was lost.
	stranded bool
	frozen   bool
	dead     bool
	held     int64         // bytes of memory that its command uses
	busy     bool          // its command uses a core whenever it may run
	ran      time.Duration // on a core until ranTo
	ranTo    time.Time
	outside  int           // the last signal from outside
	gone     chan struct{} // closed at its end
	main     *task
	execs    map[*task]bool
	serves   map[uint16]bool // ports behind which stands an echo; false: on loopback only
	conns    map[*conn]bool
}

func (p *process) start(w *World, script Script) {
	spec := &p.in.spec
	p.started = true
	p.main = &task{
		w: w, p: p, script: script,
		env:    []map[string]string{spec.Env},
		dir:    cmp.Or(spec.WorkingDir, "/"),
		user:   cmp.Or(spec.User, "0:0"),
		output: func(text string, _ bool) { p.in.log.append(text) },
		onEnd:  p.mainEnded,
	}
	p.main.run()
}

// mainEnded is PID 1 writing down how the command ended, and going.
func (p *process) mainEnded(code, sig int) {
	if p.dead {
		return
	}
	p.in.outcome = &runtime.Outcome{
		ExitCode: code,
		Signal:   sig,
		Outside:  p.outside,
		OOM:      p.in.ooms > 0,
		At:       now(),
	}
	p.vanish()
}

// vanish ends PID 1 and all under it without another word.
func (p *process) vanish() {
	if p.dead {
		return
	}
	p.dead = true
	p.frozen = false
	if p.main != nil {
		p.main.end(128+sigKILL, sigKILL)
	}
	for t := range p.execs {
		t.end(128+sigKILL, sigKILL)
	}
	for c := range p.conns {
		c.lose()
	}
	close(p.gone)
}

// signal is a signal from outside to PID 1, which notes and forwards it.
// SIGKILL goes to the main process itself.
func (p *process) signal(sig int) {
	if sig != sigKILL {
		p.outside = sig
	}
	p.main.signal(sig)
}

// count brings ran up to now. It is called before anything changes about it.
func (p *process) count() {
	if p.busy && !p.frozen && !p.dead {
		p.ran += now().Sub(p.ranTo)
	}
	p.ranTo = now()
}

func (p *process) freeze() {
	p.count()
	p.frozen = true
}

func (p *process) thaw() {
	if !p.frozen {
		return
	}
	p.count()
	p.frozen = false
	if p.main != nil {
		p.main.thaw()
	}
	for t := range p.execs {
		t.thaw()
	}
	for c := range p.conns {
		c.change()
	}
}
