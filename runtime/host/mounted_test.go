package host

import (
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"pinfold/runtime"
)

// TestWhatWasUnmountedIsMissed: an operator takes mounts away inside a sandbox
// whose mounts are not locked, having no user namespace; with one, the kernel
// refuses that for all but /proc.
func TestWhatWasUnmountedIsMissed(t *testing.T) {
	for _, point := range []string{"/data", "/proc", "/"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t)
			w.must(w.h.EnsureVolume(w.ctx, runtime.Volume{ID: "data"}))
			in := w.instance(1, "exec sleep 1000")
			in.IDs = runtime.IDRange{}
			in.Mounts = []runtime.Mount{{Kind: "volume", Source: "data", Path: "/data"}}
			w.start(in)
			if s := w.state(in.ID); len(s.Missing) > 0 {
				t.Fatalf("at first: %+v", s)
			}
			pid := strconv.Itoa(w.state(in.ID).Process.PID)
			if out, err := exec.Command("nsenter", "-t", pid, "-m", "-p", "umount", "-l", point).CombinedOutput(); err != nil {
				t.Fatalf("umount %s: %v, %s", point, err, out)
			}
			if s := w.state(in.ID); !s.Alive || !slices.Contains(s.Missing, "rootfs") {
				t.Errorf("without %s: %+v", point, s)
			}
			w.must(w.h.Remove(w.ctx, in.ID))
		})
	}
}
