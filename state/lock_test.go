package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// try opens dir without patience and returns the error, which must be a LockedError.
func try(t *testing.T, dir string, readOnly bool) *LockedError {
	t.Helper()
	s, err := Open(context.Background(), Options{Dir: dir, Verb: "try", ReadOnly: readOnly})
	if err == nil {
		s.Close()
		t.Fatal("a locked state was opened")
	}
	var le *LockedError
	if !errors.As(err, &le) || !errors.Is(err, ErrLocked) {
		t.Fatalf("got %v", err)
	}
	return le
}

func TestAnotherProcessIsNamed(t *testing.T) {
	dir := t.TempDir()
	other := start(t, "hold", dir)
	lineage := other.line(t)
	for _, readOnly := range []bool{false, true} {
		le := try(t, dir, readOnly)
		if le.Holder.PID != other.Process.Pid || le.Holder.Verb != "apply" || le.Gone || time.Since(le.Holder.Since) < 0 {
			t.Errorf("holder %+v, not pid %d", le.Holder, other.Process.Pid)
		}
		le.Holder.Since = time.Now().Add(-12 * time.Second)
		want := fmt.Sprintf("state %s/state.db is in use by pid %d (apply) for 12s; wait for it, or raise -lock-timeout", dir, other.Process.Pid)
		if le.Error() != want {
			t.Errorf("says %q, not %q", le.Error(), want)
		}
	}

	// One that waits gets it as soon as the other lets it go.
	type result struct {
		s   Store
		err error
	}
	got := make(chan result)
	go func() {
		s, err := Open(context.Background(), Options{Dir: dir, Wait: time.Minute, ReadOnly: true})
		got <- result{s, err}
	}()
	other.stdin.Close()
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	if r.s.Lineage() != lineage {
		t.Errorf("lineage %s, not %s", r.s.Lineage(), lineage)
	}
	r.s.Close()
	if _, err := os.Stat(filepath.Join(dir, holderName)); !os.IsNotExist(err) {
		t.Errorf("state.holder is left: %v", err)
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	why := errors.New("interrupted by the user")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	_, err := Open(ctx, Options{Dir: dir, Wait: time.Hour})
	if !errors.Is(err, why) || !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
		t.Errorf("got %v", err)
	}
}

func TestStaleHolderDoesNotMislead(t *testing.T) {
	dir := t.TempDir()
	other := start(t, "hold", dir)
	other.line(t)
	pid := other.Process.Pid
	other.kill()
	stale, err := os.ReadFile(filepath.Join(dir, holderName))
	if err != nil {
		t.Fatalf("the killed process left no note: %v", err)
	}

	// The dead one does not hold it, and its note goes with the next holder.
	s := open(t, dir)
	if le := try(t, dir, false); le.Holder.PID != os.Getpid() || le.Holder.Verb != "test" {
		t.Errorf("holder %+v", le.Holder)
	}
	s.Close()

	// A holder that left no note, beside notes that are no longer true.
	f, err := os.Open(filepath.Join(dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	note := func(e entry) []byte {
		doc, err := json.Marshal([]entry{e})
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
	start, _ := startTime(os.Getpid())
	me := Holder{PID: os.Getpid(), Verb: "me", Since: time.Now()}
	for name, tc := range map[string]struct {
		doc  []byte
		want string
	}{
		"dead":             {stale, fmt.Sprintf("pid %d (apply), which noted itself, is gone", pid)},
		"same pid, later":  {note(entry{Holder: me, Start: start + 1, Boot: bootID()}), "is gone"},
		"same pid, reboot": {note(entry{Holder: me, Start: start, Boot: "another"}), "is gone"},
		"garbage":          {[]byte(`{"pid": "x`), "could not be told"},
		"empty":            {nil, "could not be told"},
		"truth":            {note(entry{Holder: me, Start: start, Boot: bootID()}), fmt.Sprintf("by pid %d (me) for 0s;", me.PID)},
	} {
		if err := os.WriteFile(filepath.Join(dir, holderName), tc.doc, 0o600); err != nil {
			t.Fatal(err)
		}
		if le := try(t, dir, false); !strings.Contains(le.Error(), tc.want) {
			t.Errorf("%s: %q lacks %q", name, le, tc.want)
		}
	}
}

func TestManyMakeOneState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	var others []*process
	for range 3 {
		others = append(others, start(t, "hold", dir))
	}
	var mu sync.Mutex
	lineages := map[string]int{}
	note := func(l string) {
		mu.Lock()
		defer mu.Unlock()
		lineages[l]++
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			s, err := Open(context.Background(), Options{Dir: dir, Wait: time.Minute})
			if err != nil {
				t.Error(err)
				return
			}
			note(s.Lineage())
			s.Close()
		})
	}
	for _, p := range others {
		p.stdin.Close()
		all.Go(func() {
			line, err := p.out.ReadString('\n')
			if err != nil {
				t.Error(err)
			}
			note(strings.TrimSpace(line))
		})
	}
	all.Wait()
	if len(lineages) != 1 {
		t.Errorf("lineages: %v", lineages)
	}
}

// A file that was moved away while somebody waited for its lock is not the state.
func TestWaiterFollowsThePath(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	old := s.Lineage()
	got := make(chan string)
	lock := lockWait{path: s.Path(), dir: dir, started: time.Now(), deadline: time.Now().Add(time.Minute)}
	f, err := os.OpenFile(s.Path(), os.O_RDWR, 0) // what a waiter has in hand
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	go func() {
		same, err := lockFile(context.Background(), lock, f, unix.LOCK_EX)
		got <- fmt.Sprint(same, err)
	}()
	if err := os.Rename(s.Path(), s.Path()+".old"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if r := <-got; r != "false <nil>" {
		t.Errorf("the waiter got %s", r)
	}
	if s := open(t, dir); s.Lineage() == old {
		t.Error("the file that was moved away is still in use")
	}
}

// A child that is being forked has a copy of every descriptor until it execs.
func TestCloseUnlocksAtOnce(t *testing.T) {
	dir := t.TempDir()
	open(t, dir).Close()
	for _, readOnly := range []bool{false, true} {
		s, err := Open(context.Background(), Options{Dir: dir, ReadOnly: readOnly})
		if err != nil {
			t.Fatal(err)
		}
		copied, err := unix.Dup(int(s.(*store).file.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		next, err := Open(context.Background(), Options{Dir: dir})
		if err != nil {
			t.Fatalf("after closing (reading only: %v): %v", readOnly, err)
		}
		next.Close()
		unix.Close(copied)
	}
}
