package plan

import (
	"maps"
	"slices"
	"strings"

	"pinfold/config"
)

// moving is what the declaration makes of recorded addresses.
type moving struct {
	to map[string]string // new addresses, by the recorded ones
	// cycles are the groups of moves that form a cycle, as Records.Cycles has them.
	cycles  []string
	blocked []blockedMove
}

// blockedMove is one that something on record is in the way of.
type blockedMove struct {
	from, to string
	at       config.Position
}

// findMoves follows each recorded address through the moved blocks, as far as they
// lead. Then what a count was put on, or taken from, moves to its instance 0 and
// back, as if a block said so.
//
// Where blocks form a cycle, everything on it goes on to the next address that is
// declared, all at once and once only: a cycle that Records.Cycles has is at its end.
func findMoves(d *config.Desired, r *Records) moving {
	m := moving{to: map[string]string{}}
	f := follower{moves: slices.DeleteFunc(slices.Clone(d.Moves), impossible), done: r.Cycles, declared: map[string]bool{}, cycles: map[string]bool{}}
	for _, list := range [][]string{addressesOf(d.Images), addressesOf(d.Networks), addressesOf(d.Volumes), addressesOf(d.Sandboxes)} {
		for _, a := range list {
			f.declared[a] = true
		}
	}
	recorded := r.Addresses()
	if len(d.Moves) > 0 {
		m.follow(&f, recorded)
	}
	m.count(&f, recorded)
	return m
}

// impossible reports a move between a module and a thing in one, or between kinds,
// which makes no address of another.
func impossible(m config.Move) bool {
	_, from := config.ParseModule(m.From)
	_, to := config.ParseModule(m.To)
	return (from == nil) != (to == nil) || from != nil && KindOf(m.From) != KindOf(m.To)
}

// Moved are the records as the blocks leave them, as far as that can be told without
// what is declared.
func (r *Records) Moved(moves []config.Move) Records {
	return r.Rename(findMoves(&config.Desired{Moves: moves}, r).to)
}

func addressesOf[T any](rs []config.Resource[T]) []string {
	out := make([]string, len(rs))
	for i := range rs {
		out[i] = rs[i].Address
	}
	return out
}

// mover is a record with a way to go.
type mover struct {
	from  string
	steps int
	at    config.Position
}

// follow fills in where the blocks lead. What stays where it is keeps its address;
// of several that come to one address the one with the shortest way gets it.
func (m *moving) follow(f *follower, recorded []string) {
	byTarget := map[string][]mover{}
	var stays []string
	for _, a := range recorded {
		to, steps, at := f.follow(a)
		if to == a {
			stays = append(stays, a)
			continue
		}
		m.to[a] = to
		byTarget[to] = append(byTarget[to], mover{a, steps, at})
	}
	block := func(x mover, to string) {
		delete(m.to, x.from)
		m.blocked = append(m.blocked, blockedMove{x.from, to, x.at})
		stays = append(stays, x.from)
	}
	for _, to := range slices.Sorted(maps.Keys(byTarget)) {
		all := byTarget[to]
		slices.SortStableFunc(all, func(a, b mover) int { return a.steps - b.steps })
		for _, x := range all[1:] {
			block(x, to)
		}
		byTarget[to] = all[:1]
	}
	// One that is blocked stays, and so is in the way of another.
	for i := 0; i < len(stays); i++ {
		to := stays[i]
		for _, x := range byTarget[to] {
			block(x, to)
		}
		delete(byTarget, to)
	}
	for a := range f.declared { // also where nothing is on record yet
		f.follow(a)
	}
	m.cycles = slices.Sorted(maps.Keys(f.cycles))
	slices.SortFunc(m.blocked, func(a, b blockedMove) int { return strings.Compare(a.from, b.from) })
}

// count moves a single instance to key 0 of a resource that has a count now, and
// back where it has none any more, unless a block says something about either.
func (m *moving) count(f *follower, recorded []string) {
	at := make(map[string]bool, len(recorded)) // where records are after all moves
	now := func(a string) string {
		if to, moves := m.to[a]; moves {
			return to
		}
		return a
	}
	for _, a := range recorded {
		at[now(a)] = true
	}
	for _, a := range recorded {
		from := now(a)
		if f.declared[from] {
			continue
		}
		to, had := strings.CutSuffix(from, "[0]")
		if !had {
			to = from + "[0]"
		}
		if f.declared[to] && !at[to] && !f.concerns(from) && !f.concerns(to) {
			m.to[a] = to
			at[to] = true
			delete(at, from)
		}
	}
}

// follower goes along the moved blocks.
type follower struct {
	moves    []config.Move
	done     []string // cycles that were gone through before
	declared map[string]bool
	cycles   map[string]bool // those that were met
}

// follow tells where an address leads, over how many blocks, and where the first of
// them stands.
func (f *follower) follow(start string) (end string, steps int, at config.Position) {
	path, used := []string{start}, []int{}
	met := map[string]int{start: 0}
	for cur := start; ; {
		i, next := f.next(cur, used)
		if i < 0 {
			break
		}
		used = append(used, i)
		if first, again := met[next]; again {
			return f.round(path, used, first)
		}
		met[next] = len(path)
		path = append(path, next)
		cur = next
	}
	if len(used) > 0 {
		at = f.moves[used[0]].Source
	}
	return path[len(path)-1], len(path) - 1, at
}

