package network

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"pinfold/runtime"
)

// BenchmarkAttachDetach connects 50 sandboxes with one published port each, one
// after the other, then ends and disconnects them, and prints how long one takes.
// What a namespace costs by itself is not counted.
func BenchmarkAttachDetach(b *testing.B) {
	h := newHost(b)
	ctx := context.Background()
	w := h.network(1, true)
	var attach, detach []time.Duration
	timed := func(into *[]time.Duration, do func() error) {
		start := time.Now()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		*into = append(*into, time.Since(start))
	}
	for b.Loop() {
		h.boxes = nil
		fs := map[*box][]runtime.Forward{}
		for i := range 50 {
			s := h.newBox(w, byte(20+i))
			fs[s] = []runtime.Forward{forward("tcp", "127.0.0.1", uint16(20000+i), 80)}
			timed(&attach, func() error { return h.Attach(ctx, s.id, s.path(), s.net, fs[s]) })
		}
		for _, s := range h.boxes {
			s.ns.Close()
			timed(&detach, func() error { return h.Detach(ctx, s.id, &s.net, fs[s]) })
		}
		h.boxes = nil
		if err := h.awaitDoomed(); err != nil {
			b.Fatal(err)
		}
	}
	report(b, attach, "attach")
	report(b, detach, "detach")
}

func report(b *testing.B, ds []time.Duration, what string) {
	slices.Sort(ds)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(ds[len(ds)/2]), what+"-p50-ms")
	b.ReportMetric(ms(ds[len(ds)*9/10]), what+"-p90-ms")
}

// BenchmarkAttachParallel connects 100 sandboxes, 8 at a time, and disconnects them.
func BenchmarkAttachParallel(b *testing.B) {
	const many, lanes = 100, 8
	h := newHost(b)
	ctx := context.Background()
	w := h.network(1, true)
	var attach, detach, each []time.Duration
	for b.Loop() {
		var boxes []*box
		for i := range many {
			boxes = append(boxes, h.newBox(w, byte(20+i)))
		}
		h.boxes = nil
		all := func(do func(s *box) error) time.Duration {
			start := time.Now()
			var wg sync.WaitGroup
			turn := make(chan struct{}, lanes)
			for _, s := range boxes {
				wg.Go(func() {
					turn <- struct{}{}
					defer func() { <-turn }()
					if err := do(s); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			return time.Since(start)
		}
		var mu sync.Mutex
		attach = append(attach, all(func(s *box) error {
			start := time.Now()
			err := h.Attach(ctx, s.id, s.path(), s.net, nil)
			mu.Lock()
			defer mu.Unlock()
			each = append(each, time.Since(start))
			return err
		}))
		detach = append(detach, all(func(s *box) error {
			s.ns.Close()
			return h.Detach(ctx, s.id, &s.net, nil)
		}))
		if err := h.awaitDoomed(); err != nil {
			b.Fatal(err)
		}
	}
	report(b, attach, "attach100")
	report(b, each, "attach")
	report(b, detach, "detach100")
}

// BenchmarkObserve looks at 200 sandboxes.
func BenchmarkObserve(b *testing.B) {
	h := newHost(b)
	w := h.network(1, true)
	for i := range 200 {
		h.sandbox(w, byte(20+i), forward("tcp", "127.0.0.1", uint16(20000+i), 80))
	}
	for b.Loop() {
		if o := h.observe(); len(o.Instances) != 200 {
			b.Fatalf("%d instances", len(o.Instances))
		}
	}
}
