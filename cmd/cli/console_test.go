package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/creack/pty"
)

// Lines can be edited, come back with the arrow keys, and go on while brackets are
// open; the terminal is left as it was.
func TestConsoleOnTerminal(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.hcl"), []byte("locals {\n  x = 20\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	env := []string{"PINFOLD_STATE_DIR=" + filepath.Join(dir, "state"), "PINFOLD_RUN_DIR=" + filepath.Join(dir, "run")}
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	before := modes(t, slave) // as of every new terminal
	for _, end := range []string{"exit\r", "\x04"} {
		x := onTerminal(t, dir, env, pty.Winsize{Rows: 24, Cols: 80}, "console")
		x.expect(`> $`)
		x.send("local.y\x7fx + 3\r") // a character taken back
		x.expect(`\n23\r\n> $`)
		x.send("\x1b[A\x7f4\r") // the line before, changed
		x.expect(`\n24\r\n> $`)
		x.send("[1,\r")
		x.expect(`: $`)
		x.send("2]\r")
		x.expect(`\n\[\r\n  1,\r\n  2,\r\n\]\r\n> $`)
		for _, enter := range []string{"\r", "\n"} { // pasted, as terminals mark it
			x.send("\x1b[200~1+6" + enter + "2+6" + enter + "\x1b[201~")
			x.expect(`\n7\r\n`)
			x.expect(`\n8\r\n> $`)
			x.send("3+6\r")
			x.expect(`\n9\r\n> $`)
		}
		x.send("local.z\r")
		x.expect(`no local value named "z"`)
		x.expect(`> $`)
		x.send(end)
		if code := x.ends(); code != 0 {
			t.Errorf("%q: exit code %d\n%s", end, code, x.screen())
		}
		if after := modes(t, x.slave); after != before {
			t.Errorf("%q: the terminal is left as %+v", end, after)
		}
	}
}
