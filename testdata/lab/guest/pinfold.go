package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	program  = "/usr/local/bin/pinfold"
	farmDir  = "/srv/farm"
	stateDir = "/var/lib/pinfold"
	runDir   = "/run/pinfold"
	agentLog = "/var/log/pinfold.log"

	commandBound = 3 * time.Minute
)

// pinfold runs a command in the farm's directory. An exit code other than 0 is an
// error; exited tells it.
func pinfold(args ...string) (stdout []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandBound)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append([]string{"-chdir=" + farmDir}, args...)...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("pinfold %s: %w\n%s%s", strings.Join(args, " "), err, tail(out.Bytes(), 30), tail(complaint.Bytes(), 30))
	}
	return out.Bytes(), nil
}

func exited(err error) int {
	var e *exec.ExitError
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return -1
}

// tail is the last n lines.
func tail(text []byte, n int) string {
	lines := strings.SplitAfter(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// sandbox is what list tells of one, as far as it is judged here.
type sandbox struct {
	Address    string
	InstanceID *string `json:"instance_id"`
	Phase      string
	PID        *int
	AddressV4  *string    `json:"address_v4"`
	ExpiresAt  *time.Time `json:"expires_at"`
	EndedAt    *time.Time `json:"ended_at"`
	Hold       *struct{ Mode, By string }
	Ports      map[string]struct{ Host int }
	Conditions []struct{ Type, Status, Reason string }
	Outcome    *struct {
		ExitCode *int `json:"exit_code"`
		Reason   string
		At       time.Time
	}
	Volumes map[string]string
}

func (s *sandbox) is(condition string) bool {
	for _, c := range s.Conditions {
		if c.Type == condition {
			return c.Status == "True"
		}
	}
	return false
}

// end tells how its process ended, if it has.
func (s *sandbox) end() string {
	if s.Outcome == nil {
		return ""
	}
	log, err := pinfold("logs", "-tail", "5", s.Address)
	if err != nil {
		log = []byte(err.Error())
	}
	return fmt.Sprintf(" (%s at %s; its last words: %q)", s.Outcome.Reason, instant(&s.Outcome.At), log)
}

func (s *sandbox) hold() string {
	if s.Hold == nil {
		return ""
	}
	return s.Hold.Mode
}

// live: it has a process, a cgroup, a network namespace.
func (s *sandbox) live() bool {
	return s.Phase == "created" || s.Phase == "running" || s.Phase == "paused"
}

func list() (map[string]*sandbox, error) {
	out, err := pinfold("list", "-json")
	if err != nil {
		return nil, err
	}
	var view struct{ Sandboxes []*sandbox }
	if err := json.Unmarshal(out, &view); err != nil {
		return nil, fmt.Errorf("list -json: %w", err)
	}
	all := map[string]*sandbox{}
	for _, s := range view.Sandboxes {
		all[s.Address] = s
	}
	return all, nil
}

// agent is `pinfold agent` as an init system runs it: in a cgroup of its own, and
// started again when it ends.
type agent struct {
	mu       sync.Mutex
	cmd      *exec.Cmd
	stopping bool
	ended    chan struct{} // closed when it was told to stop and has
	restarts int
}

func startAgent() (*agent, error) {
	a := &agent{ended: make(chan struct{})}
	if err := a.start(); err != nil {
		return nil, err
	}
	go a.keep()
	return a, nil
}

func (a *agent) start() error {
	const group = "/sys/fs/cgroup/pinfold.service"
	if err := os.MkdirAll(group, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(group)
	if err != nil {
		return err
	}
	defer dir.Close()
	log, err := os.OpenFile(agentLog, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(program, "agent")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	a.mu.Lock()
	a.cmd = cmd
	a.mu.Unlock()
	return nil
}

func (a *agent) keep() {
	defer close(a.ended)
	for {
		err := a.cmd.Wait()
		a.mu.Lock()
		stopping := a.stopping
		a.restarts++
		a.mu.Unlock()
		if stopping {
			return
		}
		say("the agent ended: %v", err)
		time.Sleep(100 * time.Millisecond) // systemd's RestartSec
		if err := a.start(); err != nil {
			say("FAIL: %v", err)
			return
		}
	}
}

// stop ends it as an init system does.
func (a *agent) stop() error {
	a.mu.Lock()
	a.stopping = true
	a.mu.Unlock()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the agent: %w", err)
	}
	select {
	case <-a.ended:
		return nil
	case <-time.After(30 * time.Second):
		return errors.New("the agent did not end within 30 s of SIGTERM")
	}
}

// sound: it has not ended, and nothing in its log says panic.
func (a *agent) sound() error {
	a.mu.Lock()
	restarts := a.restarts
	a.mu.Unlock()
	text, err := os.ReadFile(agentLog)
	if err != nil {
		return err
	}
	if at := bytes.Index(text, []byte("panic:")); at >= 0 {
		return fmt.Errorf("the agent panicked:\n%s", text[at:min(len(text), at+4000)])
	}
	if restarts > 0 {
		return fmt.Errorf("the agent ended %d times by itself", restarts)
	}
	return nil
}

// tail prints the end of its log.
func (a *agent) tail() {
	text, err := os.ReadFile(agentLog)
	if err != nil {
		say("the agent's log: %v", err)
		return
	}
	say("the end of the agent's log:")
	for line := range strings.Lines(tail(text, 60)) {
		say("| %s", strings.TrimRight(line, "\n"))
	}
}

// shortID is the mark of everything that the state dir made on the host.
func shortID() (string, error) {
	lineage, err := os.ReadFile(filepath.Join(stateDir, "lineage"))
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(strings.TrimSpace(string(lineage)), "-", "")[:6], nil
}
