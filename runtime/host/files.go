package host

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

const resolvPath = "/etc/resolv.conf"

// hostResolvers are where a host says which name servers it uses. One that resolves
// through a local stub has the real ones in the second.
var hostResolvers = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// withNetworkFiles are the declared files and, where the declaration has none
// of its own, /etc/hosts, /etc/hostname and /etc/resolv.conf.
func (h *Host) withNetworkFiles(in runtime.Instance) []runtime.File {
	files := slices.Clone(in.Files)
	for _, f := range []runtime.File{
		{Path: "/etc/hosts", Content: hostsFile(in)},
		{Path: "/etc/hostname", Content: []byte(hostname(in) + "\n")},
		{Path: resolvPath, Content: h.resolvFile(in)},
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

// resolvFile is the host's where the sandbox can reach what it names.
func (h *Host) resolvFile(in runtime.Instance) []byte {
	none := []byte("# this sandbox has no name servers\n")
	if in.Net == nil || !in.Net.Network.Internet {
		return none
	}
	for _, file := range h.resolvers {
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

// rewriteFile changes what is in a file that others have open or mounted.
func rewriteFile(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		failpoint.Hit("host.resolvers.half")
		err = f.Truncate(int64(len(content))) // last: it is never seen empty
	}
	return errors.Join(err, f.Close())
}

// refreshResolvers brings the name servers that an instance was given to what its
// network offers now: in place, as the sandbox has this very file mounted. It is no
// error when the instance has none from us, or is being made or taken down.
func (h *Host) refreshResolvers(in runtime.Instance) error {
	i := slices.IndexFunc(h.withNetworkFiles(in), func(f runtime.File) bool { return path.Clean("/"+f.Path) == resolvPath })
	if i < len(in.Files) {
		return nil // the declaration's own
	}
	file := filepath.Join(h.instanceDir(in.ID), "files", strconv.Itoa(i))
	want := h.resolvFile(in)
	have, err := os.ReadFile(file)
	if err == nil && !bytes.Equal(have, want) {
		err = failpoint.Step("host.resolvers.write", func() error { return rewriteFile(file, want) })
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot change the name servers of instance %s: %w", in.ID, err)
	}
	return nil
}
