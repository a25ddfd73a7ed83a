package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"pinfold/runtime"
)

// mounted tells whether a live instance still has what was mounted for it: its
// root on its own layer, /proc, and its volumes. Where they lie is not asked, nor
// what the workload has mounted over them, so that links in an image and a
// privileged workload do not matter.
func (h *Host) mounted(in runtime.Instance, id string, pid int) (bool, error) {
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return true, nil // it just ended; whoever looks finds that
	}
	var mounts []*mountinfo.Info
	if err == nil {
		mounts, err = mountinfo.GetMountsFromReader(bytes.NewReader(table), nil)
	}
	if err != nil {
		return false, fmt.Errorf("cannot read the mounts of instance %s: %w", id, err)
	}
	var root, proc bool
	volumes := map[string]bool{}
	for _, m := range mounts {
		switch {
		case m.FSType == "overlay" && strings.Contains(m.VFSOptions, "/"+id+"/instance/upper"):
			root = true
		case m.FSType == "proc" && m.Root == "/" && m.Mountpoint == "/proc":
			proc = true
		default:
			// A source that was deleted has a word behind its path.
			if _, volume, ok := strings.Cut(strings.TrimSuffix(m.Root, "//deleted"), "/volumes/"); ok {
				volumes[volume] = true
			}
		}
	}
	for _, m := range in.Mounts {
		if m.Kind == "volume" && !volumes[m.Source] {
			return false, nil
		}
	}
	return root && proc, nil
}
