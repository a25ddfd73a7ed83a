//go:build failpoints

package reconcile

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
	"pinfold/state"
)

// Every call that the engine makes of host and store is a failpoint here, so that
// none can be forgotten where it is made: a method that is added to the interface
// does not compile until it has its place below.

// hostWithPoints is h with a step around each call that touches the host or looks at
// it. What only opens a connection, a stream or a process has its steps in the host;
// what only counts for people has none.
func hostWithPoints(h runtime.Host) runtime.Host { return pointed{h} }

type pointed struct{ host runtime.Host }

func (p pointed) PrepareImage(ctx context.Context, src runtime.ImageSource) (runtime.Image, error) {
	return failpoint.Get("engine.image.prepare", func() (runtime.Image, error) { return p.host.PrepareImage(ctx, src) })
}

func (p pointed) EnsureNetwork(ctx context.Context, n runtime.Network) error {
	return failpoint.Step("engine.network.ensure", func() error { return p.host.EnsureNetwork(ctx, n) })
}

func (p pointed) RemoveNetwork(ctx context.Context, n runtime.Network) error {
	return failpoint.Step("engine.network.remove", func() error { return p.host.RemoveNetwork(ctx, n) })
}

func (p pointed) PrefixesInUse(ctx context.Context) ([]netip.Prefix, error) {
	return failpoint.Get("engine.prefixes.look", func() ([]netip.Prefix, error) { return p.host.PrefixesInUse(ctx) })
}

func (p pointed) CheckPort(ctx context.Context, addr netip.Addr, port uint16, protocol string) (uint16, error) {
	return failpoint.Get("engine.port.check", func() (uint16, error) { return p.host.CheckPort(ctx, addr, port, protocol) })
}

func (p pointed) EnsureVolume(ctx context.Context, v runtime.Volume) error {
	return failpoint.Step("engine.volume.ensure", func() error { return p.host.EnsureVolume(ctx, v) })
}

func (p pointed) RemoveVolume(ctx context.Context, id string) error {
	return failpoint.Step("engine.volume.remove", func() error { return p.host.RemoveVolume(ctx, id) })
}

func (p pointed) Create(ctx context.Context, in runtime.Instance) (runtime.Process, error) {
	return failpoint.Get("engine.instance.create", func() (runtime.Process, error) { return p.host.Create(ctx, in) })
}

func (p pointed) Start(ctx context.Context, id string) error {
	return failpoint.Step("engine.instance.start", func() error { return p.host.Start(ctx, id) })
}

func (p pointed) Pause(ctx context.Context, id string) error {
	return failpoint.Step("engine.instance.pause", func() error { return p.host.Pause(ctx, id) })
}

func (p pointed) Resume(ctx context.Context, id string) error {
	return failpoint.Step("engine.instance.resume", func() error { return p.host.Resume(ctx, id) })
}

func (p pointed) Stop(ctx context.Context, id string, how runtime.StopOptions) (*runtime.Outcome, error) {
	return failpoint.Get("engine.instance.stop", func() (*runtime.Outcome, error) { return p.host.Stop(ctx, id, how) })
}

func (p pointed) Update(ctx context.Context, in runtime.Instance) error {
	return failpoint.Step("engine.instance.update", func() error { return p.host.Update(ctx, in) })
}

func (p pointed) Repair(ctx context.Context, in runtime.Instance) error {
	return failpoint.Step("engine.instance.repair", func() error { return p.host.Repair(ctx, in) })
}

func (p pointed) Remove(ctx context.Context, id string) error {
	return failpoint.Step("engine.instance.remove", func() error { return p.host.Remove(ctx, id) })
}

func (p pointed) Note(ctx context.Context, id string, doc []byte) error {
	return failpoint.Step("engine.instance.note", func() error { return p.host.Note(ctx, id, doc) })
}

func (p pointed) Notes(ctx context.Context) (map[string]runtime.Noted, error) {
	return failpoint.Get("engine.notes.look", func() (map[string]runtime.Noted, error) { return p.host.Notes(ctx) })
}

