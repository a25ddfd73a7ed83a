package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"pinfold/testdata/lab/wire"
)

// driver does what this boot is for and judges it.
type driver struct {
	wire.Task
	random *rand.Rand
	agent  *agent
	bootID string

	lost  map[string]string // what is known of the sandboxes "lost" in this boot, by key
	again string            // and of the one that is started again

	notesMu sync.Mutex // of Notes
	portMu  sync.Mutex // of port
	port    *os.File
}

// drive returns the driver's exit code.
func drive() int {
	d, err := hello()
	if err == nil {
		err = d.do()
	}
	if err != nil {
		// The console is a line a line.
		for line := range strings.Lines(err.Error()) {
			say("FAIL: %s", strings.TrimRight(line, "\n"))
		}
		if d != nil && d.agent != nil {
			d.agent.tail()
		}
	}
	if d == nil {
		return 1
	}
	if err != nil {
		d.word(wire.Word{Verdict: wire.Fail})
		return 1
	}
	d.word(wire.Word{Verdict: wire.Pass})
	return 0
}

func (d *driver) do() error {
	switch d.Do {
	case wire.Suites:
		return d.suites()
	case wire.Work:
		return d.inFarm(d.work)
	case wire.Clock:
		return d.inFarm(d.stepClock)
	case wire.Finish:
		return d.inFarm(d.finish)
	}
	return fmt.Errorf("there is no task %q", d.Do)
}

// hello opens the port and hears the task.
func hello() (*driver, error) {
	port, err := openPort()
	if err != nil {
		return nil, err
	}
	d := &driver{port: port}
	if d.bootID, err = bootID(); err != nil {
		return d, err
	}
	d.word(wire.Word{Up: true})
	if err := json.NewDecoder(port).Decode(&d.Task); err != nil {
		return d, fmt.Errorf("no task: %w", err)
	}
	if d.Notes == nil {
		d.Notes = map[string]json.RawMessage{}
	}
	d.random = rand.New(rand.NewPCG(d.Seed, uint64(d.Boot)))
	return d, nil
}

// openPort finds the serial port by its name. It comes up by itself after its driver
// was loaded.
func openPort() (*os.File, error) {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, file := range names {
			name, err := os.ReadFile(file)
			if err != nil || strings.TrimSpace(string(name)) != wire.Port {
				continue
			}
			port, err := os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(file))), os.O_RDWR, 0)
			if err == nil {
				return port, nil
			}
		}
		if time.Now().After(end) {
			return nil, errors.New("the serial port did not come up")
		}
	}
}

// word says one. When it returns the word is out of the machine.
func (d *driver) word(w wire.Word) {
	text, err := json.Marshal(w)
	if err != nil {
		panic(err)
	}
	d.portMu.Lock()
	defer d.portMu.Unlock()
	if _, err := d.port.Write(append(text, '\n')); err != nil {
		say("FAIL: the serial port: %v", err)
	}
}

// say prints a line of ours on the console.
func say(format string, args ...any) {
	fmt.Printf(wire.Prefix+"  "+format+"\n", args...)
}

// poll asks until there is no complaint any more; the last one, when time is up.
func poll(ctx context.Context, bound time.Duration, ask func() error) error {
	var err error
	for end := time.Now().Add(bound); ; {
		if err = ask(); err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %s still: %w", bound, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
