package state

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// together makes the functions wait for the same commit, in their order, and
// returns the errors of their Updates once all are answered. What an Update
// panics with comes as its error.
func together(t *testing.T, s Store, fns ...func(Tx) error) []error {
	t.Helper()
	q := &s.(*store).queue
	waiting := func() int {
		q.mu.Lock()
		defer q.mu.Unlock()
		return len(q.calls)
	}
	var all sync.WaitGroup
	busy, goOn := make(chan struct{}), make(chan struct{})
	all.Go(func() {
		s.Update(func(Tx) error { close(busy); <-goOn; return errors.New("only keeps the writer busy") })
	})
	<-busy
	errs := make([]error, len(fns))
	for i, fn := range fns {
		all.Go(func() {
			errs[i] = errors.New("left by Goexit")
			defer func() {
				if p := recover(); p != nil {
					errs[i] = fmt.Errorf("panicked: %v", p)
				}
			}()
			errs[i] = s.Update(fn)
		})
		for waiting() <= i {
			runtime.Gosched()
		}
	}
	close(goOn)
	all.Wait()
	return errs
}

func commits(t *testing.T, s Store) (n int) {
	t.Helper()
	if err := s.(*store).db.View(func(b *bolt.Tx) error { n = b.ID(); return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

func putKey(key string) func(Tx) error {
	return func(x Tx) error { return errors.Join(x.Put(Sandboxes, key, []byte(key)), x.Bump()) }
}

func TestWaitingUpdatesShareACommit(t *testing.T) {
	s := open(t, t.TempDir())
	before := commits(t, s)
	var fns []func(Tx) error
	for i := range 100 {
		fns = append(fns, putKey(fmt.Sprint(i)))
	}
	for _, err := range together(t, s, fns...) {
		if err != nil {
			t.Error(err)
		}
	}
	if got := commits(t, s) - before; got != 1 {
		t.Errorf("100 updates took %d commits", got)
	}
	if got := len(keys(t, s, Sandboxes)); got != 100 {
		t.Errorf("%d documents", got)
	}
	view(t, s, func(x Tx) error {
		if x.Serial() != 100 {
			t.Errorf("serial %d", x.Serial())
		}
		return nil
	})
}

func TestMoreThanOneBatch(t *testing.T) {
	s := open(t, t.TempDir())
	var fns []func(Tx) error
	for i := range maxBatch + 10 {
		fns = append(fns, putKey(fmt.Sprint(i)))
	}
	for _, err := range together(t, s, fns...) {
		if err != nil {
			t.Error(err)
		}
	}
	if got := len(keys(t, s, Sandboxes)); got != maxBatch+10 {
		t.Errorf("%d documents", got)
	}
}

func TestFailuresSpoilNobody(t *testing.T) {
	s := open(t, t.TempDir())
	bad := errors.New("bad")
	fail := func(key string) func(Tx) error {
		return func(x Tx) error { return errors.Join(putKey(key)(x), bad) }
	}
	needs := func(key, other string) func(Tx) error {
		return func(x Tx) error {
			if x.Get(Sandboxes, other) == nil {
				return fmt.Errorf("no %s", other)
			}
			return putKey(key)(x)
		}
	}
	errs := together(t, s,
		fail("a"), putKey("b"), fail("c"),
		needs("d", "b"),
		needs("e", "c"), // c was undone
		func(x Tx) error { putKey("f")(x); panic("out of f") },
		putKey("g"),
		func(x Tx) error { putKey("h")(x); runtime.Goexit(); return nil },
		putKey("i"), needs("j", "i"),
	)
	want := []string{"bad", "", "bad", "", "no c", "panicked: out of f", "", "left by Goexit", "", ""}
	for i, err := range errs {
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != want[i] {
			t.Errorf("update %d: %q, not %q", i, got, want[i])
		}
	}
	if errs[0] != nil && !errors.Is(errs[0], bad) {
		t.Error("an error lost its identity")
	}
	if got := fmt.Sprint(keys(t, s, Sandboxes)); got != "[b d g i j]" {
		t.Errorf("documents %s", got)
	}
	view(t, s, func(x Tx) error {
		if x.Serial() != 5 {
			t.Errorf("serial %d", x.Serial())
		}
		return nil
	})
}

func TestPanicSurfacesAndLeavesTheStoreUsable(t *testing.T) {
	s := open(t, t.TempDir())
	type own struct{ n int }
	for _, run := range []func(func(Tx) error) error{s.Update, s.View} {
		func() {
			defer func() {
				if p := recover(); p != (own{7}) {
					t.Errorf("recovered %v", p)
				}
			}()
			run(func(Tx) error { panic(own{7}) })
		}()
	}
	update(t, s, putKey("a"))
	if get(t, s, Sandboxes, "a") == nil {
		t.Error("nothing was put")
	}
}

func BenchmarkUpdate(b *testing.B) {
	doc := make([]byte, 1500)
	for _, callers := range []int{1, 10, 50} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			s := open(b, b.TempDir())
			if callers == 1 {
				for i := 0; b.Loop(); i++ {
					update(b, s, func(x Tx) error { return x.Put(Sandboxes, fmt.Sprint(i%1000), doc) })
				}
			} else {
				work := make(chan int)
				var all sync.WaitGroup
				for range callers {
					all.Go(func() {
						for i := range work {
							if err := s.Update(func(x Tx) error { return x.Put(Sandboxes, fmt.Sprint(i%1000), doc) }); err != nil {
								b.Error(err)
							}
						}
					})
				}
				for i := 0; b.Loop(); i++ {
					work <- i
				}
				close(work)
				all.Wait()
			}
			var id int
			s.(*store).db.View(func(x *bolt.Tx) error { id = x.ID(); return nil })
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "updates/s")
			b.ReportMetric(float64(b.N)/float64(id), "updates/commit")
		})
	}
}
