package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"pinfold/testdata/lab/wire"
)

const suiteBound = 50 * time.Minute

// suites runs the test programs, one after the other. All of them run, whatever
// fails.
func (d *driver) suites() error {
	var failed []error
	for _, s := range d.Suites {
		if err := d.runSuite(s); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", s.Name, err))
		}
	}
	return errors.Join(failed...)
}

func (d *driver) runSuite(s wire.Suite) error {
	ctx, cancel := context.WithTimeout(context.Background(), suiteBound)
	defer cancel()
	dir := filepath.Join(wire.SuitesDir, s.Name)
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "test"), "-test.v", "-test.run", s.Run, "-test.skip", s.Skip, "-test.timeout", suiteBound.String())
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	// Between the results there is everything that is logged; it is kept for when
	// something fails.
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	passed, failed, skipped := 0, 0, 0
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		fmt.Fprint(log, line)
		if strings.HasPrefix(line, "===") {
			d.word(wire.Word{}) // results of parts come with the whole; it is alive
		}
		result, name, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch result {
		case "--- PASS":
			passed++
			say("%s: %s", s.Name, name)
		case "--- FAIL":
			failed++
			say("%s: failed: %s", s.Name, name)
		case "--- SKIP":
			skipped++
			say("%s: skipped: %s", s.Name, name)
		}
		if err != nil {
			break
		}
	}
	err = cmd.Wait()
	say("%s: %d passed, %d failed, %d skipped in %.0f s", s.Name, passed, failed, skipped, time.Since(began).Seconds())
	switch {
	case err != nil || failed > 0:
		return fmt.Errorf("%w, %d tests failed\n%s", err, failed, told(log.Name()))
	case passed == 0:
		return fmt.Errorf("no test is called %s", s.Run)
	case skipped > 0:
		return fmt.Errorf("%d tests were skipped: this machine has what they need", skipped)
	}
	return nil
}

// told is what the tests themselves said, and the end of everything.
func told(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	var words strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "_test.go:") || strings.Contains(line, "--- FAIL") {
			words.WriteString(line)
		}
	}
	return words.String() + tail(text, 40)
}
