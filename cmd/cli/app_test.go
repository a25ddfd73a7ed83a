package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v3"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// engine is a Service that keeps what it was asked and answers from its fields.
type engine struct {
	opened  reconcile.OpenOptions
	plan    *reconcile.PlanRequest
	apply   *reconcile.ApplyRequest
	act     *reconcile.ActRequest
	renew   *reconcile.RenewRequest
	exec    *reconcile.ExecRequest
	asked   []string // addresses of list, describe, logs
	opens   int
	closed  int
	changes []plan.Change
	list    []reconcile.SandboxView
	lists   int
	become  map[int][]reconcile.SandboxView // list from the Nth look on
	outputs []config.Output
	err     error
	session session
	result  *reconcile.ApplyResult

	stats    []reconcile.StatsResult // one a look
	touched  []string
	spec     config.Sandbox // of all that are described
	openings []bool         // whether each was for looking only
	attached string
	live     *live // what attach gives, if anything
	events   []reconcile.EventsRequest
	happened func(reconcile.EventsRequest) (*reconcile.EventsResult, error)
	copies   []string // "out ADDRESS PATH" and "in ADDRESS PATH"
	copyOut  func(path string, w io.Writer) error
	copyIn   func(path string, r io.Reader) error
	log      func() (*os.File, error)

	verified  *reconcile.VerifyResult
	backups   []reconcile.BackupRequest
	backup    func(reconcile.BackupRequest) (*reconcile.BackupResult, error)
	gcs       []reconcile.GCRequest
	collected *reconcile.GCResult
	recorded  *reconcile.RecordsResult
	drift     *reconcile.DriftRequest
	differs   []plan.Drift
}

type session struct {
	code    int
	err     error
	signals chan int
}

func (s session) Console() *os.File { return nil }
func (s session) Signal(n int) error {
	s.signals <- n
	return nil
}
func (s session) Wait() (int, error) { return s.code, s.err }

func (e *engine) planned() reconcile.PlanResult {
	return reconcile.PlanResult{Plan: &plan.Plan{Changes: e.changes}, Lineage: "l", Serial: 3, Digest: "d"}
}

func (e *engine) Plan(_ context.Context, r reconcile.PlanRequest) (*reconcile.PlanResult, error) {
	e.plan = &r
	p := e.planned()
	return &p, e.err
}

func (e *engine) Apply(_ context.Context, r reconcile.ApplyRequest, confirm func(*reconcile.PlanResult) (bool, error), progress func(reconcile.Progress)) (*reconcile.ApplyResult, error) {
	e.apply = &r
	if e.result != nil {
		return e.result, e.err
	}
	if e.err != nil {
		return nil, e.err
	}
	res := &reconcile.ApplyResult{PlanResult: e.planned()}
	if (!r.AutoApprove || r.Show) && r.Saved == nil {
		yes, err := confirm(&res.PlanResult)
		if err != nil || !yes {
			res.Declined = !yes
			return res, err
		}
	}
	for _, c := range e.changes {
		progress(reconcile.Progress{Address: c.Address, Action: c.Action, State: "started"})
		progress(reconcile.Progress{Address: c.Address, Action: c.Action, State: "done"})
		res.Applied.Add++
	}
	return res, nil
}

func (e *engine) List(_ context.Context, addresses ...string) (*reconcile.ListResult, error) {
	e.asked = append(e.asked, addresses...)
	e.lists++
	all := e.list
	for from, then := range e.become {
		if e.lists >= from {
			all = then
		}
	}
	res := &reconcile.ListResult{}
	for _, x := range all {
		if len(addresses) == 0 {
			res.Sandboxes = append(res.Sandboxes, x)
		}
		for _, a := range addresses {
			if x.Address == a || x.Address == "sandbox."+a {
				res.Sandboxes = append(res.Sandboxes, x)
			}
		}
	}
	if len(res.Sandboxes) < len(addresses) {
		return nil, &reconcile.Error{Kind: reconcile.NotFound, Message: "sandbox: not found: " + addresses[0]}
	}
	return res, e.err
}

func (e *engine) Stats(_ context.Context, addresses ...string) (*reconcile.StatsResult, error) {
	e.asked = append(e.asked, addresses...)
	if e.err != nil {
		return nil, e.err
	}
	next := e.stats[0]
	if len(e.stats) > 1 {
		e.stats = e.stats[1:]
	}
	return &next, nil
}

func (e *engine) Describe(_ context.Context, address string) (*reconcile.Description, error) {
	e.asked = append(e.asked, address)
	for _, x := range e.list {
		if x.Address == address || x.Address == "sandbox."+address {
			return &reconcile.Description{Sandbox: x, Spec: e.spec}, nil
		}
	}
	return nil, &reconcile.Error{Kind: reconcile.NotFound, Message: "sandbox: not found: " + address}
}

func (e *engine) Act(_ context.Context, r reconcile.ActRequest) (*reconcile.ActResult, error) {
	e.act = &r
	return &reconcile.ActResult{Sandbox: reconcile.SandboxView{Address: r.Address, Phase: plan.Running}}, e.err
}

func (e *engine) Renew(_ context.Context, r reconcile.RenewRequest) (*reconcile.ActResult, error) {
	e.renew = &r
	return &reconcile.ActResult{Sandbox: reconcile.SandboxView{Address: r.Address, Phase: plan.Running}}, e.err
}

func (e *engine) Exec(_ context.Context, r reconcile.ExecRequest) (reconcile.ExecSession, error) {
	e.exec = &r
	return e.session, e.err
}

func (e *engine) OpenLog(_ context.Context, address string) (*os.File, error) {
	e.asked = append(e.asked, address)
	if e.log != nil {
		return e.log()
	}
	return nil, e.err
}

func (e *engine) Attach(_ context.Context, address string) (reconcile.ExecSession, error) {
	e.attached = address
	if e.live != nil {
		return e.live, e.err
	}
	return e.session, e.err
}

func (e *engine) CopyOut(_ context.Context, r reconcile.CopyRequest) error {
	e.copies = append(e.copies, "out "+r.Address+" "+r.Path)
	if e.copyOut == nil {
		return e.err
	}
	return e.copyOut(r.Path, r.Archive)
}

func (e *engine) CopyIn(_ context.Context, r reconcile.CopyRequest) error {
	e.copies = append(e.copies, "in "+r.Address+" "+r.Path)
	if e.copyIn == nil {
		return e.err
	}
	return e.copyIn(r.Path, r.Archive)
}

func (e *engine) Touch(_ context.Context, address string) (*reconcile.ActResult, error) {
	e.touched = append(e.touched, address)
	return &reconcile.ActResult{Sandbox: reconcile.SandboxView{Address: address, Phase: plan.Running}}, e.err
}

func (e *engine) Events(_ context.Context, r reconcile.EventsRequest) (*reconcile.EventsResult, error) {
	e.events = append(e.events, r)
	if e.happened == nil {
		return &reconcile.EventsResult{FormatVersion: "1"}, e.err
	}
	return e.happened(r)
}

