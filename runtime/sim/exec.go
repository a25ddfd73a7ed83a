package sim

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"pinfold/runtime"
)

// Exec implements runtime.Host. The command is a Script. A terminal is not
// simulated: with TTY the answer is runtime.ErrUnsupported.
func (h *Host) Exec(ctx context.Context, id string, e runtime.Exec) (runtime.ExecProcess, error) {
	var p *execProcess
	err := h.call(ctx, OpExec, id, func(midway) error {
		h.w.mu.Lock()
		defer h.w.mu.Unlock()
		in, err := h.started(id)
		if err != nil {
			return err
		}
		if in.proc.frozen {
			return runtime.ErrPaused
		}
		if e.TTY {
			return fmt.Errorf("a terminal: %w", runtime.ErrUnsupported)
		}
		script, err := parse(e.Args)
		if err != nil {
			return err
		}
		if in.answer != nil {
			script = in.answer
		}
		if script.cannotExecute() {
			return fmt.Errorf("%q: %w", e.Args, runtime.ErrCommand)
		}
		p = &execProcess{w: h.w, e: e, changed: make(chan struct{}, 1)}
		p.task = &task{
			w: h.w, p: in.proc, script: script,
			env:    []map[string]string{in.spec.Env, e.Env},
			dir:    cmp.Or(e.WorkingDir, in.spec.WorkingDir, "/"),
			user:   cmp.Or(e.User, in.spec.User, "0:0"),
			output: p.print,
			stdin:  p.wantStdin,
			onEnd:  p.end,
		}
		in.proc.execs[p.task] = true
		p.task.run()
		return nil
	})
	if err != nil {
		return nil, wrap("exec in", id, err)
	}
	return p, nil
}

// execProcess is a running Exec. What the script writes is kept until Wait
// hands it to the caller's files, so that a full pipe never holds the world up.
type execProcess struct {
	w    *World
	e    runtime.Exec
	task *task

	changed chan struct{} // something below did
	out     []chunk
	copyIn  bool
	done    bool
	code    int
}

type chunk struct {
	text   string
	stderr bool
}

func (p *execProcess) print(text string, stderr bool) {
	p.out = append(p.out, chunk{text, stderr})
	p.wake()
}

func (p *execProcess) wantStdin() bool {
	if p.e.Stdin == nil {
		return false
	}
	p.copyIn = true
	p.wake()
	return true
}

func (p *execProcess) end(code, _ int) {
	p.done, p.code = true, code
	delete(p.task.p.execs, p.task)
	p.wake()
}

func (p *execProcess) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Console implements runtime.ExecProcess; there is never one.
func (p *execProcess) Console() *os.File { return nil }

// Signal implements runtime.ExecProcess.
func (p *execProcess) Signal(sig int) error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.done {
		return os.ErrProcessDone
	}
	p.task.signal(sig)
	return nil
}

// Kill implements runtime.ExecProcess. A script starts no other process.
func (p *execProcess) Kill() error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.task.signal(sigKILL)
	return nil
}

// Wait implements runtime.ExecProcess.
func (p *execProcess) Wait() (int, error) {
	for {
		p.w.mu.Lock()
		out, copyIn, done := p.out, p.copyIn, p.done
		p.out, p.copyIn = nil, false
		p.w.mu.Unlock()
		for _, c := range out {
			if err := p.deliver(c); err != nil {
				return 0, err
			}
		}
		switch {
		case done:
			return p.code, nil
		case copyIn:
			if err := p.copyStdin(); err != nil {
				return 0, err
			}
		case len(out) == 0:
			<-p.changed
		}
	}
}

func (p *execProcess) deliver(c chunk) error {
	to := p.e.Stdout
	if c.stderr {
		to = p.e.Stderr
	}
	if to == nil {
		return nil
	}
	_, err := to.WriteString(c.text)
	return err
}

func (p *execProcess) copyStdin() error {
	var to io.Writer = io.Discard
	if p.e.Stdout != nil {
		to = p.e.Stdout
	}
	if _, err := io.Copy(to, p.e.Stdin); err != nil {
		return err
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if !p.task.ended {
		p.task.next()
	}
	return nil
}
