// Command program is the starter process. It is built by the Makefile at the top
// and embedded in whatever imports package host.
package main

import (
	// First of all: started as a sandbox's init, this program is nothing else.
	_ "pinfold/runtime/host/boot"

	"fmt"
	"os"

	"pinfold/runtime/host/starter"
)

func main() {
	_ = os.WriteFile("/proc/self/comm", []byte("pinfold-starter"), 0) // for ps, which would show a number
	if err := starter.Serve(); err != nil {
		fmt.Fprintln(os.Stderr, "pinfold-starter:", err)
		os.Exit(1)
	}
}
