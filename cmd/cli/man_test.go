package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// Each command has a manual page, which says what its help does and which the
// formatters read without a complaint.
func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "man1")
	if r := invoke(t, &engine{}, "help", "-man", dir); r.code != 0 || !strings.Contains(r.out, "manual pages to "+dir) {
		t.Fatalf("exit %d\n%s%s", r.code, r.out, r.err)
	}
	pages := map[string]bool{}
	root := (&run{App: New()}).root()
	var walk func(name string, cmd *cli.Command)
	walk = func(name string, cmd *cli.Command) {
		path := filepath.Join(dir, name+".1")
		pages[path] = true
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			return
		}
		page := string(text)
		for _, section := range []string{".TH " + strings.ToUpper(name) + " 1 ", ".SH NAME\n" + roff(name) + " \\- ", ".SH SYNOPSIS\n", ".SH DESCRIPTION\n", ".SH OPTIONS\n"} {
			if !strings.Contains(page, section) {
				t.Errorf("%s lacks %q", name, section)
			}
		}
		for _, f := range cmd.VisibleFlags() {
			names, _ := flagHelp(f)
			if !strings.Contains(page, "\n.B "+roff(names)+"\n") {
				t.Errorf("%s does not explain %s", name, names)
			}
		}
		if strings.Contains(cmd.Description, "Exit codes:") != strings.Contains(page, ".SH EXIT STATUS\n") {
			t.Errorf("%s: exit codes", name)
		}
		for _, line := range strings.Split(page, "\n") {
			if strings.HasPrefix(line, "'") || strings.HasPrefix(line, ".") && !strings.Contains(" .TH .SH .PP .TP .B .BR .nf .fi ", " "+strings.Fields(line)[0]+" ") {
				t.Errorf("%s has a line that is a request by mistake: %s", name, line)
			}
		}
		for _, under := range cmd.Commands {
			if !under.Hidden {
				walk(name+"-"+under.Name, under)
				if !strings.Contains(page, ".BR "+roff(name+"-"+under.Name)+" (1)") {
					t.Errorf("%s does not lead to %s", name, under.Name)
				}
			}
		}
	}
	walk("pinfold", root)
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if !pages[path] {
			t.Errorf("%s is the page of no command", path)
		}
	}
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Fatal("mandoc is needed: make deps installs it")
	}
	said, err := exec.Command(mandoc, append([]string{"-Tlint", "-Wwarning"}, files...)...).CombinedOutput()
	if err != nil || len(said) > 0 {
		t.Errorf("mandoc: %v\n%s", err, said)
	}
}

func TestRoff(t *testing.T) {
	for text, want := range map[string]string{
		"a-b":            `a\-b`,
		".a\n.b 'c' \\d": "\\&.a\n\\&.b \\(aqc\\(aq \\ed",
		"~/.x ^y `z`":    `\(ti/.x \(hay \(gaz\(ga`,
	} {
		if got := roff(text); got != want {
			t.Errorf("%q is %q, not %q", text, got, want)
		}
	}
}
