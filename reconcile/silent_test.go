package reconcile

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
