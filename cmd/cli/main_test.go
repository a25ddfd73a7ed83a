package cli

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	_ "pinfold/runtime/host/boot"
)

// scriptHelper in the environment makes the test binary pinfold itself.
const scriptHelper = "PINFOLD_TEST_AS_PROGRAM"

// Scripts run this test binary as pinfold; started as a sandbox's init it is
// that, before anything else (see package boot).
func TestMain(m *testing.M) {
	if os.Getenv(scriptHelper) != "" {
		os.Exit(New().Run(os.Args))
	}
	testscript.Main(m, map[string]func(){
		"pinfold": func() { os.Exit(asProgram()) },
	})
}
