//go:build failpoints

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// armed is the point that PINFOLD_FAILPOINT names.
type armed struct {
	name, when, what string
	nth              int // 0: each time
	passed           int
}

var (
	mu   sync.Mutex
	arm  = sync.OnceValue(func() *armed { return parse(os.Getenv("PINFOLD_FAILPOINT")) })
	note = sync.OnceValue(func() *os.File {
		path := os.Getenv("PINFOLD_FAILPOINT_LOG")
		if path == "" {
			return nil
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			panic(err)
		}
		return f
	})
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
	a := &armed{name: name, what: what, nth: 1}
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

// Hit is an instant between the parts of a step.
func Hit(name string) { _ = pass(name, "at") }

func pass(name, when string) error {
	mu.Lock()
	defer mu.Unlock()
	if f := note(); f != nil {
		fmt.Fprintf(f, "%s@%s\n", name, when)
	}
	a := arm()
	if a == nil || a.name != name || a.when != when {
		return nil
	}
	if a.passed++; a.nth != 0 && a.passed != a.nth {
		return nil
	}
	switch a.what {
	case "kill":
		unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	case "ENOSPC":
		return unix.ENOSPC
	case "EBUSY":
		return unix.EBUSY
	case "EPERM":
		return unix.EPERM
	case "ENOMEM":
		return unix.ENOMEM
	case "ETIMEDOUT":
		return unix.ETIMEDOUT
	}
	panic("PINFOLD_FAILPOINT knows no " + a.what)
}
