package state

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

// boltCheck is bbolt's own full check of a closed file.
func boltCheck(t testing.TB, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: 10 * time.Second, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(x *bolt.Tx) error {
		for err := range x.Check() {
			t.Errorf("bbolt's check: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestKilledWriterLosesNothingAcknowledged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var acked, serial uint64
	for round := range 20 {
		p := start(t, "write", dir)
		for range 5 + 13*round {
			line := p.line(t)
			seq, err := strconv.ParseUint(line, 10, 64)
			if err != nil {
				t.Fatalf("the writer said %q", line)
			}
			acked = max(acked, seq)
		}
		p.kill()

		s := open(t, dir)
		view(t, s, func(x Tx) error {
			var last uint64
			err := x.Each(History, func(key string, _ []byte) error {
				if seq := seqOf(key); seq != last+1 {
					return fmt.Errorf("%d comes after %d", seq, last)
				}
				last++
				return nil
			})
			if err != nil {
				return err
			}
			if last < acked {
				t.Errorf("round %d: %d was acknowledged, %d is the last", round, acked, last)
			}
			if now := x.Serial(); now != last || now <= serial {
				t.Errorf("round %d: serial %d after %d, with %d changes", round, now, serial, last)
			}
			serial = x.Serial()
			for seq := last; seq > 0 && seq+100 > last; seq-- {
				if x.Get(Sandboxes, fmt.Sprint(seq)) == nil {
					t.Errorf("round %d: document %d is missing", round, seq)
				}
			}
			return nil
		})
		s.Close()
		boltCheck(t, filepath.Join(dir, fileName))
	}
}
