package host

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"pinfold/runtime"
)

// BenchmarkCreateStart measures create + start of a sandbox with everything on,
// beside `runc run -d` of a plain bundle, taken in turns, and prints the share
// of each phase. Stopping and removing is not counted.
func BenchmarkCreateStart(b *testing.B) {
	phases := map[string][]time.Duration{}
	h, dir := openTest(b, func(p string, d time.Duration) { phases[p] = append(phases[p], d) })
	ctx := context.Background()
	img, err := h.PrepareImage(ctx, runtime.ImageSource{Kind: "host"})
	if err != nil {
		b.Fatal(err)
	}
	bundle := runcBundle(b, dir)
	var ours, theirs []time.Duration
	n := 0
	for b.Loop() {
		n++
		id := fmt.Sprintf("%012x", n)
		in := testInstance(id, img)
		in.IDs.Base += uint32(n%1000) * 65536
		in.Command = []string{"sleep", "1000"}
		t := time.Now()
		if _, err := h.Create(ctx, in); err != nil {
			b.Fatal(err)
		}
		if err := h.Start(ctx, id); err != nil {
			b.Fatal(err)
		}
		ours = append(ours, time.Since(t))
		b.StopTimer()
		if err := h.Remove(ctx, id); err != nil {
			b.Fatal(err)
		}
		if bundle != "" {
			t = time.Now()
			cmd := exec.Command("runc", "run", "-d", "--bundle", bundle, "bench"+id)
			// No pipes: the detached process would keep them open.
			if err := cmd.Run(); err != nil {
				b.Fatalf("runc: %v", err)
			}
			theirs = append(theirs, time.Since(t))
			exec.Command("runc", "delete", "-f", "bench"+id).Run()
		}
		b.StartTimer()
	}
	report := func(name string, d []time.Duration) {
		if len(d) == 0 {
			return
		}
		slices.Sort(d)
		fmt.Printf("%-14s p50 %8.2f ms  p99 %8.2f ms\n", name, d[len(d)/2].Seconds()*1e3, d[len(d)*99/100].Seconds()*1e3)
	}
	report("create+start", ours)
	report("runc run -d", theirs)
	for p, d := range phases {
		report("  "+p, d)
	}
	if len(theirs) > 0 {
		b.ReportMetric(ours[len(ours)/2].Seconds()/theirs[len(theirs)/2].Seconds(), "of-runc")
	}
}

// runcBundle makes a plain bundle as `runc spec` does, "" without runc.
func runcBundle(b *testing.B, dir string) string {
	if _, err := exec.LookPath("runc"); err != nil {
		b.Log("runc is not installed: nothing to compare with")
		return ""
	}
	bundle := filepath.Join(dir, "bundle")
	if err := os.MkdirAll(filepath.Join(bundle, "rootfs"), 0o755); err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command("runc", "spec")
	cmd.Dir = bundle
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("runc spec: %v: %s", err, out)
	}
	file := filepath.Join(bundle, "config.json")
	data, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	var spec map[string]any
	if err := json.Unmarshal(data, &spec); err != nil {
		b.Fatal(err)
	}
	process := spec["process"].(map[string]any)
	process["terminal"] = false
	process["args"] = []string{"/sleep"}
	data, err = json.Marshal(spec)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		b.Fatal(err)
	}
	src := filepath.Join(dir, "sleep.c")
	if err := os.WriteFile(src, []byte("#include <unistd.h>\nint main(void){for(;;)pause();}\n"), 0o600); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-static", "-o", filepath.Join(bundle, "rootfs", "sleep"), src).CombinedOutput(); err != nil {
		b.Fatalf("gcc: %v: %s", err, out)
	}
	return bundle
}
