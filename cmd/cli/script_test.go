package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

var scriptNumber atomic.Int32

// TestScript runs every script of testdata/script twice: in one process after
// the other, and with an agent that all commands reach by its socket (where the
// script says serve). They drive the real kernel and need root.
func TestScript(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("these scripts make real sandboxes: run the tests as root")
	}
	scripts, err := filepath.Glob(filepath.Join("testdata", "script", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []string{"alone", "agent"} {
		var seen shapesSeen
		t.Run(mode, func(t *testing.T) {
			testscript.Run(t, testscript.Params{
				Dir:                 filepath.Join("testdata", "script"),
				WorkdirRoot:         t.TempDir(), // removed at the end, also when only some scripts run
				Setup:               func(env *testscript.Env) error { return setup(env, mode, &seen) },
				Cmds:                scriptCommands,
				Condition:           func(cond string) (bool, error) { return condition(cond, mode) },
				RequireExplicitExec: true,
			})
		})
		if seen.scripts == len(scripts) { // -run may have chosen some
			seen.whole(t, mode)
		}
	}
}

// setup gives a script its own state, run dir, cgroups and address range, and
// makes sure that nothing of it outlives it even when it fails.
func setup(env *testscript.Env, mode string, seen *shapesSeen) error {
	number := scriptNumber.Add(1)
	pool := fmt.Sprintf("10.%d.%d.0/24", 100+os.Getpid()%100, number)
	settings := fmt.Sprintf("address_pools = [%q]\n", pool)
	host := filepath.Join(env.WorkDir, "host.hcl")
	if err := os.WriteFile(host, []byte(settings), 0o644); err != nil {
		return err
	}
	// Files of the archive lie beside the configuration, not in it.
	env.Setenv("PINFOLD_HOST_CONFIG", host)
	env.Setenv("PINFOLD_STATE_DIR", filepath.Join(env.WorkDir, "state"))
	env.Setenv("PINFOLD_RUN_DIR", filepath.Join(env.WorkDir, "run"))
	env.Setenv("TERM", "xterm")
	env.Setenv("MODE", mode)
	env.Cd = filepath.Join(env.WorkDir, "conf")
	env.Values[agentKey] = &agentProcess{}
	env.Values[backgroundKey] = &background{}
	env.Values[foreignKey] = &foreign{}
	env.Defer(func() { abandon(env) })
	runs := filepath.Join(env.WorkDir, "runs")
	env.Setenv(jsonRuns, runs)
	env.Setenv(schemasAt, schemaDir)
	env.Defer(func() { seen.script(env, runs) })
	return errors.Join(os.MkdirAll(env.Cd, 0o755), os.Mkdir(runs, 0o777), os.Chmod(runs, 0o777))
}

func condition(cond, mode string) (bool, error) {
	switch cond {
	case "agent", "alone":
		return cond == mode, nil
	}
	return false, fmt.Errorf("there is no condition %q", cond)
}
