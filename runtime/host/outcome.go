package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/runtime"
	"pinfold/runtime/failpoint"
)

// outcome is what the outcome file says. Its first line is Create's, "run PID
// STARTTIME BOOTID"; the others are pinit's (see pinit.c) and "oom COUNT", which Stop
// adds because the counter goes with the cgroup.
type outcome struct {
	run     runtime.Process // whose it is; zero: it does not say
	started bool
	result  *runtime.Outcome // nil: PID 1 wrote down no end
}

// of is the outcome if it is that of process p, as far as p is known. After a power
// cut the file may be that of an earlier process: nobody waited for the disk.
func (o outcome) of(p runtime.Process) outcome {
	if o.run != (runtime.Process{}) && p.PID != 0 && o.run != p {
		return outcome{}
	}
	return o
}

// nameRun writes whose outcome the file will be. PID 1 has not begun to write there.
func (h *Host) nameRun(id string, p runtime.Process) error {
	f, err := os.OpenFile(h.outcomePath(id)+".next", os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	line := fmt.Sprintf("run %d %d %s\n", p.PID, p.StartTime, p.BootID)
	err = failpoint.Step("host.outcome.name", func() error {
		_, err := f.WriteString(line)
		return err
	})
	return errors.Join(err, f.Close())
}

func (h *Host) outcomePath(id string) string { return filepath.Join(h.instanceDir(id), "outcome") }

// readOutcome returns the zero value when there is no outcome file. A last line
// that was cut short counts as not written.
func (h *Host) readOutcome(id string) (outcome, error) {
	data, err := os.ReadFile(h.outcomePath(id))
	if errors.Is(err, os.ErrNotExist) {
		return outcome{}, nil
	}
	if err != nil {
		return outcome{}, fmt.Errorf("cannot read the outcome of instance %s: %w", id, err)
	}
	return parseOutcome(string(data)), nil
}

func parseOutcome(text string) outcome {
	var o outcome
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		word := strings.Fields(line)
		if len(word) == 4 && word[0] == "run" {
			pid, perr := strconv.Atoi(word[1])
			start, serr := strconv.ParseUint(word[2], 10, 64)
			if perr == nil && serr == nil {
				o.run = runtime.Process{PID: pid, StartTime: start, BootID: word[3]}
			}
			continue
		}
		num := make([]int64, 0, 4)
		ok := len(word) > 0
		for _, w := range word[min(1, len(word)):] {
			n, err := strconv.ParseInt(w, 10, 64)
			ok = ok && err == nil
			num = append(num, n)
		}
		switch {
		case !ok:
		case word[0] == "start" && len(num) == 1:
			o.started = true
		case word[0] == "noexec" && len(num) == 2:
			o.result = &runtime.Outcome{ExitCode: execCode(unix.Errno(num[0])), At: time.Unix(0, num[1])}
		case word[0] == "exit" && len(num) == 4:
			o.result = &runtime.Outcome{ExitCode: int(num[0]), Signal: int(num[1]), Outside: int(num[2]), At: time.Unix(0, num[3])}
		case word[0] == "oom" && len(num) == 2:
			if o.result == nil { // PID 1 itself was the victim
				o.result = &runtime.Outcome{ExitCode: 128 + int(unix.SIGKILL), Signal: int(unix.SIGKILL), At: time.Unix(0, num[1])}
			}
			o.result.OOM = true
		}
	}
	return o
}

// noteOOM adds the cgroup's counter to the outcome, once.
func (h *Host) noteOOM(id string, kills uint64) error {
	data, err := os.ReadFile(h.outcomePath(id))
	if err != nil || kills == 0 || strings.Contains("\n"+string(data), "\noom ") {
		return nil
	}
	f, err := os.OpenFile(h.outcomePath(id), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("cannot note the out-of-memory kill of instance %s: %w", id, err)
	}
	defer f.Close()
	line := fmt.Sprintf("oom %d %d\n", kills, time.Now().UnixNano())
	err = failpoint.Step("host.outcome.oom", func() error {
		_, err := f.WriteString(line)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot note the out-of-memory kill of instance %s: %w", id, err)
	}
	return nil
}

// execCode is the exit code a shell gives a command it could not execute.
func execCode(e unix.Errno) int {
	if e == unix.ENOENT {
		return 127
	}
	return 126
}

// commandError puts into words why a command could not be executed.
func commandError(image runtime.Image, command string, e unix.Errno) error {
	name := image.Kind
	if image.Path != "" {
		name += ":" + image.Path
	}
	why := e.Error()
	switch e {
	case unix.ENOENT:
		why = "no such program, or its interpreter is missing"
		if !strings.Contains(command, "/") {
			why = "no such program in PATH"
		}
	case unix.EACCES:
		why = "not executable by this user"
	case unix.ENOEXEC:
		why = "not a program this kernel can run (a script needs a #! line)"
	}
	return &commandFailure{text: fmt.Sprintf("image %q: cannot execute %q: %s; set command", name, command, why), errno: e}
}

// commandFailure is runtime.ErrCommand with the kernel's reason, by which a
// caller tells "not found" from "not executable".
type commandFailure struct {
	text  string
	errno unix.Errno
}

func (f *commandFailure) Error() string   { return f.text }
func (f *commandFailure) Unwrap() []error { return []error{runtime.ErrCommand, f.errno} }
