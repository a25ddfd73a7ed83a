package conformance

import (
	"os"

	"pinfold/runtime"
)

var exec = []test{
	{"exit codes", func(w *world) {
		in := w.instance(w.Commands.Forever)
		p := w.up(in)
		for _, want := range []int{0, 1, 42, 255} {
			if code, _ := w.run(in.ID, w.Commands.Exit(want)); code != want {
				w.Errorf("code %d, want %d", code, want)
			}
		}
		if code, _ := w.run(in.ID, w.Commands.KillSelf(10)); code != 138 {
			w.Errorf("ended by signal 10: code %d", code)
		}
		if s := w.state(in.ID); !s.Alive || s.Process != p || s.Outcome != nil {
			w.Errorf("after execs: %+v", s)
		}
	}},
	{"both outputs and the input", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		code, stdout, stderr := w.exec(in.ID, runtime.Exec{Args: w.Commands.Print("to out", "to err")})
		if code != 0 || stdout != "to out\n" || stderr != "to err\n" {
			w.Errorf("code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
		r, wr, err := os.Pipe()
		w.must(err)
		_, err = wr.WriteString("typed")
		w.must(err)
		w.must(wr.Close())
		code, stdout, _ = w.exec(in.ID, runtime.Exec{Args: w.Commands.CopyInput, Stdin: r})
		w.must(r.Close())
		if code != 0 || stdout != "typed" {
			w.Errorf("code %d, copied %q", code, stdout)
		}
		if code, stdout, _ = w.exec(in.ID, runtime.Exec{Args: w.Commands.CopyInput}); code != 0 || stdout != "" {
			w.Errorf("without input: code %d, copied %q", code, stdout)
		}
	}},
	{"environment and directory are the instance's unless given", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.Env = map[string]string{"ONE": "1", "TWO": "2", "PATH": "/usr/bin:/bin"}
		in.WorkingDir = "/work/deep"
		w.up(in)
		_, got, _ := w.exec(in.ID, runtime.Exec{Args: w.Commands.Env("ONE")})
		if got != "1\n" {
			w.Errorf("ONE is %q", got)
		}
		_, got, _ = w.exec(in.ID, runtime.Exec{Args: w.Commands.Env("TWO"), Env: map[string]string{"TWO": "two"}})
		if got != "two\n" {
			w.Errorf("TWO is %q", got)
		}
		if _, got = w.run(in.ID, w.Commands.WorkDir); got != "/work/deep\n" {
			w.Errorf("directory %q", got)
		}
		_, got, _ = w.exec(in.ID, runtime.Exec{Args: w.Commands.WorkDir, WorkingDir: "/"})
		if got != "/\n" {
			w.Errorf("given directory %q", got)
		}
	}},
	{"user and host name are the instance's unless given", func(w *world) {
		in := w.instance(w.Commands.Forever)
		in.Hostname = "here"
		w.up(in)
		if _, got := w.run(in.ID, w.Commands.User); got != "0:0\n" {
			w.Errorf("user %q", got)
		}
		_, got, _ := w.exec(in.ID, runtime.Exec{Args: w.Commands.User, User: "1234:1235"})
		if got != "1234:1235\n" {
			w.Errorf("given user %q", got)
		}
		if _, got = w.run(in.ID, w.Commands.Hostname); got != "here\n" {
			w.Errorf("host name %q", got)
		}
		w.must(w.h.Remove(w.ctx, in.ID))
		in.User = "1000:1001"
		w.up(in)
		if _, got := w.run(in.ID, w.Commands.User); got != "1000:1001\n" {
			w.Errorf("the instance's user %q", got)
		}
	}},
	{"a command that cannot be executed", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		_, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: w.Commands.Missing})
		w.fails("Exec", err, runtime.ErrCommand)
		if s := w.state(in.ID); !s.Alive {
			w.Errorf("after it: %+v", s)
		}
	}},
	{"a signal ends it, and the instance lives", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: w.Commands.Forever})
		w.must(err)
		w.must(p.Signal(15))
		code, err := p.Wait()
		w.must(err)
		if code != 143 {
			w.Errorf("code %d", code)
		}
		if s := w.state(in.ID); !s.Alive {
			w.Errorf("after it: %+v", s)
		}
	}},
	{"killed, and the instance lives", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: w.Commands.Stubborn})
		w.must(err)
		w.must(p.Kill())
		code, err := p.Wait()
		w.must(err)
		if code != 137 {
			w.Errorf("code %d", code)
		}
		w.must(p.Kill()) // it is too late, and no error
		if s := w.state(in.ID); !s.Alive {
			w.Errorf("after it: %+v", s)
		}
	}},
	{"it ends with the instance", func(w *world) {
		in := w.instance(w.Commands.Forever)
		w.up(in)
		p, err := w.h.Exec(w.ctx, in.ID, runtime.Exec{Args: w.Commands.Stubborn})
		w.must(err)
		type end struct {
			code int
			err  error
		}
		ended := make(chan end, 1)
		go func() {
			code, err := p.Wait()
			ended <- end{code, err}
		}()
		w.must(w.h.Remove(w.ctx, in.ID))
		if e := <-ended; e.err != nil || e.code != 137 {
			w.Errorf("code %d, %v", e.code, e.err)
		}
	}},
	{"an unknown instance has no process", func(w *world) {
		_, err := w.h.Exec(w.ctx, randomHex(12), runtime.Exec{Args: w.Commands.Exit(0)})
		w.fails("Exec", err, nil)
	}},
}
