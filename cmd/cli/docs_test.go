package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The examples of the pages that explain how it is used are valid as they stand,
// and written as fmt writes them.
func TestPagesHaveValidExamples(t *testing.T) {
	fenced := regexp.MustCompile("(?s)```hcl\n(.*?)```")
	for page, least := range map[string]int{"lifecycle.md": 5, "start.md": 1, "agent.md": 0, "moving.md": 5} {
		text, err := os.ReadFile(filepath.Join("../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		examples := fenced.FindAllStringSubmatch(string(text), -1)
		if len(examples) < least {
			t.Errorf("%s has %d examples", page, len(examples))
		}
		for _, example := range examples {
			t.Run(page, func(t *testing.T) {
				t.Chdir(t.TempDir())
				files := map[string]string{"main.hcl": example[1]}
				if !strings.Contains(example[1], "image \"base\"") {
					files["image.hcl"] = "image \"base\" {\n  source = \"host\"\n}\n"
				}
				for name, text := range files {
					if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				for _, args := range [][]string{{"validate"}, {"fmt", "-check", "-diff"}} {
					if r := invoke(t, &engine{}, args...); r.code != 0 {
						t.Errorf("%v: exit %d\n%s%s\n%s", args, r.code, r.out, r.err, example[1])
					}
				}
			})
		}
	}
}

// Commands that the pages and the README show exist, and what they say is not there
// is not there.
func TestPagesNameCommands(t *testing.T) {
	root := (&run{App: New()}).root()
	shown := regexp.MustCompile("(?m)(?:^    \\$ (?:sudo )?|`)pinfold ([a-z][a-z-]*)")
	for _, page := range []string{"docs/lifecycle.md", "docs/start.md", "docs/agent.md", "docs/state.md", "docs/moving.md", "docs/commands.md", "README.md"} {
		text, err := os.ReadFile(filepath.Join("../..", page))
		if err != nil {
			t.Fatal(err)
		}
		found := shown.FindAllStringSubmatch(string(text), -1)
		if len(found) == 0 {
			t.Errorf("%s shows no command", page)
		}
		for _, m := range found {
			if root.Command(m[1]) == nil {
				t.Errorf("%s shows pinfold %s, which does not exist", page, m[1])
			}
		}
	}
}

// What docs/reliability.md and docs/compared.md name as proof exists, and each row of
// the comparison names some.
func TestPagesNameTests(t *testing.T) {
	sources := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			source, rerr := os.ReadFile(path)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(source), -1) {
				sources[m[1]] = true
			}
			return rerr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	proof := regexp.MustCompile("`(Test\\w+|\\w+\\.txtar|make [a-z-]+)`")
	for page, least := range map[string]int{"reliability.md": 60, "compared.md": 40} {
		text, err := os.ReadFile(filepath.Join("../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		named := proof.FindAllStringSubmatch(string(text), -1)
		if len(named) < least {
			t.Errorf("%s names only %d proofs", page, len(named))
		}
		for _, m := range named {
			target, isTarget := strings.CutPrefix(m[1], "make ")
			switch {
			case isTarget:
				if !regexp.MustCompile(`(?m)^` + target + `:`).Match(makefile) {
					t.Errorf("%s: the Makefile has no %s", page, target)
				}
			case strings.HasSuffix(m[1], ".txtar"):
				if _, err := os.Stat(filepath.Join("testdata/script", m[1])); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			case !sources[m[1]]:
				t.Errorf("%s: there is no test %s", page, m[1])
			}
		}
		for line := range strings.Lines(string(text)) {
			cells := strings.Split(line, " | ")
			if page == "compared.md" && strings.HasPrefix(line, "| ") && cells[1] != "pinfold" && (len(cells) != 8 || !proof.MatchString(cells[2])) {
				t.Errorf("%s: a row without proof, or of %d cells: %s", page, len(cells), line)
			}
		}
	}
}
