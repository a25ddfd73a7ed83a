package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"pinfold/runtime/leftovers"
	"pinfold/testdata/lab/wire"
)

// Everything is slow in an emulated machine: these are bounds, not promises.
const (
	serveBound    = time.Minute
	convergeBound = 2 * time.Minute
	cleanBound    = 20 * time.Second
)

// inFarm checks what the last boot left, makes the farm ready for another one, and
// does the rest.
func (d *driver) inFarm(rest func() error) error {
	if err := bare(); err != nil {
		return fmt.Errorf("the machine did not come up bare: %w", err)
	}
	if err := writeFarm(); err != nil {
		return err
	}
	d.wake()
	var err error
	if d.agent, err = startAgent(); err != nil {
		return err
	}
	d.word(wire.Word{Stage: wire.StageServing})
	if err := poll(context.Background(), serveBound, func() error { _, err := list(); return err }); err != nil {
		return fmt.Errorf("the agent does not serve: %w", err)
	}
	if _, ok := recall[farm](d, noteFarm); ok {
		if err := d.checkReturn(); err != nil {
			return err
		}
	}
	if err := d.prepare(); err != nil {
		return err
	}
	return rest()
}

// wake draws from how the last boot ended what to expect in this one.
func (d *driver) wake() {
	d.again, _ = recall[string](d, noteAgain)
	d.lost = map[string]string{}
	for _, key := range lostKeys {
		state, ok := recall[string](d, noteLost+key)
		if !ok {
			continue
		}
		d.lost[key] = state
		switch {
		case state == alive && d.Ended == wire.Cut:
			d.lost[key] = gone
			d.note(noteLost+key, gone)
		case state == alive:
			// A cut before it is started again does not make it lost.
			d.note(noteLost+key, unsure)
		}
	}
	if d.Ended == wire.Cut {
		d.forget(noteCount + lostAddress("recreate-fresh") + "/count")
	}
}

// checkReturn is the whole check after a boot.
func (d *driver) checkReturn() error {
	began := time.Now()
	all, err := d.converged()
	if err != nil {
		return err
	}
	say("converged in %.1f s: %s", time.Since(began).Seconds(), phases(all))
	if f, _ := recall[farm](d, noteFarm); f.settled() {
		if err := d.nothingToDo(); err != nil {
			return err
		}
	}
	kept, err := d.checkData(all)
	if err != nil {
		return err
	}
	say("%s", kept)
	d.keepObserved(all)
	return errors.Join(d.agent.sound(), verifyState())
}

// converged waits until everything is as it is to be.
func (d *driver) converged() (all map[string]*sandbox, err error) {
	err = poll(context.Background(), convergeBound, func() (err error) {
		if all, err = list(); err != nil {
			return err
		}
		return d.judge(all)
	})
	return all, err
}

// phases counts them.
func phases(all map[string]*sandbox) string {
	n := map[string]int{}
	for _, s := range all {
		n[s.Phase]++
	}
	var words []string
	for _, phase := range slices.Sorted(maps.Keys(n)) {
		words = append(words, fmt.Sprintf("%d %s", n[phase], phase))
	}
	return strings.Join(words, ", ")
}

// checkData wants every number that was told, in its place, and no process where
// none was to be started.
func (d *driver) checkData(all map[string]*sandbox) (summary string, err error) {
	files, numbers := 0, 0
	for address, names := range counted {
		s := all[address]
		for _, name := range names {
			if s == nil || s.Phase == "lost" && name != "/count" {
				continue
			}
			n, err := d.checkCount(s, name)
			if err != nil {
				return "", err
			}
			files, numbers = files+1, numbers+n
		}
		// What is made again begins anew.
		if s == nil || s.Phase == "lost" {
			d.forget(noteCount + address + "/count")
		}
		if s == nil {
			d.forget(noteCount + address + "/work/count")
		}
	}
	if d.Ended == wire.Cut && d.lost["recreate-fresh"] == gone {
		s := all[lostAddress("recreate-fresh")]
		boots, err := starts(s)
		if err != nil {
			return "", err
		}
		if len(boots) != 1 || boots[0] != d.bootID {
			return "", fmt.Errorf("%s was lost, but its layer is not fresh: its process was started in boots %v", s.Address, boots)
		}
	}
	expired := 0
	for address, s := range all {
		if !s.is("Expired") {
			continue
		}
		boots, err := starts(s)
		if err != nil {
			return "", fmt.Errorf("an expired sandbox's files: %w", err)
		}
		if len(boots) == 0 || slices.Contains(boots, d.bootID) {
			return "", fmt.Errorf("%s expired while the machine was off, but its process was started in boots %v; this one is %s", address, boots, d.bootID)
		}
		expired++
	}
	return fmt.Sprintf("%d files with %d numbers are whole; %d expired and kept, none of them started", files, numbers, expired), nil
}

