package cli

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// walked is the command that these words lead to, and the first word that names none.
func walked(root *cli.Command, words string) (c *cli.Command, left string) {
	c = root
	for word := range strings.FieldsSeq(words) {
		next := c.Command(word)
		if next == nil {
			return c, word
		}
		c = next
	}
	return c, ""
}

func hasFlag(c *cli.Command, flag string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
	if flagNamed(c.Root(), c, name) != nil {
		return true
	}
	for _, short := range name { // -it
		if flagNamed(c.Root(), c, string(short)) == nil {
			return false
		}
	}
	return true
}

// Nothing is to be used instead of what exists, and what is said to do it exists, its
// flags included.
func TestInsteadOf(t *testing.T) {
	root := (&run{App: New()}).root()
	shown := regexp.MustCompile(`'pinfold ([^']*)'`)
	says := func(key, text string) {
		for _, m := range shown.FindAllStringSubmatch(text, -1) {
			c := root
			for _, word := range strings.Fields(m[1]) {
				switch next := c.Command(word); {
				case next != nil:
					c = next
				case len(c.Commands) > 0:
					t.Errorf("instead of %s: there is no command %q in %q", key, word, m[1])
				case strings.HasPrefix(word, "-") && !hasFlag(c, word):
					t.Errorf("instead of %s: %s has no flag %s", key, c.Name, word)
				}
			}
		}
		if !strings.HasSuffix(text, ".") {
			t.Errorf("instead of %s: %q is no sentence", key, text)
		}
	}
	for key, text := range insteadOf {
		c, left := walked(root, key)
		if left == "" || !strings.HasSuffix(key, left) || len(c.Commands) == 0 {
			t.Errorf("%q: it is a command, or stands under none", key)
		}
		says(key, text)
	}
	for key, text := range insteadOfFlag {
		c, flag := walked(root, key)
		if !strings.HasPrefix(flag, "-") || flagNamed(root, c, flag[1:]) != nil || len(c.Commands) > 0 {
			t.Errorf("%q: it is a flag, or one of no command", key)
		}
		says(key, text)
	}
}

// Flags that people know from Terraform work, or say what to do instead.
func TestTerraformFlags(t *testing.T) {
	configured(t)
	for _, text := range insteadOfAnywhere {
		if !strings.HasSuffix(text, ".") || !strings.Contains(text, " ") {
			t.Errorf("%q is no sentence", text)
		}
	}
	for _, c := range []struct {
		args []string
		want string // of what is said; empty: it works
	}{
		{[]string{"plan", "-no-color"}, ""},
		{[]string{"plan", "-input=false"}, ""},
		{[]string{"plan", "-var", "x=a b  c"}, ""},
		{[]string{"plan", "-var=x=a b"}, ""},
		{[]string{"plan", "-lock-timeout=10s"}, ""},
		{[]string{"plan", "-var", "x = a b"}, "did you mean 'x=a b'?"},
		{[]string{"plan", "-var", "x= a"}, ""}, // a value may begin with a space
		{[]string{"plan", "-parallelism", "3"}, "Only 'pinfold apply' and 'pinfold destroy' do work"},
		{[]string{"plan", "-parallelism=3", "-json"}, "Only 'pinfold apply' and 'pinfold destroy' do work"},
		{[]string{"plan", "-lock=false"}, "-lock-timeout=0 does not wait"},
		{[]string{"apply", "-lock=false", "-auto-approve"}, "-lock-timeout=0 does not wait"},
		{[]string{"apply", "-compact-warnings"}, "Warnings are always told whole"},
		{[]string{"apply", "-state=x.tfstate"}, "-state-dir=DIR"},
		{[]string{"apply", "-backup=-"}, "pinfold state backup"},
		{[]string{"destroy", "-state-out", "x"}, "pinfold state pull"},
		{[]string{"state", "mv", "-backup=x", "a", "b"}, "pinfold state backup"},
		{[]string{"state", "rm", "-lock=false", "a"}, "-lock-timeout=0"},
		{[]string{"init", "-upgrade"}, "There is nothing to upgrade"},
		{[]string{"init", "-reconfigure"}, "There is no backend to set up"},
		{[]string{"init", "-migrate-state"}, "pinfold state push"},
		{[]string{"init", "-backend-config=x"}, "-state-dir"},
		{[]string{"init", "-backend=false"}, "-state-dir"},
		{[]string{"plan", "-generate-config-out=x.hcl"}, "import block"},
		{[]string{"fmt", "-write=false"}, "pinfold fmt -check -diff"},
		{[]string{"destroy", "-out=p"}, "pinfold plan -out FILE"},
	} {
		e := &engine{}
		r := invoke(t, e, c.args...)
		if c.want == "" {
			if r.code != 0 || r.err != "" {
				t.Errorf("%v: exit %d\n%s", c.args, r.code, r.err)
			}
			continue
		}
		if r.code != 1 || e.opens != 0 || !strings.Contains(strings.Join(strings.Fields(r.out+r.err), " "), c.want) {
			t.Errorf("%v: exit %d, want %q\n%s%s", c.args, r.code, c.want, r.out, r.err)
		}
	}
	e := &engine{}
	if r := invoke(t, e, "plan", "-var", "x= a"); r.code != 0 || e.plan.Source.Variables["x"].Text != " a" {
		t.Errorf("exit %d, %+v", r.code, e.plan)
	}
}

