package view

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// doing names a step in its course and its end: "Creating", "Creation".
var doing = map[plan.Action][2]string{
	plan.ActCreate:   {"Creating", "Creation"},
	plan.ActUpdate:   {"Updating", "Update"},
	plan.ActRestart:  {"Restarting", "Restart"},
	plan.ActReplace:  {"Replacing", "Replacement"},
	plan.ActDelete:   {"Destroying", "Destruction"},
	plan.ActStart:    {"Starting", "Start"},
	plan.ActStop:     {"Stopping", "Stop"},
	plan.ActSuspend:  {"Suspending", "Suspension"},
	plan.ActPause:    {"Pausing", "Pause"},
	plan.ActResume:   {"Resuming", "Resumption"},
	plan.ActExpire:   {"Expiring", "Expiry"},
	plan.ActRecreate: {"Recreating", "Recreation"},
	plan.ActRepair:   {"Repairing", "Repair"},
	plan.ActMove:     {"Moving", "Move"},
	plan.ActImport:   {"Importing", "Import"},
	plan.ActRelease:  {"Releasing", "Release"},
	plan.ActForget:   {"Forgetting", "Forgetting"},
	plan.ActNoop:     {"Recording", "Recording"},
}

// Progress shows an apply while it runs: a line at each step's begin and end
// and, on a live screen, one below them that tells what is going on now. Its
// methods may be called from several goroutines.
type Progress struct {
	mu      sync.Mutex
	s       *Screen
	live    bool // a terminal: the last line is redrawn
	total   int
	done    int // of those that ended
	failed  int
	skipped int
	running map[string]reconcile.Progress
	now     func() time.Time
	drawn   int // columns of the live line, if it is there
}

// NewProgress shows the steps of a plan with total steps. live needs a terminal.
func NewProgress(s *Screen, total int, live bool, now func() time.Time) *Progress {
	return &Progress{s: s, live: live, total: total, running: map[string]reconcile.Progress{}, now: now}
}

// Step takes one report.
func (p *Progress) Step(x reconcile.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	name := p.s.paint(bold, printable(plan.NameOf(x.Address, x.Deposed))+":")
	words, known := doing[x.Action]
	if !known {
		words = [2]string{string(x.Action), string(x.Action)}
	}
	switch x.State {
	case "started":
		p.running[x.Address] = x
		p.s.Linef("%s %s...\n", name, words[0])
	case "running":
		p.s.Linef("%s Still %s... [%s elapsed]\n", name, lower(words[0]), span(x.Elapsed))
	case "done":
		p.done++
		delete(p.running, x.Address)
		p.s.Linef("%s %s complete after %s%s\n", name, words[1], span(x.Elapsed), bracketed(x.Message))
	case "failed": // why is told once, at the end
		p.failed++
		delete(p.running, x.Address)
		p.s.Linef("%s %s\n", name, p.s.paint(red, fmt.Sprintf("%s errored after %s", words[1], span(x.Elapsed))))
	case "skipped":
		p.skipped++
		delete(p.running, x.Address)
		p.s.Linef("%s %s\n", name, p.s.paint(amber, "Skipped: "+printable(skippedFor(x.Message))))
	}
	p.draw()
}

// Tick redraws the live line; the caller does so about once a second.
func (p *Progress) Tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.draw()
}

// Close removes the live line.
func (p *Progress) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.live = false
}

func (p *Progress) clear() {
	if p.drawn > 0 {
		if p.s.Color {
			p.s.Printf("\r\x1b[K")
		} else { // no escape sequences
			p.s.Printf("\r%s\r", spaces(p.drawn))
		}
		p.drawn = 0
	}
}

func (p *Progress) draw() {
	if !p.live || len(p.running) == 0 {
		return
	}
	text := fmt.Sprintf("%d of %d done", p.done, max(p.total, p.done+p.failed+p.skipped+len(p.running)))
	if p.failed > 0 {
		text += fmt.Sprintf(", %d failed", p.failed)
	}
	if p.skipped > 0 {
		text += fmt.Sprintf(", %d skipped", p.skipped)
	}
	for _, address := range slices.Sorted(maps.Keys(p.running)) {
		x := p.running[address]
		text += fmt.Sprintf(" · %s %s", oneLine(address), span(p.now().Sub(x.At)))
	}
	if p.s.Width > 0 {
		text = cut(text, p.s.Width-1)
	}
	p.s.Printf("%s", p.s.paint(dim, text))
	p.drawn = columns(text)
}

func bracketed(message string) string {
	if message == "" {
		return ""
	}
	return " [id=" + oneLine(message) + "]"
}

func lower(s string) string {
	if s == "" || s[0] < 'A' || s[0] > 'Z' {
		return s
	}
	return string(s[0]+'a'-'A') + s[1:]
}