// checkCount reads a counter's file: it must be whole, and not behind what was told.
func (d *driver) checkCount(s *sandbox, name string) (int, error) {
	text, err := read(s, name)
	if err != nil {
		return 0, err
	}
	n, _, err := lastOf(text)
	if err != nil {
		return 0, fmt.Errorf("%s:%s is damaged: %w", s.Address, name, err)
	}
	if told, _ := recall[int](d, noteCount+s.Address+name); n < told {
		return 0, fmt.Errorf("%s:%s ends with %d, though %d was flushed and told", s.Address, name, n, told)
	}
	return n, nil
}

// keepObserved notes what was seen where more than one thing could be.
func (d *driver) keepObserved(all map[string]*sandbox) {
	for _, key := range lostKeys {
		state := gone
		if s := all[lostAddress(key)]; s != nil && s.Phase == "running" {
			state = alive
		}
		d.lost[key] = state
		d.note(noteLost+key, state)
	}
	for n := range verbs {
		s := all[verbAddress(n)]
		is := position{Hold: s.hold(), Until: *s.ExpiresAt}
		d.note(noteVerb+s.Address, wager{Was: is, Will: is})
	}
	if s := all["sandbox.done"]; s != nil && s.Outcome != nil {
		d.note(noteDone, s.Outcome.At)
	}
	for _, address := range []string{"sandbox.claim", "sandbox.shared", "sandbox.lonely"} {
		d.note(noteEnd+address, *all[address].ExpiresAt)
	}
}

// prepare makes the farm ready: what ended is made again or gives way to new ones.
func (d *driver) prepare() error {
	all, err := list()
	if err != nil {
		return err
	}
	f, _ := recall[farm](d, noteFarm)
	next := vars{Due: map[string]due{}, Word: fmt.Sprintf("boot %d", d.Boot)}
	for key, what := range f.Sure.Due {
		if all[dueAddress(key)] != nil && time.Now().Before(what.At) {
			next.Due[key] = what
		}
	}
	if len(next.Due) == 0 {
		for _, policy := range []string{"retain", "delete", "pause"} {
			next.Due[fmt.Sprintf("%d-%s", d.Boot, policy)] = due{At: time.Now().Add(dueIn).UTC().Truncate(time.Second), Policy: policy}
		}
	}
	var replace []string
	for _, key := range lostKeys {
		if d.lost[key] == gone {
			replace = append(replace, "-replace", lostAddress(key))
		}
		d.lost[key] = unsure
		d.note(noteLost+key, unsure)
	}
	if d.again != "" {
		replace = append(replace, "-replace", "sandbox.again")
	}
	d.note(noteAgain, unsure)
	if err := d.apply(next, replace...); err != nil {
		return err
	}
	for _, key := range lostKeys {
		d.lost[key] = alive
	}
	d.again = over
	if all, err = d.converged(); err != nil {
		return err
	}
	d.keepObserved(all)
	d.note(noteAgain, over)
	if err := d.nothingToDo(); err != nil {
		return err
	}
	if err := d.useful(all); err != nil {
		return err
	}
	if err := poll(context.Background(), cleanBound, func() error { return nothingMore(all) }); err != nil {
		return err
	}
	say("applied; nothing to do, everything answers, nothing else is on the host: %s", phases(all))
	return d.agent.sound()
}

// dueIn is how long the deadlines are away; less than the machine is off, when its
// clock moves on at all.
const dueIn = time.Hour

// useful wants the sandboxes to do what they are for: they count on, tell it through
// their ports, and run what exec asks for.
func (d *driver) useful(all map[string]*sandbox) error {
	for address, names := range counted {
		if err := d.hears(all[address], names); err != nil {
			return err
		}
	}
	out, err := pinfold("exec", "claim", "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(out)) != d.bootID {
		return fmt.Errorf("exec printed %q, not this boot's id %s", out, d.bootID)
	}
	return nil
}

// hears wants a newer number of each file from the sandbox's port.
func (d *driver) hears(s *sandbox, names []string) error {
	c, err := dial(s)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(30 * time.Second))
	lines := bufio.NewScanner(c)
	missing := slices.Clone(names)
	for len(missing) > 0 {
		if !lines.Scan() {
			return fmt.Errorf("%s tells nothing of %v: %v", s.Address, missing, lines.Err())
		}
		name, n, err := parseCount(lines.Text())
		if err != nil {
			return fmt.Errorf("%s: %w", s.Address, err)
		}
		if told, _ := recall[int](d, noteCount+s.Address+name); n <= told {
			return fmt.Errorf("%s counts %s at %d, though it was at %d before", s.Address, name, n, told)
		}
		missing = slices.DeleteFunc(missing, func(m string) bool { return m == name })
	}
	return nil
}

