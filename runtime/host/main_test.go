package host

import (
	"os"
	"testing"

	_ "pinfold/runtime/host/boot"
)

func TestMain(m *testing.M) { os.Exit(m.Run()) }