func (e *engine) Verify(context.Context) (*reconcile.VerifyResult, error) {
	return e.verified, e.err
}

func (e *engine) Backup(_ context.Context, r reconcile.BackupRequest) (*reconcile.BackupResult, error) {
	e.backups = append(e.backups, r)
	if e.backup == nil {
		return &reconcile.BackupResult{FormatVersion: "1", Path: r.Path}, e.err
	}
	return e.backup(r)
}

func (e *engine) GC(_ context.Context, r reconcile.GCRequest) (*reconcile.GCResult, error) {
	e.gcs = append(e.gcs, r)
	return e.collected, e.err
}

func (e *engine) StateMove(_ context.Context, r reconcile.StateMoveRequest) (*reconcile.StateMoveResult, error) {
	e.asked = append(e.asked, fmt.Sprintf("mv %s %s dry=%t", r.From, r.To, r.DryRun))
	return &reconcile.StateMoveResult{DryRun: r.DryRun, Moved: []reconcile.Readdress{{Kind: "sandbox", From: r.From, To: r.To, ID: "0123456789ab"}}, Serial: 7}, e.err
}

func (e *engine) StateRemove(_ context.Context, r reconcile.StateRemoveRequest) (*reconcile.StateRemoveResult, error) {
	e.asked = append(e.asked, fmt.Sprintf("rm %s dry=%t", strings.Join(r.Addresses, " "), r.DryRun))
	res := &reconcile.StateRemoveResult{DryRun: r.DryRun, Serial: 7}
	for _, a := range r.Addresses {
		res.Removed = append(res.Removed, reconcile.Removed{Kind: "sandbox", Address: a, ID: "0123456789ab"})
	}
	return res, e.err
}

func (e *engine) Output(_ context.Context, name string) (*config.Output, error) {
	for i := range e.outputs {
		if e.outputs[i].Name == name {
			return &e.outputs[i], e.err
		}
	}
	return nil, &reconcile.Error{Kind: reconcile.NotFound, Message: "there is no output " + name}
}
func (e *engine) Outputs(context.Context) ([]config.Output, error) { return e.outputs, e.err }
func (e *engine) Status(context.Context) (*reconcile.ServiceStatus, error) {
	return &reconcile.ServiceStatus{}, e.err
}
func (e *engine) Close() error { e.closed++; return nil }

// ran is what became of a command line.
type ran struct {
	code     int
	out, err string
	agent    *reconcile.AgentOptions
}

// invoke runs a command line as root (euid 0) over e, in a directory with a
// small configuration.
func invoke(t *testing.T, e *engine, args ...string) ran { return invokeAs(t, e, 0, args...) }

func invokeAs(t *testing.T, e *engine, euid int, args ...string) ran {
	t.Helper()
	return invokeBy(t, e, euid, nil, args...)
}

// invokeWith gives the command this standard input.
func invokeWith(t *testing.T, e *engine, in *os.File, args ...string) ran {
	t.Helper()
	return invokeBy(t, e, 0, in, args...)
}

func invokeBy(t *testing.T, e *engine, euid int, in *os.File, args ...string) ran {
	t.Helper()
	file := func(name string) *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	var r ran
	app := &App{
		In: file("in"), Out: file("out"), Err: file("err"), Euid: euid,
		Environ: []string{"PINFOLD_VAR_x=1", "TERM=xterm"},
		Now:     func() time.Time { return time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC) },
		Exit:    func(code int) { t.Errorf("exit at once with %d", code) },
		Open: func(_ context.Context, o reconcile.OpenOptions) (reconcile.Service, error) {
			e.opened = o
			e.openings = append(e.openings, o.ReadOnly)
			e.opens++
			return e, nil
		},
		Agent: func(_ context.Context, o reconcile.AgentOptions) error {
			r.agent = &o
			if !isKind(e.err, reconcile.Locked) {
				o.Ready()
			}
			return e.err
		},
	}
	app.Verify = func(_ context.Context, o reconcile.OpenOptions, file string) (*reconcile.VerifyResult, error) {
		e.opened = o
		e.asked = append(e.asked, "verify "+file)
		return e.verified, e.err
	}
	app.Restore = func(_ context.Context, o reconcile.OpenOptions, r reconcile.RestoreRequest) (*reconcile.RestoreResult, error) {
		e.opened = o
		e.asked = append(e.asked, fmt.Sprintf("restore %s force=%t dry=%t", r.File, r.Force, r.DryRun))
		at := time.Now().Add(-3 * time.Hour)
		return &reconcile.RestoreResult{FormatVersion: "1", Backup: r.File, BackupAt: &at, Unrecorded: []string{"0123456789ab", "ba9876543210"}}, e.err
	}
	app.Rebuild = func(_ context.Context, o reconcile.OpenOptions, r reconcile.RebuildRequest) (*reconcile.RebuildResult, error) {
		e.opened = o
		e.asked = append(e.asked, fmt.Sprintf("rebuild dry=%t", r.DryRun))
		return &reconcile.RebuildResult{Lineage: "l", Records: []reconcile.Rebuilt{{Kind: "sandbox", Address: "sandbox.py"}}, Unknown: []string{"its labels"}}, e.err
	}
	app.Push = func(_ context.Context, o reconcile.OpenOptions, r reconcile.PushRequest) (*reconcile.PushResult, error) {
		e.opened = o
		e.asked = append(e.asked, fmt.Sprintf("push %s %s force=%t dry=%t", r.Name, r.Document.Lineage, r.Force, r.DryRun))
		return &reconcile.PushResult{FormatVersion: "1", Path: "/s/state.db", Lineage: r.Document.Lineage}, e.err
	}
	if in != nil {
		app.In = in
	}
	run := []string{"pinfold", "-host-config", filepath.Join(t.TempDir(), "none.hcl")}
	r.code = app.Run(append(run, args...))
	read := func(f *os.File) string {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	r.out, r.err = read(app.Out), read(app.Err)
	if e.opens != e.closed {
		t.Errorf("%v: opened %d times, closed %d times", args, e.opens, e.closed)
	}
	return r
}

