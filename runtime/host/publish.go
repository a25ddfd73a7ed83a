package host

import (
	"context"
	"io"
	"net"
	"net/netip"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
	"pinfold/runtime/proxy"
)

// Publish implements runtime.Host.
func (h *Host) Publish(f runtime.Forward, open func(context.Context) (net.Conn, error), active func()) (io.Closer, error) {
	s, err := failpoint.Get("host.port.listen", func() (*proxy.Server, error) {
		return proxy.Listen(proxy.Port{Address: netip.AddrPortFrom(f.HostAddr, f.HostPort), Protocol: f.Protocol}, open, active)
	})
	if err != nil {
		return nil, err // not s: a nil *Server in an interface is none
	}
	return s, nil
}
