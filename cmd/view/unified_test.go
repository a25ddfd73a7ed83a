package view

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// patch(1)-style proof: applying the hunks to the old text gives the new one.
func TestUnifiedApplies(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatalf("this test applies patches with git: %v", err)
	}
	var long []string
	for i := range 40 {
		long = append(long, fmt.Sprintf("line %d", i))
	}
	edit := func(change func([]string) []string) string {
		return strings.Join(change(append([]string{}, long...)), "\n") + "\n"
	}
	before := strings.Join(long, "\n") + "\n"
	for name, after := range map[string]string{
		"first line": edit(func(l []string) []string { l[0] = "x"; return l }),
		"last line":  edit(func(l []string) []string { l[39] = "x"; return l }),
		"two hunks":  edit(func(l []string) []string { l[3], l[30] = "x", "y"; return l }),
		"near":       edit(func(l []string) []string { l[10], l[16] = "x", "y"; return l }),
		"just apart": edit(func(l []string) []string { l[10], l[18] = "x", "y"; return l }),
		"removed":    edit(func(l []string) []string { return append(l[:7], l[12:]...) }),
		"added":      edit(func(l []string) []string { return append(l, "x", "y") }),
		"to the top": edit(func(l []string) []string { return append([]string{"x"}, l...) }),
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "main.hcl")
		if err := os.WriteFile(file, []byte(before), 0o644); err != nil {
			t.Fatal(err)
		}
		var patch bytes.Buffer
		(&Screen{W: &patch}).Unified("main.hcl", []byte(before), []byte(after))
		cmd := exec.Command(git, "apply", "-p0", "--unidiff-zero", "-")
		cmd.Dir, cmd.Stdin = dir, &patch
		text := patch.String()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s\n%s", name, err, out, text)
			continue
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != after {
			t.Errorf("%s: the patch gives another text\n%s", name, text)
		}
	}
}

func TestUnifiedOfEqualTextsHasNoHunk(t *testing.T) {
	out := shown(false, 0, func(s *Screen) { s.Unified("a", []byte("x\ny\n"), []byte("x\ny\n")) })
	if bytes.Contains(out, []byte("@@")) {
		t.Errorf("%s", out)
	}
}
