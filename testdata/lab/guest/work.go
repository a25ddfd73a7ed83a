package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"pinfold/testdata/lab/wire"
)

// work goes on until the power is cut; before a shutdown, for some seconds, and is
// then left in the middle, too.
func (d *driver) work() error {
	all, err := list()
	if err != nil {
		return err
	}
	if d.random.IntN(3) == 0 {
		say("the agent is stopped: commands work by themselves")
		if err := d.agent.stop(); err != nil {
			return err
		}
	}
	d.note(noteAgain, unsure)
	if _, err := pinfold("start", "-lock-timeout", "2m", "again"); err != nil {
		return err
	}
	d.note(noteAgain, begun)
	failed := make(chan error)
	begin := func(what func(random *rand.Rand) error) {
		random := rand.New(rand.NewPCG(d.random.Uint64(), 0))
		go func() {
			for {
				if err := what(random); err != nil {
					failed <- err
				}
			}
		}()
	}
	for address := range counted {
		begin(func(*rand.Rand) error { return d.follow(all[address]) })
	}
	begin(d.applySomething)
	begin(d.act)
	begin(d.enter)
	d.word(wire.Word{Stage: wire.StageWorking})
	var end <-chan time.Time
	if d.Then == wire.Shutdown {
		end = time.After(time.Duration(3+d.random.IntN(10)) * time.Second)
	}
	select {
	case err := <-failed:
		return fmt.Errorf("at work: %w", err)
	case <-end:
		return nil
	case <-time.After(5 * time.Minute):
		return errors.New("the power was not cut")
	}
}

// follow notes each number that the sandbox tells, until the connection ends.
func (d *driver) follow(s *sandbox) error {
	c, err := dial(s)
	if err != nil {
		time.Sleep(100 * time.Millisecond) // the port is an agent's that was stopped, or is not there yet
		return nil
	}
	defer c.Close()
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		name, n, err := parseCount(lines.Text())
		if err != nil {
			return fmt.Errorf("%s: %w", s.Address, err)
		}
		if told, _ := recall[int](d, noteCount+s.Address+name); n <= told {
			return fmt.Errorf("%s counts %s at %d, though it was at %d before", s.Address, name, n, told)
		}
		d.note(noteCount+s.Address+name, n)
	}
	return nil
}

// applySomething makes and removes some, and changes one.
func (d *driver) applySomething(random *rand.Rand) error {
	f, _ := recall[farm](d, noteFarm)
	next := f.Sure.copy()
	next.Churn = nil
	for _, key := range []string{"a", "b", "c"} {
		if random.IntN(2) == 0 {
			next.Churn = append(next.Churn, key)
		}
	}
	next.Word = fmt.Sprintf("%d", random.IntN(1000))
	return d.apply(next)
}

// act does one verb on one sandbox.
func (d *driver) act(random *rand.Rand) error {
	address := verbAddress(random.IntN(verbs))
	w, ok := recall[wager](d, noteVerb+address)
	if !ok {
		return fmt.Errorf("nothing is known of %s", address)
	}
	was, will := w.Was, w.Was
	var command []string
	renew := func() {
		will.Until = was.Until.Add(time.Duration(1+random.IntN(100)) * time.Minute)
		command = []string{"renew", "-until", will.Until.Format(time.RFC3339Nano)}
	}
	switch pick := random.IntN(3); {
	case pick == 0:
		renew()
	case was.Hold != "" && pick == 1:
		will.Hold, command = "", []string{"release"}
	case was.Hold == "paused":
		will.Hold, command = "", []string{"resume"}
	case was.Hold == "suspended":
		will.Hold, command = "", []string{"start"}
	case pick == 1:
		will.Hold, command = "paused", []string{"pause"}
	default:
		will.Hold, command = "suspended", []string{"stop"}
	}
	d.note(noteVerb+address, wager{Was: was, Will: will})
	command = append(command, "-lock-timeout", "2m", address)
	// An apply that looked at the sandbox in the middle of the verb before has a step
	// for it, and refuses other verbs meanwhile.
	for end := time.Now().Add(verbBound); ; {
		_, err := pinfold(command...)
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "operation in progress: apply") || time.Now().After(end) {
			return err
		}
	}
	d.note(noteVerb+address, wager{Was: will, Will: will})
	return nil
}

// verbBound is how long an apply may stand in a verb's way.
const verbBound = 2 * time.Minute

// enter writes into a sandbox without flushing anything.
func (d *driver) enter(random *rand.Rand) error {
	_, err := pinfold("exec", "-lock-timeout", "2m", "claim", "sh", "-c",
		fmt.Sprintf("head -c %d /dev/urandom >/work/junk%d; date >>/junk", random.IntN(200_000), random.IntN(5)))
	return err
}
