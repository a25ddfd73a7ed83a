package cli

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"pinfold/runtime/leftovers"
)

// terminal is a command that has one.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	slave  *os.File // kept open, so that its modes can be looked at afterwards

	mu  sync.Mutex
	out bytes.Buffer
	at  int // what expect has matched

	over chan struct{} // closed when all was read
}

// onTerminal starts pinfold (this test binary) on a new terminal.
func onTerminal(t *testing.T, dir string, env []string, size pty.Winsize, args ...string) *terminal {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Args = append([]string{"pinfold"}, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), scriptHelper+"=1", "TERM=xterm"), env...)
	return withTerminal(t, cmd, size)
}

// withTerminal starts any command on a new terminal.
func withTerminal(t *testing.T, cmd *exec.Cmd, size pty.Winsize) *terminal {
	t.Helper()
	var err error
	x := &terminal{t: t, cmd: cmd, over: make(chan struct{})}
	if x.master, x.slave, err = pty.Open(); err != nil {
		t.Fatal(err)
	}
	if err := pty.Setsize(x.master, &size); err != nil {
		t.Fatal(err)
	}
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = x.slave, x.slave, x.slave
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go x.read()
	t.Cleanup(func() {
		if x.cmd.ProcessState == nil {
			_ = x.cmd.Process.Kill()
			_ = x.cmd.Wait()
		}
		x.slave.Close()
		x.master.Close()
	})
	return x
}

// read keeps what is written to the terminal until its last user closes it.
func (x *terminal) read() {
	defer close(x.over)
	block := make([]byte, 4096)
	for {
		n, err := x.master.Read(block)
		x.mu.Lock()
		x.out.Write(block[:n])
		x.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (x *terminal) screen() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.String()
}

// expect waits until what came since the last match matches pattern.
func (x *terminal) expect(pattern string) {
	x.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
		text := x.screen()
		if m := re.FindStringIndex(text[x.at:]); m != nil {
			x.at += m[1]
			return
		}
		if time.Now().After(end) {
			x.t.Fatalf("%s never came; the terminal has\n%q", pattern, text)
		}
	}
}

func (x *terminal) send(text string) {
	x.t.Helper()
	if _, err := x.master.WriteString(text); err != nil {
		x.t.Fatal(err)
	}
}

// ends waits for the command's end and returns its exit code.
func (x *terminal) ends() int {
	x.t.Helper()
	timer := time.AfterFunc(bound, func() { _ = x.cmd.Process.Kill() })
	defer timer.Stop()
	_ = x.cmd.Wait() // the caller checks the code
	return x.cmd.ProcessState.ExitCode()
}

// whole is all that the command wrote to the terminal until its end.
func (x *terminal) whole() (text string, code int) {
	x.t.Helper()
	code = x.ends()
	x.slave.Close() // its last user: what is left is read, and then no more comes
	select {
	case <-x.over:
	case <-time.After(bound):
		x.t.Fatal("something still has the terminal")
	}
	return x.screen(), code
}

func modes(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

const terminalConfig = `image "base" {
  source = "host"
}

sandbox "a_sandbox_with_a_long_name" {
  image   = image.base
  command = ["sleep", "infinity"]
}

sandbox "py" {
  image   = image.base
  command = ["sleep", "infinity"]
}
`

// What only a real terminal shows: colour, live progress, the prompt, and a
// command inside that has a terminal of its own.
func TestTerminal(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes real sandboxes: run it as root")
	}
	for _, mode := range []string{"alone", "agent"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testTerminal(t, mode == "agent")
		})
	}
}

