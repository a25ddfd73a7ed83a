// Package conformance is one suite of tests that every runtime.Host must pass.
// It holds the simulated host to what the real one does, and both to what the
// comments of runtime.Host promise. It asserts on the state of the world as
// Observe shows it, and on what commands in the sandbox see; never on how the
// host does its work.
//
// The caller describes a host with a Subject: how to open it, which commands
// its sandboxes understand, and how to break things from outside.
package conformance

import (
	"net"
	"net/netip"
	"testing"

	"pinfold/runtime"
)

// Subject is one machine to test, with nothing of ours on it. Each subtest asks
// for its own; they run at the same time.
type Subject struct {
	// Open gives a handle as a new process would get it. The first and later
	// calls give handles of the same lineage.
	Open func(t *testing.T) runtime.Host
	// OpenOther gives a handle of another lineage on the same machine.
	OpenOther func(t *testing.T) runtime.Host

	Image   runtime.ImageSource // has what Commands need
	NoImage runtime.ImageSource // does not exist

	// HostDir makes a directory on the machine that holds one file.
	HostDir func(t *testing.T, file, text string) string
	// HostLink puts a symbolic link into such a directory.
	HostLink func(t *testing.T, dir, name, target string)

	Commands Commands
	Controls Controls

	// Leftovers lists what is still on the machine of what either lineage made.
	// It is asked after everything was removed and all handles are closed.
	Leftovers func(t *testing.T) []string
}

// Commands are what the suite runs in sandboxes, in the host's own language.
// Those that say so print the line "ready" once signals find them as described.
type Commands struct {
	Forever       []string                                  // until a signal; SIGTERM ends it at once
	Stubborn      []string                                  // for ever, ignoring SIGTERM; prints ready
	OnSignal      func(sig int, path, text string) []string // for ever; prints ready; on sig writes the file and exits 0
	Exit          func(code int) []string                   // at once
	KillSelf      func(sig int) []string                    // sends itself a signal that ends it
	Print         func(stdout, stderr string) []string      // a line to each, then exits 0
	Write         func(path, text string) []string          // writes a file, exits 0; 1 or more when it cannot
	Cat           func(path string) []string                // prints a file, exits 0; 1 or more without it
	Env           func(name string) []string                // prints the variable's value and a newline, exits 0
	WorkDir       []string                                  // prints the working directory and a newline, exits 0
	CopyInput     []string                                  // copies standard input to standard output, exits 0
	User          []string                                  // prints UID:GID and a newline, exits 0
	Hostname      []string                                  // prints the host name and a newline, exits 0
	Hog           []string                                  // uses memory without end
	Busy          []string                                  // for ever, on a whole core; prints ready first
	Hold          func(bytes int) []string                  // for ever, with so much memory in use; prints ready
	Missing       []string                                  // cannot be executed
	Serve         func(port uint16) []string                // for ever; prints ready; answers on the port, by tcp and udp, with what it is sent
	ServeLoopback func(port uint16) []string                // the same on 127.0.0.1 only
}

// Controls do to the machine what others do to it.
type Controls struct {
	KillInit func(t *testing.T, in runtime.InstanceState)           // SIGKILL to PID 1
	KillMain func(t *testing.T, in runtime.InstanceState, sig int)  // a signal to the command itself
	Listen   func(t *testing.T) (addr netip.AddrPort, close func()) // a TCP socket of somebody else on an address of 127.0.0.0/8

	// Connect is a client on the machine that connects to a port of it.
	Connect func(t *testing.T, addr netip.AddrPort, protocol string) (net.Conn, error)

	// Occupy gives the machine an interface with a range of its own, from 9 to
	// 29 bits, outside what Run's networks may use: 10.100.0.0 to 10.249.255.255.
	Occupy func(t *testing.T) netip.Prefix

	// Break takes a part of a live instance away, by its name in
	// InstanceState.Missing; Breakable lists the parts it can take.
	Break     func(t *testing.T, in runtime.Instance, s runtime.InstanceState, part string)
	Breakable []string
	// BreakNetwork takes a part of a network away, by its name in
	// NetworkState.Missing; NetworkBreakable lists the parts it can take.
	BreakNetwork     func(t *testing.T, n runtime.Network, part string)
	NetworkBreakable []string
}

// Run runs the whole suite. subject is called once for each subtest.
func Run(t *testing.T, subject func(t *testing.T) Subject) {
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"lifecycle", lifecycle},
		{"stop", stop},
		{"freeze", freeze},
		{"exec", exec},
		{"dial", dial},
		{"publish", publish},
		{"copy", copies},
		{"files", files},
		{"volumes", volumes},
		{"network", network},
		{"loss", loss},
		{"ownership", ownership},
		{"notes", notes},
		{"stats", stats},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.tests {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(newWorld(t, subject(t)))
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(*world)
}
