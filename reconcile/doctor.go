package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"pinfold/config"
	"pinfold/reconcile/seal"
	"pinfold/runtime/host/checkup"
)

// DoctorRequest says what to look at besides the state of the options.
type DoctorRequest struct {
	HostConfig string          // the file of host settings
	Machine    checkup.Machine // nil: the one this process runs on
}

// DoctorResult is what a look at host, state and agent found.
type DoctorResult struct {
	FormatVersion string  `json:"format_version"`
	Failed        int     `json:"failed"` // how many checks did
	Warned        int     `json:"warned"`
	Checks        []Check `json:"checks"`
}

// Check is one of them.
type Check struct {
	Name   string  `json:"name"`
	About  string  `json:"about"`  // host, state, agent
	Status string  `json:"status"` // ok, warn, fail
	Found  string  `json:"found"`
	Advice *string `json:"advice"` // what to do; null: nothing
}

// Doctor looks whether the host has what sandboxes need, and whether state and agent
// are in order. It changes nothing, needs neither of them, and says what it could not
// see. What is wrong is no error.
func Doctor(ctx context.Context, o OpenOptions, r DoctorRequest) (*DoctorResult, error) {
	if err := o.fill(); err != nil {
		return nil, errorOf(err)
	}
	o.ReadOnly, o.LockWait = true, NoLockWait
	machine := r.Machine
	if machine == nil {
		machine = checkup.Here{}
	}
	d := &doctor{o: o, root: machine.Root()}
	for _, f := range checkup.Run(ctx, machine, o.StateDir) {
		d.add("host", f.Name, string(f.Status), f.Found, f.Advice)
	}
	d.settings(r.HostConfig)
	d.agent(ctx)
	there := d.dir("state_dir", o.StateDir)
	d.dir("run_dir", o.RunDir)
	d.state(ctx, there)
	if err := ctx.Err(); err != nil {
		return nil, errorOf(err)
	}
	return &d.res, nil
}

type doctor struct {
	o      OpenOptions
	root   bool
	served bool // an agent answers
	res    DoctorResult
}

const (
	fine  = string(checkup.OK)
	warns = string(checkup.Warn)
	fails = string(checkup.Fail)
)

func (d *doctor) add(about, name, status, found, advice string) {
	d.res.FormatVersion = "1"
	switch status {
	case fails:
		d.res.Failed++
	case warns:
		d.res.Warned++
	}
	d.res.Checks = append(d.res.Checks, Check{Name: name, About: about, Status: status, Found: found, Advice: orNil(advice)})
}

// settings also has the settings counted on from then on.
func (d *doctor) settings(file string) {
	settings, diags := config.LoadSettings(file)
	_, err := os.Lstat(file)
	switch {
	case diags.HasErrors():
		first := diags[0]
		d.add("host", "host_config", fails, fmt.Sprintf("%s is not valid: %s: %s", file, first.Summary, first.Detail), "Every command refuses to work until it is; 'pinfold validate' shows all that is wrong.")
		return
	case errors.Is(err, fs.ErrNotExist):
		d.add("host", "host_config", fine, file+" is not there: the defaults count", "")
	default:
		d.add("host", "host_config", fine, file+" is valid", "")
	}
	d.o.Settings = settings
}

// dir looks at one of the directories that are root's alone, and tells whether it is there.
func (d *doctor) dir(name, path string) bool {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.add("state", name, fine, path+" is not there yet: it is made when it is needed", "")
		return false
	case err != nil:
		d.add("state", name, unseenBy(d.root), "cannot be looked at: "+err.Error(), sudo(d.root))
		return false
	case !st.IsDir():
		d.add("state", name, fails, path+" is no directory", "Move it away, or name another with -state-dir and -run-dir.")
		return false
	}
	mode := fmt.Sprintf("%s has mode %04o", path, st.Mode().Perm())
	owner := uint32(0)
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		owner = sys.Uid
	}
	advice := fmt.Sprintf("chown root %s; chmod 0700 %s", path, path)
	switch {
	case owner != 0:
		d.add("state", name, fails, fmt.Sprintf("%s belongs to user %d, who could change what root does", path, owner), advice)
	case st.Mode().Perm()&0o022 != 0:
		d.add("state", name, fails, mode+": others than root could change what root does", advice)
	case st.Mode().Perm()&0o077 != 0:
		d.add("state", name, warns, mode+": others than root can look into it", advice)
	default:
		d.add("state", name, fine, path+" is root's alone", "")
	}
	return true
}

// unseenBy is how it counts that something could not be looked at.
func unseenBy(root bool) string {
	if root {
		return fails
	}
	return warns
}

func sudo(root bool) string {
	if root {
		return ""
	}
	return "Run it with sudo."
}

