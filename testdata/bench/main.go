// Command bench prints the numbers pinfold is held to, as one table. Run it with
// `make bench`, as root, on an otherwise idle machine. Ratios compare things
// measured in turn within this run; single times mean little on another day.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	_ "pinfold/runtime/host/boot"
)

func main() {
	pinfold := flag.String("pinfold", "bin/pinfold", "the program to measure")
	rounds := flag.Int("n", 100, "sandboxes on the real host")
	only := flag.String("only", "", "comma-separated parts: plan, create, apply, lifecycle, exhaust")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	defer stop()
	if err := run(ctx, *pinfold, *rounds, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, pinfold string, n int, only string) error {
	pinfold, err := filepath.Abs(pinfold)
	if err != nil {
		return err
	}
	parts := []struct {
		name string
		do   func() error
	}{
		{"plan", func() error { return benchPlan(ctx) }},
		{"create", func() error { return benchCreate(ctx, n) }},
		{"apply", func() error { return benchApply(ctx, pinfold, n) }},
		{"lifecycle", func() error { return benchLifecycle(ctx, pinfold) }},
		{"exhaust", func() error { return benchExhaust(ctx, pinfold) }},
	}
	for _, p := range parts {
		if only != "" && !slices.Contains(strings.Split(only, ","), p.name) {
			continue
		}
		if err := p.do(); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// row prints one line of the table.
func row(what, value, bar string) {
	fmt.Printf("%-58s %18s   %s\n", what, value, bar)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// quantile of durations, 0..1.
func quantile(d []time.Duration, q float64) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

// command runs a program and tells how long it took and the most memory it had.
func command(ctx context.Context, dir string, env []string, name string, args ...string) (time.Duration, int64, error) {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir, c.Env = dir, append(os.Environ(), env...)
	begun := time.Now()
	out, err := c.CombinedOutput()
	took := time.Since(begun)
	if err != nil {
		return took, 0, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return took, c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10, nil
}
