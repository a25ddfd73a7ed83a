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

// hostsFile names every address once: the sandbox's own by its host name, and what
// the attachment adds.
func hostsFile(in runtime.Instance) []byte {
	var b strings.Builder
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	own := runtime.HostEntry{Address: netip.MustParseAddr("127.0.1.1"), Names: []string{hostname(in)}}
	lines := []*runtime.HostEntry{&own}
	if in.Net != nil {
		own.Address = in.Net.Address.Addr()
		for _, e := range in.Net.Hosts {
			i := slices.IndexFunc(lines, func(l *runtime.HostEntry) bool { return l.Address == e.Address })
			if i < 0 {
				i = len(lines)
				lines = append(lines, &runtime.HostEntry{Address: e.Address})
			}
			for _, name := range e.Names {
				if !slices.Contains(lines[i].Names, name) {
					lines[i].Names = append(lines[i].Names, name)
				}
			}
		}
	}
	for _, l := range lines {
		fmt.Fprintf(&b, "%s\t%s\n", l.Address, strings.Join(l.Names, " "))
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