func (d *doctor) agent(ctx context.Context) {
	c, ok, err := dial(d.o.RunDir)
	if err == nil && !ok {
		d.add("agent", "agent", warns, "none runs in "+d.o.RunDir, "Without one nobody enforces deadlines, idle and restart rules between two commands; start 'pinfold agent', best as a service.")
		return
	}
	var st *ServiceStatus
	if err == nil {
		st, err = c.Status(ctx)
	}
	switch {
	case err != nil:
		d.add("agent", "agent", unseenBy(d.root), err.Error(), sudo(d.root))
	case real(st.StateDir) != real(d.o.StateDir):
		d.add("agent", "agent", fails, fmt.Sprintf("the one in %s (pid %d) serves %s, not %s", d.o.RunDir, st.PID, st.StateDir, d.o.StateDir), "Give -run-dir and -state-dir that belong together.")
	case st.Version != d.o.Version:
		d.served = true
		d.add("agent", "agent", warns, fmt.Sprintf("it runs (pid %d), and is version %s, not %s", st.PID, st.Version, d.o.Version), "Restart it: sandboxes live on.")
	default:
		d.served = true
		d.add("agent", "agent", fine, fmt.Sprintf("it runs (pid %d) and answers", st.PID), "")
	}
}

// state looks at what is recorded, through the agent where one answers.
func (d *doctor) state(ctx context.Context, there bool) {
	if !d.root && !d.served {
		d.add("state", "state", warns, "not looked at: that needs root", sudo(false))
		return
	}
	_, err := os.Lstat(statePath(d.o.StateDir))
	_, what, lerr := bereaved(d.o.StateDir)
	if errors.Is(err, fs.ErrNotExist) && (!there || lerr == nil && what == "") {
		d.add("state", "state", fine, "there is none yet: the first apply makes it", "")
		return
	}
	v, err := Verify(ctx, d.o, "")
	switch {
	case isLocked(err):
		d.add("state", "state", warns, "not looked at: "+err.Error(), "")
		return
	case err != nil:
		d.add("state", "state", fails, err.Error(), "'pinfold state verify' tells more.")
		return
	case !v.Sound:
		d.add("state", "state", fails, v.Path+": "+strings.Join(v.Problems, "; "), strings.TrimSpace(strings.ReplaceAll(v.Advice, "\n", " ")))
		return
	}
	d.add("state", "state", fine, fmt.Sprintf("%s is sound (schema %d, serial %d)", v.Path, v.Schema, v.Serial), "")
	d.key()
	d.recorded(ctx)
}

func (d *doctor) key() {
	path := filepath.Join(d.o.StateDir, seal.FileName)
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.add("state", "seal_key", fine, path+" is not there: it is made when something sensitive is kept", "")
	case err != nil:
		d.add("state", "seal_key", unseenBy(d.root), "cannot be looked at: "+err.Error(), sudo(d.root))
	case st.Mode().Perm()&0o077 != 0:
		d.add("state", "seal_key", fails, fmt.Sprintf("%s has mode %04o: others than root can unseal what is sensitive", path, st.Mode().Perm()), "chmod 0600 "+path)
	default:
		d.add("state", "seal_key", fine, path+" is there, and root's alone", "")
	}
}

// recorded looks for what has no record, and whether the clock fits the records.
func (d *doctor) recorded(ctx context.Context) {
	s, err := Open(ctx, d.o)
	if err != nil {
		d.add("state", "orphans", warns, "not looked at: "+err.Error(), "")
		return
	}
	defer s.Close()
	found, err := s.GC(ctx, GCRequest{DryRun: true})
	n := 0
	if err == nil {
		for _, o := range found.Orphans {
			if o.Action != OrphanKept { // given up on purpose
				n++
			}
		}
	}
	if err != nil {
		d.add("state", "orphans", warns, "not looked at: "+err.Error(), "")
	} else if n > 0 {
		d.add("state", "orphans", warns, fmt.Sprintf("%d things on the host have no record, or records no thing", n), "'pinfold gc -dry-run' names them, and says what to do about each.")
	} else {
		d.add("state", "orphans", fine, "everything on the host is on record", "")
	}
	last, err := s.Events(ctx, EventsRequest{Last: 1})
	if err != nil {
		d.add("state", "clock", warns, "not looked at: "+err.Error(), "")
		return
	}
	d.clock(last.Events, time.Now())
}

// clockSlack is how far clocks are set back in order.
const clockSlack = time.Minute

// clock compares now with the last change.
func (d *doctor) clock(last []Event, now time.Time) {
	if len(last) > 0 {
		if at := last[len(last)-1].At; now.Before(at.Add(-clockSlack)) {
			d.add("state", "clock", warns, fmt.Sprintf("it is %s by the clock, and the state was changed at %s", now.UTC().Format(time.RFC3339), at.UTC().Format(time.RFC3339)), "Set the clock: deadlines go by it.")
			return
		}
	}
	d.add("state", "clock", fine, "it is later than the last change of the state", "")
}

func isLocked(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == Locked
}