func testTerminal(t *testing.T, agent bool) {
	dir, state, run := leavesNothing(t, "pinfold-terminal")
	if err := os.WriteFile(filepath.Join(dir, "main.hcl"), []byte(terminalConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{"PINFOLD_STATE_DIR=" + state, "PINFOLD_RUN_DIR=" + run, "PINFOLD_HOST_CONFIG=" + filepath.Join(dir, "none.hcl")}
	pinfold := func(size pty.Winsize, args ...string) *terminal { return onTerminal(t, dir, env, size, args...) }
	usual := pty.Winsize{Rows: 24, Cols: 80}
	if agent {
		a := pinfold(usual, "agent")
		t.Cleanup(func() {
			_ = a.cmd.Process.Signal(syscall.SIGTERM)
			if code := a.ends(); code != 0 {
				t.Errorf("the agent ended with %d\n%s", code, a.screen())
			}
		})
		for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
			c, err := net.Dial("unix", filepath.Join(run, "agent.sock"))
			if err == nil {
				c.Close()
				break
			}
			if time.Now().After(end) {
				t.Fatalf("the agent does not serve: %v\n%s", err, a.screen())
			}
		}
	}
	t.Cleanup(func() {
		if x := pinfold(usual, "destroy", "-auto-approve"); x.ends() != 0 {
			t.Errorf("destroy failed:\n%s", x.screen())
		}
	})

	x := pinfold(usual, "apply")
	x.expect(`\x1b\[1m# sandbox.py\x1b\[0m will be \x1b\[32mcreated`)
	x.expect(`Enter a value: `)
	x.send("yes\n")
	x.expect(`[0-9] of 3 done`) // the live line
	x.expect(`Apply complete!`)
	if code := x.ends(); code != 0 {
		t.Fatalf("apply: exit %d\n%s", code, x.screen())
	}

	// Ctrl-C at the prompt.
	x = pinfold(usual, "destroy", "-no-color")
	x.expect(`Enter a value: `)
	x.send("\x03")
	x.expect(`\A\^C\r\nInterrupted\.\r\n`) // not on the line of the question
	if code := x.ends(); code != 130 || strings.Contains(x.screen(), "\x1b[1m") {
		t.Errorf("Ctrl-C at the prompt: exit %d\n%q", code, x.screen())
	}

	x = pinfold(pty.Winsize{Rows: 24, Cols: 40}, "list", "-no-color")
	if code := x.ends(); code != 0 {
		t.Errorf("list: exit %d", code)
	}
	x.expect(`SANDBOX +PHASE`)
	for line := range strings.SplitSeq(x.screen(), "\r\n") {
		if n := len([]rune(line)); n > 40 {
			t.Errorf("%d columns on a screen of 40: %q", n, line)
		}
	}

	x = pinfold(pty.Winsize{Rows: 33, Cols: 101}, "exec", "-it", "-e", "PS1=in> ", "py", "sh")
	before := modes(t, x.slave)
	x.expect(`in> `)
	x.send("stty size\n")
	x.expect(`\n33 101\r`)
	if err := pty.Setsize(x.master, &pty.Winsize{Rows: 44, Cols: 122}); err != nil {
		t.Fatal(err)
	}
	x.send("while [ \"$(stty size)\" != '44 122' ]; do sleep 0.05; done; stty size\n")
	x.expect(`44 122\r`) // not the echo, which has a quote after it
	// Ctrl-C is the command's inside, not pinfold's.
	// A shell of its own: the signal is lost on a child that has not become its
	// program yet.
	x.send("sh -c 'echo begun; exec sleep 1000'\n")
	x.expect(`begun\r`)
	x.send("\x03")
	x.expect(`in> `)
	x.send("exit 5\n")
	if code := x.ends(); code != 5 {
		t.Errorf("exec -it: exit %d, want 5\n%q", code, x.screen())
	}
	// MakeRaw saw the modes of before; they are back.
	if after := modes(t, x.slave); after != before {
		t.Errorf("the terminal's modes changed from %+v to %+v", before, after)
	}
}

// leavesNothing makes a directory with places for a state and a run dir, and wants
// nothing of theirs to be left on the host when the test ends.
func leavesNothing(t *testing.T, name string) (dir, state, run string) {
	t.Helper()
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		t.Fatal(err)
	}
	state, run = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	t.Cleanup(func() {
		left, err := leftOf(leftovers.Settled, state, run)
		if err != nil || len(left) > 0 {
			t.Errorf("left on the host: %q, %v", left, err)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir, state, run
}