func dial(s *sandbox) (net.Conn, error) {
	c, err := net.DialTimeout("tcp4", fmt.Sprintf("127.0.0.1:%d", s.Ports["count"].Host), 10*time.Second)
	if err != nil {
		return nil, fmt.Errorf("%s is running, but its port does not answer: %w", s.Address, err)
	}
	return c, nil
}

func parseCount(line string) (name string, n int, err error) {
	name, number, _ := strings.Cut(line, " ")
	n, err = strconv.Atoi(number)
	return name, n, err
}

// bare wants nothing of pinfold's to be on the host but files.
func bare() error {
	if entries, err := os.ReadDir(runDir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is there", runDir)
	}
	short, err := shortID()
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was ever made
	}
	if err != nil {
		return err
	}
	left, err := leftovers.Of(short, stateDir, runDir)
	if err != nil {
		return err
	}
	left = slices.DeleteFunc(left, func(l string) bool { return strings.HasPrefix(l, "file "+stateDir) })
	if len(left) > 0 {
		return fmt.Errorf("there are: %s", strings.Join(left, "; "))
	}
	return nil
}

// nothingMore wants exactly what belongs to the sandboxes to be on the host.
func nothingMore(all map[string]*sandbox) error {
	short, err := shortID()
	if err != nil {
		return err
	}
	live, with := map[string]bool{}, map[string]bool{}
	links := 1 // the bridge
	volumes := 1
	for _, s := range all {
		volumes += claims(s)
		if s.InstanceID == nil {
			continue
		}
		with[*s.InstanceID] = true
		if s.live() {
			live[*s.InstanceID] = true
			if s.AddressV4 != nil {
				links++
			}
		}
	}
	var wrong []error
	for _, place := range []struct {
		dir  string
		want map[string]bool
	}{
		{filepath.Join("/sys/fs/cgroup", "pinfold-"+short), withEntry(live)},
		{filepath.Join(runDir, "netns"), live},
		{filepath.Join(stateDir, "instances"), with},
	} {
		have, err := names(place.dir)
		wrong = append(wrong, err, differ(place.dir, have, place.want))
	}
	left, err := leftovers.Of(short, stateDir, runDir)
	wrong = append(wrong, err)
	of := map[string][]string{}
	for _, l := range left {
		kind, what, _ := strings.Cut(l, " ")
		if strings.HasPrefix(what, filepath.Join(stateDir, "volumes")) {
			kind = "volume"
		}
		of[kind] = append(of[kind], what)
	}
	for _, w := range []struct {
		kind string
		n    int
	}{{"mount", len(live)}, {"link", links}, {"nft", 2}, {"volume", volumes}} {
		if len(of[w.kind]) != w.n {
			wrong = append(wrong, fmt.Errorf("%d of the kind %s are on the host, not %d: %s", len(of[w.kind]), w.kind, w.n, strings.Join(of[w.kind], ", ")))
		}
	}
	return errors.Join(wrong...)
}

// claims counts the volumes that are the sandbox's own.
func claims(s *sandbox) int {
	n := 0
	for name := range s.Volumes {
		if !strings.HasPrefix(name, "volume.") {
			n++
		}
	}
	return n
}

// names of the directories and files in dir, without the kernel's own files.
func names(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() || !strings.HasPrefix(dir, "/sys/") {
			all[e.Name()] = true
		}
	}
	return all, nil
}

func differ(where string, have, want map[string]bool) error {
	var wrong []string
	for name := range have {
		if !want[name] {
			wrong = append(wrong, name+" is too many")
		}
	}
	for name := range want {
		if !have[name] {
			wrong = append(wrong, name+" is missing")
		}
	}
	if len(wrong) > 0 {
		slices.Sort(wrong)
		return fmt.Errorf("%s: %s", where, strings.Join(wrong, ", "))
	}
	return nil
}

// verifyState has the state file looked through, where this pinfold can do that.
func verifyState() error {
	out, err := pinfold("help")
	if err != nil || !strings.Contains(string(out), "\n  state ") {
		return err
	}
	_, err = pinfold("state", "verify")
	return err
}

// withEntry adds the group in which processes start that enter a sandbox, which
// stays with the parent.
func withEntry(live map[string]bool) map[string]bool {
	all := maps.Clone(live)
	all["entering"] = true
	return all
}
