// Command pinfold keeps declared sandboxes on a Linux host.
package main

import (
	// First of all: started as a sandbox's init, this program is nothing else.
	_ "pinfold/runtime/host/boot"

	"os"

	"pinfold/cmd/cli"
)

func main() { os.Exit(cli.New().Run(os.Args)) }
