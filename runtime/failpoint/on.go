//go:build failpoints

package failpoint

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// armed is a point at which something is to happen.
type armed struct {
	name, when string
	nth        int        // 0: each time
	what       unix.Errno // 0: kill
	passed     int
	struck     bool
}

var errnos = map[string]unix.Errno{
	"kill": 0, "ENOSPC": unix.ENOSPC, "EBUSY": unix.EBUSY, "EPERM": unix.EPERM, "ENOMEM": unix.ENOMEM, "ETIMEDOUT": unix.ETIMEDOUT,
}

var (
	mu    sync.Mutex
	arm   = parse(os.Getenv("PINFOLD_FAILPOINT"))
	note  = logTo(os.Getenv("PINFOLD_FAILPOINT_LOG"))
	watch func(name, when string)
)

func parse(text string) *armed {
	if text == "" {
		return nil
	}
	point, what, ok := strings.Cut(text, "=")
	name, when, ok2 := strings.Cut(point, "@")
	if !ok || !ok2 {
		panic("PINFOLD_FAILPOINT is not NAME@WHEN[:N]=WHAT: " + text)
	}
	errno, known := errnos[what]
	if !known {
		panic("PINFOLD_FAILPOINT knows no " + what)
	}
	a := &armed{name: name, what: errno, nth: 1}
	a.when, point, ok = strings.Cut(when, ":")
	if point == "*" {
		a.nth = 0
	} else if ok {
		n, err := strconv.Atoi(point)
		if err != nil || n < 1 {
			panic("PINFOLD_FAILPOINT counts from 1: " + text)
		}
		a.nth = n
	}
	return a
}

func logTo(path string) *os.File {
	if path == "" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	return f
}

// Arm arms a point of this process, written as in PINFOLD_FAILPOINT, in place of the
// one that was. release disarms it and tells whether it has struck.
func Arm(point string) (release func() bool) {
	mu.Lock()
	defer mu.Unlock()
	a := parse(point)
	arm = a
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if arm == a {
			arm = nil
		}
		return a.struck
	}
}

// Watch has f told of each point that this process passes, until stop. f must not pass
// one itself.
func Watch(f func(name, when string)) (stop func()) {
	mu.Lock()
	defer mu.Unlock()
	watch = f
	return func() {
		mu.Lock()
		defer mu.Unlock()
		watch = nil
	}
}

// Step is one step that touches the host: do, unless this is the point that is armed.
func Step(name string, do func() error) error {
	if err := pass(name, "before"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return pass(name, "after")
}

// Get is a Step that gives something. What is to be closed is, where an error after
// the step keeps it from the caller.
func Get[T any](name string, do func() (T, error)) (T, error) {
	var none T
	if err := pass(name, "before"); err != nil {
		return none, err
	}
	v, err := do()
	if err != nil {
		return v, err
	}
	if err := pass(name, "after"); err != nil {
		if c, ok := any(v).(io.Closer); ok {
			c.Close()
		}
		return none, err
	}
	return v, nil
}

// Hit is an instant between the parts of a step.
func Hit(name string) { _ = pass(name, "at") }

func pass(name, when string) error {
	mu.Lock()
	defer mu.Unlock()
	if note != nil {
		fmt.Fprintf(note, "%s@%s\n", name, when)
	}
	if watch != nil {
		watch(name, when)
	}
	a := arm
	if a == nil || a.name != name || a.when != when {
		return nil
	}
	if a.passed++; a.nth != 0 && a.passed != a.nth {
		return nil
	}
	a.struck = true
	if a.what == 0 {
		unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	return a.what
}
