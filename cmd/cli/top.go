package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
)

// topTries is how many failed looks in a row end a display that refreshes.
const topTries = 5

// shortestTop keeps looking from becoming the load that is looked at.
const shortestTop = 100 * time.Millisecond

func (r *run) topCommand() *cli.Command {
	var once bool
	var lockWait time.Duration
	interval := config.Duration(2 * time.Second)
	sorted := "name"
	return &cli.Command{
		Name: "top", Usage: "show what sandboxes use", UsageText: "pinfold top [flags] [SANDBOX]...", Category: "look",
		Description: "Shows what the sandboxes that have a process use: processor time as a part of one core, memory without file cache and its limit, processes and threads, what came in and went out over the network, per second, and how long they run. On a terminal it is shown anew each interval until q or Ctrl-C. In a pipe, and with -once, it is printed once, after one interval; with -json and without -once one document each interval, one a line, until Ctrl-C.",
		Flags: []cli.Flag{
			boolFlag(&once, "once", "print it once and end"),
			&cli.GenericFlag{Name: "interval", Usage: "look again each `DURATION`, at least 100ms", Value: value{
				set: func(s string) error {
					d, err := config.ParseDuration(s)
					if err == nil && time.Duration(d) < shortestTop {
						err = fmt.Errorf("%q is too short: at least %s", s, shortestTop)
					}
					interval = d
					return err
				},
				show: func() string { return interval.String() },
			}},
			&cli.GenericFlag{Name: "sort", Usage: "in the order of `WHAT`: " + strings.Join(view.TopOrders, ", ") + "; the largest first", Value: value{
				set: func(s string) error {
					for _, order := range view.TopOrders {
						if s == order {
							sorted = s
							return nil
						}
					}
					return fmt.Errorf("%q is none of %s%s", s, strings.Join(view.TopOrders, ", "), didYouMean(s, view.TopOrders, ""))
				},
				show: func() string { return sorted },
			}},
			lockFlag(&lockWait), r.jsonFlag(),
		},
		Metadata: example("sudo pinfold top", "sudo pinfold top -once -sort memory"),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			args, err := arguments(cmd, 0, -1)
			if err != nil {
				return err
			}
			t := &topper{run: r, interval: time.Duration(interval), order: sorted, lockWait: lockWait}
			for _, text := range args {
				name, err := sandboxAddress(text)
				if err != nil {
					return err
				}
				t.names = append(t.names, name)
			}
			switch {
			case once, !r.json && !isTerminal(r.Out):
				return t.once(ctx)
			case r.json || !r.out.Color: // no escape sequences are wanted
				return t.stream(ctx)
			}
			return t.display(ctx)
		},
	}
}

// topper looks at what sandboxes use, again and again. The state is open only while it
// is asked.
type topper struct {
	*run
	names    []string
	interval time.Duration
	order    string
	lockWait time.Duration
	before   *reconcile.StatsResult
	failed   int
}

// look is what was used since the last look; nil at the first.
func (t *topper) look(ctx context.Context) (*reconcile.TopResult, error) {
	service, err := t.open(ctx, need{verb: "top", does: "look at what sandboxes use", lockWait: t.lockWait})
	if err != nil {
		return nil, err
	}
	defer service.Close()
	now, err := service.Stats(ctx, t.names...)
	if err != nil {
		for _, name := range t.names {
			if _, lerr := service.List(ctx, name); lerr != nil {
				return nil, suggest(ctx, service, name, lerr)
			}
		}
		return nil, err
	}
	before := t.before
	if t.before = now; before == nil {
		return nil, nil
	}
	top := now.Since(before)
	view.SortTop(top, t.order)
	return top, nil
}

// again is look for one who goes on: somebody may have the state for a while, or an
// agent come or go. over: it was Ctrl-C.
func (t *topper) again(ctx context.Context) (top *reconcile.TopResult, over bool, err error) {
	top, err = t.look(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, true, nil
	case err == nil:
		t.failed = 0
		return top, false, nil
	}
	if t.failed++; t.before == nil || t.failed >= topTries && !isKind(err, reconcile.Locked) {
		return nil, false, err
	}
	return nil, false, nil
}

func (t *topper) once(ctx context.Context) error {
	if _, err := t.look(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return exitWith(exitInterrupted)
	case <-time.After(t.interval):
	}
	top, err := t.look(ctx)
	if err != nil {
		return err
	}
	if t.json {
		return view.JSON(t.out, top)
	}
	t.out.Top(top)
	return nil
}