func (p pointed) Release(ctx context.Context, id string) error {
	return failpoint.Step("engine.instance.release", func() error { return p.host.Release(ctx, id) })
}

func (p pointed) Reclaim(ctx context.Context, id string) error {
	return failpoint.Step("engine.instance.reclaim", func() error { return p.host.Reclaim(ctx, id) })
}

func (p pointed) CopyIn(ctx context.Context, id, path string, r io.Reader) error {
	return failpoint.Step("engine.files.copyin", func() error { return p.host.CopyIn(ctx, id, path, r) })
}

func (p pointed) CopyOut(ctx context.Context, id, path string, w io.Writer) error {
	return failpoint.Step("engine.files.copyout", func() error { return p.host.CopyOut(ctx, id, path, w) })
}

func (p pointed) Observe(ctx context.Context) (runtime.Observation, error) {
	return failpoint.Get("engine.host.look", func() (runtime.Observation, error) { return p.host.Observe(ctx) })
}

func (p pointed) Inspect(ctx context.Context, id string) (st runtime.InstanceState, there bool, err error) {
	err = failpoint.Step("engine.instance.look", func() (err error) { st, there, err = p.host.Inspect(ctx, id); return err })
	return st, there, err
}

func (p pointed) Stats(ctx context.Context, id string) (runtime.Stats, error) {
	return p.host.Stats(ctx, id)
}

func (p pointed) Close() error {
	return failpoint.Step("engine.host.close", p.host.Close)
}

func (p pointed) HiddenBy(ctx context.Context, src runtime.ImageSource) (runtime.Hidden, error) {
	return p.host.HiddenBy(ctx, src)
}

func (p pointed) VolumeUsage(ctx context.Context, id string) (runtime.Usage, error) {
	return p.host.VolumeUsage(ctx, id)
}

func (p pointed) Info(ctx context.Context) (runtime.Info, error) { return p.host.Info(ctx) }

func (p pointed) Signal(ctx context.Context, id string, sig int) error {
	return p.host.Signal(ctx, id, sig)
}

func (p pointed) Exec(ctx context.Context, id string, e runtime.Exec) (runtime.ExecProcess, error) {
	return p.host.Exec(ctx, id, e)
}

func (p pointed) Dial(ctx context.Context, id, protocol string, port uint16) (net.Conn, error) {
	return p.host.Dial(ctx, id, protocol, port)
}

func (p pointed) DialInside(ctx context.Context, id, protocol string, addr netip.AddrPort) (net.Conn, error) {
	return p.host.DialInside(ctx, id, protocol, addr)
}

func (p pointed) Publish(f runtime.Forward, open func(context.Context) (net.Conn, error), active func()) (io.Closer, error) {
	return p.host.Publish(f, open, active)
}

func (p pointed) OpenLog(ctx context.Context, id string) (*os.File, error) {
	return p.host.OpenLog(ctx, id)
}

func (p pointed) Recall(id string, pr runtime.Process, m runtime.Mark) { p.host.Recall(id, pr, m) }

func (p pointed) WaitExit(ctx context.Context, id string, pr runtime.Process) error {
	return p.host.WaitExit(ctx, id, pr)
}

// storeWithPoints is s with a step around each update. An error after one is what
// state.ErrOutcome stands for: it may be durable, and the store answers with the
// error until it is opened again.
func storeWithPoints(s state.Store) state.Store { return &pointedStore{Store: s} }

type pointedStore struct {
	state.Store
	mu     sync.Mutex
	broken error
}

func (s *pointedStore) Update(fn func(state.Tx) error) error {
	s.mu.Lock()
	broken := s.broken
	s.mu.Unlock()
	if broken != nil {
		return broken
	}
	durable := false
	err := failpoint.Step("engine.state.update", func() error {
		err := s.Store.Update(fn)
		durable = err == nil
		return err
	})
	if err != nil && durable {
		err = fmt.Errorf("cannot change state %s: %w: %w", s.Path(), state.ErrOutcome, err)
		s.mu.Lock()
		s.broken = err
		s.mu.Unlock()
	}
	return err
}