// round ends a way that leads into a cycle, which begins at path[first]. What comes
// from outside goes no further than there.
func (f *follower) round(path []string, used []int, first int) (end string, steps int, at config.Position) {
	at = f.moves[used[0]].Source
	name := f.cycle(used[first:])
	f.cycles[name] = true
	switch {
	case first > 0:
		return path[first], first, at
	case slices.Contains(f.done, name):
		return path[0], 0, at
	}
	for i, a := range path[1:] {
		if f.declared[a] {
			return a, i + 1, at
		}
	}
	return path[0], 0, at
}

// cycle names a group of moves.
func (f *follower) cycle(used []int) string {
	var all []string
	for _, i := range used {
		all = append(all, f.moves[i].From+" -> "+f.moves[i].To)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "; ")
}

// concerns reports whether a block is about an address.
func (f *follower) concerns(address string) bool {
	i, _ := f.next(address, nil)
	return i >= 0
}

// next is the block that concerns an address, and where it leads. Of several it is
// the one that says most about it: a resource in a module moves before the module. No
// block is gone through twice, and one that leads into what it names ends there.
func (f *follower) next(address string, used []int) (i int, to string) {
	i = -1
	for j := range f.moves {
		m := &f.moves[j]
		if i >= 0 && len(m.From) <= len(f.moves[i].From) || slices.Contains(used, j) ||
			config.Covers(m.From, m.To) && config.Covers(m.To, address) {
			continue
		}
		if next, concerned := m.Apply(address); concerned && next != address {
			i, to = j, next
		}
	}
	return i, to
}

// KindOf is the type in an address: sandbox, network, volume or image.
func KindOf(address string) string {
	for _, kind := range []string{"sandbox", "network", "volume", "image"} {
		if strings.HasPrefix(address, kind+".") {
			return kind
		}
	}
	// Below a module: a module's key may have anything in it, a resource's name not.
	whole := withoutKey(address)
	if i := strings.LastIndexByte(whole, '.'); i > 0 {
		whole = whole[:i]
		return whole[strings.LastIndexByte(whole, '.')+1:]
	}
	return ""
}

// readdressed is a declaration's work on addresses, done before everything else.
type readdressed struct {
	changes []Change
	to      map[string]string // new addresses, by the old ones
	cycles  []string
	diags   config.Diagnostics
	refused config.Diagnostics // imports, by the address that they were for
	notes   []string
}

// readdress does in the input what the files say about the addresses of records:
// what was moved, and what is taken back. The rest of the plan speaks of the outcome.
func readdress(in *Input) readdressed {
	r := readdressed{changes: []Change{}}
	if in.Desired == nil {
		return r
	}
	m := findMoves(in.Desired, &in.Records)
	r.to, r.cycles = m.to, m.cycles
	for _, b := range m.blocked {
		r.diags = append(r.diags, diagnostic("warning", b.from, b.from+" is not moved to "+b.to,
			b.to+" is on record already, or comes there by a shorter way. So "+b.from+" keeps its address, and what is declared there decides what becomes of it. To keep it, move one of them out of the way first, with pinfold state mv.", b.at))
	}
	if len(m.to) > 0 {
		from := make(map[string]string, len(m.to)) // old addresses by the new ones
		for a, b := range m.to {
			from[b] = a
		}
		in.Records = in.Records.Rename(m.to)
		in.Activity = renameKeys(in.Activity, m.to)
		for _, b := range slices.Sorted(maps.Keys(from)) {
			c := Change{Address: b, Kind: KindOf(b), Action: ActMove, Origin: FromFiles, From: from[b],
				Cause: "moved from " + from[b], Consequence: "moved from " + from[b] + ", nothing of it is touched"}
			if s := in.Records.Sandboxes[b]; s != nil {
				c.Instance = instanceOf(s)
			}
			r.changes = append(r.changes, c)
		}
	}
	r.takeBack(in)
	return r
}

func renameKeys[V any](m map[string]V, to map[string]string) map[string]V {
	if m == nil {
		return nil
	}
	out := make(map[string]V, len(m))
	for a, v := range m {
		if b, moved := to[a]; moved {
			a = b
		} else if _, taken := out[a]; taken {
			continue
		}
		out[a] = v
	}
	return out
}

// checkMoves refuses a plan for a part of what is recorded that leaves out something
// whose address changes: its record would be in nobody's place.
func (w *walk) checkMoves() {
	var out []string
	for _, c := range w.first.changes {
		if c.Action == ActMove && !w.covered(c.Address) {
			out = append(out, c.Address)
		}
	}
	if len(out) == 0 {
		return
	}
	flags := make([]string, len(out))
	for i, a := range out {
		flags[i] = "-target='" + a + "'"
	}
	way := "Add " + strings.Join(flags, " ") + ", or leave -target out."
	if len(w.in.Options.Targets) == 0 {
		way = "Leave -exclude out, or apply the moves alone first, with " + strings.Join(flags, " ") + "."
	}
	w.fail("", "what was moved is left out of the plan",
		"The files give new addresses to what is on record ("+listed(out)+"), and the plan has to speak of all of it. "+way, config.Position{})
}