// stream prints one after another, until Ctrl-C, which is how it ends.
func (t *topper) stream(ctx context.Context) error {
	for {
		top, over, err := t.again(ctx)
		if over || err != nil {
			return err
		}
		if top != nil {
			if t.json {
				if err := view.JSONLine(t.out, top); err != nil {
					return err
				}
			} else {
				t.out.Top(top)
				t.out.Printf("\n")
			}
			if err := t.out.Err(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(t.interval):
		}
	}
}

const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // another screen, no cursor (xterm's control sequences)
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

// display shows it on a screen of its own until q or Ctrl-C.
func (t *topper) display(ctx context.Context) error {
	keys, err := t.watchKeys(ctx)
	if err != nil {
		return err
	}
	defer keys.close()
	fmt.Fprint(t.Out, enterScreen)
	leave := func() { fmt.Fprint(t.Out, leaveScreen) }
	defer leave()
	t.interrupts.onExit(leave)
	for {
		top, over, err := t.again(ctx)
		if over || err != nil {
			return err
		}
		if top != nil {
			t.show(top)
		} else if t.failed == 0 {
			fmt.Fprint(t.Out, "\x1b[HLooking for "+t.interval.String()+" ...\x1b[J")
		}
		if keys.quit(t.interval) {
			return nil
		}
	}
}

// show draws one frame, as high as the terminal is now.
func (t *topper) show(top *reconcile.TopResult) {
	height := 24
	if _, rows, err := term.GetSize(int(t.Out.Fd())); err == nil && rows > 0 {
		height = rows
	}
	fmt.Fprint(t.Out, topFrame(top, t.out.Color, t.columns(t.Out), height))
}

// topFrame is what draws top over what was there; its last line stays empty.
func topFrame(top *reconcile.TopResult, color bool, width, height int) string {
	var text bytes.Buffer
	screen := &view.Screen{W: &text, Color: color, Width: width}
	screen.Top(top)
	lines := strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
	if more := len(lines) - (height - 1); more > 0 {
		lines = append(lines[:max(0, height-2)], fmt.Sprintf("... and %d lines more", more+1))
	}
	var out strings.Builder
	out.WriteString("\x1b[H")
	for _, line := range lines {
		out.WriteString(line + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	return out.String()
}

// keys are those that are pressed meanwhile, where standard input is a terminal.
type keys struct {
	in      *os.File
	wake    [2]*os.File // becomes readable when ctx ends
	stop    func() bool
	restore func()
}

// watchKeys lets single keys through, without showing them. Ctrl-C stays what it is.
func (r *run) watchKeys(ctx context.Context) (*keys, error) {
	k := &keys{in: r.In, restore: func() {}}
	var err error
	if k.wake[0], k.wake[1], err = os.Pipe(); err != nil {
		return nil, err
	}
	k.stop = context.AfterFunc(ctx, func() { k.wake[1].Close() })
	if !isTerminal(r.In) {
		k.in = nil
		return k, nil
	}
	fd := int(r.In.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		k.close()
		return nil, fmt.Errorf("cannot read the terminal's modes: %w", err)
	}
	modes := *before
	modes.Lflag &^= unix.ICANON | unix.ECHO
	modes.Cc[unix.VMIN], modes.Cc[unix.VTIME], modes.Cc[unix.VSUSP] = 1, 0, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &modes); err != nil {
		k.close()
		return nil, fmt.Errorf("cannot set the terminal's modes: %w", err)
	}
	k.restore = func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, before) }
	r.interrupts.onExit(k.restore)
	return k, nil
}

func (k *keys) close() {
	k.restore()
	if k.stop() {
		k.wake[1].Close()
	}
	k.wake[0].Close()
}

// quit waits, and tells whether q was pressed or all is to end.
func (k *keys) quit(wait time.Duration) bool {
	for end := time.Now().Add(wait); ; {
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		fds := []unix.PollFd{{Fd: int32(k.wake[0].Fd()), Events: unix.POLLIN}}
		if k.in != nil {
			fds = append(fds, unix.PollFd{Fd: int32(k.in.Fd()), Events: unix.POLLIN})
		}
		if n, err := unix.Poll(fds, int(left.Milliseconds())+1); n <= 0 {
			if err != nil && err != unix.EINTR {
				return true
			}
			continue
		}
		if fds[0].Revents != 0 {
			return true
		}
		var key [16]byte
		n, err := k.in.Read(key[:])
		if err != nil || n == 0 {
			k.in = nil // nobody types any more
			continue
		}
		if bytes.ContainsAny(key[:n], "qQ\x03\x04") {
			return true
		}
	}
}