// configured makes a directory with a configuration and works there.
func configured(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	text := "variable \"x\" {\n  type    = string\n  default = \"0\"\n}\n\nimage \"base\" {\n  source = \"host\"\n}\n\nsandbox \"py\" {\n  image   = image.base\n  command = [\"sleep\", var.x]\n}\n"
	if err := os.WriteFile("main.hcl", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("a.pfvars", []byte("x = \"from file\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func duration(t *testing.T, text string) *config.Duration {
	t.Helper()
	d, err := config.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return &d
}

func TestPlanFlags(t *testing.T) {
	configured(t)
	for _, c := range []struct {
		args []string
		want plan.Options
	}{
		{[]string{}, plan.Options{}},
		{[]string{"-destroy"}, plan.Options{Destroy: true}},
		{[]string{"--target", "sandbox.py", "-target=sandbox.w[a]"}, plan.Options{Targets: []string{"sandbox.py", `sandbox.w["a"]`}}},
		{[]string{"-exclude", "network.n", "-replace", `sandbox.w["b,c"]`}, plan.Options{Excludes: []string{"network.n"}, Replace: []string{`sandbox.w["b,c"]`}}},
		{[]string{"-refresh=false"}, plan.Options{NoRefresh: true}},
		{[]string{"-refresh=true", "-refresh-only"}, plan.Options{RefreshOnly: true}},
		{[]string{"--release-holds", "-no-start"}, plan.Options{ReleaseHolds: true, NoStart: true}},
	} {
		e := &engine{}
		r := invoke(t, e, append([]string{"plan"}, c.args...)...)
		if r.code != 0 || e.plan == nil {
			t.Errorf("plan %v: exit %d\n%s", c.args, r.code, r.err)
			continue
		}
		if diff := cmp.Diff(c.want, e.plan.Options); diff != "" {
			t.Errorf("plan %v (-want +got):\n%s", c.args, diff)
		}
		if e.plan.LockWait != 10*time.Second || e.plan.TakeOver {
			t.Errorf("plan %v: lock wait %v, take over %v", c.args, e.plan.LockWait, e.plan.TakeOver)
		}
	}
}

func TestGlobalFlagsStandAnywhere(t *testing.T) {
	configured(t)
	for _, args := range [][]string{
		{"-state-dir=/s", "-run-dir", "/r", "list", "-lock-timeout", "1m"},
		{"list", "--state-dir", "/s", "-run-dir=/r", "-lock-timeout=60s"},
	} {
		e := &engine{}
		if r := invoke(t, e, args...); r.code != 0 {
			t.Errorf("%v: exit %d\n%s", args, r.code, r.err)
		}
		if e.opened.StateDir != "/s" || e.opened.RunDir != "/r" || e.opened.LockWait != time.Minute || !e.opened.ReadOnly || e.opened.Verb != "list" {
			t.Errorf("%v: opened with %+v", args, e.opened)
		}
	}
	t.Setenv("PINFOLD_STATE_DIR", "/from/env")
	e := &engine{}
	invoke(t, e, "list")
	if e.opened.StateDir != "/from/env" || e.opened.RunDir != defaultRunDir {
		t.Errorf("opened with %+v", e.opened)
	}
	e = &engine{}
	invoke(t, e, "list", "-state-dir", "/flag")
	if e.opened.StateDir != "/flag" {
		t.Errorf("the flag does not win over the environment: %q", e.opened.StateDir)
	}
}

// -var and -var-file count in the order given, as in Terraform.
func TestVariables(t *testing.T) {
	configured(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "1"}, // PINFOLD_VAR_x
		{[]string{"-var", "x=a,b"}, "a,b"},
		{[]string{"-var", "x=a", "-var-file=a.pfvars"}, `"from file"`},
		{[]string{"-var-file", "a.pfvars", "-var=x=c=d"}, "c=d"},
	} {
		e := &engine{}
		r := invoke(t, e, append([]string{"plan"}, c.args...)...)
		if r.code != 0 {
			t.Errorf("%v: exit %d\n%s", c.args, r.code, r.err)
			continue
		}
		if got := e.plan.Source.Variables["x"].Text; got != c.want {
			t.Errorf("%v: x = %s, want %s", c.args, got, c.want)
		}
	}
}

func TestApplyFlags(t *testing.T) {
	configured(t)
	e := &engine{changes: []plan.Change{{Address: "sandbox.py", Kind: "sandbox", Action: plan.ActCreate}}}
	r := invoke(t, e, "apply", "-auto-approve", "-parallelism", "3", "-override", "-take-over", "-no-start")
	if r.code != 0 || e.apply == nil {
		t.Fatalf("exit %d\n%s", r.code, r.err)
	}
	if a := e.apply; a.Parallelism != 3 || !a.Override || !a.TakeOver || !a.Options.NoStart || a.Saved != nil {
		t.Errorf("request %+v", a)
	}
	if e.opened.ReadOnly || e.opened.Verb != "apply" {
		t.Errorf("opened with %+v", e.opened)
	}
	for _, want := range []string{"# sandbox.py will be created", "sandbox.py: Creating...", "Apply complete! Resources: 1 added"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("output lacks %q:\n%s", want, r.out)
		}
	}
	if strings.Contains(r.out, "\x1b") {
		t.Errorf("colour in a file:\n%q", r.out)
	}
	if r := invoke(t, &engine{}, "apply", "-auto-approve", "-parallelism=0"); r.code != 1 || !strings.Contains(r.err, "less than 1") {
		t.Errorf("-parallelism=0: exit %d\n%s", r.code, r.err)
	}
}

func TestApplyNeedsApproval(t *testing.T) {
	configured(t)
	for _, args := range [][]string{{"apply"}, {"apply", "-input=false"}, {"destroy"}, {"apply", "-json"}} {
		e := &engine{changes: []plan.Change{{Address: "sandbox.py", Action: plan.ActCreate}}}
		r := invoke(t, e, args...)
		if r.code != 1 || e.apply != nil || !strings.Contains(r.err+r.out, "-auto-approve") {
			t.Errorf("%v: exit %d, asked the engine: %v\n%s%s", args, r.code, e.apply != nil, r.out, r.err)
		}
	}
}

func TestSavedPlan(t *testing.T) {
	configured(t)
	e := &engine{changes: []plan.Change{{Address: "sandbox.py", Kind: "sandbox", Action: plan.ActCreate}}}
	if r := invoke(t, e, "plan", "-replace", "sandbox.py", "-out", "p"); r.code != 0 || !strings.Contains(r.out, "pinfold apply p") {
		t.Fatalf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	if info, err := os.Stat("p"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("plan file: %v, %v", info, err)
	}
	e = &engine{changes: e.changes}
	r := invoke(t, e, "apply", "p")
	if r.code != 0 || e.apply == nil || e.apply.Saved == nil {
		t.Fatalf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	s := e.apply.Saved
	if s.FormatVersion != reconcile.PlanFileVersion || s.Result.Serial != 3 || s.Result.Lineage != "l" {
		t.Errorf("saved %+v", s)
	}
	if !strings.Contains(r.out, "sandbox.py: Creating...") || !strings.Contains(r.out, "Apply complete!") {
		t.Errorf("output:\n%s", r.out)
	}
	if r := invoke(t, &engine{}, "show", "p"); r.code != 0 || !strings.Contains(r.out, "# sandbox.py will be created") {
		t.Errorf("show: exit %d\n%s%s", r.code, r.out, r.err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"apply", "-target", "sandbox.py", "p"}, "-target cannot change a saved plan"},
		{[]string{"apply", "p", "-var", "x=1"}, "-var cannot change a saved plan"},
		{[]string{"apply", "main.hcl"}, "main.hcl is not a saved plan"},
		{[]string{"apply", "."}, "is a directory"},
		{[]string{"apply", "nope"}, "cannot read the saved plan"},
		{[]string{"apply", "p", "q"}, `apply does not take the argument "q"`},
	} {
		e := &engine{}
		if r := invoke(t, e, c.args...); r.code != 1 || !strings.Contains(r.err, c.want) || e.apply != nil {
			t.Errorf("%v: exit %d\n%s", c.args, r.code, r.err)
		}
	}
}

func TestDetailedExitCode(t *testing.T) {
	configured(t)
	change := []plan.Change{{Address: "sandbox.py", Action: plan.ActUpdate}}
	noop := []plan.Change{{Address: "sandbox.py", Action: plan.ActNoop}}
	for _, c := range []struct {
		changes []plan.Change
		args    []string
		want    int
	}{
		{nil, []string{"-detailed-exitcode"}, 0},
		{noop, []string{"-detailed-exitcode"}, 0},
		{change, []string{"-detailed-exitcode"}, 2},
		{change, []string{"-detailed-exitcode", "-json"}, 2},
		{change, nil, 0},
	} {
		if r := invoke(t, &engine{changes: c.changes}, append([]string{"plan"}, c.args...)...); r.code != c.want {
			t.Errorf("%v %v: exit %d, want %d\n%s", c.changes, c.args, r.code, c.want, r.err)
		}
	}
}

func TestVerbs(t *testing.T) {
	for _, c := range []struct {
		args []string
		want reconcile.ActRequest
	}{
		{[]string{"start", "py"}, reconcile.ActRequest{Verb: "start", Address: "py"}},
		{[]string{"stop", "sandbox.py", "-reason", "too loud"}, reconcile.ActRequest{Verb: "stop", Address: "sandbox.py", Reason: "too loud"}},
		{[]string{"pause", "--reason=lunch", "w[a]"}, reconcile.ActRequest{Verb: "pause", Address: `w["a"]`, Reason: "lunch"}},
		{[]string{"resume", "-timeout", "1d2h", "py"}, reconcile.ActRequest{Verb: "resume", Address: "py", Timeout: duration(t, "26h")}},
		{[]string{"release", "sandbox.w[0]"}, reconcile.ActRequest{Verb: "release", Address: "sandbox.w[0]"}},
		{[]string{"kill", "py"}, reconcile.ActRequest{Verb: "kill", Address: "py", Signal: 9}},
		{[]string{"kill", "-s", "HUP", "w[a]"}, reconcile.ActRequest{Verb: "kill", Address: `w["a"]`, Signal: 1}},
		{[]string{"kill", "-signal=15", "-reason", "too loud", "py"}, reconcile.ActRequest{Verb: "kill", Address: "py", Signal: 15, Reason: "too loud"}},
	} {
		e := &engine{}
		c.want.LockWait = 10 * time.Second
		if r := invoke(t, e, c.args...); r.code != 0 || e.act == nil {
			t.Errorf("%v: exit %d\n%s", c.args, r.code, r.err)
			continue
		}
		if diff := cmp.Diff(c.want, *e.act); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.args, diff)
		}
		if e.opened.ReadOnly {
			t.Errorf("%v opened for looking only", c.args)
		}
	}
}

