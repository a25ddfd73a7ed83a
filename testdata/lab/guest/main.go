// Command guest is what runs in the lab's machine: its PID 1, the one who drives
// pinfold and judges what it finds, and the workload of the sandboxes.
package main

import (
	"fmt"
	"os"
)

// self is where the machine has this program.
const self = "/usr/local/bin/guest"

func main() {
	role := ""
	if len(os.Args) > 1 {
		role = os.Args[1]
	}
	switch {
	case os.Getpid() == 1 && role != "workload":
		boot()
	case role == "drive":
		os.Exit(drive())
	case role == "workload":
		fmt.Fprintln(os.Stderr, workload(os.Args[2:]))
		os.Exit(9)
	default:
		fmt.Fprintln(os.Stderr, "this is the program of the lab's machine; run make lab")
		os.Exit(1)
	}
}
