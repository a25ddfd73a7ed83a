package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const applyConfig = `
image "base" { source = "host" }
network "n" { cidr = "198.19.0.0/16" }
sandbox "s" {
  count   = %d
  image   = image.base
  command = ["sleep", "infinity"]
  network { name = network.n }
  resources {
    cpu    = 0.5
    memory = "256MiB"
    pids   = 128
  }
}
`

// benchApply measures whole commands over n sandboxes on the real host, and the
// agent that looks after them.
func benchApply(ctx context.Context, pinfold string, n int) (err error) {
	dir, err := os.MkdirTemp("", "pinfold-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	conf := filepath.Join(dir, "config")
	if err := os.Mkdir(conf, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(conf, "main.hcl"), fmt.Appendf(nil, applyConfig, n), 0o644); err != nil {
		return err
	}
	run, err := os.MkdirTemp("/run", "pinfold-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(run)
	env := []string{"PINFOLD_STATE_DIR=" + filepath.Join(dir, "state"), "PINFOLD_RUN_DIR=" + run}
	do := func(args ...string) (time.Duration, int64, error) { return command(ctx, conf, env, pinfold, args...) }
	destroyed := false
	defer func() {
		if !destroyed {
			_, _, _ = command(context.WithoutCancel(ctx), conf, env, pinfold, "destroy", "-auto-approve")
		}
	}()
	took, rss, err := do("apply", "-auto-approve")
	if err != nil {
		return err
	}
	row(fmt.Sprintf("apply of %d sandboxes (real host)", n), ms(took), fmt.Sprintf("%.1f a second", float64(n)/took.Seconds()))
	row("  peak memory of apply", mb(rss), "")
	loop, err := runcLoop(ctx, dir, run, n)
	if err != nil {
		return err
	}
	row(fmt.Sprintf("loop of %d runc run -d, plain bundle, no network", n), ms(loop), fmt.Sprintf("apply takes × %.2f of it", took.Seconds()/loop.Seconds()))
	var plans []time.Duration
	for range 5 {
		took, _, err := do("plan", "-detailed-exitcode")
		if err != nil {
			return err
		}
		plans = append(plans, took)
	}
	row(fmt.Sprintf("plan of those %d, nothing to do, whole command", n), ms(quantile(plans, .5)), "")
	if err := benchAgent(ctx, pinfold, conf, env, dir, run, n); err != nil {
		return err
	}
	if took, rss, err = do("destroy", "-auto-approve"); err != nil {
		return err
	}
	destroyed = true
	row(fmt.Sprintf("destroy of %d sandboxes", n), ms(took), fmt.Sprintf("%.1f a second, peak %s", float64(n)/took.Seconds(), mb(rss)))
	return nil
}

func runcLoop(ctx context.Context, dir, run string, n int) (time.Duration, error) {
	bundle, err := plainBundle(dir)
	if err != nil {
		return 0, err
	}
	root := filepath.Join(run, "runc")
	begun := time.Now()
	for i := range n {
		if _, err := runcRun(ctx, bundle, root, fmt.Sprintf("loop%d", i)); err != nil {
			return 0, err
		}
	}
	took := time.Since(begun)
	for i := range n {
		_ = exec.CommandContext(context.WithoutCancel(ctx), "runc", "--root", root, "delete", "-f", fmt.Sprintf("loop%d", i)).Run()
	}
	return took, nil
}

// benchAgent starts an agent over what was applied and reads its memory and CPU
// while nothing happens.
func benchAgent(ctx context.Context, pinfold, conf string, env []string, dir, run string, n int) error {
	c := exec.CommandContext(ctx, pinfold, "agent")
	c.Dir, c.Env = conf, append(os.Environ(), env...)
	log, err := os.Create(filepath.Join(dir, "agent.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	begun := time.Now()
	if err := c.Start(); err != nil {
		return err
	}
	defer func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
	}()
	sock := filepath.Join(run, "agent.sock")
	for {
		if _, err := os.Stat(sock); err == nil {
			break
		}
		if time.Since(begun) > 30*time.Second {
			return fmt.Errorf("the agent does not serve after 30 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
	row(fmt.Sprintf("agent: start until it serves, %d sandboxes re-adopted", n), ms(time.Since(begun)), "")
	time.Sleep(3 * time.Second) // past its first looks
	before := cpu(c.Process.Pid)
	const idle = 30 * time.Second
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	used := cpu(c.Process.Pid) - before
	row(fmt.Sprintf("agent: idle memory with %d sandboxes (VmRSS)", n), mb(status(c.Process.Pid, "VmRSS:")), "bar ≤ 30 MB idle")
	row("agent: peak memory (VmHWM)", mb(status(c.Process.Pid, "VmHWM:")), "")
	row(fmt.Sprintf("agent: CPU over %s idle", idle), fmt.Sprintf("%.2f %%", 100*used.Seconds()/idle.Seconds()), "bar < 0.5 % with 1,000")
	return nil
}

func mb(bytes int64) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// status reads a kB field of /proc/PID/status, in bytes.
func status(pid int, field string) int64 {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), field); ok {
			kb, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// cpu is user and system time of a process (fields 14 and 15 of
// /proc/PID/stat, in clock ticks of 1/100 s; proc_pid_stat(5)).
func cpu(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}
