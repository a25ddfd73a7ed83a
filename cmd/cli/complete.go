package cli

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"pinfold/cmd/view"
	"pinfold/config"
	"pinfold/reconcile"
	"pinfold/reconcile/plan"
)

// typed is a command line up to the word that is to be completed.
type typed struct {
	cmd   *cli.Command // nil: not named yet
	under string       // the command that it is one of, if it is
	args  []string     // its arguments so far
	bare  bool         // "--" went before: no flags any more
	flag  cli.Flag     // whose value the word is, if it is one's
	word  string       // as far as it is written, without the shell's quotes
	// prefix is what stands before the value in the word ("-for="), cut how much of
	// the word the shell takes for words of their own: bash breaks at each "=".
	prefix string
	cut    int
	given  []string // names of the flags so far
}

// parseTyped takes a command line apart as far as completion has to know it.
func (r *run) parseTyped(root *cli.Command, raw []string) typed {
	words, cut := joined(raw)
	t := typed{cut: cut, word: words[len(words)-1]}
	var open cli.Flag // the flag whose value comes next
	for _, word := range words[:len(words)-1] {
		switch {
		case open != nil:
			r.complied(open, word)
			open = nil
		case !t.bare && word == "--":
			t.bare = true
		case !t.bare && strings.HasPrefix(word, "-") && !t.passedOn():
			name, value, inline := strings.Cut(strings.TrimLeft(word, "-"), "=")
			f := flagNamed(root, t.cmd, name)
			t.given = append(t.given, name)
			if _, boolean := f.(*cli.BoolFlag); f == nil || boolean {
				continue
			}
			if inline {
				r.complied(f, value)
			} else {
				open = f
			}
		case t.cmd == nil:
			t.cmd = root.Command(word)
			if t.cmd == nil {
				t.args = append(t.args, word)
			}
		case len(t.args) == 0 && t.cmd.Command(word) != nil:
			t.under, t.cmd = t.cmd.Name, t.cmd.Command(word)
		default:
			t.args = append(t.args, word)
		}
	}
	t.flag = open
	if name, _, inline := strings.Cut(t.word, "="); open == nil && inline && !t.bare && strings.HasPrefix(name, "-") && !t.passedOn() {
		t.flag = flagNamed(root, t.cmd, strings.TrimLeft(name, "-"))
		t.prefix = name + "="
	}
	return t
}

// passedOn tells whether what follows belongs to the command that exec runs.
func (t *typed) passedOn() bool { return t.cmd != nil && t.cmd.Name == "exec" && len(t.args) > 0 }

// complied sets where to look as a global flag says; completion never complains.
func (r *run) complied(f cli.Flag, value string) {
	switch f.Names()[0] {
	case "chdir":
		_ = os.Chdir(value)
	case "state-dir":
		r.global.stateDir = value
	case "run-dir":
		r.global.runDir = value
	case "host-config":
		r.global.hostConfig = value
	}
}

