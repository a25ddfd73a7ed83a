// Package wire is what the machine of the lab and the one who runs it say to each
// other over a serial port: JSON values, one per line.
package wire

import (
	"encoding/json"
	"strings"
	"time"
)

// How a boot comes to its end.
const (
	Cut      = "cut"      // the power goes while work is under way
	Shutdown = "shutdown" // the machine shuts down in order, then its power goes
	Off      = "off"      // it is done and says so
)

// What a boot is for.
const (
	Suites = "suites" // run the test programs
	Work   = "work"   // check what the last boot left, then work on
	Clock  = "clock"  // check, then step the clock
	Finish = "finish" // check, then destroy everything and look for what is left
)

// Task is what the machine is told when it says that it is up.
type Task struct {
	Boot  int
	Seed  uint64
	Do    string
	Ended string        // how the boot before ended; "" when there was none with a farm
	Off   time.Duration // how far the clock was moved on while it was off
	Then  string        // how this boot is to end

	Suites []Suite
	// What the machine noted in former boots. What was said over the port is kept
	// outside, so nothing on the machine's disk is flushed for it, and it is known
	// whatever the disk lost.
	Notes map[string]json.RawMessage
}

// Suite is a test program to run in the machine.
type Suite struct {
	Name string // the package
	Run  string // which tests, as go test takes it; "" for all
	Skip string
}

// Word is what the machine says. An empty one says that it is alive.
type Word struct {
	Up      bool            // tell me what to do
	Note    string          // keep Value under this name, or nothing any more
	Value   json.RawMessage // of Note
	Stage   string          // where it is: StageServing, StageWorking
	Verdict string          // Pass or Fail; the last word of a boot
}

const (
	StageServing = "serving" // the agent was started; checks are under way
	StageWorking = "working"

	Pass = "PASS"
	Fail = "FAIL"
)

// Prefix marks the machine's own lines on its console, between the kernel's.
const Prefix = "lab: "

// Port is the name of the serial port.
const Port = "pinfold.lab"

// SuitesDir is where the machine has the suites, each in the directory of its name.
const SuitesDir = "/suites"

// Program is the file name of a suite's test program.
func Program(suite string) string { return strings.ReplaceAll(suite, "/", "-") + ".test" }
