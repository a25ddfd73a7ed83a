package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

const lifecycleConfig = `
image "base" { source = "host" }
sandbox "s" {
  count         = %d
  image         = image.base
  command       = ["sleep", "infinity"]
  shutdown_time = %q
}
`

// benchLifecycle measures on the real host, through an agent: pause and resume,
// how soon a death is noticed, what an idle agent costs with 200 sandboxes, and how
// late the ends of 100 begin that are due at one instant.
func benchLifecycle(ctx context.Context, pinfold string) (err error) {
	b, err := newBench(ctx, pinfold)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.apply(ctx, fmt.Sprintf(lifecycleConfig, 200, "never")); err != nil {
		return err
	}
	for _, part := range []func(context.Context) error{b.pauses, b.deaths, b.idle, b.deadlines} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// bench is a state of its own with an agent, and a client of that.
type bench struct {
	dir, run, conf string
	agent          *exec.Cmd
	reconcile.Service
}

func newBench(ctx context.Context, pinfold string) (b *bench, err error) {
	b = &bench{}
	if b.dir, err = os.MkdirTemp("", "pinfold-bench-"); err != nil {
		return nil, err
	}
	if b.run, err = os.MkdirTemp("/run", "pinfold-bench-"); err != nil {
		return nil, err
	}
	b.conf = filepath.Join(b.dir, "config")
	if err := os.Mkdir(b.conf, 0o755); err != nil {
		return nil, err
	}
	if err := b.serve(pinfold); err != nil {
		return nil, errors.Join(err, b.close())
	}
	b.Service, err = reconcile.Open(ctx, reconcile.OpenOptions{
		StateDir: filepath.Join(b.dir, "state"), RunDir: b.run, Settings: config.DefaultSettings(), Verb: "bench",
	})
	return b, err
}

// serve starts an agent and waits until it answers.
func (b *bench) serve(pinfold string) error {
	c := exec.Command(pinfold, "agent")
	c.Env = append(os.Environ(), "PINFOLD_STATE_DIR="+filepath.Join(b.dir, "state"), "PINFOLD_RUN_DIR="+b.run)
	log, err := os.OpenFile(filepath.Join(b.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return err
	}
	b.agent = c
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if conn, err := net.Dial("unix", filepath.Join(b.run, reconcile.SocketName)); err == nil {
			return conn.Close()
		}
		if time.Now().After(end) {
			return fmt.Errorf("the agent does not serve after 30 s")
		}
	}
}

func (b *bench) apply(ctx context.Context, text string) error {
	if err := os.WriteFile(filepath.Join(b.conf, "main.hcl"), []byte(text), 0o644); err != nil {
		return err
	}
	src, diags := config.Load(b.conf, config.Inputs{})
	if diags.HasErrors() {
		return fmt.Errorf("%v", diags)
	}
	return b.do(ctx, reconcile.PlanRequest{Source: src})
}

func (b *bench) do(ctx context.Context, r reconcile.PlanRequest) error {
	res, err := b.Apply(ctx, reconcile.ApplyRequest{PlanRequest: r, AutoApprove: true}, nil, nil)
	if err == nil && len(res.Failures) > 0 {
		err = fmt.Errorf("%+v", res.Failures)
	}
	return err
}

func (b *bench) close() (err error) {
	if b.Service != nil {
		err = b.do(context.Background(), reconcile.PlanRequest{Options: plan.Options{Destroy: true}})
		b.Service.Close()
	}
	if b.agent != nil {
		b.agent.Process.Signal(syscall.SIGTERM)
		b.agent.Wait()
	}
	return errors.Join(err, os.RemoveAll(b.dir), os.RemoveAll(b.run))
}

// pauses are whole verbs: lock, two durable records, freezer, answer.
func (b *bench) pauses(ctx context.Context) error {
	var pauses, resumes []time.Duration
	for i := range 205 {
		address := fmt.Sprintf("sandbox.s[%d]", i%20)
		for _, v := range []struct {
			verb string
			all  *[]time.Duration
		}{{"pause", &pauses}, {"resume", &resumes}} {
			begun := time.Now()
			if _, err := b.Act(ctx, reconcile.ActRequest{Verb: v.verb, Address: address}); err != nil {
				return err
			}
			if i >= 5 { // the first ones warm up
				*v.all = append(*v.all, time.Since(begun))
			}
		}
	}
	row("pause through the agent, p50 of 200", ms(quantile(pauses, .5)), "bar ≤ 5 ms")
	row("pause, p99", ms(quantile(pauses, .99)), "")
	row("resume through the agent, p50 of 200", ms(quantile(resumes, .5)), "bar ≤ 5 ms")
	row("resume, p99", ms(quantile(resumes, .99)), "")
	return nil
}

// deaths kills PID 1 of some sandboxes, one after the other, and reads from the
// history when the agent knew.
func (b *bench) deaths(ctx context.Context) error {
	var all []time.Duration
	for i := range 20 {
		address := fmt.Sprintf("sandbox.s[%d]", 20+i)
		res, err := b.List(ctx, address)
		if err != nil {
			return err
		}
		pid := res.Sandboxes[0].PID
		if pid == nil {
			return fmt.Errorf("%s has no process", address)
		}
		killed := time.Now()
		if err := syscall.Kill(*pid, syscall.SIGKILL); err != nil {
			return err
		}
		ev, err := b.first(ctx, address, killed, "lost", "exited")
		if err != nil {
			return err
		}
		all = append(all, ev.At.Sub(killed))
	}
	row("killed PID 1 until the agent knows, p50 of 20", ms(quantile(all, .5)), "bar ≤ 100 ms")
	row("  the slowest", ms(quantile(all, 1)), "")
	return nil
}

// first waits for the first event of the types since an instant.
func (b *bench) first(ctx context.Context, address string, since time.Time, types ...string) (reconcile.Event, error) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		res, err := b.Events(ctx, reconcile.EventsRequest{Address: address, Types: types, Since: since, Wait: time.Second})
		if err != nil {
			return reconcile.Event{}, err
		}
		if len(res.Events) > 0 {
			return res.Events[0], nil
		}
	}
	return reconcile.Event{}, fmt.Errorf("no %s of %s within 30 s", strings.Join(types, " or "), address)
}

