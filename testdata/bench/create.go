package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"pinfold/config"
	"pinfold/runtime"
	"pinfold/runtime/host"
)

// benchCreate measures create + start of n sandboxes with everything on, in turn
// with runc run -d of a plain bundle without network.
func benchCreate(ctx context.Context, n int) (err error) {
	dir, err := os.MkdirTemp("", "pinfold-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// Where both keep them by default: on a tmpfs.
	run, err := os.MkdirTemp("/run", "pinfold-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(run)
	var mu sync.Mutex
	phases := map[string][]time.Duration{}
	lineage := rand.Text() // of its own, so that runs side by side do not meet
	short := fmt.Sprintf("%06x", sha256.Sum256([]byte(lineage)))[:6]
	h, err := host.Open(host.Options{
		StateDir: filepath.Join(dir, "state"), RunDir: filepath.Join(run, "pinfold"),
		Lineage: lineage, ShortID: short,
		Trace: func(phase string, d time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			phases[phase] = append(phases[phase], d)
		},
	})
	if err != nil {
		return err
	}
	defer h.Close()
	net := runtime.Network{ID: "bebebebe", CIDR: netip.MustParsePrefix("198.18.0.0/16"), Gateway: netip.MustParseAddr("198.18.0.1")}
	if err := h.EnsureNetwork(ctx, net); err != nil {
		return err
	}
	img, err := h.PrepareImage(ctx, runtime.ImageSource{Kind: "host"})
	if err != nil {
		return err
	}
	bundle, err := plainBundle(dir)
	if err != nil {
		return err
	}
	runcRoot := filepath.Join(run, "runc")
	var ours, runcs []time.Duration
	var ids []string
	defer func() {
		ctx := context.WithoutCancel(ctx)
		for _, id := range ids {
			err = errors.Join(err, h.Remove(ctx, id))
			_ = exec.CommandContext(ctx, "runc", "--root", runcRoot, "delete", "-f", id).Run()
		}
		err = errors.Join(err, h.RemoveNetwork(ctx, net))
	}()
	// In blocks, each a loop of its own as the other would be, in turn so that both
	// see the same machine. The first of each block pays for what the other's block
	// left behind and does not count.
	const block = 10
	addr := net.Gateway
	for begun := 0; begun < n; begun += block {
		for i := range block + 1 {
			id := fmt.Sprintf("be0c%04x%04x", begun, i)
			addr = addr.Next()
			ids = append(ids, id)
			if i == 1 && begun == 0 {
				mu.Lock()
				clear(phases)
				mu.Unlock()
			}
			took, err := createAndStart(ctx, h, img, net, addr, id, len(ids))
			if err != nil {
				return err
			}
			if i > 0 {
				ours = append(ours, took)
			}
		}
		for i := range block + 1 {
			took, err := runcRun(ctx, bundle, runcRoot, ids[len(ids)-1-i])
			if err != nil {
				return err
			}
			if i > 0 {
				runcs = append(runcs, took)
			}
		}
	}
	o, r := quantile(ours, .5), quantile(runcs, .5)
	row(fmt.Sprintf("create + start, all on, p50 of %d (real host)", n), ms(o), "")
	row("create + start, all on, p99", ms(quantile(ours, .99)), "")
	row("runc run -d, plain bundle, no network, p50", ms(r), "in blocks of ten, in turn with the above")
	row("runc run -d, p99", ms(quantile(runcs, .99)), "")
	row("  create + start / runc run -d, p50", fmt.Sprintf("× %.2f", float64(o)/float64(r)), "bar ≤ 0.60")
	var total time.Duration
	names := []string{}
	for name, d := range phases {
		names = append(names, name)
		if !strings.HasSuffix(name, "beside init") {
			total += sum(d)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return int(sum(phases[b]) - sum(phases[a])) })
	for _, name := range names {
		share := fmt.Sprintf("%.0f %% of the time", 100*float64(sum(phases[name]))/float64(total))
		if strings.HasSuffix(name, "beside init") {
			share = "takes none of its own"
		}
		row("  phase "+name, ms(quantile(phases[name], .5)), share)
	}
	return nil
}

// createAndStart times one sandbox with everything on.
func createAndStart(ctx context.Context, h runtime.Host, img runtime.Image, net runtime.Network, addr netip.Addr, id string, n int) (time.Duration, error) {
	in := runtime.Instance{
		ID: id, Mark: runtime.Mark{UID: id, Address: "sandbox.bench"}, Image: img,
		Command: []string{"sleep", "infinity"}, Env: map[string]string{"PATH": "/usr/bin:/bin"}, Hostname: "bench",
		IDs: runtime.IDRange{Base: 1<<24 + uint32(n)<<16, Size: 65536}, Capabilities: config.DefaultCapabilities, Seccomp: "default",
		Net:    &runtime.Attachment{Network: net, Address: netip.PrefixFrom(addr, 16)},
		Limits: runtime.Limits{CPU: 0.5, Memory: 256 << 20, PIDs: 128},
	}
	begun := time.Now()
	if _, err := h.Create(ctx, in); err != nil {
		return 0, err
	}
	err := h.Start(ctx, id)
	return time.Since(begun), err
}

// runcRun times one runc run -d. The container keeps its standard streams, so
// they are /dev/null rather than a pipe that would stay open.
func runcRun(ctx context.Context, bundle, root, id string) (time.Duration, error) {
	c := exec.CommandContext(ctx, "runc", "--root", root, "run", "-d", id)
	c.Dir = bundle
	begun := time.Now()
	if err := c.Run(); err != nil {
		return 0, fmt.Errorf("runc run -d %s: %w", id, err)
	}
	return time.Since(begun), nil
}

func sum(d []time.Duration) (s time.Duration) {
	for _, x := range d {
		s += x
	}
	return s
}

// plainBundle is what `runc spec` makes, with sleep as the command, no terminal
// and no network namespace, over a root of sleep and its libraries.
func plainBundle(dir string) (string, error) {
	bundle := filepath.Join(dir, "bundle")
	if err := os.Mkdir(bundle, 0o755); err != nil {
		return "", err
	}
	c := exec.Command("runc", "spec")
	c.Dir = bundle
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("runc spec: %w: %s", err, out)
	}
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return "", err
	}
	var spec map[string]any
	if err := json.Unmarshal(b, &spec); err != nil {
		return "", err
	}
	p := spec["process"].(map[string]any)
	p["terminal"], p["args"] = false, []string{"/bin/sleep", "infinity"}
	l := spec["linux"].(map[string]any)
	l["namespaces"] = slices.DeleteFunc(l["namespaces"].([]any), func(x any) bool {
		return x.(map[string]any)["type"] == "network"
	})
	if b, err = json.Marshal(spec); err != nil {
		return "", err
	}
	if err := sleepRoot(filepath.Join(bundle, "rootfs")); err != nil {
		return "", err
	}
	return bundle, os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o644)
}

// sleepRoot copies sleep and the libraries that ldd names.
func sleepRoot(root string) error {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		return err
	}
	out, err := exec.Command("ldd", sleep).Output()
	if err != nil {
		return fmt.Errorf("ldd %s: %w", sleep, err)
	}
	files := map[string]string{sleep: "/bin/sleep"}
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") {
			files[word] = word
		}
	}
	for from, to := range files {
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		to = filepath.Join(root, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, b, 0o755); err != nil {
			return err
		}
	}
	return nil
}
