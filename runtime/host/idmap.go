package host

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"pinfold/runtime"
)

// idmaps keeps a user namespace for every id range in use, so that mounts can
// be shown under the range's ids. A namespace is made by a process that lives
// only for that, and stays as long as its descriptor is open.
type idmaps struct {
	pinit *os.File

	mu   sync.Mutex
	open map[runtime.IDRange]*os.File
}

// get returns the namespace of a range, nil for none.
func (m *idmaps) get(r runtime.IDRange) (*os.File, error) {
	if r == (runtime.IDRange{}) {
		return nil, nil
	}
	m.mu.Lock()
	ns := m.open[r]
	m.mu.Unlock()
	if ns != nil {
		return ns, nil
	}
	ns, err := newUserNamespace(m.pinit, r)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if other := m.open[r]; other != nil {
		ns.Close()
		return other, nil
	}
	if m.open == nil {
		m.open = map[runtime.IDRange]*os.File{}
	}
	m.open[r] = ns
	return ns, nil
}

// drop forgets a range, for instances that go for good.
func (m *idmaps) drop(r runtime.IDRange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ns := m.open[r]; ns != nil {
		ns.Close()
		delete(m.open, r)
	}
}

func (m *idmaps) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ns := range m.open {
		ns.Close()
	}
	m.open = nil
}

func newUserNamespace(pinit *os.File, r runtime.IDRange) (*os.File, error) {
	rd, wr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wr.Close()
	defer rd.Close()
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(r.Base), Size: int(r.Size)}}
	cmd := exec.Cmd{
		Path: "/proc/self/fd/3", Args: []string{"pinit", "hold"}, Dir: "/",
		Env: []string{}, Stdin: rd, ExtraFiles: []*os.File{pinit},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWUSER, UidMappings: mapping, GidMappings: mapping, GidMappingsEnableSetgroups: true,
		},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot make a user namespace with ids from %d: %w", r.Base, err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	wr.Close()
	if werr := cmd.Wait(); err == nil && werr != nil {
		ns.Close()
		err = werr
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the user namespace with ids from %d: %w", r.Base, err)
	}
	return ns, nil
}