func (b *bench) idle(ctx context.Context) error {
	const idle = 60 * time.Second
	time.Sleep(5 * time.Second) // past what the deaths have left to do
	before := cpu(b.agent.Process.Pid)
	select {
	case <-time.After(idle):
	case <-ctx.Done():
		return ctx.Err()
	}
	used := cpu(b.agent.Process.Pid) - before
	row(fmt.Sprintf("agent: CPU over %s idle, 200 sandboxes", idle), fmt.Sprintf("%.2f %%", 100*used.Seconds()/idle.Seconds()), "bar < 0.5 %")
	row("agent: idle memory with 200 sandboxes (VmRSS)", mb(status(b.agent.Process.Pid, "VmRSS:")), "bar ≤ 30 MB")
	return nil
}

// deadlines gives 100 of them one instant, and the others go first.
func (b *bench) deadlines(ctx context.Context) error {
	if err := b.apply(ctx, fmt.Sprintf(lifecycleConfig, 100, "never")); err != nil {
		return err
	}
	at := time.Now().Add(8 * time.Second).UTC()
	if err := b.apply(ctx, fmt.Sprintf(lifecycleConfig, 100, at.Format(time.RFC3339Nano))); err != nil {
		return err
	}
	var late, over []time.Duration
	early := 0
	for i := range 100 {
		address := fmt.Sprintf("sandbox.s[%d]", i)
		begun, err := b.first(ctx, address, at.Add(-time.Minute), "expired")
		if err != nil {
			return err
		}
		ended, err := b.first(ctx, address, at.Add(-time.Minute), "stop")
		if err != nil {
			return err
		}
		if begun.At.Before(at) {
			early++
		}
		late, over = append(late, begun.At.Sub(at)), append(over, ended.At.Sub(at))
	}
	row("100 due at one instant: early", fmt.Sprint(early), "bar 0")
	for _, q := range []struct {
		name string
		at   float64
	}{{"first", 0}, {"p50", .5}, {"p90", .9}, {"last", 1}} {
		row("  teardown begins after the instant, "+q.name, ms(quantile(late, q.at)), map[bool]string{true: "bar ≤ 100 ms, plus the work ahead"}[q.at == 0])
	}
	row("  all are down after", ms(quantile(over, 1)), "")
	return nil
}
