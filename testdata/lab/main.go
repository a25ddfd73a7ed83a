// Command lab boots a machine of its own, in software emulation, with the
// distribution's kernel and cgroup v2 only, and sees what pinfold makes of it: it
// runs the tests of the real kernel inside, and then takes the power away in the
// middle of work, again and again. Run it with `make lab` or `make lab-full`, as root.
//
// It only starts the machine, cuts its power and keeps its notes. What it prints of
// results is what the machine said on its console.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pinfold/testdata/lab/wire"
)

func main() {
	full := flag.Bool("full", false, "every suite and many power cuts")
	cuts := flag.Int("cuts", 0, "how many power cuts; 0: as many as the form has")
	seed := flag.Uint64("seed", 0, "repeats a run's choices; 0: a new one, which is printed")
	parts := flag.String("parts", "bin/lab/parts", "where the programs for the machine are")
	dir := flag.String("dir", "bin/lab", "where the lab keeps its files")
	only := flag.String("only", "", "suites or boots; both by default")
	suite := flag.String("suite", "", "of the suites only this package's")
	tests := flag.String("run", "", "of the suites only the tests that match, as go test takes it")
	keep := flag.Bool("keep", false, "keep the machine's disk, to look at it afterwards")
	printSuites := flag.Bool("print-suites", false, "print the packages whose tests run, one a line, and do nothing")
	flag.Parse()
	p := short
	if *full {
		p = long
	}
	p.narrow(*suite, *tests)
	if *printSuites {
		for _, s := range p.suites {
			fmt.Println(s.Name)
		}
		return
	}
	if *cuts > 0 {
		p.cuts = *cuts
	}
	switch *only {
	case "":
	case "suites":
		p = program{suites: p.suites, compiler: p.compiler}
	case "boots":
		p.suites, p.compiler = nil, false
	default:
		fmt.Fprintln(os.Stderr, "lab: -only is suites or boots")
		os.Exit(2)
	}
	l := &lab{out: os.Stdout, dir: *dir, notes: map[string]json.RawMessage{}, seed: *seed, keepImage: *keep}
	if l.seed == 0 {
		l.seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := l.run(ctx, p, *parts); err != nil {
		fmt.Fprintln(os.Stderr, "lab: FAIL:", err)
		os.Exit(1)
	}
}

// lab is a run.
type lab struct {
	out     io.Writer
	console io.Writer
	dir     string
	image   string
	kernel  string
	initrd  string
	seed    uint64
	notes   map[string]json.RawMessage
	shift   time.Duration // of the machine's clock, by what it was off for

	keepImage bool
}

func (l *lab) run(ctx context.Context, p program, parts string) error {
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(l.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another lab runs in %s: %w", l.dir, err)
	}
	log := filepath.Join(l.dir, "console.log")
	console, err := os.Create(log)
	if err != nil {
		return err
	}
	defer console.Close()
	l.console = console
	fmt.Fprintf(l.out, "seed %d; the machine's console: %s\n", l.seed, log)
	began := time.Now()
	if err := l.makeImage(ctx, parts, p.suites, p.compiler); err != nil {
		return err
	}
	if !l.keepImage {
		defer os.Remove(l.image)
	}
	fmt.Fprintf(l.out, "the machine's disk is made (%.0f s)\n", time.Since(began).Seconds())
	boots := p.boots(l.random(0))
	for i, b := range boots {
		b.Boot = i + 1
		fmt.Fprintf(l.out, "boot %d of %d, after %.0f s: %s\n", b.Boot, len(boots), time.Since(began).Seconds(), b)
		if err := l.boot(ctx, b); err != nil {
			return fmt.Errorf("boot %d (seed %d): %w", b.Boot, l.seed, err)
		}
	}
	fmt.Fprintf(l.out, "PASS: %d boots in %.0f s (seed %d)\n", len(boots), time.Since(began).Seconds(), l.seed)
	return nil
}

// random is the source of the choices of one boot.
func (l *lab) random(boot int) *rand.Rand { return rand.New(rand.NewPCG(l.seed, uint64(boot))) }

const (
	silenceBound = 4 * time.Minute // without a word or line
	offBound     = time.Minute     // for switching itself off
)

// boot is one life of the machine.
func (l *lab) boot(ctx context.Context, b boot) error {
	random := l.random(b.Boot)
	l.shift += b.Off
	m, err := powerOn(ctx, l, time.Now().Add(l.shift))
	if err != nil {
		return err
	}
	err = l.attend(ctx, m, b, random)
	unflushed, lost, diskErr := m.cut(func() bool { return random.Float64() < b.loss }, l.keep)
	if b.Then == wire.Cut && err == nil {
		fmt.Fprintf(l.out, "  power cut; of %d sectors that were not flushed %d are lost\n", unflushed, lost)
	}
	if words := m.kernelTrouble(); words != "" {
		err = errors.Join(err, fmt.Errorf("the machine's kernel: %s", words))
	}
	return errors.Join(err, diskErr)
}

// attend hears the machine until this boot's end is due: the cut, or that it is off.
func (l *lab) attend(ctx context.Context, m *machine, b boot, random *rand.Rand) error {
	end := time.NewTimer(b.bound)
	defer end.Stop()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	var power <-chan time.Time
	verdict := ""
	for {
		select {
		case w, ok := <-m.words:
			switch {
			case !ok && verdict == "":
				return errors.New("the machine went off without a verdict")
			case !ok:
				return nil
			case w.Up:
				if err := m.tell(l.task(b)); err != nil {
					return err
				}
			case w.Stage == b.stage && b.Then == wire.Cut && power == nil:
				after := time.Duration(random.Int64N(int64(b.within)))
				power = time.After(after)
			case w.Verdict == wire.Fail:
				m.waitOff(offBound)
				return errors.New("the machine says FAIL")
			case w.Verdict != "":
				verdict = w.Verdict
				end.Reset(offBound)
			default:
				l.keep(w)
			}
		case <-power:
			return nil
		case <-end.C:
			return fmt.Errorf("the machine is not done after %s", b.bound)
		case <-look.C:
			if m.silentSince() > silenceBound {
				return fmt.Errorf("the machine said nothing for %s", silenceBound)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *lab) task(b boot) wire.Task {
	t := b.Task
	t.Seed, t.Notes = l.seed, l.notes
	return t
}

// keep keeps a note.
func (l *lab) keep(w wire.Word) {
	switch {
	case w.Note == "":
	case w.Value == nil:
		delete(l.notes, w.Note)
	default:
		l.notes[w.Note] = w.Value
	}
}
