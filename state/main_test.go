package state

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test binary runs itself as the other process of a test: what it is then is
// in this variable, the state dir in its first argument.
const roleVariable = "PINFOLD_STATE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		goleak.VerifyTestMain(m)
	case "hold":
		hold(os.Args[1])
	case "write":
		write(os.Args[1])
	case "swap":
		swapping(os.Args[1], os.Args[2:]...)
	case "convert":
		converting(os.Args[1], os.Args[2])
	default:
		panic("no role " + role)
	}
}

// hold has the state open until its standard input ends.
func hold(dir string) {
	s, err := Open(context.Background(), Options{Dir: dir, Verb: "apply", Wait: 30 * time.Second})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.Lineage())
	io.Copy(io.Discard, os.Stdin)
	if err := s.Close(); err != nil {
		os.Exit(1)
	}
}

// write updates the state without end, from four goroutines, and prints the
// sequence number of each acknowledged one.
func write(dir string) {
	s, err := Open(context.Background(), Options{Dir: dir, Verb: "write", Wait: 30 * time.Second})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	filler := strings.Repeat("f", 700)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				var seq uint64
				err := s.Update(func(x Tx) (err error) {
					if seq, err = x.Append(History, nil); err != nil {
						return err
					}
					return errors.Join(
						x.Put(Sandboxes, fmt.Sprint(seq), []byte(filler)),
						x.Delete(Sandboxes, fmt.Sprint(seq-100)), // makes free pages to use again
						x.Bump())
				})
				if err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				fmt.Println(seq)
			}
		})
	}
	all.Wait()
}

// process is this binary in another role.
type process struct {
	*exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	ended atomic.Bool
}

func start(t testing.TB, role, dir string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{dir}, args...)...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)}
	t.Cleanup(p.kill)
	return p
}

func (p *process) line(t testing.TB) string {
	t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the other process said no more: %v", err)
	}
	return strings.TrimSpace(line)
}

// kill ends the process by SIGKILL and waits for its end.
func (p *process) kill() {
	if p.ended.CompareAndSwap(false, true) {
		p.Process.Kill()
		p.Wait()
	}
}
