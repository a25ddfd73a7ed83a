package host

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// The roles below are played by this test binary in processes of its own.

func playRole(role string, args []string) int {
	var in struct {
		StateDir, RunDir, Lineage, ShortID, CgroupParent string
		Instance                                         runtime.Instance
		Phase                                            string
	}
	if err := json.Unmarshal([]byte(args[0]), &in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	o := Options{StateDir: in.StateDir, RunDir: in.RunDir, Lineage: in.Lineage, ShortID: in.ShortID, CgroupParent: in.CgroupParent}
	o.Trace = func(phase string, _ time.Duration) {
		if phase == in.Phase {
			unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	h, err := Open(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx := context.Background()
	if role == "info" {
		i, err := h.Info(ctx)
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(i)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		return 0
	}
	if role == "exec" {
		if _, err := h.Exec(ctx, in.Instance.ID, runtime.Exec{Args: []string{"sleep", "1000"}}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 2
		}
		fmt.Println("running")
		select {}
	}
	if _, err = h.Create(ctx, in.Instance); err == nil && role == "start" {
		err = h.Start(ctx, in.Instance.ID)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

func roleCommand(t *testing.T, role string, o Options, in runtime.Instance, phase string) *exec.Cmd {
	t.Helper()
	arg, err := json.Marshal(map[string]any{
		"StateDir": o.StateDir, "RunDir": o.RunDir, "Lineage": o.Lineage, "ShortID": o.ShortID, "CgroupParent": o.CgroupParent,
		"Instance": in, "Phase": phase,
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "role:"+role, string(arg))
	cmd.Stderr = os.Stderr
	return cmd
}

// TestSandboxOutlivesItsCreator: another process makes the sandbox and ends; the
// sandbox runs, writes and ends with nobody there, and is found with its outcome.
func TestSandboxOutlivesItsCreator(t *testing.T) {
	w := newWorld(t)
	w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "ctl"}))
	in := w.instance(1, "echo up; read x < /ctl/go; echo still writing; exit 42")
	in.Mounts = []runtime.Mount{{Kind: "volume", Source: "ctl", Path: "/ctl"}}
	fifo := w.h.volumeDir("ctl") + "/go"
	w.must(unix.Mkfifo(fifo, 0o666))
	w.must(os.Chmod(fifo, 0o666))
	w.must(roleCommand(t, "start", w.h.opts, in, "").Run())

	s := w.state(in.ID)
	if !s.Alive || !s.Started || len(s.Missing) > 0 {
		t.Fatalf("adopted: %+v", s)
	}
	if code, out := w.sh(in.ID, "echo hi"); code != 0 || out != "hi\n" {
		t.Errorf("exec into a sandbox of another process: %d %q", code, out)
	}
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	w.must(err)
	fmt.Fprintln(f, "go")
	f.Close()
	w.must(w.h.WaitExit(w.ctx, in.ID, s.Process))
	s = w.state(in.ID)
	if s.Alive || s.Outcome == nil || s.Outcome.ExitCode != 42 || time.Since(s.Outcome.At) > time.Minute {
		t.Errorf("after its end: %+v, outcome %+v", s, s.Outcome)
	}
	if got := w.log(in.ID); got != "up\nstill writing\n" {
		t.Errorf("log %q", got)
	}
}

// TestCreatedByOneStartedByAnother is `apply -no-start`, then `start`.
func TestCreatedByOneStartedByAnother(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "echo ran; exit 6")
	w.must(roleCommand(t, "create", w.h.opts, in, "").Run())
	s := w.state(in.ID)
	if !s.Alive || s.Started {
		t.Fatalf("created: %+v", s)
	}
	w.must(w.h.Start(w.ctx, in.ID))
	w.must(w.h.WaitExit(w.ctx, in.ID, s.Process))
	if s := w.state(in.ID); s.Outcome == nil || s.Outcome.ExitCode != 6 {
		t.Errorf("outcome %+v", s.Outcome)
	}
}

// TestKilledInTheMiddle kills the creating process after every phase of create
// and start. What is left is seen, can be made whole by another Create, and can
// be removed without a trace.
func TestKilledInTheMiddle(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	for _, phase := range []string{
		"layer", "sources" + besideInit, "root" + besideInit, "netns" + besideInit, "network" + besideInit, "init", "network", "record", "exec",
	} {
		for _, again := range []bool{false, true} {
			w.h.starters.Close() // only one process at a time starts sandboxes
			err := roleCommand(t, "start", w.h.opts, in, phase).Run()
			if err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("phase %s: the creator was to be killed: %v", phase, err)
			}
			s := w.state(in.ID)
			if phase == "exec" && (!s.Alive || !s.Started || len(s.Missing) > 0) {
				t.Errorf("after %s: %+v", phase, s)
			}
			if again {
				w.create(in)
				w.must(w.h.Start(w.ctx, in.ID))
				if s := w.state(in.ID); !s.Alive || !s.Started || len(s.Missing) > 0 {
					t.Errorf("made whole after %s: %+v", phase, s)
				}
			}
			w.must(w.h.Remove(w.ctx, in.ID))
			w.must(w.h.Remove(w.ctx, in.ID))
			if s, there, err := w.h.Inspect(w.ctx, in.ID); err != nil || there {
				t.Errorf("after %s and remove: %+v, %v", phase, s, err)
			}
		}
	}
}

// TestExecThatLostItsParentDoesNotHangStop: who ran the exec is killed; the
// exec'd process becomes the host's PID 1's, which may reap late.
func TestExecThatLostItsParentDoesNotHangStop(t *testing.T) {
	w := newWorld(t)
	in := w.instance(1, "exec sleep 1000")
	w.start(in)
	arg := roleCommand(t, "exec", w.h.opts, in, "")
	out, err := arg.StdoutPipe()
	w.must(err)
	w.must(arg.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "running\n" {
		t.Fatalf("exec role said %q, %v", line, err)
	}
	w.must(arg.Process.Kill())
	arg.Wait()
	_, err = w.h.Stop(w.ctx, in.ID, runtime.StopOptions{})
	w.must(err)
	if s := w.state(in.ID); s.Alive || s.Dying {
		t.Errorf("stopped: %+v", s)
	}
}
