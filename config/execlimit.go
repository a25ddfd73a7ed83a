package config

import "fmt"

// The kernel starts no program whose argument or variable alone is longer than 32
// pages (MAX_ARG_STRLEN, its end included), or whose arguments and variables, with
// a pointer each, together exceed a quarter of the stack limit, usually 2 MiB
// (execve(2)). What is left of that is for the sandbox's own PID 1.
const (
	maxString  = 128<<10 - 1
	maxStrings = 1_900_000
	pointer    = 8
)

func tooLong(what string, n int) error {
	return fmt.Errorf("%s has %d bytes; the kernel starts no program with one longer than %d. Put it into a file block and name the file", what, n, maxString)
}

// checkExec refuses a command with variables that no kernel would start.
func (d *decoder) checkExec(spec *Sandbox) {
	total := 0
	for _, word := range spec.Command {
		total += len(word) + 1 + pointer
	}
	for key, value := range spec.Env {
		total += len(key) + len(value) + 2 + pointer
	}
	if total <= maxStrings {
		return
	}
	attr := d.argument("command")
	if e := d.argument("env"); e != nil && (attr == nil || len(spec.Env) > len(spec.Command)) {
		attr = e
	}
	d.wrong(attr, "command and env have %d bytes together; the kernel starts no program with more than %d of them. Put large values into file blocks.", total, maxStrings)
}
