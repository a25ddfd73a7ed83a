package cli

import (
	"encoding/binary"
	"errors"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// logged PATTERN: waits until the agent has logged a line that matches, after
// the one that was waited for last. A group in PATTERN is kept in $MATCH.
func logged(ts *testscript.TestScript, neg bool, args []string) {
	a := ts.Value(agentKey).(*agentProcess)
	if neg || len(args) != 1 || a.cmd == nil {
		ts.Fatalf("usage: logged PATTERN, while an agent runs")
	}
	pattern, err := regexp.Compile(`(?m)` + args[0])
	ts.Check(err)
	for end := time.Now().Add(bound); ; time.Sleep(20 * time.Millisecond) {
		log := a.log.String()
		if at := pattern.FindStringSubmatchIndex(log[a.read:]); at != nil {
			if len(at) > 2 && at[2] >= 0 {
				ts.Setenv("MATCH", log[a.read+at[2]:a.read+at[3]])
			}
			a.read += at[1]
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("the agent never logged %s:\n%s", pattern, log[a.read:])
		}
	}
}

// looks N FILE: waits until FILE was opened N times more. An agent reads each
// file of the directory it follows once in a look, where it has to read at all.
func looks(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: looks N FILE")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	ts.Check(err)
	defer func() { ts.Check(unix.Close(fd)) }()
	_, err = unix.InotifyAddWatch(fd, ts.MkAbs(args[1]), unix.IN_OPEN)
	ts.Check(err)
	buf := make([]byte, 4096)
	for seen, end := 0, time.Now().Add(bound); seen < want; {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, syscall.EAGAIN) && time.Now().After(end):
			ts.Fatalf("%s was opened %d times in %s, not %d", args[1], seen, bound, want)
		case errors.Is(err, syscall.EAGAIN):
			time.Sleep(20 * time.Millisecond)
		case err != nil:
			ts.Fatalf("%v", err)
		}
		// struct inotify_event: the length of its name is at byte 12 (inotify(7)).
		for at := 0; at+unix.SizeofInotifyEvent <= n; seen++ {
			at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:]))
		}
	}
}
