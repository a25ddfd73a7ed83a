package host

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// newUserNamespace makes a user namespace for an id range, so that mounts can be
// shown under the range's ids; nil for the empty range. A process makes it that
// lives only for that; the namespace stays as long as the file is open.
func newUserNamespace(pinit *os.File, r runtime.IDRange) (*os.File, error) {
	if r == (runtime.IDRange{}) {
		return nil, nil
	}
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
	if err := failpoint.Step("host.usernamespace.make", cmd.Start); err != nil {
		if cmd.Process != nil {
			wr.Close()
			cmd.Wait()
		}
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
