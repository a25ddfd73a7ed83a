package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Script is what the simulated command does. A command whose first word is not
// "sim" runs for ever until a signal ends it. After the word "sim" every
// argument is a step, done in order; a script that has no more steps runs for
// ever:
//
//	after=D            wait for D (a Go duration)
//	exit=N             end with exit code N
//	signal=SIG         end as by a signal it sent itself
//	ignore=SIG         from here on, SIG has no effect
//	await=SIG          wait for SIG, which then has no other effect
//	print=TEXT         write TEXT and a newline to standard output
//	err=TEXT           the same to standard error
//	write=PATH:TEXT    replace a file of the layer, a volume, a tmpfs or a host directory
//	append=PATH:TEXT   the same, at its end
//	cat=PATH           write a file to standard output; without the file, end with code 1
//	serve=PORT         from here on, an echo answers on the port, tcp and udp (see Dial)
//	serve-loopback=PORT  the same on loopback only (see DialInside)
//	env=NAME           print a variable's value
//	pwd                print the working directory
//	user               print the user, "0:0" by default
//	hostname           print the host name
//	busy               from here on, use a whole core (Stats)
//	memory=N           from here on, have N bytes of memory in use (Stats)
//	oom                use memory until the OOM killer comes
//	stdin              copy standard input to standard output (Exec only; else nothing)
//	exec-fails         the command cannot be executed: runtime.ErrCommand
//
// A write to a read-only place ends the script with code 1. SIG is a number or
// one of HUP, INT, QUIT, KILL, USR1, USR2, TERM. SIGTERM ends a command that
// neither ignores nor awaits it at once, with code 143.
type Script []step

type step struct {
	word  string
	value string
	path  string // write, append, cat
	num   int    // exit, signal, ignore, await
	wait  time.Duration
}

// parse reads a command. An unknown step is an error: a misspelt script must
// not look like a command that runs for ever.
func parse(command []string) (Script, error) {
	if len(command) == 0 {
		return nil, fmt.Errorf("empty command")
	}
	if command[0] != "sim" {
		return nil, nil
	}
	s := make(Script, 0, len(command)-1)
	for _, arg := range command[1:] {
		st, err := parseStep(arg)
		if err != nil {
			return nil, fmt.Errorf("script %q: %w", strings.Join(command, " "), err)
		}
		s = append(s, st)
	}
	return s, nil
}

func parseStep(arg string) (step, error) {
	word, value, _ := strings.Cut(arg, "=")
	st := step{word: word, value: value}
	var err error
	switch word {
	case "after":
		st.wait, err = time.ParseDuration(value)
	case "exit":
		st.num, err = strconv.Atoi(value)
	case "serve", "serve-loopback":
		var port uint64
		port, err = strconv.ParseUint(value, 10, 16)
		st.num = int(port)
	case "signal", "ignore", "await":
		st.num, err = signalNumber(value)
	case "write", "append":
		var ok bool
		st.path, st.value, ok = strings.Cut(value, ":")
		if !ok || !strings.HasPrefix(st.path, "/") {
			err = fmt.Errorf("want /PATH:TEXT")
		}
	case "cat":
		st.path = value
		if !strings.HasPrefix(value, "/") {
			err = fmt.Errorf("want an absolute path")
		}
	case "memory":
		var n uint64
		n, err = strconv.ParseUint(value, 10, 31)
		st.num = int(n)
	case "busy", "print", "err", "env", "pwd", "user", "hostname", "oom", "stdin", "exec-fails":
	default:
		err = fmt.Errorf("unknown step")
	}
	if err != nil {
		return step{}, fmt.Errorf("step %q: %w", arg, err)
	}
	return st, nil
}

func (s Script) cannotExecute() bool {
	for _, st := range s {
		if st.word == "exec-fails" {
			return true
		}
	}
	return false
}

var signalNames = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "TERM": 15}

func signalNumber(s string) (int, error) {
	if n, ok := signalNames[s]; ok {
		return n, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 64 {
		return 0, fmt.Errorf("no such signal %q", s)
	}
	return n, nil
}

// endsByDefault tells whether a signal's default action is to end the process
// (signal(7), "Standard signals").
func endsByDefault(sig int) bool {
	switch sig {
	case 17, 18, 19, 20, 21, 22, 23, 28: // CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG, WINCH
		return false
	}
	return true
}
