package cli

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	_ "pinfold/runtime/host/boot"
)

// Scripts run this test binary as pinfold; started as a sandbox's init it is
// that, before anything else (see package boot).
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"pinfold": func() { os.Exit(New().Run(os.Args)) },
	})
}
