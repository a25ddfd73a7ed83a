package cli

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
)

const narrowConfig = `image "base" {
  source = "host"
}

network "net" {}

volume "work" {}

sandbox "py" {
  image   = image.base
  command = ["sleep", "infinity"]
  env     = { GREETING = "WORD", OTHER = "a value of several words" }
  labels  = { team = "agents", purpose = "to be looked at" }
  network {
    name = network.net
  }
  port "http" {
    container = 8080
  }
  mount {
    volume = volume.work
    path   = "/work"
  }
  lifetime {
    ttl = "8h"
  }
}

sandbox "worker_with_a_name" {
  for_each = toset(["one", "two"])
  image    = image.base
  command  = ["sleep", "infinity"]
}

output "where" {
  value = "http://127.0.0.1:${sandbox.py.ports.http.host} is where it is served from"
}
`

const narrowMistakes = `image "base" {
  source = "host"
}

sandbox "py" {
  image   = image.bse
  command = ["sleep", "infinity"]
  labels  = { first = "a label", second = "another label", third = local.nothing_of_this_name }
}
`

// On a terminal of 40 columns nothing is wider, and nothing is left out that a wide one
// shows; where no colour is wanted there is no escape sequence at all.
func TestNarrowAndPlainTerminals(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test makes real sandboxes: run it as root")
	}
	dir, state, run := leavesNothing(t, "pinfold-narrow")
	conf, bad := filepath.Join(dir, "conf"), filepath.Join(dir, "bad")
	write := func(in, text string) {
		t.Helper()
		if err := os.MkdirAll(in, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(in, "main.hcl"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(conf, strings.Replace(narrowConfig, "WORD", "hello", 1))
	write(bad, narrowMistakes)
	env := []string{"PINFOLD_STATE_DIR=" + state, "PINFOLD_RUN_DIR=" + run, "PINFOLD_HOST_CONFIG=" + filepath.Join(dir, "none.hcl"), "COLUMNS="}
	shown := func(columns uint16, more []string, args ...string) (string, int) {
		t.Helper()
		return onTerminal(t, conf, append(slices.Clone(env), more...), pty.Winsize{Rows: 24, Cols: columns}, args...).whole()
	}
	t.Cleanup(func() {
		if text, code := shown(80, nil, "destroy", "-auto-approve"); code != 0 {
			t.Errorf("destroy failed:\n%s", text)
		}
	})

	// Making them is shown with progress.
	text, code := shown(40, []string{"NO_COLOR=1"}, "apply", "-auto-approve")
	if code != 0 || !strings.Contains(text, "Creation complete") {
		t.Fatalf("apply: exit %d\n%s", code, text)
	}
	isPlain(t, "apply with NO_COLOR", text)
	fits40(t, "apply", text)
	listed, _ := shown(400, nil, "list", "-json")
	pid := regexp.MustCompile(`"worker_with_a_name\[\\"one\\"\]"[^}]*?"pid": (\d+)|two\\"[^}]*?"pid": (\d+)`).FindStringSubmatch(listed)
	if pid == nil {
		t.Fatalf("no process in\n%s", listed)
	}
	if err := syscall.Kill(atoi(t, pid[1]+pid[2]), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, code := shown(80, nil, "wait", "-for=phase=lost", "-timeout", "30s", `worker_with_a_name["two"]`); code != 0 {
		t.Fatal("what was killed is not lost")
	}
	write(conf, strings.Replace(narrowConfig, "WORD", "good morning to you all", 1)+"\nsandbox \"new\" {\n  image = image.base\n  command = [\"sleep\", \"infinity\"]\n}\n")

	views := map[string][]string{
		"plan": {"plan"}, "list": {"list"}, "describe": {"describe", "py"}, "events": {"events"}, "history": {"history"}, "drift": {"drift"},
		"state list": {"state", "list"}, "state show": {"state", "show", "sandbox.py"}, "errors": {"-chdir=" + bad, "validate"},
		"output": {"output"}, "help": {"-help"}, "plan -help": {"plan", "-help"}, "state mv -help": {"state", "mv", "-help"}, "exec -help": {"exec", "-help"},
		"volume list": {"volume", "list"}, "image list": {"image", "list"}, "image show": {"image", "show", "image.base"}, "effective": {"show", "-effective", "py"},
	}
	plain := map[string][]string{"NO_COLOR": {"NO_COLOR=1"}, "dumb": {"TERM=dumb"}, "-no-color": nil}
	for _, name := range slices.Sorted(maps.Keys(views)) {
		args := views[name]
		wide, _ := shown(1000, []string{"NO_COLOR=1"}, args...)
		for how, more := range plain {
			args := args
			if how == "-no-color" {
				args = append(slices.Clone(args), "-no-color")
			}
			text, _ := shown(40, more, args...)
			isPlain(t, name+" with "+how, text)
			fits40(t, name, text)
			if lost := lostWords(wide, text); len(lost) > 0 {
				t.Errorf("%s at 40 columns lacks %q:\n%s", name, lost, text)
			}
		}
		if text, _ := shown(40, nil, args...); !strings.Contains(name, "help") && name != "output" && name != "state list" && !strings.Contains(text, "\x1b[") {
			t.Errorf("%s on a terminal with colours has none:\n%q", name, text)
		} else {
			fits40(t, name+" in colour", escapes.ReplaceAllString(text, ""))
		}
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[mK]")

// isPlain: no escape sequences, nor any other control character but those of lines.
func isPlain(t *testing.T, name, text string) {
	t.Helper()
	if i := strings.IndexFunc(text, func(c rune) bool { return c < ' ' && c != '\n' && c != '\r' && c != '\t' }); i >= 0 {
		t.Errorf("%s writes a control character:\n%q", name, text[i:min(len(text), i+200)])
	}
}

// fits40: no line is wider, but for one that is a single word, which nothing breaks.
func fits40(t *testing.T, name, text string) {
	t.Helper()
	for _, line := range strings.FieldsFunc(text, func(c rune) bool { return c == '\n' || c == '\r' }) {
		if n := len([]rune(line)); n > 40 && len(strings.Fields(strings.TrimLeft(line, "│ "))) > 1 {
			t.Errorf("%s: %d columns on a screen of 40: %q", name, n, line)
		}
	}
}

// Words that differ from one look to the next, and what a table's form brings.
var (
	passing = regexp.MustCompile(`^[0-9.,smhd]+$`)
	drawn   = regexp.MustCompile(`^([^\pL\pN]*|[A-Z]+)$`)
)

// lostWords are those of wide that narrow does not have.
func lostWords(wide, narrow string) (lost []string) {
	words := func(text string) map[string]int {
		all := map[string]int{}
		for _, w := range strings.Fields(text) {
			if w = strings.Trim(w, "(),;·"); !passing.MatchString(w) && !drawn.MatchString(w) {
				all[w]++
			}
		}
		return all
	}
	have := words(narrow)
	for w, n := range words(wide) {
		if have[w] < n {
			lost = append(lost, w)
		}
	}
	slices.Sort(lost)
	return lost
}

func atoi(t *testing.T, text string) (n int) {
	t.Helper()
	for _, c := range text {
		n = 10*n + int(c-'0')
	}
	if n <= 1 {
		t.Fatalf("%q is no process", text)
	}
	return n
}

// The help of every command, at 40 columns and at 100.
func TestHelpFits(t *testing.T) {
	helps := func(width int) map[string]string {
		all := map[string]string{}
		r := &run{App: New()}
		var walk func(name string, c *cli.Command)
		walk = func(name string, c *cli.Command) {
			var text bytes.Buffer
			r.out = &view.Screen{W: &text, Width: width}
			r.printHelp(c)
			all[name] = text.String()
			for _, under := range c.Commands {
				if !under.Hidden {
					walk(name+" "+under.Name, under)
				}
			}
		}
		walk("pinfold", r.root())
		return all
	}
	thin, wide := helps(40), helps(100)
	for name, text := range thin {
		fits40(t, name+" -help", text)
		// A shell takes an example as it stands, in one line or several.
		if lost := lostWords(wide[name], text); len(lost) > 0 {
			t.Errorf("%s -help at 40 columns lacks %q:\n%s", name, lost, text)
		}
	}
	if got, want := continued(`a 'b c' "d e" f`, 10, "  "), "a 'b c' \\\n  \"d e\" \\\n  f"; got != want {
		t.Errorf("continued is %q, not %q", got, want)
	}
}
