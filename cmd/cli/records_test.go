package cli

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func (e *engine) Records(context.Context) (*reconcile.RecordsResult, error) {
	if e.recorded == nil {
		return &reconcile.RecordsResult{}, e.err
	}
	return e.recorded, e.err
}

func (e *engine) Drift(_ context.Context, r reconcile.DriftRequest) (*reconcile.DriftResult, error) {
	e.drift = &r
	return &reconcile.DriftResult{Drift: e.differs}, e.err
}

func (e *engine) Pull(context.Context) (*reconcile.StateDocument, error) {
	return &reconcile.StateDocument{FormatVersion: "1", Lineage: "l"}, e.err
}

// drift exits 2 for drift and 1 for an error; what it is asked goes to the engine as
// records have it.
func TestDriftCommand(t *testing.T) {
	e := &engine{}
	if r := invoke(t, e, "drift", "-ignore", "volume", "-ignore", "sandbox.w[a]", "-ignore=module.ci"); r.code != 0 || !slices.Equal(e.drift.Ignore, []string{"volume", `sandbox.w["a"]`, "module.ci"}) {
		t.Errorf("exit %d, asked %+v\n%s", r.code, e.drift, r.err)
	}
	if !e.opened.ReadOnly || e.opened.Verb != "drift" {
		t.Errorf("opened %+v", e.opened)
	}
	e.differs = []plan.Drift{{Address: "network.n", What: "bridge missing"}}
	if r := invoke(t, e, "drift"); r.code != 2 || !strings.Contains(r.out, "network.n: bridge missing") {
		t.Errorf("exit %d\n%s", r.code, r.out)
	}
	e.err = &reconcile.Error{Kind: reconcile.Internal, Message: "cannot look at the host"}
	if r := invoke(t, e, "drift", "-json"); r.code != 1 || !strings.Contains(r.out, "cannot look at the host") || fits("diagnostics", []byte(r.out)) != nil {
		t.Errorf("exit %d\n%s", r.code, r.out)
	}
}

func TestPushCommand(t *testing.T) {
	e := &engine{}
	path := filepath.Join(t.TempDir(), "s.json")
	if err := os.WriteFile(path, []byte(`{"format_version":"1","lineage":"l"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := invoke(t, e, "state", "push", "-auto-approve", path)
	if want := []string{"push " + path + " l force=false dry=false"}; r.code != 0 || !slices.Equal(e.asked, want) || e.opened.ReadOnly {
		t.Errorf("exit %d, asked %q\n%s", r.code, e.asked, r.err)
	}
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	e = &engine{}
	r = invokeWith(t, e, in, "state", "push", "-dry-run", "-force", "-json", "-")
	if want := []string{"push standard input l force=true dry=true"}; r.code != 0 || !slices.Equal(e.asked, want) {
		t.Errorf("exit %d, asked %q\n%s", r.code, e.asked, r.err)
	}
	for args, says := range map[string]string{
		"state push " + path:                             "state push needs approval",
		"state push -":                                   "state push - needs -auto-approve",
		"state push -auto-approve /none":                 "no such file",
		"state push -auto-approve " + path + " more":     "does not take",
		"state push -auto-approve -input=false main.hcl": "main.hcl",
	} {
		e := &engine{}
		if r := invoke(t, e, strings.Fields(args)...); r.code != 1 || !strings.Contains(r.err, says) || len(e.asked) > 0 {
			t.Errorf("%s: exit %d, asked %q\n%s", args, r.code, e.asked, r.err)
		}
	}
	if r := invokeAs(t, &engine{}, 1000, "state", "push", "-auto-approve", path); r.code != 1 || !strings.Contains(r.err, "needs root to push the state") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}
