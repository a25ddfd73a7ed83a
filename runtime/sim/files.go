package sim

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// files is a directory tree: absolute path to content.
type files map[string]string

// place finds where a path inside the sandbox lives: the tree, the path in it,
// and whether it can be written.
func (in *instance) place(w *World, path string) (tree files, inner string, writable bool) {
	best := -1
	for i, m := range in.spec.Mounts {
		if under(path, m.Path) && (best < 0 || len(m.Path) > len(in.spec.Mounts[best].Path)) {
			best = i
		}
	}
	if best < 0 {
		return in.layer, path, !in.spec.ReadOnlyRoot
	}
	m := in.spec.Mounts[best]
	inner = "/" + strings.TrimPrefix(strings.TrimPrefix(path, m.Path), "/")
	switch m.Kind {
	case "volume":
		tree = in.l.volumes[m.Source]
	case "host":
		tree = w.hostDirs[m.Source]
		if tree == nil {
			tree = files{}
			w.hostDirs[m.Source] = tree
		}
	case "tmpfs":
		tree = in.tmpfs[m.Path]
		if tree == nil {
			tree = files{}
			if in.tmpfs == nil {
				in.tmpfs = map[string]files{}
			}
			in.tmpfs[m.Path] = tree
		}
	}
	return tree, inner, !m.ReadOnly
}

func under(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

func (in *instance) read(w *World, path string) (string, bool) {
	if f := in.declared(path); f != nil {
		return string(f.Content), true
	}
	if path == "/etc/hosts" {
		return in.hosts(), true
	}
	tree, inner, _ := in.place(w, path)
	text, ok := tree[inner]
	return text, ok
}

// hosts is the /etc/hosts that every instance gets: each address on one line, each
// name of it once.
func (in *instance) hosts() string {
	own := runtime.HostEntry{Address: netip.MustParseAddr("127.0.1.1"), Names: []string{cmp.Or(in.spec.Hostname, in.spec.ID)}}
	entries := []runtime.HostEntry{own}
	if in.spec.Net != nil {
		entries[0].Address = in.spec.Net.Address.Addr()
		entries = append(entries, in.spec.Net.Hosts...)
	}
	var order []netip.Addr
	names := map[netip.Addr][]string{}
	for _, e := range entries {
		if names[e.Address] == nil {
			order = append(order, e.Address)
		}
		for _, name := range e.Names {
			if !slices.Contains(names[e.Address], name) {
				names[e.Address] = append(names[e.Address], name)
			}
		}
	}
	text := "127.0.0.1 localhost\n"
	for _, a := range order {
		text += a.String() + " " + strings.Join(names[a], " ") + "\n"
	}
	return text
}

func (in *instance) write(w *World, path, text string, add bool) error {
	tree, inner, writable := in.place(w, path)
	if !writable || tree == nil || in.declared(path) != nil {
		return fmt.Errorf("%s: read-only", path)
	}
	if add {
		text = tree[inner] + text
	}
	tree[inner] = text
	return nil
}

func (in *instance) declared(path string) *runtime.File {
	for i := range in.spec.Files {
		if in.spec.Files[i].Path == path {
			return &in.spec.Files[i]
		}
	}
	return nil
}

// log is an instance's output. It becomes a real file when somebody opens it.
type log struct {
	text []byte
	file *os.File
}

func (l *log) append(text string) {
	l.text = append(l.text, text...)
	if l.file != nil {
		l.file.WriteString(text) // a memfd: fails only without memory
	}
}

// open returns the log as a file of its own offset, which goes on growing.
func (l *log) open(name string) (*os.File, error) {
	if l.file == nil {
		fd, err := unix.MemfdCreate("log-"+name, unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		file := os.NewFile(uintptr(fd), "log-"+name)
		if _, err := file.Write(l.text); err != nil {
			file.Close()
			return nil, err
		}
		l.file = file
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", l.file.Fd()))
}

func (l *log) close() {
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}
