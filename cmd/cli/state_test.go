package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

func TestStateVerify(t *testing.T) {
	backup := "/s/backups/state-20261201T080000Z-17.db"
	sound := &reconcile.VerifyResult{FormatVersion: "1", Path: "/s/state.db", Sound: true, Schema: 1, Lineage: "l", Serial: 7, Documents: map[string]int{"sandboxes": 2, "networks": 1}, Problems: []string{}, Backup: &backup}
	r := invoke(t, &engine{verified: sound}, "state", "verify")
	if r.code != 0 || !strings.Contains(r.out, "/s/state.db is sound: schema 1") || !strings.Contains(r.out, "2 sandboxes and 1 network.") || !strings.Contains(r.out, backup) {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	bad := &reconcile.VerifyResult{FormatVersion: "1", Path: "/s/state.db", Problems: []string{"history 1: \x1b[2Jwrong", "two"}, Advice: "do this\nor that"}
	r = invoke(t, &engine{verified: bad}, "state", "verify")
	if r.code != 1 || !strings.Contains(r.out, "is not sound") || !strings.Contains(r.out, "  - two\n") || !strings.Contains(r.out, "What can be done:\n  do this\n  or that\n") || strings.Contains(r.out, "\x1b") {
		t.Errorf("exit %d\n%q%s", r.code, r.out, r.err)
	}
	if r = invoke(t, &engine{verified: bad}, "state", "verify", "-json"); r.code != 1 || !strings.Contains(r.out, `"sound": false`) || !strings.Contains(r.out, `"backup": null`) {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	// Of a backup anybody may ask who may read it; the state needs root.
	e := &engine{verified: sound}
	if r = invokeAs(t, e, 1000, "state", "verify", "a.db"); r.code != 0 || !slices.Equal(e.asked, []string{"verify a.db"}) {
		t.Errorf("exit %d, asked %q\n%s", r.code, e.asked, r.err)
	}
	e = &engine{verified: sound}
	if r = invokeAs(t, e, 1000, "state", "verify"); r.code != 1 || e.asked != nil || !strings.Contains(r.err, "needs root to read the state") {
		t.Errorf("exit %d, asked %q\n%s", r.code, e.asked, r.err)
	}
}

func TestStateBackup(t *testing.T) {
	e := &engine{}
	if r := invoke(t, e, "state", "backup"); r.code != 0 || len(e.backups) != 1 || e.backups[0].File != nil || e.closed != 1 || !e.opened.ReadOnly {
		t.Errorf("exit %d, asked for %+v\n%s", r.code, e.backups, r.err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "b.db")
	e = &engine{backup: func(r reconcile.BackupRequest) (*reconcile.BackupResult, error) {
		_, err := r.File.WriteString("copy")
		return &reconcile.BackupResult{FormatVersion: "1", Path: r.Path, Serial: 7}, err
	}}
	r := invoke(t, e, "state", "backup", "-json", path)
	if got, err := os.ReadFile(path); r.code != 0 || err != nil || string(got) != "copy" || !strings.Contains(r.out, path) {
		t.Errorf("exit %d, %q, %v\n%s%s", r.code, got, err, r.out, r.err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	// What is there is not overwritten, and one that fails leaves nothing.
	if r := invoke(t, e, "state", "backup", path); r.code != 1 || !strings.Contains(r.err, "is there already") || len(e.backups) != 1 {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	e.backup = func(r reconcile.BackupRequest) (*reconcile.BackupResult, error) {
		_, err := r.File.WriteString("half")
		return nil, errors.Join(errors.New("disk full"), err)
	}
	if r := invoke(t, e, "state", "backup", filepath.Join(dir, "c.db")); r.code != 1 || !strings.Contains(r.err, "disk full") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	e.backup = func(r reconcile.BackupRequest) (*reconcile.BackupResult, error) { // another is faster
		return &reconcile.BackupResult{}, os.WriteFile(r.Path, []byte("other's"), 0o600)
	}
	other := filepath.Join(dir, "d.db")
	if r := invoke(t, e, "state", "backup", other); r.code != 1 || !strings.Contains(r.err, "is there already") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	if got, _ := os.ReadFile(other); string(got) != "other's" {
		t.Errorf("it was overwritten with %q", got)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("left %v, %v", left, err)
	}
	if r := invoke(t, e, "state", "backup", filepath.Join(dir, "none", "b.db")); r.code != 1 || !strings.Contains(r.err, "no such file or directory") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

func TestStateRestore(t *testing.T) {
	for _, c := range []struct {
		args  string
		code  int
		asked string
		says  string
	}{
		{"a.db", 1, "", "standard input is no terminal"},
		{"-json a.db", 1, "", "cannot ask for approval"},
		{"-input=false a.db", 1, "", "-input=false forbids asking"},
		{"-dry-run a.db", 0, "restore a.db force=false dry=true", " would be what a.db records"},
		{"-auto-approve a.db", 0, "restore a.db force=false dry=false", "Restored "},
		{"-auto-approve -force a.db", 0, "restore a.db force=true dry=false", "Restored "},
		{"-auto-approve -json a.db", 0, "restore a.db force=false dry=false", `"unrecorded": [`},
	} {
		e := &engine{}
		r := invoke(t, e, append([]string{"state", "restore"}, strings.Fields(c.args)...)...)
		if asked := strings.Join(e.asked, ", "); r.code != c.code || asked != c.asked || !strings.Contains(r.out+r.err, c.says) || e.asked != nil && e.opened.Verb != "state restore" {
			t.Errorf("%q: exit %d, asked %q\n%s%s", c.args, r.code, asked, r.out, r.err)
		}
		forgets(t, r, c.code == 0 && !strings.Contains(c.args, "-json"))
	}
	e := &engine{}
	if r := invoke(t, e, "state", "restore"); r.code != 1 || e.asked != nil || !strings.Contains(r.err, "pinfold state restore [flags] FILE") || !strings.Contains(r.err, "'pinfold state restore -help'") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
	if r := invokeAs(t, e, 1000, "state", "restore", "-auto-approve", "a.db"); r.code != 1 || e.asked != nil || !strings.Contains(r.err, "needs root") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

// forgets checks that a restore says what is forgotten.
func forgets(t *testing.T, r ran, want bool) {
	t.Helper()
	for _, words := range []string{
		"What was changed, renewed or held since ", " (3h ago) is forgotten.\n",
		"2 instances on this host are without a record: 'pinfold gc -dry-run' tells, 'pinfold gc -adopt ID' takes it back.\n",
	} {
		if strings.Contains(r.out, words) != want {
			t.Errorf("%q is in it, or not:\n%s", words, r.out)
		}
	}
}

// On a terminal it says what is forgotten before it asks.
func TestStateRestoreAsks(t *testing.T) {
	for answer, c := range map[string]struct {
		code  int
		asked string
	}{
		"yes": {0, "restore a.db force=true dry=true, restore a.db force=true dry=false"},
		"no":  {1, "restore a.db force=true dry=true"},
	} {
		e := &engine{}
		r := invokeWith(t, e, terminalSaying(t, answer+"\n"), "state", "restore", "-force", "a.db")
		if asked := strings.Join(e.asked, ", "); r.code != c.code || asked != c.asked || strings.Contains(r.out, "Cancelled") != (c.code == 1) {
			t.Errorf("%q: exit %d, asked %q\n%s%s", answer, r.code, asked, r.out, r.err)
		}
		r.out, _, _ = strings.Cut(r.out, "Only 'yes' will be accepted")
		forgets(t, r, true)
	}
}

func TestStateRebuild(t *testing.T) {
	for _, c := range []struct {
		args  string
		code  int
		asked string
		says  string
	}{
		{"", 1, "", "standard input is no terminal"},
		{"-json", 1, "", "cannot ask for approval"},
		{"-input=false", 1, "", "-input=false forbids asking"},
		{"-dry-run", 0, "rebuild dry=true", "1 thing can be recorded anew"},
		{"-auto-approve", 0, "rebuild dry=false", "The state was made anew: lineage l, 1 record."},
		{"-auto-approve -json", 0, "rebuild dry=false", `"unknown": [`},
		{"-dry-run -json", 0, "rebuild dry=true", `"format_version": "1"`},
	} {
		e := &engine{}
		r := invoke(t, e, append([]string{"state", "rebuild"}, strings.Fields(c.args)...)...)
		if asked := strings.Join(e.asked, ", "); r.code != c.code || asked != c.asked || !strings.Contains(r.out+r.err, c.says) {
			t.Errorf("%q: exit %d, asked %q\n%s%s", c.args, r.code, asked, r.out, r.err)
		}
		if c.code == 0 && !strings.Contains(r.out, "its labels") {
			t.Errorf("%q does not say what could not be known:\n%s", c.args, r.out)
		}
	}
}

// On a terminal it shows what it would do and takes yes only.
func TestStateRebuildAsks(t *testing.T) {
	for answer, c := range map[string]struct {
		code  int
		asked string
	}{
		"yes": {0, "rebuild dry=true, rebuild dry=false"},
		"y":   {1, "rebuild dry=true"},
		"":    {1, "rebuild dry=true"},
	} {
		e := &engine{}
		r := invokeWith(t, e, terminalSaying(t, answer+"\n"), "state", "rebuild")
		if asked := strings.Join(e.asked, ", "); r.code != c.code || asked != c.asked || !strings.Contains(r.out, "Only 'yes' will be accepted") || strings.Contains(r.out, "Cancelled") != (c.code == 1) {
			t.Errorf("%q: exit %d, asked %q\n%s%s", answer, r.code, asked, r.out, r.err)
		}
	}
}

func TestGC(t *testing.T) {
	found := &reconcile.GCResult{Orphans: []reconcile.Orphan{
		{Kind: "instance", ID: "0123456789ab", Address: "sandbox.py", Found: "it was being made", Action: reconcile.OrphanRemoved},
		{Kind: "volume", ID: "ba9876543210", Found: "no record\x1b[2J of it", Action: reconcile.OrphanReported, Hint: "remove it"},
		{Kind: "network", ID: "n", Found: "released", Action: reconcile.OrphanKept},
	}}
	e := &engine{collected: found}
	r := invoke(t, e, "gc", "-remove", "a", "-remove", "b")
	if r.code != 0 || len(e.gcs) != 1 || e.gcs[0].DryRun || !slices.Equal(e.gcs[0].Remove, []string{"a", "b"}) || e.opened.ReadOnly {
		t.Errorf("exit %d, asked for %+v\n%s", r.code, e.gcs, r.err)
	}
	for _, want := range []string{"instance sandbox.py 0123456789ab: removed", "volume ba9876543210: left as it is", "  remove it\n", "1 removed, 1 left as it is, 1 released, left alone."} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is not in\n%s", want, r.out)
		}
	}
	if strings.Contains(r.out, "\x1b") {
		t.Errorf("it controls the terminal: %q", r.out)
	}
	e = &engine{collected: &reconcile.GCResult{}}
	if r := invoke(t, e, "gc", "-dry-run"); r.code != 0 || !e.gcs[0].DryRun || !e.opened.ReadOnly || !strings.Contains(r.out, "Nothing was left behind") {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	if r := invoke(t, e, "gc", "-json"); r.code != 0 || !strings.Contains(r.out, `"orphans": []`) {
		t.Errorf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	if r := invoke(t, e, "gc", "0123456789ab"); r.code != 1 || !strings.Contains(r.err, "does not take the argument") {
		t.Errorf("exit %d\n%s", r.code, r.err)
	}
}

// The commands behind a command have help, completion and did-you-mean as all have.
func TestCommandsBehindState(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"state", 0, "Commands:\n  list "},
		{"state -help", 0, "Usage: pinfold state COMMAND"},
		{"state restore -help", 0, "-force"},
		{"help state restore", 0, "Usage: pinfold state restore [flags] FILE"},
		{"help state", 0, "  rebuild "},
		{"help state restor", 1, "did you mean restore"},
		{"state verfy", 1, `pinfold state has no command "verfy"; did you mean verify?`},
		{"state list", 0, "network.n\nsandbox.w[\"a\"]\n"},
		{"state list sandbox.v", 1, "did you mean sandbox.w?"},
		{"state show network.n", 0, "  gateway = \"10.88.0.1\"\n"},
		{"state show network.m", 1, "did you mean network.n?"},
		{"state pull", 0, "\"lineage\": \"l\""},
		{"__complete -- state list s", 0, "sandbox.w[\"a\"]\tsandbox\n"},
		{"__complete -- state show n", 0, "network.n\tnetwork\n"},
		{"__complete -- drift -ignore n", 0, "network\tkind\nnetwork.n\tnetwork\n"},
		{"state verify -jsn", 1, "did you mean -json"},
		{"state verify -state-dir /x", 0, ""},
		{"backup", 1, "'pinfold state backup'"},
		{"__complete -- state ", 0, "restore\t"},
		{"__complete -- state res", 0, "restore\t"},
		{"__complete -- state restore -f", 0, "-force\t"},
		{"__complete -- gc -remove 01", 0, "0123456789ab\tinstance sandbox.py"},
	} {
		e := &engine{
			recorded: &reconcile.RecordsResult{
				Records: plan.Records{Networks: map[string]*plan.Network{"network.n": {}}, Sandboxes: map[string]*plan.Sandbox{`sandbox.w["a"]`: {}}},
				Exports: config.Exports{"network.n": {Gateway: "10.88.0.1"}},
			},
			verified:  &reconcile.VerifyResult{Sound: true},
			collected: &reconcile.GCResult{Orphans: []reconcile.Orphan{{Kind: "instance", ID: "0123456789ab", Address: "sandbox.py", Action: reconcile.OrphanReported}}},
		}
		args := strings.Fields(c.args)
		if strings.HasSuffix(c.args, " ") {
			args = append(args, "")
		}
		r := invoke(t, e, args...)
		if r.code != c.code || !strings.Contains(r.out+r.err, c.says) {
			t.Errorf("%s: exit %d\n%s%s", c.args, r.code, r.out, r.err)
		}
		if strings.Contains(c.args, "-state-dir") && e.opened.StateDir != "/x" {
			t.Errorf("%s: state dir %q", c.args, e.opened.StateDir)
		}
	}
	if r := invoke(t, &engine{}, "-help"); !strings.Contains(r.out, fmt.Sprintf("  %-12s ", "gc")) || !strings.Contains(r.out, fmt.Sprintf("  %-12s ", "state")) {
		t.Errorf("the help does not list them:\n%s", r.out)
	}
}

// terminalSaying is a terminal at which somebody types this.
func terminalSaying(t *testing.T, text string) *os.File {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		slave.Close()
		master.Close()
	})
	if _, err := master.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return slave
}