// Whoever types what another program has is told what to do here, with the flags and
// arguments of that program behind it, too.
func TestWordsOfOthers(t *testing.T) {
	for line, want := range map[string]string{
		"run -it --rm ubuntu sh":   `pinfold has no command "run"`,
		"rm -f x":                  "pinfold destroy -target",
		"images":                   "pinfold image list",
		"ps -a":                    "pinfold list' shows all of them",
		"ps --all":                 "pinfold list' shows all of them",
		"import sandbox.a abc":     "An import block",
		"taint sandbox.a":          "pinfold apply -replace",
		"untaint sandbox.a":        "Nothing is marked",
		"refresh -json":            "pinfold apply -refresh-only",
		"workspace new x":          "-state-dir",
		"providers":                "There are none",
		"get -update":              "There is nothing to fetch",
		"test -filter=x":           "pinfold plan",
		"login":                    "nothing to log in to",
		"create x":                 "apply -no-start",
		"inspect -f {{.State}} x":  "pinfold describe",
		"up -d":                    "pinfold apply",
		"down -v":                  "pinfold destroy",
		"-no-color up -d":          "pinfold apply",
		"-state-dir /s up -d":      "pinfold apply",
		"volume rm -f models":      "Volumes go by plan",
		"volume create models":     "Write a volume block",
		"volume prune -f":          "Volumes go by plan",
		"volume inspect models":    "pinfold volume show",
		"volume ls -q":             "pinfold volume list",
		"image pull ubuntu:24.04":  "nothing to pull",
		"image rm -f base":         "Remove the image block",
		"image ls":                 "pinfold image list",
		"state ls":                 "pinfold state list",
		"volume shw":               "did you mean show?",
		"volume":                   "",
		"help volume rm":           "Volumes go by plan",
		"-nosuch up":               "pinfold has no flag -nosuch",
		"list -nosuch":             "list has no flag -nosuch",
		"frobnicate -x":            `pinfold has no command "frobnicate"`,
		"exec -nosuch py images":   "exec has no flag -nosuch",
		"-run-dir /r -json images": "pinfold has no flag -json",
	} {
		r := invoke(t, &engine{}, strings.Fields(line)...)
		if want == "" {
			if r.code != 0 || !strings.Contains(r.out, "show ") {
				t.Errorf("%s: exit %d\n%s%s", line, r.code, r.out, r.err)
			}
			continue
		}
		// A terminal may break the line anywhere.
		said := strings.Join(strings.Fields(strings.ReplaceAll(r.err+r.out, "│", " ")), " ")
		if r.code != 1 || !strings.Contains(said, want) {
			t.Errorf("%s: exit %d, not with %q\n%s%s", line, r.code, want, r.out, r.err)
		}
	}
	if r := invoke(t, &engine{}, "-json", "images"); r.code != 1 || !slices.Contains(strings.Fields(r.out), `"diagnostics":`) {
		t.Errorf("-json images: exit %d\n%s%s", r.code, r.out, r.err)
	}
}