func TestRenew(t *testing.T) {
	until := time.Date(2026, 12, 24, 18, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		args []string
		want reconcile.RenewRequest
	}{
		{[]string{"-until", "2026-12-24T18:00:00Z"}, reconcile.RenewRequest{Until: &until}},
		{[]string{"-at-least=2h"}, reconcile.RenewRequest{AtLeast: duration(t, "2h")}},
		{[]string{"--in", "1w"}, reconcile.RenewRequest{In: duration(t, "168h")}},
	} {
		e := &engine{}
		c.want.Address = "py"
		if r := invoke(t, e, append([]string{"renew", "py"}, c.args...)...); r.code != 0 || e.renew == nil {
			t.Errorf("%v: exit %d\n%s", c.args, r.code, r.err)
		} else if diff := cmp.Diff(c.want, *e.renew); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.args, diff)
		}
	}
	for _, args := range [][]string{{"py"}, {"py", "-in", "1h", "-at-least", "1h"}, {"py", "-in", "-1h"}, {"py", "-until", "tomorrow"}, {"py", "-in", "5"}} {
		e := &engine{}
		if r := invoke(t, e, append([]string{"renew"}, args...)...); r.code != 1 || e.renew != nil {
			t.Errorf("renew %v: exit %d, %+v", args, r.code, e.renew)
		}
	}
}

func TestExec(t *testing.T) {
	for _, c := range []struct {
		args  []string
		want  reconcile.ExecRequest
		stdin bool
	}{
		{[]string{"py", "ls", "-l"}, reconcile.ExecRequest{Address: "py", Args: []string{"ls", "-l"}}, false},
		{[]string{"sandbox.py", "--", "ls", "--", "-json"}, reconcile.ExecRequest{Address: "sandbox.py", Args: []string{"ls", "--", "-json"}}, false},
		{[]string{"-i", "-e", "A=1,2", "-e=B=", "--env", "TERM", "py", "cat"}, reconcile.ExecRequest{Address: "py", Args: []string{"cat"}, Env: map[string]string{"A": "1,2", "B": "", "TERM": "xterm"}}, true},
		{[]string{"-w", "/srv", "-u", "1000:1000", "py", "sh", "-c", "exit 3"}, reconcile.ExecRequest{Address: "py", Args: []string{"sh", "-c", "exit 3"}, WorkingDir: "/srv", User: "1000:1000"}, false},
		{[]string{"-t", "py", "help"}, reconcile.ExecRequest{Address: "py", Args: []string{"help"}, TTY: true, Env: map[string]string{"TERM": "xterm"}}, false},
		{[]string{"py", "pinfold", "-help"}, reconcile.ExecRequest{Address: "py", Args: []string{"pinfold", "-help"}}, false},
	} {
		e := &engine{}
		r := invoke(t, e, append([]string{"exec"}, c.args...)...)
		if e.exec == nil {
			t.Errorf("exec %v: exit %d\n%s", c.args, r.code, r.err)
			continue
		}
		if e.opened.ReadOnly {
			t.Errorf("exec %v cannot wake the sandbox", c.args)
		}
		if (e.exec.Stdin != nil) != c.stdin {
			t.Errorf("exec %v: standard input %v", c.args, e.exec.Stdin)
		}
		if !c.want.TTY && (e.exec.Stdout == nil || e.exec.Stderr == nil) {
			t.Errorf("exec %v: no output", c.args)
		}
		got := *e.exec
		got.Stdin, got.Stdout, got.Stderr = nil, nil, nil
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("exec %v (-want +got):\n%s", c.args, diff)
		}
	}
	if r := invoke(t, &engine{session: session{code: 42}}, "exec", "py", "false"); r.code != 42 || r.err != "" {
		t.Errorf("exit %d, want the command's 42\n%s", r.code, r.err)
	}
	if r := invoke(t, &engine{err: &reconcile.Error{Kind: reconcile.Invalid, Message: "no such command", Code: 127}}, "exec", "py", "nope"); r.code != 127 || !strings.Contains(r.err, "no such command") {
		t.Errorf("exit %d, want 127\n%s", r.code, r.err)
	}
	if r := invoke(t, &engine{}, "exec", "-it", "py", "sh"); r.code != 1 || !strings.Contains(r.err, "standard input is none") {
		t.Errorf("-it without a terminal: exit %d\n%s", r.code, r.err)
	}
	if r := invoke(t, &engine{}, "exec", "py"); r.code != 1 || !strings.Contains(r.err, "a command") {
		t.Errorf("without a command: exit %d\n%s", r.code, r.err)
	}
}

