package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// judge compares all sandboxes with what was asked for.
func (d *driver) judge(all map[string]*sandbox) error {
	j := &judgement{d: d, all: all, seen: map[string]bool{}}
	j.farm, _ = recall[farm](d, noteFarm)
	for _, address := range []string{"sandbox.claim", "sandbox.shared", "sandbox.lonely"} {
		if s := j.phase(address, "running"); s != nil {
			j.ends(s)
		}
	}
	j.phase("sandbox.turn", "running")
	j.phase(`sandbox.still["paused"]`, "paused")
	if s := j.phase(`sandbox.still["suspended"]`, "stopped"); s != nil && !s.is("Suspended") {
		j.complain("%s is stopped, but not Suspended", s.Address)
	}
	j.done()
	j.again()
	for n := range verbs {
		j.verb(verbAddress(n))
	}
	for _, key := range lostKeys {
		j.lost(key)
	}
	for key := range merged(j.farm.Sure.Due, j.farm.Next.Due) {
		j.due(key)
	}
	j.churn()
	for address, s := range all {
		if !j.seen[address] {
			j.complain("%s is %s, and nobody asked for it", address, s.Phase)
		}
	}
	return errors.Join(j.complaints...)
}

type judgement struct {
	d          *driver
	all        map[string]*sandbox
	farm       farm
	seen       map[string]bool
	complaints []error
}

func (j *judgement) complain(format string, args ...any) {
	j.complaints = append(j.complaints, fmt.Errorf(format, args...))
}

// phase wants the sandbox to be in one of the phases; nil when it is not.
func (j *judgement) phase(address string, phases ...string) *sandbox {
	j.seen[address] = true
	s := j.all[address]
	switch {
	case s == nil:
		j.complain("%s is not there", address)
		return nil
	case !slices.Contains(phases, s.Phase):
		j.complain("%s is %s, not %s%s", address, s.Phase, strings.Join(phases, " or "), s.end())
		return nil
	}
	return s
}

// ends wants its deadline to be where it was.
func (j *judgement) ends(s *sandbox) {
	was, ok := recall[time.Time](j.d, noteEnd+s.Address)
	if !ok {
		return
	}
	if s.ExpiresAt == nil || !s.ExpiresAt.Equal(was) {
		j.complain("%s: its deadline moved from %s to %s", s.Address, instant(&was), instant(s.ExpiresAt))
	}
}

func instant(t *time.Time) string {
	if t == nil {
		return "none"
	}
	return t.Format(time.RFC3339Nano)
}

func (j *judgement) done() {
	s := j.phase("sandbox.done", "stopped")
	switch {
	case s == nil:
	case !s.is("Finished") || s.Outcome == nil || s.Outcome.ExitCode == nil || *s.Outcome.ExitCode != 3:
		j.complain("sandbox.done did not finish with code 3")
	default:
		if was, ok := recall[time.Time](j.d, noteDone); ok && !was.Equal(s.Outcome.At) {
			j.complain("sandbox.done ended at %s, and now at %s", instant(&was), instant(&s.Outcome.At))
		}
	}
}

// again wants the one that ended and was started again to run, whatever its first
// end was.
func (j *judgement) again() {
	const address = "sandbox.again"
	switch j.d.again {
	case begun:
		j.phase(address, "running")
	case over:
		if s := j.phase(address, "stopped"); s != nil && !s.is("Finished") {
			j.complain("%s is stopped, but not Finished", address)
		}
	default:
		j.phase(address, "running", "stopped")
	}
}

// verb wants what was confirmed, or what was under way.
func (j *judgement) verb(address string) {
	j.seen[address] = true
	s := j.all[address]
	if s == nil {
		j.complain("%s is not there", address)
		return
	}
	w, ok := recall[wager](j.d, noteVerb+address)
	if !ok {
		return // before the first verb
	}
	if s.hold() != w.Was.Hold && s.hold() != w.Will.Hold {
		j.complain("%s is held %q; it was held %q, and a verb was to make that %q", address, s.hold(), w.Was.Hold, w.Will.Hold)
	}
	if s.ExpiresAt == nil || !s.ExpiresAt.Equal(w.Was.Until) && !s.ExpiresAt.Equal(w.Will.Until) {
		j.complain("%s expires at %s; it was %s, and a verb was to make that %s", address, instant(s.ExpiresAt), instant(&w.Was.Until), instant(&w.Will.Until))
	}
	j.phase(address, map[string]string{"": "running", "paused": "paused", "suspended": "stopped"}[s.hold()])
}

// lost wants what on_lost says, where it was lost.
func (j *judgement) lost(key string) {
	address := lostAddress(key)
	j.seen[address] = true
	s := j.all[address]
	state := j.d.lost[key]
	absent, lost := s == nil, s != nil && s.Phase == "lost"
	switch {
	case state == "": // before the first apply
		if !absent {
			j.complain("%s is there already", address)
		}
	case state == unsure && (key == "delete" && absent || key == "retain" && lost):
	case state != gone || key == "recreate-fresh":
		j.phase(address, "running")
	case key == "retain":
		j.phase(address, "lost")
	case key == "delete" && !absent:
		j.complain("%s is %s, though it was lost and is to be deleted then", address, s.Phase)
	}
}

func (j *judgement) due(key string) {
	address := dueAddress(key)
	sure, isSure := j.farm.Sure.Due[key]
	next, isNext := j.farm.Next.Due[key]
	j.seen[address] = true
	s := j.all[address]
	if s == nil && !(isSure && isNext) {
		return // it was being made, or being removed
	}
	what := sure
	if !isSure {
		what = next
	}
	if time.Now().Before(what.At) {
		if s := j.phase(address, "running"); s != nil && (s.ExpiresAt == nil || !s.ExpiresAt.Equal(what.At)) {
			j.complain("%s expires at %s, not at %s", address, instant(s.ExpiresAt), instant(&what.At))
		}
		return
	}
	if what.Policy == "delete" {
		if s != nil {
			j.complain("%s is %s, though its deadline passed and it is to be deleted then", address, s.Phase)
		}
		return
	}
	// One whose making was cut off just then is on its way no further: pending.
	if s := j.phase(address, "stopped", "lost", "pending"); s != nil && !s.is("Expired") {
		j.complain("%s is %s, but not Expired, though its deadline passed", address, s.Phase)
	}
}

func (j *judgement) churn() {
	f := j.farm
	for _, key := range slices.Concat(f.Sure.Churn, f.Next.Churn) {
		address := churnAddress(key)
		j.seen[address] = true
		both := slices.Contains(f.Sure.Churn, key) && slices.Contains(f.Next.Churn, key)
		if both || j.all[address] != nil {
			j.phase(address, "running")
		}
	}
}

func merged(a, b map[string]due) map[string]bool {
	keys := map[string]bool{}
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	return keys
}
