// Command pinfold keeps declared sandboxes on a Linux host.
package main

import (
	// First of all: started as a sandbox's init, this program is nothing else.
	_ "pinfold/runtime/host/boot"

	"os"
	"runtime/debug"
	"slices"

	"pinfold/cmd/cli"
)

func main() {
	// A command lives for a moment: memory is cheaper to it than collecting
	// garbage. The agent stays, and keeps Go's usual balance.
	if os.Getenv("GOGC") == "" && !slices.Contains(os.Args, "agent") {
		debug.SetGCPercent(400)
	}
	os.Exit(cli.New().Run(os.Args))
}