func TestSandboxThatIsNotThere(t *testing.T) {
	there := []reconcile.SandboxView{{Address: "sandbox.python"}, {Address: `sandbox.w["a"]`}}
	for _, c := range []struct{ text, want string }{
		{"sandbox.pyton", "did you mean sandbox.python?"},
		{"w", `did you mean sandbox.w["a"]?`},
		{"entirely_else", "'pinfold list' shows those that exist"},
		{"network.x", "network.x is not a sandbox"},
		{"a b", "is not a sandbox's address"},
	} {
		r := invoke(t, &engine{list: there}, "describe", c.text)
		if r.code != 1 || !strings.Contains(r.err, c.want) {
			t.Errorf("describe %s: exit %d, want %q\n%s", c.text, r.code, c.want, r.err)
		}
	}
	if r := invoke(t, &engine{}, "describe", "py"); !strings.Contains(r.err, "no sandbox here at all") {
		t.Errorf("with none at all:\n%s", r.err)
	}
}

func TestWait(t *testing.T) {
	with := func(status string, phase plan.Phase) []reconcile.SandboxView {
		return []reconcile.SandboxView{{Address: "sandbox.py", Phase: phase, Conditions: []plan.Condition{{Type: "Ready", Status: status, Reason: "Why"}}}}
	}
	e := &engine{list: with("False", plan.Created), become: map[int][]reconcile.SandboxView{3: with("True", plan.Running)}}
	if r := invoke(t, e, "wait", "py"); r.code != 0 || r.out != "sandbox.py: Ready=True\n" || e.lists != 3 {
		t.Errorf("exit %d after %d looks\n%s%s", r.code, e.lists, r.out, r.err)
	}
	if e.opens != 3 {
		t.Errorf("opened %d times for 3 looks", e.opens)
	}
	r := invoke(t, &engine{list: with("False", plan.Paused)}, "wait", "-for=ready", "-timeout", "1ms", "sandbox.py")
	if r.code != 1 || !strings.Contains(r.err, "waited 1ms for Ready=True of sandbox.py") || !strings.Contains(r.err, "Ready=False (Why)") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	if r := invoke(t, &engine{list: with("False", plan.Stopped)}, "wait", "-for=phase=stopped", "py"); r.code != 0 {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	if r := invoke(t, &engine{}, "wait", "-for=phase=destroyed", "py"); r.code != 0 {
		t.Errorf("destroyed: exit %d\n%s", r.code, r.err)
	}
	if r := invoke(t, &engine{}, "wait", "py"); r.code != 1 || !strings.Contains(r.err, "not found") {
		t.Errorf("unknown: exit %d\n%s", r.code, r.err)
	}
	for _, goal := range []string{"Redy", "Ready=Maybe", "phase=gone", ""} {
		if r := invoke(t, &engine{}, "wait", "-for="+goal, "py"); r.code != 1 || !strings.Contains(r.err, "-for") {
			t.Errorf("-for=%s: exit %d\n%s", goal, r.code, r.err)
		}
	}
}

func TestMistakesInTheCommandLine(t *testing.T) {
	configured(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"plna"}, "did you mean plan?"},
		{[]string{"lst"}, "did you mean list?"},
		{[]string{"frobnicate"}, `pinfold has no command "frobnicate"`},
		{[]string{"frobnicate"}, "Run 'pinfold -help' for the list of commands."},
		{[]string{"stop", "a", "b"}, "it takes one sandbox at a time"},
		{[]string{"renew", "2h", "py"}, "did you mean -at-least 2h or -in 2h?"},
		{[]string{"renew", "py", "2h"}, "did you mean -at-least 2h or -in 2h?"},
		{[]string{"plan", "-detailed-exitcod"}, "did you mean -detailed-exitcode?"},
		{[]string{"plan", "-state-dri=x"}, "did you mean -state-dir?"},
		{[]string{"plan", "-chdir=x"}, "it stands before the command: pinfold -chdir=DIR plan"},
		{[]string{"plan", "-chdir", "x"}, "it stands before the command: pinfold -chdir=DIR plan"},
		{[]string{"plan", "-out"}, "the flag -out needs a value"},
		{[]string{"plan", "extra"}, `plan does not take the argument "extra"`},
		{[]string{"plan", "-target", "nonsense"}, `-target: "nonsense" is not an address; write TYPE.NAME`},
		{[]string{"plan", "-target", "py"}, `-target: "py" is not an address; did you mean sandbox.py?`},
		{[]string{"apply", "-auto-approve", "-exclude", "bas"}, `-exclude: "bas" is not an address; did you mean image.base?`},
		{[]string{"plan", "-replace", "a b"}, "is not an address"},
		{[]string{"plan", "-destroy", "-refresh-only"}, "exclude each other"},
		{[]string{"plan", "-lock-timeout", "10"}, "is not a duration"},
		{[]string{"plan", "-var", "novalue"}, "is not NAME=VALUE"},
		{[]string{"agent", "-var", "x=1"}, "go with -config"},
		{[]string{"logs", "-tail", "many", "py"}, "is not a number of lines"},
		{[]string{"output", "-raw"}, "-raw needs the name"},
		{[]string{"events", "-type", "expird"}, "did you mean expired?"},
		{[]string{"events", "-since", "yesterday"}, "neither an RFC 3339 instant"},
		{[]string{"events", "-last", "few"}, "is not a number of events"},
		{[]string{"events", "a b"}, "is not a sandbox's address"},
		{[]string{"touch"}, "touch needs an argument"},
		{[]string{"top", "-sort", "mem"}, `"mem" is none of name, cpu, memory, pids`},
		{[]string{"top", "-interval", "1ms"}, "too short: at least 100ms"},
		{[]string{"kill"}, "kill needs an argument"},
		{[]string{"kill", "-s", "TREM", "py"}, `"TREM" is not a signal`},
		{[]string{"kill", "-9", "py"}, "kill has no flag -9; write -s 9"},
		{[]string{"kill", "-HUP", "py"}, "kill has no flag -HUP; write -s HUP"},
		{[]string{"cp", "a", "b"}, "cp needs a sandbox on one side"},
		{[]string{"cp", "py:/a", "sky:/b"}, "pinfold cp py:/a - | pinfold cp - sky:/b does"},
		{[]string{"cp", "py:", "."}, "names no path in the sandbox"},
		{[]string{"cp", "", "py:/"}, "a path of cp is empty"},
		{[]string{"cp", "py:/a"}, "cp needs an argument"},
		{[]string{"cp", "no-such-file", "py:/"}, "cannot copy no-such-file: no such file"},
		{[]string{"completion", "bsh"}, "did you mean bash?"},
		{[]string{"help", "plna"}, "did you mean plan?"},
		{[]string{"describe"}, "describe needs an argument"},
		{[]string{"-bogus", "plan"}, "pinfold has no flag -bogus"},
	} {
		e := &engine{}
		r := invoke(t, e, c.args...)
		if r.code != 1 || !strings.Contains(r.err, c.want) || r.out != "" || e.opens != 0 {
			t.Errorf("%v: exit %d, opened %d times, want %q\n%s%s", c.args, r.code, e.opens, c.want, r.out, r.err)
		}
	}
}

