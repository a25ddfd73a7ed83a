package cli

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v3"
	"golang.org/x/term"

	"pinfold/cmd/view"
)

// Where things are when nothing else is said.
const (
	defaultStateDir   = "/var/lib/pinfold"
	defaultRunDir     = "/run/pinfold"
	defaultHostConfig = "/etc/pinfold/host.hcl"
)

// globals are the flags of every command.
type globals struct {
	chdir      string
	stateDir   string
	runDir     string
	hostConfig string
	noColor    bool
}

func (r *run) globalFlags() []cli.Flag {
	g := &r.global
	return []cli.Flag{
		&cli.StringFlag{Name: "chdir", Usage: "work in `DIR` instead of the current directory; stands before the command", Local: true, Destination: &g.chdir},
		&cli.StringFlag{Name: "state-dir", Usage: "keep records, images, volumes and logs in `DIR`; each serves one directory of *.hcl files", Value: defaultStateDir, Sources: cli.EnvVars("PINFOLD_STATE_DIR"), Destination: &g.stateDir},
		&cli.StringFlag{Name: "run-dir", Usage: "keep the agent's socket and what a reboot may lose in `DIR`", Value: defaultRunDir, Sources: cli.EnvVars("PINFOLD_RUN_DIR"), Destination: &g.runDir},
		&cli.StringFlag{Name: "host-config", Usage: "read the host's settings from `FILE`, if it is there", Value: defaultHostConfig, Sources: cli.EnvVars("PINFOLD_HOST_CONFIG"), Destination: &g.hostConfig},
		&cli.BoolFlag{Name: "no-color", Usage: "write no colours, on a terminal either", Destination: &g.noColor},
	}
}

// getenv looks a variable up in the App's environment.
func (a *App) getenv(name string) string {
	for _, entry := range slices.Backward(a.Environ) {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value
		}
	}
	return ""
}

// screens decides about colour and width: a terminal gets both, a pipe neither.
// NO_COLOR: https://no-color.org.
func (r *run) screens(noColor bool) {
	color := !noColor && r.getenv("NO_COLOR") == "" && r.getenv("TERM") != "dumb"
	screen := func(f *os.File) *view.Screen {
		s := &view.Screen{W: f}
		if isTerminal(f) {
			s.Color, s.Width = color, r.columns(f)
		}
		return s
	}
	r.out, r.err = screen(r.Out), screen(r.Err)
}

func (r *run) columns(f *os.File) int {
	if n, err := strconv.Atoi(r.getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
		return width
	}
	return 80
}

func isTerminal(f *os.File) bool { return f != nil && term.IsTerminal(int(f.Fd())) }

// logger writes to standard error at the level of PINFOLD_LOG; without it at
// level standard.
func (r *run) logger(standard hclog.Level) (hclog.Logger, error) {
	level := standard
	if text := r.getenv("PINFOLD_LOG"); text != "" {
		if level = hclog.LevelFromString(text); level == hclog.NoLevel {
			return nil, failure("PINFOLD_LOG="+text+" is not a log level", "Use trace, debug, info, warn, error or off.")
		}
	}
	color := hclog.ColorOff
	if r.err.Color {
		color = hclog.ForceColor
	}
	return hclog.New(&hclog.LoggerOptions{Name: "pinfold", Level: level, Output: r.Err, Color: color}), nil
}
