package host

import (
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// TestInfoTellsWhoBlocksForwarding looks from network namespaces of its own, in one
// of which somebody's firewall drops what it does not know.
func TestInfoTellsWhoBlocksForwarding(t *testing.T) {
	h, _ := openTest(t, nil)
	in := testInstance("000000000001", runtime.Image{})
	in.Net = &runtime.Attachment{Address: netip.MustParsePrefix("10.1.0.5/24")}
	lacking := func(prepare string) string {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := roleCommand(t, "info", h.opts, in, "")
		script := exec.Command("sh", append([]string{"-ec", prepare + ` exec "$0" "$@"`, self}, cmd.Args[1:]...)...)
		script.Stderr = os.Stderr
		script.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		out, err := script.Output()
		if err != nil {
			t.Fatal(err)
		}
		var info runtime.Info
		if err := json.Unmarshal(out, &info); err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		return strings.Join(info.Lacking, "\n")
	}
	const firewall = `nft add table inet guard; nft add chain inet guard walls '{ type filter hook forward priority 0; policy drop; }';`
	told := func(s string) bool {
		return strings.Contains(s, "chain walls of nftables table inet guard drops forwarded packets") && strings.Contains(s, "b"+h.opts.ShortID+"*")
	}

	local := []runtime.Forward{{Name: "a", Protocol: "tcp", HostAddr: netip.MustParseAddr("127.0.0.1"), HostPort: 80, ContainerPort: 80}}
	wide := []runtime.Forward{{Name: "a", Protocol: "tcp", HostAddr: netip.MustParseAddr("0.0.0.0"), HostPort: 80, ContainerPort: 80}}
	for _, c := range []struct {
		what     string
		prepare  string
		internet bool
		ports    []runtime.Forward
		want     bool
	}{
		{"internet", firewall, true, nil, true},
		{"a port for all", firewall, false, wide, true},
		{"a port on loopback", firewall, false, local, false},
		{"no firewall", "", true, wide, false},
	} {
		in.Net.Network.Internet, in.Forwards = c.internet, c.ports
		if err := os.MkdirAll(h.instanceDir(in.ID), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := h.saveRecord(in, ""); err != nil {
			t.Fatal(err)
		}
		if got := lacking(c.prepare); told(got) != c.want {
			t.Errorf("%s: told %v, want %v: %q", c.what, told(got), c.want, got)
		}
	}
}
