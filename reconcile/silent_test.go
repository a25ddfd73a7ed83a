package reconcile

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An agent that does not answer is named, and waited for no longer than a bound or
// until Ctrl-C.
func TestAgentThatDoesNotAnswer(t *testing.T) {
	l := &lab{t: t}
	socket := filepath.Join(t.TempDir(), SocketName)
	silent, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() // connections are taken up by the kernel
	c := &Client{socket: socket, patience: 10 * time.Millisecond}
	_, err = c.Status(context.Background())
	l.refused(err, Locked, fmt.Sprintf("the agent (pid %d) at %s has not answered for 10ms", os.Getpid(), socket))

	c.patience = time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = c.Status(ctx)
	l.refused(err, Interrupted, "interrupted")
}

// So it is in the middle of a call.
func TestAgentThatStopsAnswering(t *testing.T) {
	l := &lab{t: t}
	socket := filepath.Join(t.TempDir(), SocketName)
	silent, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := &Client{socket: socket, patience: 10 * time.Millisecond, every: time.Millisecond}
	_, err = c.Apply(context.Background(), ApplyRequest{}, nil, nil)
	l.refused(err, Locked, "has not answered for 10ms")
	l.refused(err, Locked, "apply is taken as interrupted once it goes on")
}

// A call may take as long as it likes while the agent answers others.
func TestLongCallIsWaitedFor(t *testing.T) {
	socket := filepath.Join(t.TempDir(), SocketName)
	agent, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer agent.Close()
	asked, over := make(chan struct{}), make(chan struct{})
	serving.Go(func() {
		for {
			conn, err := agent.AcceptUnix()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				w := &wire{conn: conn}
				call, err := w.receive()
				switch {
				case err != nil:
					t.Error(err)
				case call.Method == "status":
					_ = w.send("result", "", ServiceStatus{})
					select {
					case asked <- struct{}{}:
					case <-over:
					}
				default:
					for range 3 {
						<-asked
					}
					defer close(over)
					_ = w.send("result", "", ListResult{})
				}
			})
		}
	})
	c := &Client{socket: socket, every: time.Millisecond}
	if _, err := c.List(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestStoppedProcessIsTold(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if stopped(cmd.Process.Pid) {
		t.Error("it is said to be stopped")
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is told to be stopped", func() bool { return stopped(cmd.Process.Pid) })
}
