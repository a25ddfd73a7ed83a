package reconcile

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pinfold/reconcile/plan"
	"pinfold/runtime/host/checkup"
)

// user is this machine as one who is not root sees it.
type user struct{ checkup.Here }

func (user) Root() bool { return false }

func consult(t *testing.T, o OpenOptions, r DoctorRequest) (res *DoctorResult, by map[string]Check) {
	t.Helper()
	res, err := Doctor(context.Background(), o, r)
	if err != nil {
		t.Fatal(err)
	}
	by = map[string]Check{}
	failed, warned := 0, 0
	for _, c := range res.Checks {
		if _, twice := by[c.Name]; twice || c.Found == "" {
			t.Errorf("%+v", c)
		}
		by[c.Name] = c
		switch c.Status {
		case fails:
			failed++
		case warns:
			warned++
		}
	}
	if failed != res.Failed || warned != res.Warned {
		t.Errorf("%d failed and %d warnings, counted as %d and %d", failed, warned, res.Failed, res.Warned)
	}
	return res, by
}

func wants(t *testing.T, by map[string]Check, name, status, found string) {
	t.Helper()
	if c := by[name]; c.Status != status || !strings.Contains(c.Found, found) {
		t.Errorf("%s is %s: %q, want %s with %q", name, c.Status, c.Found, status, found)
	}
}

func TestDoctorOfAnAgent(t *testing.T) {
	l := newLab(t, map[string]string{"main.hcl": one("")})
	_, e, run, stop := l.serve()
	l.apply(e, plan.Options{})
	if err := os.Chmod(l.state, 0o700); err != nil {
		t.Fatal(err)
	}
	o := OpenOptions{StateDir: l.state, RunDir: run}
	_, by := consult(t, o, DoctorRequest{HostConfig: "/no/such/host.hcl"})
	wants(t, by, "agent", fine, "it runs (pid 0) and answers")
	wants(t, by, "state", fine, "is sound")
	wants(t, by, "orphans", fine, "on record")
	wants(t, by, "clock", fine, "later")
	wants(t, by, "host_config", fine, "the defaults count")

	// One without a record; another version; a state of somebody else.
	w := &write{}
	set(&w.sandboxes, "sandbox.a", nil)
	if err := e.commit(w); err != nil {
		t.Fatal(err)
	}
	o.Version = "another"
	_, by = consult(t, o, DoctorRequest{})
	wants(t, by, "orphans", warns, "1 things on the host")
	wants(t, by, "agent", warns, "not another")
	_, by = consult(t, OpenOptions{StateDir: t.TempDir(), RunDir: run}, DoctorRequest{})
	wants(t, by, "agent", fails, "serves "+l.state)
	wants(t, by, "state", fine, "none yet")
	stop()
	_, by = consult(t, OpenOptions{StateDir: t.TempDir(), RunDir: run}, DoctorRequest{})
	wants(t, by, "agent", warns, "none runs in "+run)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDoctorOfDirectories(t *testing.T) {
	dir := t.TempDir()
	state, run := filepath.Join(dir, "state"), filepath.Join(dir, "run")
	o := OpenOptions{StateDir: state, RunDir: run}
	for _, c := range []struct {
		prepare func() error
		status  string
		found   string
	}{
		{func() error { return nil }, fine, "is not there yet"},
		{func() error { return os.WriteFile(state, nil, 0o600) }, fails, "is no directory"},
		{func() error { os.Remove(state); return os.Mkdir(state, 0o700) }, fine, "is root's alone"},
		{func() error { return os.Chmod(state, 0o755) }, warns, "mode 0755"},
		{func() error { return os.Chmod(state, 0o720) }, fails, "mode 0720"},
		{func() error { os.Chmod(state, 0o700); return os.Chown(state, 1000, 1000) }, fails, "belongs to user 1000"},
	} {
		if err := c.prepare(); err != nil {
			t.Fatal(err)
		}
		_, by := consult(t, o, DoctorRequest{})
		wants(t, by, "state_dir", c.status, c.found)
		if c := by["state_dir"]; (c.Status == fine) != (c.Advice == nil) {
			t.Errorf("%+v", c)
		}
		wants(t, by, "run_dir", fine, "is not there yet")
	}
	// What a lost state left behind is no fresh start.
	if err := os.MkdirAll(filepath.Join(state, "instances", "0123456789ab"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, by := consult(t, o, DoctorRequest{})
	wants(t, by, "state", fails, "missing")
}

// TestDoctorWithoutRoot fails nothing that only root could look at.
func TestDoctorWithoutRoot(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	res, by := consult(t, OpenOptions{StateDir: dir, RunDir: dir}, DoctorRequest{Machine: user{}, HostConfig: "/no/such/host.hcl"})
	if res.Failed != 0 {
		t.Errorf("%+v", res.Checks)
	}
	wants(t, by, "state", warns, "needs root")
	wants(t, by, "overlay", warns, "needs root")
}

func TestDoctorOfTheClock(t *testing.T) {
	at := time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)
	for now, want := range map[time.Time]string{at: fine, at.Add(time.Hour): fine, at.Add(-clockSlack): fine, at.Add(-2 * clockSlack): warns} {
		d := &doctor{}
		d.clock([]Event{{At: at}}, now)
		if got := d.res.Checks[0]; got.Status != want {
			t.Errorf("at %s: %+v", now, got)
		}
	}
	d := &doctor{}
	d.clock(nil, at)
	if d.res.Checks[0].Status != fine {
		t.Errorf("%+v", d.res)
	}
}
