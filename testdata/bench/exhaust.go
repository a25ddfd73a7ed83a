package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pinfold/reconcile/plan"
)

// benchExhaust measures what many sandboxes and many rounds cost on the real host:
// 500 at once, 200 taken over by a next agent after a SIGKILL of the last, and what an
// agent has grown to after 500 were created and destroyed.
func benchExhaust(ctx context.Context, pinfold string) (err error) {
	b, err := newBench(ctx, pinfold)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, part := range []func(context.Context) error{
		b.rounds, b.atOnce, func(ctx context.Context) error { return b.adoption(ctx, pinfold) },
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rounds creates and destroys 500, 50 at a time.
func (b *bench) rounds(ctx context.Context) error {
	const all, each = 500, 50
	round := func() error {
		for _, n := range []int{each, 0} {
			if err := b.apply(ctx, fmt.Sprintf(lifecycleConfig, n, "never")); err != nil {
				return err
			}
		}
		return nil
	}
	if err := round(); err != nil { // what comes with the first ones is no growth
		return err
	}
	rss, fds := status(b.agent.Process.Pid, "VmRSS:"), b.descriptors()
	begun := time.Now()
	for range all / each {
		if err := round(); err != nil {
			return err
		}
	}
	took := time.Since(begun)
	row(fmt.Sprintf("%d created and destroyed, a round", all), ms(took/all), "")
	row("  agent: memory (VmRSS) before and after", mb(rss)+" "+mb(status(b.agent.Process.Pid, "VmRSS:")), "does not grow")
	row("  agent: descriptors before and after", fmt.Sprintf("%d %d", fds, b.descriptors()), "does not grow")
	return nil
}

// atOnce has 500 at the same time.
func (b *bench) atOnce(ctx context.Context) error {
	const n = 500
	before := available()
	begun := time.Now()
	if err := b.apply(ctx, fmt.Sprintf(lifecycleConfig, n, "never")); err != nil {
		return err
	}
	up := time.Since(begun)
	pids, err := b.live(ctx)
	if err != nil {
		return err
	}
	if len(pids) != n {
		return fmt.Errorf("%d of %d run", len(pids), n)
	}
	row(fmt.Sprintf("%d sandboxes at once: up after", n), ms(up), "")
	row("  memory of the host per sandbox, its sleep included", mb((before-available())/n), "bar < 1 MB besides the workload")
	row("  agent: memory (VmRSS) and descriptors", fmt.Sprintf("%s %d", mb(status(b.agent.Process.Pid, "VmRSS:")), b.descriptors()), "")
	begun = time.Now()
	if _, err := b.List(ctx); err != nil {
		return err
	}
	row("  list", ms(time.Since(begun)), "")
	begun = time.Now()
	if err := b.apply(ctx, fmt.Sprintf(lifecycleConfig, 200, "never")); err != nil {
		return err
	}
	row("  300 of them destroyed after", ms(time.Since(begun)), "")
	return nil
}

// adoption kills the agent over 200 and starts another.
func (b *bench) adoption(ctx context.Context, pinfold string) error {
	before, err := b.live(ctx)
	if err != nil {
		return err
	}
	var all []time.Duration
	for range 5 {
		if err := b.agent.Process.Kill(); err != nil {
			return err
		}
		b.agent.Wait()
		begun := time.Now()
		if err := b.serve(pinfold); err != nil {
			return err
		}
		after, err := b.live(ctx) // answered by the new agent, which has looked at each
		if err != nil {
			return err
		}
		all = append(all, time.Since(begun))
		for id, pid := range before {
			if after[id] != pid || syscall.Kill(pid, 0) != nil {
				return fmt.Errorf("instance %s was process %d, is %d", id, pid, after[id])
			}
		}
	}
	row(fmt.Sprintf("a killed agent's %d sandboxes are the next one's after, p50 of 5", len(before)), ms(quantile(all, .5)), "bar ≤ 1 s, none restarted")
	row("  the slowest", ms(quantile(all, 1)), "")
	return nil
}

// live are the processes of the sandboxes that run, by instance.
func (b *bench) live(ctx context.Context) (map[string]int, error) {
	list, err := b.List(ctx)
	if err != nil {
		return nil, err
	}
	pids := map[string]int{}
	for _, v := range list.Sandboxes {
		if v.Phase == plan.Running {
			pids[*v.InstanceID] = *v.PID
		}
	}
	return pids, nil
}

func (b *bench) descriptors() int {
	entries, _ := os.ReadDir(filepath.Join("/proc", strconv.Itoa(b.agent.Process.Pid), "fd"))
	return len(entries)
}

// available is the memory that the host has for something new, in bytes.
func available() int64 {
	text, _ := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if kb, is := strings.CutPrefix(line, "MemAvailable:"); is {
			n, _ := strconv.ParseInt(strings.Fields(kb)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}
