package state

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// BenchmarkLoad opens a state (with its whole check) and reads all documents.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprintf("documents=%d", n), func(b *testing.B) {
			dir := b.TempDir()
			s := open(b, dir)
			doc := bytes.Repeat([]byte("x"), 1500)
			update(b, s, func(x Tx) error {
				for i := range n {
					if err := x.Put(Sandboxes, fmt.Sprintf("sandbox.worker[%q]", fmt.Sprint(i)), doc); err != nil {
						return err
					}
				}
				return nil
			})
			s.Close()
			var opening time.Duration
			for b.Loop() {
				start := time.Now()
				s, err := Open(context.Background(), Options{Dir: dir, ReadOnly: true})
				if err != nil {
					b.Fatal(err)
				}
				opening += time.Since(start)
				if got := len(keys(b, s, Sandboxes)); got != n {
					b.Fatal(got)
				}
				s.Close()
			}
			b.ReportMetric(opening.Seconds()*1000/float64(b.N), "ms-open/op")
			b.ReportMetric(b.Elapsed().Seconds()*1000/float64(b.N), "ms/op")
		})
	}
}

// BenchmarkBareUpdate is bbolt alone, to hold a lone caller's Update against.
func BenchmarkBareUpdate(b *testing.B) {
	path := b.TempDir() + "/bare"
	if err := build(path, newUUID(), 0, nil); err != nil {
		b.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(path)
	defer db.Close()
	doc := make([]byte, 1500)
	for i := 0; b.Loop(); i++ {
		err := db.Update(func(x *bolt.Tx) error {
			return x.Bucket([]byte(Sandboxes)).Put(fmt.Append(nil, i%1000), doc)
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