func flagNamed(root, cmd *cli.Command, name string) cli.Flag {
	if cmd == nil {
		cmd = root
	}
	for _, f := range flagsOf(cmd) {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// joined are the words without the shell's quotes, those that bash broke at "="
// whole again, and how much of the last is not in the shell's last word.
func joined(raw []string) (words []string, cut int) {
	glue := false
	for _, w := range raw {
		text := unquoted(w)
		if n := len(words); n > 0 && (glue || w == "=") {
			cut = len(words[n-1])
			if w == "=" {
				cut++ // bash completes what follows the sign
			}
			words[n-1] += text
		} else {
			words, cut = append(words, text), 0
		}
		glue = w == "="
	}
	if len(words) == 0 {
		words = []string{""}
	}
	return words, cut
}

// unquoted takes quotes and backslashes away as a shell does. A quote may still
// be open.
func unquoted(word string) string {
	var out strings.Builder
	var quote rune
	escaped := false
	for _, c := range word {
		switch {
		case escaped:
			out.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			escaped = true
		case c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		default:
			out.WriteRune(c)
		}
	}
	return out.String()
}

// candidate is a word that could stand there, and what it is.
type candidate struct{ word, what string }

func (r *run) complete(ctx context.Context, root *cli.Command, raw []string) {
	t := r.parseTyped(root, raw)
	value := strings.TrimPrefix(t.word, t.prefix)
	for _, c := range r.candidates(ctx, root, &t, value) {
		if word := t.prefix + c.word; strings.HasPrefix(c.word, value) && len(word) >= t.cut {
			r.out.Printf("%s\t%s\n", word[t.cut:], c.what)
		}
	}
}

// candidates are what could stand where value is being written.
func (r *run) candidates(ctx context.Context, root *cli.Command, t *typed, value string) []candidate {
	switch {
	case t.flag != nil:
		return r.flagValues(ctx, t.flag.Names()[0], value)
	case t.passedOn():
		return nil
	case strings.HasPrefix(value, "-") && !t.bare:
		return flagCandidates(root, t.cmd, value)
	case t.cmd == nil:
		if len(t.args) > 0 {
			return nil // no such command
		}
		return commandCandidates(root)
	}
	first := len(t.args) == 0
	switch name := t.cmd.Name; {
	case first && len(t.cmd.Commands) > 0:
		return commandCandidates(t.cmd)
	case t.under == "state":
		switch {
		case name == "list", name == "show" && first:
			return r.resourceCandidates(ctx)
		case name == "rm", name == "mv" && first:
			return r.resourceCandidates(ctx)
		case name == "mv" && len(t.args) == 1: // what the files call it now
			others, sandboxes := r.declared()
			return kindCandidates(append(sandboxes, others...))
		case (name == "restore" || name == "verify") && first:
			return r.backupCandidates()
		}
	case t.under == "volume", t.under == "image":
		if name == "show" && first {
			return r.namedCandidates(ctx, t.under, value)
		}
	case name == "list" || name == "top" || name == "wait" || name == "touch" || name == "kill", first && slices.Contains([]string{"describe", "events", "history", "logs", "attach", "start", "stop", "pause", "resume", "release", "renew", "exec"}, name):
		return addressCandidates(value, r.recorded(ctx))
	case name == "cp" && len(t.args) < 2:
		return placeCandidates(value, r.recorded(ctx))
	case name == "show" && first && slices.Contains(t.given, "effective"):
		_, sandboxes := r.declared()
		return addressCandidates(value, sandboxes)
	case name == "force-unlock" && first:
		return r.holderCandidates()
	case name == "output" && first:
		return r.outputCandidates(ctx)
	case name == "help" && first:
		return commandCandidates(root)
	case name == "completion" && first:
		return []candidate{{"bash", ""}, {"fish", ""}, {"zsh", ""}}
	}
	return nil
}

func flagCandidates(root, cmd *cli.Command, value string) (out []candidate) {
	if cmd == nil {
		cmd = root
	}
	dashes := "-"
	if strings.HasPrefix(value, "--") {
		dashes = "--"
	}
	for _, f := range flagsOf(cmd) {
		_, text := flagHelp(f)
		for _, name := range f.Names() {
			if boolean, ok := f.(*cli.BoolFlag); ok && boolean.Value {
				name += "=false" // it is true without being written
			}
			out = append(out, candidate{dashes + name, text})
		}
	}
	return out
}

func commandCandidates(of *cli.Command) (out []candidate) {
	for _, c := range of.Commands {
		if !c.Hidden {
			out = append(out, candidate{c.Name, c.Usage})
		}
	}
	return out
}

// flagValues are what a flag may be set to, where that can be known.
func (r *run) flagValues(ctx context.Context, flag, value string) (out []candidate) {
	switch flag {
	case "for":
		for _, condition := range conditionTypes {
			out = append(out, candidate{condition, "condition"})
			if strings.HasPrefix(value, condition+"=") {
				for _, status := range statuses {
					out = append(out, candidate{condition + "=" + status, "condition"})
				}
			}
		}
		for _, phase := range phases {
			out = append(out, candidate{"phase=" + phase, "phase"})
		}
	case "sort":
		for _, order := range view.TopOrders {
			out = append(out, candidate{order, "order"})
		}
	case "signal":
		for _, name := range config.SignalNames() {
			if name == "SIGSTOP" { // it cannot be sent
				continue
			}
			out = append(out, candidate{name, "signal"})
			if value != "" && !strings.HasPrefix(value, "S") {
				out = append(out, candidate{strings.TrimPrefix(name, "SIG"), "signal"})
			}
		}
	case "type":
		// Of several with commas between the last is being written.
		done := value[:strings.LastIndex(value, ",")+1]
		for _, name := range eventTypes {
			out = append(out, candidate{done + name, "event"})
		}
	case "remove":
		return r.orphanCandidates(ctx, func(o *reconcile.Orphan) bool { return !o.Live })
	case "adopt":
		return r.orphanCandidates(ctx, func(o *reconcile.Orphan) bool { return o.Kind == "instance" })
	case "ignore":
		for _, kind := range kinds {
			out = append(out, candidate{kind, "kind"})
		}
		return append(out, r.resourceCandidates(ctx)...)
	case "target", "exclude", "replace":
		others, sandboxes := r.declared()
		if flag == "replace" {
			return kindCandidates(append(sandboxes, r.recorded(ctx)...))
		}
		all := append(sandboxes, others...)
		for _, c := range r.resourceCandidates(ctx) {
			all = append(all, c.word)
		}
		for _, module := range modulesOver(all) {
			out = append(out, candidate{module, "module"})
		}
		return append(kindCandidates(all), out...)
	}
	return out
}

// kindCandidates are addresses, each once, with what they are of.
func kindCandidates(all []string) (out []candidate) {
	slices.Sort(all)
	for _, address := range slices.Compact(all) {
		out = append(out, candidate{address, plan.KindOf(address)})
	}
	return out
}

// addressCandidates are sandboxes by their full addresses and, where something
// is written that fits, by their short ones.
func addressCandidates(value string, addresses []string) (out []candidate) {
	for _, address := range addresses {
		out = append(out, candidate{address, "sandbox"})
	}
	for _, address := range addresses {
		short := strings.TrimPrefix(address, "sandbox.")
		if back, err := sandboxAddress(short); value != "" && err == nil && back == short {
			out = append(out, candidate{short, "sandbox"})
		}
	}
	return out
}

// placeCandidates are sandboxes with the colon that a path in them follows; the
// shell knows paths here, and nobody those inside.
func placeCandidates(value string, addresses []string) (out []candidate) {
	if colon(value) >= 0 || strings.HasPrefix(value, "/") || strings.HasPrefix(value, ".") {
		return nil
	}
	for _, c := range addressCandidates(value, addresses) {
		out = append(out, candidate{c.word + ":", c.what})
	}
	return out
}

func (r *run) outputCandidates(ctx context.Context) (out []candidate) {
	r.peek(ctx, func(ctx context.Context, s reconcile.Service) {
		all, err := s.Outputs(ctx)
		if err != nil {
			return
		}
		for _, o := range all {
			out = append(out, candidate{o.Name, "output"})
		}
	})
	return out
}

// recorded are the sandboxes there are.
func (r *run) recorded(ctx context.Context) (out []string) {
	r.peek(ctx, func(ctx context.Context, s reconcile.Service) {
		all, err := s.List(ctx)
		if err != nil {
			return
		}
		for _, x := range all.Sandboxes {
			out = append(out, x.Address)
		}
	})
	return out
}

// holderCandidates are the processes that have the state, where that may be read.
func (r *run) holderCandidates() (out []candidate) {
	for _, h := range reconcile.Holders(r.global.stateDir) {
		out = append(out, candidate{strconv.Itoa(h.PID), h.Verb})
	}
	return out
}

// backupCandidates are the backups in the state dir, newest first.
func (r *run) backupCandidates() (out []candidate) {
	all, err := reconcile.Backups(r.global.stateDir)
	if err != nil {
		return nil // it may not be read
	}
	for _, b := range all {
		out = append(out, candidate{b.Path, "backup of " + b.At.UTC().Format(time.RFC3339)})
	}
	return out
}

// resourceCandidates are the addresses of all that is recorded.
func (r *run) resourceCandidates(ctx context.Context) (out []candidate) {
	r.peek(ctx, func(ctx context.Context, s reconcile.Service) {
		recorded, err := s.Records(ctx)
		if err != nil {
			return
		}
		for _, x := range view.ResourcesOf(&recorded.Records) {
			out = append(out, candidate{x.Address, x.Kind})
		}
	})
	return out
}

// declared are the addresses that the files here declare.
func (r *run) declared() (others, sandboxes []string) {
	desired, _, err := r.evaluate(config.Inputs{Environ: r.Environ})
	if err != nil {
		return nil, nil
	}
	return addressesOf(desired, false), addressesOf(desired, true)
}

// addressesOf are those of the sandboxes that are declared, or of all but them.
func addressesOf(desired *config.Desired, sandboxes bool) (out []string) {
	if sandboxes {
		for _, x := range desired.Sandboxes {
			out = append(out, x.Address)
		}
		return out
	}
	for _, x := range desired.Images {
		out = append(out, x.Address)
	}
	for _, x := range desired.Networks {
		out = append(out, x.Address)
	}
	for _, x := range desired.Volumes {
		out = append(out, x.Address)
	}
	return out
}

// peek looks at what this user can find out at once.
func (r *run) peek(ctx context.Context, look func(context.Context, reconcile.Service)) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	service, err := r.open(ctx, need{verb: "completion", does: "look at sandboxes", lockWait: reconcile.NoLockWait})
	if err != nil {
		return
	}
	defer service.Close()
	look(ctx, service)
}
