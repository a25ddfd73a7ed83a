package host

import (
	"net/netip"
	"testing"

	"pinfold/runtime"
)

func TestHostsFileNamesEachAddressOnce(t *testing.T) {
	const head = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	own, other := netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("10.1.0.6")
	for _, c := range []struct {
		hosts []runtime.HostEntry
		want  string
	}{
		{nil, "10.1.0.5\there\n"},
		{[]runtime.HostEntry{{Address: own, Names: []string{"here"}}}, "10.1.0.5\there\n"},
		{[]runtime.HostEntry{{Address: own, Names: []string{"here.net.internal", "here"}}}, "10.1.0.5\there here.net.internal\n"},
		{
			[]runtime.HostEntry{{Address: other, Names: []string{"a"}}, {Address: other, Names: []string{"b", "a"}}},
			"10.1.0.5\there\n10.1.0.6\ta b\n",
		},
	} {
		in := runtime.Instance{Hostname: "here", Net: &runtime.Attachment{Address: netip.PrefixFrom(own, 24), Hosts: c.hosts}}
		if got := string(hostsFile(in)); got != head+c.want {
			t.Errorf("%v: %q, want %q", c.hosts, got, head+c.want)
		}
	}
	if got := string(hostsFile(runtime.Instance{Hostname: "here"})); got != head+"127.0.1.1\there\n" {
		t.Errorf("without a network: %q", got)
	}
}
