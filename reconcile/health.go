package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

const (
	probeInterval = 10 * time.Second // health.interval's default
	probeTimeout  = 5 * time.Second  // health.timeout's
	probeRetries  = 3                // health.retries'
)

// probes are the agent's health probes, one loop for each running process with a
// health block. They are no use of the sandbox, and rest while it is paused.
type probes struct {
	a  *agent
	mu sync.Mutex
	of map[string]*probe // by sandbox address
	// ready are processes that passed before they were the sandbox's, by address.
	ready map[string]*plan.Instance
}

// probe watches one process.
type probe struct {
	instance string
	started  time.Time
	spec     config.Health
	rec      *plan.Sandbox // as it was when the probe began
	stop     context.CancelFunc

	address string      // of its sandbox, guarded by probes.mu
	health  plan.Health // guarded by probes.mu
}

// follow starts, keeps or ends the probe of a sandbox as its record asks.
func (p *probes) follow(ctx context.Context, address string, rec *plan.Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.of[address]
	wanted := rec != nil && rec.Spec.Health != nil && phaseOf(rec) == plan.Running
	if have != nil && wanted && have.instance == rec.Instance.ID && have.started.Equal(rec.Instance.StartedAt) && sameHealth(&have.spec, rec.Spec.Health) {
		return
	}
	var before *plan.Health
	if have != nil {
		have.stop()
		delete(p.of, address)
		if rec != nil && rec.Instance != nil && have.instance == rec.Instance.ID && have.started.Equal(rec.Instance.StartedAt) {
			before = &have.health // the same process under another probe, or paused
		}
	}
	if !wanted || ctx.Err() != nil {
		if before != nil && phaseOf(rec) == plan.Paused && rec.Spec.Health != nil {
			p.of[address] = &probe{address: address, instance: have.instance, started: have.started, spec: have.spec, stop: func() {}, health: *before}
		}
		return
	}
	run, stop := context.WithCancel(ctx)
	n := &probe{address: address, instance: rec.Instance.ID, started: rec.Instance.StartedAt, spec: *rec.Spec.Health, rec: rec, stop: stop, health: plan.Health{Status: "starting"}}
	if before != nil {
		n.health = *before
	} else if i := p.ready[address]; i != nil && i.ID == n.instance && i.StartedAt.Equal(n.started) {
		n.health = plan.Health{Status: "passing"}
	}
	delete(p.ready, address)
	if p.of == nil {
		p.of = map[string]*probe{}
	}
	p.of[address] = n
	p.a.work.Go(func() { p.loop(run, n) })
}

// passed notes that the probe of a process that is about to be rec's has passed.
func (p *probes) passed(rec *plan.Sandbox) {
	if p == nil || rec.Spec.Health == nil || phaseOf(rec) != plan.Running {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ready == nil {
		p.ready = map[string]*plan.Instance{}
	}
	i := *rec.Instance
	p.ready[rec.Address] = &i
}

func sameHealth(a, b *config.Health) bool {
	return fmt.Sprint(*a) == fmt.Sprint(*b)
}

// rename follows sandboxes to new addresses; the probes go on.
func (p *probes) rename(to map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	renameKeys(p.of, to)
	renameKeys(p.ready, to)
	for address, n := range p.of {
		n.address = address
	}
}

// fill puts what is known into a look at the host.
func (p *probes) fill(s *sight) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.of {
		if seen, ok := s.Instances[n.instance]; ok && seen.Alive {
			h := n.health
			seen.Health = &h
			s.Instances[n.instance] = seen
		}
	}
}

// loop probes until ctx ends. A result counts once it came as often in a row as
// the block says; a success counts at once.
func (p *probes) loop(ctx context.Context, n *probe) {
	interval := orDefault(n.spec.Interval, probeInterval)
	t := time.NewTimer(min(interval, time.Second)) // the first one comes soon
	defer t.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		err := p.a.probe(ctx, n)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			failures = 0
			p.set(n, plan.Health{Status: "passing"})
		case errors.Is(err, runtime.ErrPaused), errors.Is(err, runtime.ErrNotRunning):
			// Its end, or its rest, is somebody else's news.
		case p.a.now().Before(n.started.Add(time.Duration(n.spec.StartPeriod))):
		default:
			if failures++; failures >= cmp.Or(n.spec.Retries, probeRetries) {
				p.set(n, plan.Health{Status: "failing", Message: discreet(n.rec, err).Error()})
			}
		}
		t.Reset(interval)
	}
}

func (p *probes) set(n *probe, h plan.Health) {
	p.mu.Lock()
	changed := n.health.Status != h.Status
	n.health = h // with the newest words
	address := n.address
	p.mu.Unlock()
	if changed {
		p.a.nudgeThese(address)
	}
}

func orDefault(d config.Duration, otherwise time.Duration) time.Duration {
	if d > 0 {
		return time.Duration(d)
	}
	return otherwise
}

// probe asks once.
func (e *Engine) probe(ctx context.Context, n *probe) error {
	timeout := orDefault(n.spec.Timeout, probeTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var err error
	switch {
	case len(n.spec.Command) > 0:
		err = e.probeCommand(ctx, n)
	case n.spec.HTTP != "":
		err = e.probeHTTP(ctx, n)
	default:
		var c net.Conn
		if c, err = e.host.DialInside(ctx, n.instance, "tcp", loopback(n.spec.TCP)); err == nil {
			c.Close()
		}
	}
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		return fmt.Errorf("no answer within %s", timeout)
	}
	return err
}

// loopback is a port as the sandbox itself sees it.
func loopback(port int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
}

func (e *Engine) probeCommand(ctx context.Context, n *probe) error {
	p, err := e.host.Exec(ctx, n.instance, runtime.Exec{Args: n.spec.Command})
	if err != nil {
		return err
	}
	type result struct {
		code int
		err  error
	}
	done := make(chan result, 1)
	go func() { // it is reaped whenever it ends; killed, that is soon
		code, err := p.Wait()
		done <- result{code, err}
	}()
	select {
	case r := <-done:
		if r.err == nil && r.code != 0 {
			r.err = fmt.Errorf("%s: exit code %d", n.spec.Command[0], r.code)
		}
		return r.err
	case <-ctx.Done():
		_ = p.Kill() // and what it started
		return ctx.Err()
	}
}

// asWritten is the address that a probe's URL names; localhost is 127.0.0.1, and
// without a port it is 80.
func asWritten(u *url.URL) (netip.AddrPort, error) {
	addr := loopback(80)
	if s := u.Port(); s != "" {
		port, err := strconv.ParseUint(s, 10, 16)
		if err != nil {
			return addr, err
		}
		addr = loopback(int(port))
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		addr = netip.AddrPortFrom(ip, addr.Port())
	}
	return addr, nil
}

func (e *Engine) probeHTTP(ctx context.Context, n *probe) error {
	u, err := url.Parse(n.spec.HTTP)
	if err != nil {
		return err
	}
	addr, err := asWritten(u)
	if err != nil {
		return err
	}
	client := http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return e.host.DialInside(ctx, n.instance, "tcp", addr)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, n.spec.HTTP, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	if res.StatusCode < 200 || res.StatusCode >= 400 {
		return fmt.Errorf("GET %s: %s", n.spec.HTTP, res.Status)
	}
	return nil
}
