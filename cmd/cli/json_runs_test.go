package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// In the environment of pinfold in a script: where each of its runs with -json is noted,
// and where the schemas are.
const (
	jsonRuns  = "PINFOLD_TEST_JSON_RUNS"
	schemasAt = "PINFOLD_TEST_SCHEMAS"
)

// jsonRun is a run with -json in a script.
type jsonRun struct {
	Args    []string
	Code    int
	Command string // "state list"; none for one that does not exist
	Schema  string // the one its output fits
	Misfit  string // why it fits none
}

// asProgram is pinfold in a script. What it writes with -json goes through, and is held
// against the command's schema whether the script looks at it or not.
func asProgram() int {
	dir := os.Getenv(jsonRuns)
	if dir == "" || !asksForJSON(os.Args) {
		return New().Run(os.Args)
	}
	app := New()
	read, write, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	var written bytes.Buffer
	copied := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(os.Stdout, &written), read)
		copied <- errors.Join(err, read.Close())
	}()
	through := sync.OnceValue(func() error { return errors.Join(write.Close(), <-copied) })
	app.Out = write
	app.Exit = func(code int) { // in the middle of whatever it writes
		_ = through()
		os.Exit(code)
	}
	code := app.Run(os.Args)
	if err := through(); err != nil {
		panic(err)
	}
	if err := noteRun(dir, os.Args, code, written.Bytes()); err != nil {
		panic(err)
	}
	return code
}

// noteRun writes down whether the output of a run is as its schema says.
func noteRun(dir string, args []string, code int, output []byte) error {
	r := &run{App: New()}
	t := r.parseTyped(r.root(), append(slices.Clone(args[1:]), ""))
	if t.passedOn() || slices.Contains(t.given, "help") || slices.Contains(t.given, "h") {
		return nil // another command's -json, and help is none
	}
	n := jsonRun{Args: args[1:], Code: code}
	var may []shape
	if t.cmd != nil {
		n.Command = strings.TrimSpace(t.under + " " + t.cmd.Name)
		given := func(flag string) bool {
			f := flagNamed(r.root(), t.cmd, flag)
			return slices.ContainsFunc(t.given, func(name string) bool { return slices.Contains(f.Names(), name) })
		}
		may = slices.DeleteFunc(slices.Clone(schemas[n.Command]), func(s shape) bool { return s.flag != "" && !given(s.flag) })
		if i := slices.IndexFunc(may, func(s shape) bool { return s.flag != "" }); i >= 0 {
			may = may[i : i+1]
		}
	}
	if code == exitError || code == exitInterrupted {
		may = append(may, shape{schema: "diagnostics", lines: len(may) > 0 && may[0].lines})
	}
	var why []string
	for _, s := range may {
		err := s.fit(output)
		if err == nil {
			n.Schema = s.schema
			why = nil
			break
		}
		why = append(why, fmt.Sprintf("%s: %v", s.schema, err))
	}
	if n.Schema == "" {
		n.Misfit = fmt.Sprintf("%s\n%s", strings.Join(why, "\n"), output)
	}
	text, err := json.Marshal(n)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "run")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	// The test, as root, reads what nobody wrote.
	return errors.Join(err, f.Close())
}

// fit tells why an output is not of this shape.
func (s shape) fit(output []byte) error {
	if !s.lines {
		return fits(s.schema, output)
	}
	for line := range bytes.Lines(output) {
		// A line that is cut off was being written when the run was ended.
		if !bytes.HasSuffix(line, []byte("\n")) {
			return nil
		}
		if err := fits(s.schema, line); err != nil {
			return err
		}
	}
	return nil
}

// shapesSeen are those that the scripts of one mode had -json write.
type shapesSeen struct {
	mu      sync.Mutex
	scripts int
	seen    map[string]bool // "command schema"
}

// script takes the notes of a script that has ended; an output that fits no schema
// fails it.
func (x *shapesSeen) script(env *testscript.Env, dir string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.scripts++
	if x.seen == nil {
		x.seen = map[string]bool{}
	}
	notes, err := filepath.Glob(filepath.Join(dir, "run*"))
	if err != nil {
		env.T().Fatal(err)
	}
	for _, path := range notes {
		text, err := os.ReadFile(path)
		if err != nil {
			env.T().Fatal(err)
		}
		var n jsonRun
		if err := json.Unmarshal(text, &n); err != nil {
			env.T().Fatal(fmt.Sprintf("%s: %v", path, err))
		}
		if n.Misfit != "" {
			env.T().Fatal(fmt.Sprintf("pinfold %s (exit code %d) wrote what no schema describes:\n%s", strings.Join(n.Args, " "), n.Code, n.Misfit))
		}
		x.seen[n.Command+" "+n.Schema] = true
	}
}

// whole: the scripts had every command with -json write each of its shapes.
func (x *shapesSeen) whole(t *testing.T, mode string) {
	t.Helper()
	for name, all := range schemas {
		for _, s := range all {
			if !x.seen[name+" "+s.schema] {
				t.Errorf("%s: no script runs pinfold %s with -json so that it writes %s", mode, name, s.schema)
			}
		}
	}
}
