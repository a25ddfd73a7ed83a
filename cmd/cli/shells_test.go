package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/urfave/cli/v3"

	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// Every flag of every command is offered, and explained.
func TestEveryFlagIsCompletedAndExplained(t *testing.T) {
	configured(t)
	root := (&run{App: New()}).root()
	var walk func(words []string, c *cli.Command)
	walk = func(words []string, c *cli.Command) {
		for _, under := range c.Commands {
			if !under.Hidden {
				walk(append(slices.Clone(words), under.Name), under)
			}
		}
		offered := invoke(t, &engine{}, slices.Concat([]string{"__complete", "--"}, words, []string{"-"})...).out
		help := invoke(t, &engine{}, slices.Concat(words, []string{"-help"})...).out
		for _, f := range c.Flags {
			for _, name := range f.Names() {
				if !strings.Contains("\n"+offered, "\n-"+name+"\t") && !strings.Contains("\n"+offered, "\n-"+name+"=false\t") {
					t.Errorf("%q: -%s is not offered", words, name)
				}
				if !strings.Contains(help, " -"+name) {
					t.Errorf("%q: -%s is not in the help", words, name)
				}
			}
		}
	}
	walk(nil, root)
}

// What is kept is offered as it is kept, whatever the files say.
func TestCompleteWhatIsKept(t *testing.T) {
	configured(t)
	dir := t.TempDir()
	backups := filepath.Join(dir, "backups")
	if err := os.MkdirAll(backups, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"state-20261130T080000Z-16.db", "state-20261201T080000Z-17.db", "notes.txt"} {
		if err := os.WriteFile(filepath.Join(backups, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	old, young := filepath.Join(backups, "state-20261130T080000Z-16.db"), filepath.Join(backups, "state-20261201T080000Z-17.db")
	recorded := &reconcile.RecordsResult{Records: plan.Records{
		Sandboxes: map[string]*plan.Sandbox{"sandbox.gone": {Address: "sandbox.gone"}},
		Networks:  map[string]*plan.Network{"network.n": {Address: "network.n"}},
		Volumes:   map[string]*plan.Volume{"volume.v": {Address: "volume.v"}},
		Images:    map[string]*plan.Image{"image.old": {Address: "image.old", Spec: config.Image{Source: "host"}}},
	}}
	left := &reconcile.GCResult{Orphans: []reconcile.Orphan{
		{Kind: "instance", ID: "0123456789ab", Live: true, Action: reconcile.OrphanReported},
		{Kind: "network", ID: "ba9876543210", Action: reconcile.OrphanReported},
		{Kind: "record", ID: "b0b0b0b0b0b0", Address: "volume.v", Action: reconcile.OrphanReported},
	}}
	for _, c := range []struct {
		words []string
		want  []string
	}{
		{[]string{"state", "restore", ""}, []string{young, old}},
		{[]string{"state", "verify", backups + "/state-20261130"}, []string{old}},
		{[]string{"state", "restore", young, ""}, nil},
		{[]string{"state", "rm", ""}, []string{"image.old", "network.n", "sandbox.gone", "volume.v"}},
		{[]string{"state", "rm", "volume.v", "sand"}, []string{"sandbox.gone"}},
		{[]string{"state", "mv", "sand"}, []string{"sandbox.gone"}},
		{[]string{"state", "mv", "sandbox.gone", "sand"}, []string{"sandbox.py"}}, // what the files call it
		{[]string{"state", "show", "net"}, []string{"network.n"}},
		{[]string{"plan", "-target", "volume"}, []string{"volume.v"}},
		{[]string{"plan", "-target", "image."}, []string{"image.base", "image.old"}},
		{[]string{"gc", "-adopt", ""}, []string{"0123456789ab"}},
		{[]string{"gc", "-remove", ""}, []string{"ba9876543210"}},
	} {
		r := invoke(t, &engine{recorded: recorded, collected: left}, slices.Concat([]string{"-state-dir", dir, "__complete", "--", "-state-dir", dir}, c.words)...)
		var got []string
		for line := range strings.Lines(r.out) {
			word, _, _ := strings.Cut(line, "\t")
			got = append(got, word)
		}
		if r.code != 0 || r.err != "" || !slices.Equal(got, c.want) {
			t.Errorf("%q: exit %d, %q, want %q\n%s", c.words, r.code, got, c.want, r.err)
		}
	}
}

// The scripts are what their shells take, and in each of them a line that is completed
// and sent does what it says.
func TestShells(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes a real sandbox: run it as root")
	}
	dir, state, run := leavesNothing(t, "pinfold-shells")
	conf := filepath.Join(dir, "conf")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		t.Fatal(err)
	}
	text := "image \"base\" {\n  source = \"host\"\n}\n\nsandbox \"wide\" {\n  for_each = toset([\"a b\"])\n  image    = image.base\n  command  = [\"sleep\", \"infinity\"]\n}\n"
	if err := os.WriteFile(filepath.Join(conf, "main.hcl"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, "pinfold")); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), scriptHelper+"=1", "TERM=xterm", "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir,
		"PINFOLD_STATE_DIR="+state, "PINFOLD_RUN_DIR="+run, "PINFOLD_HOST_CONFIG="+filepath.Join(dir, "none.hcl"))
	pinfold := func(args ...string) []byte {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, "pinfold"), args...)
		cmd.Dir, cmd.Env = conf, env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("pinfold %q: %v\n%s", args, err, out)
		}
		return out
	}
	t.Cleanup(func() { pinfold("destroy", "-auto-approve") })
	pinfold("apply", "-auto-approve")

	for _, shell := range []struct {
		name  string
		start []string
		setup string // what loads the script
	}{
		{"bash", []string{"--norc", "--noprofile", "-i"}, "PS1='ready> '; source %s"},
		{"zsh", []string{"-f", "-i"}, "PROMPT='ready> '; autoload -U compinit; compinit -u -D; source %s"},
		{"fish", []string{"--no-config", "-i"}, "function fish_prompt; echo -n 'ready> '; end; function fish_greeting; end; source %s"},
	} {
		t.Run(shell.name, func(t *testing.T) {
			at, err := exec.LookPath(shell.name)
			if err != nil {
				t.Fatalf("%v; 'make deps' installs it", err)
			}
			script := filepath.Join(dir, "completion."+shell.name)
			if err := os.WriteFile(script, pinfold("completion", shell.name), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(at, "-n", script).CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("%s -n: %v\n%s", shell.name, err, out)
			}
			cmd := exec.Command(at, shell.start...)
			cmd.Dir, cmd.Env = conf, env
			x := withTerminal(t, cmd, pty.Winsize{Rows: 40, Cols: 150})
			x.send(fmt.Sprintf(shell.setup, script) + "\r")
			x.expect(`[^']ready> `) // not the line that sets it
			x.send("pinfold versi\t\r")
			x.expect(`pinfold [0-9.]+ \(go`)
			x.send("pinfold output -js\t\r")
			x.expect(`"format_version": "1"`)
			// An address that has to be quoted, as a whole.
			x.send("pinfold list sandbox.wi\t\r")
			x.expect(`sandbox\.wide\["a b"\] +running`)
			x.send("pinfold list wi\t\r")
			x.expect(`sandbox\.wide\["a b"\] +running`)
			// The value of a flag.
			x.send("pinfold plan -target=image.\t\r")
			x.expect(`No changes`)
			x.send("pinfold wait -for Rea\t -timeout 30s wi\t\r")
			x.expect(`Ready=True`)
			// Of files the shell knows itself.
			x.send("pinfold fmt -check mai\t && echo 'well 'formed\r")
			x.expect(`well formed`)
			x.send("exit\r")
			if code := x.ends(); code != 0 {
				t.Errorf("exit %d\n%s", code, x.screen())
			}
		})
	}
}
