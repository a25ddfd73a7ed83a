package host

import (
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"

	"pinfold/runtime"
)

// withNetworkFiles are the declared files and, where the declaration has none
// of its own, /etc/hosts, /etc/hostname and /etc/resolv.conf.
func withNetworkFiles(in runtime.Instance) []runtime.File {
	files := slices.Clone(in.Files)
	for _, f := range []runtime.File{
		{Path: "/etc/hosts", Content: hostsFile(in)},
		{Path: "/etc/hostname", Content: []byte(hostname(in) + "\n")},
		{Path: "/etc/resolv.conf", Content: resolvFile(in)},
	} {
		f.Mode = 0o644
		if !slices.ContainsFunc(files, func(o runtime.File) bool { return path.Clean("/"+o.Path) == f.Path }) {
			files = append(files, f)
		}
	}
	return files
}

func hostname(in runtime.Instance) string {
	if in.Hostname != "" {
		return in.Hostname
	}
	return in.ID
}

func hostsFile(in runtime.Instance) []byte {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	own := netip.MustParseAddr("127.0.1.1")
	if in.Net != nil {
		own = in.Net.Address.Addr()
	}
	fmt.Fprintf(&b, "%s\t%s\n", own, hostname(in))
	if in.Net != nil {
		for _, e := range in.Net.Hosts {
			fmt.Fprintf(&b, "%s\t%s\n", e.Address, strings.Join(e.Names, " "))
		}
	}
	return []byte(b.String())
}

// resolvFile is the host's where the sandbox can reach what it names. A host
// that resolves through a local stub keeps the real servers elsewhere.
func resolvFile(in runtime.Instance) []byte {
	none := []byte("# this sandbox has no name servers\n")
	if in.Net == nil || !in.Net.Network.Internet {
		return none
	}
	for _, file := range []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"} {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if kept, usable := reachableResolvers(string(text)); usable {
			return []byte(kept)
		}
	}
	return none
}

// reachableResolvers drops name servers on the host's loopback.
func reachableResolvers(text string) (kept string, usable bool) {
	var b strings.Builder
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) >= 2 && f[0] == "nameserver" {
			if a, err := netip.ParseAddr(f[1]); err == nil {
				if a.IsLoopback() {
					continue
				}
				usable = true
			}
		}
		b.WriteString(line)
	}
	return b.String(), usable
}
