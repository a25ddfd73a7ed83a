package sim_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"pinfold/runtime"
	"pinfold/runtime/conformance"
	"pinfold/runtime/sim"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Subject {
		w := sim.New()
		w.Missing("/no/such/image")
		return conformance.Subject{
			Open:      func(*testing.T) runtime.Host { return w.Open("one") },
			OpenOther: func(*testing.T) runtime.Host { return w.Open("other") },
			Image:     runtime.ImageSource{Kind: "dir", Path: "/image"},
			NoImage:   runtime.ImageSource{Kind: "dir", Path: "/no/such/image"},
			HostDir: func(_ *testing.T, file, text string) string {
				w.HostFile("/srv/dir", file, text)
				return "/srv/dir"
			},
			HostLink: func(_ *testing.T, dir, name, target string) { w.HostLink(dir, name, target) },
			Commands: commands,
			Controls: conformance.Controls{
				KillInit: func(_ *testing.T, s runtime.InstanceState) { w.Kill(s.ID) },
				KillMain: func(_ *testing.T, s runtime.InstanceState, sig int) { w.KillMain(s.ID, sig) },
				Listen: func(*testing.T) (netip.AddrPort, func()) {
					addr := netip.MustParseAddrPort("127.0.0.1:8080")
					w.Listen(addr, "tcp")
					return addr, func() { w.Unlisten(addr, "tcp") }
				},
				Connect: func(_ *testing.T, addr netip.AddrPort, protocol string) (net.Conn, error) {
					return w.Connect(addr, protocol)
				},
				Occupy: func(*testing.T) netip.Prefix {
					p := netip.MustParsePrefix("10.50.3.0/24")
					w.UsePrefix(p)
					return p
				},
				Break: func(_ *testing.T, _ runtime.Instance, s runtime.InstanceState, part string) {
					w.Break(s.ID, part)
				},
				Breakable:        []string{"netns", "rundir", "link", "address", "rules", "limits"},
				BreakNetwork:     func(_ *testing.T, n runtime.Network, part string) { w.BreakNetwork(n.ID, part) },
				NetworkBreakable: []string{"bridge", "address", "rules"},
			},
			Leftovers: func(*testing.T) []string { return w.Leftovers() },
		}
	})
}

var commands = conformance.Commands{
	Forever:  []string{"sleeper"},
	Stubborn: []string{"sim", "ignore=TERM", "print=ready"},
	OnSignal: func(sig int, path, text string) []string {
		return script("print=ready", fmt.Sprint("await=", sig), "write="+path+":"+text, "exit=0")
	},
	Exit:          func(code int) []string { return script(fmt.Sprint("exit=", code)) },
	KillSelf:      func(sig int) []string { return script(fmt.Sprint("signal=", sig)) },
	Print:         func(stdout, stderr string) []string { return script("print="+stdout, "err="+stderr, "exit=0") },
	Write:         func(path, text string) []string { return script("write="+path+":"+text, "exit=0") },
	Cat:           func(path string) []string { return script("cat="+path, "exit=0") },
	Env:           func(name string) []string { return script("env="+name, "exit=0") },
	WorkDir:       script("pwd", "exit=0"),
	CopyInput:     script("stdin", "exit=0"),
	User:          script("user", "exit=0"),
	Hostname:      script("hostname", "exit=0"),
	Hog:           script("oom"),
	Busy:          script("print=ready", "busy"),
	Hold:          func(bytes int) []string { return script(fmt.Sprint("memory=", bytes), "print=ready") },
	Missing:       script("exec-fails"),
	Serve:         func(port uint16) []string { return script(fmt.Sprint("serve=", port), "print=ready") },
	ServeLoopback: func(port uint16) []string { return script(fmt.Sprint("serve-loopback=", port), "print=ready") },
}

func script(steps ...string) []string { return append([]string{"sim"}, steps...) }
