//go:build failpoints

package failpoint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "role:pass" {
		passAll()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// passAll passes two steps, the second twice, and a hit. What a step does is seen in
// files.
func passAll() {
	touch := func(name string) func() error {
		return func() error { return os.WriteFile(filepath.Join(os.Args[2], name), nil, 0o600) }
	}
	if Step("a.first.make", touch("first")) != nil {
		os.Exit(3)
	}
	Hit("a.between")
	for _, name := range []string{"second", "third"} {
		if Step("a.second.make", touch(name)) != nil {
			os.Exit(4)
		}
	}
}

// TestArmedByEnvironment: the process ends there and then, or gets the error, and what
// came before has happened.
func TestArmedByEnvironment(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		point string
		code  int // -1: killed
		made  []string
	}{
		{"", 0, []string{"first", "second", "third"}},
		{"a.first.make@before=kill", -1, nil},
		{"a.first.make@after=kill", -1, []string{"first"}},
		{"a.first.make@before=ENOSPC", 3, nil},
		{"a.first.make@after=ETIMEDOUT", 3, []string{"first"}},
		{"a.between@at=kill", -1, []string{"first"}},
		{"a.second.make@before:2=kill", -1, []string{"first", "second"}},
		{"a.second.make@after:2=EBUSY", 4, []string{"first", "second", "third"}},
		{"a.second.make@before:*=EPERM", 4, []string{"first"}},
		{"a.second.make@before:3=kill", 0, []string{"first", "second", "third"}},
	} {
		dir := t.TempDir()
		cmd := exec.Command("/proc/self/exe", "role:pass", dir)
		cmd.Env = append(os.Environ(), "PINFOLD_FAILPOINT="+c.point)
		err := cmd.Run()
		if got := cmd.ProcessState.ExitCode(); got != c.code {
			t.Errorf("%q: code %d, want %d (%v)", c.point, got, c.code, err)
		}
		var made []string
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			made = append(made, e.Name())
		}
		if !slices.Equal(made, c.made) {
			t.Errorf("%q: made %v, want %v", c.point, made, c.made)
		}
	}
}

func TestPassedPointsAreLogged(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	cmd := exec.Command("/proc/self/exe", "role:pass", t.TempDir())
	cmd.Env = append(os.Environ(), "PINFOLD_FAILPOINT_LOG="+log)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	const want = "a.first.make@before\na.first.make@after\na.between@at\n" +
		"a.second.make@before\na.second.make@after\na.second.make@before\na.second.make@after\n"
	if got, err := os.ReadFile(log); err != nil || string(got) != want {
		t.Errorf("log %q, %v", got, err)
	}
}

type closer struct{ closed *bool }

func (c closer) Close() error {
	*c.closed = true
	return nil
}

// TestGetClosesWhatIsNotGiven: an error after the step would leave a descriptor open
// that nobody knows.
func TestGetClosesWhatIsNotGiven(t *testing.T) {
	var closed bool
	open := func() (closer, error) { return closer{&closed}, nil }
	release := Arm("a.file.open@before=ENOMEM")
	if c, err := Get("a.file.open", open); !errors.Is(err, unix.ENOMEM) || c.closed != nil || !release() {
		t.Errorf("before: %v, %v", c, err)
	}
	release = Arm("a.file.open@after=ETIMEDOUT")
	if c, err := Get("a.file.open", open); !errors.Is(err, unix.ETIMEDOUT) || c.closed != nil || !closed || !release() {
		t.Errorf("after: %v, %v, closed %v", c, err, closed)
	}
	closed = false
	if c, err := Get("a.file.open", open); err != nil || c.closed == nil || closed || !release() {
		t.Errorf("disarmed: %v, %v, closed %v", c, err, closed)
	}
}
