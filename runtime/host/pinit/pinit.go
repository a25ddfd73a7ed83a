// Package pinit holds the small C program that is PID 1 of every sandbox, and
// hands it out as an executable descriptor that nothing can write to or read.
//
// The program is built by the Makefile in this folder, before go build.
package pinit

//go:generate make

import (
	_ "embed"
	"os"

	"pinfold/runtime/host/memfd"
)

//go:embed pinit.bin
var program []byte

// Open returns a descriptor of a sealed, execute-only memory file with the
// program. Execute-only matters: the kernel then counts its process as not
// dumpable from the first instruction, so that not even a sandbox that keeps
// CAP_SYS_PTRACE can open /proc/1/exe or /proc/1/fd.
func Open() (*os.File, error) { return memfd.Sealed("pinit", program, 0o111) }
