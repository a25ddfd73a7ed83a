package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// countPort is where a workload tells how far it is.
const countPort = 7000

const (
	countEvery = 200 * time.Millisecond
	// All workloads rest at the same times. What one flushes takes everything else
	// that was written with it to the disk; so for half of the time only what pinfold
	// flushes itself gets there.
	spell = 4 * time.Second

	startsFile = "/starts" // in the writable layer: the boot of each start
)

// workload counts in each of the files, one line a number, and flushes each number
// before it tells it: what it told must be there after a power cut. It goes on from
// what it finds.
func workload(files []string) error {
	id, err := bootID()
	if err != nil {
		return err
	}
	if err := appendFlushed(startsFile, id+"\n"); err != nil {
		return err
	}
	var counters []*counter
	for _, f := range files {
		c, err := openCounter(f)
		if err != nil {
			return err
		}
		counters = append(counters, c)
	}
	t := &teller{}
	l, err := net.Listen("tcp4", fmt.Sprint(":", countPort))
	if err != nil {
		return err
	}
	go t.serve(l)
	for tick := time.Tick(countEvery); ; <-tick {
		if time.Now().UnixNano()/int64(spell)%2 == 0 {
			continue
		}
		for _, c := range counters {
			if err := c.next(); err != nil {
				return err
			}
			t.tell(fmt.Sprintf("%s %d\n", c.name, c.n))
		}
	}
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}

func appendFlushed(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}

type counter struct {
	name string
	file *os.File
	n    int
}

func openCounter(name string) (*counter, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	n, whole, err := lastOf(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	// A number that was being written when the power went was never told.
	if err := f.Truncate(int64(whole)); err != nil {
		return nil, err
	}
	_, err = f.Seek(int64(whole), io.SeekStart)
	return &counter{name: name, file: f, n: n}, err
}

func (c *counter) next() error {
	if _, err := fmt.Fprintln(c.file, c.n+1); err != nil {
		return err
	}
	c.n++
	return c.file.Sync()
}

// lastOf is the last number of a counter's file and how long the file is up to there.
// All from 1 on must be there, whole. Only the one after them may be written in part:
// it was not flushed yet, and a file system may then have its length and not its
// bytes, which read as zero.
func lastOf(text []byte) (n, whole int, err error) {
	for rest := text; len(rest) > 0; rest = text[whole:] {
		next := fmt.Appendln(nil, n+1)
		if bytes.HasPrefix(rest, next) {
			n++
			whole += len(next)
			continue
		}
		if !partOf(rest, next) {
			return n, whole, fmt.Errorf("after %d comes %.20q", n, rest)
		}
		break
	}
	return n, whole, nil
}

// partOf tells whether each byte is the line's or was not written.
func partOf(rest, line []byte) bool {
	if len(rest) > len(line) {
		return false
	}
	for i, b := range rest {
		if b != 0 && b != line[i] {
			return false
		}
	}
	return true
}

// teller tells who connects how far the counters are.
type teller struct {
	mu      sync.Mutex
	hearers []net.Conn
}

func (t *teller) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		t.mu.Lock()
		t.hearers = append(t.hearers, c)
		t.mu.Unlock()
	}
}

func (t *teller) tell(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var still []net.Conn
	for _, c := range t.hearers {
		c.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := io.WriteString(c, line); err != nil {
			c.Close()
			continue
		}
		still = append(still, c)
	}
	t.hearers = still
}
