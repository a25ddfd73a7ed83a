package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"pinfold/config"
	"pinfold/reconcile/plan"
	"pinfold/runtime"
)

// relayed tells whether a sandbox's published ports go through the agent: its
// rules need connections to be seen, or there is no network to forward to.
func relayed(spec *config.Sandbox) bool {
	l := spec.Lifetime
	return len(spec.Ports) > 0 && (spec.Network == nil || l.IdleTimeout > 0 || l.ResumeOnAccess || l.RenewOnAccess > 0)
}

// ports are the published ports that the agent serves itself. What should be
// served follows from a sandbox's record alone.
type ports struct {
	a    *agent
	mu   sync.Mutex
	of   map[string]map[string]served // by sandbox address and port name
	held map[string]int               // sandboxes that a connection is just waking
}

type served struct {
	port   plan.Port
	server io.Closer
	of     *atomic.Pointer[string] // the sandbox's address, which a renaming changes under the server
}

// follow opens and closes listeners as the record asks; nil: the sandbox is gone.
// What cannot be opened is complained of and tried again at the next look. It may
// be called from a connection that it ends: closing waits for nobody.
func (p *ports) follow(address string, rec *plan.Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	want := map[string]plan.Port{}
	if rec != nil && relayed(&rec.Spec) && (live(rec) || rests(rec)) {
		want = rec.Ports
	}
	for name, s := range p.of[address] {
		if s.port != want[name] && p.held[address] == 0 {
			s.server.Close()
			delete(p.of[address], name)
		}
	}
	for name, port := range want {
		if _, have := p.of[address][name]; have || port.Host == 0 {
			continue
		}
		s, err := p.listen(address, name, port)
		if err != nil {
			p.a.complain(address, "cannot serve a published port", err, "port", name)
			continue
		}
		if p.of == nil {
			p.of = map[string]map[string]served{}
		}
		if p.of[address] == nil {
			p.of[address] = map[string]served{}
		}
		p.of[address][name] = s
	}
	if len(p.of[address]) == 0 {
		delete(p.of, address)
	}
}

// hold keeps the ports of a sandbox served until the returned function is called,
// though it neither lives nor rests meanwhile: it is just being started.
func (p *ports) hold(address string) (release func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = map[string]int{}
	}
	p.held[address]++
	return func() {
		p.mu.Lock()
		if p.held[address]--; p.held[address] == 0 {
			delete(p.held, address)
		}
		p.mu.Unlock()
		p.follow(address, p.a.current(address))
	}
}

// Close stops serving. Sandboxes, and whoever listens inside, live on.
func (p *ports) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, all := range p.of {
		for _, s := range all {
			s.server.Close()
		}
	}
	p.of = nil
}

func (p *ports) listen(address, name string, port plan.Port) (served, error) {
	f, err := forwardOf(address, name, port)
	if err != nil {
		return served{}, err
	}
	of := new(atomic.Pointer[string])
	of.Store(&address)
	server, err := p.a.host.Publish(f,
		func(ctx context.Context) (net.Conn, error) {
			for {
				now := of.Load()
				c, err := p.a.connect(ctx, *now, port)
				if err == nil || of.Load() == now {
					return c, err
				}
				// It was renamed meanwhile.
			}
		},
		func() { p.a.passing(*of.Load()) })
	return served{port, server, of}, err
}

// rename follows sandboxes to new addresses; what is connected stays so.
func (p *ports) rename(to map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	renameKeys(p.of, to)
	renameKeys(p.held, to)
	for _, address := range to {
		for _, s := range p.of[address] {
			s.of.Store(&address)
		}
	}
}

// connectPause is how long a connection waits between tries while a process that
// was just started does not listen yet.
const connectPause = 20 * time.Millisecond

// connect reaches a port of the sandbox, waking it first where its rules say so.
func (a *agent) connect(ctx context.Context, address string, port plan.Port) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, accessWait)
	defer cancel()
	v, err := a.enter(ctx, address)
	if err != nil {
		return nil, err
	}
	defer v.leave()
	rec := v.rec
	for {
		if rec.Instance == nil {
			return nil, fmt.Errorf("%s is %s", address, phaseOf(rec))
		}
		c, err := a.host.Dial(ctx, rec.Instance.ID, port.Protocol, uint16(port.Container))
		if err == nil {
			v.count()
			return c, nil
		}
		// Just started, by this access or another: it needs a moment to listen.
		fresh := a.now().Sub(rec.Instance.StartedAt) < accessWait
		if now := a.current(address); errors.Is(err, runtime.ErrPaused) && now != nil && rests(now) {
			// Frozen meanwhile by its expiry: that is for access to undo.
			if rec, err = a.as(byAccess).awaken(ctx, address); err != nil {
				return nil, err
			}
			v.rec = rec
			continue
		}
		if !fresh || errors.Is(err, runtime.ErrPaused) || errors.Is(err, runtime.ErrNotRunning) {
			return nil, err
		}
		t := time.NewTimer(connectPause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, err
		}
	}
}

// passing is told of bytes on an open connection: they are use, and what waits
// for them may rest.
func (a *agent) passing(address string) {
	rec := a.current(address)
	if rec == nil {
		return
	}
	if rests(rec) {
		if _, busy := a.waking.LoadOrStore(address, true); busy {
			return
		}
		a.background.Go(func() {
			defer a.waking.Delete(address)
			if _, err := a.as(byAccess).awaken(context.Background(), address); err != nil {
				a.complain(address, "cannot wake for a connection", err)
			}
		})
		return
	}
	if phaseOf(rec) == plan.Running { // what is sent to one that an operator holds reaches nobody
		a.activity.touch(address, a.now())
		a.renewByAccess(rec)
	}
}
