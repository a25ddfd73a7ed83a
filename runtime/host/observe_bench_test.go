package host

import (
	"context"
	"fmt"
	"testing"

	"pinfold/runtime"
)

// BenchmarkObserve looks at 20 running sandboxes; the cost grows with their
// number.
func BenchmarkObserve(b *testing.B) {
	h, _ := openTest(b, nil)
	ctx := context.Background()
	img, err := h.PrepareImage(ctx, runtime.ImageSource{Kind: "host"})
	if err != nil {
		b.Fatal(err)
	}
	const n = 20
	for i := range n {
		in := testInstance(fmt.Sprintf("%012x", i), img)
		in.Command = []string{"sleep", "1000"}
		in.Limits = runtime.Limits{CPU: 1, Memory: 64 << 20, PIDs: 64}
		if _, err := h.Create(ctx, in); err != nil {
			b.Fatal(err)
		}
		if err := h.Start(ctx, in.ID); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		o, err := h.Observe(ctx)
		if err != nil || len(o.Instances) != n {
			b.Fatalf("%d instances, %v", len(o.Instances), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "µs/instance")
}