// A sandbox in a module has a short name, too.
func TestShortNamesInModules(t *testing.T) {
	t.Chdir(t.TempDir())
	sandbox := "image \"base\" {\n  source = \"host\"\n}\n\nsandbox \"runner\" {\n  image = image.base\n  command = [\"sleep\"]\n}\n"
	if err := os.Mkdir("ci", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"main.hcl": "module \"ci\" {\n  source = \"./ci\"\n}\n", "ci/main.hcl": sandbox} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if r := invoke(t, &engine{}, "show", "-effective", "runner"); r.code != 0 || !strings.Contains(r.out, "# module.ci.sandbox.runner") {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	if err := os.WriteFile("main.hcl", []byte("module \"ci\" {\n  for_each = toset([\"a\", \"b\"])\n  source = \"./ci\"\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	want := `"runner" is ambiguous: module.ci["a"].sandbox.runner, module.ci["b"].sandbox.runner`
	if r := invoke(t, &engine{}, "show", "-effective", "runner"); r.code != 1 || !strings.Contains(r.err, want) {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	// The engine knows which sandboxes there are.
	e := &engine{happened: func(reconcile.EventsRequest) (*reconcile.EventsResult, error) {
		return &reconcile.EventsResult{FormatVersion: "1", Events: []reconcile.Event{{Address: "module.ci.sandbox.runner", UID: "u", Type: "create"}}}, nil
	}}
	for _, args := range [][]string{{"history", "runner"}, {"events", "runner"}} {
		if r := invoke(t, e, args...); r.code != 0 || e.events[len(e.events)-1].Address != "runner" || !strings.Contains(r.out, "module.ci.sandbox.runner") {
			t.Errorf("%q: exit %d, asked %+v\n%s%s", args, r.code, e.events, r.out, r.err)
		}
	}
}

// Of what is no more, but has a history, every command says how to see that.
func TestNotFoundNamesTheHistory(t *testing.T) {
	configured(t)
	for _, args := range [][]string{{"describe", "w[a]"}, {"list", "sandbox.w[a]"}} {
		e := &engine{happened: func(r reconcile.EventsRequest) (*reconcile.EventsResult, error) {
			res := &reconcile.EventsResult{FormatVersion: "1"}
			if r.Address == `sandbox.w["a"]` {
				res.Events = []reconcile.Event{{Address: r.Address, Type: "destroyed"}}
			}
			return res, nil
		}}
		want := `'pinfold history "sandbox.w[\"a\"]"' tells what became of it.`
		if r := invoke(t, e, args...); r.code != 1 || !strings.Contains(r.err, "not found") || !strings.Contains(r.err, want) {
			t.Errorf("%v: exit %d, want %q\n%s", args, r.code, want, r.err)
		}
		if r := invoke(t, e, "describe", "v"); r.code != 1 || strings.Contains(r.err, "history") {
			t.Errorf("without a history: exit %d\n%s", r.code, r.err)
		}
		e = &engine{list: []reconcile.SandboxView{{Address: `sandbox.hello["a"]`}, {Address: `sandbox.hello["b"]`}}}
		if r := invoke(t, e, "describe", "helo"); r.code != 1 || !strings.Contains(r.err, `did you mean sandbox.hello["a"]?`) {
			t.Errorf("misspelt: exit %d\n%s", r.code, r.err)
		}
	}
}

// With -json standard output is one JSON document, also for errors.
func TestErrorsAsJSON(t *testing.T) {
	configured(t)
	refused := &reconcile.Error{Kind: reconcile.Conflict, Message: "sandbox: invalid state transition: sandbox.py is lost, cannot pause"}
	for _, c := range []struct {
		args []string
		err  error
		code int
		want string
	}{
		{[]string{"pause", "-json", "py"}, refused, 1, refused.Message},
		{[]string{"plan", "--json", "-bogus"}, nil, 1, "plan has no flag -bogus"},
		{[]string{"plan", "-json", "extra"}, nil, 1, `plan does not take the argument "extra"`},
		{[]string{"list", "-json"}, &reconcile.Error{Kind: reconcile.Interrupted, Message: "interrupted"}, 130, "interrupted"},
		{[]string{"plan", "-json"}, &reconcile.Error{Kind: reconcile.Invalid, Message: "bad", Diagnostics: config.Diagnostics{{Severity: "error", Summary: "worse"}}}, 1, "worse"},
	} {
		r := invoke(t, &engine{err: c.err}, c.args...)
		var doc struct {
			FormatVersion string `json:"format_version"`
			Diagnostics   config.Diagnostics
		}
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
			t.Errorf("%v: %v\n%s", c.args, err, r.out)
			continue
		}
		if r.code != c.code || doc.FormatVersion != "1" || len(doc.Diagnostics) != 1 || doc.Diagnostics[0].Summary != c.want || r.err != "" {
			t.Errorf("%v: exit %d, %+v\n%s", c.args, r.code, doc, r.err)
		}
	}
}

func TestApplyThatFailedHalfway(t *testing.T) {
	configured(t)
	half := func() *engine {
		return &engine{
			result: &reconcile.ApplyResult{
				PlanResult: reconcile.PlanResult{Plan: &plan.Plan{}}, Applied: plan.Summary{Add: 1},
				Failures: []reconcile.Failure{{Address: "sandbox.py", Action: plan.ActCreate, Error: "no space left"}},
			},
			err: &reconcile.Error{Kind: reconcile.Internal, Message: "1 failed", Diagnostics: config.Diagnostics{{Severity: "error", Summary: "sandbox.py: create failed", Detail: "no space left", Address: "sandbox.py"}}},
		}
	}
	r := invoke(t, half(), "apply", "-auto-approve", "-json")
	var doc struct {
		Applied     plan.Summary
		Failures    []reconcile.Failure
		Diagnostics config.Diagnostics
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatalf("%v\n%s", err, r.out)
	}
	if r.code != 1 || doc.Applied.Add != 1 || len(doc.Failures) != 1 || len(doc.Diagnostics) != 1 {
		t.Errorf("exit %d, %+v", r.code, doc)
	}
	e := half()
	e.result.Interrupted = true
	if r := invoke(t, e, "apply", "-auto-approve", "-json"); r.code != 130 {
		t.Errorf("interrupted: exit %d", r.code)
	}
}

func TestWithoutRoot(t *testing.T) {
	configured(t)
	run := t.TempDir()
	for _, args := range [][]string{
		{"plan"}, {"apply", "-auto-approve"}, {"destroy", "-auto-approve"}, {"list"}, {"describe", "py"}, {"logs", "py"}, {"wait", "py"}, {"output"},
		{"start", "py"}, {"stop", "py"}, {"pause", "py"}, {"resume", "py"}, {"release", "py"}, {"renew", "-in", "1h", "py"}, {"exec", "py", "ls"}, {"agent"},
		{"events"}, {"events", "-f"}, {"history"}, {"top"}, {"top", "-once", "py"}, {"touch", "py"}, {"kill", "py"}, {"attach", "py"}, {"cp", "py:/a", "x"}, {"cp", "main.hcl", "py:/"},
	} {
		e := &engine{}
		r := invokeAs(t, e, 1000, append([]string{"-run-dir", run}, args...)...)
		if r.code != 1 || e.opens != 0 || !strings.Contains(r.err, "pinfold needs root to ") || !strings.Contains(r.err, "sudo") {
			t.Errorf("%v: exit %d, opened %d times\n%s", args, r.code, e.opens, r.err)
		}
	}
	for _, args := range [][]string{
		{"validate"}, {"fmt", "-check"}, {"show", "-effective", "py"}, {"version"}, {"completion", "bash"}, {"init"}, {"help"}, {"plan", "-help"},
	} {
		if r := invokeAs(t, &engine{}, 1000, args...); r.code != 0 {
			t.Errorf("%v: exit %d\n%s", args, r.code, r.err)
		}
	}
}

func TestAgentFlags(t *testing.T) {
	r := invoke(t, &engine{}, "-state-dir=/s", "agent", "-config", "/c", "-allow-destroy", "d1", "-allow-destroy=d2", "-var", "x=1")
	if r.code != 0 || r.agent == nil {
		t.Fatalf("exit %d\n%s", r.code, r.err)
	}
	a := r.agent
	if a.ConfigDir != "/c" || a.StateDir != "/s" || !cmp.Equal(a.AllowDestroy, []string{"d1", "d2"}) || !cmp.Equal(a.Inputs.Vars, []string{"x=1"}) {
		t.Errorf("%+v", a)
	}
	if !strings.Contains(r.err, "ready") {
		t.Errorf("no word of being ready:\n%s", r.err)
	}
	for want, kind := range map[string]reconcile.ErrorKind{
		"cannot start the agent: why; what to do": reconcile.Locked,
		"the agent ended: why; what to do":        reconcile.Internal,
	} {
		r := invoke(t, &engine{err: &reconcile.Error{Kind: kind, Message: "why; what to do"}}, "agent")
		if r.code != 1 || !strings.Contains(r.err, want) || strings.Contains(r.err, "-lock-timeout") {
			t.Errorf("want %q: exit %d\n%s", want, r.code, r.err)
		}
	}
}

// Every command explains itself, with an example.
func TestHelp(t *testing.T) {
	r := &run{App: New()}
	for _, c := range r.root().Commands {
		if c.Hidden {
			continue
		}
		for _, args := range [][]string{{c.Name, "-help"}, {c.Name, "-h"}, {c.Name, "--help"}, {"help", c.Name}} {
			r := invoke(t, &engine{}, args...)
			for _, want := range []string{"Usage: pinfold ", c.Name, "Flags (one dash or two):", "Example:\n  $ "} {
				if r.code != 0 || !strings.Contains(r.out, want) {
					t.Errorf("%v: exit %d, lacks %q\n%s%s", args, r.code, want, r.out, r.err)
				}
			}
			for line := range strings.Lines(r.out) {
				if len([]rune(line)) > 101 {
					t.Errorf("%v: long line %q", args, line)
				}
			}
		}
		if !strings.Contains(invoke(t, &engine{}, "help").out, "\n  "+c.Name) {
			t.Errorf("help does not list %s", c.Name)
		}
		if c.Category == "" || c.Usage == "" || c.UsageText == "" || !strings.Contains(c.Description, ".") {
			t.Errorf("%s lacks a part of its help", c.Name)
		}
		wellExplained(t, c)
	}
	wellExplained(t, r.root())
}

// wellExplained: each flag of a command has a sentence of its own, its value a name,
// and a value that needs more words gets them.
func wellExplained(t *testing.T, c *cli.Command) {
	t.Helper()
	var args []string
	if c.Name != "pinfold" {
		args = []string{c.Name}
	}
	help := invoke(t, &engine{}, append(args, "-help")...).out
	for _, f := range c.Flags {
		name, text := flagHelp(f)
		if len(strings.Fields(text)) < 3 || !strings.Contains(help, "  "+name) {
			t.Errorf("%s: %s is not explained: %q", c.Name, name, text)
		}
		if strings.HasSuffix(name, " VALUE") {
			t.Errorf("%s: the value of %s has no name", c.Name, name)
		}
		for _, x := range placeholders {
			if strings.HasSuffix(name, " "+x.word) && !strings.Contains(help, "\n  "+x.word+" is ") {
				t.Errorf("%s: nothing says what %s is", c.Name, x.word)
			}
		}
	}
}

func TestOutputs(t *testing.T) {
	e := func() *engine {
		return &engine{outputs: []config.Output{{Name: "url", Value: []byte(`"http://x"`)}, {Name: "n", Value: []byte(`3`)}}}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "n   = 3\nurl = \"http://x\"\n"},
		{[]string{"url"}, "\"http://x\"\n"},
		{[]string{"-raw", "url"}, "http://x"},
		{[]string{"n", "-raw"}, "3"},
	} {
		if r := invoke(t, e(), append([]string{"output"}, c.args...)...); r.code != 0 || r.out != c.want {
			t.Errorf("output %v: exit %d %q\n%s", c.args, r.code, r.out, r.err)
		}
	}
	if r := invoke(t, e(), "output", "urls"); r.code != 1 || !strings.Contains(r.err, "did you mean url?") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	var doc struct {
		Outputs map[string]struct{ Value any }
	}
	r := invoke(t, e(), "output", "-json", "url")
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil || len(doc.Outputs) != 1 || doc.Outputs["url"].Value != "http://x" {
		t.Errorf("%v %v", err, doc)
	}
}

func TestComplete(t *testing.T) {
	configured(t)
	t.Setenv("PINFOLD_STATE_DIR", "/from/env")
	e := func() *engine {
		return &engine{
			list:    []reconcile.SandboxView{{Address: "sandbox.py"}, {Address: "sandbox.sky"}, {Address: `sandbox.w["a"]`}, {Address: `sandbox.w["b"]`}},
			outputs: []config.Output{{Name: "url"}, {Name: "urn"}, {Name: "port"}},
			recorded: &reconcile.RecordsResult{Records: plan.Records{Sandboxes: map[string]*plan.Sandbox{
				"sandbox.py": {Address: "sandbox.py"}, "sandbox.sky": {Address: "sandbox.sky"},
				`sandbox.w["a"]`: {Address: `sandbox.w["a"]`}, `sandbox.w["b"]`: {Address: `sandbox.w["b"]`},
			}}},
		}
	}
	w := []string{`sandbox.w["a"]`, `sandbox.w["b"]`}
	for _, c := range []struct {
		words []string
		want  []string
	}{
		{[]string{"pl"}, []string{"plan"}},
		{[]string{"-chdir=.", "re"}, []string{"resume", "release", "renew"}},
		{[]string{"-chdir", ".", "re"}, []string{"resume", "release", "renew"}},
		{[]string{"nosuch", ""}, nil},
		{[]string{"plan", "-det"}, []string{"-detailed-exitcode"}},
		{[]string{"plan", "--state"}, []string{"--state-dir"}},
		{[]string{"plan", "-refresh"}, []string{"-refresh-only", "-refresh=false"}},
		{[]string{"describe", "sandbox.w"}, w},
		{[]string{"exec", "-it", ""}, []string{"sandbox.py", "sandbox.sky", w[0], w[1]}},
		{[]string{"completion", "z"}, []string{"zsh"}},
		{[]string{"cp", "p"}, []string{"py:"}},
		{[]string{"cp", "./a", "sandbox.s"}, []string{"sandbox.sky:"}},
		{[]string{"cp", "py:/etc", "."}, nil},
		{[]string{"events", "-type", "exp"}, []string{"expiring", "expired"}},
		{[]string{"events", "-type=lost,held,rel"}, []string{"-type=lost,held,release"}},
		{[]string{"touch", "py", "sk"}, []string{"sky"}},
		{[]string{"kill", "-s", "HUP", "py", "sk"}, []string{"sky"}},
		{[]string{"top", "-sort", "c"}, []string{"cpu"}},
		{[]string{"top", "py", "sk"}, []string{"sky"}},
		{[]string{"kill", "-s", "SIGS"}, []string{"SIGSEGV", "SIGSTKFLT", "SIGSYS"}},
		{[]string{"kill", "-signal", "US"}, []string{"USR1", "USR2"}},
		{[]string{"kill", "-s=SIGT"}, []string{"-s=SIGTRAP", "-s=SIGTERM", "-s=SIGTSTP", "-s=SIGTTIN", "-s=SIGTTOU"}},
		{[]string{"attach", "-signal-proxy", "p"}, []string{"py"}},
		{[]string{"help", "val"}, []string{"validate"}},
		{[]string{"apply", ""}, nil}, // files, which the shell knows

		// Short names, where one is being written.
		{[]string{"logs", "p"}, []string{"py"}},
		{[]string{"logs", "s"}, []string{"sandbox.py", "sandbox.sky", w[0], w[1], "sky"}},
		{[]string{"stop", "w"}, []string{`w["a"]`, `w["b"]`}},
		{[]string{"ps", "py", "sk"}, []string{"sky"}},
		{[]string{"renew", "-in", "1h", "p"}, []string{"py"}},
		{[]string{"logs", "-tail", "5", "p"}, []string{"py"}},
		// One is enough where only one is taken; what follows exec's is not ours.
		{[]string{"describe", "py", ""}, nil},
		{[]string{"exec", "py", "-"}, nil},
		{[]string{"exec", "-e", "A=b", "p"}, []string{"py"}},
		{[]string{"exec", "--", "p"}, []string{"py"}},
		// As the shell's quoting leaves them.
		{[]string{"stop", `sandbox.w\[\"`}, w},
		{[]string{"stop", `'sandbox.w["b`}, w[1:]},
		{[]string{"stop", `"sandbox.w[\"b`}, w[1:]},

		{[]string{"output", "ur"}, []string{"url", "urn"}},
		{[]string{"output", "url", ""}, nil},

		// Values of flags, in one word, in two, and as bash breaks them.
		{[]string{"wait", "-for", "Re"}, []string{"Ready"}},
		{[]string{"wait", "-for=Re"}, []string{"-for=Ready"}},
		{[]string{"wait", "--for=Ready="}, []string{"--for=Ready=True", "--for=Ready=False", "--for=Ready=Unknown"}},
		{[]string{"wait", "-for=phase=st"}, []string{"-for=phase=stopped"}},
		{[]string{"wait", "-for", "=", "Re"}, []string{"Ready"}},
		{[]string{"wait", "-for", "="}, []string{"Ready", "Suspended", "Paused", "Expired", "Finished", "Drifted", "phase=pending", "phase=created", "phase=running", "phase=paused", "phase=stopped", "phase=failed", "phase=lost", "phase=destroyed"}},
		{[]string{"wait", "-for", "=", "phase", "=", "lo"}, []string{"lost"}},
		{[]string{"wait", "-for", "phase", "=", "de"}, []string{"destroyed"}},
		{[]string{"wait", "-for=Ready", "p"}, []string{"py"}},
		{[]string{"wait", "-for", "=", "Ready", "p"}, []string{"py"}},
		{[]string{"wait", "-timeout", "p"}, nil},
		{[]string{"plan", "-target", ""}, []string{"image.base", "sandbox.py", "sandbox.sky", w[0], w[1]}},
		{[]string{"destroy", "-exclude=im"}, []string{"-exclude=image.base"}},
		{[]string{"apply", "-replace", ""}, []string{"sandbox.py", "sandbox.sky", w[0], w[1]}},
		// What the files declare needs no state.
		{[]string{"show", "-effective", ""}, []string{"sandbox.py"}},
		{[]string{"show", ""}, nil},
	} {
		x := e()
		r := invoke(t, x, append([]string{"__complete", "--"}, c.words...)...)
		var got []string
		for line := range strings.Lines(r.out) {
			word, _, _ := strings.Cut(line, "\t")
			got = append(got, word)
		}
		if r.code != 0 || r.err != "" || !cmp.Equal(got, c.want) {
			t.Errorf("%q: exit %d, %q, want %q\n%s", c.words, r.code, got, c.want, r.err)
		}
	}
	// It looks where the command line says.
	x := e()
	invoke(t, x, "__complete", "--", "-state-dir", "/s", "stop", "-run-dir=/r", "py")
	if x.opened.StateDir != "/s" || x.opened.RunDir != "/r" || !x.opened.ReadOnly {
		t.Errorf("opened with %+v", x.opened)
	}
	// Without any word it offers the commands.
	if r := invoke(t, e(), "__complete"); !strings.Contains(r.out, "plan\t") {
		t.Errorf("%s%s", r.out, r.err)
	}
}
